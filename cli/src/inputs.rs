//! A model's inputs, from files or made up.

use crate::exit::usage;
use anyhow::{Context, Result};
use clap::Args;
use devbay_host::arrays;
use devbay_host::core::device::Device;
use devbay_host::core::program::{Program, Value, ValueId};
use devbay_host::core::tensor::{
    AlignedBytes, BOOL, DType, Dim, F32, F64, I32, Tensor, TensorType, U32, bytes_of, dtype_name, n_elements,
};
use devbay_host::core::{Error, ErrorKind};
use devbay_host::random::Random;
use std::path::Path;
use std::sync::Arc;

/// Inputs, and extents of those that are not given.
#[derive(Args, Clone)]
pub struct GivenArguments {
    /// Inputs: an archive whose keys are input names, or NAME=FILE.npy or NAME=FILE.pb for one
    #[arg(long, value_name = "FILE.npz|NAME=FILE")]
    pub input: Vec<String>,
    /// Extents of an input that is not given, such as image=1,3,224,224
    #[arg(long, value_name = "NAME=DIMS")]
    pub shape: Vec<String>,
}

/// Where inputs come from.
#[derive(Args, Clone)]
pub struct InputArguments {
    #[command(flatten)]
    pub given: GivenArguments,
    /// Make up inputs that are not given, from this seed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    pub random: Option<u64>,
}

impl GivenArguments {
    /// The inputs that were given, by name.
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

    /// Refuses extents of what is no input of a program's.
    fn check_shapes(&self, program: &Program) -> Result<()> {
        for text in &self.shape {
            let (name, _) =
                text.rsplit_once('=').ok_or_else(|| usage(format!("--shape is NAME=DIMS, found {text}")))?;
            if !program.main.inputs.iter().any(|&id| *program.value(id).name == *name) {
                let text = format!("--shape {text}: the model has no input `{name}`");
                return Err(Error::new(ErrorKind::InvalidInput, text).into());
            }
        }
        Ok(())
    }

    /// The extents that `--shape` gives an input; None if it gives none.
    fn shape_of(&self, name: &str) -> Result<Option<Vec<usize>>> {
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

    /// Types of a program's inputs in its order: of those that are given, else as `--shape` or the program says.
    ///
    /// # Errors
    /// As [`InputArguments::read`]; for an input whose extents nobody gives.
    pub fn types(&self, program: &Program) -> Result<Vec<(DType, Vec<usize>)>> {
        let given = self.read()?;
        self.check_shapes(program)?;
        let ports: Vec<_> = program.main.inputs.iter().map(|&id| program.value(id)).collect();
        if let Some((name, _)) = given.iter().find(|(name, _)| !ports.iter().any(|port| *port.name == **name))
        {
            let text = format!("the model has no input `{name}`");
            return Err(Error::new(ErrorKind::InvalidInput, text).into());
        }
        let type_of = |port: &Value| {
            if let Some((_, tensor)) = given.iter().find(|(name, _)| **name == *port.name) {
                return Ok((tensor.dtype(), tensor.shape().to_vec()));
            }
            let dtype = port.ty.as_ref().map_or(F32, |ty| ty.dtype);
            if let Some(shape) = self.shape_of(&port.name)? {
                return Ok((dtype, shape));
            }
            let known = port.ty.as_ref().and_then(TensorType::known_shape).map(|shape| shape.to_vec());
            known.map(|shape| (dtype, shape)).ok_or_else(|| {
                let ty = port.ty.as_ref().map(ToString::to_string).unwrap_or_default();
                let text = format!(
                    "the extents of input `{}` {ty} are not known; give them with --shape {}=DIMS, or the input with --input",
                    port.name, port.name
                );
                Error::new(ErrorKind::InvalidInput, text).into()
            })
        };
        ports.into_iter().map(type_of).collect()
    }
}

/// Types of a program's inputs in its order; none of inputs that are missing.
pub fn types_of(program: &Program, inputs: &[(String, Tensor)]) -> Vec<TensorType> {
    let type_of = |&id: &ValueId| {
        let name = &program.value(id).name;
        inputs.iter().find(|(given, _)| **given == **name).map(|(_, tensor)| tensor.tensor_type())
    };
    program.main.inputs.iter().filter_map(type_of).collect()
}

impl InputArguments {
    /// The inputs of a program by name; those that are made up for `device` fit into its memory.
    ///
    /// # Errors
    /// For files that cannot be read, names given twice, and inputs that are missing or too large.
    pub fn read(&self, program: &Program, device: &Device) -> Result<Vec<(String, Tensor)>> {
        let mut inputs = self.given.read()?;
        self.given.check_shapes(program)?;
        let mut seed = self.random.unwrap_or(0);
        let mut available = device.bytes_available().unwrap_or(u64::MAX);
        for &id in &program.main.inputs {
            let value = program.value(id);
            if inputs.iter().any(|(name, _)| **name == *value.name) {
                continue;
            }
            if self.random.is_none() {
                let ty = value.ty.as_ref().map(ToString::to_string).unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "input `{}` {ty} is missing; give it with --input, or --random to make it up",
                        value.name
                    ),
                )
                .into());
            }
            let tensor = self
                .random_tensor(&value.name, value.ty.as_ref(), seed, available)
                .with_context(|| format!("input `{}`", value.name))?;
            available = available.saturating_sub(tensor.bytes().len() as u64);
            inputs.push((value.name.to_string(), tensor));
            seed = seed.wrapping_add(1);
        }
        Ok(inputs)
    }

    fn random_tensor(
        &self,
        name: &str,
        ty: Option<&TensorType>,
        seed: u64,
        available: u64,
    ) -> Result<Tensor> {
        let dtype = ty.map_or(F32, |ty| ty.dtype);
        let shape: Vec<usize> = match self.given.shape_of(name)? {
            Some(shape) => shape,
            None => {
                // An extent that the model leaves open is 1, as a batch.
                let dims = ty.and_then(|ty| ty.shape.as_ref()).ok_or_else(|| {
                    usage(format!("the model does not say the rank of `{name}`; give --shape {name}=DIMS"))
                })?;
                dims.iter().map(|dim: &Dim| dim.known().unwrap_or(1)).collect()
            }
        };
        random(dtype, &shape, seed, available)
    }
}

/// Made-up values: numbers evenly between -1 and 1, small integers, truth values.
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
        _ => return Err(usage(format!("values of {} cannot be made up", dtype_name(dtype)))),
    };
    let mut bytes = AlignedBytes::zeroed(size)?;
    for to in bytes.as_mut_slice().chunks_exact_mut(element) {
        write((random.next() >> 40) as f64 / f64::from(1u32 << 23) - 1.0, to);
    }
    Ok(Tensor::from_storage(dtype, shape, Arc::new(bytes), 0, size)?)
}
