//! Makes one op of the many that exporters write for a LayerNormalization over the last axis, a GELU or a HardSwish.
//!
//! `(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias` becomes LayerNormalization 17, of which scale and bias
//! may be absent; a scale of ones is then made. `x * (1 + erf(x / sqrt(2))) / 2` becomes Gelu 20, and
//! `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2` the same with `approximate = "tanh"` (ONNX Gelu-20), whatever
//! the order of their factors. `x * clip(x + 3, 0, 6) / 6` and `x * HardSigmoid(x)` with slope 1 / 6 become HardSwish 22.
//! Values in between must be used inside alone; they go only if the device has a kernel that takes the new op's types.
//!
//! Runs on specialised programs, before [`super::fuse`] and [`super::fuse_elementwise`] take parts of these.

use super::search::{Search, has_kernel};
use super::{clip_limits, each_region, scalar};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{AttrValue, Node, Op, Program, Region, ValueId, catalogue};
use crate::tensor::{F32, Tensor};
use std::collections::{BTreeSet, HashMap};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// The factor of the cube in GELU's approximation by tanh.
const CUBIC: f64 = 0.044_715;
/// Greatest error of constants: they come with the digits that an exporter printed.
const OFF_MAX: f64 = 1e-5;
/// Products in one product, at most.
const DEPTH_MAX: usize = 4;

/// Fuses nodes if the kernels allow it, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Out of memory for scales.
pub fn run(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut ones = HashMap::new();
    each_region(program, &mut |program, region| fuse(program, region, kernels, stay, &mut ones))
}

fn fuse(
    program: &mut Program,
    region: &mut Region,
    kernels: &KernelTable,
    stay: &dyn Fn(&Node) -> bool,
    ones: &mut HashMap<usize, ValueId>,
) -> Result<usize> {
    let search = Search::of(program, region, stay);
    let mut found: Vec<Found> = Vec::new();
    let mut taken = BTreeSet::new();
    for at in (0..region.nodes.len()).filter(|&at| !stay(&region.nodes[at])) {
        look()?;
        let new = search.layer_norm(at).or_else(|| search.activation(at));
        let Some(new) = new.filter(|new| search.is_whole(new) && search.takes(kernels, new)) else {
            continue;
        };
        if new.members.is_disjoint(&taken) {
            taken.extend(&new.members);
            found.push(new);
        }
    }
    let gone: usize = found.iter().map(|found| found.members.len() - 1).sum();
    let mut made = HashMap::new();
    for found in found {
        made.insert(found.last, found.into_node(program, &region.nodes, ones)?);
    }
    let nodes = std::mem::take(&mut region.nodes).into_iter().enumerate();
    // The new op stands where the last of the old ones was: scale and bias may be made in between.
    let kept =
        nodes.filter_map(|(at, node)| made.remove(&at).or_else(|| (!taken.contains(&at)).then_some(node)));
    region.nodes = kept.collect();
    Ok(gone)
}

/// Nodes that one op stands for.
struct Found {
    members: BTreeSet<usize>,
    /// The one whose result it has.
    last: usize,
    x: ValueId,
    op: Fused,
}

enum Fused {
    LayerNorm { epsilon: f32, n: usize, scale: Option<ValueId>, bias: Option<ValueId> },
    Gelu { is_tanh: bool },
    HardSwish,
}

impl Fused {
    fn name(&self) -> &'static str {
        match self {
            Self::LayerNorm { .. } => "LayerNormalization",
            Self::Gelu { .. } => "Gelu",
            Self::HardSwish => "HardSwish",
        }
    }
}

impl Found {
    fn into_node(
        self,
        program: &mut Program,
        nodes: &[Node],
        ones: &mut HashMap<usize, ValueId>,
    ) -> Result<Node> {
        let def = catalogue::find("", self.op.name()).expect("the catalogue has ONNX's ops");
        let last = &nodes[self.last];
        let mut node = Node::new(Op::of(def), vec![Some(self.x)], last.outputs.clone());
        node.name = last.name.clone();
        match self.op {
            Fused::Gelu { is_tanh: false } | Fused::HardSwish => {}
            Fused::Gelu { is_tanh: true } => {
                node.set_attr("approximate", AttrValue::String("tanh".to_owned()));
            }
            Fused::LayerNorm { epsilon, n, scale, bias } => {
                let scale = match (scale, ones.get(&n)) {
                    (Some(scale), _) => scale,
                    (None, Some(known)) => *known,
                    (None, None) => {
                        let new = program.add_constant("", Tensor::from_elements(&[n], &vec![1.0f32; n])?);
                        ones.insert(n, new);
                        new
                    }
                };
                node.inputs.push(Some(scale));
                node.inputs.extend(bias.map(Some));
                node.set_attr("epsilon", AttrValue::Float(epsilon));
            }
        }
        Ok(node)
    }
}

impl Search<'_> {
    /// Returns whether values in between are unused outside, and the result is like the operand.
    fn is_whole(&self, found: &Found) -> bool {
        self.is_closed(&found.members, found.last)
            && self.nodes[found.last].output(0).and_then(|id| self.ty(id)) == self.ty(found.x)
    }

    /// Returns whether a kernel takes the new op.
    fn takes(&self, kernels: &KernelTable, found: &Found) -> bool {
        let Some(ty) = self.ty(found.x).filter(|ty| ty.dtype == F32 && ty.known_shape().is_some()) else {
            return false;
        };
        // Scale and bias are of the same element type.
        let n_inputs = match found.op {
            Fused::LayerNorm { bias, .. } => 2 + usize::from(bias.is_some()),
            Fused::Gelu { .. } | Fused::HardSwish => 1,
        };
        has_kernel(kernels, found.op.name(), &vec![Some(ty); n_inputs], ty)
    }

    /// Returns the normalisation whose division is this node, with the scale and the bias behind it.
    fn layer_norm(&self, at: usize) -> Option<Found> {
        let node = &self.nodes[at];
        let mut members = BTreeSet::from([at]);
        let (centred, deviation) = if node.op.is("Div") {
            (node.input(0)?, node.input(1)?)
        } else if node.op.is("Mul") {
            let reciprocal = |id| self.made_by(id, "Reciprocal");
            let ((inverse, inner), centred) = self.either(node, reciprocal)?;
            members.insert(inverse);
            (centred, inner.input(0)?)
        } else {
            return None;
        };
        let (root, sqrt) = self.made_by(deviation, "Sqrt")?;
        let (sum, shifted) = self.made_by(sqrt.input(0)?, "Add")?;
        let (epsilon, variance) = self.either(shifted, |id| scalar(self.program, id))?;
        let (square, of_squares) = self.mean_of_rows(variance)?;
        let (power, squared) = self.square_of(of_squares)?;
        let (x, differences) = self.centred(centred)?;
        // Some exporters subtract the mean twice.
        let (same, others) = self.centred(squared)?;
        if same != x {
            return None;
        }
        members.extend([root, sum, square, power]);
        members.extend(differences.into_iter().chain(others));
        let n = *self.shape(x)?.last()?;
        let (mut last, mut scale, mut bias) = (at, None, None);
        if let Some((next, factor)) = self.behind(last, "Mul", n) {
            (last, scale) = (next, Some(factor));
        }
        if let Some((next, term)) = self.behind(last, "Add", n) {
            (last, bias) = (next, Some(term));
        }
        members.extend([at, last]);
        members.extend(scale.and_then(|_| self.users.get(&node.output(0)?)));
        Some(Found { members, last, x, op: Fused::LayerNorm { epsilon, n, scale, bias } })
    }

    /// Returns the means of a value's rows, with an extent of 1 for the last axis: the node, and whose they are.
    fn mean_of_rows(&self, id: ValueId) -> Option<(usize, ValueId)> {
        let (at, node) = self.made_by(id, "ReduceMean")?;
        let of = node.input(0)?;
        let axes = self.program.constant(node.input(1)?)?.to_ints().ok()??;
        let rank = self.shape(of)?.len() as i64;
        let is_last = matches!(axes.as_slice(), [axis] if *axis == -1 || *axis == rank - 1);
        (is_last && node.int("keepdims", 1) == 1).then_some((at, of))
    }

    /// Returns the value that a value is the square of, and the node that makes it.
    fn square_of(&self, id: ValueId) -> Option<(usize, ValueId)> {
        if let Some((at, node)) = self.made_by(id, "Pow") {
            return (scalar(self.program, node.input(1)?)? == 2.0).then_some((at, node.input(0)?));
        }
        let (at, node) = self.made_by(id, "Mul")?;
        (node.input(0) == node.input(1)).then_some((at, node.input(0)?))
    }

    /// Returns the value of which this one is the difference from the means of its rows, and the two nodes that make
    /// it.
    fn centred(&self, id: ValueId) -> Option<(ValueId, [usize; 2])> {
        let (at, node) = self.made_by(id, "Sub")?;
        let (mean, of) = self.mean_of_rows(node.input(1)?)?;
        (node.input(0)? == of).then_some((of, [at, mean]))
    }

    /// Returns the node behind another one, its only reader, that takes a vector over the last axis as its other
    /// operand.
    fn behind(&self, at: usize, op: &str, n: usize) -> Option<(usize, ValueId)> {
        let made = self.nodes[at].output(0).filter(|id| self.uses.count(*id) == 1)?;
        let next = *self.users.get(&made)?;
        let node = &self.nodes[next];
        let is_vector = |id: ValueId| {
            let is_f32 = self.ty(id).is_some_and(|ty| ty.dtype == F32);
            (is_f32 && id != made && self.shape(id)?.as_slice() == [n]).then_some(id)
        };
        let (vector, _) = self.either(node, is_vector).filter(|_| node.op.is(op))?;
        Some((next, vector))
    }

    /// Returns the GELU or HardSwish whose last product is this node.
    fn activation(&self, at: usize) -> Option<Found> {
        let node = &self.nodes[at];
        if !(node.op.is("Mul") || node.op.is("Div")) {
            return None;
        }
        let mut members = BTreeSet::new();
        let Product { number, factors } = self.product(node.output(0)?, true, &mut members)?;
        let [a, b] = factors.as_slice() else { return None };
        [(*a, *b), (*b, *a)].into_iter().find_map(|(x, other)| {
            let mut members = members.clone();
            let op = if close(number, 0.5) {
                let inner = self.one_more(other, &mut members)?;
                Fused::Gelu { is_tanh: self.is_curve(x, inner, &mut members)? }
            } else {
                self.is_ramp(x, other, number, &mut members)?;
                Fused::HardSwish
            };
            Some(Found { members, last: at, x, op })
        })
    }

    /// Checks that a number of times a value is `clip(x / 6 + 1 / 2, 0, 1)`: as HardSigmoid, or as a Clip of `x + 3` to
    /// 0 and 6.
    fn is_ramp(&self, x: ValueId, ramp: ValueId, number: f64, members: &mut BTreeSet<usize>) -> Option<()> {
        if let Some((at, node)) = self.made_by(ramp, "HardSigmoid") {
            members.insert(at);
            let is_sixth =
                close(node.float("alpha", 0.2).into(), 1.0 / 6.0) && node.float("beta", 0.5) == 0.5;
            return (node.input(0) == Some(x) && is_sixth && close(number, 1.0)).then_some(());
        }
        let (at, node) = self.made_by(ramp, "Clip")?;
        let (sum, shifted) = self.made_by(node.input(0)?, "Add")?;
        let (three, of) = self.either(shifted, |id| scalar(self.program, id))?;
        members.extend([at, sum]);
        let limits = clip_limits(self.program, node)?;
        (of == x && three == 3.0 && limits == [0.0, 6.0] && close(number, 1.0 / 6.0)).then_some(())
    }

    /// Of a value that is another one and 1, that one.
    fn one_more(&self, id: ValueId, members: &mut BTreeSet<usize>) -> Option<ValueId> {
        let (at, node) = self.made_by(id, "Add")?;
        let one = |id| scalar(self.program, id).filter(|number| *number == 1.0);
        let (_, inner) = self.either(node, one)?;
        members.insert(at);
        Some(inner)
    }

    /// Returns false for `erf(x / sqrt(2))`, true for its approximation by tanh; None for any other value.
    fn is_curve(&self, x: ValueId, curve: ValueId, members: &mut BTreeSet<usize>) -> Option<bool> {
        if let Some((at, node)) = self.made_by(curve, "Erf") {
            members.insert(at);
            let scaled = self.product(node.input(0)?, false, members)?;
            return (close(scaled.number, FRAC_1_SQRT_2) && scaled.factors == [x]).then_some(false);
        }
        let (at, node) = self.made_by(curve, "Tanh")?;
        members.insert(at);
        let scaled = self.product(node.input(0)?, false, members)?;
        // sqrt(2 / pi)
        if !close(scaled.number, FRAC_2_SQRT_PI * FRAC_1_SQRT_2) {
            return None;
        }
        let cubic = |id: ValueId, n_factors: usize, members: &mut BTreeSet<usize>| {
            let term = self.product(id, false, members)?;
            (close(term.number, CUBIC) && term.factors == vec![x; n_factors]).then_some(true)
        };
        match scaled.factors.as_slice() {
            // x + 0.044715 x^3
            [sum] => {
                let (at, node) = self.made_by(*sum, "Add")?;
                members.insert(at);
                let (_, term) = self.either(node, |id| (id == x).then_some(()))?;
                cubic(term, 3, members)
            }
            // x (1 + 0.044715 x^2)
            [a, b] if *a == x || *b == x => {
                let term = self.one_more(if *a == x { *b } else { *a }, members)?;
                cubic(term, 2, members)
            }
            _ => None,
        }
    }

    /// A value as a product. Products in it are taken apart that are used once, and the value itself if it `is_last`.
    fn product(&self, id: ValueId, is_last: bool, members: &mut BTreeSet<usize>) -> Option<Product> {
        let mut product = Product { number: 1.0, factors: Vec::new() };
        self.take_apart(id, is_last, DEPTH_MAX, &mut product, members)?;
        Some(product)
    }

    fn take_apart(
        &self,
        id: ValueId,
        is_last: bool,
        depth: usize,
        product: &mut Product,
        members: &mut BTreeSet<usize>,
    ) -> Option<()> {
        if let Some(constant) = scalar(self.program, id) {
            product.number *= f64::from(constant);
            return Some(());
        }
        let made = |op| self.made_by(id, op).filter(|_| depth > 0 && (is_last || self.uses.count(id) == 1));
        let by_number = |op| {
            let (at, node) = made(op)?;
            Some((at, node.input(0)?, scalar(self.program, node.input(1)?)?))
        };
        if let Some((at, node)) = made("Mul") {
            members.insert(at);
            for i in 0..2 {
                self.take_apart(node.input(i)?, false, depth - 1, product, members)?;
            }
        } else if let Some((at, dividend, divisor)) = by_number("Div") {
            members.insert(at);
            product.number /= f64::from(divisor);
            self.take_apart(dividend, false, depth - 1, product, members)?;
        } else if let Some((at, of, power)) =
            by_number("Pow").filter(|(_, _, power)| [2.0, 3.0].contains(power))
        {
            members.insert(at);
            product.factors.extend(vec![of; power as usize]);
        } else {
            product.factors.push(id);
        }
        Some(())
    }
}

/// The number among a product's factors, and the others.
struct Product {
    number: f64,
    factors: Vec<ValueId>,
}

/// Returns whether a constant is a number, but for the digits that it was written with.
fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= OFF_MAX * expected
}

#[cfg(test)]
#[path = "fuse_norms_tests.rs"]
mod tests;
