//! SVMClassifier and SVMRegressor: sums of kernels of a row with support vectors.
//!
//! Features become f32, and sums are in f64. Source: libsvm for the votes of pairs of classes and their probabilities,
//! onnxruntime (svmclassifier.cc) for results that ONNX leaves open.

use super::attributes::{ints, numbers};
use super::post::{Post, logistic};
use super::rows_of;
use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::expect_output;
use crate::kernels::numbers::real::{Real, Source};
use crate::stream::CpuStream;
use devbay_ops::{ML_DOMAIN, descriptor_of};
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

const FEATURES: TypeVar = TypeVar::of(&[F32, F64, I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor_of(ML_DOMAIN, "SVMClassifier", 1, classifier)
        .types(&[FEATURES, TypeVar::of(&[I64]), TypeVar::of(&[F32])])
        .cost(cost)
        .doc("labels that are integers"),
    descriptor_of(ML_DOMAIN, "SVMRegressor", 1, regressor).types(&[FEATURES, TypeVar::of(&[F32])]).cost(cost),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let [rows, _] = rows_of(request)?;
    let numbers = |name| Ok::<_, Error>(request.attrs.floats(name)?.map_or(0, |list| list.len() as u64));
    let flops = numbers("support_vectors")? * 3 + numbers("coefficients")? * 4;
    Ok(cost::of(request, flops.saturating_mul(rows as u64)))
}

/// A function of a row and a vector.
#[derive(Clone, Copy)]
enum Kind {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

/// Vectors, and the function that compares a row with each.
struct Vectors {
    kind: Kind,
    gamma: f64,
    coef0: f64,
    degree: f64,
    width: usize,
    list: Vec<f32>,
}

impl Vectors {
    /// Reads the function of a node, for vectors of `width` features.
    fn new(attrs: &Attrs<'_>, width: usize, list: Vec<f32>, n: usize) -> Result<Self> {
        let found = list.len();
        if Some(found) != width.checked_mul(n) {
            return Err(Error::invalid(format!(
                "expected {n} vectors of the input's {width} features, found {found} numbers"
            )));
        }
        let kind = match attrs.string("kernel_type", "LINEAR")? {
            "LINEAR" => Kind::Linear,
            "POLY" => Kind::Poly,
            "RBF" => Kind::Rbf,
            "SIGMOID" => Kind::Sigmoid,
            other => {
                return Err(Error::invalid(format!(
                    "kernel_type is LINEAR, POLY, RBF or SIGMOID, found {other}"
                )));
            }
        };
        let [gamma, coef0, degree] = match attrs.floats("kernel_params")?.unwrap_or_default()[..] {
            [] => [0.0; 3],
            [gamma, coef0, degree] => [gamma, coef0, degree].map(f64::from),
            ref found => {
                let n = found.len();
                return Err(Error::invalid(format!(
                    "kernel_params has {n} entries, expected gamma, coef0 and degree"
                )));
            }
        };
        Ok(Self { kind, gamma, coef0, degree, width, list })
    }

    /// Vectors that are coefficients of the features themselves.
    fn linear(attrs: &Attrs<'_>, width: usize, list: Vec<f32>, n: usize) -> Result<Self> {
        Ok(Self { kind: Kind::Linear, ..Self::new(attrs, width, list, n)? })
    }

    /// Compares a row with every vector.
    fn compare(&self, row: &[f32], to: &mut [f64], pace: &mut Pace<'_>) -> Result<()> {
        for (i, to) in to.iter_mut().enumerate() {
            pace.work(self.width)?;
            let vector = &self.list[i * self.width..][..self.width];
            let pairs = || row.iter().zip(vector);
            *to = match self.kind {
                Kind::Rbf => {
                    let sum: f64 = pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum();
                    (-self.gamma * sum).exp()
                }
                kind => {
                    let dot: f64 = pairs().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    match kind {
                        Kind::Poly => (self.gamma * dot + self.coef0).powf(self.degree),
                        Kind::Sigmoid => (self.gamma * dot + self.coef0).tanh(),
                        Kind::Linear | Kind::Rbf => dot,
                    }
                }
            };
        }
        Ok(())
    }
}

fn floats(request: &PrepareRequest<'_, CpuDevice>, name: &str) -> Result<Vec<f32>> {
    Ok(request.attrs.floats(name)?.unwrap_or_default())
}

fn at_least(name: &str, list: &[f32], n: usize) -> Result<()> {
    if list.len() >= n {
        return Ok(());
    }
    Err(Error::invalid(format!("expected at least {n} entries in {name}, found {}", list.len())))
}

/// Rows of features, and the room of a chunk.
struct Rows {
    host: Host,
    real: Real,
    rows: usize,
    width: usize,
    /// Bytes of a slot's workspace.
    bytes: usize,
    /// Numbers of f64 in it, before the features.
    n_numbers: usize,
}

impl Rows {
    fn new(request: &PrepareRequest<'_, CpuDevice>, n_numbers: Size) -> Result<(Self, Size)> {
        let [rows, width] = rows_of(request)?;
        let bytes = (n_numbers * size_of::<f64>() + Size::of(width) * size_of::<f32>()).next_multiple_of(64);
        const WHAT: &str = "a kernel's workspace";
        let real = Real::of(request.required_input(0)?.dtype())?;
        let (n_numbers, of_slot) = (n_numbers.get(WHAT)?, bytes.get(WHAT)?);
        let room = bytes * request.host.n_slots();
        Ok((Self { host: request.host, real, rows, width, bytes: of_slot, n_numbers }, room))
    }

    /// Runs `body` for each row, with its features and room for numbers.
    fn each(
        &self,
        operands: &Operands<'_>,
        body: impl Fn(usize, &[f32], &mut [f64], &mut Pace<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let source: Source = self.real.source(operands.input_ref(0));
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let grain = (64 * 1024 / (self.n_numbers * self.width.max(1)).max(1)).max(1);
        self.host.parallel_for(self.rows, grain, |range, slot| {
            let at = workspace.at(slot * self.bytes);
            // SAFETY: the workspace has a part for each slot, which is this chunk's own while it runs; it begins with the
            // numbers, aligned to 64.
            let numbers = unsafe { core::slice::from_raw_parts_mut(at.cast::<f64>(), self.n_numbers) };
            // SAFETY: the features follow the numbers in the same part.
            let row = unsafe {
                let at = at.add(self.n_numbers * size_of::<f64>());
                core::slice::from_raw_parts_mut(at.cast::<f32>(), self.width)
            };
            let mut pace = self.host.pace();
            for i in range {
                source.read(i * self.width, row);
                body(i, row, numbers, &mut pace)?;
            }
            Ok(())
        })
    }
}

struct Regressor {
    rows: Rows,
    vectors: Vectors,
    /// Factors of the vectors; empty if the one vector is the coefficients.
    factors: Vec<f32>,
    rho: f64,
    is_one_class: bool,
}

fn regressor(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let [rows, width] = rows_of(request)?;
    expect_output(request, 0, &[rows, 1])?;
    let coefficients = floats(request, "coefficients")?;
    let rho = floats(request, "rho")?;
    at_least("rho", &rho, 1)?;
    let n = usize::try_from(request.attrs.int("n_supports", 0)?).unwrap_or(0);
    let attrs = &request.attrs;
    let (vectors, factors) = if n > 0 {
        at_least("coefficients", &coefficients, n)?;
        (Vectors::new(attrs, width, floats(request, "support_vectors")?, n)?, coefficients)
    } else {
        (Vectors::linear(attrs, width, coefficients, 1)?, Vec::new())
    };
    let (rows, room) = Rows::new(request, Size::of(n.max(1)))?;
    let is_one_class = attrs.int("one_class", 0)? != 0;
    Prepared::new(Regressor { rows, vectors, factors, rho: rho[0].into(), is_one_class }).with_room(room, 64)
}

impl Launch<CpuDevice> for Regressor {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let y = Real::of(F32)?.sink(operands.output_ref(0));
        self.rows.each(operands, |i, row, numbers, pace| {
            self.vectors.compare(row, numbers, pace)?;
            let sum = match &self.factors[..] {
                [] => numbers[0],
                factors => numbers.iter().zip(factors).map(|(a, b)| a * f64::from(*b)).sum(),
            };
            let value = sum + self.rho;
            let value = match self.is_one_class {
                true if value > 0.0 => 1.0,
                true => -1.0,
                false => value,
            };
            // SAFETY: the row is this chunk's own.
            unsafe { y.set(i, value) };
            Ok(())
        })
    }
}

struct Classifier {
    rows: Rows,
    vectors: Vectors,
    labels: Vec<i64>,
    /// The first vector of each class, and the number of all; empty if each class has one vector of coefficients.
    starts: Vec<usize>,
    /// Factors of the vectors, a row for each other class.
    factors: Vec<f32>,
    rho: Vec<f32>,
    /// The sigmoids of pairs of classes; empty if there are no probabilities.
    sigmoids: Vec<[f64; 2]>,
    is_positive: bool,
    post: Post,
    n_scores: usize,
}

fn classifier(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let [rows, width] = rows_of(request)?;
    let attrs = &request.attrs;
    let labels = ints(attrs, "classlabels_ints")?;
    if labels.is_empty() {
        return Err(Error::unsupported("classes without the attribute classlabels_ints"));
    }
    let n_classes = labels.len();
    let n_pairs = (Size::of(n_classes) * (n_classes - 1)).get("pairs of classes")? / 2;
    let (coefficients, rho) = (floats(request, "coefficients")?, floats(request, "rho")?);
    let is_positive = coefficients.iter().all(|&factor| factor >= 0.0);
    let starts = starts(&ints(attrs, "vectors_per_class")?, n_classes)?;
    let n_vectors = starts.last().copied().unwrap_or(0);
    let (vectors, factors, sigmoids) = if n_vectors > 0 {
        let n_factors = (Size::of(n_classes - 1) * n_vectors).get("factors of vectors")?;
        at_least("coefficients", &coefficients, n_factors)?;
        at_least("rho", &rho, n_pairs)?;
        let vectors = Vectors::new(attrs, width, floats(request, "support_vectors")?, n_vectors)?;
        (vectors, coefficients, sigmoids(request, n_pairs)?)
    } else {
        at_least("rho", &rho, 1)?;
        (Vectors::linear(attrs, width, coefficients, n_classes)?, Vec::new(), Vec::new())
    };
    let has_pairs = n_vectors > 0 && sigmoids.is_empty();
    let n_scores = if has_pairs && n_classes > 2 { n_pairs } else { n_classes };
    for (i, shape) in [&[rows][..], &[rows, n_scores]].into_iter().enumerate() {
        if request.output(i).is_some() {
            expect_output(request, i, shape)?;
        }
    }
    let post = Post::of_name(attrs.string("post_transform", "NONE")?)?;
    // Comparisons, scores of pairs and classes, votes, and two matrices of the probabilities.
    let n_numbers = Size::of(n_vectors.max(n_classes))
        + n_pairs
        + Size::of(n_classes) * 4
        + Size::of(n_classes) * n_classes * 2;
    let (rows, room) = Rows::new(request, n_numbers)?;
    let kernel =
        Classifier { rows, vectors, labels, starts, factors, rho, sigmoids, is_positive, post, n_scores };
    Prepared::new(kernel).with_room(room, 64)
}

/// Returns the first vector of each class, and the number of all; empty if there are none.
fn starts(counts: &[i64], n_classes: usize) -> Result<Vec<usize>> {
    if counts.iter().all(|&n| n == 0) {
        return Ok(Vec::new());
    }
    if counts.len() != n_classes {
        let n = counts.len();
        return Err(Error::invalid(format!("vectors_per_class has {n} entries for {n_classes} classes")));
    }
    let mut starts = reserve::with_capacity(counts.len() + 1, "the vectors of classes")?;
    let mut end = 0usize;
    for &n in counts {
        starts.push(end);
        let n = usize::try_from(n).ok().and_then(|n| end.checked_add(n));
        end = n.ok_or_else(|| Error::invalid(format!("vectors_per_class of {counts:?}")))?;
    }
    starts.push(end);
    Ok(starts)
}

/// Reads the sigmoids of pairs of classes.
fn sigmoids(request: &PrepareRequest<'_, CpuDevice>, n_pairs: usize) -> Result<Vec<[f64; 2]>> {
    let [a, b] = ["prob_a", "prob_b"].map(|name| numbers(&request.attrs, name, ""));
    let (a, b) = (a?.values, b?.values);
    if a.len() != b.len() {
        let (a, b) = (a.len(), b.len());
        return Err(Error::invalid(format!(
            "expected as many entries in prob_b as in prob_a, {a}, found {b}"
        )));
    }
    if !a.is_empty() && a.len() < n_pairs {
        let n = a.len();
        return Err(Error::invalid(format!(
            "expected {n_pairs} entries in prob_a, one for each pair, found {n}"
        )));
    }
    Ok(reserve::collected(a.into_iter().zip(b).map(|(a, b)| [a, b]), "sigmoids of pairs")?)
}

impl Launch<CpuDevice> for Classifier {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let labels = SendPtr(operands.output_ptr::<i64>(0));
        let z = (operands.n_outputs() > 1).then_some(()).map(|()| Real::of(F32)).transpose()?;
        let z = z.map(|real| real.sink(operands.output_ref(1))).filter(|z| !z.is_empty());
        self.rows.each(operands, |i, row, numbers, pace| {
            let (label, scores) = self.row(row, numbers, pace)?;
            if !labels.0.is_null() {
                // SAFETY: the row is this chunk's own.
                unsafe { labels.at(i).write(label) };
            }
            for (k, &score) in scores.iter().enumerate() {
                if let Some(z) = z {
                    // SAFETY: the row is this chunk's own.
                    unsafe { z.set(i * self.n_scores + k, score) };
                }
            }
            Ok(())
        })
    }
}

impl Classifier {
    /// Returns the label and the scores of a row.
    fn row<'n>(&self, row: &[f32], numbers: &'n mut [f64], pace: &mut Pace<'_>) -> Result<(i64, &'n [f64])> {
        let n = self.labels.len();
        let n_vectors = self.starts.last().copied().unwrap_or(n);
        let (compared, rest) = numbers.split_at_mut(n_vectors);
        self.vectors.compare(row, compared, pace)?;
        if self.starts.is_empty() {
            compared.iter_mut().for_each(|score| *score += f64::from(self.rho[0]));
            let best = first_largest(compared);
            let label = self.label(best, compared[best]);
            // One score of one class stays as it is: it is no distribution.
            if n > 1 || self.post == Post::Probit {
                self.post.apply(compared);
            }
            return Ok((label, compared));
        }
        let (pairs, rest) = rest.split_at_mut(n * (n - 1) / 2);
        let (votes, rest) = rest.split_at_mut(n);
        self.vote(compared, pairs, votes);
        let best = first_largest(votes);
        if !self.sigmoids.is_empty() {
            let (scores, rest) = rest.split_at_mut(n);
            self.probabilities(pairs, scores, rest);
            self.post.apply(scores);
            return Ok((self.label(best, 0.0), scores));
        }
        let label = self.label(best, 0.0);
        if n > 2 {
            if pairs.len() > 1 {
                self.post.apply(pairs);
            }
            return Ok((label, pairs));
        }
        let scores = &mut rest[..n];
        match (n, self.post) {
            (1, _) => scores[0] = 0.0,
            (_, Post::None) => scores.copy_from_slice(&[-pairs[0], pairs[0]]),
            (_, Post::Probit) => {
                self.post.apply(pairs);
                scores.copy_from_slice(&[pairs[0], -pairs[0]]);
            }
            (_, Post::Logistic) => scores.copy_from_slice(&[logistic(-pairs[0]), logistic(pairs[0])]),
            _ => scores.copy_from_slice(&[1.0 - pairs[0], pairs[0]]),
        }
        Ok((label, scores))
    }

    /// Computes the score of each pair of classes, and counts the classes that win.
    fn vote(&self, compared: &[f64], pairs: &mut [f64], votes: &mut [f64]) {
        let (n, n_vectors) = (self.labels.len(), compared.len());
        votes.fill(0.0);
        let mut pair = 0;
        for i in 0..n {
            for j in i + 1..n {
                let of = |class: usize, factors: usize| -> f64 {
                    let part = self.starts[class]..self.starts[class + 1];
                    let factors = &self.factors[factors * n_vectors..][..n_vectors];
                    let terms = compared[part.clone()].iter().zip(&factors[part]);
                    terms.map(|(a, b)| a * f64::from(*b)).sum()
                };
                let score = of(i, j - 1) + of(j, i) + f64::from(self.rho[pair]);
                pairs[pair] = score;
                votes[if score > 0.0 { i } else { j }] += 1.0;
                pair += 1;
            }
        }
    }

    /// Couples the probabilities of pairs: Wu, Lin and Weng's second method, as in libsvm.
    fn probabilities(&self, pairs: &[f64], p: &mut [f64], room: &mut [f64]) {
        let n = self.labels.len();
        let (r, rest) = room.split_at_mut(n * n);
        let (q, rest) = rest.split_at_mut(n * n);
        let qp = &mut rest[..n];
        let mut pair = 0;
        for i in 0..n {
            for j in i + 1..n {
                let [a, b] = self.sigmoids[pair];
                let p = (1.0 - logistic(pairs[pair] * a + b)).clamp(1e-7, 1.0 - 1e-7);
                (r[i * n + j], r[j * n + i]) = (p, 1.0 - p);
                pair += 1;
            }
        }
        for i in 0..n {
            p[i] = 1.0 / n as f64;
            q[i * n + i] = (0..n).filter(|&j| j != i).map(|j| r[j * n + i].powi(2)).sum();
            for j in (0..n).filter(|&j| j != i) {
                q[i * n + j] = -r[j * n + i] * r[i * n + j];
            }
        }
        for _ in 0..100 {
            let mut pqp = 0.0;
            for i in 0..n {
                qp[i] = (0..n).map(|j| q[i * n + j] * p[j]).sum();
                pqp += p[i] * qp[i];
            }
            if qp.iter().all(|qp| (qp - pqp).abs() < 0.005 / n as f64) {
                break;
            }
            for i in 0..n {
                let diff = (pqp - qp[i]) / q[i * n + i];
                p[i] += diff;
                pqp = (pqp + diff * (diff * q[i * n + i] + 2.0 * qp[i])) / (1.0 + diff) / (1.0 + diff);
                for j in 0..n {
                    qp[j] = (qp[j] + diff * q[i * n + j]) / (1.0 + diff);
                    p[j] /= 1.0 + diff;
                }
            }
        }
    }

    /// Returns the label of the best class, whose score is `most` if there are no votes. Two classes without
    /// probabilities have rules of their own in onnxruntime.
    fn label(&self, best: usize, most: f64) -> i64 {
        match self.labels[..] {
            [_, second] if self.sigmoids.is_empty() => {
                let is_second = if self.is_positive { most >= 0.5 } else { most > 0.0 };
                if is_second { second } else { self.labels[best] }
            }
            _ => self.labels[best],
        }
    }
}

fn first_largest(list: &[f64]) -> usize {
    (1..list.len()).fold(0, |best, i| if list[i] > list[best] { i } else { best })
}
