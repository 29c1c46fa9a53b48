//! The op catalogue: which ops a program may hold, in which version, and what the host needs to know of
//! them.
//!
//! A program knows one version per op, [`OpDef::version`]; import lifts older definitions to it. Versions
//! from [`OpDef::same_since`] on differ from it only in the element types that they allow, so a kernel that
//! declares any of them implements the node if it takes its types.

use super::infer::InferFn;

/// Who runs an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A kernel of a device.
    Kernel,
    /// Nobody: the result is the first input's bytes with another shape.
    View,
    /// The host, from the input's type alone: Shape and Size.
    Query,
    /// The host: If, Loop, Scan.
    Control,
}

/// One op.
pub struct OpDef {
    /// Domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Name.
    pub name: &'static str,
    /// The version that programs hold.
    pub version: u32,
    /// Oldest version that differs from it in element types alone.
    pub same_since: u32,
    /// Who runs it.
    pub kind: OpKind,
    /// Whether the same inputs always give the same result, so that it may be folded.
    pub pure: bool,
    /// Types of the results.
    pub infer: InferFn,
}
