//! References to memory that a caller lends for a run.
//!
//! Kernels of inline devices that take references to host memory work in the caller's memory themselves. All of such a
//! reference except the caller's address is known when the section is planned, so that a run only adds that.

use super::frame::Frame;
use super::host_io::{InputView, OutputView};
use crate::plan::section::{Patch, Section};
use devbay_plugin_api::abi::BufferRef;
use std::ptr::null_mut;

/// The references of a section to memory that the caller lends.
pub(crate) struct Lent {
    inputs: Box<[LentRef]>,
    outputs: Box<[LentRef]>,
}

/// One reference, which is made when the caller's memory is known.
struct LentRef {
    /// Position of the input or result that the caller gives.
    operand: u32,
    /// Position of the reference in the frame.
    ref_idx: u32,
    /// Bits of an address that are 0 if elements may begin there (B10).
    align_mask: usize,
    /// The reference, its address counted from where the operand begins.
    blank: BufferRef,
}

// SAFETY: the blank references name no memory.
unsafe impl Send for LentRef {}
// SAFETY: the blank references name no memory, and the rest is plain numbers.
unsafe impl Sync for LentRef {}

impl LentRef {
    fn new(patch: &Patch, operand: u32, align: usize) -> Self {
        let blank = patch.reference(BufferRef { buffer: null_mut(), addr: 0, offset: 0, length: 0 });
        let blank = BufferRef { addr: patch.offset, ..blank };
        Self { operand, ref_idx: patch.ref_idx, align_mask: align - 1, blank }
    }

    /// Points the frame's reference at memory of the caller's; false if that is not aligned.
    #[inline]
    fn point(&self, refs: &mut [BufferRef], start: *const u8) -> bool {
        refs[self.ref_idx as usize] = BufferRef { addr: start as u64 + self.blank.addr, ..self.blank };
        start as usize & self.align_mask == 0
    }
}

impl Lent {
    /// Returns the references of a section whose inputs are these of the plan's; None if its kernels cannot work in the
    /// caller's memory.
    pub fn of(section: &Section, plan_inputs: &[u32]) -> Option<Self> {
        let about = section.device.about();
        if !about.inline || !about.host_refs || section.is_placed {
            return None;
        }
        let input = |patch: &Patch| {
            let operand = patch.operand as usize;
            LentRef::new(patch, plan_inputs[operand], section.inputs[operand].align())
        };
        let output = |patch: &Patch| {
            let operand = patch.operand as usize;
            LentRef::new(patch, section.result_of_written[operand], section.written[operand].align())
        };
        let inputs = section.input_patches.iter().map(input).collect();
        Some(Self { inputs, outputs: section.output_patches.iter().map(output).collect() })
    }

    /// Points a frame at the caller's memory, until it is pointed elsewhere. False if a part of that is not aligned to
    /// its elements, as references to host memory must be: then the frame is to be pointed elsewhere.
    #[inline]
    pub fn point(&self, frame: &mut Frame, inputs: &[InputView<'_>], outputs: &mut [OutputView<'_>]) -> bool {
        let refs = &mut *frame.refs;
        self.inputs.iter().all(|lent| lent.point(refs, inputs[lent.operand as usize].bytes().as_ptr()))
            && self.outputs.iter().all(|lent| lent.point(refs, outputs[lent.operand as usize].as_mut_ptr()))
    }
}
