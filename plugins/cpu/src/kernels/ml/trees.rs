//! TreeEnsemble, TreeEnsembleClassifier and TreeEnsembleRegressor.
//!
//! Features and splits are compared in f32, or in f64 if the features or an attribute are: integers become f32, as in
//! onnxruntime. Sums have that type too.

use super::classes::Classes;
use super::described::{Described, Node, WeightNames, of_arrays, of_lists};
use super::forest::{Aggregate, Forest, LANES, Number};
use super::post::Post;
use super::rows_of;
use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::expect_output;
use crate::kernels::numbers::real::{Real, Sink};
use crate::stream::CpuStream;
use devbay_ops::ML_DOMAIN;
use devbay_ops::descriptor_of;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

const FEATURES: TypeVar = TypeVar::of(&[F32, F64, I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor_of(ML_DOMAIN, "TreeEnsemble", 5, tree_ensemble)
        .types(&[TypeVar::of(&[F32, F64, F16])])
        .cost(cost),
    descriptor_of(ML_DOMAIN, "TreeEnsembleClassifier", 1, classifier)
        .types(&[FEATURES, TypeVar::of(&[I64]), TypeVar::of(&[F32])])
        .cost(cost)
        .doc("labels that are integers"),
    descriptor_of(ML_DOMAIN, "TreeEnsembleRegressor", 1, regressor)
        .types(&[FEATURES, TypeVar::of(&[F32])])
        .cost(cost),
];

/// Rows that a tree is walked by before the next one: their features and scores stay in the nearest cache.
const BLOCK: usize = 8 * LANES;

/// Estimates a launch without reading the forest: a tree of ten levels for each hundred nodes.
fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n_nodes = request.attrs.ints("nodes_featureids")?.map_or(0, |list| list.len() as u64);
    cost::per_output(request, n_nodes.div_ceil(100) * 40)
}

fn tree_ensemble(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let ([rows, width], n_targets) = (rows_of(request)?, n_targets(request)?);
    expect_output(request, 0, &[rows, n_targets])?;
    let described = of_arrays(&request.attrs, width, n_targets)?;
    let aggregate = match request.attrs.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return Err(Error::invalid(format!("aggregate_function is 0 to 3, found {other}"))),
    };
    let post = Post::of_number(request.attrs.int("post_transform", 0)?)?;
    prepared(request, &described, n_targets, aggregate, Finish::Targets { base: Vec::new(), post })
}

fn regressor(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let ([rows, width], n_targets) = (rows_of(request)?, n_targets(request)?);
    expect_output(request, 0, &[rows, n_targets])?;
    let names = WeightNames {
        ids: "target_ids",
        nodes: "target_nodeids",
        trees: "target_treeids",
        weights: "target_weights",
        weights_as_tensor: "target_weights_as_tensor",
    };
    let mut described = of_lists(&request.attrs, &names, width, n_targets)?;
    let aggregate = match request.attrs.string("aggregate_function", "SUM")? {
        "AVERAGE" => Aggregate::Average,
        "SUM" => Aggregate::Sum,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => {
            return Err(Error::invalid(format!(
                "aggregate_function is AVERAGE, SUM, MIN or MAX, found {other}"
            )));
        }
    };
    let base = std::mem::take(&mut described.base);
    expect_base(&base, &[0, n_targets])?;
    let post = Post::of_name(request.attrs.string("post_transform", "NONE")?)?;
    prepared(request, &described, n_targets, aggregate, Finish::Targets { base, post })
}

fn classifier(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let [rows, width] = rows_of(request)?;
    let labels = request.attrs.ints("classlabels_int64s")?.unwrap_or_default();
    if labels.is_empty() {
        return Err(Error::unsupported("classes without the attribute classlabels_int64s"));
    }
    let n_classes = labels.len();
    for (i, shape) in [&[rows][..], &[rows, n_classes]].into_iter().enumerate() {
        if request.output(i).is_some() {
            expect_output(request, i, shape)?;
        }
    }
    let names = WeightNames {
        ids: "class_ids",
        nodes: "class_nodeids",
        trees: "class_treeids",
        weights: "class_weights",
        weights_as_tensor: "class_weights_as_tensor",
    };
    let mut described = of_lists(&request.attrs, &names, width, n_classes)?;
    let base = std::mem::take(&mut described.base);
    match n_classes {
        1 => expect_base(&base, &[0, 1])?,
        2 => expect_base(&base, &[0, 1, 2])?,
        n => expect_base(&base, &[0, n])?,
    }
    let weights = || described.nodes.iter().filter_map(scores).flatten();
    let first = weights().next().map(|(class, _)| *class);
    let is_binary = n_classes == 2 && first.is_some() && weights().all(|(class, _)| Some(*class) == first);
    let is_positive = weights().all(|(_, weight)| *weight >= 0.0);
    let post = Post::of_name(request.attrs.string("post_transform", "NONE")?)?;
    let classes = Classes { labels, is_binary, is_positive, base, post };
    // One class with weights, which every leaf has: sums of one number are faster.
    let has_all = described.nodes.iter().filter_map(scores).all(|scores| !scores.is_empty());
    let only = first.filter(|_| is_binary && has_all);
    let mut n_targets = n_classes;
    if only.is_some() {
        n_targets = 1;
        for node in &mut described.nodes {
            if let Node::Leaf(scores) = node {
                scores.iter_mut().for_each(|(class, _)| *class = 0);
            }
        }
    }
    prepared(request, &described, n_targets, Aggregate::Sum, Finish::Classes { classes, only })
}

fn scores(node: &Node) -> Option<&Vec<(u32, f64)>> {
    match node {
        Node::Leaf(scores) => Some(scores),
        Node::Branch(_) => None,
    }
}

fn n_targets(request: &PrepareRequest<'_, CpuDevice>) -> Result<usize> {
    match request.attrs.int("n_targets", 0)? {
        n if n > 0 => Ok(n as usize),
        n => Err(Error::invalid(format!("expected 1 or more as n_targets, found {n}"))),
    }
}

fn expect_base(base: &[f64], counts: &[usize]) -> Result<()> {
    if counts.contains(&base.len()) {
        return Ok(());
    }
    let n = base.len();
    Err(Error::invalid(format!("base_values has {n} entries, expected one of the numbers {counts:?}")))
}

/// The last step of a row.
enum Finish {
    /// Scores of targets.
    Targets { base: Vec<f64>, post: Post },
    /// Scores of classes, and a label. `only` is the one class that the forest's single target stands for.
    Classes { classes: Classes, only: Option<u32> },
}

struct Trees<T> {
    host: Host,
    forest: Forest<T>,
    /// Rows of features, and their number in a row.
    rows: usize,
    width: usize,
    /// Reads features; None if they are `T` as they are.
    converts: Option<Real>,
    /// Writes scores.
    to: Real,
    finish: Finish,
    /// Scores of a row in the end.
    n_scores: usize,
    room: Room,
}

/// Parts of a chunk's workspace, by their offsets in bytes.
#[derive(Clone, Copy)]
struct Room {
    /// Scores of a row in the end, in f64; sums and marks of a block; and features of a block at 0.
    out: usize,
    scores: usize,
    has: usize,
    /// Of all of it.
    bytes: usize,
}

fn prepared(
    request: &PrepareRequest<'_, CpuDevice>,
    described: &Described,
    n_targets: usize,
    aggregate: Aggregate,
    finish: Finish,
) -> Result<Prepared> {
    let dtype = request.required_input(0)?.dtype();
    if dtype == F64 || described.dtype == F64 {
        trees::<f64>(request, described, n_targets, aggregate, finish, dtype != F64)
    } else {
        trees::<f32>(request, described, n_targets, aggregate, finish, dtype != F32)
    }
}

fn trees<T: Number + Element>(
    request: &PrepareRequest<'_, CpuDevice>,
    described: &Described,
    n_targets: usize,
    aggregate: Aggregate,
    finish: Finish,
    converts: bool,
) -> Result<Prepared> {
    let [rows, width] = rows_of(request)?;
    let input = request.required_input(0)?.dtype();
    let (n_scores, to) = match &finish {
        Finish::Targets { .. } => (n_targets, request.required_output(0)?.dtype()),
        Finish::Classes { classes, .. } => (classes.labels.len(), F32),
    };
    // A classifier may sum the scores of one class, and have two in the end.
    let n_sums = Size::of(n_scores.max(n_targets)) * BLOCK;
    let out = (Size::of(if converts { BLOCK } else { 0 }) * width * size_of::<T>()).next_multiple_of(64);
    let scores = out + Size::of(n_scores) * size_of::<f64>();
    let has = scores + n_sums * size_of::<T>();
    let bytes = (has + n_sums).next_multiple_of(64);
    const WHAT: &str = "a kernel's workspace";
    let room =
        Room { out: out.get(WHAT)?, scores: scores.get(WHAT)?, has: has.get(WHAT)?, bytes: bytes.get(WHAT)? };
    let kernel = Trees::<T> {
        host: request.host,
        forest: Forest::new(described, n_targets, aggregate)?,
        rows,
        width,
        converts: if converts { Some(Real::of(input)?) } else { None },
        to: Real::of(to)?,
        finish,
        n_scores,
        room,
    };
    Prepared::new(kernel).with_room(bytes * request.host.n_slots(), 64)
}

impl<T: Number + Element> Launch<CpuDevice> for Trees<T> {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let source = self.converts.map(|real| real.source(operands.input_ref(0)));
        let x: &[T] = if self.converts.is_some() { &[] } else { operands.input::<T>(0) };
        let (labels, at) = match &self.finish {
            Finish::Targets { .. } => (None, 0),
            Finish::Classes { .. } => (Some(SendPtr(operands.output_ptr::<i64>(0))), 1),
        };
        let labels = labels.filter(|labels| !labels.0.is_null());
        // A result that nothing uses is absent.
        let sink = (at < operands.n_outputs()).then(|| self.to.sink(operands.output_ref(at)));
        let sink = sink.filter(|sink| !sink.is_empty());
        self.host.parallel_for(self.rows, BLOCK, |range, slot| {
            let n = range.len();
            // SAFETY: the workspace has a part for each slot, which is this chunk's own while it runs.
            let mut room = unsafe { Parts::<T>::of(self, workspace.at(slot * self.room.bytes), n) };
            let x = match source {
                None => &x[range.start * self.width..range.end * self.width],
                Some(source) => {
                    for (i, x) in room.x.iter_mut().enumerate() {
                        *x = T::of(source.get(range.start * self.width + i));
                    }
                    &*room.x
                }
            };
            let n_sums = n * self.forest.n_targets;
            self.forest.score(x, n, &mut room.scores[..n_sums], &mut room.has[..n_sums]);
            for i in 0..n {
                let label = self.finish_row(&mut room, i);
                if let Some(labels) = labels {
                    // SAFETY: the row is this chunk's own.
                    unsafe { labels.at(range.start + i).write(label) };
                }
                if let Some(sink) = sink {
                    self.write(sink, range.start + i, room.out);
                }
            }
            Ok(())
        })
    }
}

/// A chunk's workspace.
struct Parts<'a, T> {
    /// Features of the block, if they are converted.
    x: &'a mut [T],
    /// Scores of a row in the end.
    out: &'a mut [f64],
    /// Sums of the block's rows, and whether there were any terms.
    scores: &'a mut [T],
    has: &'a mut [bool],
}

impl<'a, T: Number + Element> Parts<'a, T> {
    /// Divides the workspace of a slot.
    ///
    /// # Safety
    /// `at` has `room.bytes` bytes, aligned to 64, that nothing else reads or writes.
    unsafe fn of(kernel: &Trees<T>, at: *mut u8, n_rows: usize) -> Self {
        let room = &kernel.room;
        let n_sums = BLOCK * kernel.n_scores.max(kernel.forest.n_targets);
        let n_x = if kernel.converts.is_some() { n_rows * kernel.width } else { 0 };
        // SAFETY: false is 0. The bytes are the caller's own (# Safety).
        unsafe { at.add(room.has).write_bytes(0, n_sums) };
        // SAFETY: the parts do not overlap, each has as many elements as `room` was made for, and floats may have any bits;
        // the marks are zeroed above. The bytes are the caller's own (# Safety).
        unsafe {
            Self {
                x: core::slice::from_raw_parts_mut(at.cast(), n_x),
                out: core::slice::from_raw_parts_mut(at.add(room.out).cast(), kernel.n_scores),
                scores: core::slice::from_raw_parts_mut(at.add(room.scores).cast(), n_sums),
                has: core::slice::from_raw_parts_mut(at.add(room.has).cast(), n_sums),
            }
        }
    }
}

impl<T: Number + Element> Trees<T> {
    /// Computes the results of a row from its sums, and returns the label of a classifier.
    fn finish_row(&self, room: &mut Parts<'_, T>, i: usize) -> i64 {
        let n = self.forest.n_targets;
        let (scores, has) = (&mut room.scores[i * n..][..n], &mut room.has[i * n..][..n]);
        match &self.finish {
            Finish::Classes { classes, only: None } => classes.finish(scores, has, room.out),
            Finish::Classes { classes, only: Some(class) } => {
                let (mut both, mut has) = ([T::default(); 2], [false; 2]);
                both[*class as usize] = scores[0];
                has[*class as usize] = self.forest.n_trees() > 0;
                classes.finish(&mut both, &mut has, room.out)
            }
            Finish::Targets { base, post } => {
                for (i, out) in room.out.iter_mut().enumerate() {
                    let mut score = scores[i];
                    if self.forest.aggregate == Aggregate::Average {
                        score = T::of(score.wide() / self.forest.n_trees() as f64);
                    }
                    score += T::of(base.get(i).copied().unwrap_or(0.0));
                    *out = score.wide();
                }
                // As in onnxruntime: one score is no distribution, and stays as it is.
                if n > 1 || *post == Post::Probit {
                    post.apply(room.out);
                }
                0
            }
        }
    }

    /// Writes the scores of a row.
    fn write(&self, sink: Sink, row: usize, scores: &[f64]) {
        for (i, &score) in scores.iter().enumerate() {
            // SAFETY: the row is this chunk's own.
            unsafe { sink.set(row * self.n_scores + i, score) };
        }
    }
}
