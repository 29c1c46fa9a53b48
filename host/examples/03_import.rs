//! The third stage: reads a model file as a program, and prints its inputs, outputs and text.
//!
//! `cargo run -p devbay-host --example 03_import [MODEL]`; needs no plugin.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use devbay_host::internals::core::program::text;
use devbay_host::{Model, Result};
use std::collections::BTreeMap;

fn main() -> Result<()> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/mnist_cnn/model.onnx");
    let model = Model::load(std::env::args_os().nth(1).unwrap_or_else(|| default.into()))?;
    let program = model.program();
    let describe = |id| {
        let value = program.value(id);
        value.ty.as_ref().map_or_else(|| value.name.to_string(), |ty| format!("{} {ty}", value.name))
    };
    for &id in program.given_inputs() {
        println!("input {}", describe(id));
    }
    for &id in &program.main.outputs {
        println!("output {}", describe(id));
    }
    let mut ops: BTreeMap<String, usize> = BTreeMap::new();
    for node in &program.main.nodes {
        *ops.entry(node.op.to_string()).or_default() += 1;
    }
    for (op, n) in ops {
        println!("{n:>4} {op}");
    }
    // The text form has everything except the numbers of large constants, and can be parsed again.
    for line in text::print(program).lines().take(8) {
        println!("{}", line.chars().take(100).collect::<String>());
    }
    Ok(())
}
