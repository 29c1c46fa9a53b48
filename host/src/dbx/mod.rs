//! Compiled models: `.dbx` files, which hold a model in the state that planning starts from.
//!
//! A file has the model after the passes that need no types, and the same model specialised for inputs of given types
//! (constants folded, passes run). It also has the constants in the packed layouts that kernels of the present devices asked
//! for. The file is mapped: weights are not read, copied or packed until a run touches them.
//!
//! Starting a session still infers types, runs the passes that depend on devices, and plans: a plugin prepares kernels in
//! the process that runs them. So a file suits any device and any version of a plugin. Constants packed for another plugin
//! or plugin version are packed again. For inputs of other types, other passes or other pins, the model is specialised
//! again.
//!
//! A file is not trusted: its head has a checksum, and its content is checked like an ONNX model's. Its weights are checked
//! on request ([`Checks::Weights`]); a change in them changes results, as in any model.

#![deny(unsafe_code)]

mod decode;
mod encode;
mod form;
#[cfg(test)]
mod tests;

use crate::file::{open_regular, write_whole};
use crate::import::Reading;
use crate::import::file::{self as model_file, Shared};
use bytes::Bytes;
use decode::Weights;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::unit::Unit;
use devbay_core::passes::{Applied, Switches};
use devbay_core::plan::ahead::{PackedConstant, Specialised};
use devbay_core::program::Program;
use devbay_core::progress::{Counter, Phase};
use devbay_core::tensor::{AlignedBytes, Bytes as _, TensorType, U8};
use form::{
    CHECKSUM, FIXED, HEAD, Head, LINE, MAGIC, ProgramForm, VERSION, WEIGHT_ALIGN, WEIGHTS, WEIGHTS_ALIGN,
    checksum,
};
use sha2::{Digest, Sha256};
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Checks of a file before it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checks {
    /// Everything except the weights' content.
    #[default]
    Head,
    /// The weights' content too, by checksum; this reads all of it.
    Weights,
}

/// Summary of a written file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Types of inputs that the model was specialised for.
    pub n_plans: usize,
    /// Constants in layouts of kernels.
    pub n_packed: usize,
    /// Bytes of the head.
    pub head_bytes: usize,
    /// Bytes of the file.
    pub bytes: usize,
}

/// Content of a file.
pub(crate) struct Compiled {
    /// Version of devbay that wrote it.
    pub made_by: String,
    pub program: Program,
    pub passes: Vec<Applied>,
    /// Passes that were switched off, by name.
    pub off: Vec<String>,
    /// Pinned nodes and their devices.
    pub pins: Vec<(String, String)>,
    pub plans: Arc<[Specialised]>,
    pub packed: Vec<PackedConstant>,
}

impl Compiled {
    /// Returns whether the file's programs were specialised with these passes and pins.
    pub fn is_for(&self, passes: &Switches, pins: &[(String, String)]) -> bool {
        let off: Vec<&str> = Switches::names().filter(|name| !passes.runs(name)).collect();
        self.off == off && self.pins == pins
    }
}

/// Returns whether a file is a compiled model, by its first bytes.
pub fn is_compiled(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let read = open_regular(path).and_then(|(mut file, _)| file.read_exact(&mut start));
    read.is_ok() && is_compiled_content(&start)
}

/// Returns whether the content of a file is a compiled model's, by its first bytes.
pub fn is_compiled_content(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Writes the model of a unit with all of its plans, replacing an existing file atomically.
pub(crate) fn write(path: &Path, unit: &Unit) -> Result<Written> {
    let env = unit.env();
    let plans = unit.plans();
    let types = plans.iter().map(|plan| {
        let types = plan.inputs.iter().map(|ty| TensorType::new(ty.dtype, &ty.shape));
        unit.specialised(&types.collect::<Vec<_>>())
    });
    let (plans, packed) = (types.collect::<Result<Vec<_>>>()?, env.packed()?);

    let mut pool = encode::Pool::default();
    let model = pool.program(unit.program())?;
    let mut specialised = Vec::with_capacity(plans.len());
    for plan in &plans {
        specialised.push((pool.program(&plan.program)?, encode::applied(&plan.passes)));
    }
    let packs = pool.packed(&packed)?;
    let pins = env.placement.pins.iter().map(|(node, device)| (node.as_str(), device.name()));
    let rest = Head {
        made_by: env!("CARGO_PKG_VERSION"),
        weights: Vec::new(),
        tensors: Vec::new(),
        model,
        passes: encode::applied(unit.model_passes()),
        off: Switches::names().filter(|name| !env.options.passes.runs(name)).collect(),
        pins: pins.collect(),
        plans: specialised,
        packed: packs,
    };
    let (head, weights) = pool.into_head(rest);
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Io, format!("cannot write the compiled model: {error}")).in_file(path.display())
    };
    let start = start(&head).map_err(|error| failed(&error))?;
    let begin = start.len();
    let places: Vec<usize> = head.weights.iter().map(|weight| begin + weight.offset as usize).collect();
    let bytes = head.weights.last().map_or(begin, |last| begin + (last.offset + last.length) as usize);
    let written = write_whole(path, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let counter = Counter::begin(Phase::Write, bytes);
        file.write_all(&start)?;
        let mut at = begin;
        for (&place, weight) in places.iter().zip(&weights) {
            file.write_all(&vec![0; place - at])?;
            file.write_all(weight)?;
            at = place + weight.len();
            counter.done(at);
        }
        file.flush()?;
        counter.done(bytes);
        Ok(())
    });
    written.map_err(|error| failed(&error))?;
    Ok(Written { n_plans: plans.len(), n_packed: head.packed.len(), head_bytes: begin, bytes })
}

/// Returns the bytes of a file before its weights.
fn start(head: &Head<'_>) -> std::result::Result<Vec<u8>, postcard::Error> {
    let weights = head.weights.last().map_or(0, |last| last.offset + last.length);
    let mut start = vec![0; FIXED + 2 * LINE];
    let head_at = start.len();
    start = postcard::to_extend(head, start)?;
    let head_bytes = start.len() - head_at;
    let covered = start.len();
    start.resize(covered.next_multiple_of(WEIGHTS_ALIGN), 0);
    let weights_at = start.len() as u64;
    let mut put = |at: usize, bytes: &[u8]| start[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(12, &2u32.to_le_bytes());
    put(16, &(weights_at + weights).to_le_bytes());
    put(24, &(covered as u64).to_le_bytes());
    let sections = [(HEAD, head_at as u64, head_bytes as u64), (WEIGHTS, weights_at, weights)];
    for (i, (kind, offset, length)) in sections.into_iter().enumerate() {
        let line = FIXED + i * LINE;
        put(line, &kind.to_le_bytes());
        put(line + 8, &offset.to_le_bytes());
        put(line + 16, &length.to_le_bytes());
    }
    let sum = checksum(&start[..covered]);
    start[CHECKSUM].copy_from_slice(&sum);
    Ok(start)
}

/// Reads a file that [`write`] wrote.
///
/// # Errors
/// [`ErrorKind::Io`]; [`ErrorKind::InvalidModel`] for a file that is damaged, truncated, of another version, or not a
/// compiled model.
pub(crate) fn read(path: &Path, reading: Reading, checks: Checks) -> Result<Compiled> {
    let read = || from_bytes(model_file::read(path, reading)?, checks);
    read().map_err(|error| error.in_file(path.display()))
}

pub(super) fn damaged(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidModel, format!("no compiled model, or a damaged one: {text}"))
}

/// Reads a file's content as [`read`] does.
///
/// # Errors
/// As [`read`].
pub(crate) fn from_bytes(file: Bytes, checks: Checks) -> Result<Compiled> {
    let file = aligned(file)?;
    let sections = Sections::of(&file)?;
    let head: Head<'_> = postcard::from_bytes(&file[sections.head.clone()])
        .map_err(|error| damaged(format!("its head: {error}")))?;
    let mut places = Vec::with_capacity(head.weights.len());
    for (i, weight) in head.weights.iter().enumerate() {
        let place = within(&sections.weights, weight.offset, weight.length);
        let place = place.ok_or_else(|| damaged(format!("weight {i} is not within the file")))?;
        if checks == Checks::Weights && weight.sha256 != *Sha256::digest(&file[place.clone()]) {
            return Err(damaged(format!("weight {i}, at byte {}, has another checksum", place.start)));
        }
        places.push(place);
    }
    let weights = Weights { file: Arc::new(Shared::new(file.clone())), places };
    let tensors = decode::tensors(&head.tensors, &weights)?;
    let plan = |(form, applied): &(ProgramForm<'_>, Vec<_>)| {
        Ok(Specialised { program: decode::program(form, &tensors)?, passes: decode::applied(applied) })
    };
    let packed = head.packed.iter().map(|packed| {
        Ok(PackedConstant {
            plugin: packed.plugin.to_owned(),
            version: packed.version.to_owned(),
            source: decode::tensor_of(&tensors, packed.source)?,
            layout_id: packed.layout_id,
            align: WEIGHT_ALIGN,
            content: weights.tensor(packed.weight, U8, &[weights.length(packed.weight)])?,
        })
    });
    Ok(Compiled {
        made_by: head.made_by.to_owned(),
        program: decode::program(&head.model, &tensors)?,
        passes: decode::applied(&head.passes),
        off: head.off.iter().map(|&name| name.to_owned()).collect(),
        pins: head.pins.iter().map(|&(node, device)| (node.to_owned(), device.to_owned())).collect(),
        plans: head.plans.iter().map(plan).collect::<Result<_>>()?,
        packed: packed.collect::<Result<_>>()?,
    })
}

/// Returns a file's content with its weights aligned in memory: mapped files are aligned already, others are copied.
fn aligned(file: Bytes) -> Result<Bytes> {
    if (file.as_ptr() as usize).is_multiple_of(WEIGHT_ALIGN) {
        return Ok(file);
    }
    let mut copy = AlignedBytes::zeroed_aligned(file.len(), WEIGHT_ALIGN)?;
    copy.as_mut_slice().copy_from_slice(&file);
    Ok(Bytes::from_owner(Owned(copy)))
}

/// Aligned memory that owns a file's content.
struct Owned(AlignedBytes);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Positions of a file's sections.
struct Sections {
    head: Range<usize>,
    weights: Range<usize>,
}

impl Sections {
    /// Checks the layout and the checksum.
    fn of(file: &[u8]) -> Result<Self> {
        if !file.starts_with(&MAGIC) {
            return Err(damaged("its first bytes are other ones"));
        }
        let cut = || damaged("it is cut off");
        let version = u32_at(file, 8).ok_or_else(cut)?;
        if version != VERSION {
            let text = format!("it has form {version}, this reads form {VERSION}; compile the model again");
            return Err(damaged(text));
        }
        let n_sections = u32_at(file, 12).ok_or_else(cut)? as usize;
        let (length, covered) = (u64_at(file, 16).ok_or_else(cut)?, u64_at(file, 24).ok_or_else(cut)?);
        if length != file.len() as u64 {
            return Err(damaged(format!("it has {} bytes and says {length}", file.len())));
        }
        let table = n_sections.checked_mul(LINE).and_then(|table| table.checked_add(FIXED));
        let covered = usize::try_from(covered).ok().filter(|&covered| covered <= file.len());
        let (Some(table), Some(covered)) = (table, covered) else {
            return Err(cut());
        };
        if table > covered {
            return Err(damaged("its sections are not under its checksum"));
        }
        if file[CHECKSUM] != checksum(&file[..covered]) {
            return Err(damaged("its head has another checksum"));
        }
        let mut found = [None, None];
        for line in (FIXED..table).step_by(LINE) {
            let (kind, offset, length) =
                (u32_at(file, line), u64_at(file, line + 8), u64_at(file, line + 16));
            let (Some(kind), Some(offset), Some(length)) = (kind, offset, length) else {
                return Err(cut());
            };
            let place = match kind {
                HEAD => within(&(table..covered), offset.wrapping_sub(table as u64), length),
                WEIGHTS => within(&(0..file.len()), offset, length),
                // A section of a later release.
                _ => continue,
            };
            let place = place.ok_or_else(|| damaged(format!("section {kind} is not where it may be")))?;
            if found[(kind - 1) as usize].replace(place).is_some() {
                return Err(damaged(format!("section {kind} is there twice")));
            }
        }
        match found {
            [Some(head), Some(weights)] => Ok(Self { head, weights }),
            _ => Err(damaged("a section is missing")),
        }
    }
}

/// Returns a range of bytes within another; None if it does not lie within.
fn within(outer: &Range<usize>, offset: u64, length: u64) -> Option<Range<usize>> {
    let start = outer.start.checked_add(usize::try_from(offset).ok()?)?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (end <= outer.end).then_some(start..end)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?))
}
