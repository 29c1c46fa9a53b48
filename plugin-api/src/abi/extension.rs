//! Numbers of the extensions that `get_extension` knows (B6).
//!
//! An extension is a table of its own with its own revision, looked up by id on either side; a side that
//! does not know an id answers NULL. Ids below [`EXPERIMENTAL`] are given out here and never reused. Those
//! from there on belong to whoever tries something: such an extension gets a new id when it becomes stable.
//! The ids below are reserved for the extensions that the design foresees; [`COMPILE`], [`INTEROP`] and [`REPLAY`] have a
//! table yet, and [`FAULT`], which is an experiment of our own.

/// Compile whole programs, and later subgraphs (B23, [`CompileTable`](super::CompileTable)).
pub const COMPILE: u32 = 1;
/// Wrap and hand out native streams and buffers (B10, B15, [`InteropTable`](super::InteropTable)).
pub const INTEROP: u32 = 2;
/// Record a task once, replay it with one call (B22, [`ReplayTable`](super::ReplayTable)).
pub const REPLAY: u32 = 3;
/// Map buffers into the host's memory.
pub const MAP: u32 = 4;
/// Device timestamps correlated with the host's clock.
pub const TIMESTAMPS: u32 = 5;
/// Bandwidth and reach between devices.
pub const LINKS: u32 = 6;
/// First id of the range for experiments.
pub const EXPERIMENTAL: u32 = 0x8000_0000;
/// Makes streams fail on request ([`FaultTable`](super::FaultTable)), for conformance runs.
pub const FAULT: u32 = EXPERIMENTAL + 0x10;
