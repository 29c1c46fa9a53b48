//! `devbay compile`: writes a model to a file, specialised for planning, or compiled by a device's compiler for a present or
//! absent device.

use crate::inputs::GivenArguments;
use crate::layers::Done;
use crate::options::{DeviceArguments, PluginArguments};
use crate::run::{self, Arguments as RunArguments};
use crate::{exit::usage, say, table};
use anyhow::{Context, Result};
use devbay_host::internals::compiled::{CompiledModel, Target};
use devbay_host::internals::core::device::Plugin;
use devbay_host::internals::core::program::Program;
use devbay_host::internals::core::units::count;
use devbay_host::internals::file::open_regular;
use devbay_host::{Checks, Device, Error, ErrorKind, Port, Runtime, Session, Tensor, TensorType};
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The model: an ONNX file or a program in text form
    pub model: PathBuf,
    /// Output file, which `devbay run` takes. FILE.dbx is a planned model for devices with kernels; any other name is a
    /// program of a device's compiler
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Plan a .dbx file for the shapes of these inputs; may be repeated
    #[arg(long, value_name = "INPUTS.npz")]
    pub shapes_from: Vec<PathBuf>,
    /// An absent device to compile for, as PLUGIN-TARGET in the plugin's own terms, such as pjrt-tpu:v5e:2x2
    #[arg(long, value_name = "PLUGIN-TARGET", conflicts_with = "device")]
    pub target: Option<String>,
    #[command(flatten)]
    pub given: GivenArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub plugins: PluginArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Compiles the model.
///
/// # Errors
/// For a device or plugin that is missing or has no compiler; for a node that it rejects, with its name; errors of the
/// compiler.
pub fn main(arguments: &Arguments) -> Result<()> {
    if arguments.target.is_some() {
        skip_metadata_queries();
    }
    let compile = if is_planned(&arguments.output) { plan } else { compile };
    arguments.plugins.layers.conclude(compile(arguments))
}

/// Returns whether a file should hold a planned model.
fn is_planned(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("dbx"))
}

/// Plans the model for all requested input types, and writes the result.
fn plan(arguments: &Arguments) -> Result<Done> {
    if arguments.target.is_some() {
        return Err(usage(
            "--target is for programs of compilers; a .dbx file is planned for a device that is here",
        ));
    }
    let begin = Instant::now();
    let model = arguments.device.load(&arguments.model, Checks::default())?;
    let program = model.program();
    let chosen = arguments.device.choose(&arguments.plugins, program, None)?;
    let given = |file: &PathBuf| {
        let input = vec![file.display().to_string()];
        GivenArguments { input, shape: arguments.given.shape.clone() }.types(program)
    };
    let all = match arguments.shapes_from.as_slice() {
        [] => vec![arguments.given.types(program)?],
        files => files.iter().map(given).collect::<Result<_>>()?,
    };
    let types: Vec<TensorType> = all[0].iter().map(|(dtype, shape)| TensorType::new(*dtype, shape)).collect();
    let (device, mut options, _) = arguments.device.session_options(&chosen, &model, &types, None)?;
    // Keep all requested plans, beyond a session's usual limit.
    options.plans.plans_max = options.plans.plans_max.max(all.len());
    let session = Session::with_options(&model, &device, options)?;
    for types in &all {
        let types: Vec<_> = types.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
        session.plan_for_types(&types)?;
    }
    let written = session.compile_to(&arguments.output)?;
    let took = begin.elapsed();
    if arguments.json {
        let json = json!({
            "model": arguments.model, "output": arguments.output, "device": device.name(),
            "plans": written.n_plans, "packed_constants": written.n_packed, "head_bytes": written.head_bytes,
            "bytes": written.bytes, "times_ns": { "compile": took.as_nanos() as u64 },
        });
        return Ok(Done { json: Some(json), verdict: Ok(()) });
    }
    say!(
        "{} for {}: {}, {}, {}, compiled in {}",
        arguments.output.display(),
        device.name(),
        count(written.n_plans, "plan"),
        count(written.n_packed, "packed constant"),
        table::bytes(written.bytes as u64),
        table::duration(took.as_nanos() as f64)
    );
    Ok(Done { json: None, verdict: Ok(()) })
}

/// Makes libtpu skip the cloud's metadata server. Without one, libtpu would search for minutes, and a compiler that runs
/// without its device does not need it.
fn skip_metadata_queries() {
    const SKIP: &str = "TPU_SKIP_MDS_QUERY";
    if std::env::var_os(SKIP).is_none() {
        // SAFETY: no other thread has started, so none reads the environment.
        unsafe { std::env::set_var(SKIP, "1") };
    }
}

fn compile(arguments: &Arguments) -> Result<Done> {
    if !arguments.shapes_from.is_empty() {
        return Err(usage(
            "--shapes-from is for .dbx files: a compiler's program is for one shape, that of --input",
        ));
    }
    if arguments.device.feedback.is_some() {
        return Err(usage("--feedback is for plans, and a device's compiler plans for itself"));
    }
    if arguments.device.narrow.is_some() {
        return Err(usage("--narrow is for plans; a program that a compiler takes has the model's types"));
    }
    let model = arguments.device.load(&arguments.model, Checks::default())?;
    let types = arguments.given.types(model.program())?;
    let types: Vec<TensorType> = types.iter().map(|(dtype, shape)| TensorType::new(*dtype, shape)).collect();
    let numerics = arguments.device.numerics.into();
    let begin = Instant::now();
    let made = match &arguments.target {
        Some(text) => {
            let (name, target) = text
                .split_once('-')
                .filter(|(name, target)| !name.is_empty() && !target.is_empty())
                .ok_or_else(|| {
                    usage(format!("--target is PLUGIN-TARGET, such as pjrt-tpu:v5e:2x2, found {text}"))
                })?;
            let runtime = arguments.plugins.runtime_for_compiling(name)?;
            let plugin = plugin(&runtime, name)?;
            let folds = kernels(&runtime)?;
            CompiledModel::new(&model, &types, &Target::Ahead(&plugin, target), numerics, &folds)?
        }
        None => {
            let chosen = arguments.device.choose(&arguments.plugins, model.program(), None)?;
            let folds = kernels(&chosen.runtime)?;
            CompiledModel::new(&model, &types, &Target::Device(&chosen.device), numerics, &folds)?
        }
    };
    let took = begin.elapsed();
    made.write(&arguments.output)?;
    let ((plugin, version, target), (program, constants)) = (made.target(), made.size());
    if arguments.json {
        let json = json!({
            "model": arguments.model, "output": arguments.output, "plugin": plugin, "plugin_version": version,
            "target": target, "program_bytes": program, "constant_bytes": constants,
            "times_ns": { "compile": took.as_nanos() as u64 },
        });
        return Ok(Done { json: Some(json), verdict: Ok(()) });
    }
    say!(
        "{} for {target} by plugin {plugin} {version}: program {}, constants {}, compiled in {}",
        arguments.output.display(),
        table::bytes(program as u64),
        table::bytes(constants as u64),
        table::duration(took.as_nanos() as f64)
    );
    Ok(Done { json: None, verdict: Ok(()) })
}

fn plugin(runtime: &Runtime, name: &str) -> Result<Arc<Plugin>> {
    let found = runtime.plugins().iter().find(|plugin| plugin.name() == name);
    if let Some(plugin) = found {
        return Ok(Arc::clone(plugin));
    }
    let refused = runtime.report().refused().find(|(report, _)| report.name.as_deref() == Some(name));
    let text = match refused {
        Some((_, refusal)) => format!("plugin {name} was refused: {refusal}"),
        None => format!("there is no plugin {name}; --plugin names its library"),
    };
    Err(Error::new(ErrorKind::NotFound, text).into())
}

/// Returns a device with kernels, for folding a model's constants.
fn kernels(runtime: &Runtime) -> Result<Arc<Device>> {
    let has_kernels = |device: &&Arc<Device>| !device.kernels().is_empty();
    let found = runtime.devices().iter().find(has_kernels).cloned();
    found.ok_or_else(|| {
        let text = "no plugin has kernels, which are needed to fold constants";
        Error::new(ErrorKind::NotFound, text).into()
    })
}

/// Returns whether a file is a compiled program: its metadata comes first.
pub fn is_compiled(path: &Path) -> bool {
    let mut start = [0u8; 256];
    let Ok((mut file, _)) = open_regular(path) else { return false };
    let Ok(n) = file.read(&mut start) else { return false };
    start[..n].get(8..).is_some_and(|rest| rest.starts_with(b"{\"__metadata__\":{\"devbay\""))
}

/// Time limit of a run without a deadline.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Runs a compiled model once.
///
/// # Errors
/// Unsupported for a device that it was not compiled for; missing inputs; errors of the device.
pub fn run(arguments: &RunArguments) -> Result<Done> {
    if arguments.image.is_some() {
        return Err(usage("a compiled program takes its inputs from --input"));
    }
    let begin = Instant::now();
    let compiled = CompiledModel::read(&arguments.model)?;
    let read = begin.elapsed();
    let ports = compiled.inputs()?;
    let program = program_of(&ports);
    let chosen = arguments.device.choose(&arguments.plugins, &program, None)?;
    let device = &chosen.device;
    let inputs = arguments.inputs.read(&program, device)?;
    let begin = Instant::now();
    let loaded = compiled.load(device)?;
    let load = begin.elapsed();
    let ordered: Vec<&Tensor> = ports
        .iter()
        .map(|port| {
            let found = inputs.iter().find(|(name, _)| **name == *port.name).map(|(_, tensor)| tensor);
            found.with_context(|| format!("input `{}` is missing", port.name))
        })
        .collect::<Result<_>>()?;
    let begin = Instant::now();
    let limit = arguments.deadline_ms.map_or(LIMIT, Duration::from_millis);
    let outputs = loaded.run(&ordered, limit)?;
    let took = begin.elapsed();
    let ports = compiled.outputs()?;
    let named: Vec<(&str, &Tensor)> = ports.iter().map(|port| &*port.name).zip(&outputs).collect();
    let times = [("read", read), ("load", load), ("run", took)];
    run::report_program(arguments, "compiled", device, &named, &times)
}

/// Returns a program with these inputs and no nodes, for functions that read inputs from a program.
fn program_of(ports: &[Port]) -> Program {
    let mut program = Program::default();
    for port in ports {
        if let Some(ty) = &port.ty {
            let id = program.add_typed(&port.name, ty.clone());
            program.main.inputs.push(id);
        }
    }
    program
}
