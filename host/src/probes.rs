//! Measures a device's rates for each kind of work, under the conditions of a model.
//!
//! A probe is one launch in a traced program. Another launch before it makes its input, which is then as warm as in a model.
//! A large Softmax has evicted the probe's constants and code from the nearest caches, as the rest of a model does. The
//! result is the median of many runs. A probe's operations and bytes are its kernel's own counts, the basis of estimates. To
//! get them, the program is planned once with rates where an operation takes a nanosecond and nothing else takes any time,
//! and once likewise for bytes.
//!
//! Only devices that run kernels synchronously are probed: for others the host's clock measures nothing.

use crate::calibrate::{Quantity, WorkRate};
use crate::model::Model;
use crate::session::{Port, Session};
use crate::trace::{Costs, Recorder, Timeline, clock_ns};
use devbay_core::device::Device;
use devbay_core::error::Result;
use devbay_core::passes::Switches;
use devbay_core::plan::PlanOptions;
use devbay_core::plan::cost::Rates;
use devbay_core::plan::tasks::Policy;
use devbay_core::plan::work::WorkKind;
use devbay_core::program::{AttrValue, Node, Op, Program, ValueId};
use devbay_core::tensor::{F32, Tensor, TensorType};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measuring time for the probes of a kind, and the minimum number of runs.
const BUDGET: Duration = Duration::from_millis(200);
const RUNS_MIN: usize = 11;

/// Shape of the launch between probes: two tensors of 512 KiB. The op is not elementwise, so it never joins a chain.
const BETWEEN: &[usize] = &[128, 1024];

/// One launch.
struct Probe {
    rate: WorkRate,
    /// Ops before it that are fused with it, with the same operands.
    before: Vec<Op>,
    op: Op,
    input: &'static [usize],
    /// Further operands, all constant.
    constants: Vec<Tensor>,
    output: &'static [usize],
    attrs: Vec<(&'static str, AttrValue)>,
}

/// Measures the rates of kinds of work, or explains why one is unknown. Kinds that follow the device's own rates are left
/// out, so the list is empty for a device that is not probed.
pub(crate) fn of_kinds(device: &Arc<Device>) -> Vec<(Quantity, std::result::Result<f64, String>)> {
    let kinds = WorkKind::ALL.into_iter().filter(|_| device.about().inline);
    kinds.flat_map(|kind| of_kind(device, kind)).collect()
}

fn of_kind(device: &Arc<Device>, kind: WorkKind) -> Vec<(Quantity, std::result::Result<f64, String>)> {
    let probes = match probes(kind) {
        Ok(probes) => probes,
        Err(error) => return failed(kind, &[], &error.to_string()),
    };
    let measured = match measure(device, &probes, kind == WorkKind::Chain) {
        Ok(measured) => measured,
        Err(error) => return failed(kind, &probes, &error.to_string()),
    };
    let found = |at: usize| measured.iter().find(|found| found.at == at);
    let launch_ns = found(0).map_or(0.0, |found| found.ns);
    let value = |(at, probe): (usize, &Probe)| {
        let found = found(at).ok_or_else(|| "its launch was not seen".to_owned())?;
        let ns = found.ns - launch_ns;
        let work = match probe.rate {
            WorkRate::Launch => return Ok(launch_ns),
            WorkRate::Flops => found.flops,
            WorkRate::Bytes => found.bytes,
        };
        match work {
            0.0 => Err("its kernel counts none".to_owned()),
            work if ns > 0.0 => Ok(work / ns),
            _ => Err("it took no longer than an empty launch".to_owned()),
        }
    };
    let rates = probes.iter().enumerate();
    rates.map(|(at, probe)| (Quantity::Work(kind, probe.rate), value((at, probe)))).collect()
}

fn failed(kind: WorkKind, probes: &[Probe], why: &str) -> Vec<(Quantity, std::result::Result<f64, String>)> {
    probes.iter().map(|probe| (Quantity::Work(kind, probe.rate), Err(why.to_owned()))).collect()
}

/// Result of a probe: its position, its time in nanoseconds, and its kernel's counts.
struct Found {
    at: usize,
    ns: f64,
    flops: f64,
    bytes: f64,
}

fn measure(device: &Arc<Device>, probes: &[Probe], fuse_elementwise: bool) -> Result<Vec<Found>> {
    let program = program(probes)?;
    let recorder = Recorder::default();
    // Each launch is measured on its own: no parallel branches, and fusion only on request.
    let passes = if fuse_elementwise { Switches::default() } else { Switches::none() };
    let plain = PlanOptions { tasks: Policy::One, passes, ..PlanOptions::default() };
    let open =
        |options: PlanOptions| Session::with_options(&Model::from_program(program.clone()), device, options);
    let counted = |rates: Rates| -> Result<HashMap<String, f64>> {
        let session = open(PlanOptions { rates: Some(rates), ..plain.clone() })?;
        let types: Vec<_> = session.inputs().iter().filter_map(|port| port.ty.clone()).collect();
        let shapes: Vec<Vec<usize>> = types.iter().filter_map(TensorType::known_shape).collect();
        let types: Vec<_> =
            types.iter().zip(&shapes).map(|(ty, shape)| (ty.dtype, shape.as_slice())).collect();
        let plan = session.plan_for_types(&types)?;
        Ok(plan.costs().map(|(label, ns, _)| (label.to_owned(), ns)).collect())
    };
    let only =
        |flops_per_ns, bytes_per_ns| Rates { flops_per_ns, bytes_per_ns, launch_ns: 0.0, ..Rates::default() };
    let (flops, bytes) = (counted(only(1.0, f64::INFINITY))?, counted(only(f64::INFINITY, 1.0))?);

    let session = open(PlanOptions { trace: Some(recorder.clone()), ..plain.clone() })?;
    let ones = |port: &Port| -> Result<Tensor> {
        let shape = port.ty.as_ref().and_then(TensorType::known_shape).unwrap_or_default();
        ones(&shape)
    };
    let inputs: Vec<Tensor> = session.inputs().iter().map(ones).collect::<Result<_>>()?;
    let named = session.inputs().iter().zip(&inputs);
    let named: Vec<(&str, &Tensor)> = named.map(|(port, tensor)| (&*port.name, tensor)).collect();
    session.run(&named)?;
    let _ = recorder.take();
    let begin = Instant::now();
    let mut n_runs = 0;
    while n_runs < RUNS_MIN || begin.elapsed() < BUDGET {
        session.run(&named)?;
        n_runs += 1;
    }
    let recording = recorder.take();
    let costs = Costs::of(&Timeline::of(&recording), clock_ns());
    let found = |(at, _): (usize, &Probe)| {
        let launch = costs.launches.iter().find(|launch| launch.node.starts_with(&format!("probe {at} ")))?;
        let counted = |counts: &HashMap<String, f64>| counts.get(&launch.node).copied().unwrap_or(0.0);
        Some(Found { at, ns: launch.measured_ns, flops: counted(&flops), bytes: counted(&bytes) })
    };
    Ok(probes.iter().enumerate().filter_map(found).collect())
}

/// Builds the probes, each after a launch that evicts it from the caches and one that makes its input.
fn program(probes: &[Probe]) -> Result<Program> {
    let mut program = Program { name: "probes".to_owned(), ..Program::default() };
    let mut large = program.add_typed("large", TensorType::new(F32, BETWEEN));
    program.main.inputs.push(large);
    let softmax = Op::onnx("Softmax", 13);
    for (at, probe) in probes.iter().enumerate() {
        let input = program.add_typed(&format!("x{at}"), TensorType::new(F32, probe.input));
        program.main.inputs.push(input);
        large = add(&mut program, softmax.clone(), &[large], BETWEEN, "between");
        let made = add(&mut program, softmax.clone(), &[input], probe.input, "input");
        let mut operands = vec![made];
        for constant in &probe.constants {
            operands.push(program.add_constant("constant", constant.clone()));
        }
        // A chain ends with the probe's own op, which identifies it.
        for before in &probe.before {
            let made = add(&mut program, before.clone(), &operands, probe.output, "before");
            operands[0] = made;
        }
        let name = format!("probe {at}");
        let output = add(&mut program, probe.op.clone(), &operands, probe.output, &name);
        if let Some(node) = program.main.nodes.last_mut() {
            node.attrs = probe.attrs.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect();
        }
        program.main.outputs.push(output);
    }
    program.main.outputs.push(large);
    Ok(program)
}

fn add(program: &mut Program, op: Op, inputs: &[ValueId], shape: &[usize], name: &str) -> ValueId {
    let output = program.add_typed(name, TensorType::new(F32, shape));
    let mut node = Node::new(op, inputs.iter().copied().map(Some).collect(), vec![Some(output)]);
    node.name = Arc::from(name);
    program.main.nodes.push(node);
    output
}

fn ones(shape: &[usize]) -> Result<Tensor> {
    filled(shape, 1.0)
}

fn filled(shape: &[usize], value: f32) -> Result<Tensor> {
    Tensor::from_elements(shape, &vec![value; shape.iter().product()])
}

/// Returns the probes of a kind; the first one does next to no work. Sizes are those of layers of small networks.
fn probes(kind: WorkKind) -> Result<Vec<Probe>> {
    use WorkRate::{Bytes, Flops, Launch};
    let ints = |values: &[i64]| AttrValue::Ints(values.to_vec());
    let probe =
        |rate, op: &Op, input, constants: &[&[usize]], output, attrs: &[(&'static str, AttrValue)]| {
            let constants = constants.iter().map(|shape| ones(shape)).collect::<Result<_>>()?;
            Ok(Probe {
                rate,
                before: Vec::new(),
                op: op.clone(),
                input,
                constants,
                output,
                attrs: attrs.to_vec(),
            })
        };
    match kind {
        WorkKind::Product => {
            let op = Op::onnx("MatMul", 13);
            vec![
                probe(Launch, &op, &[1, 8], &[&[8, 8]], &[1, 8], &[]),
                probe(Flops, &op, &[256, 256], &[&[256, 256]], &[256, 256], &[]),
                probe(Bytes, &op, &[1, 512], &[&[512, 512]], &[1, 512], &[]),
            ]
        }
        WorkKind::Convolution => {
            let op = Op::onnx("Conv", 22);
            vec![
                probe(Launch, &op, &[1, 8, 1, 1], &[&[8, 8, 1, 1]], &[1, 8, 1, 1], &[]),
                probe(Flops, &op, &[1, 64, 28, 28], &[&[64, 64, 3, 3]], &[1, 64, 26, 26], &[]),
                probe(Bytes, &op, &[1, 16, 96, 96], &[&[16, 16, 1, 1]], &[1, 16, 96, 96], &[]),
            ]
        }
        WorkKind::Depthwise => {
            let op = Op::onnx("Conv", 22);
            let each = |n| [("group", AttrValue::Int(n))];
            vec![
                probe(Launch, &op, &[1, 8, 3, 3], &[&[8, 1, 3, 3]], &[1, 8, 1, 1], &each(8)),
                probe(Flops, &op, &[1, 64, 28, 28], &[&[64, 1, 3, 3]], &[1, 64, 26, 26], &each(64)),
                probe(Bytes, &op, &[1, 16, 96, 96], &[&[16, 1, 1, 1]], &[1, 16, 96, 96], &each(16)),
            ]
        }
        WorkKind::Pooling => {
            let op = Op::onnx("MaxPool", 22);
            let window = [("kernel_shape", ints(&[2, 2])), ("strides", ints(&[2, 2]))];
            vec![
                probe(Launch, &op, &[1, 1, 2, 2], &[], &[1, 1, 1, 1], &window),
                probe(Flops, &op, &[1, 64, 28, 28], &[], &[1, 64, 14, 14], &window),
            ]
        }
        WorkKind::Reduction => {
            let (max, softmax) = (Op::onnx("GlobalMaxPool", 22), Op::onnx("Softmax", 13));
            vec![
                probe(Launch, &max, &[1, 1, 2, 2], &[], &[1, 1, 1, 1], &[]),
                // Rows as in attention.
                probe(Flops, &softmax, &[320, 40], &[], &[320, 40], &[]),
                probe(Bytes, &max, &[1, 64, 32, 32], &[], &[1, 64, 1, 1], &[]),
            ]
        }
        WorkKind::Elements => {
            let (sum, curve) = (Op::onnx("Add", 14), Op::onnx("Sigmoid", 13));
            vec![
                probe(Launch, &sum, &[2, 8], &[&[2, 1]], &[2, 8], &[]),
                probe(Flops, &curve, &[64, 1024], &[], &[64, 1024], &[]),
                probe(Bytes, &sum, &[64, 1024], &[&[64, 1]], &[64, 1024], &[]),
            ]
        }
        WorkKind::Chain => {
            let op = Op::onnx("Add", 14);
            let chain = |rate, before: &[&str], shape: &'static [usize], constant: &[usize]| {
                let before = before.iter().map(|name| Op::onnx(name, 14)).collect();
                // A multiplication by one would be removed, and there would be no chain.
                let constants = vec![filled(constant, 0.5)?];
                Ok(Probe { before, constants, ..probe(rate, &op, shape, &[], shape, &[])? })
            };
            let long = ["Mul", "Add", "Mul", "Div"];
            vec![
                chain(Launch, &long, &[2, 8], &[1]),
                chain(Flops, &long, &[64, 1024], &[1]),
                chain(Bytes, &["Mul"], &[64, 1024], &[64, 1024]),
            ]
        }
        WorkKind::Copying => {
            let op = Op::onnx("Concat", 13);
            // Interleaved rows: contiguous inputs would be written in place, without a launch.
            let axis = [("axis", AttrValue::Int(1))];
            vec![
                probe(Launch, &op, &[2, 16], &[&[2, 16]], &[2, 32], &axis),
                probe(Bytes, &op, &[64, 1024], &[&[64, 1024]], &[64, 2048], &axis),
            ]
        }
        WorkKind::Permutation => {
            let op = Op::onnx("Transpose", 25);
            let perm = [("perm", ints(&[1, 0]))];
            vec![
                probe(Launch, &op, &[2, 8], &[], &[8, 2], &perm),
                probe(Bytes, &op, &[256, 300], &[], &[300, 256], &perm),
            ]
        }
    }
    .into_iter()
    .collect()
}
