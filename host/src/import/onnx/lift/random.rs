//! Lowers random ops: numbers from a seed by devbay's Philox, and ONNX's ops that make the distribution of them.
//!
//! The seed is a value like any other: an input of the program, and in the body of a Loop or Scan a state that each iteration
//! advances. So random nodes need no rule of their own in passes, plans and devices: they are not constant, two nodes differ
//! by their streams, and what is the same in each iteration does not depend on the state (docs/decisions/0028).

use super::super::invalid;
use super::lowering::{Lowering, Row, row};
use super::{Lifter, held, scalar};
use devbay_core::Result;
use devbay_core::program::onnx_types::{dtype_from_onnx, dtype_to_onnx};
use devbay_core::program::{AttrValue, Node, Op, Program, Region, SEED_WORDS, ValueId};
use devbay_core::tensor::{BF16, BOOL, DType, F16, F32, F64, I32, I64, Tensor, U32, dtype_name};
use half::{bf16, f16};

/// Random ops, sorted by name.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("Bernoulli", (1, 1), "dtype seed", bernoulli),
    row("Dropout", (3, 2), "", dropout),
    row("Multinomial", (1, 1), "dtype sample_size seed", multinomial),
    row("RandomNormal", (0, 1), "dtype mean scale seed shape", normal),
    row("RandomNormalLike", (1, 1), "dtype mean scale seed", normal),
    row("RandomUniform", (0, 1), "dtype high low seed shape", uniform),
    row("RandomUniformLike", (1, 1), "dtype high low seed", uniform),
];

/// Streams from this one on are of nodes with a seed of their own. Those with one seed give the same numbers.
const OWN_STREAMS: i64 = 1 << 31;

/// Returns the lowering of a random node. A Dropout with a seed has a kernel, which draws the numbers of ONNX's tests.
pub(super) fn find(node: &Node) -> Option<&'static Row> {
    if !node.op.domain.is_empty()
        || (node.op.is("Dropout") && (node.op.version < 12 || node.attr("seed").is_some()))
    {
        return None;
    }
    let i = ROWS.binary_search_by(|row| row.name.cmp(&node.op.name)).ok()?;
    Some(&ROWS[i])
}

/// The seeds that random nodes use, and the streams that tell nodes apart.
pub(in super::super) struct Seed {
    /// Seeds of the main graph and of the loop bodies around the present node; None until a node uses one.
    open: Vec<Option<ValueId>>,
    n_streams: i64,
}

impl Default for Seed {
    fn default() -> Self {
        Self { open: vec![None], n_streams: 0 }
    }
}

impl Seed {
    /// Begins the body of a loop, whose iterations have seeds of their own.
    pub(in super::super) fn enter(&mut self) {
        self.open.push(None);
    }

    /// Ends a body, or the main graph, and returns its seed; None if it has no random numbers.
    pub(in super::super) fn leave(&mut self) -> Option<ValueId> {
        self.open.pop().flatten()
    }

    /// Returns the seed at the present node.
    fn value(&mut self, program: &mut Program) -> ValueId {
        match self.open.last_mut() {
            Some(open) => *open.get_or_insert_with(|| program.add_seed()),
            None => program.add_seed(),
        }
    }

    fn stream(&mut self) -> i64 {
        self.n_streams += 1;
        self.n_streams - 1
    }
}

impl Lifter {
    /// Makes the seed of a body a state of its Loop or Scan, which begins with the seed around it.
    pub(in super::super) fn carry_seed(
        &mut self,
        program: &mut Program,
        node: &mut Node,
        seed: ValueId,
    ) -> Result<()> {
        let is_loop = node.op.is("Loop");
        let n_scanned = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(usize::MAX);
        let around = self.seed.value(program);
        let Some((_, body)) = node.regions.iter_mut().find(|(name, _)| &**name == "body") else {
            return Err(invalid("expected a body, found none"));
        };
        // A body of Loop begins with the iteration and the condition, and gives the condition first.
        let (n_before, at_body) = match is_loop {
            true => (2, body.inputs.len()),
            false => (0, body.inputs.len().saturating_sub(n_scanned)),
        };
        let n_states =
            at_body.checked_sub(n_before).filter(|n| n + usize::from(is_loop) <= body.outputs.len());
        let n_states = n_states.filter(|&n| n <= node.outputs.len() && (is_loop || n <= node.inputs.len()));
        let n_states = n_states.ok_or_else(|| {
            let found = (body.inputs.len(), body.outputs.len());
            invalid(format!(
                "expected a body with the states of {}, found {found:?} inputs and outputs",
                node.op
            ))
        })?;
        let next = self.next_seed(program, body, seed)?;
        body.inputs.insert(at_body, seed);
        body.outputs.insert(n_states + usize::from(is_loop), next);
        let at = n_before + n_states;
        node.inputs.resize(node.inputs.len().max(at), None);
        node.inputs.insert(at, Some(around));
        node.outputs.insert(n_states, None);
        Ok(())
    }

    /// Appends the seed of the next iteration: its key stays, and the words that tell runs apart are drawn with another key,
    /// so that they do not depend on the session's seed. Nodes with a seed of their own repeat theirs in any session.
    fn next_seed(&mut self, program: &mut Program, body: &mut Region, seed: ValueId) -> Result<ValueId> {
        let shape = program.add_constant("", Tensor::from_elements(&[1], &[SEED_WORDS as i64])?);
        let is_key = program.add_constant("", Tensor::from_bytes(BOOL, &[SEED_WORDS], &[1, 1, 0, 0])?);
        let (drawn, next) = (program.add_value(Default::default()), program.add_seed());
        let mut draw = Node::new(Op::devbay("Philox", 1), vec![Some(seed), Some(shape)], vec![Some(drawn)]);
        draw.set_attr("dtype", AttrValue::Int(dtype_to_onnx(U32)?));
        draw.set_attr("key", AttrValue::Ints(vec![0, 0]));
        draw.set_attr("stream", AttrValue::Int(self.seed.stream()));
        let choose = Node::new(held("Where"), vec![Some(is_key), Some(seed), Some(drawn)], vec![Some(next)]);
        for node in [draw, choose] {
            self.lift(program, node, &mut body.nodes)?;
        }
        Ok(next)
    }
}

/// RandomNormal and RandomNormalLike, by Box and Muller's formula: `sqrt(-2 ln(1 - a)) cos(2 pi b)` of two uniform numbers.
fn normal(l: &mut Lowering<'_>) -> Result<()> {
    let (mean, deviation) = (finite(l, "mean", 0.0)?, finite(l, "scale", 1.0)?);
    if deviation < 0.0 {
        return Err(invalid(format!("expected a scale of 0 or more, found {deviation}")));
    }
    let (dtype, shape) = (float_result(l)?, shape(l)?);
    let mut draws = Draws::new(l, working(dtype), shape);
    let [a, b] = [draws.draw()?, draws.draw()?];
    let Draws { l, dtype: work, .. } = draws;
    let number = |l: &mut Lowering<'_>, value: f64| constant(l, work, value);
    let (one, two, circle) = (number(l, 1.0)?, number(l, -2.0)?, number(l, std::f64::consts::TAU)?);
    // From above 0 to 1: the logarithm of 0 does not occur.
    let a = l.op("Sub", &[one, a])?;
    let log = l.op("Log", &[a])?;
    let square = l.op("Mul", &[log, two])?;
    let radius = l.op("Sqrt", &[square])?;
    let angle = l.op("Mul", &[b, circle])?;
    let cosine = l.op("Cos", &[angle])?;
    let standard = l.op("Mul", &[radius, cosine])?;
    let values = scaled(l, work, standard, deviation.into(), mean.into())?;
    let values = l.cast(values, dtype)?;
    l.give(0, values).map(drop)
}

/// RandomUniform and RandomUniformLike.
fn uniform(l: &mut Lowering<'_>) -> Result<()> {
    let (low, high) = (finite(l, "low", 0.0)?, finite(l, "high", 1.0)?);
    let range = high - low;
    if range < 0.0 || !range.is_finite() {
        return Err(invalid(format!("expected low below high, found {low} and {high}")));
    }
    let (dtype, shape) = (float_result(l)?, shape(l)?);
    let values = Draws::new(l, working(dtype), shape).draw()?;
    let values = scaled(l, working(dtype), values, range.into(), low.into())?;
    let values = l.cast(values, dtype)?;
    l.give(0, values).map(drop)
}

/// Bernoulli: 1 where a uniform number is below the probability.
fn bernoulli(l: &mut Lowering<'_>) -> Result<()> {
    let probabilities = float_operand(l, 0)?;
    let to = given_dtype(l)?;
    let work = l.dtype(probabilities).map_or(F32, working);
    let shape = l.op("Shape", &[probabilities])?;
    let drawn = Draws::new(l, work, shape).draw()?;
    let below = l.cast(probabilities, work)?;
    let is_one = l.op("Less", &[drawn, below])?;
    let values = match to.or_else(|| l.dtype(probabilities)) {
        Some(dtype) => l.cast(is_one, dtype)?,
        None => l.op("CastLike", &[is_one, probabilities])?,
    };
    l.give(0, values).map(drop)
}

/// Multinomial: the first class whose cumulative probability is above a uniform number, by sums in f64.
fn multinomial(l: &mut Lowering<'_>) -> Result<()> {
    let logarithms = float_operand(l, 0)?;
    if let Some(rank) = l.rank(logarithms).filter(|&rank| rank != 2) {
        return Err(invalid(format!("expected an input of two dimensions, found {rank}")));
    }
    let n = l.int("sample_size", 1);
    if n < 1 {
        return Err(invalid(format!("expected a sample_size of 1 or more, found {n}")));
    }
    let dtype = given_dtype(l)?.unwrap_or(I32);
    if ![I32, I64].contains(&dtype) {
        return Err(invalid(format!("expected i32 or i64 as dtype, found {}", dtype_name(dtype))));
    }
    let (classes, n) = (l.ints(&[1])?, l.ints(&[n])?);
    let rows = l.extents(logarithms, 0, 1)?;
    let shape = l.op_with("Concat", &[rows, n], &[("axis", AttrValue::Int(0))])?;
    let drawn = Draws::new(l, F64, shape).draw()?;
    let x = l.cast(logarithms, F64)?;
    let greatest = l.op("ReduceMax", &[x, classes])?;
    let x = l.op("Sub", &[x, greatest])?;
    let x = l.op("Exp", &[x])?;
    let axis = l.int_scalar(1)?;
    let sums = l.op("CumSum", &[x, axis])?;
    let all = l.op("ReduceMax", &[sums, classes])?;
    let drawn = l.op("Mul", &[drawn, all])?;
    // By row, sample and class. A product is below the last sum, so that there is always a class above it.
    let (sums, drawn) = (l.unsqueeze(sums, &[1])?, l.unsqueeze(drawn, &[2])?);
    let is_before = l.op("LessOrEqual", &[sums, drawn])?;
    let is_before = l.cast(is_before, I32)?;
    let axes = l.ints(&[2])?;
    let values = l.op_with("ReduceSum", &[is_before, axes], &[("keepdims", AttrValue::Int(0))])?;
    let values = l.cast(values, dtype)?;
    l.give(0, values).map(drop)
}

/// Dropout in training: an element is 0 where a uniform number is below the ratio, and scaled up elsewhere. Without training,
/// the ratio is 0.
fn dropout(l: &mut Lowering<'_>) -> Result<()> {
    let data = float_operand(l, 0)?;
    let training = l.operand(2)?;
    let work = l.dtype(data).map_or(F32, working);
    let (zero, one) = (constant(l, work, 0.0)?, constant(l, work, 1.0)?);
    let ratio = match l.optional(1) {
        None => constant(l, work, 0.5)?,
        Some(ratio) => {
            check_ratio(l, ratio)?;
            let ratio = l.cast(ratio, work)?;
            l.scalar_of(ratio)?
        }
    };
    let is_on = l.program.constant(training).and_then(Tensor::to_int) == Some(1);
    let ratio = if is_on {
        ratio
    } else {
        let training = l.scalar_of(training)?;
        l.op("Where", &[training, ratio, zero])?
    };
    let shape = l.op("Shape", &[data])?;
    let drawn = Draws::new(l, work, shape).draw()?;
    let is_kept = l.op("GreaterOrEqual", &[drawn, ratio])?;
    let kept = l.op("Sub", &[one, ratio])?;
    let factor = l.op("Div", &[one, kept])?;
    let x = l.cast(data, work)?;
    let x = l.op("Mul", &[x, factor])?;
    let x = l.op("Where", &[is_kept, x, zero])?;
    let x = match l.dtype(data) {
        Some(dtype) => l.cast(x, dtype)?,
        None => l.op("CastLike", &[x, data])?,
    };
    l.give(0, x)?;
    l.give(1, is_kept).map(drop)
}

/// Refuses a constant ratio that leaves nothing, or is not one.
fn check_ratio(l: &Lowering<'_>, ratio: ValueId) -> Result<()> {
    let content = |tensor: &Tensor| -> Option<f64> {
        let bytes = tensor.bytes();
        Some(match tensor.dtype() {
            F32 => f32::from_le_bytes(bytes.try_into().ok()?).into(),
            F64 => f64::from_le_bytes(bytes.try_into().ok()?),
            F16 => f16::from_le_bytes(bytes.try_into().ok()?).into(),
            BF16 => bf16::from_le_bytes(bytes.try_into().ok()?).into(),
            _ => return None,
        })
    };
    let Some(tensor) = l.program.constant(ratio) else { return Ok(()) };
    match content(tensor) {
        Some(found) if (0.0..1.0).contains(&found) => Ok(()),
        Some(found) => Err(invalid(format!("expected a ratio from 0 to below 1, found {found}"))),
        None => Err(invalid(format!("expected one float as ratio, found {}", tensor.tensor_type()))),
    }
}

/// Draws of one node: uniform numbers from 0 to below 1 of one shape.
struct Draws<'l, 'a> {
    l: &'l mut Lowering<'a>,
    dtype: DType,
    shape: ValueId,
    /// The key of a node with a seed of its own.
    key: Option<u32>,
    n: i64,
}

impl<'l, 'a> Draws<'l, 'a> {
    fn new(l: &'l mut Lowering<'a>, dtype: DType, shape: ValueId) -> Self {
        let key = match l.node.attr("seed") {
            Some(AttrValue::Float(seed)) => Some(seed.to_bits()),
            _ => None,
        };
        Self { l, dtype, shape, key, n: 0 }
    }

    fn draw(&mut self) -> Result<ValueId> {
        let l = &mut *self.l;
        let seed = l.lifter.seed.value(l.program);
        let mut attrs = vec![("dtype", AttrValue::Int(dtype_to_onnx(self.dtype)?))];
        let stream = match self.key {
            None => l.lifter.seed.stream(),
            Some(key) => {
                attrs.push(("key", AttrValue::Ints(vec![key.into(), 0])));
                self.n += 1;
                OWN_STREAMS + self.n - 1
            }
        };
        attrs.push(("stream", AttrValue::Int(stream)));
        Ok(l.append(Op::devbay("Philox", 1), &[Some(seed), Some(self.shape)], &attrs, 1)?[0])
    }
}

/// Returns the type that numbers are calculated in, for results of a type: 53 random bits for f64, else 24.
fn working(dtype: DType) -> DType {
    if dtype == F64 { F64 } else { F32 }
}

/// Returns `factor x + term`, without what changes nothing.
fn scaled(l: &mut Lowering<'_>, dtype: DType, x: ValueId, factor: f64, term: f64) -> Result<ValueId> {
    let x = match factor == 1.0 {
        true => x,
        false => {
            let factor = constant(l, dtype, factor)?;
            l.op("Mul", &[x, factor])?
        }
    };
    if term == 0.0 {
        return Ok(x);
    }
    let term = constant(l, dtype, term)?;
    l.op("Add", &[x, term])
}

/// Adds a number in f32 or f64.
fn constant(l: &mut Lowering<'_>, dtype: DType, value: f64) -> Result<ValueId> {
    match dtype {
        F64 => Ok(l.program.add_constant("", Tensor::from_elements(&[], &[value])?)),
        _ => scalar(l.program, dtype, value as f32),
    }
}

/// Returns an attribute that is a finite number.
fn finite(l: &Lowering<'_>, name: &str, default: f32) -> Result<f32> {
    let found = l.float(name, default);
    if found.is_finite() {
        Ok(found)
    } else {
        Err(invalid(format!("expected a finite {name}, found {found}")))
    }
}

/// Returns an operand whose type, if known, is a float.
fn float_operand(l: &Lowering<'_>, i: usize) -> Result<ValueId> {
    let id = l.operand(i)?;
    match l.dtype(id) {
        Some(dtype) if ![F16, BF16, F32, F64].contains(&dtype) => {
            Err(invalid(format!("expected a float as input {i}, found {}", dtype_name(dtype))))
        }
        _ => Ok(id),
    }
}

/// Returns the attribute `dtype`, if it is there.
fn given_dtype(l: &Lowering<'_>) -> Result<Option<DType>> {
    match l.node.attr("dtype") {
        Some(AttrValue::Int(number)) => Ok(Some(dtype_from_onnx(*number)?)),
        _ => Ok(None),
    }
}

/// Returns the type of a node's floats: the attribute, else that of its operand, else f32.
fn float_result(l: &Lowering<'_>) -> Result<DType> {
    let dtype = match (given_dtype(l)?, l.optional(0)) {
        (Some(dtype), _) => dtype,
        (None, None) => F32,
        (None, Some(like)) => l.required_dtype(like)?,
    };
    match dtype {
        F16 | BF16 | F32 | F64 => Ok(dtype),
        other => Err(invalid(format!("expected a float as dtype, found {}", dtype_name(other)))),
    }
}

/// Returns the shape of a node's result: that of its operand, or the attribute.
fn shape(l: &mut Lowering<'_>) -> Result<ValueId> {
    if l.node.op.name.ends_with("Like") {
        let like = l.operand(0)?;
        return l.op("Shape", &[like]);
    }
    let shape = match l.node.attr("shape") {
        Some(AttrValue::Ints(shape)) => shape.clone(),
        _ => return Err(invalid("expected the attribute shape, found none")),
    };
    if let Some(found) = shape.iter().find(|&&extent| extent < 0) {
        return Err(invalid(format!("expected extents of 0 or more as shape, found {found}")));
    }
    l.ints(&shape)
}

#[cfg(test)]
mod tests {
    use super::ROWS;

    #[test]
    fn rows_are_sorted() {
        assert!(ROWS.is_sorted_by_key(|row| row.name));
    }
}
