//! Attention: how its nodes are read. `attend.rs` launches all variants: heads that share keys and values,
//! masks, windows, caches inside and outside; FlexAttention too. `attend_panels.rs` does all that is f32 throughout.

use crate::device::CpuDevice;
use crate::kernels::attention::attend_panels;
use crate::kernels::attention::scores::{Softmax, rounding};
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::MOVABLE;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    Kernel::new("Attention", 25, |request| attention(request, 0))
        .types(&[TypeVar::of(&[F32, F16, BF16]), TypeVar::of(MOVABLE), TypeVar::of(&[I64])])
        .operands(&[0, 0, 0, 1, 0, 0, 2], &[0, 0, 0, 0])
        .inputs(3, 7)
        .outputs(1, 4)
        .cost(cost)
        .doc("all variants; one softmax for each query"),
    Kernel::new("FlexAttention", 1, flex_attention)
        .domain("ai.onnx.preview")
        .attributes(&["prob_mod", "scale", "score_mod", "softmax_precision"])
        .types(&[TypeVar::of(&[F32, F16, BF16])])
        .operands(&[0, 0, 0], &[0])
        .shape(flex_shape)
        .cost(cost)
        .doc("without modifiers of scores and probabilities"),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let q = extents(request.required_input(0)?)?;
    let k = extents(request.required_input(1)?)?;
    let of_q: usize = q.iter().product();
    let keys = if k.len() == 4 { k[2] } else { k.get(1).copied().unwrap_or(1) };
    // Those of the cache too.
    let past = request.input(4).map(extents).transpose()?;
    let keys = keys + past.and_then(|past| past.get(2).copied()).unwrap_or(0);
    Ok(cost::of(request, (of_q * keys * 4) as u64))
}

/// Layout of the rows of an operand: `[batch, heads, sequence, size]`, or with the sequence before the heads.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) heads: usize,
    pub(crate) sequence: usize,
    pub(crate) size: usize,
    pub(crate) heads_inside: bool,
}

impl Rows {
    fn of(found: &[usize], heads: i64) -> Option<(usize, Self)> {
        match *found {
            [batch, heads, sequence, size] => {
                Some((batch, Self { heads, sequence, size, heads_inside: false }))
            }
            [batch, sequence, hidden] => {
                let heads = usize::try_from(heads).ok().filter(|&n| n > 0 && hidden.is_multiple_of(n))?;
                Some((batch, Self { heads, sequence, size: hidden / heads, heads_inside: true }))
            }
            _ => None,
        }
    }

    /// The first element of a row.
    pub(crate) fn at(&self, batch: usize, head: usize, i: usize) -> usize {
        let row = match self.heads_inside {
            true => (batch * self.sequence + i) * self.heads + head,
            false => (batch * self.heads + head) * self.sequence + i,
        };
        row * self.size
    }
}

/// Mask: numbers that are added to scores, or keys that are kept.
#[derive(Clone, Copy)]
pub(crate) struct Mask {
    pub(crate) real: Real,
    pub(crate) keeps: bool,
    /// Elements from one batch, head and query to the next: 0 where it is the same for all.
    pub(crate) strides: [usize; 3],
    /// Keys that it speaks of; what comes behind is not seen.
    pub(crate) n: usize,
}

/// A node, as it was read.
pub(crate) struct Attention {
    pub(crate) host: Host,
    pub(crate) real: Real,
    pub(crate) batches: usize,
    pub(crate) q: Rows,
    pub(crate) k: Rows,
    pub(crate) v: Rows,
    pub(crate) past: usize,
    /// Keys of before and now.
    pub(crate) total: usize,
    /// Heads of queries for each head of keys.
    pub(crate) group: usize,
    pub(crate) mask: Option<Mask>,
    /// True if an operand counts the keys that are there.
    pub(crate) counted: bool,
    pub(crate) is_causal: bool,
    pub(crate) windows: [Option<i64>; 2],
    /// Factors of queries and of keys.
    pub(crate) scales: [f32; 2],
    pub(crate) softcap: f32,
    /// Rounding of the result of each step.
    pub(crate) round: fn(f32) -> f32,
    pub(crate) softmax: Softmax,
    /// True if there is a fourth result; then what it shows.
    pub(crate) shows: bool,
    pub(crate) shown: i64,
}

impl Attention {
    /// Returns whether each step is f32, and nothing in between is bent or shown.
    pub(crate) fn is_single(&self) -> bool {
        self.real.is_single() && matches!(self.softmax, Softmax::Single) && self.softcap <= 0.0 && !self.shows
    }
}

/// FlexAttention is Attention of four dimensions with a softmax in f32, if nothing changes what is in between.
fn flex_attention(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    if let Some(name) = ["score_mod", "prob_mod"].into_iter().find(|name| request.attrs.get(name).is_some()) {
        return Err(Error::unsupported(format!("FlexAttention with {name}")));
    }
    attention(request, 1)
}

/// The types of its result: ONNX's preview ops are not in the host's catalogue.
fn flex_shape(request: &PrepareRequest<'_, CpuDevice>, _output_idx: usize) -> Result<(DType, Vec<i64>)> {
    let (q, v) = (request.required_input(0)?, request.required_input(2)?);
    match (q.shape(), v.shape()) {
        (&[batches, heads, queries, _], &[_, _, _, size]) => {
            Ok((q.dtype(), vec![batches, heads, queries, size]))
        }
        (q, v) => Err(Error::invalid(format!("queries of {q:?} and values of {v:?}, expected four extents"))),
    }
}

/// `precision` is that of the softmax where the node says none, 0 for the operands' own.
fn attention(request: &PrepareRequest<'_, CpuDevice>, precision: i64) -> Result<Prepared> {
    let attrs = &request.attrs;
    let shapes = [0, 1, 2].map(|i| request.required_input(i).and_then(extents));
    let [q, k, v] = shapes;
    let (q, k, v) = (q?, k?, v?);
    let broken = || Error::invalid(format!("queries of {q:?}, keys of {k:?} and values of {v:?}"));
    let (of_q, of_kv) = (attrs.int("q_num_heads", 0)?, attrs.int("kv_num_heads", 0)?);
    let (batches, of_q) = Rows::of(&q, of_q).ok_or_else(broken)?;
    let (k_batches, of_k) = Rows::of(&k, of_kv).ok_or_else(broken)?;
    let (v_batches, of_v) = Rows::of(&v, of_kv).ok_or_else(broken)?;
    let fits = [k_batches, v_batches] == [batches; 2]
        && q.len() == k.len()
        && q.len() == v.len()
        && of_q.size == of_k.size
        && (of_k.heads, of_k.sequence) == (of_v.heads, of_v.sequence)
        && of_k.heads > 0
        && of_q.heads.is_multiple_of(of_k.heads);
    if !fits {
        return Err(broken());
    }
    let past = match (request.input(4), request.input(5)) {
        (None, None) => 0,
        (Some(key), Some(value)) => {
            let (key, value) = (extents(key)?, extents(value)?);
            let n = key.get(2).copied().unwrap_or(0);
            if key != [batches, of_k.heads, n, of_k.size] || value != [batches, of_k.heads, n, of_v.size] {
                return Err(Error::invalid(format!("past keys of {key:?} and values of {value:?}")));
            }
            n
        }
        _ => return Err(Error::invalid("past keys without past values, or the other way round")),
    };
    let total = past + of_k.sequence;
    match q.len() {
        4 => expect_output(request, 0, &[batches, of_q.heads, of_q.sequence, of_v.size])?,
        _ => expect_output(request, 0, &[batches, of_q.sequence, of_q.heads * of_v.size])?,
    }
    for (i, size) in [(1, of_k.size), (2, of_v.size)] {
        if request.output(i).is_some() {
            expect_output(request, i, &[batches, of_k.heads, total, size])?;
        }
    }
    if request.output(3).is_some() {
        expect_output(request, 3, &[batches, of_q.heads, of_q.sequence, total])?;
    }
    let counted = request.input(6).is_some();
    if counted && (extents(request.required_input(6)?)? != [batches] || past > 0) {
        return Err(Error::invalid("nonpad_kv_seqlen with past keys, or not one for each batch"));
    }
    let window = |name| match attrs.int(name, -1)? {
        -1 => Ok(None),
        n if n >= 0 => Ok(Some(n)),
        n => Err(Error::invalid(format!("{name} is {n}, expected at least -1"))),
    };
    let shown = attrs.int("qk_matmul_output_mode", 0)?;
    if !(0..4).contains(&shown) {
        return Err(Error::invalid(format!("qk_matmul_output_mode is {shown}, expected 0 to 3")));
    }
    let dtype = request.required_input(0)?.dtype();
    // ONNX's numbers of f32, f16, f64 and bf16.
    let softmax = match attrs.int("softmax_precision", precision)? {
        0 => Softmax::of(dtype),
        1 => Softmax::Single,
        10 => Softmax::of(F16),
        11 => Softmax::Double,
        16 => Softmax::of(BF16),
        found => {
            return Err(Error::invalid(format!("softmax_precision is {found}, expected 1, 10, 11 or 16")));
        }
    };
    let round = rounding(dtype);
    let scale = attrs.float("scale", 1.0 / (of_q.size as f32).sqrt())?;
    let root = round(scale.abs().sqrt());
    let kernel = Attention {
        host: request.host,
        real: Real::of(dtype)?,
        batches,
        q: of_q,
        k: of_k,
        v: of_v,
        past,
        total,
        group: of_q.heads / of_k.heads,
        mask: mask(request, [batches, of_q.heads, of_q.sequence, total])?,
        counted,
        is_causal: attrs.int("is_causal", 0)? != 0,
        windows: [window("left_window_size")?, window("right_window_size")?],
        scales: [root.copysign(scale), root],
        softcap: attrs.float("softcap", 0.0)?,
        round,
        softmax,
        shows: request.output(3).is_some(),
        shown,
    };
    if attend_panels::takes(&kernel) {
        return attend_panels::prepare(kernel, request.device.isa);
    }
    let n = Size::of(kernel.slot_scratch()) * request.host.n_slots();
    Prepared::new(kernel).with_room(n * size_of::<f32>(), 64)
}

/// The mask, which broadcasts to batch, heads, queries and keys.
fn mask(request: &PrepareRequest<'_, CpuDevice>, to: [usize; 4]) -> Result<Option<Mask>> {
    let Some(tensor) = request.input(3) else {
        return Ok(None);
    };
    let found = extents(tensor)?;
    let broken = || Error::invalid(format!("a mask of {found:?}, expected one for {to:?}"));
    let (&n, outer) = found.split_last().ok_or_else(broken)?;
    if outer.len() > 3 || n > to[3] {
        return Err(broken());
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
    let keeps = tensor.dtype() == BOOL;
    Ok(Some(Mask { real: Real::of(tensor.dtype())?, keeps, strides, n }))
}
