//! `pjrt`: programs on a PJRT library, through devbay beside a bare client of the same library.
//!
//! The bare client calls the same library in the same process, through the plugin's bindings to the C API but without the
//! rest of devbay. Both run the same compiled bytes. `add execute` is an addition of four numbers on existing arrays, from
//! the call to its end. `add host` copies two arrays from the host's memory and the sum back, through a session. `MODEL`
//! does so for a trained model; constants are on the device.
//!
//! A separate program, because two linked plugins would each define the ABI's symbol. `cargo xtask bench pjrt` builds and
//! runs it.
#![expect(clippy::print_stdout, reason = "rows go to standard output")]

#[path = "../measure.rs"]
#[expect(dead_code, reason = "what other benchmarks need besides")]
mod measure;
#[path = "../ran.rs"]
#[expect(dead_code, reason = "what other benchmarks need besides")]
mod ran;
#[path = "../rows.rs"]
mod rows;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use devbay_core::device::{Buffer, Device, Executable};
use devbay_core::exec::host_io::InputView;
use devbay_core::kernel::Numerics;
use devbay_core::plan::{Env, PlanOptions, whole};
use devbay_core::program::{Node, Op, Program};
use devbay_core::tensor::{F32, I32, I64, Tensor, TensorType};
use devbay_host::arrays::read_npz;
use devbay_host::{Model, Policy, Requirements, RunOptions, Runtime, Session, SessionOptions};
use devbay_plugin_api::abi::DEVBAY_USAGE_TRANSIENT;
use devbay_plugin_pjrt::buffer::{self as bare_buffer, HostArray};
use devbay_plugin_pjrt::client::{self as bare_client, Client};
use devbay_plugin_pjrt::element::ElementType;
use devbay_plugin_pjrt::executable::{self as bare, Input};
use devbay_plugin_pjrt::library::Library;
use devbay_plugin_pjrt::stored::Stored;
use measure::{Subject, passes};
use ran::Ran;
use rows::{OURS, Rows};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const PEER: &str = "bare client";
const LIBRARIES: &str = "DEVBAY_PJRT_PLUGINS";
const MOMENT: Duration = Duration::from_millis(30);
const LIMIT: Duration = Duration::from_secs(60);

/// Models that are compiled as a whole, with runs from microseconds to a tenth of a second.
const MODELS: [&str; 6] =
    ["mlp_hey_livekit", "mnist_cnn", "blaze_face", "bert_rxnfp", "efficientnet_lite0", "ocr_rec_ppv4"];

#[derive(Parser)]
#[command(about = "Measures programs on a PJRT library, through devbay beside a bare client")]
struct Arguments {
    /// Print each row as one JSON object a line
    #[arg(long)]
    json: bool,
    /// Number of times to repeat each comparison, at least three
    #[arg(long, value_name = "N", default_value_t = 15)]
    passes: usize,
    /// Run only the cases whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
}

/// Returns the path of a plugin's library, built beside this program.
fn library_of(plugin: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let path = program.with_file_name(format!("libdevbay_plugin_{plugin}.so"));
    ensure!(path.exists(), "{} is missing; `cargo xtask bench pjrt` builds it", path.display());
    Ok(path)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let rows = &mut Rows::new(arguments.json, arguments.case);
    let n_passes = arguments.passes.max(3);
    let named = std::env::var(LIBRARIES).with_context(|| format!("{LIBRARIES} names no PJRT library"))?;
    // Of several versions, the newest comes last.
    let last = named.rsplit(',').next().and_then(|text| text.split_once(':'));
    let (_, path) = last.with_context(|| format!("{LIBRARIES} is NAME:PATH, found {named}"))?;
    let library = PathBuf::from(path);
    let runtime = Runtime::builder()
        .threads(1)
        .plugin(library_of("pjrt")?)
        .plugin(library_of("cpu")?)
        .option("pjrt", "libraries", format!("bench:{}", library.display()))
        .option("pjrt", "probe", "off")
        .build()?;
    let choose = |name: &str| -> Result<Arc<Device>> {
        Ok(runtime.choose(&Policy::Explicit(name.to_owned()), &Requirements::default())?.device)
    };
    let (device, processor) = (choose("pjrt:0")?, choose("cpu:0")?);
    eprintln!("pjrt: {}, {}", device.about().driver, library.display());
    // SAFETY: the user named the library to run in this process, and so vouches for it.
    let opened = unsafe { Library::open(&library) }?;
    let client = Client::create(opened, &[])?;
    let theirs = client.devices().into_iter().next().context("the library has no device")?;
    let both = Both { device, processor, theirs };
    both.add(rows, n_passes)?;
    let Some(folder) = std::env::var_os("DEVBAY_MODELS").map(PathBuf::from) else {
        eprintln!("pjrt: models skipped, as DEVBAY_MODELS names no folder");
        return Ok(());
    };
    for name in MODELS {
        if rows.want(name) {
            let folder = folder.join(name);
            let inputs = read_npz(&folder.join("case0.inputs.npz"))?;
            both.host(rows, name, &Model::load(folder.join("model.onnx"))?, &inputs, n_passes)?;
        }
    }
    Ok(())
}

/// One device, with and without devbay.
struct Both {
    device: Arc<Device>,
    /// Folds a model's constants.
    processor: Arc<Device>,
    theirs: bare_client::Device,
}

impl Both {
    /// Returns the bytes of a model's program, and our program for it.
    fn compile(&self, model: &Model, types: &[TensorType]) -> Result<(Program, Executable)> {
        let env = Env::new(&self.processor, PlanOptions::default());
        let program = whole::specialised(model.program(), types, &env)?;
        let made = {
            let graph = whole::graph(&program)?;
            let donors: Vec<u32> = graph.inputs().to_vec();
            self.device.compile_graph(&graph, Numerics::Strict, &donors, "bench")?
        };
        Ok((program, made))
    }

    fn load(&self, ours: &Executable) -> Result<(bare::Executable, Stored)> {
        let stored = Stored::from_bytes(&ours.blob()?)?;
        // SAFETY: the bytes are the library's own, from this process.
        let theirs =
            unsafe { bare::Executable::load(self.theirs.client(), &stored.executable, stored.inputs.len()) }?;
        Ok((theirs, stored))
    }

    fn upload(&self, tensor: &Tensor) -> Result<bare_buffer::Buffer> {
        let element = match tensor.dtype() {
            F32 => ElementType::F32,
            I64 => ElementType::S64,
            I32 => ElementType::S32,
            _ => anyhow::bail!("an input of type {}", tensor.tensor_type()),
        };
        let dims: Vec<i64> = tensor.shape().iter().map(|&n| n as i64).collect();
        let array = HostArray { bytes: tensor.bytes(), element, dims: &dims, byte_strides: None };
        Ok(self.theirs.upload(&array)?)
    }

    /// Measures an addition of four numbers.
    fn add(&self, rows: &mut Rows, n_passes: usize) -> Result<()> {
        let ty = TensorType::new(F32, &[4]);
        let model = addition(&ty);
        let numbers = Tensor::from_elements(&[4], &[1.0f32, 2.0, 3.0, 4.0])?;
        if rows.want("add execute") {
            let (_, ours) = self.compile(&model, &[ty.clone(), ty.clone()])?;
            let (theirs, _) = self.load(&ours)?;
            let (a, b) = (self.upload(&numbers)?, self.upload(&numbers)?);
            let mut stream = self.device.create_stream("bench")?;
            let mut on_device = || -> Result<Buffer> {
                let buffer = self.device.alloc_tensor(&ty, DEVBAY_USAGE_TRANSIENT)?;
                // SAFETY: the numbers live until the stream has been waited for.
                unsafe { stream.copy_in(numbers.bytes().as_ptr(), buffer.reference(0, 16)) }?;
                stream.finish(LIMIT)?;
                Ok(buffer)
            };
            let (c, d) = (on_device()?, on_device()?);
            let mut subjects = [
                Subject::fallible(PEER, 1.0, || {
                    let run = theirs.execute(&[Input::from(&a), Input::from(&b)])?;
                    Ok(run.done.wait()?)
                }),
                Subject::fallible(OURS, 1.0, || {
                    let _results = ours.execute(&mut stream, &[&c, &d], &[])?;
                    Ok(stream.finish(LIMIT)?)
                }),
            ];
            let figures = passes(&mut subjects, n_passes, MOMENT)?;
            drop(subjects);
            let given = [("a", &numbers), ("b", &numbers)];
            rows.case("pjrt", "add execute", 1, "ns", &figures, self.programs(&model, &given)?)?;
        }
        let inputs = [("a".to_owned(), numbers.clone()), ("b".to_owned(), numbers)];
        self.host(rows, "add host", &model, &inputs, n_passes)
    }

    fn options(&self) -> SessionOptions {
        SessionOptions { others: vec![Arc::clone(&self.processor)], ..SessionOptions::default() }
    }

    /// Returns a row's claim: a run of the model is one program, without other launches.
    fn programs(&self, model: &Model, inputs: &[(&str, &Tensor)]) -> Result<Ran> {
        let counts = ran::count(model, &self.device, self.options(), inputs)?;
        Ok(Ran::of("programs", 1, counts.programs + counts.launches))
    }

    /// Measures a model with copies from the host's memory and back.
    fn host(
        &self,
        rows: &mut Rows,
        case: &str,
        model: &Model,
        inputs: &[(String, Tensor)],
        n_passes: usize,
    ) -> Result<()> {
        if !rows.want(case) {
            return Ok(());
        }
        let ids = &model.program().main.inputs;
        let given = |id| inputs.iter().find(|(name, _)| **name == *model.program().value(id).name);
        let ordered: Vec<&Tensor> = ids
            .iter()
            .map(|&id| given(id).map(|(_, tensor)| tensor).context("an input is missing"))
            .collect::<Result<_>>()?;
        let session = Session::with_options(model, &self.device, self.options())?;
        let views: Vec<InputView<'_>> = ordered.iter().map(|tensor| InputView::of(tensor)).collect();
        let plan = session.plan_for_types(&views.iter().map(InputView::ty).collect::<Vec<_>>())?;
        ensure!(plan.stages.len() == 1, "{case}: {} stages, expected one program", plan.stages.len());

        let types: Vec<TensorType> = ordered.iter().map(|tensor| tensor.tensor_type()).collect();
        let (program, ours) = self.compile(model, &types)?;
        let (theirs, stored) = self.load(&ours)?;
        // The program's arguments: constants, which stay, and inputs by position.
        let graph = whole::graph(&program)?;
        let mut constants = Vec::new();
        for &number in &stored.inputs {
            let id = graph.values()[number as usize];
            constants.push(match program.constant(id) {
                Some(tensor) => Err(self.upload(tensor)?),
                None => Ok(program.main.inputs.iter().position(|&input| input == id).context("an input")?),
            });
        }
        let mut results: [Vec<Vec<u8>>; 2] = std::array::from_fn(|_| {
            let size = |id: &devbay_core::program::ValueId| {
                let ty = program.value(*id).ty.as_ref().and_then(TensorType::known_shape);
                let ty = ty.map_or(0, |shape| shape.iter().product::<usize>());
                let bits = program.value(*id).ty.as_ref().map_or(0, |ty| usize::from(ty.dtype.bits));
                vec![0u8; ty * bits / 8]
            };
            program.main.outputs.iter().map(size).collect()
        });
        let [own, other] = &mut results;
        let bare_run = |results: &mut Vec<Vec<u8>>| -> Result<()> {
            let uploaded: Vec<bare_buffer::Buffer> =
                ordered.iter().map(|tensor| self.upload(tensor)).collect::<Result<_>>()?;
            let given: Vec<Input<'_>> = constants
                .iter()
                .map(|constant| match constant {
                    Ok(at) => Input { buffer: &uploaded[*at], donate: true },
                    Err(buffer) => Input::from(buffer),
                })
                .collect();
            let run = theirs.execute(&given)?;
            for (output, bytes) in run.outputs.iter().zip(results.iter_mut()) {
                output.download(bytes)?;
            }
            Ok(run.done.wait()?)
        };
        let run = |results: &mut Vec<Vec<u8>>| -> Result<()> {
            let mut outputs: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
            Ok(session.run_into(&views, &mut outputs, &RunOptions::default())?)
        };
        run(own)?;
        bare_run(other)?;
        ensure!(own == other, "{case}: devbay and the bare client give other results");
        let mut subjects =
            [Subject::fallible(PEER, 1e3, || bare_run(other)), Subject::fallible(OURS, 1e3, || run(own))];
        let figures = passes(&mut subjects, n_passes, MOMENT)?;
        drop(subjects);
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        rows.case("pjrt", case, 1, "us", &figures, self.programs(model, &given)?)
    }
}

/// Returns the model `a + b`.
fn addition(ty: &TensorType) -> Model {
    let mut program = Program { name: "addition".to_owned(), ..Program::default() };
    let [a, b, sum] = ["a", "b", "sum"].map(|name| program.add_typed(name, ty.clone()));
    program.main.inputs = vec![a, b];
    program.main.nodes.push(Node::new(Op::onnx("Add", 14), vec![Some(a), Some(b)], vec![Some(sum)]));
    program.main.outputs = vec![sum];
    Model::from_program(program)
}
