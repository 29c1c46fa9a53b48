//! A model's inputs: read from files, or generated.

use crate::exit::usage;
use crate::tell;
use anyhow::{Context, Result};
use clap::Args;
use devbay_host::internals::core::program::{Program, Value, ValueId};
use devbay_host::internals::core::tensor::{
    AlignedBytes, BOOL, F32, F64, I32, U32, bytes_of, dtype_name, n_elements,
};
use devbay_host::internals::random::Random;
use devbay_host::{DType, Device, Dim, Error, ErrorKind, Tensor, TensorType, arrays};
use std::path::Path;
use std::sync::Arc;

/// Inputs, and extents of those that are not given.
#[derive(Args, Clone)]
pub struct GivenArguments {
    /// Inputs: an archive with input names as keys, or one input as NAME=FILE.npy or NAME=FILE.pb
    #[arg(long, value_name = "FILE.npz|NAME=FILE")]
    pub input: Vec<String>,
    /// Shape of a generated input, such as image=1,3,224,224, or an extent that the model names, such as batch=1. Extents that
    /// are given nowhere are 1
    #[arg(long, value_name = "NAME=DIMS")]
    pub shape: Vec<String>,
}

/// Where inputs come from.
#[derive(Args, Clone)]
pub struct InputArguments {
    #[command(flatten)]
    pub given: GivenArguments,
    /// Generate random values, from this seed, for inputs that are not given
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    pub random: Option<u64>,
}

impl GivenArguments {
    /// Returns the given inputs by name.
    pub fn read(&self) -> Result<Vec<(String, Tensor)>> {
        let mut inputs: Vec<(String, Tensor)> = Vec::new();
        for text in &self.input {
            match text.split_once('=') {
                Some((name, file)) if !Path::new(text).exists() => {
                    inputs.push((name.to_owned(), arrays::read_file(Path::new(file))?));
                }
                _ if text.ends_with(".npz") => inputs.extend(arrays::read_npz(Path::new(text))?),
                _ => return Err(usage(format!("--input is FILE.npz or NAME=FILE, found {text}"))),
            }
        }
        Ok(inputs)
    }

    /// Refuses shapes for names that are not inputs of the program.
    fn check_shapes(&self, program: &Program) -> Result<()> {
        let ports = || program.given_inputs().iter().map(|&id| program.value(id));
        for text in &self.shape {
            let (name, dims) =
                text.rsplit_once('=').ok_or_else(|| usage(format!("--shape is NAME=DIMS, found {text}")))?;
            if ports().any(|port| *port.name == *name) {
                continue;
            }
            if !ports().any(|port| open_extents(port).any(|open| open == name)) {
                let text = format!("--shape {text}: the model has no input or named extent `{name}`");
                return Err(Error::new(ErrorKind::InvalidInput, text).into());
            }
            if dims.contains(',') {
                return Err(usage(format!("--shape {text}: `{name}` is one extent, as in {name}=1")));
            }
        }
        Ok(())
    }

    /// Returns the extents behind `NAME=` in `--shape`; None if the name is not given.
    fn extents(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let given =
            self.shape.iter().find_map(|text| text.rsplit_once('=').filter(|(known, _)| *known == name));
        let Some((_, dims)) = given else {
            return Ok(None);
        };
        let extents = dims.split(',').filter(|dim| !dim.is_empty()).map(|dim| {
            dim.trim().parse().map_err(|_| usage(format!("--shape {name}={dims}: {dim} is no extent")))
        });
        extents.collect::<Result<_>>().map(Some)
    }

    /// Returns the shape of an input that is not given: from `--shape`, else from the model. An extent that neither gives is
    /// 1, and a note on standard error says so.
    fn shape(&self, port: &Value) -> Result<Vec<usize>> {
        let name = &port.name;
        if let Some(shape) = self.extents(name)? {
            return Ok(shape);
        }
        let ty = port.ty.as_ref();
        let dims = ty.and_then(|ty| ty.shape.as_ref()).ok_or_else(|| {
            let text = format!("the model does not say the rank of `{name}`; give --shape {name}=DIMS");
            Error::new(ErrorKind::InvalidInput, text)
        })?;
        let mut open: Vec<String> = Vec::new();
        let extent = |dim: &Dim| match dim {
            Dim::Known(extent) => Ok(*extent),
            Dim::Unknown(symbol) => {
                if let Some(&[extent]) = self.extents(symbol)?.as_deref().filter(|_| !symbol.is_empty()) {
                    return Ok(extent);
                }
                let option = if symbol.is_empty() { format!("{name}=DIMS") } else { format!("{symbol}=N") };
                if !open.contains(&option) {
                    open.push(option);
                }
                Ok(1)
            }
        };
        let shape: Vec<usize> = dims.iter().map(extent).collect::<Result<_>>()?;
        if !open.is_empty() {
            let ty = ty.map(ToString::to_string).unwrap_or_default();
            tell!(
                "input `{name}` {ty} has the shape {shape:?}; --shape {} changes it",
                open.join(" --shape ")
            );
        }
        Ok(shape)
    }

    /// Returns the types of a program's inputs in its order: of the given ones, else as `--shape` or the program says.
    ///
    /// # Errors
    /// As [`InputArguments::read`].
    pub fn types(&self, program: &Program) -> Result<Vec<(DType, Vec<usize>)>> {
        let given = self.read()?;
        self.check_shapes(program)?;
        let ports: Vec<_> = program.given_inputs().iter().map(|&id| program.value(id)).collect();
        if let Some((name, _)) = given.iter().find(|(name, _)| !ports.iter().any(|port| *port.name == **name))
        {
            let text = format!("the model has no input `{name}`");
            return Err(Error::new(ErrorKind::InvalidInput, text).into());
        }
        let type_of = |port: &Value| {
            if let Some((_, tensor)) = given.iter().find(|(name, _)| **name == *port.name) {
                return Ok((tensor.dtype(), tensor.shape().to_vec()));
            }
            Ok((port.ty.as_ref().map_or(F32, |ty| ty.dtype), self.shape(port)?))
        };
        ports.into_iter().map(type_of).collect()
    }
}

/// Lists the names of extents that an input's type leaves open.
fn open_extents(port: &Value) -> impl Iterator<Item = &str> {
    let dims = port.ty.as_ref().and_then(|ty| ty.shape.as_deref()).unwrap_or(&[]);
    dims.iter().filter_map(|dim| match dim {
        Dim::Unknown(symbol) if !symbol.is_empty() => Some(&**symbol),
        _ => None,
    })
}

/// Returns the types of a program's inputs in its order, skipping missing ones.
pub fn types_of(program: &Program, inputs: &[(String, Tensor)]) -> Vec<TensorType> {
    let type_of = |&id: &ValueId| {
        let name = &program.value(id).name;
        inputs.iter().find(|(given, _)| **given == **name).map(|(_, tensor)| tensor.tensor_type())
    };
    program.given_inputs().iter().filter_map(type_of).collect()
}

impl InputArguments {
    /// Returns the inputs of a program by name; those generated for `device` fit into its memory.
    ///
    /// # Errors
    /// For files that cannot be read, duplicate names, and inputs that are missing or too large.
    pub fn read(&self, program: &Program, device: &Device) -> Result<Vec<(String, Tensor)>> {
        let mut inputs = self.given.read()?;
        self.given.check_shapes(program)?;
        let mut seed = self.random.unwrap_or(0);
        let mut available = device.bytes_available().unwrap_or(u64::MAX);
        for &id in program.given_inputs() {
            let value = program.value(id);
            if inputs.iter().any(|(name, _)| **name == *value.name) {
                continue;
            }
            if self.random.is_none() {
                let ty = value.ty.as_ref().map(ToString::to_string).unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "input `{}` {ty} is missing; give it with --input, or --random to generate it",
                        value.name
                    ),
                )
                .into());
            }
            let dtype = value.ty.as_ref().map_or(F32, |ty| ty.dtype);
            let shape = self.given.shape(value)?;
            let tensor =
                random(dtype, &shape, seed, available).with_context(|| format!("input `{}`", value.name))?;
            available = available.saturating_sub(tensor.bytes().len() as u64);
            inputs.push((value.name.to_string(), tensor));
            seed = seed.wrapping_add(1);
        }
        Ok(inputs)
    }
}

/// Generates values: numbers uniformly between -1 and 1, small integers, truth values.
fn random(dtype: DType, shape: &[usize], seed: u64, available: u64) -> Result<Tensor> {
    let size = n_elements(shape).and_then(|n| bytes_of(dtype, n));
    let Some(size) = size.filter(|&size| size as u64 <= available) else {
        let ty = TensorType::new(dtype, shape);
        return Err(Error::new(
            ErrorKind::OutOfMemory,
            format!("{ty} is larger than the {available} bytes that are available"),
        )
        .into());
    };
    let mut random = Random::of_seed(seed);
    let element = dtype.bits as usize / 8;
    let write: fn(f64, &mut [u8]) = match dtype {
        F32 => |value, to| to.copy_from_slice(bytemuck::bytes_of(&(value as f32))),
        F64 => |value, to| to.copy_from_slice(bytemuck::bytes_of(&value)),
        BOOL => |value, to| to[0] = u8::from(value > 0.0),
        _ if element > 0 && [I32.code, U32.code].contains(&dtype.code) => |value, to| {
            let small = ((value + 1.0) * 4.0) as u64;
            to.copy_from_slice(&small.to_le_bytes()[..to.len()]);
        },
        _ => return Err(usage(format!("values of {} cannot be generated", dtype_name(dtype)))),
    };
    let mut bytes = AlignedBytes::zeroed(size)?;
    for to in bytes.as_mut_slice().chunks_exact_mut(element) {
        write((random.next() >> 40) as f64 / f64::from(1u32 << 23) - 1.0, to);
    }
    Ok(Tensor::from_storage(dtype, shape, Arc::new(bytes), 0, size)?)
}
