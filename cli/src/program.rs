//! `devbay run` for a program that a device's compiler takes as a whole: StableHLO, as JAX and PyTorch/XLA export it.
//!
//! The text or bytecode goes to the compiler unchanged. Such programs name neither inputs nor results: they are `in0`,
//! `in1`, ... and `out0`, `out1`, ... in the order of the entry function.

use crate::exit::usage;
use crate::layers::Done;
use crate::run::{self, Arguments};
use anyhow::{Context, Result};
use devbay_host::internals::core::program::Program;
use devbay_host::internals::file::read_regular;
use devbay_host::{Error, ErrorKind, Tensor, TensorType};
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns the format of a program's file by its name; None for a model.
pub fn format_of(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?;
    matches!(extension, "mlir" | "mlirbc" | "stablehlo").then_some("stablehlo")
}

/// Time limit of a run without a deadline.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Compiles the program for the device, and runs it once.
///
/// # Errors
/// Unsupported for a device that has no compiler for it; errors of the compiler; a mismatch with `--compare`.
pub fn main(arguments: &Arguments, format: &str) -> Result<Done> {
    if arguments.image.is_some()
        || arguments.inputs.random.is_some()
        || !arguments.inputs.given.shape.is_empty()
    {
        return Err(usage("a compiled program takes its inputs from --input in0=FILE.npy or FILE.npz"));
    }
    let code = read_regular(&arguments.model, u64::MAX)
        .with_context(|| format!("cannot read the program {}", arguments.model.display()))?;
    let chosen = arguments.device.choose(&arguments.plugins, &Program::default(), None)?;
    let device = &chosen.device;
    let formats = device.formats()?;
    if !formats.iter().any(|known| known == format) {
        let text = match formats.is_empty() {
            true => format!("{} has no compiler for whole programs; --device pjrt:0 has one", device.name()),
            false => format!("{} reads {}, and not {format}", device.name(), formats.join(", ")),
        };
        return Err(Error::new(ErrorKind::UnsupportedOp, text).into());
    }
    let inputs = ordered_inputs(arguments)?;
    let types: Vec<TensorType> = inputs.iter().map(Tensor::tensor_type).collect();
    let begin = Instant::now();
    let label = arguments.model.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let program = device.compile(format, &code, &types, label)?;
    let compile = begin.elapsed();

    let given: Vec<&Tensor> = inputs.iter().collect();
    let begin = Instant::now();
    let limit = arguments.deadline_ms.map_or(LIMIT, Duration::from_millis);
    let outputs = program.run(&given, limit)?;
    let run = begin.elapsed();

    let names: Vec<String> = (0..outputs.len()).map(|i| format!("out{i}")).collect();
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&outputs).collect();
    run::report_program(arguments, format, device, &named, &[("run", run), ("compile", compile)])
}

/// Returns the inputs `in0`, `in1`, ... up to the first gap; an archive may also hold expected results.
fn ordered_inputs(arguments: &Arguments) -> Result<Vec<Tensor>> {
    let mut given = arguments.inputs.given.read()?;
    given.retain(|(name, _)| !name.starts_with("out"));
    let mut inputs = Vec::new();
    while let Some(at) = given.iter().position(|(name, _)| *name == format!("in{}", inputs.len())) {
        inputs.push(given.swap_remove(at).1);
    }
    match given.first() {
        None => Ok(inputs),
        Some((name, _)) => Err(usage(format!(
            "input `{name}`: the inputs of a program are in0, in1, ... without a gap, found {}",
            inputs.len()
        ))),
    }
}
