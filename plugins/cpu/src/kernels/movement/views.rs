//! Ops that put elements in another order, repeat some or leave some out: each is one strided copy.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::element_size;
use crate::kernels::geometry::strided::StridedCopy;
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::{self, View};
use devbay_plugin_api::sdk::*;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Transpose", 21, |request| movement(request, &read::transpose(request)?))
        .types(&[MOVED])
        .cost(cost::moved),
    descriptor("Slice", 13, |request| movement(request, &read::slice(request)?))
        .types(&[MOVED, INDEX])
        .cost(cost::moved),
    descriptor("Expand", 13, |request| movement(request, &read::expand(request)?))
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved)
        .doc("broadcasts to a shape"),
    descriptor("Tile", 13, |request| movement(request, &read::tile(request)?))
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved)
        .doc("repeats the whole tensor along each axis"),
    descriptor("DepthToSpace", 13, |request| movement(request, &read::depth_to_space(request)?))
        .types(&[MOVED])
        .cost(cost::moved),
    descriptor("SpaceToDepth", 28, |request| movement(request, &read::space_to_depth(request)?))
        .types(&[MOVED])
        .cost(cost::moved),
];

struct Movement(StridedCopy);

impl Launch<CpuDevice> for Movement {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        // SAFETY: the readers keep the view within the first input and check the output's extents; the host lends both (B9),
        // and an output overlaps no input (B21).
        unsafe { self.0.run(operands.input_ptr(0), operands.output_ptr(0)) }
    }
}

/// A copy of a view of input 0 to output 0.
fn movement(request: &PrepareRequest<'_, CpuDevice>, view: &View) -> Result<Prepared> {
    let size = element_size(request.required_input(0)?.dtype());
    // Extents are from 0, and a view's positions lie within a tensor that is in memory.
    let shape: Vec<usize> = view.shape.iter().map(|&extent| extent as usize).collect();
    let strides: Vec<isize> = view.strides.iter().map(|&stride| stride as isize).collect();
    let copy = StridedCopy::new(request.host, size, &shape, &strides, view.start as isize)?;
    Ok(Prepared::new(Movement(copy)))
}
