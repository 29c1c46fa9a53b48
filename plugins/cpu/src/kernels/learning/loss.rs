//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.
//!
//! Sums are made in f64 in the order of the labels on one thread, so that they are the same bits everywhere; what
//! each place costs is found in parallel and kept in the workspace.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

const LABELS: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("NegativeLogLikelihoodLoss", 12, |request| loss(request, false))
        .types(&[TypeVar::of(FLOATS), LABELS])
        .cost(cost),
    descriptor("SoftmaxCrossEntropyLoss", 12, |request| loss(request, true))
        .types(&[TypeVar::of(FLOATS), LABELS])
        .cost(cost),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 16)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

struct Loss {
    host: Host,
    real: Real,
    label: Real,
    batches: usize,
    classes: usize,
    /// Labels of a batch.
    places: usize,
    /// True if scores are no logarithms yet.
    softmax: bool,
    weighted: bool,
    ignored: Option<i64>,
    reduction: Reduction,
}

fn loss(request: &PrepareRequest<'_, CpuDevice>, softmax: bool) -> Result<Prepared> {
    let (scores, labels) = (request.required_input(0)?, request.required_input(1)?);
    let (from, of_labels) = (extents(scores)?, extents(labels)?);
    let [batches, classes, places @ ..] = &from[..] else {
        return Err(Error::invalid(format!("scores of {from:?}, expected batches and classes")));
    };
    if of_labels != [&[*batches], places].concat() {
        return Err(Error::invalid(format!("labels of {of_labels:?} for scores of {from:?}")));
    }
    let weights = request.input(2).map(extents).transpose()?;
    if let Some(found) = weights.as_ref().filter(|found| ***found != [*classes]) {
        return Err(Error::invalid(format!("weights of {found:?} for {classes} classes")));
    }
    let reduction = match request.attrs.string("reduction", "mean")? {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        other => return Err(Error::invalid(format!("reduction is none, sum or mean, found {other}"))),
    };
    let to: &[usize] = if reduction == Reduction::None { &of_labels } else { &[] };
    expect_output(request, 0, to)?;
    if request.output(1).is_some() {
        expect_output(request, 1, &from)?;
    }
    let kernel = Loss {
        host: request.host,
        real: Real::of(scores.dtype())?,
        label: Real::of(labels.dtype())?,
        batches: *batches,
        classes: *classes,
        places: places.iter().product(),
        softmax,
        weighted: weights.is_some(),
        ignored: request
            .attrs
            .get("ignore_index")
            .map(|_| request.attrs.int("ignore_index", 0))
            .transpose()?,
        reduction,
    };
    // A loss and a weight for each label.
    let n = Size::of(of_labels.iter().product::<usize>().max(1)) * 2;
    Prepared::new(kernel).with_room(n * size_of::<f64>(), 64)
}

impl Launch<CpuDevice> for Loss {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let scores = self.real.source(operands.input_ref(0));
        let labels = self.label.source(operands.input_ref(1));
        let weights = self.weighted.then(|| self.real.source(operands.input_ref(2)));
        let logs = (operands.n_outputs() > 1).then(|| self.real.sink(operands.output_ref(1)));
        let logs = logs.filter(|logs| !logs.is_empty());
        let workspace = SendPtr(operands.workspace_ptr::<[f64; 2]>());
        let n = self.batches * self.places;
        self.host.parallel_for(n, (4096 / self.classes.max(1)).max(1), |range, _| {
            for i in range {
                let found = self.one(scores, labels, weights, logs, i)?;
                // SAFETY: the workspace has room for each label, and chunks do not overlap.
                unsafe { workspace.at(i).write(found) };
            }
            Ok(())
        })?;
        let y = self.real.sink(operands.output_ref(0));
        // SAFETY: the chunks have written all of them.
        let found = unsafe { core::slice::from_raw_parts(workspace.at(0), n) };
        if self.reduction == Reduction::None {
            for (i, [loss, _]) in found.iter().enumerate() {
                // SAFETY: this is the only thread that writes.
                unsafe { y.set(i, *loss) };
            }
            return Ok(());
        }
        let sum: f64 = found.iter().map(|[loss, _]| loss).sum();
        let weight: f64 = found.iter().map(|[_, weight]| weight).sum();
        let value = if self.reduction == Reduction::Mean { sum / weight } else { sum };
        // SAFETY: this is the only thread that writes.
        unsafe { y.set(0, value) };
        Ok(())
    }
}

impl Loss {
    /// The loss of one label, and its weight.
    fn one(
        &self,
        scores: Source,
        labels: Source,
        weights: Option<Source>,
        logs: Option<Sink>,
        i: usize,
    ) -> Result<[f64; 2]> {
        let (batch, place) = (i / self.places, i % self.places);
        let at = |class: usize| (batch * self.classes + class) * self.places + place;
        let mut shift = 0.0;
        if self.softmax {
            let most = (0..self.classes).map(|class| scores.get(at(class))).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..self.classes).map(|class| (scores.get(at(class)) - most).exp()).sum();
            shift = most + sum.ln();
        }
        if let Some(logs) = logs {
            for class in 0..self.classes {
                // SAFETY: the place is this chunk's own.
                unsafe { logs.set(at(class), scores.get(at(class)) - shift) };
            }
        }
        let label = labels.get(i) as i64;
        if self.ignored == Some(label) {
            return Ok([0.0, 0.0]);
        }
        let Some(class) = usize::try_from(label).ok().filter(|&class| class < self.classes) else {
            return Err(Error::invalid(format!("label {label} of {} classes", self.classes)));
        };
        let weight = weights.map_or(1.0, |weights| weights.get(class));
        Ok([(shift - scores.get(at(class))) * weight, weight])
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn losses_are_weighted() {
        let scores = [-1.0f32, -2.0, -3.0, -4.0, -5.0, -6.0];
        let found = |labels: [i32; 3], reduction: &'static str| {
            let inputs = [
                Some(Array::of(&[3, 2], &scores)),
                Some(Array::of(&[3], &labels)),
                Some(Array::of(&[2], &[1.0f32, 3.0])),
            ];
            let shape: &[usize] = if reduction == "none" { &[3] } else { &[] };
            let attrs = [("reduction", Value::Text(reduction)), ("ignore_index", Value::Int(-7))];
            let output = [Some(Array::empty::<f32>(shape))];
            let found = run(Isa::Baseline, "NegativeLogLikelihoodLoss", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(found([0, 1, -7], "none"), Ok(vec![1.0, 12.0, 0.0]));
        assert_eq!(found([0, 1, -7], "sum"), Ok(vec![13.0]));
        assert_eq!(found([0, 1, -7], "mean"), Ok(vec![3.25]));
        for label in [2, -1] {
            let error: String = found([0, label, 0], "sum").expect_err("no such class");
            assert!(error.contains("of 2 classes"), "{error}");
        }
        assert!(found([0, 0, 0], "most").is_err());
    }

    #[test]
    fn equal_scores_cost_the_logarithm_of_the_classes() {
        let inputs = [Some(Array::of(&[1, 4, 1], &[1e6f32; 4])), Some(Array::of(&[1, 1], &[2i64]))];
        let outputs = [Some(Array::empty::<f32>(&[])), Some(Array::empty::<f32>(&[1, 4, 1]))];
        let found = run(Isa::Baseline, "SoftmaxCrossEntropyLoss", &[], &inputs, &outputs).expect("costs");
        let elements = |i: usize| found[i].as_ref().expect("an output").elements::<f32>();
        let expected = f32::ln(4.0);
        assert!((elements(0)[0] - expected).abs() < 1e-6, "{:?}", elements(0));
        assert!(elements(1).iter().all(|log| (log + expected).abs() < 1e-6), "{:?}", elements(1));
    }
}
