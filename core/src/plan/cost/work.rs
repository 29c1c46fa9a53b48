//! Kinds of work, by which a device's rates differ.
//!
//! A core that multiplies matrices at its peak takes several times as long for as many operations of a pooling window, and
//! copies runs of bytes faster than it permutes elements. The counts of kernels (B20) give the amount of work, not its
//! kind: the op does.

pub use crate::device::rates::WorkKind;
use crate::program::{AttrValue, Node, Program, ValueId, catalogue};
use crate::tensor::{bytes_of, n_elements};
use devbay_ops::Work;

impl WorkKind {
    /// Returns the kind of work that a node mostly does, by the op's row; an op without a row counts as elementwise.
    pub fn of(program: &Program, node: &Node) -> Self {
        let row = catalogue::find(&node.op.domain, &node.op.name);
        match row.map_or(Work::Elements, |row| row.work) {
            Work::Convolution if is_of_one_channel(program, node) => Self::Depthwise,
            Work::Movement if run(program, node).is_some_and(|bytes| bytes < RUN_MIN) => Self::Permutation,
            Work::Elements => Self::Elements,
            Work::Chain => Self::Chain,
            Work::Convolution => Self::Convolution,
            Work::Product => Self::Product,
            Work::Pooling => Self::Pooling,
            Work::Reduction => Self::Reduction,
            Work::Movement | Work::Copying => Self::Copying,
            Work::Permutation => Self::Permutation,
        }
    }
}

/// Returns whether each group of a convolution makes one channel, or one of several groups reads one. The one channel
/// of an image is read for many others, which makes a product of it.
fn is_of_one_channel(program: &Program, node: &Node) -> bool {
    // Other convolutions have weights of other shapes.
    if !matches!(&*node.op.name, "Conv" | "FusedConv" | "NhwcFusedConv") {
        return false;
    }
    let weights = node.input(1).and_then(|id| program.value(id).ty.as_ref()?.known_shape());
    let n_groups = usize::try_from(node.int("group", 1)).unwrap_or(1);
    weights.is_some_and(|extents| {
        let (n_out, n_in) = (extents.first().copied(), extents.get(1).copied());
        n_out == Some(n_groups) || (n_groups > 1 && n_in == Some(1))
    })
}

/// Bytes that lie next to each other before and after, at least, for a run of them to be one: a line of a cache.
const RUN_MIN: usize = 64;

/// Returns the bytes that a node moves contiguously: the extents from the last changed axis on, or behind the last
/// reordered one. None if it changes no extent, or if the shapes are unknown.
fn run(program: &Program, node: &Node) -> Option<usize> {
    let extents = |id: Option<ValueId>| {
        let ty = program.value(id?).ty.as_ref()?;
        Some((ty.dtype, ty.known_shape()?))
    };
    let ((dtype, from), (_, to)) = (extents(node.input(0))?, extents(node.output(0))?);
    if let Some(AttrValue::Ints(perm)) = node.attr("perm") {
        let stay =
            perm.iter().enumerate().rev().take_while(|&(at, &axis)| usize::try_from(axis) == Ok(at)).count();
        let kept = from.len().checked_sub(stay)?;
        return bytes_of(dtype, n_elements(&from[kept..])?);
    }
    if from.len() != to.len() {
        return None;
    }
    let last = from.iter().zip(&to).rposition(|(from, to)| from != to)?;
    let common: Vec<usize> = from[last..].iter().zip(&to[last..]).map(|(&from, &to)| from.min(to)).collect();
    bytes_of(dtype, n_elements(&common)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::text;

    #[test]
    fn what_is_moved_in_short_runs_is_moved_element_by_element() {
        let source = r#"devbay-program 1

program "p"(%x: f32[4,8,16], %y: f32[4,8,2]) {
  %a: f32[4,16,16] = Concat@13(%x, %x) {axis = 1}
  %b: f32[4,8,4] = Concat@13(%y, %y) {axis = 2}
  %c: f32[8,4,16] = Transpose@25(%x) {perm = [1, 0, 2]}
  %d: f32[8,16,4] = Transpose@25(%x) {perm = [1, 2, 0]}
  return %a, %b, %c, %d
}
"#;
        let program = text::parse(source).expect("a program");
        let kinds: Vec<WorkKind> =
            program.main.nodes.iter().map(|node| WorkKind::of(&program, node)).collect();
        let (copying, permutation) = (WorkKind::Copying, WorkKind::Permutation);
        assert_eq!(kinds, [copying, permutation, copying, permutation]);
    }

    #[test]
    fn a_convolution_of_one_channel_is_no_product() {
        let source = r#"devbay-program 1

program "p"(%x: f32[1,8,4,4], %g: f32[1,1,4,4], %own: f32[8,1,3,3], %all: f32[8,8,3,3], %half: f32[8,4,3,3], %one: f32[1,8,3,3]) {
  %a: f32[1,8,2,2] = Conv@22(%x, %own) {group = 8}
  %b: f32[1,8,2,2] = Conv@22(%x, %all)
  %c: f32[1,8,2,2] = Conv@22(%x, %half) {group = 2}
  %d: f32[1,8,2,2] = Relu@14(%a)
  %e: f32[1,1,2,2] = Conv@22(%x, %one)
  %f: f32[1,8,2,2] = Conv@22(%g, %own)
  return %b, %c, %d, %e, %f
}
"#;
        let program = text::parse(source).expect("a program");
        let kinds: Vec<WorkKind> =
            program.main.nodes.iter().map(|node| WorkKind::of(&program, node)).collect();
        let (convolution, depthwise) = (WorkKind::Convolution, WorkKind::Depthwise);
        let expected = [depthwise, convolution, convolution, WorkKind::Elements, depthwise, convolution];
        assert_eq!(kinds, expected);
    }
}
