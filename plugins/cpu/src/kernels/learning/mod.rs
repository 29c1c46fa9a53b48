//! Losses, optimisers, and features of text.

pub(super) mod loss;
pub(super) mod optimise;
pub(super) mod tf_idf;
