//! The written form of a compiled model: the layout of the file, and the form of its head.
//!
//! All numbers of the layout are little-endian.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | [`VERSION`] |
//! | 12..16 | number of sections |
//! | 16..24 | length of the file |
//! | 24..32 | end of the range that the checksum covers |
//! | 32..64 | SHA-256 of everything before that end, with these 32 bytes as zeroes |
//! | 64.. | sections: kind (u32), zeroes (u32), offset (u64), length (u64) |
//!
//! The head and the weights are one section each, and a reader skips sections of unknown kinds. The head is in postcard's
//! wire format (<https://postcard.jamesmunns.com/wire-format>). The weights' section is aligned to [`WEIGHTS_ALIGN`], each
//! weight to [`WEIGHT_ALIGN`] or its kernel's larger alignment; the head has a SHA-256 of each. Constants of up to
//! [`SMALL_BYTES_MAX`] are in the head itself: shapes and axes depend on them, so they are under its checksum.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// First bytes of a file: not text, and damaged by a transfer that converts line ends.
pub const MAGIC: [u8; 8] = *b"\x89DBX\r\n\x1a\n";
/// Version of the form; readers accept no other.
pub const VERSION: u32 = 1;
/// Kind of the section that is the head.
pub const HEAD: u32 = 1;
/// Kind of the section with the weights.
pub const WEIGHTS: u32 = 2;
/// Alignment of sections in the file, so that weights can be mapped.
pub const WEIGHTS_ALIGN: usize = 4096;
/// Alignment of weights within their section.
pub const WEIGHT_ALIGN: usize = 64;
/// Size in bytes of the largest constant stored in the head.
pub const SMALL_BYTES_MAX: usize = 1024;
/// Bytes before the section table.
pub const FIXED: usize = 64;
/// Bytes of a line of that table.
pub const LINE: usize = 24;
/// Position of the checksum.
pub const CHECKSUM: std::ops::Range<usize> = 32..64;

/// The head: everything but the weights.
#[derive(Serialize, Deserialize)]
pub struct Head<'a> {
    /// Version of devbay that wrote it.
    pub made_by: &'a str,
    /// Weights, in the order of their offsets.
    pub weights: Vec<Weight>,
    /// Tensors that programs use as constants and attributes.
    #[serde(borrow)]
    pub tensors: Vec<TensorForm<'a>>,
    /// The model after the passes that need no types.
    pub model: ProgramForm<'a>,
    /// Effects of these passes.
    pub passes: Vec<AppliedForm<'a>>,
    /// Passes that were switched off.
    pub off: Vec<&'a str>,
    /// Pinned nodes and their devices.
    pub pins: Vec<(&'a str, &'a str)>,
    /// The model, specialised for inputs of given types.
    pub plans: Vec<(ProgramForm<'a>, Vec<AppliedForm<'a>>)>,
    /// Constants in layouts of kernels.
    pub packed: Vec<PackedForm<'a>>,
}

/// Place, type and checksum of a weight within its section.
#[derive(Serialize, Deserialize)]
pub struct Weight {
    pub offset: u64,
    pub length: u64,
    pub sha256: [u8; 32],
}

#[derive(Serialize, Deserialize)]
pub struct TensorForm<'a> {
    pub dtype: DTypeForm,
    pub shape: Vec<u64>,
    #[serde(borrow)]
    pub content: Content<'a>,
}

#[derive(Serialize, Deserialize)]
pub enum Content<'a> {
    /// The bytes.
    Here(&'a [u8]),
    /// A weight, by its position.
    Weight(u32),
}

/// Code, bits and lanes of an element type, as DLPack has them.
pub type DTypeForm = (u8, u8, u16);

#[derive(Serialize, Deserialize)]
pub struct PackedForm<'a> {
    pub plugin: &'a str,
    pub version: &'a str,
    /// The tensor that was packed, by its position.
    pub source: u32,
    pub layout_id: u64,
    /// The weight that it became, by its position.
    pub weight: u32,
}

#[derive(Serialize, Deserialize)]
pub struct ProgramForm<'a> {
    pub name: &'a str,
    #[serde(borrow)]
    pub values: Vec<ValueForm<'a>>,
    /// All regions, each after those that are nested in it; the last is the program's own.
    pub regions: Vec<RegionForm<'a>>,
}

#[derive(Serialize, Deserialize)]
pub struct ValueForm<'a> {
    pub name: &'a str,
    #[serde(borrow)]
    pub ty: Option<TypeForm<'a>>,
    /// The tensor with its content, by position.
    pub constant: Option<u32>,
}

#[derive(Serialize, Deserialize)]
pub struct TypeForm<'a> {
    pub dtype: DTypeForm,
    #[serde(borrow)]
    pub shape: Option<Vec<DimForm<'a>>>,
}

#[derive(Serialize, Deserialize)]
pub enum DimForm<'a> {
    Known(u64),
    Unknown(&'a str),
}

#[derive(Serialize, Deserialize)]
pub struct RegionForm<'a> {
    pub inputs: Vec<u32>,
    #[serde(borrow)]
    pub nodes: Vec<NodeForm<'a>>,
    pub outputs: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
pub struct NodeForm<'a> {
    pub name: &'a str,
    /// Domain, name and version of its op.
    pub op: (&'a str, &'a str, u32),
    pub inputs: Vec<Option<u32>>,
    pub outputs: Vec<Option<u32>>,
    #[serde(borrow)]
    pub attrs: Vec<(&'a str, AttrForm<'a>)>,
    /// Regions by name, and by their position.
    pub regions: Vec<(&'a str, u32)>,
}

#[derive(Serialize, Deserialize)]
pub enum AttrForm<'a> {
    Int(i64),
    Float(f32),
    String(&'a str),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<&'a str>),
    /// A tensor, by its position.
    Tensor(u32),
}

/// Effect of a pass: its name, changes, and nodes before and after it.
pub type AppliedForm<'a> = (&'a str, u64, u64, u64);

/// Computes the checksum of the first bytes of a file.
pub fn checksum(covered: &[u8]) -> [u8; 32] {
    let mut sha = Sha256::new();
    sha.update(&covered[..CHECKSUM.start]);
    sha.update([0; 32]);
    sha.update(&covered[CHECKSUM.end..]);
    sha.finalize().into()
}
