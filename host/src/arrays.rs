//! Tensors in files: `.npy`, `.npz`, and ONNX's TensorProto (feature `arrays`).
//!
//! Errors are [`ErrorKind::Io`], whatever is wrong with a file, or [`ErrorKind::OutOfMemory`]; their causes say what.

use crate::file::{open_regular, read_regular, write_bytes, write_whole};
use crate::import;
use devbay_core::tensor::{
    BOOL, DType, F16, F32, F64, I2, I4, I8, I16, I32, I64, U2, U4, U8, U16, U32, U64, bytes_of, n_elements,
};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use npyz::WriterBuilder;
use npyz::zip::write::FileOptions;
use std::fmt::Display;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::Path;

/// Bytes that a message of protobuf's may have.
const PROTO_SIZE_MAX: u64 = 2 << 30;

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

/// Adds what was being done, as the error whose cause this one is.
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
        self.map_err(|error| wrong(what().to_string()).because(error))
    }
}

/// Reads one array.
///
/// # Errors
/// For a file that is damaged, or an element type that is not a plain number.
pub fn read_npy(mut reader: impl Read) -> Result<Tensor> {
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
    let Some((_, dtype)) = TYPES.iter().find(|(known, _)| *known == name) else {
        return Err(wrong(format!("an array of type {text}, which is not supported")));
    };
    let shape: Vec<usize> = header.shape().iter().map(|&extent| extent as usize).collect();
    let size = n_elements(&shape).and_then(|n| bytes_of(*dtype, n)).ok_or_else(too_large)?;
    let mut bytes = Vec::new();
    reader.by_ref().take(size as u64).read_to_end(&mut bytes).doing(|| "the array's data cannot be read")?;
    if bytes.len() != size {
        return Err(wrong(format!("the array's data is cut off: {} of {size} bytes", bytes.len())));
    }
    // An archive checks an entry's sum when its end is read.
    if reader.read(&mut [0]).doing(|| "the array's data cannot be read")? != 0 {
        return Err(wrong(format!("the array's data goes on behind its {size} bytes")));
    }
    if header.order() == npyz::Order::Fortran && shape.len() > 1 {
        bytes = from_fortran(&bytes, &shape, dtype.bits as usize / 8);
    }
    Tensor::from_bytes(*dtype, &shape, &bytes)
}

fn too_large() -> Error {
    wrong("an array larger than memory")
}

/// The bytes before an array's data. npyz 0.9 multiplies the extents that they hold without a check, and
/// panics or wraps: numbers that have no product are refused here.
fn read_head(reader: &mut impl Read) -> Result<Vec<u8>> {
    // Magic, version, and the length of the text in two bytes, from version 2 on in four.
    let not_npy = || "not a .npy array";
    let mut head = vec![0; 8];
    reader.read_exact(&mut head).doing(not_npy)?;
    let width = if head[6] == 1 { 2 } else { 4 };
    let mut length = [0; 4];
    reader.read_exact(&mut length[..width]).doing(not_npy)?;
    head.extend_from_slice(&length[..width]);
    let text_at = head.len();
    reader.take(u32::from_le_bytes(length).into()).read_to_end(&mut head).doing(not_npy)?;
    let text = String::from_utf8_lossy(&head[text_at..]);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers = words.filter_map(|word| word.parse::<u64>().ok()).filter(|&number| number > 0);
    if numbers.into_iter().try_fold(1u64, u64::checked_mul).is_none() {
        return Err(too_large());
    }
    Ok(head)
}

/// Turns column-major order into row-major.
fn from_fortran(bytes: &[u8], shape: &[usize], element: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
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
    out
}

/// Reads all arrays of an archive, by name.
///
/// # Errors
/// For a file that is damaged.
pub fn read_npz(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let (file, _) = open_regular(path).doing(|| format!("cannot read {}", path.display()))?;
    let mut archive =
        npyz::npz::NpzArchive::new(file).doing(|| format!("{} is not a .npz archive", path.display()))?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut arrays = Vec::with_capacity(names.len());
    for name in names {
        let tensor =
            read_entry(&mut archive, &name).doing(|| format!("array `{name}` of {}", path.display()))?;
        arrays.push((name, tensor));
    }
    Ok(arrays)
}

fn read_entry<R: Read + Seek>(archive: &mut npyz::npz::NpzArchive<R>, name: &str) -> Result<Tensor> {
    let file_name = npyz::npz::file_name_from_array_name(name);
    let entry = archive.zip_archive().by_name(&file_name).map_err(std::io::Error::from);
    read_npy(entry.doing(|| "the archive is damaged")?)
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
            // Another kind would say that a model is damaged.
            bytes.and_then(|bytes| import::read_tensor(bytes).map_err(|e| wrong(e.to_string())))
        }
        _ => Err(wrong("expected a .npy or .pb file")),
    };
    read.doing(|| format!("cannot read the tensor in {}", path.display()))
}

/// Writes arrays to an archive.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npz(path: &Path, arrays: &[(&str, &Tensor)]) -> Result<()> {
    let write = |file: &mut std::fs::File| -> std::io::Result<()> {
        let mut archive = npyz::npz::NpzWriter::new(BufWriter::new(file));
        for (name, tensor) in arrays {
            let zip = archive.zip_writer();
            // The same outputs are the same bytes: without the time of day, as NumPy writes them.
            let options = FileOptions::default().last_modified_time(npyz::zip::DateTime::default());
            zip.start_file(npyz::npz::file_name_from_array_name(name), options)?;
            zip.write_all(&npy_bytes(tensor)?)?;
        }
        // Dropping the writer would finish the archive too, and lose its error.
        archive.zip_writer().finish()?.flush()
    };
    write_whole(path, write).doing(|| format!("cannot write {}", path.display()))
}

/// Writes one array to a file.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npy(path: &Path, tensor: &Tensor) -> Result<()> {
    npy_bytes(tensor)
        .and_then(|bytes| write_bytes(path, &bytes))
        .doing(|| format!("cannot write {}", path.display()))
}

/// An array of elements that Rust has no number for: f16, and elements that NumPy knows as so many bytes alone. Those of
/// fewer than 8 bits have a byte each: integers as numbers, floats as their bits.
fn plain_npy(dtype: DType, shape: &[u64], bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let bits = usize::from(dtype.bits);
    let name = match dtype {
        F16 => "<f2".to_owned(),
        I4 | I2 => "|i1".to_owned(),
        U4 | U2 => "|u1".to_owned(),
        _ => format!("|V{}", bits.div_ceil(8)),
    };
    let extents: String = shape.iter().map(|extent| format!("{extent},")).collect();
    let mut header = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({extents}), }}");
    // Magic, version and length take 10 bytes, and the data begins at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - header.len() - 1));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(std::io::Error::other)?;
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend(length.to_le_bytes());
    out.extend(header.as_bytes());
    if bits >= 8 {
        out.extend(bytes);
        return Ok(out);
    }
    let n: u64 = shape.iter().product();
    out.extend((0..usize::try_from(n).map_err(std::io::Error::other)?).map(|i| {
        let at = i * bits;
        let code = bytes[at / 8] >> (at % 8) & ((1 << bits) - 1);
        // The sign goes on to the left.
        if [I4, I2].contains(&dtype) { ((code << (8 - bits)) as i8 >> (8 - bits)) as u8 } else { code }
    }));
    Ok(out)
}

fn npy_bytes(tensor: &Tensor) -> std::io::Result<Vec<u8>> {
    fn write<T: npyz::AutoSerialize>(
        shape: &[u64],
        elements: impl Iterator<Item = T>,
    ) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let options = npyz::WriteOptions::<T>::new().default_dtype().shape(shape).writer(&mut bytes);
        let mut writer = options.begin_nd()?;
        writer.extend(elements)?;
        writer.finish()?;
        Ok(bytes)
    }
    let shape: Vec<u64> = tensor.shape().iter().map(|&extent| extent as u64).collect();
    macro_rules! by_type {
        ($($dtype:pat => $type:ty),* $(,)?) => {
            match tensor.dtype() {
                $($dtype => {
                    let elements = tensor.elements::<$type>().expect("the match has the tensor's own type");
                    write(&shape, elements.iter().copied())
                })*
                BOOL => write(&shape, tensor.bytes().iter().map(|&byte| byte != 0)),
                other => plain_npy(other, &shape, tensor.bytes()),
            }
        };
    }
    by_type! {
        F32 => f32, F64 => f64, I8 => i8, I16 => i16, I32 => i32, I64 => i64, U8 => u8, U16 => u16, U32 => u32, U64 => u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::tensor::{BF16, F4E2M1};

    /// Type and data of the file of an array.
    fn written(dtype: DType, shape: &[usize], bytes: &[u8]) -> (String, Vec<u8>) {
        let tensor = Tensor::from_bytes(dtype, shape, bytes).expect("a tensor");
        let file = npy_bytes(&tensor).expect("an array");
        let length = usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert!((10 + length).is_multiple_of(64), "{length}");
        let header = String::from_utf8_lossy(&file[10..10 + length]).trim().to_owned();
        let descr = header.split('\'').nth(3).unwrap_or_default().to_owned();
        (descr, file[10 + length..].to_vec())
    }

    #[test]
    fn small_numbers_are_written_as_numpy_knows_them() {
        let f16 = [0x00, 0x3c, 0x00, 0xc0];
        assert_eq!(written(F16, &[2], &f16), ("<f2".to_owned(), f16.to_vec()));
        let tensor = Tensor::from_bytes(F16, &[1, 2], &f16).expect("a tensor");
        let again = read_npy(&npy_bytes(&tensor).expect("an array")[..]).expect("it is an array");
        assert_eq!((again.shape(), again.bytes()), (&[1, 2][..], &f16[..]));
        assert_eq!(written(BF16, &[1], &[0x80, 0x3f]), ("|V2".to_owned(), vec![0x80, 0x3f]));
        // A byte for each element.
        assert_eq!(written(I4, &[3], &[0x2f, 0x08]), ("|i1".to_owned(), vec![255, 2, 248]));
        assert_eq!(written(U2, &[2, 2], &[0b11_10_01_00]), ("|u1".to_owned(), vec![0, 1, 2, 3]));
        assert_eq!(written(F4E2M1, &[2], &[0x7f]), ("|V1".to_owned(), vec![0xf, 7]));
        assert_eq!(written(I2, &[0], &[]), ("|i1".to_owned(), vec![]));
    }
}
