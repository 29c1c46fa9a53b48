//! Results that are parts of an operand are not made, and operands that are parts of a result are made there: what comes
//! out is what kernels give that are pinned, on devices in the host's memory and in their own.

use crate::library::library;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::section::StepKind;
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::{AttrValue, Node, Op, Program, Value, ValueId, text};
use devbay_host::internals::core::tensor::F32;
use devbay_host::internals::random::Random;
use devbay_host::{
    Device, ErrorKind, Model, PlanOptions, Runtime, Session, SessionOptions, Tensor, TensorType,
};
use std::collections::HashSet;
use std::sync::Arc;

/// The processor as two devices, inline in the host's memory and with a memory of its own, and a GPU.
fn runtime(threads: usize) -> Runtime {
    Runtime::builder()
        .threads(threads)
        .plugin(library("cpu"))
        .plugin(library("wgpu"))
        .option("cpu", "streams", "inline,async")
        .build()
        .expect("a runtime")
}

/// A device by its name; a GPU only where the machine has a driver, which the word `vulkan` in `DEVBAY_REQUIRE` asks for.
fn device(runtime: &Runtime, name: &str) -> Option<Arc<Device>> {
    let found = runtime.devices().iter().find(|device| device.name() == name).cloned();
    if found.is_none() {
        let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
        let required = required.split([',', ' ']).any(|word| word == "vulkan");
        assert!(name == "wgpu:0" && !required, "expected a device {name}");
        eprintln!("not run: there is no {name}");
    }
    found
}

/// A session on a device, with the processor behind it where the device is another, and nodes pinned to it.
fn session(
    runtime: &Runtime,
    on: &Arc<Device>,
    model: &Model,
    plans: &PlanOptions,
    pins: &[&str],
) -> Session {
    let others = device(runtime, "cpu:0").filter(|other| !Arc::ptr_eq(other, on)).into_iter().collect();
    let options = SessionOptions {
        others,
        pins: pins.iter().map(|&node| (node.to_owned(), Arc::clone(on))).collect(),
        plans: plans.clone(),
        ..SessionOptions::default()
    };
    Session::with_options(model, on, options).unwrap_or_else(|e| panic!("on {}: {e}", on.name()))
}

fn results(session: &Session, x: &Tensor) -> Vec<Vec<f32>> {
    let outputs = session.run(&[("x", x)]).expect("a run");
    outputs.iter().map(|output| output.elements::<f32>().expect("floats").to_vec()).collect()
}

/// Kernels of a plan by the ops that they run, sorted, and copies with their bytes.
fn launches(session: &Session, x: &Tensor) -> (Vec<String>, Vec<u64>) {
    let plan = session.plan_for(&[("x", x)]).expect("a plan");
    let kernels = plan.sections().flat_map(|section| {
        let kernels = section.kernels.iter().zip(&section.kinds);
        kernels
            .filter(|(_, kind)| **kind == StepKind::Kernel)
            .map(|(kernel, _)| kernel.split('@').next().unwrap_or_default().trim().to_owned())
    });
    let mut kernels: Vec<String> = kernels.collect();
    kernels.sort();
    (kernels, plan.copies().map(|(_, bytes)| bytes).collect())
}

/// Whole numbers, of which no sum is rounded.
fn numbers(shape: &[usize]) -> Tensor {
    let elements: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i % 97) as f32 - 40.0).collect();
    Tensor::from_elements(shape, &elements).expect("an input")
}

fn parsed(body: &str) -> Model {
    Model::from_program(text::parse(&format!("devbay-program 1\n\n{body}")).unwrap_or_else(|e| panic!("{e}")))
}

/// Two rows of 64 floats: each row begins where any of the devices may read.
const ROWS: &str = r#"program "rows"(%x: f32[2,64]) {
  %one = const i64[1] [1]
  %two = const i64[1] [2]
  %zero = const i64[1] [0]
  %three = const i64[1] [3]
  %nine = const i64[1] [9]
  %r: f32[2,64] = Relu@14(%x)
  %a: f32[1,64], %b: f32[1,64] = Split@18(%r) as "split" {axis = 0, num_outputs = 2}
  %c: f32[1,64] = Slice@13(%r, %one, %two, %zero, %one) as "slice"
  %d: f32[1,64] = Gather@13(%r, %zero) as "gather" {axis = 0}
  %e: f32[1,64] = Slice@13(%x, %one, %two, %zero, %one) as "of the input"
  %f: f32[1,6] = Slice@13(%b, %three, %nine, %one, %one) as "unaligned"
  %g: f32[1,64] = Mul@14(%a, %b)
  %h: f32[1,64] = Add@14(%c, %d)
  %i: f32[1,64] = Sub@14(%g, %h)
  %j: f32[1,64] = Add@14(%i, %e)
  %k: f32[1,6] = Neg@13(%f)
  %l: f32[2,64] = Neg@13(%r)
  %m: f32[1,64] = Slice@13(%l, %one, %two, %zero, %one) as "result"
  return %j, %k, %m
}
"#;

/// The nodes that may be views.
const NAMES: [&str; 5] = ["split", "slice", "gather", "of the input", "unaligned"];

#[test]
fn parts_of_an_operand_are_views_where_kernels_may_read_them() {
    let runtime = runtime(2);
    let (model, x) = (parsed(ROWS), numbers(&[2, 64]));
    let plans = PlanOptions { passes: Switches::none(), ..PlanOptions::default() };
    for name in ["cpu:0", "cpu:1", "wgpu:0"] {
        let Some(on) = device(&runtime, name) else { continue };
        let (viewed, made) =
            (session(&runtime, &on, &model, &plans, &[]), session(&runtime, &on, &model, &plans, &NAMES));
        assert_eq!(results(&viewed, &x), results(&made, &x), "on {name}");
        let count = |session: &Session, op: &str| {
            launches(session, &x).0.iter().filter(|kernel| kernel.contains(op)).count()
        };
        for (op, n) in [("Split", 1), ("Gather", 1), ("Slice", 4)] {
            assert_eq!(count(&made, op), n, "{op} on {name}, pinned");
        }
        // The result is made by its kernel; so are parts that begin between alignments, except in the host's memory.
        let n_slices = if name == "cpu:0" { 1 } else { 2 };
        for (op, n) in [("Split", 0), ("Gather", 0), ("Slice", n_slices)] {
            assert_eq!(count(&viewed, op), n, "{op} on {name}");
        }
    }
}

#[test]
fn operands_are_made_where_they_are_put_together() {
    // Nodes before a Concat, its operands, whether it has its kernel, and copies.
    let both = "  %both: f32[2,64] = Concat@13(%a, %b) {axis = 0}\n  \
                %first: f32[1,64] = Slice@13(%both, %zero, %one, %zero, %one)\n";
    let cases = [
        ("", "%a, %b", false, 0),
        ("", "%a, %b, %x", false, 1),
        ("", "%k, %b", false, 1),
        ("", "%a, %a", false, 1),
        // Two that no node here makes, and parts of another result by then.
        ("", "%x, %b, %k", true, 0),
        (both, "%b, %a", true, 0),
        (both, "%first", true, 0),
    ];
    let runtime = runtime(2);
    let x = numbers(&[1, 64]);
    let k: Vec<String> = (0..64).map(|i| format!("{i}.0")).collect();
    let k = k.join(", ");
    for (before, operands, has_kernel, n_copies) in cases {
        let n_operands = operands.split(',').count();
        let body = format!(
            "program \"together\"(%x: f32[1,64]) {{\n  %k = const f32[1,64] [{k}]\n  %zero = const i64[1] [0]\n  \
             %one = const i64[1] [1]\n  %a: f32[1,64] = Abs@13(%x)\n  %b: f32[1,64] = Neg@13(%x)\n{before}  \
             %c: f32[{n_operands},64] = Concat@13({operands}) as \"it\" {{axis = 0}}\n  \
             %y: f32[{n_operands},64] = Relu@14(%c)\n  return %y\n}}\n"
        );
        let model = parsed(&body);
        for name in ["cpu:0", "cpu:1", "wgpu:0"] {
            let Some(on) = device(&runtime, name) else { continue };
            let plans = PlanOptions { passes: Switches::none(), ..PlanOptions::default() };
            let joined = session(&runtime, &on, &model, &plans, &[]);
            let made = session(&runtime, &on, &model, &plans, &["it"]);
            assert_eq!(results(&joined, &x), results(&made, &x), "({operands}) on {name}");
            let (found, copies) = launches(&joined, &x);
            let kernels: &[&str] =
                if has_kernel { &["Abs", "Concat", "Neg", "Relu"] } else { &["Abs", "Neg", "Relu"] };
            assert_eq!(found, kernels, "({operands}) on {name}");
            assert_eq!(copies.len(), n_copies, "({operands}) on {name}");
            assert_eq!(launches(&made, &x).0, ["Abs", "Concat", "Neg", "Relu"], "({operands}) on {name}");
        }
    }
}

#[test]
fn a_part_that_another_device_reads_is_copied_without_the_rest() {
    let runtime = runtime(1);
    let body = r#"program "far"(%x: f32[64,64]) {
  %one = const i64[1] [1]
  %two = const i64[1] [2]
  %zero = const i64[1] [0]
  %r: f32[64,64] = Relu@14(%x)
  %a: f32[1,64] = Slice@13(%r, %one, %two, %zero, %one)
  %b: f32[64] = Squeeze@25(%a, %zero)
  %y: f32[64] = Neg@13(%b) as "far"
  return %y
}
"#;
    let (model, x) = (parsed(body), numbers(&[64, 64]));
    let (near, far) = (device(&runtime, "cpu:1").expect("it"), device(&runtime, "cpu:0").expect("it"));
    let options = SessionOptions {
        others: vec![Arc::clone(&far)],
        pins: vec![("far".to_owned(), far)],
        plans: PlanOptions { passes: Switches::none(), ..PlanOptions::default() },
        ..SessionOptions::default()
    };
    let session = Session::with_options(&model, &near, options).expect("a session");
    let expected: Vec<f32> =
        x.elements::<f32>().expect("floats")[64..128].iter().map(|x| -x.max(0.0)).collect();
    assert_eq!(results(&session, &x), [expected]);
    let (kernels, copies) = launches(&session, &x);
    assert_eq!(kernels, ["Neg", "Relu", "Slice"]);
    assert_eq!(copies, [64 * 64 * 4, 64 * 4]);
}

#[test]
fn parts_of_what_a_loop_carries_are_views() {
    let body = r#"program "carried"(%x: f32[2,64], %n: i64[]) {
  %y: f32[2,64] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %state: f32[2,64]) {
    %a: f32[1,64], %b: f32[1,64] = Split@18(%state) as "split" {axis = 0, num_outputs = 2}
    %s: f32[1,64] = Sub@14(%a, %b)
    %t: f32[1,64] = Neg@13(%a)
    %next: f32[2,64] = Concat@13(%s, %t) {axis = 0}
    return %go, %next
  }
  return %y
}
"#;
    let (model, x) = (parsed(body), numbers(&[2, 64]));
    for threads in [1, 3] {
        let runtime = runtime(threads);
        for name in ["cpu:0", "cpu:1", "wgpu:0"] {
            let Some(on) = device(&runtime, name) else { continue };
            for tasks in [Policy::Auto, Policy::Each] {
                let plans = PlanOptions { tasks, ..PlanOptions::default() };
                let session = session(&runtime, &on, &model, &plans, &[]);
                for trips in [0i64, 1, 2, 5] {
                    let n = Tensor::from_elements(&[], &[trips]).expect("a number");
                    let outputs = session.run(&[("x", &x), ("n", &n)]).expect("a run");
                    let mut expected = x.elements::<f32>().expect("floats").to_vec();
                    for _ in 0..trips {
                        let (a, b) = expected.split_at(64);
                        let next = a.iter().zip(b).map(|(a, b)| a - b).chain(a.iter().map(|a| -a));
                        expected = next.collect();
                    }
                    let found = outputs[0].elements::<f32>().expect("floats");
                    assert_eq!(found, expected, "{trips} on {name} with {threads} threads, {tasks:?}");
                }
            }
        }
    }
}

#[test]
fn a_position_out_of_bounds_is_refused() {
    let body = r#"program "outside"(%x: f32[2,64]) {
  %two = const i64[1] [2]
  %r: f32[2,64] = Relu@14(%x)
  %a: f32[1,64] = Gather@13(%r, %two) {axis = 0}
  %y: f32[1,64] = Neg@13(%a)
  return %y
}
"#;
    let (runtime, model) = (runtime(1), parsed(body));
    let on = device(&runtime, "cpu:0").expect("it");
    let session = Session::new(&model, &on);
    let run = session.and_then(|session| session.run(&[("x", &numbers(&[2, 64]))]));
    let error = run.map(drop).expect_err("an index out of bounds");
    assert!(error.kind() != ErrorKind::Internal, "{error}");
}

/// A program of matrices that are divided, changed and put together, as it grows.
struct Growing {
    program: Program,
    /// Each value with its rows and columns.
    values: Vec<(ValueId, usize, usize)>,
    /// Nodes that divide or put together.
    names: Vec<String>,
}

impl Growing {
    fn add(
        &mut self,
        name: &str,
        version: u32,
        inputs: &[ValueId],
        attrs: &[(&str, i64)],
        sizes: &[(usize, usize)],
    ) {
        let outputs: Vec<ValueId> = sizes.iter().map(|_| self.program.add_value(Value::default())).collect();
        let mut node = Node::new(
            Op::onnx(name, version),
            inputs.iter().copied().map(Some).collect(),
            outputs.iter().copied().map(Some).collect(),
        );
        node.name = format!("n{}", self.program.main.nodes.len()).into();
        for &(key, value) in attrs {
            node.set_attr(key, AttrValue::Int(value));
        }
        if matches!(name, "Split" | "Slice" | "Gather" | "Concat") {
            self.names.push(node.name.to_string());
        }
        self.program.main.nodes.push(node);
        self.values.extend(outputs.into_iter().zip(sizes).map(|(id, &(rows, columns))| (id, rows, columns)));
    }

    fn ints(&mut self, elements: &[i64]) -> ValueId {
        let tensor = Tensor::from_elements(&[elements.len()], elements).expect("a constant");
        self.program.add_constant("k", tensor)
    }

    fn grow(&mut self, random: &mut Random) {
        // New values are taken more often.
        let n = self.values.len();
        let at = n - 1 - random.below(n).min(random.below(n));
        let (x, rows, columns) = self.values[at];
        match random.below(7) {
            0 => {
                let (name, version) = [("Relu", 14), ("Neg", 13), ("Abs", 13)][random.below(3)];
                self.add(name, version, &[x], &[], &[(rows, columns)]);
            }
            1 => {
                let alike: Vec<ValueId> = self
                    .values
                    .iter()
                    .filter(|(_, r, c)| (*r, *c) == (rows, columns))
                    .map(|(id, ..)| *id)
                    .collect();
                let other = alike[random.below(alike.len())];
                self.add("Add", 14, &[x, other], &[], &[(rows, columns)]);
            }
            2 if rows > 1 => {
                let first = 1 + random.below(rows - 1);
                let sizes = self.ints(&[first as i64, (rows - first) as i64]);
                self.add(
                    "Split",
                    18,
                    &[x, sizes],
                    &[("axis", 0)],
                    &[(first, columns), (rows - first, columns)],
                );
            }
            3 => {
                let (axis, extent) = if rows > 1 && random.below(4) > 0 { (0, rows) } else { (1, columns) };
                let start = random.below(extent);
                let end = start + 1 + random.below(extent - start);
                let lists = [start as i64, end as i64, axis, 1].map(|i| self.ints(&[i]));
                let n = end - start;
                let size = if axis == 0 { (n, columns) } else { (rows, n) };
                self.add("Slice", 13, &[x, lists[0], lists[1], lists[2], lists[3]], &[], &[size]);
            }
            4 => {
                let position = self.ints(&[random.below(rows) as i64]);
                self.add("Gather", 13, &[x, position], &[("axis", 0)], &[(1, columns)]);
            }
            5 => {
                let shape = self.ints(&[columns as i64, rows as i64]);
                self.add("Reshape", 25, &[x, shape], &[], &[(columns, rows)]);
            }
            _ => {
                let like = |(_, _, c): &&(ValueId, usize, usize)| *c == columns;
                let alike: Vec<(ValueId, usize)> =
                    self.values.iter().filter(like).map(|(id, r, _)| (*id, *r)).collect();
                let mut parts = vec![(x, rows)];
                parts.extend((0..1 + random.below(2)).map(|_| alike[random.below(alike.len())]));
                let all_rows = parts.iter().map(|(_, rows)| rows).sum::<usize>();
                if all_rows <= 12 {
                    let inputs: Vec<ValueId> = parts.iter().map(|(id, _)| *id).collect();
                    self.add("Concat", 13, &inputs, &[("axis", 0)], &[(all_rows, columns)]);
                }
            }
        }
    }
}

/// A random program, and its nodes that divide or put together.
fn random_model(seed: u64) -> (Model, Vec<String>) {
    let mut random = Random(seed);
    let mut program = Program { name: "random".to_owned(), ..Program::default() };
    let x = program.add_typed("x", TensorType::new(F32, &[4, 64]));
    program.main.inputs = vec![x];
    let mut growing = Growing { program, values: vec![(x, 4, 64)], names: Vec::new() };
    for _ in 0..24 {
        growing.grow(&mut random);
    }
    let n = growing.values.len();
    let mut results: Vec<ValueId> =
        growing.values[n.saturating_sub(3)..].iter().map(|(id, ..)| *id).collect();
    results.push(growing.values[random.below(n)].0);
    results.dedup();
    // Removes unneeded nodes before nodes are pinned.
    let mut needed: HashSet<ValueId> = results.iter().copied().collect();
    for node in growing.program.main.nodes.iter().rev() {
        let name = &*node.name;
        match node.outputs.iter().flatten().any(|id| needed.contains(id)) {
            true => needed.extend(node.inputs.iter().flatten()),
            false => growing.names.retain(|known| known != name),
        }
    }
    growing.program.main.outputs = results;
    (Model::from_program(growing.program), growing.names)
}

/// Random programs on a device against the same whose dividing nodes are pinned, and so run as kernels.
fn check(name: &str, threads: usize, seeds: std::ops::Range<u64>) {
    let runtime = runtime(threads);
    let Some(on) = device(&runtime, name) else { return };
    let x = numbers(&[4, 64]);
    let (mut n_made, mut n_viewed) = (0, 0);
    for seed in seeds {
        let (model, names) = random_model(seed);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for tasks in [Policy::Auto, Policy::Each] {
            let passes = if seed % 2 == 0 { Switches::none() } else { Switches::default() };
            let plans = PlanOptions { passes, tasks, ..PlanOptions::default() };
            let (viewed, made) =
                (session(&runtime, &on, &model, &plans, &[]), session(&runtime, &on, &model, &plans, &names));
            let expected = results(&made, &x);
            for _ in 0..3 {
                assert_eq!(
                    results(&viewed, &x),
                    expected,
                    "program {seed} on {name}, {threads} threads, {tasks:?}"
                );
            }
            n_made += launches(&made, &x).0.len();
            n_viewed += launches(&viewed, &x).0.len();
        }
    }
    assert!(n_viewed < n_made, "expected fewer launches than {n_made}, found {n_viewed}");
}

#[test]
fn random_programs_in_the_hosts_memory() {
    check("cpu:0", 1, 0..150);
    check("cpu:0", 4, 150..300);
}

#[test]
fn random_programs_in_a_memory_of_their_own() {
    check("cpu:1", 2, 300..400);
}

#[test]
fn random_programs_on_a_gpu() {
    check("wgpu:0", 2, 400..415);
}
