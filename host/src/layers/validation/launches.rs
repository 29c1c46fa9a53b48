//! Launches: the number of references that `prepare` fixed, each to a live, large enough buffer at its stated address;
//! outputs that overlap nothing else (B10, B21).

use super::books::*;
use super::copies::overlap;
use super::threads::On;
use super::{Answer, Books};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::sync::Arc;

impl Books {
    pub(super) unsafe fn launch(
        &self,
        number: *const c_void,
        stream: *mut Stream,
        refs: *const BufferRef,
        dims: *const i64,
    ) -> Answer {
        let entered = self.enter("launch", On::Launch(stream.addr()))?;
        let kernel = self.state().kernel(number.addr()).map(Arc::clone);
        let kernel = match kernel {
            Ok(kernel) => kernel,
            Err(found) => {
                // Without the kernel's record there is no function to call.
                let _ = self.host(entered.function(), found);
                return Ok(DEVBAY_STATUS_INVALID);
            }
        };
        let n = kernel.operands.len();
        if n > 0 {
            self.refuse_null(entered.function(), refs.cast_mut())?;
        }
        let refs_given: &[BufferRef] = if n == 0 || refs.is_null() {
            &[]
        } else {
            // SAFETY: the host gives as many references as `prepare` fixed, alive for the call.
            unsafe { std::slice::from_raw_parts(refs, n) }
        };
        let for_copies = self.state().streams.get(&stream.addr()).is_some_and(|stream| stream.copies);
        if for_copies {
            let words = "a launch on a stream that was made for copies alone".to_owned();
            self.host(entered.function(), Fault { rule: "B12", words })?;
        }
        let checked = check(&self.state(), entered.device.unwrap_or(0), &kernel, refs_given, dims.is_null());
        let mut lent = self.expect(entered.function(), checked)?;
        lent.push(Lent::Kernel(number.addr()));
        Ok(self.enqueue(&entered, stream, &lent, || match kernel.inner.launch {
            // SAFETY: B21: `prepare` returned this function with this state, and `kernel` keeps the record. The host
            // guarantees stream and references, as far as `check` has not.
            Some(launch) => unsafe { launch(kernel.inner.state, stream, refs, dims) },
            None => DEVBAY_STATUS_INVALID,
        }))
    }
}

/// Checks a launch. Returns the objects that it uses.
fn check(
    state: &Register,
    device: usize,
    kernel: &KernelBook,
    refs: &[BufferRef],
    without_dims: bool,
) -> Result<Vec<Lent>, Fault> {
    let name = &kernel.name;
    if kernel.device != device {
        return fault("B21", format!("{name} was prepared for another device than the stream's"));
    }
    if !without_dims {
        return fault("B21", format!("{name} was given extents at launch, whose place is reserved"));
    }
    let mut lent = Vec::new();
    for (i, (reference, operand)) in refs.iter().zip(&kernel.operands).enumerate() {
        let what = format!("operand {i} of {name}");
        let Operand::Bytes(bytes, align) = *operand else {
            if !reference.buffer.is_null() || reference.addr != 0 || reference.length != 0 {
                return fault("B10", format!("{what} is given, and was absent when the kernel was prepared"));
            }
            continue;
        };
        let book = state.range(device, reference, &what)?;
        if reference.length < bytes {
            return fault("B10", format!("{what} has {} bytes, expected {bytes}", reference.length));
        }
        let Some(book) = book else {
            if reference.length > 0 && !reference.addr.is_multiple_of(align) {
                return fault(
                    "B10",
                    format!("{what} is at {:#x}, expected a multiple of {align}", reference.addr),
                );
            }
            continue;
        };
        let bind = book.space.bind_align.max(1);
        if !reference.offset.is_multiple_of(bind) {
            return fault(
                "B11",
                format!("{what} begins at {}, expected a multiple of {bind}", reference.offset),
            );
        }
        if book.space.bind_max != 0 && reference.length > book.space.bind_max {
            let most = book.space.bind_max;
            return fault("B11", format!("{what} has {} bytes, the space binds {most}", reference.length));
        }
        if i >= kernel.n_inputs && book.space.flags & DEVBAY_SPACE_WRITE_ONCE != 0 {
            return fault("B11", format!("{what} is written, in a space that copies alone write"));
        }
        lent.push(Lent::Buffer(reference.buffer.addr()));
    }
    for (o, output) in refs.iter().enumerate().skip(kernel.n_inputs) {
        for (i, other) in refs.iter().enumerate().take(o) {
            let may = i < kernel.n_inputs
                && kernel.in_place.get(o - kernel.n_inputs).copied().flatten() == Some(i)
                && (output.addr, output.offset, output.length) == (other.addr, other.offset, other.length);
            if overlap(output, other) && !may {
                return fault("B21", format!("operands {i} and {o} of {name} overlap, and {o} is written"));
            }
        }
    }
    Ok(lent)
}
