//! Makes matrix products of an Einsum.
//!
//! Two operands at a time become one: names of both that nothing reads later are summed over by a MatMul, whose batch has the
//! other names of both. Each operand is brought into order by a Transpose, and its names are put together by a Reshape; what is in
//! order already needs neither. An Einsum of one operand that sums over nothing is a Transpose.
//!
//! An Einsum stays as it is where a name is there twice in one operand, is in one operand only and summed over, or has an extent of
//! 1 that is broadcast.

use super::each_region;
use super::made::Made;
use crate::cancel::look;
use crate::error::Result;
use crate::program::{Node, Program, Region, ValueId};
use crate::tensor::{DType, n_elements};
use devbay_ops::read::{Id, Terms};

/// Makes products where possible, except of nodes that `stay`. Returns the number of Einsums that became some.
///
/// # Errors
/// Out of memory for constants.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| lower(program, region, stay))
}

fn lower(program: &mut Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut lowered = 0;
    let mut kept = Vec::with_capacity(region.nodes.len());
    for node in std::mem::take(&mut region.nodes) {
        look()?;
        let plan = if stay(&node) || !node.op.is("Einsum") { None } else { Plan::of(program, &node) };
        match plan {
            Some(plan) => {
                plan.apply(program, &node, &mut kept)?;
                lowered += 1;
            }
            None => kept.push(node),
        }
    }
    region.nodes = kept;
    Ok(lowered)
}

/// A value whose dimensions have names.
#[derive(Clone)]
struct Named {
    id: ValueId,
    names: Vec<Id>,
}

/// The extent of each name.
struct Extents(Vec<(Id, usize)>);

impl Extents {
    fn of(&self, names: &[Id]) -> Vec<usize> {
        let extent =
            |name: &Id| self.0.iter().find(|(known, _)| known == name).map_or(1, |(_, extent)| *extent);
        names.iter().map(extent).collect()
    }
}

/// A product of two operands, by the names of each.
struct Step {
    /// Names of both that are kept, of the left one alone, of the right one alone, and of both that are summed over.
    batch: Vec<Id>,
    left: Vec<Id>,
    right: Vec<Id>,
    summed: Vec<Id>,
}

impl Step {
    /// The product of operands with these names, of which some are needed later; None if a name of one operand would have to be
    /// summed over alone.
    fn of(a: &[Id], b: &[Id], needed: &dyn Fn(&Id) -> bool) -> Option<Self> {
        let mut step = Self { batch: vec![], left: vec![], right: vec![], summed: vec![] };
        for name in a {
            match (b.contains(name), needed(name)) {
                (true, true) => step.batch.push(*name),
                (true, false) => step.summed.push(*name),
                (false, true) => step.left.push(*name),
                (false, false) => return None,
            }
        }
        step.right = b.iter().filter(|name| !a.contains(name)).copied().collect();
        step.right.iter().all(needed).then_some(step)
    }

    fn result(&self) -> Vec<Id> {
        [&self.batch[..], &self.left, &self.right].concat()
    }
}

/// What becomes of an Einsum.
struct Plan {
    dtype: DType,
    operands: Vec<Named>,
    result: Vec<Id>,
    extents: Extents,
    steps: Vec<Step>,
}

impl Plan {
    fn of(program: &Program, node: &Node) -> Option<Self> {
        let ty = program.value(node.output(0)?).ty.clone()?;
        let values: Vec<ValueId> = node.inputs.iter().copied().collect::<Option<_>>()?;
        let shapes: Vec<Vec<usize>> =
            values.iter().map(|id| program.value(*id).ty.as_ref()?.known_shape()).collect::<Option<_>>()?;
        let slices: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let ids = Terms::of(node.string("equation", ""), values.len()).ok()?.ids(&slices).ok()?;
        let mut extents = Extents(Vec::new());
        for (names, shape) in ids.operands.iter().zip(&shapes) {
            for (i, (name, &extent)) in names.iter().zip(shape).enumerate() {
                match extents.0.iter().find(|(known, _)| known == name) {
                    _ if names[..i].contains(name) || extent == 0 => return None,
                    Some((_, known)) if *known != extent => return None,
                    Some(_) => {}
                    None => extents.0.push((*name, extent)),
                }
            }
        }
        let mut swapped = ids.operands.clone();
        let mut operands: Vec<Named> =
            values.into_iter().zip(ids.operands).map(|(id, names)| Named { id, names }).collect();
        let mut steps = Vec::new();
        let mut have = swapped.first()?.clone();
        let most = shapes.iter().chain(&ty.known_shape()).filter_map(|shape| n_elements(shape)).max()?;
        for i in 1..swapped.len() {
            let later = &swapped[i + 1..];
            let needed =
                |name: &Id| ids.result.contains(name) || later.iter().any(|names| names.contains(name));
            let step = Step::of(&have, &swapped[i], &needed)?;
            have = step.result();
            // A product on the way that is larger than all else costs more than it saves.
            if n_elements(&extents.of(&have))? > most {
                return None;
            }
            steps.push(step);
        }
        // The other way round, the result may be in order as it is made.
        if let [step] = &mut steps[..] {
            let other = [&step.batch[..], &step.right, &step.left].concat();
            if have != ids.result && other == ids.result {
                operands.swap(0, 1);
                swapped.swap(0, 1);
                std::mem::swap(&mut step.left, &mut step.right);
            }
        }
        let is_permutation = !steps.is_empty() || have.len() == ids.result.len();
        is_permutation.then_some(Self { dtype: ty.dtype, operands, result: ids.result, extents, steps })
    }

    fn apply(self, program: &mut Program, node: &Node, to: &mut Vec<Node>) -> Result<()> {
        let mut make = Make { made: Made { program, to, dtype: self.dtype }, extents: self.extents };
        let result = node.output(0).expect("its type was looked at");
        let mut have = self.operands[0].clone();
        for (step, right) in self.steps.iter().zip(&self.operands[1..]) {
            have = make.product(step, &have, right)?;
        }
        make.ordered(have, &self.result, Some(result))?;
        // The last product has the node's name, or the transposition where there is none.
        let nodes = make.made.to;
        let product = nodes.iter_mut().rev().take(3).find(|made| made.op.is("MatMul"));
        if !self.steps.is_empty()
            && let Some(product) = product
        {
            product.name = node.name.clone();
        } else if let Some(last) = nodes.last_mut() {
            last.name = node.name.clone();
        }
        Ok(())
    }
}

/// The nodes of an Einsum as they are made.
struct Make<'a> {
    made: Made<'a>,
    extents: Extents,
}

impl Make<'_> {
    /// The value with its dimensions in this order, as `result` if there is one.
    fn ordered(&mut self, value: Named, names: &[Id], result: Option<ValueId>) -> Result<Named> {
        if value.names == names && result.is_none() {
            return Ok(value);
        }
        let shape = self.extents.of(names);
        let id = match result {
            Some(id) => id,
            None => self.made.value(&shape),
        };
        if value.names == names {
            self.made.reshape(value.id, &shape, id)?;
        } else {
            let place = |name: &Id| value.names.iter().position(|known| known == name).unwrap_or(0);
            let perm: Vec<usize> = names.iter().map(place).collect();
            self.made.transpose(value.id, &perm, id);
        }
        Ok(Named { id, names: names.to_vec() })
    }

    /// The value in the shape of a batch of matrices.
    fn matrices(&mut self, value: &Named, parts: [&[Id]; 3]) -> Result<ValueId> {
        let value = self.ordered(value.clone(), &parts.concat(), None)?;
        let count = |names: &[Id]| self.extents.of(names).iter().product::<usize>();
        let shape = [self.extents.of(parts[0]), vec![count(parts[1]), count(parts[2])]].concat();
        if shape == self.extents.of(&value.names) {
            return Ok(value.id);
        }
        let id = self.made.value(&shape);
        self.made.reshape(value.id, &shape, id)?;
        Ok(id)
    }

    fn product(&mut self, step: &Step, a: &Named, b: &Named) -> Result<Named> {
        let left = self.matrices(a, [&step.batch, &step.left, &step.summed])?;
        let right = self.matrices(b, [&step.batch, &step.summed, &step.right])?;
        let names = step.result();
        let count = |names: &[Id]| self.extents.of(names).iter().product::<usize>();
        let shape = [self.extents.of(&step.batch), vec![count(&step.left), count(&step.right)]].concat();
        let id = self.made.value(&shape);
        self.made.push("MatMul", &[left, right], id);
        let whole = self.extents.of(&names);
        if whole == shape {
            return Ok(Named { id, names });
        }
        let named = self.made.value(&whole);
        self.made.reshape(id, &whole, named)?;
        Ok(Named { id: named, names })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{body, check_on};

    fn lowers(inputs: &str, einsum: &str, after: &[&str]) {
        check_on(inputs, "lower-einsum", &body(&[einsum, "return %y"]), &body(after));
    }

    fn stays(inputs: &str, einsum: &str) {
        lowers(inputs, einsum, &[einsum, "return %y"]);
    }

    #[test]
    fn products_of_two_operands() {
        lowers(
            "%a: f32[2,3], %b: f32[3,4]",
            "%y: f32[2,4] = Einsum@28(%a, %b) {equation = \"ij,jk->ik\"}",
            &[
                "%p: f32[2,4] = MatMul@13(%a, %b)",
                "%s = const i64[2] [2, 4]",
                "%y: f32[2,4] = Reshape@25(%p, %s)",
                "return %y",
            ],
        );
    }

    #[test]
    fn names_are_put_in_order() {
        // Attention's scores, whose right operand has the summed name last.
        lowers(
            "%a: f32[2,3,4,5], %b: f32[2,3,6,5]",
            "%y: f32[2,3,4,6] = Einsum@28(%a, %b) as \"scores\" {equation = \"bhid,bhjd->bhij\"}",
            &[
                "%t: f32[2,3,5,6] = Transpose@25(%b) {perm = [0, 1, 3, 2]}",
                "%p: f32[2,3,4,6] = MatMul@13(%a, %t) as \"scores\"",
                "%s = const i64[4] [2, 3, 4, 6]",
                "%y: f32[2,3,4,6] = Reshape@25(%p, %s)",
                "return %y",
            ],
        );
        // The other way round, nothing is left to transpose.
        lowers(
            "%a: f32[3,2], %b: f32[4,3]",
            "%y: f32[4,2] = Einsum@28(%a, %b) {equation = \"ki,jk->ji\"}",
            &[
                "%p: f32[4,2] = MatMul@13(%b, %a)",
                "%s = const i64[2] [4, 2]",
                "%y: f32[4,2] = Reshape@25(%p, %s)",
                "return %y",
            ],
        );
        lowers(
            "%a: f32[2,3,4]",
            "%y: f32[4,2,3] = Einsum@28(%a) {equation = \"...c->c...\"}",
            &["%y: f32[4,2,3] = Transpose@25(%a) {perm = [2, 0, 1]}", "return %y"],
        );
    }

    #[test]
    fn what_is_no_product_stays() {
        stays("%a: f32[3,3]", "%y: f32[3] = Einsum@28(%a) {equation = \"ii->i\"}");
        stays("%a: f32[2,3]", "%y: f32[2] = Einsum@28(%a) {equation = \"ij->i\"}");
        stays("%a: f32[2,3], %b: f32[4]", "%y: f32[2,4] = Einsum@28(%a, %b) {equation = \"ij,k->ik\"}");
        stays("%a: f32[2,1], %b: f32[3,4]", "%y: f32[2,4] = Einsum@28(%a, %b) {equation = \"ij,jk->ik\"}");
    }
}
