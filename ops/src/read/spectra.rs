//! Reads DFT-17, DFT-20 and STFT-17: signals and their spectra.

use super::{axis, extents, host_int};
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result, TensorView};

/// The content of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Real numbers.
    Real,
    /// Complex numbers.
    Complex,
    /// The first half of a spectrum; the other half is its conjugate.
    Half,
}

/// The layout of signals or spectra, in numbers: signal `i` begins at `i / per * outer + i % per * inner`, and its elements
/// are `step` apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Signals per group.
    pub per: i64,
    /// Distance between groups.
    pub outer: i64,
    /// Distance between signals of a group.
    pub inner: i64,
    /// Distance between elements of a signal.
    pub step: i64,
}

/// The transforms of a node. Products saturate at the type's largest number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spectra {
    /// Length of a transform, at least 1.
    pub n: i64,
    /// Number of signals.
    pub signals: i64,
    /// The content of each signal.
    pub signal: Signal,
    /// Elements of a signal; zeros follow.
    pub samples: i64,
    /// Elements of a spectrum.
    pub bins: i64,
    /// True for the inverse transform.
    pub inverse: bool,
    /// Layout of the signals.
    pub from: Layout,
    /// Layout of the spectra.
    pub to: Layout,
    /// Numbers per output element: 1 or 2.
    pub parts: i64,
    /// Extents of the output.
    pub output: Vec<i64>,
}

fn product(extents: &[i64]) -> i64 {
    extents.iter().fold(1, |product, &extent| product.saturating_mul(extent))
}

impl Spectra {
    /// Reads an STFT node.
    ///
    /// # Errors
    /// Invalid for shapes, lengths and attributes that break the specification; unsupported for a window shorter than a
    /// frame.
    pub fn of_stft<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let shape = extents(request.required_input(0)?)?;
        // Exporters omit the last extent of a real signal.
        let (batch, length, signal) = match *shape {
            [batch, length] | [batch, length, 1] => (batch, length, Signal::Real),
            [batch, length, 2] => (batch, length, Signal::Complex),
            _ => return Err(Error::invalid(format!("a signal of {shape:?}"))),
        };
        let step = host_int(request, 1, 0)?;
        let window = request.input(2).map(TensorView::shape);
        let default = window.map_or(length, product);
        let n = host_int(request, 3, default)?;
        if step < 1 || n < 1 || n > length {
            return Err(Error::invalid(format!("frames of {n} elements every {step} of {length}")));
        }
        if window.is_some_and(|window| window != [n]) {
            return Err(Error::unsupported(format!("a window of {default} elements for frames of {n}")));
        }
        let onesided = request.attrs.int("onesided", 1)? != 0;
        if onesided && signal == Signal::Complex {
            return Err(Error::invalid("one side of the spectra of a complex signal"));
        }
        let frames = (length - n) / step + 1;
        let bins = if onesided { n / 2 + 1 } else { n };
        let parts = if signal == Signal::Complex { 2 } else { 1 };
        Ok(Self {
            n,
            signals: product(&[batch, frames]),
            signal,
            samples: n,
            bins,
            inverse: false,
            // A step longer than the signal gives one frame, and could overflow.
            from: Layout {
                per: frames,
                outer: product(&[length, parts]),
                inner: product(&[step.min(length), parts]),
                step: parts,
            },
            to: Layout {
                per: frames,
                outer: product(&[frames, bins, 2]),
                inner: product(&[bins, 2]),
                step: 2,
            },
            parts: 2,
            output: vec![batch, frames, bins, 2],
        })
    }

    /// Reads a DFT node of the version 17, whose axis is an attribute.
    ///
    /// # Errors
    /// Invalid for shapes, lengths and attributes that break the specification.
    pub fn of_dft_17<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        Self::of_dft(request, request.attrs.int("axis", 1)?)
    }

    /// Reads a DFT node of the version 20, whose axis is an operand.
    ///
    /// # Errors
    /// As [`Spectra::of_dft_17`].
    pub fn of_dft_20<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        Self::of_dft(request, host_int(request, 2, -2)?)
    }

    fn of_dft<D>(request: &PrepareRequest<'_, D>, i: i64) -> Result<Self> {
        let from = extents(request.required_input(0)?)?;
        let i = axis(i, from.len())?;
        let inverse = request.attrs.int("inverse", 0)? != 0;
        let onesided = request.attrs.int("onesided", 0)? != 0;
        let (signal, in_parts) = match (from.last(), onesided && inverse) {
            _ if i + 1 == from.len() => {
                return Err(Error::invalid(format!(
                    "axis {i} of {from:?} is that of real and imaginary parts"
                )));
            }
            (Some(1), false) => (Signal::Real, 1),
            (Some(2), false) if !onesided => (Signal::Complex, 2),
            (Some(2), true) => (Signal::Half, 2),
            _ => {
                return Err(Error::invalid(format!(
                    "a signal of {from:?}, onesided {onesided}, inverse {inverse}"
                )));
            }
        };
        let samples = from[i];
        let default = match signal {
            Signal::Half => product(&[samples.max(1) - 1, 2]),
            _ => samples,
        };
        let n = host_int(request, 1, default)?;
        if n < 1 {
            return Err(Error::invalid(format!("a transform of {n} elements")));
        }
        let bins = if onesided && !inverse { n / 2 + 1 } else { n };
        let parts = if signal == Signal::Half { 1 } else { 2 };
        let mut output = from.to_vec();
        output[i] = bins;
        if let Some(last) = output.last_mut() {
            *last = parts;
        }
        let inner = product(&from[i + 1..from.len() - 1]);
        let layout = |length: i64, parts: i64| Layout {
            per: inner.max(1),
            outer: product(&[length, inner, parts]),
            inner: parts,
            step: product(&[inner, parts]),
        };
        Ok(Self {
            n,
            signals: product(&from[..i]).saturating_mul(inner),
            signal,
            samples,
            bins,
            inverse,
            from: layout(samples, in_parts),
            to: layout(bins, parts),
            parts,
            output,
        })
    }
}
