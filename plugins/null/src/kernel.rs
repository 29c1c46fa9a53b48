//! Kernels of this device: nothing that is launched.
//!
//! Launching is one call through a pointer that returns at once, without the SDK's guard around it: there is nothing
//! that could panic. So what a run takes on this device is what the engine takes for it.

use crate::{NullDevice, NullStream};
use core::ffi::c_void;
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, Status};
use devbay_plugin_api::sdk::*;

/// Takes any node whose result is not known beforehand.
pub fn prepare(request: &PrepareRequest<'_, NullDevice>) -> Result<Prepared> {
    refuse_known(request)?;
    // SAFETY: `launch` reads neither its state nor a reference, and does not unwind.
    Ok(unsafe { Prepared::raw(launch, ()) })
}

unsafe extern "C" fn launch(
    _state: *const c_void,
    _stream: *mut devbay_plugin_api::abi::Stream,
    _refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    DEVBAY_STATUS_OK
}

/// Refuses a node whose operands are all known before the run: the host folds it, and derives shapes from its result.
/// Zeros there would change the model.
fn refuse_known(request: &PrepareRequest<'_, NullDevice>) -> Result<()> {
    if request.inputs.iter().all(|input| input.is_absent() || input.constant().is_some()) {
        return Err(Error::unsupported(
            "all inputs are constants: the result would not be, as nothing is computed",
        ));
    }
    Ok(())
}

/// Takes any node whose results are as large as its data say.
pub fn prepare_extents(request: &PrepareRequest<'_, NullDevice>) -> Result<Prepared> {
    refuse_known(request)?;
    let given = request.outputs.iter().filter(|output| !output.is_absent());
    Ok(Prepared::new(Empty { n_extents: given.map(|output| output.shape().len()).sum() }))
}

/// A kernel that says that its outputs are empty: with what was in memory before, they could be larger than their room.
struct Empty {
    n_extents: usize,
}

impl Launch<NullDevice> for Empty {
    fn launch(&self, _stream: &NullStream, operands: &mut Operands<'_>) -> Result<()> {
        for i in 0..self.n_extents {
            // SAFETY: the host lends so many extents, one for each dimension of an output that is there (B21).
            unsafe { operands.extents_ptr().add(i).write(0) };
        }
        Ok(())
    }
}
