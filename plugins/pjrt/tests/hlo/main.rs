//! Graphs as StableHLO: what is claimed, what texts are, and what comes out on real libraries.
//!
//! One program, because each that is linked takes seconds.

mod claims;
mod elementwise;
mod layout;
mod products;
mod quantised;
mod recurrent;
mod reductions;
#[path = "../support/mod.rs"]
mod support;
