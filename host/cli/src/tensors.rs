//! Tensors in files: `.npy`, `.npz`, and ONNX's TensorProto.

use anyhow::{Context, Result, anyhow, bail};
use devbay_host::core::Tensor;
use devbay_host::core::tensor::{
    BOOL, DType, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, bytes_of, dtype_name, n_elements,
};
use devbay_host::import;
use npyz::WriterBuilder;
use std::io::{Read, Seek, Write};
use std::path::Path;

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
    ("f2", devbay_host::core::tensor::F16),
];

/// Reads one array.
///
/// # Errors
/// For a file that is damaged, or an element type that is not a plain number.
pub fn read_npy(mut reader: impl Read) -> Result<Tensor> {
    let head = read_head(&mut reader).context("not a .npy array")?;
    let header = npyz::NpyHeader::from_reader(&head[..]).context("not a .npy array")?;
    let npyz::DType::Plain(ty) = header.dtype() else {
        bail!("an array of records, expected numbers");
    };
    let text = ty.to_string();
    if text.starts_with('>') {
        bail!("an array of big-endian numbers, expected little-endian ones");
    }
    let name = text.trim_start_matches(['<', '|', '=']);
    let known = TYPES.iter().find(|(known, _)| *known == name);
    let (_, dtype) = known.with_context(|| format!("an array of type {text}, which is not supported"))?;
    let shape: Vec<usize> = header.shape().iter().map(|&extent| extent as usize).collect();
    let size = n_elements(&shape).and_then(|n| bytes_of(*dtype, n)).context("an array larger than memory")?;
    let mut bytes = Vec::new();
    reader.by_ref().take(size as u64).read_to_end(&mut bytes)?;
    if bytes.len() != size {
        bail!("the array's data is cut off: {} of {size} bytes", bytes.len());
    }
    // An archive checks an entry's sum when its end is read.
    if reader.read(&mut [0])? != 0 {
        bail!("the array's data goes on behind its {size} bytes");
    }
    if header.order() == npyz::Order::Fortran && shape.len() > 1 {
        bytes = from_fortran(&bytes, &shape, dtype.bits as usize / 8);
    }
    Ok(Tensor::from_bytes(*dtype, &shape, &bytes)?)
}

/// The bytes before an array's data. npyz 0.9 multiplies the extents that they hold without a check, and
/// panics or wraps: numbers that have no product are refused here.
fn read_head(reader: &mut impl Read) -> Result<Vec<u8>> {
    // Magic, version, and the length of the text in two bytes, from version 2 on in four.
    let mut head = vec![0; 8];
    reader.read_exact(&mut head)?;
    let width = if head[6] == 1 { 2 } else { 4 };
    let mut length = [0; 4];
    reader.read_exact(&mut length[..width])?;
    head.extend_from_slice(&length[..width]);
    let text_at = head.len();
    reader.take(u32::from_le_bytes(length).into()).read_to_end(&mut head)?;
    let text = String::from_utf8_lossy(&head[text_at..]);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers = words.filter_map(|word| word.parse::<u64>().ok()).filter(|&number| number > 0);
    if numbers.into_iter().try_fold(1u64, u64::checked_mul).is_none() {
        bail!("an array larger than memory");
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
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut archive = npyz::npz::NpzArchive::new(file)
        .with_context(|| format!("{} is not a .npz archive", path.display()))?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut arrays = Vec::with_capacity(names.len());
    for name in names {
        let tensor = read_entry(&mut archive, &name)
            .with_context(|| format!("array `{name}` of {}", path.display()))?;
        arrays.push((name, tensor));
    }
    Ok(arrays)
}

fn read_entry<R: Read + Seek>(archive: &mut npyz::npz::NpzArchive<R>, name: &str) -> Result<Tensor> {
    let file_name = npyz::npz::file_name_from_array_name(name);
    read_npy(archive.zip_archive().by_name(&file_name)?)
}

/// Reads one tensor: `.npy`, or `.pb` with ONNX's TensorProto.
///
/// # Errors
/// For another ending, or a damaged file.
pub fn read_file(path: &Path) -> Result<Tensor> {
    let read = || {
        let file = || std::fs::File::open(path);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => read_npy(std::io::BufReader::new(file()?)),
            // As text: its kind would say that the model is damaged.
            Some("pb") => import::read_tensor(std::fs::read(path)?).map_err(|e| anyhow!("{e}")),
            _ => bail!("expected a .npy or .pb file"),
        }
    };
    read().with_context(|| format!("cannot read the tensor in {}", path.display()))
}

/// Writes arrays to an archive.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npz(path: &Path, arrays: &[(&str, &Tensor)]) -> Result<()> {
    let write = || -> Result<()> {
        let mut archive = npyz::npz::NpzWriter::create(path)?;
        for (name, tensor) in arrays {
            let zip = archive.zip_writer();
            zip.start_file(npyz::npz::file_name_from_array_name(name), Default::default())?;
            zip.write_all(&npy_bytes(tensor)?)?;
        }
        // Dropping the writer would finish the archive too, and lose its error.
        archive.zip_writer().finish()?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Writes one array to a file.
///
/// # Errors
/// For a file that cannot be written.
pub fn write_npy(path: &Path, tensor: &Tensor) -> Result<()> {
    npy_bytes(tensor)
        .and_then(|bytes| Ok(std::fs::write(path, bytes)?))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn npy_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    fn write<T: npyz::AutoSerialize>(shape: &[u64], elements: impl Iterator<Item = T>) -> Result<Vec<u8>> {
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
                    let elements = tensor.elements::<$type>().context("elements of the tensor's own type")?;
                    write(&shape, elements.iter().copied())
                })*
                BOOL => write(&shape, tensor.bytes().iter().map(|&byte| byte != 0)),
                other => bail!("a tensor of {} cannot be written to .npy", dtype_name(other)),
            }
        };
    }
    by_type! {
        F32 => f32, F64 => f64, I8 => i8, I16 => i16, I32 => i32, I64 => i64, U8 => u8, U16 => u16, U32 => u32, U64 => u64,
    }
}
