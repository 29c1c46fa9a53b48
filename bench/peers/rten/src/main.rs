//! rten beside devbay: runs a model when the benchmarks ask for it.
//!
//! Without arguments it obeys lines on its standard input, as `bench/src/peers.rs` describes. With
//! `once THREADS MODEL INPUTS` it runs the model once and prints the first output, for the cold start.

use anyhow::{Context, Result, bail};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::{AsView, Layout};
use std::fs::File;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A model with its inputs, ready to run.
struct Loaded {
    model: Model,
    inputs: Vec<(NodeId, Value)>,
    outputs: Vec<NodeId>,
    options: RunOptions,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => serve(),
        ["once", threads, model, inputs] => {
            let outputs = Loaded::new(threads, model, inputs)?.run()?;
            println!("{:?}", outputs.first().context("the model has no output")?);
            Ok(())
        }
        _ => bail!("expected no arguments, or `once THREADS MODEL INPUTS`"),
    }
}

/// Obeys line by line until the input ends.
fn serve() -> Result<()> {
    reply(&format!("subject rten {}", version()?))?;
    let mut loaded = None;
    for line in stdin().lock().lines() {
        match obey(&line?, &mut loaded) {
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

fn obey(line: &str, loaded: &mut Option<Loaded>) -> Result<String> {
    match line.split('\t').collect::<Vec<_>>()[..] {
        ["load", threads, model, inputs, outputs] => {
            let new = Loaded::new(threads, model, inputs)?;
            new.write(outputs.as_ref())?;
            *loaded = Some(new);
            Ok("loaded".to_owned())
        }
        ["run", n] => {
            let loaded = loaded.as_ref().context("no model is loaded")?;
            let n: u32 = n.parse()?;
            // The first run warms the caches and does not count.
            loaded.run()?;
            let begin = Instant::now();
            for _ in 0..n {
                loaded.run()?;
            }
            Ok(format!("ns {}", begin.elapsed().as_nanos() as f64 / f64::from(n)))
        }
        _ => bail!("unknown line: {line}"),
    }
}

impl Loaded {
    fn new(threads: &str, model: &str, inputs: &str) -> Result<Self> {
        let pool = ThreadPool::with_num_threads(threads.parse()?);
        let mut options = ModelOptions::with_all_ops();
        // As devbay and onnxruntime do: weights are packed when the model is loaded.
        options.prepack_weights(true);
        let model = options.load_file(model).with_context(|| format!("cannot load {model}"))?;
        let inputs = read_inputs(&model, inputs.as_ref())?;
        Ok(Self {
            inputs,
            outputs: model.output_ids().to_vec(),
            model,
            options: RunOptions::default().with_thread_pool(Some(Arc::new(pool))),
        })
    }

    fn run(&self) -> Result<Vec<Value>> {
        let inputs = self.inputs.iter().map(|(id, value)| (*id, ValueOrView::from(value))).collect();
        Ok(self.model.run(inputs, &self.outputs, Some(self.options.clone()))?)
    }

    /// Runs once and writes the outputs.
    fn write(&self, path: &Path) -> Result<()> {
        let mut archive = npyz::npz::NpzWriter::create(path)?;
        for (id, value) in self.outputs.iter().zip(self.run()?) {
            let name = self.model.node_info(*id).and_then(|node| node.name()).context("an output's name")?;
            match value {
                Value::FloatTensor(tensor) => {
                    write_array(&mut archive, name, tensor.shape(), tensor.to_vec())?;
                }
                Value::Int32Tensor(tensor) => {
                    write_array(&mut archive, name, tensor.shape(), tensor.to_vec())?;
                }
                other => bail!("output {name} is of {:?}, expected f32 or i32", other.dtype()),
            }
        }
        Ok(())
    }
}

fn write_array<T: npyz::AutoSerialize>(
    archive: &mut npyz::npz::NpzWriter<std::io::BufWriter<File>>,
    name: &str,
    shape: &[usize],
    elements: Vec<T>,
) -> Result<()> {
    use npyz::WriterBuilder;
    let shape: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
    let options = archive.array(name, Default::default())?;
    let mut writer = options.default_dtype().shape(&shape).begin_nd()?;
    writer.extend(elements)?;
    Ok(writer.finish()?)
}

/// The archive's arrays as values of the model's inputs. rten holds 64-bit integers as 32-bit ones.
fn read_inputs(model: &Model, path: &Path) -> Result<Vec<(NodeId, Value)>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut archive = npyz::npz::NpzArchive::new(file)?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut inputs = Vec::with_capacity(names.len());
    for name in names {
        let array = archive.by_name(&name)?.context("an array that was listed")?;
        let shape: Vec<usize> = array.shape().iter().map(|&extent| extent as usize).collect();
        let value = match array.dtype().descr().trim_matches('\'') {
            "<f4" => Value::from_shape(&shape, array.into_vec::<f32>()?)?,
            "<i4" => Value::from_shape(&shape, array.into_vec::<i32>()?)?,
            "<i8" => {
                let narrow: Result<Vec<i32>, _> =
                    array.into_vec::<i64>()?.into_iter().map(i32::try_from).collect();
                Value::from_shape(&shape, narrow?)?
            }
            other => bail!("input {name} is of {other}, expected f32, i32 or i64"),
        };
        inputs.push((model.node_id(&name)?, value));
    }
    Ok(inputs)
}

/// rten's version, as the lock file has it: the library does not tell.
fn version() -> Result<&'static str> {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| *line == "name = \"rten\"").context("rten is locked")?;
    let line = lines.next().context("a locked package has a version")?;
    Ok(line.trim_start_matches("version = \"").trim_end_matches('"'))
}
