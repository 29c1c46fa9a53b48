//! A model's inputs, from files or made up.

use crate::exit::usage;
use crate::tensors;
use anyhow::{Context, Result};
use clap::Args;
use devbay_host::core::program::Program;
use devbay_host::core::tensor::{
    BOOL, DType, Dim, F16, F32, F64, Tensor, TensorType, bytes_of, dtype_name, n_elements,
};
use devbay_host::core::{Error, ErrorKind};
use std::path::Path;

/// Where inputs come from.
#[derive(Args, Clone)]
pub struct InputArguments {
    /// Inputs: an archive whose keys are input names, or NAME=FILE.npy or NAME=FILE.pb for one
    #[arg(long, value_name = "FILE.npz|NAME=FILE")]
    pub input: Vec<String>,
    /// Make up inputs that are not given, from this seed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    pub random: Option<u64>,
    /// Extents of a made-up input, such as image=1,3,224,224
    #[arg(long, value_name = "NAME=DIMS")]
    pub shape: Vec<String>,
}

impl InputArguments {
    /// The inputs of a program by name.
    ///
    /// # Errors
    /// For files that cannot be read, names given twice, and inputs that are missing.
    pub fn read(&self, program: &Program) -> Result<Vec<(String, Tensor)>> {
        let mut inputs: Vec<(String, Tensor)> = Vec::new();
        for text in &self.input {
            match text.split_once('=') {
                Some((name, file)) if !Path::new(text).exists() => {
                    inputs.push((name.to_owned(), tensors::read_file(Path::new(file))?));
                }
                _ if text.ends_with(".npz") => inputs.extend(tensors::read_npz(Path::new(text))?),
                _ => return Err(usage(format!("--input is FILE.npz or NAME=FILE, found {text}"))),
            }
        }
        let mut seed = self.random.unwrap_or(0);
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
                .random_tensor(&value.name, value.ty.as_ref(), seed)
                .with_context(|| format!("input `{}`", value.name))?;
            inputs.push((value.name.to_string(), tensor));
            seed = seed.wrapping_add(1);
        }
        Ok(inputs)
    }

    fn random_tensor(&self, name: &str, ty: Option<&TensorType>, seed: u64) -> Result<Tensor> {
        let dtype = ty.map_or(F32, |ty| ty.dtype);
        let given =
            self.shape.iter().find_map(|text| text.rsplit_once('=').filter(|(known, _)| *known == name));
        let shape: Vec<usize> = match given {
            Some((_, dims)) => dims
                .split(',')
                .filter(|dim| !dim.is_empty())
                .map(|dim| {
                    dim.trim()
                        .parse()
                        .map_err(|_| usage(format!("--shape {name}={dims}: {dim} is no extent")))
                })
                .collect::<Result<_>>()?,
            None => {
                // An extent that the model leaves open is 1, as a batch.
                let dims = ty.and_then(|ty| ty.shape.as_ref()).ok_or_else(|| {
                    usage(format!("the model does not say the rank of `{name}`; give --shape {name}=DIMS"))
                })?;
                dims.iter().map(|dim: &Dim| dim.known().unwrap_or(1)).collect()
            }
        };
        random(dtype, &shape, seed)
    }
}

/// Made-up values: numbers evenly between -1 and 1, small integers, truth values.
fn random(dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor> {
    let too_large = || Error::new(ErrorKind::OutOfMemory, "a made-up input is larger than memory");
    let n = n_elements(shape).ok_or_else(too_large)?;
    let size = bytes_of(dtype, n).filter(|&size| size < 1 << 40).ok_or_else(too_large)?;
    // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut unit = || (next() >> 40) as f64 / f64::from(1u32 << 23) - 1.0;
    let mut bytes = Vec::with_capacity(size);
    for _ in 0..n {
        let value = unit();
        match dtype {
            F32 => bytes.extend_from_slice(&(value as f32).to_le_bytes()),
            F64 => bytes.extend_from_slice(&value.to_le_bytes()),
            BOOL => bytes.push(u8::from(value > 0.0)),
            F16 => return Err(usage(format!("values of {} cannot be made up", dtype_name(dtype)))),
            other => {
                let element = other.bits as usize / 8;
                let small = ((value + 1.0) * 4.0) as u64;
                bytes.extend_from_slice(&small.to_le_bytes()[..element]);
            }
        }
    }
    Ok(Tensor::from_bytes(dtype, shape, &bytes)?)
}
