//! Values that are put together where they are made: a Concat whose operands lie one behind the other in its result.
//!
//! That is so if the axes in front of the concatenated one have one element. Launches of the same section then make
//! their operands as parts of the result, like the collected results of a Scan (`unroll.rs`), and the Concat has no
//! launch. One operand may be made elsewhere: an input, a constant, a part, or a value that is already a part of
//! another result. It is copied, which moves less than the Concat would. Other readers of an operand read it in its
//! place.
//!
//! Not so are results of regions of control flow, which have places of their own.

use super::views;
use crate::error::Result;
use crate::plan::launches::{Launch, Made, Planner, Root, Scope, Work};
use crate::program::{Node, ValueId};

/// Operands that are copied to where they belong; with more, the Concat is as good.
const COPIES_MAX: usize = 1;

/// An operand of a Concat.
struct Operand {
    root: Root,
    size: usize,
    /// The made value that can be a part of the result.
    own: Option<usize>,
}

impl Planner<'_> {
    /// Makes the result of a Concat of its operands, in a memory; false, and nothing is done, if its kernel has to.
    pub(in crate::plan) fn join(&mut self, scope: &mut Scope<'_>, node: &Node, memory: u32) -> Result<bool> {
        let Some(output) = node.output(0).filter(|_| self.may_join(scope, node)) else {
            return Ok(false);
        };
        let Some(align) = views::part_align(self.env) else {
            return Ok(false);
        };
        let mut operands: Vec<Operand> = Vec::with_capacity(node.inputs.len());
        let mut offset = 0usize;
        for &id in node.inputs.iter().flatten() {
            let (root, size) = (self.root(scope, id)?, self.shaped(scope.program, id)?.size);
            if size == 0 {
                continue;
            }
            let elsewhere = match root {
                Root::Made(made, _) => self.made[made].memory != memory,
                Root::Input(..) => memory != 0,
                Root::Constant(_) => false,
            };
            if elsewhere || !offset.is_multiple_of(align) {
                return Ok(false);
            }
            let own = self.joinable(scope, &root, size).filter(|own| {
                // A value that is put there twice is there once.
                !operands.iter().any(|operand| operand.own == Some(*own))
            });
            operands.push(Operand { root, size, own });
            offset += size;
        }
        let n_copies = operands.iter().filter(|operand| operand.own.is_none()).count();
        if n_copies > COPIES_MAX || n_copies == operands.len() {
            return Ok(false);
        }
        self.made.push(Made::new(offset, 0, memory));
        let whole = self.made.len() - 1;
        let mut offset = 0;
        for Operand { root, size, own } in operands {
            let own = own.unwrap_or_else(|| self.moved_to(memory, root, size, &node.label()));
            self.made[own].part_of = Some((whole, offset));
            let maker = self.made[own].maker;
            self.made[whole].part_makers.push(maker);
            offset += size;
        }
        scope.roots.insert(output, Root::Made(whole, 0));
        Ok(true)
    }

    /// Returns whether a node is a Concat whose operands lie one behind the other in a result that may be made of them.
    fn may_join(&self, scope: &Scope<'_>, node: &Node) -> bool {
        let shape = || scope.program.value(node.output(0)?).ty.as_ref()?.known_shape();
        let Some(shape) = shape().filter(|_| scope.is_section() && node.op.is("Concat")) else {
            return false;
        };
        let axis = node.int("axis", 0);
        let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
        let outer = usize::try_from(axis).ok().and_then(|axis| shape.get(..axis));
        // Elements that share bytes may lie across the border of two operands.
        let fills_bytes = |id: &ValueId| {
            let ty = scope.program.value(*id).ty.as_ref();
            ty.is_some_and(|ty| (ty.dtype.bits as usize * ty.dtype.lanes as usize).is_multiple_of(8))
        };
        outer.is_some_and(|outer| outer.iter().all(|&extent| extent == 1))
            && node.outputs.iter().flatten().all(fills_bytes)
            && !self.env.is_pinned(node)
    }

    /// Returns the made value that an operand is all of, if it may become a part of another: a launch makes it that
    /// runs whenever the open region does, and it is no result.
    fn joinable(&self, scope: &Scope<'_>, root: &Root, size: usize) -> Option<usize> {
        let &Root::Made(own, 0) = root else {
            return None;
        };
        let made = &self.made[own];
        let Launch { region, work, .. } = self.launches.get(made.maker as usize)?;
        let is_launch = !matches!(work, Work::Entry(..) | Work::Exit(..));
        let is_result =
            scope.program.main.outputs.iter().any(
                |output| matches!(scope.roots.get(output), Some(Root::Made(result, _)) if *result == own),
            );
        let fits = made.is_whole() && made.size == size && *region == self.region && is_launch && !is_result;
        fits.then_some(own)
    }
}
