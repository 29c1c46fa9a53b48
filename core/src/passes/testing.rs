//! Passes on programs in their text form.

use super::narrow_dtypes::{Narrowed, Narrowing};
use super::{Around, PASSES, dead_code};
use crate::device::rates::{Link, Rates, WorkKind};
use crate::error::Result;
use crate::kernel::{KernelDef, KernelTable};
use crate::program::fold::Evaluator;
use crate::program::text::{parse, print};
use crate::program::verify::verify;
use crate::program::{Node, Program};
use crate::tensor::{DType, F16, F32, I8, I32, I64, Tensor, U4, U8};
use std::cell::RefCell;

/// A device so slow that a convolution takes longer than its image's bytes.
const RATES: Rates = Rates {
    flops_per_ns: 1.0,
    bytes_per_ns: 10.0,
    launch_ns: 2.0,
    hand_over_ns: 1000.0,
    by_work: [None; WorkKind::ALL.len()],
    to_device: Link::NONE,
    from_device: Link::NONE,
};

/// An evaluator that runs Cast from f32 to f16 alone.
struct Casts;

impl Evaluator for Casts {
    fn evaluate(&mut self, node: &Node, inputs: &[Option<Tensor>]) -> Result<Option<Vec<Tensor>>> {
        let Some([Some(x)]) = node.op.is("Cast").then_some(inputs) else { return Ok(None) };
        let Some(elements) = x.elements::<f32>() else { return Ok(None) };
        let halves: Vec<_> = elements.iter().map(|&x| half::f16::from_f32(x)).collect();
        Ok(Some(vec![Tensor::from_bytes(F16, x.shape(), bytemuck::cast_slice(&halves))?]))
    }
}

/// The kernels of a device that has LayerNormalization, Gelu, HardSwish, Exp and Attention on f32, Add and Relu on f16 too, a Resize whose
/// scales are f32, products of bytes that are scaled or quantised, products by quantised weights, moves of bytes and chains of ops on them, and
/// convolutions, pools and means of f32 with channels last.
fn kernels() -> KernelTable {
    let kernel = |op: &str, since_version, n_inputs| of_types(op, since_version, n_inputs, &[F32]);
    let resize = KernelDef { input_typevars: vec![0, 1], ..of_types("Resize", 19, (1, 4), &[F32, F16]) };
    let resize = KernelDef { typevars: vec![vec![F32, F16], vec![F32]], ..resize };
    let cast = of_types("Cast", 25, (1, 1), &[I64, F32]);
    let cast = KernelDef { typevars: vec![vec![I64, F32], vec![F32, F16]], output_typevars: vec![1], ..cast };
    let attention = of_types("Attention", 25, (3, 7), &[F32]);
    let attention = KernelDef { input_typevars: vec![0, 0, 0, 1, 0, 0, 2], n_outputs: (1, 4), ..attention };
    let attention = KernelDef { typevars: vec![vec![F32], vec![F32], vec![I64]], ..attention };
    let attention = KernelDef { output_typevars: vec![0; 4], ..attention };
    let product = KernelDef { domain: "devbay".to_owned(), ..of_types("FusedMatMul", 1, (2, 3), &[F32]) };
    let integers = of_types("MatMulIntegerToFloat", 1, (3, 6), &[U8, I8]);
    let integers = KernelDef { domain: "devbay".to_owned(), output_typevars: vec![2], ..integers };
    let integers = KernelDef { input_typevars: vec![0, 1, 2, 0, 1, 2], ..integers };
    let integers = KernelDef { typevars: vec![vec![U8, I8], vec![U8, I8], vec![F32]], ..integers };
    let dequantised = of_types("MatMulDequantized", 1, (3, 5), &[F32]);
    let dequantised =
        KernelDef { domain: "devbay".to_owned(), input_typevars: vec![0, 1, 0, 1, 0], ..dequantised };
    let dequantised = KernelDef { typevars: vec![vec![F32], vec![U8, I8, U4]], ..dequantised };
    let gather = KernelDef { input_typevars: vec![0, 1], ..of_types("Gather", 13, (2, 2), &[F32, U8, I8]) };
    let gather = KernelDef { typevars: vec![vec![F32, U8, I8], vec![I64]], ..gather };
    let widens =
        KernelDef { input_typevars: vec![0, 1, 0], ..of_types("DequantizeLinear", 28, (2, 3), &[U8, I8]) };
    let widens = KernelDef { typevars: vec![vec![U8, I8], vec![F32]], output_typevars: vec![1], ..widens };
    let nhwc =
        |op: &str, n_inputs| KernelDef { domain: "devbay".to_owned(), ..of_types(op, 1, n_inputs, &[F32]) };
    let mean = KernelDef { input_typevars: vec![0, 1], ..kernel("ReduceMean", 18, (1, 2)) };
    let mean = KernelDef { typevars: vec![vec![F32], vec![I64]], ..mean };
    let quantised = |op: &str, since_version, n_inputs, input_typevars: &[u8]| KernelDef {
        typevars: vec![vec![U8, I8], vec![F32], vec![U8, I8], vec![U8, I8], vec![I32]],
        input_typevars: input_typevars.to_vec(),
        output_typevars: vec![3],
        ..of_types(op, since_version, n_inputs, &[])
    };
    let of_bytes = |op: &str, since_version, n_inputs, input_typevars: &[u8]| KernelDef {
        typevars: vec![vec![U8, I8], vec![I64]],
        input_typevars: input_typevars.to_vec(),
        n_outputs: (1, 2),
        ..of_types(op, since_version, n_inputs, &[])
    };
    let chain = KernelDef { domain: "devbay".to_owned(), ..of_types("QuantisedElementwise", 1, (1, 7), &[]) };
    let chain = KernelDef { typevars: vec![vec![F32, U8, I8]; 8], output_typevars: vec![7], ..chain };
    let chain = KernelDef { input_typevars: vec![0, 1, 2, 3, 4, 5, 6], ..chain };
    KernelTable::new(vec![
        chain,
        quantised("QLinearConv", 10, (8, 9), &[0, 1, 0, 2, 1, 2, 1, 3, 4]),
        quantised("QLinearMatMul", 21, (8, 8), &[0, 1, 0, 2, 1, 2, 1, 3]),
        of_bytes("Concat", 13, (1, 8), &[0]),
        of_bytes("Max", 13, (1, 8), &[0]),
        of_bytes("Min", 13, (1, 8), &[0]),
        of_bytes("MaxPool", 12, (1, 1), &[0]),
        of_bytes("Pad", 21, (2, 4), &[0, 1, 0, 1]),
        of_bytes("Slice", 13, (3, 5), &[0, 1]),
        of_bytes("Split", 18, (1, 2), &[0, 1]),
        of_bytes("Transpose", 21, (1, 1), &[0]),
        nhwc("NhwcFusedConv", (2, 4)),
        nhwc("NhwcMaxPool", (1, 1)),
        nhwc("NhwcAveragePool", (1, 1)),
        mean,
        product,
        integers,
        dequantised,
        gather,
        widens,
        attention,
        cast,
        kernel("LayerNormalization", 17, (2, 3)),
        kernel("Gelu", 20, (1, 1)),
        kernel("HardSwish", 22, (1, 1)),
        kernel("Exp", 13, (1, 1)),
        of_types("Add", 14, (2, 2), &[F32, F16]),
        of_types("Relu", 14, (1, 1), &[F32, F16]),
        resize,
    ])
}

fn of_types(op: &str, since_version: u32, n_inputs: (u32, u32), types: &[DType]) -> KernelDef {
    KernelDef {
        idx: 0,
        domain: String::new(),
        op: op.to_owned(),
        since_version,
        n_inputs,
        n_outputs: (1, 1),
        typevars: vec![types.to_vec()],
        input_typevars: vec![0],
        output_typevars: vec![0],
        host_value_inputs: 0,
        in_place: Vec::new(),
        priority: 0,
        strided: false,
        deterministic: true,
        data_shape: false,
        doc: String::new(),
    }
}

/// Lines of a body.
pub fn body(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// Expects a pass, and then dead-code, to make of a body another one. Inputs are `x: f32[2,3]`, `row: f32[3]`,
/// `line: f32[1,3]`, `p` and `q`, `f32[4,1]`, and `r: f32[4,2]`; nodes called `pinned` stay.
pub fn check(pass: &str, before: &str, after: &str) {
    check_narrowed(pass, None, before, after);
}

/// As [`check`], where floats are to be narrower.
pub fn check_narrowed(pass: &str, narrow: Option<Narrowing>, before: &str, after: &str) {
    let inputs = "%x: f32[2,3], %row: f32[3], %line: f32[1,3], %p: f32[4,1], %q: f32[4,1], %r: f32[4,2]";
    check_all(pass, narrow, inputs, before, after);
}

/// As [`check`], with other inputs.
pub fn check_on(inputs: &str, pass: &str, before: &str, after: &str) {
    check_all(pass, None, inputs, before, after);
}

fn check_all(pass: &str, narrow: Option<Narrowing>, inputs: &str, before: &str, after: &str) {
    let found = changed(pass, narrow, inputs, before);
    // A pass makes values without names: they are told apart by the order in which they are made.
    let plain = |mut program: Program| {
        program.values.iter_mut().for_each(|value| value.name = "".into());
        print(&program)
    };
    assert_eq!(plain(found), plain(parsed(inputs, after)));
}

/// What a pass, and then dead-code, make of a body with these inputs.
pub fn changed(pass: &str, narrow: Option<Narrowing>, inputs: &str, body: &str) -> Program {
    let mut program = parsed(inputs, body);
    verify(&program).unwrap_or_else(|e| panic!("{e}"));
    let pass = PASSES.iter().find(|known| known.name == pass).expect("a pass of that name");
    around_narrowed(narrow, |around| (pass.run)(&mut program, around)).unwrap_or_else(|e| panic!("{e}"));
    dead_code::remove(&mut program).unwrap_or_else(|e| panic!("{e}"));
    verify(&program).unwrap_or_else(|e| panic!("{e}"));
    program
}

fn parsed(inputs: &str, body: &str) -> Program {
    let text = format!("devbay-program 1\n\nprogram \"\"({inputs}) {{\n{body}}}\n");
    parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

/// Calls `f` with the surroundings of a pass.
#[cfg(not(loom))]
pub fn around<T>(f: impl FnOnce(&Around<'_>) -> T) -> T {
    around_narrowed(None, f)
}

fn around_narrowed<T>(narrow: Option<Narrowing>, f: impl FnOnce(&Around<'_>) -> T) -> T {
    let (kernels, narrowed, mut evaluator) = (kernels(), Narrowed::default(), Casts);
    f(&Around {
        kernels: &kernels,
        fuses_weights: true,
        rates: RATES,
        narrow: narrow.map(|narrowing| (narrowing, &narrowed)),
        stay: &|node| &*node.name == "pinned",
        evaluator: RefCell::new(&mut evaluator),
    })
}
