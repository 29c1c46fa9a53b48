//! onnxruntime beside devbay, without Python: its cold start.
//!
//! With `once THREADS MODEL INPUTS` it runs the model once on inputs of f32 and prints the first output; without
//! arguments it says which version it is. The library is the one that `ORT_DYLIB_PATH` names: that of the Python
//! package, so that both are one version, built one way.

use anyhow::{Context, Result, bail};
use ort::environment::Environment;
use ort::session::{Session, SessionInputValue, builder::GraphOptimizationLevel};
use ort::value::Tensor;
use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let library: PathBuf = std::env::var_os("ORT_DYLIB_PATH").context("ORT_DYLIB_PATH is not set")?.into();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => println!("subject onnxruntime {}", version(&library)?),
        ["once", threads, model, inputs] => once(&library, threads.parse()?, model, inputs)?,
        _ => bail!("expected no arguments, or `once THREADS MODEL INPUTS`"),
    }
    Ok(())
}

fn once(library: &Path, threads: usize, model: &str, inputs: &str) -> Result<()> {
    let environment = ort::init_from(library)?.build()?;
    let mut session = open_session(&environment, threads, model)?;
    let outputs = session.run(read_inputs(inputs)?)?;
    let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
    println!("{shape:?} {values:?}");
    Ok(())
}

/// A session with the options of the Python peer's.
fn open_session(environment: &Environment, threads: usize, model: &str) -> ort::Result<Session> {
    let builder = Session::builder(environment)?;
    let builder = builder.with_optimization_level(GraphOptimizationLevel::All)?;
    builder.with_intra_threads(threads)?.commit_from_file(model)
}

fn read_inputs(path: &str) -> Result<Vec<(Cow<'static, str>, SessionInputValue<'static>)>> {
    let file = File::open(path).with_context(|| format!("cannot read {path}"))?;
    let mut archive = npyz::npz::NpzArchive::new(file)?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut inputs = Vec::with_capacity(names.len());
    for name in names {
        let array = archive.by_name(&name)?.context("an array that was listed")?;
        let shape: Vec<i64> = array.shape().iter().map(|&extent| extent.cast_signed()).collect();
        let tensor = Tensor::from_array((shape, array.into_vec::<f32>()?))?;
        inputs.push((Cow::Owned(name), tensor.into()));
    }
    Ok(inputs)
}

/// The version in the library's name: `libonnxruntime.so.1.31.1`.
fn version(library: &Path) -> Result<&str> {
    let name = library.file_name().and_then(|name| name.to_str()).context("ORT_DYLIB_PATH names no file")?;
    let (_, version) = name.split_once(".so.").with_context(|| format!("{name} has no version"))?;
    Ok(version)
}
