//! Makes one Attention of the products, the Softmax and the transpositions that exporters write for it.
//!
//! `Softmax(scale * Q K^T + mask) V` over the last two axes becomes Attention 25 (ONNX). Factors, constant numbers, stand at
//! scores, queries or keys. Queries, keys and values have the extents `[batch, heads, sequence, size]`, the first may be
//! missing. Where all three are transposed from `[batch, sequence, heads, size]`, and the result is transposed back, the op
//! takes them as they were and no transposition is left; else the keys' goes alone.
//!
//! Values in between must be used inside alone; they go only if the device has a kernel that takes the new op's types.
//!
//! To the op, minus infinity in a mask is more than a number: hidden elements may hold anything, and a query that sees
//! nothing gets zeros, where the many ops give NaN. So a mask that may have it stays added, and only one that is
//! known to be finite (`range.rs`) becomes the op's.

use super::search::{Search, has_kernel};
use super::{each_region, has_constant_shape, reshape, scalar};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{AttrValue, Node, Op, Program, Region, ValueId, catalogue};
use crate::tensor::{F32, TensorType};
use std::collections::{BTreeSet, HashMap};

/// Fuses nodes if the kernels allow it, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Out of memory for constants.
pub fn run(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| fuse(program, region, kernels, stay))
}

fn fuse(
    program: &mut Program,
    region: &mut Region,
    kernels: &KernelTable,
    stay: &dyn Fn(&Node) -> bool,
) -> Result<usize> {
    let search = Search::of(program, region, stay);
    let mut found: Vec<Found> = Vec::new();
    let mut taken = BTreeSet::new();
    for at in (0..region.nodes.len()).filter(|&at| !stay(&region.nodes[at])) {
        look()?;
        let Some(new) = search.attention(at).filter(|new| search.is_closed(&new.members, new.last)) else {
            continue;
        };
        let types = new.types();
        let inputs: Vec<_> = types[..3].iter().map(Some).chain(new.mask.map(|id| search.ty(id))).collect();
        if new.members.is_disjoint(&taken) && has_kernel(kernels, "Attention", &inputs, &types[3]) {
            taken.extend(&new.members);
            found.push(new);
        }
    }
    let gone: usize = found.iter().map(|found| found.members.len() - 1).sum();
    let mut made = HashMap::new();
    for found in found {
        made.insert(found.last, found.into_nodes(program, &region.nodes)?);
    }
    for (at, node) in std::mem::take(&mut region.nodes).into_iter().enumerate() {
        match made.remove(&at) {
            Some(nodes) => region.nodes.extend(nodes),
            None if taken.contains(&at) => {}
            None => region.nodes.push(node),
        }
    }
    Ok(gone)
}

/// An operand: the value, and the extents that the op takes it with.
struct Operand {
    id: ValueId,
    extents: Vec<usize>,
}

/// Nodes that one op stands for.
struct Found {
    members: BTreeSet<usize>,
    /// The one whose result it has.
    last: usize,
    operands: [Operand; 3],
    mask: Option<ValueId>,
    scale: f32,
    /// Heads, where they stand behind the sequence.
    heads_inside: Option<usize>,
    /// Extents of the op's result.
    result: Vec<usize>,
}

impl Found {
    /// Returns the types of queries, keys, values and result.
    fn types(&self) -> [TensorType; 4] {
        let [q, k, v] = &self.operands;
        [&q.extents, &k.extents, &v.extents, &self.result].map(|extents| TensorType::new(F32, extents))
    }

    fn into_nodes(self, program: &mut Program, nodes: &[Node]) -> Result<Vec<Node>> {
        let types = self.types();
        let last = &nodes[self.last];
        let mut all = Vec::new();
        let mut inputs = Vec::new();
        for (operand, ty) in self.operands.iter().zip(&types) {
            let is_like = program.value(operand.id).ty.as_ref() == Some(ty);
            inputs.push(Some(match is_like {
                true => operand.id,
                false => {
                    let new = program.add_typed("", ty.clone());
                    all.push(reshape(program, operand.id, &operand.extents, new)?);
                    new
                }
            }));
        }
        inputs.extend(self.mask.map(Some));
        let result = last.outputs[0].expect("the last node's result was found");
        let is_like = program.value(result).ty.as_ref() == Some(&types[3]);
        let y = if is_like { result } else { program.add_typed("", types[3].clone()) };
        let def = catalogue::find("", "Attention").expect("the catalogue has ONNX's ops");
        let mut node = Node::new(Op::of(def), inputs, vec![Some(y)]);
        node.name = last.name.clone();
        if let Some(heads) = self.heads_inside {
            node.set_attr("kv_num_heads", AttrValue::Int(heads as i64));
            node.set_attr("q_num_heads", AttrValue::Int(heads as i64));
        }
        node.set_attr("scale", AttrValue::Float(self.scale));
        all.push(node);
        if !is_like {
            let extents = program.value(result).ty.as_ref().and_then(TensorType::known_shape);
            all.push(reshape(program, y, &extents.expect("its extents were compared"), result)?);
        }
        Ok(all)
    }
}

impl Search<'_> {
    /// Returns the attention whose product with the values is this node.
    fn attention(&self, at: usize) -> Option<Found> {
        let node = &self.nodes[at];
        if !node.op.is("MatMul") {
            return None;
        }
        let (weights, v) = (node.input(0)?, node.input(1)?);
        let (softmax, of_scores) = self.made_by(weights, "Softmax")?;
        let full = self.extents(weights)?;
        let axis = of_scores.int("axis", -1);
        let rank = self.shape(weights)?.len() as i64;
        if axis != -1 && axis != rank - 1 {
            return None;
        }
        let mut members = BTreeSet::from([at, softmax]);
        let mut scores = of_scores.input(0)?;
        let mut mask = None;
        if let Some((sum, terms)) = self.made_by(scores, "Add") {
            let is_product = |id| {
                let (_, product) = self.scaled(id, &mut BTreeSet::new());
                self.made_by(product, "MatMul").map(|_| id)
            };
            let (product, term) = self.either(terms, is_product)?;
            if !self.is_mask(term, &full) {
                return None;
            }
            members.insert(sum);
            (scores, mask) = (product, Some(term));
        }
        let (mut scale, product) = self.scaled(scores, &mut members);
        let (first, of_product) = self.made_by(product, "MatMul")?;
        members.insert(first);
        let (of_q, q) = self.scaled(of_product.input(0)?, &mut members);
        let (of_k, turned) = self.scaled(of_product.input(1)?, &mut members);
        scale *= of_q * of_k;
        // Single factors may be finite where their product is not.
        if !(scale as f32).is_normal() {
            return None;
        }
        let [[b, h, s, size], [_, _, keys, of_value]] = [self.extents(q)?, self.extents(v)?];
        let fits = full == [b, h, s, keys]
            && self.extents(turned)? == [b, h, size, keys]
            && self.extents(v)? == [b, h, keys, of_value];
        if !fits {
            return None;
        }
        let (of_turned, transposition) = self.made_by(turned, "Transpose")?;
        let k = transposition.input(0)?;
        let mut found = Found {
            members,
            last: at,
            operands: [(q, s, size), (k, keys, size), (v, keys, of_value)]
                .map(|(id, n, size)| Operand { id, extents: vec![b, h, n, size] }),
            mask,
            scale: scale as f32,
            heads_inside: None,
            result: vec![b, h, s, of_value],
        };
        self.goes_too(of_turned, &mut found.members);
        match self.order(transposition)? {
            [0, 1, 3, 2] => {}
            [0, 2, 3, 1] => self.with_heads_inside(&mut found)?,
            _ => return None,
        }
        Some(found)
    }

    /// Takes queries, keys and values from in front of their transpositions, and the result from behind its own.
    fn with_heads_inside(&self, found: &mut Found) -> Option<()> {
        let swaps = |node: &Node| self.order(node) == Some([0, 2, 1, 3]);
        // With one head or one step both orders are the same, and nothing was transposed.
        let is_same = |extents: &[usize]| extents[1] == 1 || extents[2] == 1;
        if !is_same(&found.result) {
            let made = self.nodes[found.last].output(0).filter(|id| self.uses.count(*id) == 1)?;
            let next = *self.users.get(&made)?;
            if !(self.nodes[next].op.is("Transpose") && swaps(&self.nodes[next])) {
                return None;
            }
            found.last = next;
            found.members.insert(next);
        }
        for i in [0, 2] {
            let operand = &mut found.operands[i];
            let transposed = self.made_by(operand.id, "Transpose").filter(|(_, node)| swaps(node));
            match transposed {
                Some((at, node)) => {
                    operand.id = node.input(0)?;
                    self.goes_too(at, &mut found.members);
                }
                None if is_same(&operand.extents) => {}
                None => return None,
            }
        }
        let heads = found.result[1];
        let flat = |extents: &[usize]| vec![extents[0], extents[2], heads * extents[3]];
        found.result = flat(&found.result);
        for operand in &mut found.operands {
            operand.extents = flat(&operand.extents);
            // Before it was divided into heads it was the op's input.
            let divided = self.made_by(operand.id, "Reshape");
            let divided = divided.filter(|(_, node)| has_constant_shape(self.program, node));
            let whole = divided.and_then(|(at, node)| Some((at, node.input(0)?)));
            if let Some((at, whole)) =
                whole.filter(|(_, id)| self.shape(*id).as_ref() == Some(&operand.extents))
            {
                operand.id = whole;
                self.goes_too(at, &mut found.members);
            }
        }
        found.heads_inside = Some(heads);
        Some(())
    }

    /// Makes a node in front of the others one of them, if they alone want its result.
    fn goes_too(&self, at: usize, members: &mut BTreeSet<usize>) {
        let is_theirs =
            |id| self.uses.count(id) == 1 && self.users.get(&id).is_some_and(|user| members.contains(user));
        if self.nodes[at].output(0).is_some_and(is_theirs) {
            members.insert(at);
        }
    }

    /// Returns the extents of an f32 as those of batch, heads and a matrix.
    fn extents(&self, id: ValueId) -> Option<[usize; 4]> {
        self.ty(id).filter(|ty| ty.dtype == F32)?;
        match *self.shape(id)?.as_slice() {
            [heads, rows, columns] => Some([1, heads, rows, columns]),
            [batch, heads, rows, columns] => Some([batch, heads, rows, columns]),
            _ => None,
        }
    }

    /// Returns the order of axes that a transposition makes, as of four.
    fn order(&self, node: &Node) -> Option<[i64; 4]> {
        match *node.ints("perm")? {
            [a, b, c] => Some([0, a + 1, b + 1, c + 1]),
            [a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Returns whether a value may be added to scores: it is finite, and its extents are theirs or 1, except for the
    /// keys'.
    fn is_mask(&self, id: ValueId, full: &[usize; 4]) -> bool {
        let shape = self.ty(id).filter(|ty| ty.dtype == F32).and_then(TensorType::known_shape);
        let Some((n, outer)) = shape.as_ref().and_then(|shape| shape.split_last()) else { return false };
        let fits = |(&n, &of): (&usize, &usize)| n == 1 || n == of;
        self.range(id).is_some()
            && *n == full[3]
            && outer.len() <= 3
            && outer.iter().rev().zip(full[..3].iter().rev()).all(fits)
    }

    /// Returns the constant factor of a value, and the value that it multiplies. A node in between counts only if
    /// it has no other user, and joins `members`.
    fn scaled(&self, id: ValueId, members: &mut BTreeSet<usize>) -> (f64, ValueId) {
        let number = |id| scalar(self.program, id).filter(|number| number.is_finite() && *number != 0.0);
        let once = |op| self.made_by(id, op).filter(|_| self.uses.count(id) == 1);
        let multiplied = once("Mul").and_then(|(at, node)| {
            let (factor, of) = self.either(node, number)?;
            Some((at, f64::from(factor), of))
        });
        let divided = || {
            let (at, node) = once("Div")?;
            Some((at, 1.0 / f64::from(number(node.input(1)?)?), node.input(0)?))
        };
        // A number of more dimensions would give the product more of them.
        let same = |found: &(usize, f64, ValueId)| self.shape(found.2) == self.shape(id);
        match multiplied.or_else(divided).filter(same) {
            Some((at, factor, of)) => {
                members.insert(at);
                (factor, of)
            }
            None => (1.0, id),
        }
    }
}

#[cfg(test)]
#[path = "fuse_attention_tests.rs"]
mod tests;
