//! onnxruntime beside devbay, without Python: its cold start, and many callers at once.
//!
//! With `once THREADS MODEL INPUTS` it runs the model once on inputs of f32 and prints the first output; without
//! arguments it obeys lines on its standard input, as `bench/src/peers.rs` describes: `load` and `serve`, of models
//! with one output of f32. The library is the one that `ORT_DYLIB_PATH` names: that of the Python package, so that
//! both are one version, built one way.

mod serving;

use anyhow::{Context, Result, bail};
use ort::environment::Environment;
use ort::session::{Session, SessionInputValue, builder::GraphOptimizationLevel};
use ort::value::Tensor;
use serving::Loaded;
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let library: PathBuf = std::env::var_os("ORT_DYLIB_PATH").context("ORT_DYLIB_PATH is not set")?.into();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => serve(&library)?,
        ["once", threads, model, inputs] => once(&library, threads.parse()?, model, inputs)?,
        _ => bail!("expected no arguments, or `once THREADS MODEL INPUTS`"),
    }
    Ok(())
}

/// Obeys line by line until the input ends.
fn serve(library: &Path) -> Result<()> {
    reply(&format!("subject onnxruntime {}", version(library)?))?;
    let environment = ort::init_from(library)?.build()?;
    let mut loaded = None;
    for line in stdin().lock().lines() {
        match obey(&line?, &environment, &mut loaded) {
            Ok(text) => reply(&text)?,
            Err(error) => reply(&format!("error {}", format!("{error:#}").replace('\n', " ")))?,
        }
    }
    Ok(())
}

fn reply(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn obey(line: &str, environment: &Environment, loaded: &mut Option<Loaded>) -> Result<String> {
    match line.split('\t').collect::<Vec<_>>()[..] {
        ["load", threads, model, inputs, outputs] => {
            // The old session goes first, with its threads.
            *loaded = None;
            let session = open_session(environment, threads.parse()?, model)?;
            loaded.insert(Loaded::new(session, read_inputs(inputs)?)?).write(outputs)?;
            Ok("loaded".to_owned())
        }
        ["serve", callers, n] => {
            let loaded = loaded.as_ref().context("no model is loaded")?;
            let [per_run, p50, p99] = loaded.serve(callers.parse()?, n.parse()?)?;
            Ok(format!("served {per_run} {p50} {p99}"))
        }
        _ => bail!("unexpected line: {line}"),
    }
}

fn once(library: &Path, threads: usize, model: &str, inputs: &str) -> Result<()> {
    let environment = ort::init_from(library)?.build()?;
    let mut session = open_session(&environment, threads, model)?;
    let inputs: Vec<_> = read_inputs(inputs)?
        .into_iter()
        .map(|(name, value)| (Cow::Owned(name), SessionInputValue::from(value)))
        .collect::<Vec<(Cow<'_, str>, _)>>();
    let outputs = session.run(inputs)?;
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

fn read_inputs(path: &str) -> Result<Vec<(String, Tensor<f32>)>> {
    let file = File::open(path).with_context(|| format!("cannot read {path}"))?;
    let mut archive = npyz::npz::NpzArchive::new(file)?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut inputs = Vec::with_capacity(names.len());
    for name in names {
        let array = archive.by_name(&name)?.context("an array that was listed")?;
        let shape: Vec<i64> = array.shape().iter().map(|&extent| extent.cast_signed()).collect();
        let tensor = Tensor::from_array((shape, array.into_vec::<f32>()?))?;
        inputs.push((name, tensor));
    }
    Ok(inputs)
}

/// The version in the library's name: `libonnxruntime.so.1.31.1`.
fn version(library: &Path) -> Result<&str> {
    let name = library.file_name().and_then(|name| name.to_str()).context("ORT_DYLIB_PATH names no file")?;
    let (_, version) = name.split_once(".so.").with_context(|| format!("{name} has no version"))?;
    Ok(version)
}
