//! The hostile corpus: ONNX's node tests with their operands, attributes and arity changed, run in processes of their
//! own, and what became of each.
//!
//! A case is a seed, which is a node test, and the position of a change in the seed's list (`mutate.rs`). Every op that
//! ONNX tests is covered without a list of ours. A [`worker`] imports, plans and runs cases on one device and says what
//! came of each; [`campaign`] starts workers, notices those that die or hang, and compares devices. Whatever a model
//! says, it runs, or it is refused with a typed error: everything else is a failure.
//!
//! Left out on purpose: random bytes, which the fuzz targets are for, and models of many nodes.

pub mod campaign;
mod corpus;
mod mutate;
pub mod outcome;
mod seed;
pub mod seeds;
pub mod table;
mod wire;
pub mod worker;

pub use corpus::{Case, Corpus, Selection};
pub use seed::HostileModel;
