//! Work done ahead of time for plans: programs that were specialised, and constants that kernels packed.
//!
//! A file of a compiled model keeps both, so nothing of it is trusted: the program is typed again before it is planned, and
//! a packed constant is used only if it has the size and alignment that a kernel asks for.

use crate::passes::Applied;
use crate::program::Program;
use crate::tensor::{Tensor, TensorType};

/// A program for inputs of given types, its constants folded and the passes of
/// [`Moment::Shapes`](crate::passes::Moment::Shapes) run.
#[derive(Clone, Debug)]
pub struct Specialised {
    /// The program; the types of its inputs are those that it is for.
    pub program: Program,
    /// Effects of the passes.
    pub passes: Vec<Applied>,
}

impl Specialised {
    /// Returns whether it is for inputs of these types.
    pub fn is_for(&self, types: &[TensorType]) -> bool {
        let inputs = &self.program.main.inputs;
        let is = |(&id, ty): (_, &TensorType)| self.program.value(id).ty.as_ref() == Some(ty);
        inputs.len() == types.len() && inputs.iter().zip(types).all(is)
    }
}

/// A constant in the layout of a plugin's kernels.
#[derive(Clone, Debug)]
pub struct PackedConstant {
    /// Name of the plugin.
    pub plugin: String,
    /// Its version: a layout's number means something within one version.
    pub version: String,
    /// The constant that was packed.
    pub source: Tensor,
    /// Names the layout.
    pub layout_id: u64,
    /// Alignment that the layout asks of the address of its bytes.
    pub align: usize,
    /// The packed bytes, as a tensor of u8.
    pub content: Tensor,
}
