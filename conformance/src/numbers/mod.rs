//! The numbers of every op: generated operands, what has to come out by a plain reference in f64, and how far each
//! element may be off.
//!
//! Trials run as nodes of a program do, each op by itself: the host picks the plugin's kernel, gives it the values that
//! the op's specification needs beforehand, and launches it. References are written from ONNX's operator
//! specification, element by element, without regard to speed; none of them is the reference of another.
//!
//! Bounds follow [`crate::ops`]: integers, truths and what is only moved are exact; an element that is one operation
//! has [`Rounding`]'s; a sum of n terms has `(n + c) * u * sum(|term|)` for any order of summation, with u the unit
//! roundoff of the dtype.

mod attention;
mod convolutions;
mod elementwise;
mod fused;
mod generate;
mod images;
mod index;
mod lines;
mod ml;
mod movement;
mod near;
mod norms;
mod order;
mod pools;
mod products;
mod quantised;
mod random;
mod recurrent;
mod reductions;
mod resize;
mod selection;
mod signal;
mod specials;
mod tokens;
mod training;
mod windows;

use crate::functions::{self, FUNCTIONS, Function};
use crate::onnx::types_unclaimed;
use crate::ops::{self, Attribute, Rounding, Sample};
use crate::rig::Rig;
use crate::tensor::{Dice, HostTensor, from_bytes, in_range, is_float, n_elements, smallest, unit_roundoff};
use crate::verdict::{Outcome, Why, failed, not_run};
use devbay_host::internals::core::program::{AttrValue, Node, Op, ValueId, catalogue};
use devbay_host::internals::core::tensor::dtype_name;
use devbay_host::internals::eager::run_node;
use devbay_host::{Device, ErrorKind, Tensor};
use devbay_plugin_api::abi::DType;
use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) const FLOATS: &[DType] = &[F32, F64, F16, BF16];
pub(crate) const INTEGERS: &[DType] = &[I32, I64, I8, I16, U8, U16, U32, U64];
pub(crate) const NUMBERS: &[DType] = &[F32, F64, I32, I64, F16, BF16, I8, I16, U8, U16, U32, U64];
pub(crate) const ANYTHING: &[DType] = &[F32, F64, I32, I64, F16, BF16, I8, I16, U8, U16, U32, U64, BOOL];

/// One node with its data and what has to come out.
pub(crate) struct Trial {
    pub attributes: Vec<(&'static str, AttrValue)>,
    /// None for an optional input that is left out.
    pub inputs: Vec<Option<HostTensor>>,
    /// The first of the op's outputs; others are not asked for.
    pub outputs: Vec<Expected>,
}

impl Trial {
    /// The same trial on images whose channels come last: the results, and the inputs at these places.
    fn channels_last(mut self, images: &[usize]) -> Self {
        for &image in images {
            if let Some(Some(image)) = self.inputs.get_mut(image) {
                (image.shape, image.values) = channels_last(&image.shape, &image.values);
            }
        }
        for output in &mut self.outputs {
            output.bounds = channels_last(&output.tensor.shape, &output.bounds).1;
            if let Some(flushed) = &mut output.flushed {
                *flushed = channels_last(&output.tensor.shape, flushed).1;
            }
            (output.tensor.shape, output.tensor.values) =
                channels_last(&output.tensor.shape, &output.tensor.values);
        }
        self
    }
}

/// Moves the second axis to the end.
fn channels_last(shape: &[i64], values: &[f64]) -> (Vec<i64>, Vec<f64>) {
    let (channels, n_pixels) = (shape[1] as usize, n_elements(&shape[2..]));
    let from = |at: usize| {
        let (pixel, channel) = (at / channels, at % channels);
        (pixel / n_pixels * channels + channel) * n_pixels + pixel % n_pixels
    };
    let mut turned = shape.to_vec();
    turned[1..].rotate_left(1);
    (turned, (0..values.len()).map(|at| values[from(at)]).collect())
}

/// An output.
pub(crate) struct Expected {
    pub tensor: HostTensor,
    /// Maximum error of each element.
    pub bounds: Vec<f64>,
    /// Results that are right as well: on a device that takes subnormal operands for 0.
    pub flushed: Option<Vec<f64>>,
}

impl Expected {
    /// Elements that have to be these.
    pub(crate) fn exact(dtype: DType, shape: &[i64], values: Vec<f64>) -> Self {
        let bounds = vec![0.0; values.len()];
        Self::within(dtype, shape, values, bounds)
    }

    /// Elements that are each a result of one operation.
    pub(crate) fn rounded(dtype: DType, shape: &[i64], values: Vec<f64>, rounding: Rounding) -> Self {
        let bounds = values.iter().map(|&value| rounding.bound(dtype, value)).collect();
        Self::within(dtype, shape, values, bounds)
    }

    /// Elements with their bounds.
    pub(crate) fn within(dtype: DType, shape: &[i64], values: Vec<f64>, bounds: Vec<f64>) -> Self {
        debug_assert!(values.len() == n_elements(shape) && bounds.len() == values.len());
        let values = if is_float(dtype) {
            values.into_iter().map(|value| in_range(dtype, value)).collect()
        } else {
            values
        };
        // Not HostTensor::new, which rounds: bounds are about the exact values.
        Self { tensor: HostTensor { dtype, shape: shape.to_vec(), values }, bounds, flushed: None }
    }
}

/// Bound of a result that is made of terms of this magnitude with `n` roundings: `n * u * magnitude`.
pub(crate) fn sum_bound(dtype: DType, n: usize, magnitude: f64) -> f64 {
    if is_float(dtype) { n as f64 * unit_roundoff(dtype) * magnitude + smallest(dtype) } else { 0.0 }
}

/// An op with its generator.
pub(crate) struct OpTrials {
    pub domain: &'static str,
    pub op: &'static str,
    /// Dtypes of the operand that the op is about.
    pub dtypes: &'static [DType],
    /// Makes the `i`-th trial of a dtype.
    pub make: fn(DType, &mut Dice, u64) -> Trial,
}

impl OpTrials {
    pub(crate) const fn new(
        op: &'static str,
        dtypes: &'static [DType],
        make: fn(DType, &mut Dice, u64) -> Trial,
    ) -> Self {
        Self { domain: "", op, dtypes, make }
    }
}

/// Generators, one list a family.
const FAMILIES: &[&[OpTrials]] = &[
    attention::OPS,
    convolutions::OPS,
    elementwise::OPS,
    fused::OPS,
    generate::OPS,
    images::OPS,
    lines::OPS,
    ml::OPS,
    movement::OPS,
    norms::OPS,
    order::OPS,
    pools::OPS,
    products::OPS,
    quantised::OPS,
    random::OPS,
    recurrent::OPS,
    reductions::OPS,
    resize::OPS,
    selection::OPS,
    signal::OPS,
    tokens::OPS,
    training::OPS,
];

/// Trials of a subject in one dtype.
const N_TRIALS: u64 = 16;

/// A shape for the `i`-th trial, of a rank from `ranks`: single elements, a tail for every width of SIMD, a good
/// size, then anything small.
pub(crate) fn shape_of(dice: &mut Dice, i: u64, ranks: std::ops::RangeInclusive<u64>) -> Vec<i64> {
    let (low, high) = (*ranks.start(), *ranks.end());
    let rank = match i {
        0 => low,
        1 | 2 => high.min(low.max(2)),
        _ => low + dice.below(high - low + 1),
    };
    let extent = |axis: u64, dice: &mut Dice| match i {
        0 => 1,
        // 67 = 64 + 3 in the last axis.
        1 => {
            if axis + 1 == rank {
                67
            } else {
                2
            }
        }
        2 => {
            if axis + 1 == rank {
                130
            } else {
                33
            }
        }
        _ => 1 + dice.below(8) as i64,
    };
    (0..rank).map(|axis| extent(axis, dice)).collect()
}

/// Source of an op's trials: the base set, whose samples other cases use too, or a family of this module.
enum Generator {
    Base(&'static ops::Op),
    Family(&'static OpTrials),
    /// An op of one number, by its functions.
    Functions(&'static str, &'static str),
}

impl Generator {
    fn of(domain: &str, op: &str) -> Option<Self> {
        let base = ops::find(op).filter(|_| domain.is_empty()).map(Self::Base);
        let is_it = |subject: &&OpTrials| subject.domain == domain && subject.op == op;
        let family = || FAMILIES.iter().copied().flatten().find(is_it).map(Self::Family);
        let functions = || functions::of_op(domain, op).next().map(Function::op);
        base.or_else(family).or_else(|| functions().map(|(domain, op)| Self::Functions(domain, op)))
    }

    fn dtypes(&self) -> &'static [DType] {
        match self {
            Self::Base(op) => op.dtypes,
            Self::Family(subject) => subject.dtypes,
            Self::Functions(..) => FLOATS,
        }
    }

    fn trials(&self, dtype: DType) -> Vec<Trial> {
        match self {
            Self::Base(op) => op.samples(dtype).into_iter().map(Trial::from).collect(),
            Self::Family(subject) => {
                (0..N_TRIALS).map(|i| (subject.make)(dtype, &mut Dice::new(5000 + i), i)).collect()
            }
            Self::Functions(domain, op) => {
                let trials = functions::of_op(domain, op).flat_map(|function| {
                    (0..N_TRIALS)
                        .map(move |i| elementwise::unary(dtype, &mut Dice::new(5000 + i), i, function))
                });
                trials.collect()
            }
        }
    }
}

impl From<Sample> for Trial {
    fn from(sample: Sample) -> Self {
        let attribute = |attribute| match attribute {
            Attribute::Int(name, i) => (name, AttrValue::Int(i)),
            Attribute::Ints(name, list) => (name, AttrValue::Ints(list)),
        };
        Self {
            attributes: sample.attributes.into_iter().map(attribute).collect(),
            inputs: sample.inputs.into_iter().map(Some).collect(),
            outputs: vec![Expected {
                tensor: sample.expected,
                bounds: sample.bounds,
                flushed: sample.flushed,
            }],
        }
    }
}

/// Returns the ops whose numbers are judged, by domain and name: the base set first, then one family after the other.
pub(crate) fn subjects() -> Vec<(&'static str, &'static str)> {
    let base = ops::OPS.iter().chain(ops::MORE).map(|op| ("", op.name));
    let families = FAMILIES.iter().copied().flatten().map(|subject| (subject.domain, subject.op));
    let mut subjects = Vec::new();
    for subject in base.chain(FUNCTIONS.iter().map(Function::op)).chain(families) {
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    subjects
}

/// Those of them that are judged by NaN, infinities and the other numbers of [`specials`] too.
pub(crate) fn special_subjects() -> Vec<(&'static str, &'static str)> {
    let of_functions = FUNCTIONS.iter().filter(|function| function.has_edges).map(Function::op);
    let mut subjects = Vec::new();
    for subject in of_functions.chain(specials::OTHERS.iter().copied()) {
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    subjects
}

/// Judges the plugin's kernels for an op, on every device.
pub(crate) fn judge(rig: &Rig<'_>, (domain, op): (&str, &str)) -> Outcome {
    let Some(generator) = Generator::of(domain, op) else {
        return failed(format!("the suite has no reference for {op}"));
    };
    judge_trials(rig, domain, op, generator.dtypes(), |dtype| generator.trials(dtype))
}

/// Judges them by NaN, infinities and the other numbers of [`specials`].
pub(crate) fn judge_specials(rig: &Rig<'_>, (domain, op): (&str, &str)) -> Outcome {
    judge_trials(rig, domain, op, FLOATS, |dtype| specials::trials(domain, op, dtype))
}

fn judge_trials(
    rig: &Rig<'_>,
    domain: &str,
    op: &str,
    dtypes: &[DType],
    trials: impl Fn(DType) -> Vec<Trial>,
) -> Outcome {
    if !rig.about()?.kernels.has(domain, op) {
        return not_run(Why::NotOffered, format!("the plugin has no kernel for {op}"));
    }
    let (_runtime, devices) = rig.devices()?;
    let (mut n_right, mut n_refused, mut n_unclaimed) = (0, 0, 0);
    for device in &devices {
        for &dtype in dtypes {
            for trial in trials(dtype) {
                match trial.run(device, domain, op)? {
                    Answer::Right => n_right += 1,
                    Answer::Refused => n_refused += 1,
                    Answer::NotClaimed => n_unclaimed += 1,
                }
            }
        }
    }
    if n_refused + n_unclaimed > 0 {
        // A case notes once.
        let _ = rig.note.set(format!(
            "{n_right} trials correct; {n_refused} refused by prepare, {n_unclaimed} of unclaimed types"
        ));
    }
    match (n_right, n_refused) {
        (0, 0) => {
            not_run(Why::NotOffered, format!("no kernel for {op} accepts a dtype that the suite tests"))
        }
        (0, _) => not_run(Why::Refused, "prepare returned UNSUPPORTED for every trial"),
        _ => Ok(()),
    }
}

/// Answer of a plugin to a trial that is not wrong.
enum Answer {
    Right,
    Refused,
    NotClaimed,
}

impl Trial {
    fn run(&self, device: &Arc<Device>, domain: &str, op: &str) -> Outcome<Answer> {
        let version = catalogue::find(domain, op).map_or(1, |def| def.version);
        // The numbers only tell operands apart; there is no program.
        let n_inputs = self.inputs.len();
        let inputs =
            self.inputs.iter().enumerate().map(|(i, input)| input.as_ref().map(|_| ValueId(i as u32)));
        let outputs = (n_inputs..n_inputs + self.outputs.len()).map(|i| Some(ValueId(i as u32)));
        let name = Op { domain: domain.into(), name: op.into(), version };
        let mut node = Node::new(name, inputs.collect(), outputs.collect());
        node.attrs = self.attributes.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect();

        let tensors: Vec<Option<Tensor>> = self
            .inputs
            .iter()
            .map(|input| input.as_ref().map(host_tensor).transpose())
            .collect::<Outcome<_>>()?;
        let operands: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
        let results = self.outputs.iter().enumerate();
        let results: HashMap<ValueId, _> = results
            .map(|(i, output)| {
                Ok((ValueId((n_inputs + i) as u32), host_tensor(&output.tensor)?.tensor_type()))
            })
            .collect::<Outcome<_>>()?;
        if types_unclaimed(&node, &operands, &results, device).is_some() {
            return Ok(Answer::NotClaimed);
        }
        let found = match run_node(device, &node, &operands) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::UnsupportedOp => return Ok(Answer::Refused),
            Err(error) => return failed(format!("{}: {error}", self.describe(op)).replace('\n', " ")),
        };
        for (i, (found, expected)) in found.iter().zip(&self.outputs).enumerate() {
            if let Some(text) = expected.difference(found) {
                return failed(format!("{}: output {i}: {text}", self.describe(op)));
            }
        }
        Ok(Answer::Right)
    }

    fn describe(&self, op: &str) -> String {
        let operand = |input: &Option<HostTensor>| match input {
            Some(input) => format!("{}{:?}", dtype_name(input.dtype), input.shape),
            None => "nothing".to_owned(),
        };
        let operands: Vec<String> = self.inputs.iter().map(operand).collect();
        let attributes: Vec<String> =
            self.attributes.iter().map(|(name, value)| format!(" {name}={value:?}")).collect();
        format!("{op} of {}{}", operands.join(", "), attributes.concat())
    }
}

impl Expected {
    /// Says what differs, if something does.
    fn difference(&self, found: &Tensor) -> Option<String> {
        let expected = &self.tensor;
        let shape: Vec<i64> = found.shape().iter().map(|&extent| extent as i64).collect();
        if found.dtype() != expected.dtype || shape != expected.shape {
            return Some(format!(
                "{}{shape:?}, expected {}{:?}",
                dtype_name(found.dtype()),
                dtype_name(expected.dtype),
                expected.shape
            ));
        }
        let found = from_bytes(expected.dtype, found.bytes());
        (0..found.len()).find_map(|i| {
            let within = |value: f64| {
                // A NaN is within no bound, and an infinity is its own.
                found[i] == value
                    || (found[i].is_nan() && value.is_nan())
                    || (found[i] - value).abs() <= self.bounds[i]
            };
            let right = self.bounds[i] == specials::OPEN
                || within(expected.values[i])
                || self.flushed.as_ref().is_some_and(|flushed| within(flushed[i]));
            (!right).then(|| {
                format!(
                    "element {i} is {}, expected {} within {:.1e}",
                    found[i], expected.values[i], self.bounds[i]
                )
            })
        })
    }
}

fn host_tensor(tensor: &HostTensor) -> Outcome<Tensor> {
    let shape: Vec<usize> = tensor.shape.iter().map(|&extent| extent as usize).collect();
    Tensor::from_bytes(tensor.dtype, &shape, &tensor.bytes()).or_else(|error| failed(error.to_string()))
}
