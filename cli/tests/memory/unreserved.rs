//! No large request bypasses `devbay_plugin_api::reserve`.
//!
//! A failed request that bypasses it ends the process. The remaining ones are small: at most [`LARGE`] each for any model,
//! except those documented in `docs/memory.md`.

use super::allocator::unreserved;
use super::{alone, models, runtime};
use devbay_host::arrays::read_npz;
use devbay_host::internals::core::program::text;
use devbay_host::internals::import;
use devbay_host::{Model, Reading, Result, Session, Tensor};
use std::path::PathBuf;

/// Size in bytes from which a request must be fallible.
const LARGE: usize = 64 << 10;

/// The same for trained models, whose tables of nodes are longer.
const LARGE_OF_MODELS: usize = 512 << 10;

/// Fails with the first origins of large requests.
fn expect_none(what: &str, found: &[String]) {
    let places = found.iter().take(3).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(
        found.is_empty(),
        "{what}: {} large requests that cannot be refused, such as\n{places}",
        found.len()
    );
}

fn run(session: &Session, inputs: &[(String, Tensor)]) -> Result<()> {
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    session.run(&inputs).map(drop)
}

/// Returns the folders of trained models: the repository's, and those that `DEVBAY_MODELS` names.
fn folders() -> Vec<PathBuf> {
    let mut folders = vec![models()];
    folders.extend(std::env::var_os("DEVBAY_MODELS").map(PathBuf::from));
    let all = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder of models"));
    let mut all: Vec<PathBuf> = all.map(|entry| entry.expect("an entry").path()).collect();
    all.retain(|folder| folder.join("case0.inputs.npz").exists());
    all.sort();
    all
}

#[test]
fn trained_models() {
    let _alone = alone();
    let (_runtime, device) = runtime();
    let folders = folders();
    assert!(folders.len() >= 2, "the repository has models with inputs");
    for folder in folders {
        let ((), found) = unreserved(LARGE_OF_MODELS, || {
            let model = import::open(folder.join("model.onnx"), Reading::Copied).expect("a model");
            let session = Session::new(&Model::from_program(model), &device).expect("a session");
            run(&session, &read_npz(&folder.join("case0.inputs.npz")).expect("inputs")).expect("a run");
        });
        // prost decodes elements in typed fields, and allocates in its own way (docs/memory.md).
        let ours: Vec<String> = found.into_iter().filter(|stack| !stack.contains("prost")).collect();
        expect_none(&folder.display().to_string(), &ours);
    }
}

/// Runs a program on inputs of these shapes.
fn check(source: &str, inputs: &[(&str, &[usize])]) {
    let _alone = alone();
    let (_runtime, device) = runtime();
    let ((), found) = unreserved(LARGE, || {
        let session = Session::new(&Model::from_program(text::parse(source).expect("a program")), &device);
        let tensor = |shape: &[usize]| {
            Tensor::zeros(devbay_host::internals::core::tensor::F32, shape).expect("memory")
        };
        let inputs: Vec<_> = inputs.iter().map(|(name, shape)| ((*name).to_owned(), tensor(shape))).collect();
        run(&session.expect("a session"), &inputs).expect("a run");
    });
    expect_none(source.lines().nth(2).unwrap_or_default(), &found);
}

fn in_program(inputs: &str, body: &str) -> String {
    format!("devbay-program 1\nprogram \"\"({inputs}) {{\n{body}\n}}\n")
}

#[test]
fn constants_in_a_text() {
    let hex = "3f800000".repeat(100_000);
    let body = format!("%c = const f32[100000] hex{{{hex}}}\n%y = Mul@14(%x, %c)\nreturn %y");
    check(&in_program("%x: f32[100000]", &body), &[("x", &[100_000])]);
}

#[test]
fn factors_of_transforms() {
    for n in [65_536, 60_060, 50_021] {
        let body = format!("%n = const i64[] [{n}]\n%y = DFT@20(%x, %n)\nreturn %y");
        check(&in_program(&format!("%x: f32[1,{n},1]"), &body), &[("x", &[1, n, 1])]);
    }
}

#[test]
fn tables_of_positions() {
    let resize = "%n = const i64[2] [2, 200000]\n%y = Resize@19(%x, _, _, %n) {mode = \"MODE\"}\nreturn %y";
    for mode in ["nearest", "linear", "cubic"] {
        let body = resize.replace("MODE", mode);
        check(&in_program("%x: f32[2,70001]", &body), &[("x", &[2, 70_001])]);
    }
    let body = "%n = const i64[2] [50000, 50000]\n%y = Pad@25(%x, %n) {mode = \"edge\"}\nreturn %y";
    check(&in_program("%x: f32[60000]", body), &[("x", &[60_000])]);
}

#[test]
fn matrices_of_a_batch() {
    let body = "%y = MatMul@13(%a, %b)\nreturn %y";
    let source = in_program("%a: f32[300,200,1,2], %b: f32[200,2,2]", body);
    check(&source, &[("a", &[300, 200, 1, 2]), ("b", &[200, 2, 2])]);
}

#[test]
fn loops_and_scans() {
    let body = "%y = Scan@25(%x) {num_scan_inputs = 1, scan_output_axes = [1]} \
        body(%row: f32[2]) { %z = Relu@14(%row) return %z }\nreturn %y";
    check(&in_program("%x: f32[20000,2]", body), &[("x", &[20_000, 2])]);
}
