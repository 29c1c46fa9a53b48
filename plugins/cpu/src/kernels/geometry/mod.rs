//! Layout of operands and walks over them: extents, strides, windows, rows.

pub(super) mod extents;
pub(super) mod pixels;
pub(super) mod plane;
pub(super) mod rows;
pub(super) mod shape;
pub(super) mod strided;
pub(super) mod walk;
pub(super) mod window;
