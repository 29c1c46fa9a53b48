//! Every fusion by NaN, infinities, zeros of both signs, subnormal and the largest numbers: what comes out is of the same
//! class with all passes as with none, on every instruction set of this machine.

use crate::every_device::{every_plugin, first_devices};
use crate::library::library;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::program::{AttrValue, Node, Op, Program, ValueId, catalogue};
use devbay_host::internals::core::tensor::F32;
use devbay_host::{
    Device, Model, PlanOptions, Policy, Requirements, Runtime, Session, SessionOptions, Tensor, TensorType,
};
use devbay_ops::formula::{self, Formula};
use std::sync::Arc;

const SPECIALS: &[f32] = &[
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    3.0,
    -3.0,
];

/// A program under construction.
#[derive(Default)]
struct Build {
    program: Program,
    inputs: Vec<(String, Tensor)>,
}

impl Build {
    /// An input of ordinary numbers with a special one here and there; of special ones alone if `every` is 1.
    fn input(&mut self, shape: &[usize], every: usize) -> ValueId {
        let n: usize = shape.iter().product();
        let turn = self.inputs.len();
        let ordinary = |at: usize| ((at * 37 + turn * 11) % 41) as f32 / 10.0 - 2.05;
        let special = |at: usize| SPECIALS[(at / every + turn) % SPECIALS.len()];
        let values: Vec<f32> =
            (0..n).map(|at| if at % every == 0 { special(at) } else { ordinary(at) }).collect();
        let name = format!("x{turn}");
        let id = self.program.add_typed(&name, TensorType::new(F32, shape));
        self.inputs.push((name, Tensor::from_elements(shape, &values).expect("a tensor")));
        id
    }

    /// An input as an image, which may come with its channels last.
    fn image(&mut self, shape: &[usize; 4], every: usize, is_last: bool) -> ValueId {
        let [n, c, h, w] = *shape;
        match is_last {
            false => self.input(shape, every),
            true => {
                let x = self.input(&[n, h, w, c], every);
                self.add("Transpose", &[x], &[("perm", AttrValue::Ints(vec![0, 3, 1, 2]))])
            }
        }
    }

    /// Ordinary numbers, of which none is zero.
    fn numbers(&mut self, shape: &[usize]) -> ValueId {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|at| ((at * 29) % 31) as f32 / 31.0 - 0.49).collect();
        self.program.add_constant("", Tensor::from_elements(shape, &values).expect("a tensor"))
    }

    fn number(&mut self, value: f32) -> ValueId {
        self.program.add_constant("", Tensor::from_elements(&[], &[value]).expect("a tensor"))
    }

    fn ints(&mut self, values: &[i64]) -> ValueId {
        self.program.add_constant("", Tensor::from_elements(&[values.len()], values).expect("a tensor"))
    }

    fn add(&mut self, op: &str, inputs: &[ValueId], attrs: &[(&str, AttrValue)]) -> ValueId {
        let output = self.program.add_value(Default::default());
        let op = Op::of(catalogue::find("", op).unwrap_or_else(|| panic!("no op {op}")));
        let mut node = Node::new(op, inputs.iter().copied().map(Some).collect(), vec![Some(output)]);
        attrs.iter().for_each(|(name, value)| node.set_attr(name, value.clone()));
        self.program.main.nodes.push(node);
        output
    }

    /// An activation by its name, with ordinary parameters.
    fn activate(&mut self, name: &str, x: ValueId) -> ValueId {
        match name {
            "" => x,
            "Clip" => {
                let limits = [self.number(-0.5), self.number(0.75)];
                self.add("Clip", &[x, limits[0], limits[1]], &[])
            }
            "Clip6" => {
                let limits = [self.number(0.0), self.number(6.0)];
                self.add("Clip", &[x, limits[0], limits[1]], &[])
            }
            "GeluTanh" => self.add("Gelu", &[x], &[("approximate", AttrValue::String("tanh".into()))]),
            "Silu" => {
                let gate = self.add("Sigmoid", &[x], &[]);
                self.add("Mul", &[x, gate], &[])
            }
            // A change of sign shows in the infinity that becomes of a zero.
            "Signs" => self.add("Reciprocal", &[x], &[]),
            name => self.add(name, &[x], &[]),
        }
    }

    fn done(mut self, what: impl Into<String>, result: ValueId) -> Case {
        let outputs = vec![result];
        self.program.value_mut(result).name = "y".into();
        self.program.main.inputs = (0..self.inputs.len())
            .map(|i| {
                let is_it = |id: &u32| *self.program.value(ValueId(*id)).name == *format!("x{i}");
                ValueId((0..).find(is_it).expect("an input"))
            })
            .collect();
        self.program.main.outputs = outputs;
        Case { what: what.into(), program: self.program, inputs: self.inputs }
    }
}

struct Case {
    what: String,
    program: Program,
    inputs: Vec<(String, Tensor)>,
}

const ACTIVATIONS: &[&str] =
    &["", "Relu", "LeakyRelu", "Clip", "Clip6", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "Silu"];

/// Convolutions: extents of the image and the weights, and groups.
const CONVOLUTIONS: &[([usize; 4], [usize; 4], i64)] = &[
    ([1, 3, 9, 13], [5, 3, 3, 3], 1),
    ([1, 3, 4, 5], [20, 3, 3, 3], 1),
    ([1, 40, 11, 12], [7, 40, 3, 3], 1),
    ([1, 9, 10, 13], [7, 9, 1, 1], 1),
    ([1, 4, 9, 12], [6, 2, 3, 3], 2),
    ([1, 3, 8, 17], [3, 1, 3, 3], 3),
    ([1, 2, 9, 19], [2, 1, 5, 5], 2),
];

fn tails() -> Vec<Case> {
    let mut cases = Vec::new();
    for activation in ACTIVATIONS {
        for (image, weights, groups) in CONVOLUTIONS {
            for (is_residual, is_last) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut build = Build::default();
                let x = build.image(image, 29, is_last);
                let (w, b) = (build.numbers(weights), build.numbers(&weights[..1]));
                let mut y = build.add("Conv", &[x, w, b], &[("group", AttrValue::Int(*groups))]);
                if is_residual {
                    let n = |i: usize| image[i] + 1 - weights[i];
                    let z = build.image(&[image[0], weights[0], n(2), n(3)], 3, is_last);
                    y = build.add("Add", &[y, z], &[]);
                }
                let mut y = build.activate(activation, y);
                if is_last {
                    y = build.add("Transpose", &[y], &[("perm", AttrValue::Ints(vec![0, 2, 3, 1]))]);
                }
                let order = if is_last { ", channels last" } else { "" };
                cases.push(build.done(format!("{activation} of Conv {image:?} {weights:?}{order}"), y));
            }
        }
        for [m, k, n] in [[1, 8, 8], [1, 16, 16], [1, 32, 32], [24, 7, 19], [13, 300, 50]] {
            for op in ["MatMul", "Gemm"] {
                let mut build = Build::default();
                // One special number in each row, or in every other one.
                let x = build.input(&[m, k], k + 1);
                let (w, b) = (build.numbers(&[k, n]), build.input(&[n], 3));
                let y = match op {
                    "Gemm" => build.add("Gemm", &[x, w, b], &[]),
                    _ => {
                        let y = build.add("MatMul", &[x, w], &[]);
                        build.add("Add", &[y, b], &[])
                    }
                };
                let y = build.activate(activation, y);
                cases.push(build.done(format!("{activation} of {op} {m} {k} {n}"), y));
            }
        }
    }
    cases
}

/// All of one element, with what fused ops have beside [`ACTIVATIONS`].
fn bends() -> impl Iterator<Item = &'static str> {
    let fused = formula::all().iter().filter(|formula| formula.row.is_fused && formula.n_operands == 1);
    let others = fused.map(Formula::name).filter(|name| !ACTIVATIONS.contains(name));
    ACTIVATIONS.iter().copied().chain(others).chain(["Signs"])
}

/// Each op between others that round nothing: numbers that cancel each other would show how each device rounds.
fn exact_neighbours() -> Vec<Case> {
    // A device may take a subnormal number for a zero, on whose other side these jump.
    let jumps = |bend: &&str| ["Ceil", "Floor", "Log", "Sqrt"].contains(bend);
    let one = |bend: &str| {
        let mut build = Build::default();
        let x = build.input(&[3, 33], 1);
        let negated = build.add("Neg", &[x], &[]);
        let bent = build.activate(bend, negated);
        let y = build.add("Neg", &[bent], &[]);
        build.done(format!("{bend} between signs"), y)
    };
    bends().filter(|bend| !jumps(bend)).map(one).collect()
}

fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for activation in bends() {
        for n in [1, 5, 33, 700] {
            let mut build = Build::default();
            let (x, y) = (build.input(&[3, n], 1), build.input(&[n], 1));
            let negated = build.add("Neg", &[x], &[]);
            let bent = build.activate(activation, negated);
            let larger = build.add("Max", &[bent, y], &[]);
            let sum = build.add("Add", &[larger, x], &[]);
            let smaller = build.add("Min", &[sum, y], &[]);
            let product = build.add("Mul", &[smaller, bent], &[]);
            cases.push(build.done(format!("{activation} among others, {n}"), product));
        }
    }
    cases
}

/// Returns the cases for `simplify` and the folds.
fn folds() -> Vec<Case> {
    let mut cases = Vec::new();
    for (op, constant) in
        [("Add", 0.0), ("Add", -0.0), ("Sub", 0.0), ("Sub", -0.0), ("Mul", 1.0), ("Div", 1.0), ("Mul", 0.0)]
    {
        for is_left in [false, true] {
            let mut build = Build::default();
            let (x, number) = (build.input(&[24], 1), build.number(constant));
            let y = build.add(op, &if is_left { [number, x] } else { [x, number] }, &[]);
            let y = build.activate("Signs", y);
            cases.push(build.done(format!("{op} {constant:?}, {is_left}"), y));
        }
    }
    for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"] {
        let mut build = Build::default();
        let (x, axes) = (build.input(&[24, 1], 1), build.ints(&[1]));
        let y = build.add(op, &[x, axes], &[("keepdims", AttrValue::Int(0))]);
        let y = build.activate("Signs", y);
        cases.push(build.done(op, y));
    }
    let mut build = Build::default();
    let x = build.input(&[24], 1);
    let y = build.add("Sub", &[x, x], &[]);
    cases.push(build.done("x - x", y));
    // Ops on a channel, behind a convolution and a product; a factor that makes weights vanish.
    for (op, factor) in
        [("Mul", 2.0), ("Mul", 0.0), ("Mul", 1e-38), ("Div", 4.0), ("Sub", 1.5), ("Add", -2.0)]
    {
        let mut build = Build::default();
        let (x, w, factor) =
            (build.input(&[1, 3, 7, 9], 23), build.numbers(&[4, 3, 2, 2]), build.number(factor));
        let y = build.add("Conv", &[x, w], &[]);
        let y = build.add(op, &[y, factor], &[]);
        let y = build.activate("Relu", y);
        cases.push(build.done(format!("Relu of {op} of Conv"), y));
    }
    // Zeros around an image, before weights that are finite and before one that is not.
    for weight in [0.5, f32::INFINITY] {
        let mut build = Build::default();
        let x = build.input(&[1, 1, 5, 6], 11);
        let pads = build.ints(&[0, 0, 1, 1, 0, 0, 0, 2]);
        let x = build.add("Pad", &[x, pads], &[]);
        let weights = Tensor::from_elements(&[1, 1, 2, 2], &[0.25, weight, -0.5, 1.0]).expect("a tensor");
        let weights = build.program.add_constant("", weights);
        let y = build.add("Conv", &[x, weights], &[]);
        cases.push(build.done(format!("Conv of Pad, {weight}"), y));
    }
    cases
}

/// Returns the cases in which many ops become one. The largest number here is half of the type's largest: with larger
/// ones the many ops overflow to infinity on the way.
fn patterns() -> Vec<Case> {
    let mut cases = Vec::new();
    let of_input = |cases: &mut Vec<Case>, what: &str, make: fn(&mut Build, ValueId) -> ValueId| {
        let mut build = Build::default();
        let x = build.input(&[5, 24], 1);
        let limits = [build.number(f32::MIN / 16.0), build.number(f32::MAX / 16.0)];
        // Infinities come back by a way that no pass knows.
        let infinite = build.add("IsInf", &[x], &[]);
        let within = build.add("Clip", &[x, limits[0], limits[1]], &[]);
        let x = build.add("Where", &[infinite, x, within], &[]);
        let y = make(&mut build, x);
        cases.push(build.done(what, y));
    };
    of_input(&mut cases, "a Gelu", |build, x| {
        let [root, one, half] = [std::f32::consts::SQRT_2, 1.0, 0.5].map(|number| build.number(number));
        let scaled = build.add("Div", &[x, root], &[]);
        let erf = build.add("Erf", &[scaled], &[]);
        let sum = build.add("Add", &[erf, one], &[]);
        let product = build.add("Mul", &[x, sum], &[]);
        build.add("Mul", &[product, half], &[])
    });
    of_input(&mut cases, "a Gelu by tanh", |build, x| {
        let [three, small, root, one, half] =
            [3.0, 0.044_715, 0.797_884_6, 1.0, 0.5].map(|number| build.number(number));
        let cube = build.add("Pow", &[x, three], &[]);
        let term = build.add("Mul", &[cube, small], &[]);
        let sum = build.add("Add", &[x, term], &[]);
        let scaled = build.add("Mul", &[root, sum], &[]);
        let tanh = build.add("Tanh", &[scaled], &[]);
        let sum = build.add("Add", &[tanh, one], &[]);
        let product = build.add("Mul", &[x, sum], &[]);
        build.add("Mul", &[product, half], &[])
    });
    of_input(&mut cases, "a HardSwish", |build, x| {
        let [zero, three, six] = [0.0, 3.0, 6.0].map(|number| build.number(number));
        let sum = build.add("Add", &[x, three], &[]);
        let ramp = build.add("Clip", &[sum, zero, six], &[]);
        let product = build.add("Mul", &[x, ramp], &[]);
        build.add("Div", &[product, six], &[])
    });
    // A special number a row, of which none is so large that its square is not finite.
    for n in [5, 64] {
        let mut build = Build::default();
        let x = build.input(&[12, n], n + 1);
        let limits = [build.number(-1e15), build.number(1e15)];
        let infinite = build.add("IsInf", &[x], &[]);
        let within = build.add("Clip", &[x, limits[0], limits[1]], &[]);
        let x = build.add("Where", &[infinite, x, within], &[]);
        let (axes, two, epsilon) = (build.ints(&[-1]), build.number(2.0), build.number(1e-5));
        let mean = build.add("ReduceMean", &[x, axes], &[]);
        let centred = build.add("Sub", &[x, mean], &[]);
        let squares = build.add("Pow", &[centred, two], &[]);
        let variance = build.add("ReduceMean", &[squares, axes], &[]);
        let shifted = build.add("Add", &[variance, epsilon], &[]);
        let deviation = build.add("Sqrt", &[shifted], &[]);
        let y = build.add("Div", &[centred, deviation], &[]);
        cases.push(build.done(format!("a LayerNormalization, {n}"), y));
    }
    // Attention: without a mask, with a finite one, with one that hides a key, and with one that hides all.
    for mask in
        [None, Some([0.0, -1.0, -1e9]), Some([0.0, f32::NEG_INFINITY, 0.0]), Some([f32::NEG_INFINITY; 3])]
    {
        for special in SPECIALS {
            for side in 0..3 {
                let mut build = Build::default();
                let sides = [0; 3].map(|_| build.input(&[2, 3, 4], 1));
                for (i, (_, tensor)) in build.inputs.iter_mut().enumerate() {
                    let ordinary = |at: usize| ((at * 7 + i) % 11) as f32 / 10.0 - 0.55;
                    let mut values: Vec<f32> = (0..24).map(ordinary).collect();
                    if i == side {
                        values[5] = *special;
                    }
                    *tensor = Tensor::from_elements(&[2, 3, 4], &values).expect("a tensor");
                }
                let [q, k, v] = sides;
                let k = build.add("Transpose", &[k], &[("perm", AttrValue::Ints(vec![0, 2, 1]))]);
                let mut scores = build.add("MatMul", &[q, k], &[]);
                let scale = build.number(0.5);
                scores = build.add("Mul", &[scores, scale], &[]);
                if let Some(mask) = mask {
                    let mask = Tensor::from_elements(&[1, 3], &mask).expect("a tensor");
                    let mask = build.program.add_constant("", mask);
                    scores = build.add("Add", &[scores, mask], &[]);
                }
                let weights = build.add("Softmax", &[scores], &[("axis", AttrValue::Int(-1))]);
                let y = build.add("MatMul", &[weights, v], &[]);
                cases.push(build.done(format!("attention, mask {mask:?}, {special:e} at {side}"), y));
            }
        }
    }
    cases
}

/// Of one class, and near if they are finite.
fn alike(found: f32, expected: f32) -> bool {
    match expected.is_finite() {
        true => (found - expected).abs() <= 1e-4 * expected.abs().max(1.0),
        false => found == expected || found.is_nan() && expected.is_nan(),
    }
}

/// Changes that passes made, and the result.
fn run(case: &Case, device: &Arc<Device>, others: &[Arc<Device>], passes: Switches) -> (usize, Vec<f32>) {
    let given: Vec<(&str, &Tensor)> =
        case.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let options = SessionOptions {
        plans: PlanOptions { passes, ..PlanOptions::default() },
        others: others.to_vec(),
        ..SessionOptions::default()
    };
    let model = Model::from_program(case.program.clone());
    let session = Session::with_options(&model, device, options).expect("a session");
    let plan = session.plan_for(&given).expect("a plan");
    let n = session.passes(&plan).iter().map(|applied| applied.changes).sum();
    let results = session.run(&given).expect("results");
    (n, results[0].elements::<f32>().expect("numbers of f32").to_vec())
}

/// A sentence on the first element that is not what it has to be.
fn difference(case: &Case, found: &[f32], expected: &[f32]) -> Option<String> {
    assert_eq!(found.len(), expected.len(), "{}", case.what);
    let at = found.iter().zip(expected).position(|(found, expected)| !alike(*found, *expected))?;
    Some(format!("{}: element {at} is {:e}, expected {:e}", case.what, found[at], expected[at]))
}

fn check(cases: &[Case], least: usize) {
    let mut n_isas = 0;
    for isa in ["baseline", "avx2", "avx512"] {
        let options = Runtime::builder().threads(1).plugin(library("cpu")).option("cpu", "isa", isa);
        let Ok(runtime) = options.build() else { continue };
        let Ok(choice) = runtime.choose(&Policy::Auto, &Requirements::default()) else { continue };
        n_isas += 1;
        let mut n_changed = 0;
        let mut wrong = Vec::new();
        for case in cases {
            let (_, expected) = run(case, &choice.device, &[], Switches::none());
            let (n, found) = run(case, &choice.device, &[], Switches::default());
            n_changed += usize::from(n > 0);
            wrong.extend(difference(case, &found, &expected));
        }
        assert!(wrong.is_empty(), "{} of {} on {isa}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
        assert!(n_changed >= least, "passes changed {n_changed} of {} programs", cases.len());
        eprintln!("{n_changed} of {} programs were changed, on {isa}", cases.len());
    }
    assert!(n_isas > 0, "no instruction set of this machine was tried");
}

/// Kernels of every plugin that the machine has a device for, and programs of compilers: as the processor has it without
/// any pass. One of each activation behind a convolution, a product, and among ops of single elements.
#[test]
fn every_device_has_the_same_specials() {
    let runtime = every_plugin();
    let devices = first_devices(&runtime);
    let (cpu, others) = devices.split_first().expect("a processor");
    let tails: Vec<Case> = tails();
    let an_activation = tails.len() / ACTIVATIONS.len();
    let convolutions = tails.iter().step_by(an_activation);
    let products = tails.iter().skip(an_activation - 2).step_by(an_activation);
    let bends = exact_neighbours();
    let cases: Vec<&Case> = convolutions.chain(products).chain(&bends).collect();
    let expected: Vec<Vec<f32>> = cases.iter().map(|case| run(case, cpu, &[], Switches::none()).1).collect();
    for device in others {
        let mut wrong = Vec::new();
        for (case, expected) in cases.iter().zip(&expected) {
            let (_, found) = run(case, device, std::slice::from_ref(cpu), Switches::default());
            wrong.extend(difference(case, &found, expected));
        }
        let name = device.name();
        assert!(wrong.is_empty(), "{} of {} on {name}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
        eprintln!("{} programs on {name}", cases.len());
    }
}

#[test]
fn tails_of_convolutions_and_products_lose_nothing() {
    let cases = tails();
    check(&cases, cases.len() * 8 / 10);
}

#[test]
fn elementwise_ops_that_are_fused_lose_nothing() {
    let cases = elementwise();
    check(&cases, cases.len());
}

#[test]
fn folds_lose_nothing() {
    check(&folds(), 8);
}

#[test]
fn patterns_lose_nothing() {
    let cases = patterns();
    check(&cases, 50);
}
