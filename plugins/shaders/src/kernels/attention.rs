//! Attention: scores of queries and keys in tiles, a softmax of each query's, and the weighted sums of the values.
//!
//! Past keys and values first go before the present ones. A key that a query may not see weighs 0, whatever it holds;
//! a query that may see none gives zeros.

use super::cost;
use super::element::Width;
use super::lines::{LineStep, Lines, count, expect_output, product};
use super::math;
use super::tiles::{self, Product};
use crate::step::{Body, Build, Param, ShaderStep, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    Kernel::new("Attention", 25, |request| attention(request, 0))
        .types(&[TypeVar::of(&[F32]), TypeVar::of(&[F32, BOOL]), TypeVar::of(&[I64])])
        .operands(&[0, 0, 0, 1, 0, 0, 2], &[0, 0, 0, 0])
        .inputs(3, 7)
        .outputs(1, 4)
        .cost(cost),
    Kernel::new("FlexAttention", 1, flex_attention)
        .domain("ai.onnx.preview")
        .attributes(&["prob_mod", "scale", "score_mod", "softmax_precision"])
        .types(&[TypeVar::of(&[F32])])
        .operands(&[0, 0, 0], &[0])
        .shape(flex_shape)
        .cost(cost)
        .doc("without modifiers of scores and probabilities"),
];

fn cost(request: &Request<'_>) -> Result<Cost> {
    let (q, k) = (request.required_input(0)?, request.required_input(1)?.shape());
    let keys = if k.len() == 4 { k[2] } else { k.get(1).copied().unwrap_or(1) };
    // Those of the cache too.
    let past = request.input(4).and_then(|past| past.shape().get(2).copied()).unwrap_or(0);
    let flops = product(&[q.n_elements() as i64, keys.saturating_add(past).max(0), 4]);
    Ok(cost::of(request, flops as u64))
}

/// Layout of the rows of an operand: `[batch, heads, sequence, size]`, or with the sequence before the heads.
#[derive(Clone, Copy)]
struct Rows {
    batches: i64,
    heads: i64,
    sequence: i64,
    size: i64,
    heads_inside: bool,
}

impl Rows {
    fn of(shape: &[i64], heads: i64) -> Option<Self> {
        match *shape {
            [batches, heads, sequence, size] => {
                Some(Self { batches, heads, sequence, size, heads_inside: false })
            }
            [batches, sequence, hidden] if heads > 0 && hidden % heads == 0 => {
                Some(Self { batches, heads, sequence, size: hidden / heads, heads_inside: true })
            }
            _ => None,
        }
    }

    fn shape(&self) -> Vec<i64> {
        match self.heads_inside {
            true => vec![self.batches, self.sequence, self.heads * self.size],
            false => vec![self.batches, self.heads, self.sequence, self.size],
        }
    }

    /// Elements from one batch, head and row to the next.
    fn params(&self, name: &str) -> Result<Vec<(String, Param)>> {
        let (of_head, of_row) = match self.heads_inside {
            true => (self.size, self.heads * self.size),
            false => (self.sequence * self.size, self.size),
        };
        let of_batch = self.heads * self.sequence * self.size;
        let all = [("batch", of_batch), ("head", of_head), ("row", of_row)];
        all.iter().map(|(what, n)| Ok((format!("{name}_{what}"), count(*n)?))).collect()
    }
}

/// FlexAttention is Attention of four dimensions with a softmax in f32, if nothing changes what is in between.
fn flex_attention(request: &Request<'_>) -> Result<Prepared> {
    if let Some(name) = ["score_mod", "prob_mod"].into_iter().find(|name| request.attrs.get(name).is_some()) {
        return Err(Error::unsupported(format!("FlexAttention with {name}")));
    }
    attention(request, 1)
}

/// The types of its result: ONNX's preview ops are not in the host's catalogue.
fn flex_shape(request: &Request<'_>, _output_idx: usize) -> Result<(DType, Vec<i64>)> {
    let (q, v) = (request.required_input(0)?, request.required_input(2)?);
    match (q.shape(), v.shape()) {
        (&[batches, heads, queries, _], &[_, _, _, size]) => {
            Ok((q.dtype(), vec![batches, heads, queries, size]))
        }
        (q, v) => Err(Error::invalid(format!("queries of {q:?} and values of {v:?}, expected four extents"))),
    }
}

/// `precision` is that of the softmax where the node says none, 0 for the operands' own.
fn attention(request: &Request<'_>, precision: i64) -> Result<Prepared> {
    let attrs = &request.attrs;
    let [q, k, v] = [0, 1, 2].map(|i| request.required_input(i).map(|tensor| tensor.shape()));
    let (q, k, v) = (q?, k?, v?);
    let broken = || Error::invalid(format!("queries of {q:?}, keys of {k:?} and values of {v:?}"));
    let of_kv = attrs.int("kv_num_heads", 0)?;
    let of_q = Rows::of(q, attrs.int("q_num_heads", 0)?).ok_or_else(broken)?;
    let (of_k, of_v) = (Rows::of(k, of_kv).ok_or_else(broken)?, Rows::of(v, of_kv).ok_or_else(broken)?);
    let fits = [of_k.batches, of_v.batches] == [of_q.batches; 2]
        && q.len() == k.len()
        && q.len() == v.len()
        && of_q.size == of_k.size
        && (of_k.heads, of_k.sequence) == (of_v.heads, of_v.sequence)
        && of_k.heads > 0
        && of_q.heads % of_k.heads == 0;
    if !fits {
        return Err(broken());
    }
    let (batches, heads) = (of_q.batches, of_q.heads);
    let past = match (request.input(4), request.input(5)) {
        (None, None) => 0,
        (Some(key), Some(value)) => {
            let (key, value) = (key.shape(), value.shape());
            let n = key.get(2).copied().unwrap_or(0);
            if key != [batches, of_k.heads, n, of_k.size] || value != [batches, of_k.heads, n, of_v.size] {
                return Err(Error::invalid(format!("past keys of {key:?} and values of {value:?}")));
            }
            n
        }
        _ => return Err(Error::invalid("past keys without past values, or the other way round")),
    };
    let total = past.saturating_add(of_k.sequence);
    let of_y = Rows { size: of_v.size, ..of_q };
    expect_output(request, 0, &of_y.shape())?;
    for (i, rows) in [(1, of_k), (2, of_v)] {
        if request.output(i).is_some() {
            expect_output(request, i, &[batches, rows.heads, total, rows.size])?;
        }
    }
    if request.output(3).is_some() {
        expect_output(request, 3, &[batches, heads, of_q.sequence, total])?;
    }
    let counts = request.input(6);
    if counts.is_some_and(|counts| counts.shape() != [batches] || past > 0) {
        return Err(Error::invalid("nonpad_kv_seqlen with past keys, or not one for each batch"));
    }
    let shown = attrs.int("qk_matmul_output_mode", 0)?;
    if !(0..4).contains(&shown) {
        return Err(Error::invalid(format!("qk_matmul_output_mode is {shown}, expected 0 to 3")));
    }
    let precision = attrs.int("softmax_precision", precision)?;
    if ![0, 1].contains(&precision) {
        return Err(Error::unsupported(format!("a softmax of ONNX's type {precision}, not of f32")));
    }
    if [0, 1, 2].iter().any(|&i| request.input(i).is_some_and(|input| input.n_elements() == 0)) {
        return Err(Error::unsupported("attention of no elements"));
    }
    let mut build = Build::new(request);
    let joined = |of: Rows| Rows { sequence: total, heads_inside: false, ..of };
    let (keys, of_k) = match append(request, &mut build, of_k, 1, past)? {
        Some(slot) => (slot, joined(of_k)),
        None => (Slot::Input(1), of_k),
    };
    let (values, of_v) = match append(request, &mut build, of_v, 2, past)? {
        Some(slot) => (slot, joined(of_v)),
        None => (Slot::Input(2), of_v),
    };
    let n_scores = product(&[batches, heads, of_q.sequence, total]);
    count(n_scores)?;
    if n_scores as u64 * 4 > request.device.abilities.binding_max {
        return Err(Error::unsupported(format!("{n_scores} scores, more than a shader can be bound to")));
    }
    let scores = build.scratch(n_scores as u64 * 4);
    let shows = request.output(3).is_some().then_some(shown);

    let sight = Sight::of(request, [batches, heads, of_q.sequence, total], past)?;
    let mut buffers =
        vec![("q", "f32", Slot::Input(0)), ("keys", "f32", keys), ("scores", "f32", scores.clone())];
    if let Some(mask) = request.input(3) {
        buffers.push(("mask", if mask.dtype() == BOOL { "u32" } else { "f32" }, Slot::Input(3)));
    }
    if counts.is_some() {
        buffers.push(("counts", "vec2<u32>", Slot::Input(6)));
    }
    if shows.is_some_and(|mode| mode < 3) {
        buffers.push(("shown", "f32", Slot::Output(3)));
    }
    let scale = attrs.float("scale", 1.0 / (of_q.size as f32).sqrt())?;
    let softcap = attrs.float("softcap", 0.0)?;
    let root = scale.abs().sqrt();
    let mut params = vec![
        ("n_rows".to_owned(), count(of_q.sequence)?),
        ("n_cols".to_owned(), count(total)?),
        ("size".to_owned(), count(of_q.size)?),
        ("heads".to_owned(), count(heads)?),
        ("group".to_owned(), count(heads / of_k.heads)?),
        ("q_scale".to_owned(), Param::F32(root.copysign(scale))),
        ("k_scale".to_owned(), Param::F32(root)),
        ("softcap".to_owned(), Param::F32(softcap)),
    ];
    params.extend(of_q.params("q")?);
    params.extend(of_k.params("k")?);
    let hides = sight.hides;
    params.extend(sight.params);
    let write = wgsl!(
        "attention/score.wgsl",
        shows_product = shows == Some(0),
        is_capped = softcap > 0.0,
        shows_capped = shows == Some(1),
        shows_biased = shows == Some(2),
        hides,
    );
    let module = tiles::module(&Product {
        begin: &wgsl!("attention/score_begin.wgsl"),
        a: "p.q_scale * q[from_q + row * p.q_row + k]",
        b: "p.k_scale * keys[from_k + col * p.k_row + k]",
        b_by_columns: false,
        depth: "p.size",
        skips_negative: false,
        write: &write,
    });
    let module = [math::functions(&["tanh_f", "inf_f", "nan_f"]), sight.code, module].join("\n");
    let of_all = count(product(&[batches, heads]))?;
    let Param::U32(of_all) = of_all else { return Err(Error::internal("a count is u32")) };
    build.add(ShaderStep {
        name: "scores",
        buffers,
        params,
        turns: tiles::turns(of_q.size),
        body: Body::Groups {
            groups: [tiles::along(total), tiles::along(of_q.sequence), of_all],
            module: &module,
        },
    })?;
    let mut buffers = vec![("x", "f32", scores.clone())];
    if shows == Some(3) {
        buffers.push(("shown", "f32", Slot::Output(3)));
    }
    weights(&mut build, &Lines::rows(batches * heads * of_q.sequence, total), buffers, hides)?;

    let mut params = vec![
        ("n_rows".to_owned(), count(of_q.sequence)?),
        ("n_cols".to_owned(), count(of_v.size)?),
        ("total".to_owned(), count(total)?),
        ("heads".to_owned(), count(heads)?),
        ("group".to_owned(), count(heads / of_v.heads)?),
    ];
    params.extend(of_v.params("v")?);
    params.extend(of_y.params("y")?);
    let module = tiles::module(&Product {
        begin: &wgsl!("attention/value_begin.wgsl"),
        a: "scores[(id.z * p.n_rows + row) * p.total + k]",
        b: "values[from_v + k * p.v_row + col]",
        b_by_columns: true,
        depth: "p.total",
        skips_negative: hides,
        write: "y[to_y + row * p.y_row + col] = sum;",
    });
    build.add(ShaderStep {
        name: "weighted values",
        buffers: vec![("scores", "f32", scores), ("values", "f32", values), ("y", "f32", Slot::Output(0))],
        params,
        turns: tiles::turns(total),
        body: Body::Groups {
            groups: [tiles::along(of_v.size), tiles::along(of_q.sequence), of_all],
            module: &module,
        },
    })?;
    build.finish()
}

/// The keys or values of before and now, one after the other for each head, if there are any of before or they are
/// asked for: in the output or in the workspace.
fn append(request: &Request<'_>, build: &mut Build, rows: Rows, i: usize, past: i64) -> Result<Option<Slot>> {
    let is_output = request.output(i).is_some();
    if past == 0 && !is_output {
        return Ok(None);
    }
    let total = past.saturating_add(rows.sequence);
    let n = product(&[rows.batches, rows.heads, total, rows.size]);
    count(n)?;
    let to = if is_output { Slot::Output(i) } else { build.scratch(n as u64 * 4) };
    let mut buffers = vec![("x", "f32", Slot::Input(i)), ("y", "f32", to.clone())];
    let mut params = vec![
        ("size".to_owned(), count(rows.size)?),
        ("total".to_owned(), count(total)?),
        ("heads".to_owned(), count(rows.heads)?),
        ("past".to_owned(), count(past)?),
    ];
    params.extend(rows.params("x")?);
    if past > 0 {
        buffers.push(("before", "f32", Slot::Input(i + 3)));
    }
    let each = wgsl!("attention/append.wgsl", has_before = past > 0);
    let body = Body::Items { n: n as u64, functions: "", each: &each };
    build.add(ShaderStep { name: "append", buffers, params, turns: 0, body })?;
    Ok(Some(to))
}

/// Makes weights of scores in their place. Where keys may be hidden, those that are have scores of infinity and get weights
/// below 0, so that they are told from those that are seen and weigh nothing: a value of infinity times 0 is no number. A
/// query that sees no key has no weights; one that sees keys whose scores are all minus infinity has none that are numbers.
fn weights(build: &mut Build, lines: &Lines, buffers: Vec<(&str, &str, Slot)>, hides: bool) -> Result<()> {
    let functions = lines.fold(build.abilities(), "largest", "f32", "larger_f(a, b)")
        + &lines.fold(build.abilities(), "whole", "f32", "a + b");
    let (step, at) = lines.walk();
    let code = wgsl!("attention/weights.wgsl", step, at, hides, shows = buffers.len() > 1);
    lines
        .add(build, LineStep { name: "weights", buffers, params: vec![], functions: &functions, code: &code })
}

/// Keys that a query sees: WGSL of a function `sight` that gives the addend of a score.
struct Sight {
    code: String,
    /// True if there are keys that a query may not see.
    hides: bool,
    params: Vec<(String, Param)>,
}

/// Extents beyond which a window is none.
const WINDOW_MAX: i64 = 1 << 30;

impl Sight {
    fn of(request: &Request<'_>, to: [i64; 4], past: i64) -> Result<Self> {
        let attrs = &request.attrs;
        let mut params = vec![("past".to_owned(), count(past)?)];
        let mut window = |name: &str, param: &str| match attrs.int(name, -1)? {
            -1 => Ok(false),
            n if n >= 0 => {
                params.push((param.to_owned(), count(n.min(WINDOW_MAX))?));
                Ok(true)
            }
            n => Err(Error::invalid(format!("{name} is {n}, expected at least -1"))),
        };
        let has_left = window("left_window_size", "left")?;
        let has_right = window("right_window_size", "right")?;
        let (has_counts, is_causal) = (request.input(6).is_some(), attrs.int("is_causal", 0)? != 0);
        let masked = match request.input(3).map(TensorView::dtype) {
            Some(BOOL) => format!("select(-inf_f(), bias, {} != 0u)", Width::B1.load("mask", "at")),
            _ => "bias + mask[at]".to_owned(),
        };
        let has_mask = request.input(3).is_some();
        let code =
            wgsl!("attention/sight.wgsl", has_counts, is_causal, has_left, has_right, has_mask, masked);
        let Some(mask) = request.input(3) else {
            let hides = has_counts || is_causal || has_left || has_right;
            return Ok(Self { code, hides, params });
        };
        let found = mask.shape();
        let broken = || Error::invalid(format!("a mask of {found:?}, expected one for {to:?}"));
        let (&n, outer) = found.split_last().ok_or_else(broken)?;
        if outer.len() > 3 || n > to[3] {
            return Err(broken());
        }
        if mask.n_elements() == 0 {
            return Err(Error::unsupported("a mask of no elements"));
        }
        let (mut strides, mut stride) = ([0; 3], n);
        for (i, &extent) in outer.iter().enumerate().rev() {
            let axis = 3 - outer.len() + i;
            match extent {
                1 => {}
                extent if extent == to[axis] => strides[axis] = stride,
                _ => return Err(broken()),
            }
            stride *= extent;
        }
        params.push(("mask_keys".to_owned(), count(n)?));
        for (name, stride) in ["mask_batch", "mask_head", "mask_row"].into_iter().zip(strides) {
            params.push((name.to_owned(), count(stride)?));
        }
        Ok(Self { code, hides: true, params })
    }
}
