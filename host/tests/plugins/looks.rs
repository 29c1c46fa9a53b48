//! Long work looks for cancellation, and often enough. A flag counts looks instead of a clock.
//!
//! A first pass counts the looks of a phase; then the flag ends the work at some of them, and the phase must return an
//! error each time, whatever it was in the middle of, and leave nothing wrong behind.

use crate::library::library;
use devbay_core::cancel::Cancel;
use devbay_core::error::{ErrorKind, Result};
use devbay_core::program::catalogue;
use devbay_core::tensor::{F32, I64, TensorType};
use devbay_core::{DType, Tensor};
use devbay_host::internals::import;
use devbay_host::{Model, Policy, Requirements, Runtime, Session};
use std::fmt::Write;

/// Number of looks per phase at which the flag ends the work.
const SAMPLES: u32 = 12;
/// Looks that a flag has which does not end anything.
const MANY: u32 = 1 << 30;

fn runtime(threads: usize) -> Runtime {
    Runtime::builder().threads(threads).plugin(library("cpu")).build().unwrap()
}

fn session(runtime: &Runtime, model: &Model) -> Result<Session> {
    let device = runtime.choose(&Policy::Auto, &Requirements::default())?.device;
    Session::new(model, &device)
}

/// Expects a phase to look at least so often, and to end at whichever look the flag is set.
fn check<T>(what: &str, looks_min: u32, phase: &dyn Fn() -> Result<T>) {
    let counted = Cancel::after_looks(MANY);
    Cancel::over(Some(&counted), || phase().map(drop)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let looks = MANY - counted.looks_left().expect("it was not set");
    assert!(looks >= looks_min, "{what}: {looks} looks, expected {looks_min} at least");
    for sample in 0..SAMPLES.min(looks) {
        let at = (u64::from(looks) * u64::from(sample) / u64::from(SAMPLES.min(looks))) as u32;
        let ended = Cancel::over(Some(&Cancel::after_looks(at)), || phase().map(drop));
        let kind = ended.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Cancelled), "{what}: ended at look {at} of {looks}");
    }
    phase().unwrap_or_else(|error| panic!("{what}: afterwards {error}"));
}

/// Graphs of about `n` nodes that no pass makes small.
fn graph(shape: &str, n: usize) -> String {
    let mut text = format!("devbay-program 1\n\nprogram \"{shape}\"(%x: f32[4]) {{\n");
    let node = |text: &mut String, i: usize, operands: &[String]| {
        let line = match operands {
            [a] => format!("  %n{i}: f32[4] = LeakyRelu@16({a}) {{alpha = {:?}}}", 0.25 + i as f32 / 65536.0),
            [a, b] => format!("  %n{i}: f32[4] = Add@14({a}, {b})"),
            all => format!("  %n{i}: f32[4] = Sum@13({})", all.join(", ")),
        };
        writeln!(text, "{line}").unwrap();
    };
    let made = |i: usize| format!("%n{i}");
    let last = match shape {
        "chain" => {
            (0..n).for_each(|i| node(&mut text, i, &[i.checked_sub(1).map_or("%x".to_owned(), made)]));
            n - 1
        }
        "wide" => {
            (0..n).for_each(|i| node(&mut text, i, &["%x".to_owned()]));
            node(&mut text, n, &(0..n).map(made).collect::<Vec<_>>());
            n
        }
        _ => {
            let leaves = n / 2;
            (0..leaves).for_each(|i| node(&mut text, i, &["%x".to_owned()]));
            (0..leaves - 1).for_each(|i| node(&mut text, leaves + i, &[made(2 * i), made(2 * i + 1)]));
            2 * leaves - 2
        }
    };
    write!(text, "  return %n{last}\n}}\n").unwrap();
    text
}

#[test]
fn import_passes_and_planning_look_at_every_node() {
    const N: usize = 600;
    let runtime = runtime(2);
    for shape in ["chain", "wide", "tree"] {
        let text = graph(shape, N);
        let read = || import::from_bytes(text.clone().into_bytes(), None);
        check(&format!("{shape}: import"), 2 * (N as u32 - 1), &read);
        // A model of its own each time: nothing is there yet.
        let plan = || session(&runtime, &Model::from_program(read()?));
        check(&format!("{shape}: import and planning"), 8 * (N as u32 - 1), &plan);
    }
}

/// A program of one node on inputs of these types.
fn one_node(op: &str, inputs: &[&str], attrs: &str, output: &str) -> String {
    let version = catalogue::find("", op).expect("the catalogue has it").version;
    let given: Vec<String> = inputs.iter().enumerate().map(|(i, ty)| format!("%x{i}: {ty}")).collect();
    let operands: Vec<String> = (0..inputs.len()).map(|i| format!("%x{i}")).collect();
    format!(
        "devbay-program 1\n\nprogram \"\"({}) {{\n  %y: {output} = {op}@{version}({}){attrs}\n  return %y\n}}\n",
        given.join(", "),
        operands.join(", ")
    )
}

/// Content of an input: boxes apart from each other, indices 0, and small numbers.
fn content(ty: &TensorType) -> Tensor {
    let shape = ty.known_shape().unwrap();
    let n: usize = shape.iter().product();
    let dtype: DType = ty.dtype;
    if dtype == I64 {
        return Tensor::from_elements(&shape, &vec![if n == 1 { 2000i64 } else { 0 }; n]).unwrap();
    }
    assert_eq!(dtype, F32);
    let boxes = shape.last() == Some(&4) && shape.len() == 3;
    let number = |i: usize| match boxes {
        true => [0.0, 2.0 * (i / 4) as f32, 1.0, 2.0 * (i / 4) as f32 + 1.0][i % 4],
        // Without a pattern: a matrix of them has a determinant that takes all of its columns.
        false => ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 22) as f32,
    };
    Tensor::from_elements(&shape, &(0..n).map(number).collect::<Vec<_>>()).unwrap()
}

#[test]
fn kernels_look_within_a_chunk() {
    let text = [
        one_node(
            "RoiAlign",
            &["f32[1,1,8,8]", "f32[1,4]", "i64[1]"],
            " {sampling_ratio = 2048, output_height = 1, output_width = 1}",
            "f32[1,1,1,1]",
        )
        // The one index is that of the one image.
        .replace("%x2: i64[1]", "%x3: i64[0]")
        .replace("{\n  %y", "{\n  %x2 = const i64[1] [0]\n  %y"),
        one_node("Einsum", &["f32[400]", "f32[400]", "f32[400]"], " {equation = \"i,j,k->\"}", "f32[]"),
        one_node("MaxPool", &["f32[1,1,300,300]"], " {kernel_shape = [128, 128]}", "f32[1,1,173,173]"),
        one_node("AveragePool", &["f32[1,1,300,300]"], " {kernel_shape = [128, 128]}", "f32[1,1,173,173]"),
        one_node("Conv", &["f32[1,1,300,300]", "f32[1,1,128,128]"], "", "f32[1,1,173,173]"),
        one_node("Det", &["f32[600,600]"], "", "f32[]"),
        one_node("LpPool", &["f32[1,1,150,150]"], " {kernel_shape = [64, 64]}", "f32[1,1,87,87]"),
    ];
    let runtime = runtime(1);
    for text in text {
        let what = text.lines().find(|line| line.contains("%y:")).unwrap_or_default().trim().to_owned();
        check_run(&runtime, &what, &text);
    }
}

/// Expects a run of a program to look eight times at least, and to end at whichever look.
fn check_run(runtime: &Runtime, what: &str, text: &str) {
    let program =
        import::from_bytes(text.to_owned().into_bytes(), None).unwrap_or_else(|e| panic!("{text}{e}"));
    let model = Model::from_program(program);
    let session = session(runtime, &model).unwrap_or_else(|error| panic!("{what}: {error}"));
    let inputs: Vec<(String, Tensor)> = session
        .inputs()
        .iter()
        .map(|port| (port.name.to_string(), content(port.ty.as_ref().unwrap())))
        .collect();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    check(what, 8, &|| session.run(&given));
}

/// A program of one node with constants, on one input of numbers.
fn with_constants(input: &str, constants: &str, call: &str, results: &str) -> String {
    format!(
        "devbay-program 1\n\nprogram \"\"({input}) {{\n{constants}  {results} = {call}\n  return {results}\n}}\n"
    )
}

/// Long lists are sorted in pieces, rows are resized in pieces, and a block of attention looks between keys.
#[test]
fn sorts_resizes_and_attention_look_within_a_chunk() {
    let text = [
        with_constants("%x: f32[3000000]", "  %k = const i64[1] [5]\n", "TopK@24(%x, %k)", "%y, %at"),
        with_constants("%x: f32[1000000]", "  %k = const i64[1] [1000000]\n", "TopK@24(%x, %k)", "%y, %at"),
        with_constants("%x: f32[800000]", "", "Unique@28(%x)", "%y"),
        // Few slices that are long.
        with_constants("%x: f32[3,1000000]", "", "Unique@28(%x) {axis = 0}", "%y"),
        // A row of an image is one chunk, and so is a lane.
        with_constants(
            "%x: f32[1,1,2,900000]",
            "  %n = const i64[4] [1, 1, 3, 1300000]\n",
            "Resize@19(%x, _, _, %n) {mode = \"linear\"}",
            "%y",
        ),
        with_constants(
            "%x: f32[2000000]",
            "  %n = const i64[1] [2600000]\n",
            "Resize@19(%x, _, _, %n) {mode = \"cubic\"}",
            "%y",
        ),
        with_constants(
            "%x: f32[2,1000000]",
            "  %n = const i64[2] [3, 1000000]\n",
            "Resize@19(%x, _, _, %n) {mode = \"cubic\"}",
            "%y",
        ),
        with_constants(
            "%x: f32[2000000]",
            "  %n = const i64[1] [2600000]\n",
            "Resize@19(%x, _, _, %n) {mode = \"nearest\"}",
            "%y",
        ),
        // One block of queries, on the kernel for f32 and on the one for rounded types.
        with_constants(
            "%x: f32[1,1,8,64], %k: f32[1,1,12000,64], %v: f32[1,1,12000,64]",
            "",
            "Attention@25(%x, %k, %v)",
            "%y",
        ),
        with_constants(
            "%x: f32[1,1,8,64], %k: f32[1,1,12000,64], %v: f32[1,1,12000,64]",
            "",
            "Attention@25(%x, %k, %v) {softcap = 2.0}",
            "%y",
        ),
    ];
    let runtime = runtime(1);
    for text in text {
        let what = text.lines().find(|line| line.contains("@")).unwrap_or_default().trim().to_owned();
        check_run(&runtime, &what, &text);
    }
}

#[test]
fn a_transform_of_a_prime_length_looks_and_takes_memory_for_one_signal() {
    const N: usize = 262_147;
    let version = catalogue::find("", "DFT").unwrap().version;
    let text = format!(
        "devbay-program 1\n\nprogram \"\"(%x: f32[1,{N},1]) {{\n\
         \u{20} %n = const i64[] [{N}]\n\
         \u{20} %axis = const i64[] [1]\n\
         \u{20} %y: f32[1,{N},2] = DFT@{version}(%x, %n, %axis)\n\
         \u{20} return %y\n}}\n"
    );
    let runtime = runtime(2);
    let planned =
        || session(&runtime, &Model::from_program(import::from_bytes(text.clone().into_bytes(), None)?));
    check("planning a DFT", 16, &planned);
    let session = planned().unwrap();
    let x = Tensor::from_elements(&[1, N, 1], &vec![1.0f32; N]).unwrap();
    check("a DFT", 32, &|| session.run(&[("x", &x)]));
    let y = session.run(&[("x", &x)]).unwrap();
    let found = y[0].elements::<f32>().unwrap();
    // All of a constant signal is at 0.
    assert!(
        (found[0] - N as f32).abs() < 1.0 && found[2..].iter().all(|x| x.abs() < 0.5),
        "{:?}",
        &found[..4]
    );
    let plan = session.plan_for_types(&[(F32, &[1, N, 1])]).unwrap();
    let arena: usize = plan.sections().map(|section| section.memory.arena).sum();
    assert!(arena < 64 * N * 4, "{arena} bytes for {N} elements");
}
