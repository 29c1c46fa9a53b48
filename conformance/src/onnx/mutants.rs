//! Nodes that are almost right: ONNX's node tests with operands left out, operands too many, shapes of no elements or of
//! another rank, and sizes at their limits, run in a session on the CPU plugin.
//!
//! A model is to blame for its own content: each mutant runs, or gives a typed error that a user can read. A
//! panic, a crash, or an error that blames a plugin or this repository is a failure of the test. Operands that the op's
//! row in `devbay-ops` does not allow are an invalid model, whatever kernels would say.

use super::corpus::{self, NodeTest};
use super::index;
use devbay_host::internals::core::plan::section::Section;
use devbay_host::internals::core::program::{AttrValue, Program, Value, ValueId};
use devbay_host::internals::core::tensor::{I64, bytes_of, n_elements};
use devbay_host::internals::eager;
use devbay_host::internals::import::{from_bytes, read_tensor};
use devbay_host::{Error, ErrorKind, Model, Result, RunOptions, Runtime, Session, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A run ends after so long; what a mutant asks for may take for ever.
const DEADLINE: Duration = Duration::from_secs(2);
/// Memory of runs that are not tried.
const BYTES_MAX: usize = 4 << 20;
/// Node tests of an op, at most.
const SEEDS_MAX: usize = 3;

/// A node with its operands' data.
#[derive(Clone)]
struct Seed {
    op: &'static str,
    program: Program,
    /// Of each of the program's inputs.
    inputs: Vec<Tensor>,
}

/// Node tests of one node each whose op has a row, the ones with most operands first.
fn seeds() -> Vec<Seed> {
    let rows = || devbay_ops::all().filter(|row| row.domain.is_empty());
    let of_one = index().iter().filter(|(_, about)| about.ops.len() == 1 && !about.expanded);
    let names: BTreeSet<&str> = of_one.map(|(name, _)| name.as_str()).collect();
    let mut by_op: BTreeMap<&'static str, Vec<Seed>> = BTreeMap::new();
    for test in corpus::load(&names).values() {
        let Some((program, inputs)) = read(test) else { continue };
        let node = &program.main.nodes[0];
        let Some(row) = rows().find(|row| node.op.is(row.name)) else { continue };
        by_op.entry(row.name).or_default().push(Seed { op: row.name, program, inputs });
    }
    let n_operands = |seed: &Seed| {
        let node = &seed.program.main.nodes[0];
        (node.inputs.iter().flatten().count(), node.outputs.len(), node.attrs.len())
    };
    for seeds in by_op.values_mut() {
        seeds.sort_by_key(|seed| std::cmp::Reverse(n_operands(seed)));
        seeds.dedup_by_key(|seed| n_operands(seed));
        seeds.truncate(SEEDS_MAX);
    }
    by_op.into_values().flatten().collect()
}

/// Reads a test of one node without regions, whose inputs are tensors.
fn read(test: &NodeTest) -> Option<(Program, Vec<Tensor>)> {
    let program = from_bytes(test.model.clone(), None).ok()?;
    let [node] = &program.main.nodes[..] else { return None };
    let set = test.sets.values().next()?;
    let inputs: Vec<Tensor> =
        set.inputs.values().map(|bytes| read_tensor(bytes.clone()).ok()).collect::<Option<_>>()?;
    (node.regions.is_empty() && inputs.len() == program.main.inputs.len()).then_some((program, inputs))
}

impl Seed {
    /// As it is, but for its integers, which become constants: so a kernel is asked when the session is planned.
    fn with_constants(mut self) -> Self {
        let of_sizes: Vec<bool> =
            self.inputs.iter().map(|x| x.dtype() == I64 && x.n_elements() < 9).collect();
        let mut kept = Vec::new();
        for (i, id) in std::mem::take(&mut self.program.main.inputs).into_iter().enumerate() {
            if of_sizes[i] {
                let value = self.program.value_mut(id);
                value.ty = Some(self.inputs[i].tensor_type());
                value.constant = Some(self.inputs[i].clone());
            } else {
                self.program.main.inputs.push(id);
                kept.push(self.inputs[i].clone());
            }
        }
        self.inputs = kept;
        self
    }

    /// With other operands: positions of present ones, so that what was position i is the value that stood there.
    fn with_inputs(&self, change: impl FnOnce(&mut Vec<Option<ValueId>>)) -> Self {
        let mut seed = self.clone();
        change(&mut seed.program.main.nodes[0].inputs);
        seed
    }

    /// With other results, all of which the model gives.
    fn with_outputs(&self, change: impl FnOnce(&mut Program, &mut Vec<Option<ValueId>>)) -> Self {
        let mut seed = self.clone();
        let mut outputs = std::mem::take(&mut seed.program.main.nodes[0].outputs);
        change(&mut seed.program, &mut outputs);
        seed.program.main.outputs = outputs.iter().copied().flatten().collect();
        seed.program.main.nodes[0].outputs = outputs;
        // The test's expectations of results no longer hold.
        for id in seed.program.main.outputs.clone() {
            seed.program.value_mut(id).ty = None;
        }
        seed
    }

    /// With another tensor in the place of an input, or of a constant.
    fn with_tensor(&self, id: ValueId, tensor: Tensor) -> Self {
        let mut seed = self.with_outputs(|_, _| ());
        let ty = tensor.tensor_type();
        match seed.program.main.inputs.iter().position(|&input| input == id) {
            Some(i) => seed.inputs[i] = tensor,
            None => seed.program.value_mut(id).constant = Some(tensor),
        }
        seed.program.value_mut(id).ty = Some(ty);
        seed
    }

    fn with_attr(&self, name: &str, value: AttrValue) -> Self {
        let mut seed = self.with_outputs(|_, _| ());
        seed.program.main.nodes[0].set_attr(name, value);
        seed
    }

    /// Returns the tensor that an operand is.
    fn tensor(&self, id: ValueId) -> Option<Tensor> {
        let given = self.program.main.inputs.iter().position(|&input| input == id);
        given.map(|i| self.inputs[i].clone()).or_else(|| self.program.constant(id).cloned())
    }
}

/// Zeros of a shape, or what fits of the tensor's own elements.
fn reshaped(tensor: &Tensor, shape: &[usize]) -> Option<Tensor> {
    let n = n_elements(shape).filter(|&n| n < 1 << 16)?;
    let mut bytes = tensor.bytes().to_vec();
    bytes.resize(bytes_of(tensor.dtype(), n)?, 0);
    Tensor::from_bytes(tensor.dtype(), shape, &bytes).ok()
}

/// Mutants of the number and presence of operands.
fn of_arity(seed: &Seed) -> Vec<(String, Seed)> {
    let node = &seed.program.main.nodes[0];
    let (n_inputs, n_outputs) = (node.inputs.len(), node.outputs.len());
    let mut mutants = Vec::new();
    let mut add = |what: String, seed: Seed| mutants.push((what, seed));
    for i in 0..n_inputs {
        add(format!("input {i} absent"), seed.with_inputs(|inputs| inputs[i] = None));
        add(format!("{i} inputs"), seed.with_inputs(|inputs| inputs.truncate(i)));
    }
    add(
        "an extra input".to_owned(),
        seed.with_inputs(|inputs| {
            let first = inputs.first().copied().flatten();
            inputs.push(first);
        }),
    );
    add("nothing absent".to_owned(), seed.clone());
    add("an extra absent input".to_owned(), seed.with_inputs(|inputs| inputs.push(None)));
    for i in 0..n_outputs {
        add(format!("output {i} absent"), seed.with_outputs(|_, outputs| outputs[i] = None));
        add(format!("{i} outputs"), seed.with_outputs(|_, outputs| outputs.truncate(i)));
    }
    for more in 1..=3 {
        let widened = seed.with_outputs(|program, outputs| {
            outputs.extend((0..more).map(|_| Some(program.add_value(Value::default()))));
        });
        add(format!("{more} extra outputs"), widened);
    }
    mutants
}

/// Mutants of shapes and contents.
fn of_operands(seed: &Seed) -> Vec<(String, Seed)> {
    let mut mutants = Vec::new();
    let ids: BTreeSet<ValueId> = seed.program.main.nodes[0].inputs.iter().copied().flatten().collect();
    for id in ids {
        let Some(tensor) = seed.tensor(id) else { continue };
        let shape = tensor.shape().to_vec();
        let mut shapes =
            vec![vec![], vec![0], vec![1], [&[1], &shape[..]].concat(), [&shape[..], &[1]].concat()];
        for axis in 0..shape.len() {
            for extent in [0, 1, shape[axis] + 1] {
                let mut other = shape.clone();
                other[axis] = extent;
                shapes.push(other);
            }
            shapes.push([&shape[..axis], &shape[axis + 1..]].concat());
        }
        shapes.push(vec![0; shape.len()]);
        for shape in shapes {
            if let Some(other) = reshaped(&tensor, &shape) {
                mutants.push((format!("%{} of {shape:?}", id.0), seed.with_tensor(id, other)));
            }
        }
        if tensor.dtype() == I64 && tensor.n_elements() < 9 {
            for value in [0, -1, 1, 7, 1 << 40, i64::MIN, i64::MAX] {
                let other = Tensor::from_elements(tensor.shape(), &vec![value; tensor.n_elements()]);
                if let Ok(other) = other {
                    mutants.push((format!("%{} of {value}", id.0), seed.with_tensor(id, other)));
                }
            }
        }
    }
    // All of them without elements at once.
    let mut empty = seed.clone();
    for id in seed.program.main.inputs.clone() {
        if let Some(other) = seed.tensor(id).and_then(|x| reshaped(&x, &vec![0; x.shape().len()])) {
            empty = empty.with_tensor(id, other);
        }
    }
    mutants.push(("no elements".to_owned(), empty));
    mutants
}

/// Attributes that tests need not have, of ops that slide windows, divide or count.
const MORE_INTS: &[(&str, &[&str])] = &[
    (
        "axis",
        &[
            "ArgMax",
            "Concat",
            "DequantizeLinear",
            "Gather",
            "LayerNormalization",
            "QuantizeLinear",
            "Softmax",
            "Split",
            "TopK",
        ],
    ),
    ("group", &["Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv"]),
    ("block_size", &["DequantizeLinear", "QuantizeLinear"]),
    ("hidden_size", &["GRU", "LSTM", "RNN"]),
];
const WINDOWS: &[&str] = &[
    "AveragePool",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "DeformConv",
    "LpPool",
    "MaxPool",
    "QLinearConv",
];

/// Mutants of attributes.
fn of_attributes(seed: &Seed) -> Vec<(String, Seed)> {
    // Nothing between a few and more than any memory: a large size that fits takes time, and is no fault.
    const NUMBERS: &[i64] = &[0, -1, 2, 3, 1 << 40, i64::MIN, i64::MAX];
    let mut attrs = seed.program.main.nodes[0].attrs.clone();
    let has = |attrs: &[(std::sync::Arc<str>, AttrValue)], name: &str| {
        attrs.iter().any(|(known, _)| &**known == name)
    };
    for (name, ops) in MORE_INTS {
        if ops.contains(&seed.op) && !has(&attrs, name) {
            attrs.push(((*name).into(), AttrValue::Int(1)));
        }
    }
    if WINDOWS.contains(&seed.op) {
        for (name, n) in [("pads", 4), ("strides", 2), ("dilations", 2), ("kernel_shape", 2)] {
            if !has(&attrs, name) {
                attrs.push((name.into(), AttrValue::Ints(vec![1; n])));
            }
        }
    }
    let mut mutants = Vec::new();
    let mut add = |name: &str, value: AttrValue| {
        mutants.push((format!("{name} = {value:?}"), seed.with_attr(name, value)));
    };
    for (name, value) in &attrs {
        match value {
            // The number of samples of a region only costs time, which deadlines bound.
            AttrValue::Int(_) if &**name == "sampling_ratio" => {}
            AttrValue::Int(_) => NUMBERS.iter().for_each(|&x| add(name, AttrValue::Int(x))),
            AttrValue::Ints(list) => {
                add(name, AttrValue::Ints(Vec::new()));
                add(name, AttrValue::Ints([&list[..], &[1]].concat()));
                for i in 0..list.len() {
                    for &x in NUMBERS {
                        let mut other = list.clone();
                        other[i] = x;
                        add(name, AttrValue::Ints(other));
                    }
                }
            }
            AttrValue::Float(_) => {
                for x in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e38] {
                    add(name, AttrValue::Float(x));
                }
            }
            AttrValue::String(_) => {
                add(name, AttrValue::String(String::new()));
                add(name, AttrValue::String("no such word".to_owned()));
            }
            _ => add(name, AttrValue::Int(0)),
        }
        // Another kind than the op has.
        add(name, AttrValue::String("text".to_owned()));
        add(name, AttrValue::Float(0.5));
    }
    mutants
}

/// A session and a run of it.
fn run(seed: &Seed, runtime: &Runtime) -> Result<()> {
    let model = Model::from_program(seed.program.clone());
    let session = Session::new(&model, &runtime.devices()[0])?;
    let names: Vec<String> = session.inputs().iter().map(|port| port.name.to_string()).collect();
    let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&seed.inputs).collect();
    let plan = session.plan_for(&given)?;
    let bytes = |section: &Section| {
        section.results.iter().fold(section.memory.arena, |sum, (ty, _)| sum.saturating_add(ty.size))
    };
    if plan.sections().any(|section| bytes(section) > BYTES_MAX) {
        return Ok(());
    }
    session.run_with(&given, &RunOptions { deadline: Some(DEADLINE), ..RunOptions::default() }).map(drop)
}

/// Returns the fault of an answer; None if it is one that a model may have.
fn fault(seed: &Seed, answer: std::thread::Result<Result<()>>) -> Option<String> {
    let node = &seed.program.main.nodes[0];
    let row = devbay_ops::find("", seed.op)?;
    let arity = row.check(&node.inputs, &node.outputs);
    let error: Error = match (answer, arity) {
        (Err(panic), _) => {
            let text = panic.downcast_ref::<String>().cloned();
            return Some(format!("panicked: {}", text.unwrap_or_default()));
        }
        (Ok(Ok(())), Ok(())) => return None,
        (Ok(Ok(())), Err(fault)) => return Some(format!("ran, although {fault}")),
        (Ok(Err(error)), Err(fault)) => {
            let says = error.kind() == ErrorKind::InvalidModel && error.text().contains(&fault.to_string());
            return (!says).then(|| format!("expected an invalid model, {fault}; found {error:?}"));
        }
        (Ok(Err(error)), Ok(())) => error,
    };
    let of_others = [
        ErrorKind::Internal,
        ErrorKind::PluginBroken,
        ErrorKind::PluginFailed,
        ErrorKind::PluginPoisoned,
        ErrorKind::Refused,
    ];
    if of_others.contains(&error.kind()) {
        return Some(format!("{error:?}"));
    }
    // As Rust prints its own values.
    let debug = ["Some(", "None", "Known(", "Unknown(", "DType", "Dim(", " {", "Ok(", "Err("];
    debug.iter().any(|words| error.text().contains(words)).then(|| format!("debug text: {error}"))
}

/// Runs all mutants that `mutate` makes of all seeds.
fn check(mutate: fn(&Seed) -> Vec<(String, Seed)>, n_least: usize) {
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    let runtime = Runtime::builder().threads(1).link_all(linked).build();
    let runtime = runtime.expect("a runtime");
    std::panic::set_hook(Box::new(|_| ()));
    let (mut n, mut ops, mut faults) = (0, BTreeSet::new(), Vec::new());
    for seed in seeds() {
        if let Err(error) = run(&seed, &runtime) {
            assert_eq!(error.kind(), ErrorKind::UnsupportedOp, "{} as it is: {error}", seed.op);
            continue;
        }
        ops.insert(seed.op);
        for seed in [seed.clone(), seed.clone().with_constants()] {
            for (what, mutant) in mutate(&seed) {
                n += 1;
                if std::env::var_os("DEVBAY_TEST_VERBOSE").is_some() {
                    eprintln!("{}: {what}", seed.op);
                }
                let answer = catch_unwind(AssertUnwindSafe(|| run(&mutant, &runtime)));
                if let Some(fault) = fault(&mutant, answer) {
                    let types: Vec<TensorType> = mutant.inputs.iter().map(Tensor::tensor_type).collect();
                    let types: Vec<String> = types.iter().map(ToString::to_string).collect();
                    faults.push(format!("{}, {what}, given {}: {fault}", seed.op, types.join(" ")));
                }
            }
        }
        assert!(!runtime.plugins()[0].is_poisoned(), "{} poisoned the plugin", seed.op);
    }
    let _ = std::panic::take_hook();
    assert!(ops.len() > 140 && n >= n_least, "{n} mutants of {} ops", ops.len());
    assert!(faults.is_empty(), "{} of {n} mutants:\n{}", faults.len(), faults.join("\n"));
}

/// Checks that kernels of the CPU plugin require what their ops require, no more and no less.
#[test]
fn descriptors_of_the_processor_have_the_ops_operands() {
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    let runtime = Runtime::builder().threads(1).link_all(linked).build();
    let runtime = runtime.expect("a runtime");
    let mut n = 0;
    for kernel in runtime.plugins()[0].about().kernels.iter() {
        let Some(row) = devbay_ops::find(&kernel.domain, &kernel.op) else { continue };
        let name = format!("{} {}", kernel.op, kernel.since_version);
        row.check_counts(kernel.n_inputs, kernel.n_outputs).unwrap_or_else(|words| panic!("{name}: {words}"));
        for (operands, (min, max)) in [(row.inputs, kernel.n_inputs), (row.outputs, kernel.n_outputs)] {
            // Some are for a certain number of operands of an op that takes any.
            let is_for_a_number = operands.n_max().is_none() && min == max;
            assert!(
                is_for_a_number || min as usize == operands.n_min(),
                "{name}: requires {min} of {operands:?}"
            );
        }
        n += 1;
    }
    assert!(n > 150, "{n} kernels");
}

#[test]
fn operands_that_an_op_does_not_have_are_an_invalid_model() {
    check(of_arity, 2_000);
}

#[test]
fn shapes_and_sizes_of_any_kind_are_answered() {
    check(of_operands, 5_000);
}

#[test]
fn attributes_of_any_kind_are_answered() {
    check(of_attributes, 5_000);
}

/// Makes a tensor of one number.
type Number<'a, X> = dyn Fn(X) -> Tensor + 'a;
/// Makes a node's operands of scales and zero points.
type Inputs<'a> = dyn Fn(&Number<'_, f32>, &Number<'_, u8>) -> Vec<Tensor> + 'a;

/// Exporters write a scale as a scalar and its zero point as a vector of one, or the reverse, and leave zero points out.
#[test]
fn one_number_is_a_scalar_or_a_vector() {
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    let runtime = Runtime::builder().threads(1).link_all(linked).build();
    let runtime = runtime.expect("a runtime");
    let device = &runtime.devices()[0];
    let tensor = |shape: &[usize], bytes: &[u8]| Tensor::from_elements(shape, bytes).expect("it fits");
    let x = Tensor::from_elements(&[2, 3], &[0.0f32, 1.0, 2.0, -1.0, 0.5, 400.0]).expect("it fits");
    let bytes = tensor(&[2, 3], &[0, 1, 2, 3, 128, 255]);
    let square = tensor(&[2, 2], &[1, 2, 3, 4]);
    let image = tensor(&[1, 1, 2, 2], &[1, 2, 3, 4]);
    let shapes: [&[usize]; 2] = [&[], &[1]];
    // Every way to write the numbers of a node gives the same as the first.
    let check = |op: &str, inputs: &Inputs<'_>| {
        let mut first: Option<Vec<u8>> = None;
        for scale_shape in shapes {
            for zero_shape in shapes {
                let scale = |x: f32| Tensor::from_elements(scale_shape, &[x]).expect("it fits");
                let zero = |x: u8| Tensor::from_elements(zero_shape, &[x]).expect("it fits");
                let inputs = inputs(&scale, &zero);
                let inputs: Vec<&Tensor> = inputs.iter().collect();
                let found = eager::run(device, op, &[], &inputs, 1);
                let found = found.unwrap_or_else(|error| panic!("{op}: {error}"))[0].bytes().to_vec();
                assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{op}");
            }
        }
    };
    check("QuantizeLinear", &|scale, zero| vec![x.clone(), scale(0.5), zero(3)]);
    check("QuantizeLinear", &|scale, _| vec![x.clone(), scale(0.5)]);
    check("DequantizeLinear", &|scale, zero| vec![bytes.clone(), scale(0.5), zero(3)]);
    check("DequantizeLinear", &|scale, _| vec![bytes.clone(), scale(0.5)]);
    check("MatMulInteger", &|_, zero| vec![square.clone(), square.clone(), zero(1), zero(2)]);
    check("ConvInteger", &|_, zero| vec![image.clone(), image.clone(), zero(1), zero(2)]);
    let product = |of: &Tensor, scale: &Number<'_, f32>, zero: &Number<'_, u8>| {
        vec![of.clone(), scale(0.5), zero(1), of.clone(), scale(0.25), zero(2), scale(2.0), zero(7)]
    };
    check("QLinearMatMul", &|scale, zero| product(&square, scale, zero));
    check("QLinearConv", &|scale, zero| product(&image, scale, zero));
}
