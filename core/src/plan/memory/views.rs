//! Values that need no launch, because they are views of an operand.
//!
//! A node that gives an operand another shape is a view of the whole. A Slice, a Split or a Gather of one position is
//! a view of *parts* where each of its results is one range of the operand's bytes: that is so if the axes in front of the one that
//! is divided have one element in the result, and those behind it are whole. Which part it is must be known, and parts must
//! begin where the devices' kernels may begin to read.
//!
//! A copy between memories is of the whole (`launches/mod.rs`). So if a part of a device's result in its own memory is
//! read elsewhere, a kernel there takes the part.

use crate::error::{Error, ErrorKind, Result};
use crate::plan::Env;
use crate::plan::control::nested::known;
use crate::plan::launches::{Planner, Root};
use crate::plan::place::choose::NodeWork;
use crate::plan::section::Shaped;
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Program, ValueId};
use crate::tensor::{Tensor, n_elements};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Where in a node's operand each of its results begins, in bytes, if all of them are views; None if a kernel makes them.
/// The node's types are known.
pub(in crate::plan) fn offsets(program: &Program, node: &Node, env: &Env) -> Option<Arc<[usize]>> {
    let def = catalogue::find(&node.op.domain, &node.op.name)?;
    if def.kind == OpKind::View {
        return Some(Arc::from([0]));
    }
    // A result of the program is whole: its part would be copied, as the kernel does.
    let is_result = |id: &ValueId| program.main.outputs.contains(id);
    if node.outputs.iter().flatten().any(is_result) || env.is_pinned(node) {
        return None;
    }
    let align = part_align(env)?;
    let parts = Parts::of(program, node)?.in_bytes()?;
    let is_aligned =
        |(offset, size): &(usize, usize)| offset.is_multiple_of(align) && size.is_multiple_of(align);
    parts.iter().all(is_aligned).then(|| parts.iter().map(|&(offset, _)| offset).collect())
}

/// Refuses a view of the whole with another size, which would read beyond its operand. Inference refuses such a
/// node with better words where it can.
///
/// # Errors
/// [`ErrorKind::InvalidModel`].
pub(in crate::plan) fn check_whole(program: &Program, node: &Node) -> Result<()> {
    let is_view = catalogue::find(&node.op.domain, &node.op.name).is_some_and(|def| def.kind == OpKind::View);
    let shape = |id: Option<ValueId>| known(program, id?)?.known_shape();
    let (operand, result) = (shape(node.input(0)), shape(node.output(0)));
    let n = |shape: &Option<Vec<usize>>| shape.as_deref().and_then(n_elements);
    if is_view && n(&operand) != n(&result) {
        let [from, to] = [operand, result].map(Option::unwrap_or_default);
        return Err(Error::new(ErrorKind::InvalidModel, format!("{from:?} cannot be reshaped to {to:?}")));
    }
    Ok(())
}

/// Returns the alignment of parts that any of the devices may read; None if one of them takes no parts. In the host's
/// memory elements need no more than their own alignment (B10); elsewhere a part is bound and copied from where it
/// begins.
pub(in crate::plan) fn part_align(env: &Env) -> Option<usize> {
    let mut align = 1;
    for site in 0..env.n_sites() {
        if !env.divides_operands(site) {
            return None;
        }
        if !env.reads_host_memory(site) {
            let space = env.site(site).0.space();
            align = align.max(space.bind_align).max(space.copy_align).max(space.copy_granule);
        }
    }
    usize::try_from(align).ok()
}

/// The parts of an operand that a node's results are.
struct Parts {
    /// Bytes of an element.
    element: usize,
    whole: Vec<usize>,
    /// Extents of each part, and where it begins along each axis of the whole.
    parts: Vec<(Vec<usize>, Vec<usize>)>,
}

impl Parts {
    /// Returns None if the node has results other than parts, or its parts are unknown.
    fn of(program: &Program, node: &Node) -> Option<Self> {
        let shape = |id: ValueId| known(program, id)?.known_shape();
        let constant = |i: usize| program.constant(node.input(i)?)?.to_ints().ok()?;
        let x = node.input(0).filter(|&id| program.constant(id).is_none())?;
        let dtype = known(program, x)?.dtype;
        let bits = dtype.bits as usize * dtype.lanes as usize;
        let whole = shape(x)?;
        let axis_of = |axis: i64| {
            let axis = if axis < 0 { axis + whole.len() as i64 } else { axis };
            usize::try_from(axis).ok().filter(|&axis| axis < whole.len())
        };
        let mut parts = Vec::with_capacity(node.outputs.len());
        match (&*node.op.domain, &*node.op.name) {
            ("", "Slice") => {
                let part = shape(node.output(0)?)?;
                let starts = constant(1)?;
                let axes = match node.input(3) {
                    Some(_) => constant(3)?,
                    None => (0..starts.len() as i64).collect(),
                };
                let steps_by_one = node.input(4).is_none() || constant(4)?.iter().all(|&step| step == 1);
                if !steps_by_one || axes.len() != starts.len() || part.len() != whole.len() {
                    return None;
                }
                let mut begins = vec![0; whole.len()];
                for (start, axis) in starts.into_iter().zip(axes) {
                    let axis = axis_of(axis)?;
                    let n = whole[axis] as i64;
                    let start = if start < 0 { start.saturating_add(n) } else { start };
                    begins[axis] = start.clamp(0, n) as usize;
                }
                parts.push((part, begins));
            }
            ("", "Split") => {
                let axis = axis_of(node.int("axis", 0))?;
                let mut begin = 0;
                for output in &node.outputs {
                    let part = shape((*output)?)?;
                    let mut begins = vec![0; whole.len()];
                    begins[axis] = begin;
                    begin += part.get(axis)?;
                    parts.push((part, begins));
                }
            }
            ("", "Gather") => {
                let axis = axis_of(node.int("axis", 0))?;
                let &[position] = constant(1)?.as_slice() else {
                    return None;
                };
                let n = whole[axis] as i64;
                let position = if position < 0 { position.saturating_add(n) } else { position };
                let (mut part, mut begins) = (whole.clone(), vec![0; whole.len()]);
                // The kernel refuses positions that are out of bounds.
                begins[axis] = usize::try_from(position).ok().filter(|&position| position < whole[axis])?;
                part[axis] = 1;
                parts.push((part, begins));
            }
            _ => return None,
        }
        (bits > 0 && bits.is_multiple_of(8)).then_some(Self { element: bits / 8, whole, parts })
    }

    /// Offset and size of each part; None if one of them is empty, or is not one range.
    fn in_bytes(&self) -> Option<Vec<(usize, usize)>> {
        let range = |(part, begins): &(Vec<usize>, Vec<usize>)| {
            let first = first_element(&self.whole, part, begins)?;
            let n = n_elements(part).filter(|&n| n > 0)?;
            Some((first * self.element, n * self.element))
        };
        self.parts.iter().map(range).collect()
    }
}

/// Returns the first element of a part that is one range of the whole's elements; None if it is not. All three have a
/// number for each axis: extents of the whole and of the part, and where the part begins.
fn first_element(whole: &[usize], part: &[usize], begins: &[usize]) -> Option<usize> {
    let axes = || whole.iter().zip(part).zip(begins);
    if part.len() != whole.len() || axes().any(|((whole, part), begin)| begin + part > *whole) {
        return None;
    }
    let divided = axes().rposition(|((whole, part), _)| whole != part).unwrap_or(0);
    if part.iter().take(divided).any(|&extent| extent != 1) {
        return None;
    }
    Some(axes().fold(0, |first, ((whole, _), begin)| first * whole + begin))
}

/// Returns views of parts of a device's result in its own memory that are read elsewhere: their position among
/// the nodes, and the device's.
pub(in crate::plan) fn read_elsewhere(
    program: &Program,
    works: &[NodeWork],
    env: &Env,
) -> Vec<(usize, usize)> {
    if (0..env.n_sites()).all(|site| env.reads_host_memory(site)) {
        return Vec::new();
    }
    let nodes = &program.main.nodes;
    let is_part = |at: usize| {
        matches!(works[at], NodeWork::View(_))
            && catalogue::find(&nodes[at].op.domain, &nodes[at].op.name)
                .is_some_and(|def| def.kind != OpKind::View)
    };
    // The device in whose own memory each value is, views seen through.
    let mut made_at: HashMap<ValueId, usize> = HashMap::new();
    for (node, work) in nodes.iter().zip(works) {
        let site = match work {
            NodeWork::View(_) => node.input(0).and_then(|id| made_at.get(&id).copied()),
            work => work.sites().into_iter().find(|&site| !env.reads_host_memory(site)),
        };
        if let Some(site) = site {
            made_at.extend(node.outputs.iter().flatten().map(|&id| (id, site)));
        }
    }
    // Values that are read at another place than they were made, views seen through.
    let mut strays: HashSet<ValueId> = program.main.outputs.iter().copied().collect();
    let mut found = Vec::new();
    for (at, (node, work)) in nodes.iter().zip(works).enumerate().rev() {
        let results_stray = node.outputs.iter().flatten().any(|id| strays.contains(id));
        let maker = node.input(0).and_then(|id| made_at.get(&id));
        if let Some(&site) = maker.filter(|_| is_part(at) && results_stray) {
            found.push((at, site));
            continue;
        }
        let captures = node.regions.iter().flat_map(|(_, region)| region.captures());
        let read = node.inputs.iter().copied().flatten().chain(captures);
        strays.extend(read.filter(|id| match work {
            NodeWork::View(_) => results_stray,
            NodeWork::Claimed(_) | NodeWork::Later => true,
            work => made_at.get(id).is_some_and(|made| work.sites().iter().any(|site| site != made)),
        }));
    }
    found
}

impl Planner<'_> {
    /// A part of a value, from an offset in bytes on.
    pub(in crate::plan) fn part(&self, whole: &Root, offset: usize, ty: &Shaped) -> Result<Root> {
        Ok(match whole {
            Root::Input(input, before) => Root::Input(*input, before + offset),
            Root::Made(made, before) => Root::Made(*made, before + offset),
            Root::Constant(tensor) if tensor.dtype() == ty.dtype && tensor.bytes().len() == ty.size => {
                Root::Constant(tensor.reshaped(&ty.shape)?)
            }
            Root::Constant(tensor) => {
                let bytes = &tensor.bytes()[offset..offset + ty.size];
                Root::Constant(Tensor::from_bytes(ty.dtype, &ty.shape, bytes)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::text;

    /// Offset and size in bytes of each result of the first node that has results, if they are ranges of its operand.
    fn check(node: &str, expected: Option<&[(usize, usize)]>) {
        let source =
            format!("devbay-program 1\n\nprogram \"p\"(%x: f32[1,2,6,4], %y: i4[1,8]) {{\n{node}}}\n");
        let program = text::parse(&source).unwrap_or_else(|e| panic!("{source}: {e}"));
        let found = Parts::of(&program, &program.main.nodes[0]).and_then(|parts| parts.in_bytes());
        assert_eq!(found.as_deref(), expected, "{node}");
    }

    /// A Slice of `%x` with its constants, of a result type.
    fn slice(lists: [&str; 4], ty: &str, expected: Option<(usize, usize)>) {
        let names = ["starts", "ends", "axes", "steps"];
        let constants = names.iter().zip(lists).map(|(name, list)| {
            let n = list.split(',').count();
            format!("  %{name} = const i64[{n}] [{list}]\n")
        });
        let constants: String = constants.collect();
        let node = format!("  %a: {ty} = Slice@13(%x, %starts, %ends, %axes, %steps)\n  return %a\n");
        check(&(constants + &node), expected.as_ref().map(std::slice::from_ref));
    }

    #[test]
    fn a_slice_is_a_range_if_what_is_in_front_of_the_divided_axis_is_one_element() {
        slice(["1", "2", "1", "1"], "f32[1,1,6,4]", Some((96, 96)));
        slice(["-1", "9223372036854775807", "1", "1"], "f32[1,1,6,4]", Some((96, 96)));
        slice(["1, 2", "2, 5", "-3, 2", "1, 1"], "f32[1,1,3,4]", Some((128, 48)));
        slice(["1, 2, 3", "2, 3, 4", "1, 2, 3", "1, 1, 1"], "f32[1,1,1,1]", Some((140, 4)));
        slice(["0", "2", "1", "1"], "f32[1,2,6,4]", Some((0, 192)));
        // Rows of both of the second axis, every other row, and nothing.
        slice(["2", "5", "2", "1"], "f32[1,2,3,4]", None);
        slice(["0", "2", "1", "2"], "f32[1,1,6,4]", None);
        slice(["1", "0", "1", "-1"], "f32[1,1,6,4]", None);
        slice(["2", "2", "1", "1"], "f32[1,0,6,4]", None);
    }

    #[test]
    fn a_slice_that_data_says_is_no_view() {
        let source = "devbay-program 1\n\nprogram \"p\"(%x: f32[2,4], %at: i64[1]) {\n  %ends = const i64[1] [2]\n  \
                      %a: f32[1,4] = Slice@13(%x, %at, %ends)\n  return %a\n}\n";
        let program = text::parse(source).expect("a program");
        assert!(Parts::of(&program, &program.main.nodes[0]).is_none());
    }

    #[test]
    fn parts_of_a_split_are_ranges_if_all_axes_before_have_one_element() {
        let split = "  %a: f32[1,1,6,4], %b: f32[1,1,6,4] = Split@18(%x) {axis = 1, num_outputs = 2}\n  return %a, %b\n";
        check(split, Some(&[(0, 96), (96, 96)]));
        let split = "  %n = const i64[2] [2, 4]\n  %a: f32[1,2,2,4], %b: f32[1,2,4,4] = Split@18(%x, %n) {axis = 2}\n  \
                     return %a, %b\n";
        check(split, None);
    }

    #[test]
    fn a_gather_of_one_position_is_a_range_if_it_is_in_bounds() {
        let gather = |at: i64, expected: Option<&[(usize, usize)]>| {
            let node = format!(
                "  %i = const i64[] [{at}]\n  %a: f32[1,6,4] = Gather@13(%x, %i) {{axis = 1}}\n  return %a\n"
            );
            check(&node, expected);
        };
        gather(1, Some(&[(96, 96)]));
        gather(-2, Some(&[(0, 96)]));
        gather(2, None);
        gather(-3, None);
        let two =
            "  %i = const i64[2] [0, 1]\n  %a: f32[1,2,6,4] = Gather@13(%x, %i) {axis = 1}\n  return %a\n";
        check(two, None);
    }

    #[test]
    fn elements_that_share_bytes_are_not_divided() {
        let node = "  %a: i4[1,4], %b: i4[1,4] = Split@18(%y) {axis = 1, num_outputs = 2}\n  return %a, %b\n";
        check(node, None);
    }
}
