//! `devbay run` for a model with strings, sequences, optionals or maps: values from and to files, and in the table.

use crate::exit::usage;
use crate::layers::Done;
use crate::run::{self, Arguments};
use crate::{say, table};
use anyhow::{Context, Result};
use devbay_host::internals::compare::{Tolerance, Verdict, compare};
use devbay_host::{Cancel, Device, Error, ErrorKind, Model, Port, RunOptions, Session, Value, arrays};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A run and its results.
pub struct Ran {
    session: Session,
    device: Arc<Device>,
    outputs: Vec<Value>,
    /// Times of import, preparation and run.
    times: [Duration; 3],
}

/// Runs the model once, until `cancel` is set.
///
/// # Errors
/// For files that cannot be read, options that need a program, and errors of the run.
pub fn ran(arguments: &Arguments, model: &Model, import: Duration, cancel: &Cancel) -> Result<Ran> {
    if arguments.image.is_some()
        || arguments.inputs.random.is_some()
        || !arguments.inputs.given.shape.is_empty()
    {
        return Err(usage(
            "a model with strings, sequences, optionals or maps takes its inputs from --input",
        ));
    }
    let begin = Instant::now();
    let chosen = arguments.device.choose(&arguments.plugins, model.program(), None)?;
    let (session, _) = arguments.device.session(&chosen, model, &[], None)?;
    let inputs = read(&arguments.inputs.given.input, session.inputs())?;
    let named: Vec<(&str, &Value)> = inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let prepare = begin.elapsed();
    let begin = Instant::now();
    let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
    let outputs = session.run_values(&named, &options)?;
    Ok(Ran { session, device: chosen.device, outputs, times: [import, prepare, begin.elapsed()] })
}

/// Reads inputs: an archive, or a file for one input, in the form of its type.
fn read(given: &[String], ports: &[Port]) -> Result<Vec<(String, Value)>> {
    let mut inputs = Vec::new();
    for text in given {
        match text.split_once('=') {
            Some((name, file)) if !Path::new(text).exists() => {
                let port = ports.iter().find(|port| *port.name == *name).ok_or_else(|| {
                    let known: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
                    let text = format!("the model has no input `{name}`; it takes {}", known.join(", "));
                    Error::new(ErrorKind::InvalidInput, text)
                })?;
                inputs.push((name.to_owned(), arrays::read_value_file(Path::new(file), &port.value)?));
            }
            _ if text.ends_with(".npz") => inputs.extend(arrays::read_npz_values(Path::new(text))?),
            _ => return Err(usage(format!("--input is FILE.npz or NAME=FILE, found {text}"))),
        }
    }
    Ok(inputs)
}

impl Ran {
    /// Writes, compares and shows the results.
    ///
    /// # Errors
    /// For files that cannot be read or written; the verdict holds a mismatch with `--compare`.
    pub fn report(&self, arguments: &Arguments) -> Result<Done> {
        let names = self.session.outputs().iter().map(|port| &*port.name);
        let named: Vec<(&str, &Value)> = names.zip(&self.outputs).collect();
        if let Some(path) = &arguments.output {
            write(path, &named)?;
        }
        let verdicts =
            arguments.compare.as_ref().map(|path| compared(path, &named, arguments)).transpose()?;
        let verdict = run::verdict(verdicts.as_deref());
        let [import, prepare, time] = self.times;
        if arguments.json {
            let outputs: Vec<_> = named.iter().map(|(name, value)| output_json(name, value)).collect();
            let times = json!({ "import": import.as_nanos() as u64, "prepare": prepare.as_nanos() as u64, "run": time.as_nanos() as u64 });
            let json = json!({
                "model": arguments.model, "device": self.device.name(), "times_ns": times, "outputs": outputs,
                "compare": verdicts, "segments": self.session.segments().len(),
            });
            return Ok(Done { json: Some(json), verdict });
        }
        let rows: Vec<Vec<String>> = named
            .iter()
            .map(|(name, value)| vec![(*name).to_owned(), type_of(value), text_of(value, 6)])
            .collect();
        table::print(&["OUTPUT", "TYPE", "VALUES"], &rows);
        if let Some(verdicts) = &verdicts {
            run::print_verdicts(verdicts);
        }
        let duration = |time: Duration| table::duration(time.as_nanos() as f64);
        say!(
            "\n{} on {} ({}): run {}, import {}, prepare {}; {} segments on the device, the rest on the host",
            arguments.model.display(),
            self.device.name(),
            self.device.about().product,
            duration(time),
            duration(import),
            duration(prepare),
            self.session.segments().len()
        );
        Ok(Done { json: None, verdict })
    }
}

/// Returns an output as JSON.
fn output_json(name: &str, value: &Value) -> serde_json::Value {
    match value {
        Value::Tensor(tensor) => run::output_json(name, tensor),
        Value::Strings(strings) => {
            let first: Vec<&str> = strings.elements().iter().take(8).map(|text| &**text).collect();
            json!({ "name": name, "type": type_of(value), "shape": strings.shape(), "first": first })
        }
        other => json!({ "name": name, "type": type_of(other), "text": text_of(other, 8) }),
    }
}

fn type_of(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => tensor.tensor_type().to_string(),
        other => other.ty().with_extents(),
    }
}

/// Returns the first elements of a value as text.
fn text_of(value: &Value, n: usize) -> String {
    let listed = |texts: Vec<String>, all: usize| {
        let more = if all > n { ", ..." } else { "" };
        format!("{}{more}", texts.join(", "))
    };
    match value {
        Value::Tensor(tensor) => {
            let values = run::first_values(tensor, n).iter().map(ToString::to_string).collect();
            listed(values, tensor.n_elements())
        }
        Value::Strings(strings) => {
            let texts = strings.elements().iter().take(n).map(|text| format!("{text:?}")).collect();
            listed(texts, strings.elements().len())
        }
        Value::Sequence(sequence) => {
            let values = sequence.values().iter().take(n).map(|value| text_of(value, n)).collect();
            format!("[{}]", listed(values, sequence.values().len()))
        }
        Value::Optional(optional) => {
            optional.value().map_or_else(|| "none".to_owned(), |value| text_of(value, n))
        }
        Value::Map(map) => format!("{{{}}}: {{{}}}", text_of(map.keys(), n), text_of(map.values(), n)),
    }
}

/// Writes outputs to an archive, or to a folder with a file each.
fn write(path: &Path, outputs: &[(&str, &Value)]) -> Result<()> {
    if run::is_archive(path)? {
        return Ok(arrays::write_npz_values(path, outputs)?);
    }
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))?;
    for (i, (name, value)) in outputs.iter().enumerate() {
        arrays::write_value(&path.join(run::file_stem(name, i)), value)?;
    }
    Ok(())
}

/// Compares outputs with the arrays of an archive. Texts must be equal.
fn compared(path: &Path, outputs: &[(&str, &Value)], arguments: &Arguments) -> Result<Vec<Verdict>> {
    let tolerance = Tolerance { relative: arguments.rtol, absolute: arguments.atol };
    let expected = arrays::read_npz_values(path)?;
    if expected.is_empty() {
        return Err(usage(format!("{} has no arrays to compare with", path.display())));
    }
    let one = |(name, expected): &(String, Value)| {
        let found = outputs.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let Some(found) = found else {
            let known: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
            return Err(usage(format!("the model has no output `{name}`; it has {}", known.join(", "))));
        };
        Ok(match (found, expected) {
            (Value::Tensor(found), Value::Tensor(expected)) => compare(name, found, expected, tolerance),
            (Value::Strings(found), Value::Strings(expected)) => {
                texts(name, (found != expected).then_some("texts differ"))
            }
            _ => texts(name, Some("it is of another type than the expected value")),
        })
    };
    expected.iter().map(one).collect()
}

fn texts(name: &str, reason: Option<&str>) -> Verdict {
    let max_difference = if reason.is_some() { f64::INFINITY } else { 0.0 };
    let (name, reason) = (name.to_owned(), reason.map(ToOwned::to_owned));
    Verdict { name, matches: reason.is_none(), max_difference, allowed: 0.0, reason }
}
