//! Extensions that the layer supports, and checks of those for native memory and streams, and for faults (B6, B15).

use super::books::*;
use super::threads::On;
use super::{Answer, Books, table};
use devbay_plugin_api::abi::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// A table of the plugin, and the layer's replacement, kept as long as the instance.
struct Shown<T> {
    next: T,
    own: Box<T>,
}

/// The requested tables, by instance.
#[derive(Default)]
pub(super) struct Extensions {
    compile: HashMap<usize, Shown<CompileTable>>,
    interop: HashMap<usize, Shown<InteropTable>>,
    replay: HashMap<usize, Shown<ReplayTable>>,
    fault: HashMap<usize, Shown<FaultTable>>,
}

impl Extensions {
    /// Removes the tables of an instance that has ended.
    pub fn ended(&mut self, instance: usize) {
        self.compile.remove(&instance);
        self.interop.remove(&instance);
        self.replay.remove(&instance);
        self.fault.remove(&instance);
    }
}

/// The plugin's table of an extension. All slots are NULL if the instance has none; the host then got no table either.
macro_rules! next_table {
    ($name:ident, $table:ident) => {
        pub(super) fn $name(&self, instance: Option<usize>) -> $table {
            let state = self.state();
            let shown = instance.and_then(|instance| state.extensions.$name.get(&instance));
            shown.map_or_else($table::empty, |shown| shown.next)
        }
    };
}

/// Calls a function of an extension's table. UNSUPPORTED if the table lacks it; the host then has no such function
/// either.
macro_rules! call {
    ($table:expr, $slot:ident($($argument:expr),* $(,)?)) => {
        match $table.$slot {
            // SAFETY: B6: `function` is from the plugin's table of the extension. Its arguments are the host's, which
            // guarantees the ABI's conditions on them, or places of the layer that live for the call.
            Some(function) => unsafe { function($($argument),*) },
            None => DEVBAY_STATUS_UNSUPPORTED,
        }
    };
}
pub(super) use call;

impl Books {
    next_table!(compile, CompileTable);
    next_table!(interop, InteropTable);
    next_table!(replay, ReplayTable);
    next_table!(fault, FaultTable);

    /// Returns the layer's table of an extension; NULL if the plugin lacks it or the layer does not know it (B6).
    pub(super) unsafe fn get_extension(
        &self,
        instance: *mut Instance,
        id: u32,
        min_revision: u32,
    ) -> *const c_void {
        let Ok(entered) = self.enter("get_extension", On::Instance(instance.addr())) else {
            return null();
        };
        let known = match id {
            extension::COMPILE => DEVBAY_COMPILE_REVISION,
            extension::INTEROP => DEVBAY_INTEROP_REVISION,
            extension::REPLAY => DEVBAY_REPLAY_REVISION,
            extension::FAULT => DEVBAY_FAULT_REVISION,
            _ => return null(),
        };
        let Some(lookup) = self.next.get_extension.filter(|_| min_revision <= known) else {
            return null();
        };
        // SAFETY: B9: the host guarantees that the plugin made `instance` and that it was not destroyed.
        let given = entered.run(|| unsafe { lookup(instance, id, min_revision) });
        if given.is_null() {
            return null();
        }
        let at = instance.addr();
        macro_rules! show {
            ($field:ident, $in_place_of:path) => {{
                // SAFETY: B6: `given` is not NULL here, and the plugin keeps its table of this extension as long as the
                // instance.
                let read = unsafe { read_struct(given.cast()) };
                read.map(|next| {
                    let make = || Shown { next, own: Box::new($in_place_of(self.slot, &next)) };
                    let mut state = self.state();
                    let shown: &Shown<_> = state.extensions.$field.entry(at).or_insert_with(make);
                    std::ptr::from_ref(&*shown.own).cast::<c_void>()
                })
            }};
        }
        let shown = match id {
            extension::COMPILE => show!(compile, table::compile_in_place_of),
            extension::INTEROP => show!(interop, table::interop_in_place_of),
            extension::REPLAY => show!(replay, table::replay_in_place_of),
            _ => show!(fault, table::fault_in_place_of),
        };
        shown.unwrap_or_else(|error| {
            let words = format!("its table of extension {id}: {error}");
            self.plugin(entered.function(), Fault { rule: "B6", words });
            null()
        })
    }

    pub(super) unsafe fn stream_fail(&self, stream: *mut Stream, status: Status) -> Answer {
        let entered = self.enter("stream_fail", On::Owner(stream.addr()))?;
        self.refuse_recording(entered.function(), stream.addr())?;
        let next = self.fault(entered.instance());
        let answer = entered.call(|| call!(next, stream_fail(stream, status)));
        self.enqueued(stream.addr(), answer);
        Ok(answer)
    }

    pub(super) unsafe fn device_lose(&self, device: *mut Device) -> Answer {
        let entered = self.enter("device_lose", On::Device(device.addr()))?;
        let next = self.fault(entered.instance());
        Ok(entered.call(|| call!(next, device_lose(device))))
    }

    pub(super) unsafe fn dlpack_device(
        &self,
        device: *mut Device,
        space_idx: u32,
        out_type: *mut i32,
        out_id: *mut i32,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("dlpack_device", On::Device(device.addr()))?;
        self.refuse_null(entered.function(), out_type)?;
        self.refuse_null(entered.function(), out_id)?;
        let mut words = self.words(entered.function(), error)?;
        let next = self.interop(entered.instance());
        let status =
            entered.call(|| call!(next, dlpack_device(device, space_idx, out_type, out_id, words.as_ptr())));
        self.settle(entered.function(), words, status);
        Ok(status)
    }

    pub(super) unsafe fn buffer_import(
        &self,
        device: *mut Device,
        desc: *const ImportDesc,
        out: *mut Allocation,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("buffer_import", On::Device(device.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        self.read(entered.function(), wanted.native)?;
        // The plugin refuses a memory space that does not exist.
        let space = self
            .state()
            .device(device.addr())
            .ok()
            .and_then(|book| book.spaces.get(wanted.space_idx as usize).copied());
        let next = self.interop(entered.instance());
        let call = |out, words| entered.call(|| call!(next, buffer_import(device, desc, out, words)));
        let (status, made) = self.watched(entered.function(), out, error, call)?;
        if status != DEVBAY_STATUS_OK {
            return Ok(status);
        }
        if made.size_bytes < wanted.size_bytes {
            let (found, asked) = (made.size_bytes, wanted.size_bytes);
            let words = format!("the buffer has {found} bytes, expected {asked} at least");
            self.plugin(entered.function(), Fault { rule: "B11", words });
        }
        if space.is_none() {
            let words = format!("memory in space {}, which the device does not have", wanted.space_idx);
            self.plugin(entered.function(), Fault { rule: "B11", words });
        }
        // Imported memory counts as written.
        self.enter_buffer(entered.function(), device.addr(), &made, space, true);
        Ok(status)
    }

    pub(super) unsafe fn buffer_export(
        &self,
        buffer: *mut Buffer,
        out: *mut NativeHandle,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("buffer_export", On::Buffer(buffer.addr()))?;
        let next = self.interop(entered.instance());
        let call = |out, words| entered.call(|| call!(next, buffer_export(buffer, out, words)));
        self.native(entered.function(), out, error, call)
    }

    pub(super) unsafe fn stream_import(
        &self,
        device: *mut Device,
        native: *const NativeHandle,
        out: *mut *mut Stream,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("stream_import", On::Device(device.addr()))?;
        self.read(entered.function(), native)?;
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        // Starts as NULL instead of the host's value, which a host in C may leave uninitialised.
        let mut made = null_mut();
        let next = self.interop(entered.instance());
        let status = entered.call(|| call!(next, stream_import(device, native, &mut made, words.as_ptr())));
        self.settle(entered.function(), words, status);
        if status == DEVBAY_STATUS_OK {
            // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one handle.
            unsafe { *out = made };
            self.enter_stream(entered.function(), device.addr(), made, false);
        }
        Ok(status)
    }

    pub(super) unsafe fn stream_export(
        &self,
        stream: *mut Stream,
        out: *mut NativeHandle,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("stream_export", On::Stream(stream.addr()))?;
        let next = self.interop(entered.instance());
        let call = |out, words| entered.call(|| call!(next, stream_export(stream, out, words)));
        self.native(entered.function(), out, error, call)
    }

    /// Calls a function that writes a native handle, and checks the result.
    fn native(
        &self,
        function: &'static str,
        out: *mut NativeHandle,
        error: *mut ErrorDetail,
        call: impl FnOnce(*mut NativeHandle, *mut ErrorDetail) -> Status,
    ) -> Answer {
        let (status, made) = self.watched(function, out, error, call)?;
        if status == DEVBAY_STATUS_OK && made.kind == 0 {
            self.plugin_broke(function, "B15", "it succeeded without a kind of handle");
        }
        Ok(status)
    }
}
