//! Tensors and strings in files: `.npy`, `.npz`, and ONNX's messages of values, `.pb` (feature `arrays`).
//!
//! Arrays of objects are pickles, which are programs: they are refused.
//!
//! Errors are [`ErrorKind::Io`] for every fault of a file, or [`ErrorKind::OutOfMemory`]; their causes give the details.

mod texts;

use crate::file::{open_regular, read_regular, write_whole};
use crate::import;
use crate::values::{Strings, Value, ValueType};
use devbay_core::tensor::{
    BOOL, DType, F16, F32, F64, I2, I4, I8, I16, I32, I64, U2, U4, U8, U16, U32, U64, n_elements,
};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use devbay_plugin_api::reserve;
use npyz::npz::{array_name_from_file_name, file_name_from_array_name};
use std::fmt::Display;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{DateTime, ZipArchive, ZipWriter};

/// Maximum size of a protobuf message in bytes.
const PROTO_SIZE_MAX: u64 = 2 << 30;

/// Maximum size in bytes of the header before an array's data: the range of a two-byte length, and more than NumPy reads.
const HEAD_SIZE_MAX: u32 = u16::MAX as u32;
/// Maximum nesting of brackets in the header: an array of numbers has two levels, a record array four. Each further level
/// doubles the time that npyz takes to find a mismatch.
const HEAD_NESTING_MAX: usize = 4;

/// NumPy's names of element types: kind and bytes.
const TYPES: &[(&str, DType)] = &[
    ("f4", F32),
    ("f8", F64),
    ("i1", I8),
    ("i2", I16),
    ("i4", I32),
    ("i8", I64),
    ("u1", U8),
    ("u2", U16),
    ("u4", U32),
    ("u8", U64),
    ("b1", BOOL),
    ("f2", F16),
];

fn wrong(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, text)
}

/// Adds a description of the operation, as an error whose cause is the original one.
trait Doing<T> {
    fn doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> Doing<T> for Result<T> {
    fn doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| Error::new(error.kind(), what().to_string()).because(error))
    }
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| Error::new(ErrorKind::of_io(&error), what().to_string()).because(error))
    }
}

/// Reads one array of numbers.
///
/// # Errors
/// For a file that is damaged, or an element type that is not a plain number.
pub fn read_npy(reader: impl Read) -> Result<Tensor> {
    match read_npy_value(reader)? {
        Value::Tensor(tensor) => Ok(tensor),
        _ => Err(wrong("an array of texts, expected numbers")),
    }
}

/// Reads one array, of numbers or of texts (`<U`, `S`).
///
/// # Errors
/// For a file that is damaged, and for an array of anything else, such as objects.
pub fn read_npy_value(mut reader: impl Read) -> Result<Value> {
    let head = read_head(&mut reader)?;
    let header = npyz::NpyHeader::from_reader(&head[..]).doing(|| "not a .npy array")?;
    let npyz::DType::Plain(ty) = header.dtype() else {
        return Err(wrong("an array of records, expected numbers"));
    };
    let text = ty.to_string();
    if text.starts_with('>') {
        return Err(wrong("an array of big-endian numbers, expected little-endian ones"));
    }
    let name = text.trim_start_matches(['<', '|', '=']);
    if name.starts_with('O') {
        return Err(wrong("an array of objects, which is a pickle and not read: save texts with dtype=str"));
    }
    let dtype = TYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
    let (form, element) = match (texts::form_of(name), dtype) {
        (Some((form, element)), _) => (Some(form), element),
        (None, Some(dtype)) => (None, usize::from(dtype.bits) / 8),
        (None, None) => return Err(wrong(format!("an array of type {text}, which is not supported"))),
    };
    let shape: Vec<usize> = header.shape().iter().map(|&extent| extent as usize).collect();
    let size = n_elements(&shape).and_then(|n| n.checked_mul(element)).ok_or_else(too_large)?;
    let mut bytes = Vec::new();
    read_into(&mut bytes, &mut reader, size).doing(|| "the array's data cannot be read")?;
    if bytes.len() != size {
        return Err(wrong(format!("the array's data is cut off: {} of {size} bytes", bytes.len())));
    }
    // Reading to the end makes the archive verify the entry's checksum.
    if reader.read(&mut [0]).doing(|| "the array's data cannot be read")? != 0 {
        return Err(wrong(format!("the array's data goes on behind its {size} bytes")));
    }
    if header.order() == npyz::Order::Fortran && shape.len() > 1 {
        bytes = from_fortran(&bytes, &shape, element)?;
    }
    match (form, dtype) {
        (Some(form), _) => Ok(texts::decoded(form, element, &shape, &bytes)?.into()),
        (None, dtype) => Ok(Tensor::from_bytes(dtype.unwrap_or(U8), &shape, &bytes)?.into()),
    }
}

fn too_large() -> Error {
    wrong("an array larger than memory")
}

/// Reads up to `n` bytes more; the list grows with the data read, not by the length that a header claims.
fn read_into(bytes: &mut Vec<u8>, reader: &mut impl Read, n: usize) -> Result<()> {
    const WHAT: &str = "an array's data";
    let mut chunk = [0; 16 << 10];
    let mut left = n;
    while left > 0 {
        let room = left.min(chunk.len());
        let found = match reader.read(&mut chunk[..room]) {
            Ok(0) => break,
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::new(ErrorKind::of_io(&error), "a read failed").because(error)),
        };
        reserve::grow(bytes, found, WHAT)?;
        bytes.extend_from_slice(&chunk[..found]);
        left -= found;
    }
    Ok(())
}

/// Reads the header of an array. npyz 0.9 multiplies extents unchecked and so panics or wraps, allocates as much as a header
/// claims, and recurses for each bracket. So this refuses extents whose product overflows, headers that are truncated or
/// longer than NumPy's own, and nesting deeper than any array of numbers has.
fn read_head(reader: &mut impl Read) -> Result<Vec<u8>> {
    // The magic and the version come first, then the header's length: two bytes in version 1, four from version 2 on.
    let not_npy = || "not a .npy array";
    let mut head = vec![0; 8];
    reader.read_exact(&mut head).doing(not_npy)?;
    let width = if head[6] == 1 { 2 } else { 4 };
    let mut length = [0; 4];
    reader.read_exact(&mut length[..width]).doing(not_npy)?;
    head.extend_from_slice(&length[..width]);
    let (text_at, length) = (head.len(), u32::from_le_bytes(length));
    if length > HEAD_SIZE_MAX {
        return Err(wrong(format!(
            "not a .npy array: a head of {length} bytes, at most {HEAD_SIZE_MAX} are read"
        )));
    }
    read_into(&mut head, reader, length as usize).doing(not_npy)?;
    if head.len() - text_at != length as usize {
        return Err(wrong("not a .npy array: its head is cut off"));
    }
    let text = String::from_utf8_lossy(&head[text_at..]);
    let mut open = 0usize;
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > HEAD_NESTING_MAX {
            return Err(wrong(format!("not a .npy array: {open} brackets within each other in its head")));
        }
    }
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers = words.filter_map(|word| word.parse::<u64>().ok()).filter(|&number| number > 0);
    if numbers.into_iter().try_fold(1u64, u64::checked_mul).is_none() {
        return Err(too_large());
    }
    Ok(head)
}

/// Turns column-major order into row-major.
fn from_fortran(bytes: &[u8], shape: &[usize], element: usize) -> Result<Vec<u8>> {
    let mut out = reserve::with_capacity(bytes.len(), "an array in row-major order")?;
    let n: usize = shape.iter().product();
    let mut position = vec![0usize; shape.len()];
    for _ in 0..n {
        let (mut at, mut stride) = (0, 1);
        for (i, extent) in position.iter().zip(shape) {
            at += i * stride;
            stride *= extent;
        }
        out.extend_from_slice(&bytes[at * element..(at + 1) * element]);
        for (i, extent) in position.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *extent {
                break;
            }
            *i = 0;
        }
    }
    Ok(out)
}

/// Reads all arrays of an archive, by name.
///
/// # Errors
/// For a file that is damaged, and for arrays of anything else than numbers.
pub fn read_npz(path: &Path) -> Result<Vec<(String, Tensor)>> {
    read_archive(path, |entry| read_npy(entry))
}

/// Reads all arrays of an archive, of numbers or of texts, by name.
///
/// # Errors
/// As [`read_npz`].
pub fn read_npz_values(path: &Path) -> Result<Vec<(String, Value)>> {
    read_archive(path, |entry| read_npy_value(entry))
}

fn read_archive<T>(path: &Path, read: impl Fn(&mut dyn Read) -> Result<T>) -> Result<Vec<(String, T)>> {
    let (file, _) = open_regular(path).doing(|| format!("cannot read {}", path.display()))?;
    let mut archive = ZipArchive::new(file)
        .map_err(std::io::Error::from)
        .doing(|| format!("{} is not a .npz archive", path.display()))?;
    // Entries that are not arrays are skipped, as NumPy does.
    let files: Vec<String> = archive
        .file_names()
        .filter_map(|file| file.map(|file| file.ends_with(".npy").then(|| file.into_owned())).transpose())
        .collect::<zip::result::ZipResult<_>>()
        .map_err(std::io::Error::from)
        .doing(|| format!("a name in {} cannot be read", path.display()))?;
    let mut arrays = reserve::with_capacity(files.len(), "the arrays of an archive")?;
    for file in files {
        let name = array_name_from_file_name(&file).unwrap_or(&file).to_owned();
        let entry = archive.by_name(&file).map_err(std::io::Error::from);
        let tensor = entry.doing(|| "the archive is damaged").and_then(|mut entry| read(&mut entry));
        arrays.push((name.clone(), tensor.doing(|| format!("array `{name}` of {}", path.display()))?));
    }
    Ok(arrays)
}

/// Reads one tensor: `.npy`, or `.pb` with ONNX's TensorProto.
///
/// # Errors
/// For another ending, or a damaged file.
pub fn read_file(path: &Path) -> Result<Tensor> {
    let open = || open_regular(path).map(|(file, _)| file).doing(|| "the file cannot be opened");
    let read = match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => open().and_then(|file| read_npy(std::io::BufReader::new(file))),
        Some("pb") => {
            let bytes = read_regular(path, PROTO_SIZE_MAX).doing(|| "the file cannot be opened");
            // Kinds other than these would blame a model.
            let as_file = |error: Error| match error.kind() {
                ErrorKind::OutOfMemory => error,
                _ => wrong(error.to_string()),
            };
            bytes.and_then(|bytes| import::read_tensor(bytes).map_err(as_file))
        }
        _ => Err(wrong("expected a .npy or .pb file")),
    };
    read.doing(|| format!("cannot read the tensor in {}", path.display()))
}

/// Reads a value of a type: `.npy` for numbers and texts, `.pb` with ONNX's TensorProto, SequenceProto, OptionalProto or
/// MapProto.
///
/// # Errors
/// For another ending, a damaged file, or a value of another type.
pub fn read_value_file(path: &Path, ty: &ValueType) -> Result<Value> {
    let read = match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => open_regular(path)
            .doing(|| "the file cannot be opened")
            .and_then(|(file, _)| read_npy_value(std::io::BufReader::new(file))),
        Some("pb") => {
            let bytes = read_regular(path, PROTO_SIZE_MAX).doing(|| "the file cannot be opened");
            bytes.and_then(|bytes| import::read_value(bytes, ty).map_err(|error| wrong(error.to_string())))
        }
        _ => Err(wrong("expected a .npy or .pb file")),
    };
    read.doing(|| format!("cannot read the value in {}", path.display()))
}

/// Writes a value: numbers and texts as `.npy`, anything else as ONNX's message. Returns the extension that it adds to
/// `path`.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_value(path: &Path, value: &Value) -> Result<&'static str> {
    let (extension, at) = match value {
        Value::Tensor(_) | Value::Strings(_) => ("npy", path.with_added_extension("npy")),
        _ => ("pb", path.with_added_extension("pb")),
    };
    match value {
        Value::Tensor(tensor) => write_npy(&at, tensor)?,
        other => {
            let content = match other {
                Value::Strings(_) => None,
                other => Some(import::write_value(other)?),
            };
            let write = |file: &mut std::fs::File| match (&content, other) {
                (Some(bytes), _) => file.write_all(bytes),
                (None, Value::Strings(strings)) => {
                    let mut file = BufWriter::new(file);
                    write_texts(&mut file, strings)?;
                    file.flush()
                }
                _ => Ok(()),
            };
            write_whole(&at, write).doing(|| format!("cannot write {}", at.display()))?;
        }
    }
    Ok(extension)
}

/// Writes numbers and texts to an archive.
///
/// # Errors
/// For a file that cannot be written; [`ErrorKind::InvalidArgument`] for a sequence, an optional or a map, which an archive
/// of arrays does not hold.
pub fn write_npz_values(path: &Path, values: &[(&str, &Value)]) -> Result<()> {
    if let Some((name, value)) = values.iter().find(|(_, value)| value.shape().is_err()) {
        let text =
            format!("`{name}` is {}, which an archive of arrays does not hold: give a folder", value.ty());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    write_archive(path, values, |to, value| match value {
        Value::Tensor(tensor) => write_array(to, tensor),
        Value::Strings(strings) => write_texts(to, strings),
        _ => Ok(()),
    })
}

/// Writes arrays to an archive.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npz(path: &Path, arrays: &[(&str, &Tensor)]) -> Result<()> {
    write_archive(path, arrays, |to, tensor| write_array(to, tensor))
}

fn write_archive<T>(
    path: &Path,
    arrays: &[(&str, &T)],
    write_one: impl Fn(&mut dyn Write, &T) -> std::io::Result<()>,
) -> Result<()> {
    let write = |file: &mut std::fs::File| -> std::io::Result<()> {
        let mut out = FirstError::new(BufWriter::new(file));
        let mut archive = ZipWriter::new(&mut out);
        // No timestamps, as NumPy writes archives, so that equal outputs give equal bytes.
        let options = SimpleFileOptions::default().last_modified_time(DateTime::default());
        for (name, tensor) in arrays {
            archive.start_file(file_name_from_array_name(name), options)?;
            write_one(&mut archive, tensor)?;
        }
        // Dropping the writer would finish the archive too, and lose its error.
        archive.finish()?;
        match out.error {
            Some(error) => Err(error),
            None => out.out.flush(),
        }
    };
    write_whole(path, write).doing(|| format!("cannot write {}", path.display()))
}

/// A writer that keeps its first error and then discards everything, but still tells positions. The archive's writer would
/// print an error on standard error when it is dropped, as on a full disk.
struct FirstError<W> {
    out: W,
    error: Option<std::io::Error>,
    /// Position, in bytes from the file's begin.
    at: u64,
}

impl<W> FirstError<W> {
    fn new(out: W) -> Self {
        Self { out, error: None, at: 0 }
    }

    /// Does something with the file unless an error happened, and returns `instead` after one.
    fn keep<T>(&mut self, instead: T, act: impl FnOnce(&mut W) -> std::io::Result<T>) -> T {
        if self.error.is_some() {
            return instead;
        }
        act(&mut self.out).unwrap_or_else(|error| {
            self.error = Some(error);
            instead
        })
    }
}

impl<W: Write> Write for FirstError<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.keep(bytes.len(), |out| out.write(bytes));
        self.at += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.keep((), Write::flush);
        Ok(())
    }
}

impl<W: Seek> Seek for FirstError<W> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let instead = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(by) => self.at.saturating_add_signed(by),
            SeekFrom::End(_) => self.at,
        };
        self.at = self.keep(instead, |out| out.seek(to));
        Ok(self.at)
    }
}

/// Writes one array to a file.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npy(path: &Path, tensor: &Tensor) -> Result<()> {
    let write = |file: &mut std::fs::File| {
        let mut file = BufWriter::new(file);
        write_array(&mut file, tensor)?;
        file.flush()
    };
    write_whole(path, write).doing(|| format!("cannot write {}", path.display()))
}

/// Returns NumPy's name of an element type. For types that NumPy lacks, integers below 8 bits are written as one-byte
/// integers, and others as raw bytes of their size.
fn type_name(dtype: DType) -> String {
    if let Some((name, _)) = TYPES.iter().find(|(_, known)| *known == dtype) {
        let order = if dtype.bits > 8 { '<' } else { '|' };
        return format!("{order}{name}");
    }
    match dtype {
        I4 | I2 => "|i1".to_owned(),
        U4 | U2 => "|u1".to_owned(),
        _ => format!("|V{}", usize::from(dtype.bits).div_ceil(8)),
    }
}

/// Writes an array piece by piece, because a copy of a model-sized array would double its memory.
fn write_array(to: &mut (impl Write + ?Sized), tensor: &Tensor) -> std::io::Result<()> {
    let (dtype, bits) = (tensor.dtype(), usize::from(tensor.dtype().bits));
    write_head(to, &type_name(dtype), tensor.shape())?;
    write_elements(to, tensor, bits)
}

/// Writes an array of texts.
fn write_texts(to: &mut (impl Write + ?Sized), strings: &Strings) -> std::io::Result<()> {
    write_head(to, &texts::name_of(strings), strings.shape())?;
    texts::write(to, strings)
}

/// Writes what stands before an array's data.
fn write_head(to: &mut (impl Write + ?Sized), name: &str, shape: &[usize]) -> std::io::Result<()> {
    // A tuple of one has a trailing comma in Python.
    let comma = if shape.len() == 1 { "," } else { "" };
    let extents = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut header = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({extents}{comma}), }}");
    // Magic, version and length take 10 bytes, and the data begins at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - header.len() - 1));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(std::io::Error::other)?;
    to.write_all(b"\x93NUMPY\x01\x00")?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(header.as_bytes())
}

fn write_elements(to: &mut (impl Write + ?Sized), tensor: &Tensor, bits: usize) -> std::io::Result<()> {
    let dtype = tensor.dtype();
    if bits >= 8 {
        return to.write_all(tensor.bytes());
    }
    for i in 0..tensor.n_elements() {
        let at = i * bits;
        let code = tensor.bytes()[at / 8] >> (at % 8) & ((1 << bits) - 1);
        // Sign extension.
        let signed = [I4, I2].contains(&dtype);
        let byte = if signed { ((code << (8 - bits)) as i8 >> (8 - bits)) as u8 } else { code };
        to.write_all(&[byte])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::tensor::{BF16, F4E2M1};

    /// Returns the type and data of an array's file.
    fn written(dtype: DType, shape: &[usize], bytes: &[u8]) -> (String, Vec<u8>) {
        let tensor = Tensor::from_bytes(dtype, shape, bytes).expect("a tensor");
        let mut file = Vec::new();
        write_array(&mut file, &tensor).expect("an array");
        let length = usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert!((10 + length).is_multiple_of(64), "{length}");
        let header = String::from_utf8_lossy(&file[10..10 + length]).trim().to_owned();
        let descr = header.split('\'').nth(3).unwrap_or_default().to_owned();
        (descr, file[10 + length..].to_vec())
    }

    #[test]
    fn what_is_written_is_read_again() {
        for &(name, dtype) in TYPES {
            for shape in [&[][..], &[3], &[2, 0, 3], &[2, 3]] {
                let size = shape.iter().product::<usize>() * usize::from(dtype.bits) / 8;
                let bytes: Vec<u8> = (0..size).map(|i| i as u8 % 2).collect();
                let tensor = Tensor::from_bytes(dtype, shape, &bytes).expect("a tensor");
                let mut file = Vec::new();
                write_array(&mut file, &tensor).expect("an array");
                let again = read_npy(&file[..]).expect(name);
                assert_eq!(
                    (again.dtype(), again.shape(), again.bytes()),
                    (dtype, shape, &bytes[..]),
                    "{name}"
                );
            }
        }
    }

    /// Inputs that the fuzz target `arrays` found, and similar ones.
    #[test]
    fn a_head_that_claims_or_nests_too_much_is_refused() {
        let file = |version: u8, length: &[u8], text: &str| {
            [b"\x93NUMPY", &[version, 0][..], length, text.as_bytes()].concat()
        };
        let nested = "(".repeat(40_000);
        let cases = [
            (
                include_bytes!("../../fuzz/regressions/arrays/npy_head_longer_than_the_file")[1..].to_vec(),
                "at most",
            ),
            (
                include_bytes!("../../fuzz/regressions/arrays/npy_braces_within_each_other")[1..].to_vec(),
                "within each other",
            ),
            (file(2, &u32::MAX.to_le_bytes(), "{}"), "at most"),
            (file(1, &100u16.to_le_bytes(), "{}"), "cut off"),
            (file(1, &40_000u16.to_le_bytes(), &nested), "within each other"),
        ];
        for (file, said) in cases {
            let error = read_npy(&file[..]).expect_err(said);
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    /// A file on a disk with room for a number of bytes.
    struct Full(std::io::Cursor<Vec<u8>>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1 = self.1.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            self.0.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Full {
        fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn an_archive_on_a_full_disk_is_one_error() {
        let tensor = Tensor::from_elements(&[100], &[1.0f32; 100]).expect("a tensor");
        for room in [0, 10, 40, 200, 600, 1000] {
            let mut out = FirstError::new(Full(std::io::Cursor::default(), room));
            let mut archive = ZipWriter::new(&mut out);
            for name in ["a", "b"] {
                let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
                archive.start_file(name, stored).expect("an error that is kept");
                write_array(&mut archive, &tensor).expect("an error that is kept");
            }
            archive.finish().expect("an error that is kept");
            let kind = out.error.map(|error| error.kind());
            assert_eq!(kind, Some(std::io::ErrorKind::StorageFull), "{room}");
        }
    }

    #[test]
    fn small_numbers_are_written_as_numpy_knows_them() {
        let f16 = [0x00, 0x3c, 0x00, 0xc0];
        assert_eq!(written(F16, &[2], &f16), ("<f2".to_owned(), f16.to_vec()));
        let tensor = Tensor::from_bytes(F16, &[1, 2], &f16).expect("a tensor");
        let mut file = Vec::new();
        write_array(&mut file, &tensor).expect("an array");
        let again = read_npy(&file[..]).expect("it is an array");
        assert_eq!((again.shape(), again.bytes()), (&[1, 2][..], &f16[..]));
        assert_eq!(written(BF16, &[1], &[0x80, 0x3f]), ("|V2".to_owned(), vec![0x80, 0x3f]));
        // One byte per element.
        assert_eq!(written(I4, &[3], &[0x2f, 0x08]), ("|i1".to_owned(), vec![255, 2, 248]));
        assert_eq!(written(U2, &[2, 2], &[0b11_10_01_00]), ("|u1".to_owned(), vec![0, 1, 2, 3]));
        assert_eq!(written(F4E2M1, &[2], &[0x7f]), ("|V1".to_owned(), vec![0xf, 7]));
        assert_eq!(written(I2, &[0], &[]), ("|i1".to_owned(), vec![]));
    }

    #[test]
    fn texts_go_through_files_and_pickles_are_refused() {
        let strings = Strings::from_texts(&[2, 2], &["ä", "", "two words", "b"]).expect("strings");
        let mut file = Vec::new();
        write_texts(&mut file, &strings).expect("an array");
        assert!(file.windows(4).any(|bytes| bytes == b"<U9'"));
        let again = read_npy_value(&file[..]).and_then(Value::into_strings).expect("texts");
        assert_eq!(again, strings);
        let error = read_npy(&file[..]).expect_err("no numbers");
        assert_eq!(error.text(), "an array of texts, expected numbers");

        let array = |descr: &str, content: &[u8]| {
            let mut file = Vec::new();
            write_head(&mut file, descr, &[2]).expect("a head");
            file.extend_from_slice(content);
            read_npy_value(&file[..])
        };
        let bytes = array("|S3", b"ab\0\xc3\xa4\0").and_then(Value::into_strings).expect("texts");
        assert_eq!(bytes, Strings::from_texts(&[2], &["ab", "ä"]).expect("strings"));
        for (descr, content, words) in [
            ("|S1", &b"a\xff"[..], "bytes that are no UTF-8"),
            ("<U1", &[0, 0, 0, 0, 0, 0, 0xff, 0], "codes that are no characters"),
            ("<U2", &[0; 8], "cut off"),
            ("|O", &[0; 16], "an array of objects, which is a pickle"),
            (">U1", &[0; 8], "big-endian"),
        ] {
            let error = array(descr, content).expect_err(words);
            assert!(error.kind() == ErrorKind::Io && error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn values_are_written_to_a_folder_or_an_archive() {
        let folder = tempfile::tempdir().expect("a folder");
        let strings = Value::from(Strings::from_texts(&[1], &["a"]).expect("strings"));
        let sequence = Value::from(crate::Sequence::of(vec![strings.clone()]).expect("a sequence"));
        let archive = folder.path().join("a.npz");
        write_npz_values(&archive, &[("x", &strings)]).expect("an archive");
        let [(name, value)] = &read_npz_values(&archive).expect("an archive")[..] else {
            panic!("one array")
        };
        assert_eq!((name.as_str(), value.ty()), ("x", strings.ty()));
        let error = write_npz_values(&archive, &[("s", &sequence)]).expect_err("no archive of sequences");
        assert!(error.text().contains("give a folder"), "{error}");
        for (value, extension) in [(&strings, "npy"), (&sequence, "pb")] {
            assert_eq!(write_value(&folder.path().join("v"), value).expect("a file"), extension);
            let read =
                read_value_file(&folder.path().join(format!("v.{extension}")), &value.ty().without_shape());
            assert_eq!(read.expect("a value").ty(), value.ty());
        }
    }
}
