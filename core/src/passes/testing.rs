//! Passes on programs in their text form.

use super::{Around, PASSES, dead_code};
use crate::error::Result;
use crate::kernel::{KernelDef, KernelTable};
use crate::plan::specialise::Evaluator;
use crate::program::text::{parse, print};
use crate::program::{Node, Program};
use crate::tensor::{F32, Tensor};
use std::cell::RefCell;

/// An evaluator that runs nothing.
struct Nothing;

impl Evaluator for Nothing {
    fn evaluate(&mut self, _: &Node, _: &[Option<Tensor>]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }
}

/// The kernels of a device that has LayerNormalization and Gelu on f32.
fn kernels() -> KernelTable {
    let kernel = |op: &str, since_version, n_inputs| KernelDef {
        idx: 0,
        domain: String::new(),
        op: op.to_owned(),
        since_version,
        n_inputs,
        n_outputs: (1, 1),
        typevars: vec![vec![F32]],
        input_typevars: vec![0],
        output_typevars: vec![0],
        host_value_inputs: 0,
        in_place: Vec::new(),
        priority: 0,
        dynamic: false,
        strided: false,
        deterministic: true,
        data_shape: false,
        doc: String::new(),
    };
    KernelTable::new(vec![kernel("LayerNormalization", 17, (2, 3)), kernel("Gelu", 20, (1, 1))])
}

/// Expects a pass, and then dead-code, to make of a body another one. Inputs are `x: f32[2,3]`, `row: f32[3]`,
/// `line: f32[1,3]`, `p` and `q`, `f32[4,1]`, and `r: f32[4,2]`; nodes called `pinned` stay.
pub fn check(pass: &str, before: &str, after: &str) {
    let program = |body: &str| {
        let inputs = "%x: f32[2,3], %row: f32[3], %line: f32[1,3], %p: f32[4,1], %q: f32[4,1], %r: f32[4,2]";
        let text = format!("devbay-program 1\n\nprogram \"\"({inputs}) {{\n{body}}}\n");
        parse(&text).unwrap_or_else(|e| panic!("{e}"))
    };
    let mut found = program(before);
    let pass = PASSES.iter().find(|known| known.name == pass).expect("a pass of that name");
    let (kernels, mut evaluator) = (kernels(), Nothing);
    let around = Around {
        kernels: &kernels,
        stay: &|node| &*node.name == "pinned",
        evaluator: RefCell::new(&mut evaluator),
    };
    (pass.run)(&mut found, &around).unwrap_or_else(|e| panic!("{e}"));
    dead_code::remove(&mut found);
    // A pass makes values without names: they are told apart by the order in which they are made.
    let plain = |mut program: Program| {
        program.values.iter_mut().for_each(|value| value.name = "".into());
        print(&program)
    };
    assert_eq!(plain(found), plain(program(after)));
}
