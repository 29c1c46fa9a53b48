//! Fourier transforms and windows.

pub(super) mod fft;
pub(super) mod stft;
pub(super) mod windows;
