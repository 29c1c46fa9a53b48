//! Arrays: archives of inputs and outputs, and whether two of them agree.

use anyhow::{Context, Result, bail, ensure};
use devbay_core::Tensor;
use devbay_core::tensor::{BOOL, DType, F32, I8, I16, I32, I64, U8, bytes_of, n_elements};
use npyz::WriterBuilder;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Tensors by name.
pub type Named = Vec<(String, Tensor)>;

/// NumPy's names of the element types that models take and give.
const TYPES: &[(&str, DType)] =
    &[("<f4", F32), ("<i8", I64), ("<i4", I32), ("<i2", I16), ("|i1", I8), ("|u1", U8), ("|b1", BOOL)];

/// Reads all arrays of an archive.
///
/// # Errors
/// For a file that is damaged, or an element type that models do not have.
pub fn read_npz(path: &Path) -> Result<Named> {
    let read = || -> Result<Named> {
        let mut archive = npyz::npz::NpzArchive::new(File::open(path)?)?;
        let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
        let entry = |name: String| {
            let file = npyz::npz::file_name_from_array_name(&name);
            let tensor = read_npy(archive.zip_archive().by_name(&file)?);
            Ok((name.clone(), tensor.with_context(|| format!("array `{name}`"))?))
        };
        names.into_iter().map(entry).collect()
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

fn read_npy(mut reader: impl Read) -> Result<Tensor> {
    let header = npyz::NpyHeader::from_reader(&mut reader)?;
    let npyz::DType::Plain(ty) = header.dtype() else {
        bail!("it holds records, expected numbers");
    };
    let text = ty.to_string();
    let (_, dtype) = TYPES.iter().find(|(name, _)| *name == text).with_context(|| format!("type {text}"))?;
    let shape: Vec<usize> = header.shape().iter().map(|&extent| extent as usize).collect();
    ensure!(header.order() == npyz::Order::C || shape.len() < 2, "it is column-major, expected row-major");
    let size = n_elements(&shape).and_then(|n| bytes_of(*dtype, n)).context("it is larger than memory")?;
    let mut bytes = Vec::new();
    reader.take(size as u64).read_to_end(&mut bytes)?;
    Ok(Tensor::from_bytes(*dtype, &shape, &bytes)?)
}

/// Writes an archive of one array of f32.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npz(path: &Path, name: &str, shape: &[u64], elements: &[f32]) -> Result<()> {
    let write = || -> Result<()> {
        let mut archive = npyz::npz::NpzWriter::create(path)?;
        let options = archive.array::<f32>(name, Default::default())?;
        let mut writer = options.default_dtype().shape(shape).begin_nd()?;
        writer.extend(elements.iter().copied())?;
        Ok(writer.finish()?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// How far numbers may be apart: `|a - b| <= relative * max|expected| + absolute`. Other elements are equal.
#[derive(Clone, Copy)]
pub struct Tolerance {
    /// Share of the largest expected value.
    pub relative: f64,
    /// Added to it.
    pub absolute: f64,
}

/// Whether every expected array is there, and within the tolerance.
///
/// # Errors
/// For the first that is not, saying by how much.
pub fn ensure_agree(
    found: &[(String, Tensor)],
    expected: &[(String, Tensor)],
    tolerance: Tolerance,
) -> Result<()> {
    for (name, expected) in expected {
        let (_, found) =
            found.iter().find(|(known, _)| known == name).with_context(|| format!("no output `{name}`"))?;
        agree(found, expected, tolerance).with_context(|| format!("output `{name}` differs"))?;
    }
    Ok(())
}

fn agree(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<()> {
    ensure!(found.shape() == expected.shape(), "{:?}, expected {:?}", found.shape(), expected.shape());
    let (Some(a), Some(b)) = (found.elements::<f32>(), expected.elements::<f32>()) else {
        // rten has its own width of integers.
        ensure!(found.to_ints() == expected.to_ints(), "its elements are others");
        return Ok(());
    };
    let largest = b.iter().filter(|v| v.is_finite()).fold(0.0f64, |most, v| most.max(f64::from(v.abs())));
    let allowed = tolerance.relative * largest + tolerance.absolute;
    for (a, b) in a.iter().zip(b) {
        // Infinities and what is no number agree with their like alone.
        let same = a == b || (a.is_nan() && b.is_nan());
        let difference = if same { 0.0 } else { (f64::from(*a) - f64::from(*b)).abs() };
        ensure!(difference <= allowed, "{a} and {b} are {difference:.2e} apart, allowed is {allowed:.2e}");
    }
    Ok(())
}
