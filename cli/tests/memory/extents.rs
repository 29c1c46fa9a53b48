//! Extents up to 2^40 in every family of ops: inference, passes, planning and `prepare` of the CPU plugin report errors in
//! words.
//!
//! The tests' build checks arithmetic, so a wrapping size panics. Programs are made from forms whose letters are extents;
//! each form is also planned once with small extents, to show that it is valid.

use super::allocator::{limited, unreserved};
use super::{alone, runtime};
use devbay_host::internals::core::program::verify::verify;
use devbay_host::internals::core::program::{catalogue, text};
use devbay_host::{Device, ErrorKind, Model, Result, Session};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Inputs, constants in text form, and the call without the op's version.
type Form = (&'static [&'static str], &'static [&'static str], &'static str);

/// All forms: letters a to h in inputs and attributes are extents.
const FORMS: &[Form] = &[
    (&["f32[a,b,c]", "f32[d,b,e]"], &[], "Conv(%i0, %i1)"),
    (
        &["f32[a,b,c,d]", "f32[e,b,f,g]", "f32[e]"],
        &[],
        "Conv(%i0, %i1, %i2) {strides = [h, 1], pads = [g, 1, g, 1]}",
    ),
    (&["f16[a,b,c,d]", "f16[e,b,f,g]"], &[], "Conv(%i0, %i1)"),
    (&["f32[a,b,c,d]", "f32[b,1,e,f]"], &[], "Conv(%i0, %i1) {group = b, dilations = [g, h]}"),
    (&["f32[a,b,c,d,e]", "f32[f,b,g,h,1]"], &[], "Conv(%i0, %i1)"),
    (&["f32[a,b,c,d]", "f32[b,e,f,g]"], &[], "ConvTranspose(%i0, %i1) {strides = [h, 2]}"),
    (
        &["f32[a,b,c]", "f32[b,d,e]"],
        &[],
        "ConvTranspose(%i0, %i1) {auto_pad = \"SAME_UPPER\", strides = [f]}",
    ),
    (&["u8[a,b,c,d]", "u8[e,b,f,g]"], &[], "ConvInteger(%i0, %i1)"),
    (&["f32[a,b,c,d]"], &[], "MaxPool(%i0) {kernel_shape = [e, f], strides = [g, h]}"),
    (
        &["f32[a,b,c,d]"],
        &[],
        "AveragePool(%i0) {kernel_shape = [e, f], pads = [1, 1, 1, 1], count_include_pad = 1}",
    ),
    (&["f32[a,b,c,d]"], &[], "LpPool(%i0) {kernel_shape = [e, f]}"),
    (
        &["f64[a,b,c,d]"],
        &[],
        "AveragePool(%i0) {kernel_shape = [e, f], auto_pad = \"SAME_LOWER\", strides = [g, h]}",
    ),
    (&["f32[a,b,c,d]"], &[], "GlobalAveragePool(%i0)"),
    (&["f32[a,b]", "f32[b,c]"], &[], "MatMul(%i0, %i1)"),
    (&["f32[a,b,c]", "f32[a,c,d]"], &[], "MatMul(%i0, %i1)"),
    (&["f32[a,1,b,c]", "f32[d,c,e]"], &[], "MatMul(%i0, %i1)"),
    (&["f64[a,1,b,c]", "f64[d,c,e]"], &[], "MatMul(%i0, %i1)"),
    (&["i32[a,b]", "i32[b,c]"], &[], "MatMul(%i0, %i1)"),
    (&["u8[a,b,c]", "i8[c,d]"], &[], "MatMulInteger(%i0, %i1)"),
    (&["f32[b,a]", "f32[c,b]", "f32[c]"], &[], "Gemm(%i0, %i1, %i2) {transA = 1, transB = 1}"),
    (&["f32[a,b,c]", "f32[c,d]"], &[], "Einsum(%i0, %i1) {equation = \"abc,cd->abd\"}"),
    (&["f32[a,b]"], &["i64[] [g]", "i64[] [h]"], "STFT(%i0, %c0, _, %c1)"),
    (&["f32[a,b,1]"], &["i64[] [h]"], "DFT(%i0, %c0)"),
    (&["f32[a,b,2]"], &["i64[] [h]"], "DFT(%i0, %c0) {inverse = 1}"),
    (&["f32[a,b,c,d]"], &["i64[4] [a, b, g, h]"], "Resize(%i0, _, _, %c0) {mode = \"linear\"}"),
    (&["f32[a,b,c,d]"], &["i64[4] [e, b, g, h]"], "Resize(%i0, _, _, %c0) {mode = \"cubic\", antialias = 1}"),
    (&["u8[a,b,c,d]"], &["i64[4] [a, b, g, h]"], "Resize(%i0, _, _, %c0) {mode = \"nearest\"}"),
    (&["f32[a,b]"], &["i64[4] [c, d, e, f]"], "Pad(%i0, %c0)"),
    (&["f32[a,b]"], &["i64[4] [c, d, e, f]"], "Pad(%i0, %c0) {mode = \"edge\"}"),
    (&["f32[a,b]"], &["i64[1] [1]"], "TopK(%i0, %c0) {axis = 0}"),
    (&["f32[a,b,c]"], &[], "Unique(%i0) {axis = 1}"),
    (&["f32[a,b]"], &[], "NonZero(%i0)"),
    (&["f32[a,b,4]", "f32[a,c,b]"], &["i64[1] [3]"], "NonMaxSuppression(%i0, %i1, %c0)"),
    (&["f32[a,b,c]", "f32[1,4*d,c]", "f32[1,4*d,d]"], &[], "LSTM(%i0, %i1, %i2) {hidden_size = d}"),
    (&["f32[a,b,c]", "f32[1,3*d,c]", "f32[1,3*d,d]"], &[], "GRU(%i0, %i1, %i2) {hidden_size = d}"),
    (&["f32[a,b,c]", "f32[1,d,c]", "f32[1,d,d]"], &[], "RNN(%i0, %i1, %i2) {hidden_size = d}"),
    (&["f32[a,b,c,d]", "f32[a,b,e,d]", "f32[a,b,e,f]"], &[], "Attention(%i0, %i1, %i2)"),
    (&["f16[a,b,c,d]", "f16[a,b,e,d]", "f16[a,b,e,f]"], &[], "Attention(%i0, %i1, %i2) {is_causal = 1}"),
    (&["f32[a,b,c]"], &[], "Softmax(%i0) {axis = 1}"),
    (&["f32[a,b,c]", "f32[c]"], &[], "LayerNormalization(%i0, %i1)"),
    (&["f32[a,b,c]", "f32[b]", "f32[b]"], &[], "InstanceNormalization(%i0, %i1, %i2)"),
    (&["f32[a,b,c,d]"], &[], "LRN(%i0) {size = 3}"),
    (&["f32[a,b,c]"], &["i64[2] [0, 2]"], "ReduceSum(%i0, %c0)"),
    (&["f64[a,b,c]"], &["i64[1] [1]"], "ReduceLogSumExp(%i0, %c0)"),
    (&["f32[a,b,c]"], &[], "ArgMax(%i0) {axis = 1}"),
    (&["f32[a,b,c]"], &[], "Transpose(%i0) {perm = [2, 0, 1]}"),
    (&["f32[a,b]", "f32[c,b]"], &[], "Concat(%i0, %i1) {axis = 0}"),
    (&["f32[a,1]"], &["i64[2] [a, h]"], "Expand(%i0, %c0)"),
    (&["f32[a,b]"], &["i64[2] [g, h]"], "Tile(%i0, %c0)"),
    (&["f32[a,b]", "i64[c,d]"], &[], "Gather(%i0, %i1) {axis = 1}"),
    (&["f32[a,b]", "i64[c,b]"], &[], "GatherElements(%i0, %i1)"),
    (&["f32[a,b,c]", "i64[d,2]"], &[], "GatherND(%i0, %i1)"),
    (&["f32[a,b]", "i64[c,1]", "f32[c,b]"], &[], "ScatterND(%i0, %i1, %i2)"),
    (&["f32[a,b]", "i64[c,b]", "f32[c,b]"], &[], "ScatterElements(%i0, %i1, %i2)"),
    (&["i64[a,b]", "f32[2]"], &["i64[] [h]"], "OneHot(%i0, %c0, %i1)"),
    (&[], &["i64[2] [g, h]"], "ConstantOfShape(%c0)"),
    (&[], &["i64[] [0]", "i64[] [h]", "i64[] [1]"], "Range(%c0, %c1, %c2)"),
    (&["f32[a,b]"], &["i64[] [1]"], "CumSum(%i0, %c0)"),
    (&["f32[a,b]"], &[], "EyeLike(%i0)"),
    (&["f32[a,b,b]"], &[], "Det(%i0)"),
    (&["f32[a,b,c,d]", "f32[a,e,f,2]"], &[], "GridSample(%i0, %i1)"),
    (
        &["f32[a,b,c,d]", "f32[e,4]", "i64[e]"],
        &[],
        "RoiAlign(%i0, %i1, %i2) {output_height = 3, output_width = h}",
    ),
    (&["f32[a,b,c,d]", "f32[e,5]"], &[], "MaxRoiPool(%i0, %i1) {pooled_shape = [3, h]}"),
    (&["f32[a,2,3]"], &["i64[4] [a, 1, g, h]"], "AffineGrid(%i0, %c0)"),
    (&["f32[a,b,c]"], &["i64[2] [g, h]", "i64[2] [1, 1]"], "Col2Im(%i0, %c0, %c1)"),
    (&[], &["i64[] [h]"], "HannWindow(%c0)"),
    (
        &[],
        &["i64[] [g]", "i64[] [h]", "i64[] [8000]", "f32[] [0.0]", "f32[] [4000.0]"],
        "MelWeightMatrix(%c0, %c1, %c2, %c3, %c4)",
    ),
    (&["f32[a,b,c]", "i64[a,c]"], &[], "SoftmaxCrossEntropyLoss(%i0, %i1) {reduction = \"none\"}"),
    (&["f32[a,b]"], &[], "DynamicQuantizeLinear(%i0)"),
    (&["f32[a,b]", "f32[b]", "u8[b]"], &[], "QuantizeLinear(%i0, %i1, %i2) {axis = 1}"),
    (&["f32[a,b]", "bool[b]"], &[], "Compress(%i0, %i1) {axis = 1}"),
    (&["f32[a,4*b,c,d]"], &[], "DepthToSpace(%i0) {blocksize = 2}"),
    (&["f32[a,b]"], &["i64[2] [g, h]"], "CenterCropPad(%i0, %c0)"),
    (&["f32[a,1,b]", "f32[c,1]"], &[], "Add(%i0, %i1)"),
    (&["bool[a,1,b]", "f32[c,1]", "f32[b]"], &[], "Where(%i0, %i1, %i2)"),
    (&["f32[a,b]"], &["f32[] [0.0]", "f32[] [6.0]"], "Clip(%i0, %c0, %c1)"),
    (&["f32[a,b,c,d]", "f32[e,b,f,g]", "f32[a,f*g*2,h,h]"], &[], "DeformConv(%i0, %i1, %i2)"),
    (&["f32[a,b]"], &["i64[2] [0, c]", "i64[2] [g, h]"], "Slice(%i0, %c0, %c1)"),
    (&["f32[a,b]"], &[], "Split(%i0) {num_outputs = 2, axis = 1}"),
    (&["f32[a,b,c]"], &[], "Trilu(%i0)"),
    (&["f32[a,b]"], &[], "Sum(%i0, %i0, %i0)"),
];

/// Returns the product in an extent such as `f*g*2` or `4*d`; 0 stays as it is.
fn evaluated(words: &str, extents: &[u64; 8]) -> String {
    let factor = |word: &str| match word.as_bytes() {
        [letter @ b'a'..=b'h'] => Some(extents[usize::from(letter - b'a')]),
        _ => word.parse().ok(),
    };
    let product =
        words.split('*').map(factor).try_fold(1u64, |product, next| Some(product.saturating_mul(next?)));
    // The text form's maximum of a dimension.
    product.map_or_else(|| words.to_owned(), |product| product.min(i64::MAX as u64).to_string())
}

/// Returns a text with the letters between brackets replaced.
fn with_extents(form: &str, extents: &[u64; 8]) -> String {
    let mut text = String::new();
    for (i, part) in form.split_inclusive(['[', ']']).enumerate() {
        let (inner, end) = match part.strip_suffix(['[', ']']) {
            Some(inner) => (inner, &part[inner.len()..]),
            None => (part, ""),
        };
        // Parts that end in a closing bracket were between two.
        if i > 0 && end == "]" {
            let items = inner.split(',').map(|item| evaluated(item.trim(), extents));
            text.push_str(&items.collect::<Vec<_>>().join(", "));
        } else {
            text.push_str(inner);
        }
        text.push_str(end);
    }
    text
}

fn program(form: &Form, extents: &[u64; 8]) -> String {
    let (inputs, constants, call) = form;
    let (op, rest) = call.split_once('(').expect("a call");
    let version = catalogue::find("", op).expect(op).version;
    let inputs = inputs.iter().enumerate().map(|(i, ty)| format!("%i{i}: {}", with_extents(ty, extents)));
    let inputs = inputs.collect::<Vec<_>>().join(", ");
    let constants = constants.iter().enumerate();
    let constants: String = constants
        .map(|(i, content)| format!("  %c{i} = const {}\n", with_extents(content, extents)))
        .collect();
    // Attributes of one number follow an equals sign.
    let mut rest = with_extents(rest, extents);
    for (i, letter) in ('a'..='h').enumerate() {
        for end in [",", "}"] {
            rest = rest.replace(&format!("= {letter}{end}"), &format!("= {}{end}", extents[i]));
        }
    }
    let results = match op {
        "Split" | "TopK" => "%y, %z",
        "DynamicQuantizeLinear" => "%y, %scale, %zero",
        _ => "%y",
    };
    format!(
        "devbay-program 1\nprogram \"{op}\"({inputs}) {{\n{constants}  {results} = {op}@{version}({rest}\n  return %y\n}}\n"
    )
}

/// Creates a session for a program and plans it.
fn planned(source: &str, device: &Arc<Device>) -> Result<()> {
    let program = text::parse(source)?;
    verify(&program)?;
    let model = Model::from_program(program);
    let session = Session::new(&model, device)?;
    let types: Vec<_> = session.inputs().iter().filter_map(|port| port.ty.clone()).collect();
    let shapes: Vec<Vec<usize>> = types.iter().filter_map(|ty| ty.known_shape()).collect();
    let types: Vec<_> = types.iter().zip(&shapes).map(|(ty, shape)| (ty.dtype, shape.as_slice())).collect();
    session.plan_for_types(&types).map(drop)
}

/// A reproducible generator (Knuth's MMIX constants).
struct Chance(u64);

impl Chance {
    fn one_of(&mut self, list: &[u64]) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        list[(self.0 >> 33) as usize % list.len()]
    }
}

#[test]
fn forms_say_something() {
    let _alone = alone();
    let (_runtime, device) = runtime();
    for form in FORMS {
        // Some forms need other small numbers.
        let tries = [
            [4, 4, 8, 8, 1, 2, 4, 4],
            [2, 2, 9, 9, 2, 2, 2, 2],
            [2, 2, 16, 16, 2, 1, 4, 4],
            [1, 8, 9, 9, 3, 3, 3, 7],
        ];
        let results =
            tries.map(|extents| planned(&program(form, &extents), &device).map_err(|e| e.to_string()));
        assert!(results.iter().any(|result| result.is_ok()), "{}: {results:#?}", form.2);
    }
}

#[test]
fn huge_extents_are_errors() {
    const SMALL: &[u64] = &[1, 1, 2, 3, 4, 8];
    const HUGE: &[u64] =
        &[0, 5, 1000, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 33, (1 << 40) - 1, 1 << 40];
    let _alone = alone();
    // Every place that panics, once each, since one may hide another.
    let panics = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let stack = std::backtrace::Backtrace::force_capture().to_string();
        let ours: Vec<&str> = stack
            .lines()
            .map(str::trim)
            .filter(|line| REPOSITORY.iter().any(|folder| line.contains(folder)))
            .take(3)
            .collect();
        seen.lock().expect("the hook does not panic").insert(format!("{place}\n{}", ours.join("\n")));
    }));
    let (mut of, mut chance) = (runtime(), Chance(7));
    let (mut fine, mut refused, mut wrong) = (0, 0, Vec::new());
    for form in FORMS {
        for round in 0..40 {
            // One or two extents are huge at first, then any number of them.
            let n_huge = if round < 24 { 1 + round % 2 } else { 8 };
            let mut extents = [0; 8].map(|_: u64| chance.one_of(SMALL));
            for _ in 0..n_huge {
                let at = chance.one_of(&[0, 1, 2, 3, 4, 5, 6, 7]) as usize;
                extents[at] = chance.one_of(HUGE);
            }
            let source = program(form, &extents);
            // Fallible requests from 16 MiB on are refused; other large requests would abort.
            let run = || unreserved(16 << 20, || catch_unwind(AssertUnwindSafe(|| planned(&source, &of.1))));
            let (result, past) = limited(16 << 20, run);
            wrong.extend(past.into_iter().map(|place| format!("{source}\n{place}")));
            match result {
                Ok(Ok(())) => fine += 1,
                Ok(Err(error)) if is_refusal(error.kind()) => refused += 1,
                Ok(Err(error)) => wrong.push(format!("{source}\n{error:?}")),
                Err(_) => wrong.push(format!("{source}\npanicked")),
            }
            // A runtime that panicked is replaced.
            let of_now = wrong.len();
            if of_now > 0 && wrong[of_now - 1].starts_with(&source) {
                of = runtime();
            }
        }
    }
    drop(std::panic::take_hook());
    eprintln!("{fine} programs were planned, {refused} were refused");
    let panics: Vec<String> =
        std::mem::take(&mut *panics.lock().expect("the hook is gone")).into_iter().collect();
    let first: Vec<&str> = wrong.iter().take(20).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "{} of them went wrong:\n{}\n{}",
        wrong.len(),
        panics.join("\n"),
        first.join("\n\n")
    );
    assert!(fine > 100 && refused > 100, "{fine} programs were planned, {refused} were refused");
}

/// Parts of the paths of our own stack frames.
const REPOSITORY: [&str; 4] = ["/core/src/", "/host/src/", "/cpu/src/", "/plugin-api/src/"];

/// Returns whether an error means that something is too large.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::OutOfMemory
            | ErrorKind::InvalidModel
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidArgument
            | ErrorKind::UnsupportedModel
            | ErrorKind::UnsupportedOp
    )
}
