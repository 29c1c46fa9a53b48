//! Instances, devices, buffers and streams: created, used by their owners, given back once and in order (B9).

use super::books::*;
use super::threads::On;
use super::{Answer, Books, next, next_number};
use devbay_plugin_api::abi::*;
use std::collections::HashSet;
use std::ptr::null_mut;

/// Returns the fields of a memory space that must not change.
fn seen(space: &MemorySpace) -> [u64; 8] {
    // The total size is left out: it may change if the memory is the system's.
    let MemorySpace { kind, flags, alloc_max, alloc_align, bind_align, bind_max, copy_align, .. } = *space;
    [u64::from(kind), flags, alloc_max, alloc_align, bind_align, bind_max, copy_align, space.copy_granule]
}

impl Books {
    pub(super) unsafe fn create(
        &self,
        desc: *const CreateDesc,
        out: *mut *mut Instance,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("create", On::Plugin)?;
        let Some(mut own) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        let Some(services) = self.read(entered.function(), own.host)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        self.refuse_null(entered.function(), out)?;
        if own.abi_minor > self.minors.max {
            // The plugin may speak this minor, but the layer does not.
            return Ok(DEVBAY_STATUS_UNSUPPORTED);
        }
        let (number, api) = self.open_services(services);
        own.host = api;
        own.struct_size = own.struct_size.min(size_of::<CreateDesc>() as u32);
        let mut words = self.words(entered.function(), error)?;
        // Starts as NULL instead of the host's value, which a host in C may leave uninitialised.
        let mut made = null_mut();
        let status = entered.call(|| next!(self, create(&own, &mut made, words.as_ptr())));
        self.settle(entered.function(), words, status);
        self.expect_same_data();
        if status != DEVBAY_STATUS_OK {
            self.close_services(number, status == DEVBAY_STATUS_PANICKED);
            if !made.is_null() {
                self.plugin_broke(entered.function(), "B9", "it failed and wrote an instance");
            }
            return Ok(status);
        }
        // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one handle.
        unsafe { *out = made };
        if made.is_null() {
            self.plugin_broke(entered.function(), "B9", "it succeeded without an instance");
            return Ok(status);
        }
        let book = InstanceBook { services: number, n_calls: 0, panicked: None, leaks: false };
        let known = self.enter_book(Kind::Instance, made.addr(), |state| {
            state.instances.insert(made.addr(), book);
        });
        self.check(entered.function(), known);
        Ok(status)
    }

    pub(super) unsafe fn destroy(&self, instance: *mut Instance) -> Result<(), Status> {
        let entered = self.enter("destroy", On::WholeInstance(instance.addr()))?;
        let left = self.state().left_of(instance.addr());
        if !left.is_empty() {
            let words = format!("expected that all was given back, found {left}");
            let stopped = self.host(entered.function(), Fault { rule: "B9", words });
            if stopped.is_err() {
                self.leak(instance.addr());
            }
        }
        let mut state = self.state();
        let book = state.instances.remove(&instance.addr());
        state.ended(Kind::Instance, instance.addr());
        state.extensions.ended(instance.addr());
        let devices = state.devices.extract_if(|_, device| device.instance == instance.addr());
        let devices: Vec<usize> = devices.map(|(handle, _)| handle).collect();
        devices.into_iter().for_each(|device| state.ended(Kind::Device, device));
        drop(state);
        let leaks = book.as_ref().is_some_and(|book| book.leaks);
        if !leaks {
            // If it leaks, a part of it is still alive, and so is the instance.
            entered.run(|| next!(self, void destroy(instance)));
            self.expect_same_data();
        }
        if let Some(book) = book {
            self.close_services(book.services, leaks);
        }
        Ok(())
    }

    pub(super) unsafe fn devices(
        &self,
        instance: *mut Instance,
        out: *mut List,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("devices", On::Instance(instance.addr()))?;
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        // A device may be lost while the plugin answers, so the list may be older than the loss.
        let is_lost = |(_, book): &(&usize, &DeviceBook)| book.lost.is_some_and(|told| told.binds());
        let lost: HashSet<usize> = self.state().devices.iter().filter(is_lost).map(|(&at, _)| at).collect();
        let mut list = List::EMPTY;
        let status = entered.call(|| next!(self, devices(instance, &mut list, words.as_ptr())));
        self.settle(entered.function(), words, status);
        if status == DEVBAY_STATUS_OK {
            // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one list.
            unsafe { *out = list };
            // SAFETY: `list` is the successful result of the plugin's `devices`, called above.
            let found = unsafe { self.read_devices(instance.addr(), &list, &lost) };
            self.check(entered.function(), found);
        }
        Ok(status)
    }

    /// # Safety
    /// `list` is a result of the plugin's `devices`.
    unsafe fn read_devices(&self, instance: usize, list: &List, lost: &HashSet<usize>) -> Result<(), Fault> {
        let broken = |error: ListError| Fault { rule: "B5", words: format!("its list of devices: {error}") };
        // SAFETY: B29: the plugin keeps the list that it returned (# Safety), and the instance is held by this call.
        let infos = unsafe { read_growable_list::<DeviceInfo>(list) }.map_err(broken)?;
        let (mut devices, mut ids, mut found) = (Vec::new(), HashSet::new(), Ok(()));
        let mut handles = HashSet::new();
        for (i, info) in infos.iter().enumerate() {
            // SAFETY: the spaces are part of the plugin's list (# Safety), and live as long.
            let spaces = unsafe { read_growable_list::<MemorySpace>(&info.spaces) }.map_err(broken)?;
            // SAFETY: B5: the text is part of the plugin's list (# Safety), and lives as long.
            let id = unsafe { info.id.get() }.map_err(broken)?.to_owned();
            for text in [&info.name, &info.driver] {
                // SAFETY: B5: the text is part of the plugin's list (# Safety), and lives as long.
                unsafe { text.get() }.map_err(broken)?;
            }
            if info.handle.is_null() {
                return fault("B9", format!("device {i} has no handle"));
            }
            if !handles.insert(info.handle.addr()) {
                found = fault("B9", format!("device {i} has the handle of another"));
            }
            if id.is_empty() || !ids.insert(id.clone()) {
                found = fault("B29", format!("device {i} has the id `{id}`, expected one of its own"));
            }
            if spaces.is_empty() {
                found = fault("B11", format!("device {i} has no memory space"));
            }
            for (s, space) in spaces.iter().enumerate() {
                let aligns = [space.bind_align, space.copy_align];
                let wrong = aligns.iter().find(|&&align| align != 0 && !align.is_power_of_two());
                if let Some(align) =
                    wrong.or((!space.alloc_align.is_power_of_two()).then_some(&space.alloc_align))
                {
                    found = fault(
                        "B11",
                        format!(
                            "space {s} of device {i} has an alignment of {align}, expected a power of two"
                        ),
                    );
                }
            }
            let device = DeviceSeen {
                handle: info.handle.addr(),
                id,
                flags: info.flags,
                spaces: spaces.iter().map(seen).collect(),
            };
            devices.push((device, info.refs_max, spaces));
        }
        let mut state = self.state();
        for (seen, refs_max, spaces) in devices {
            state.made(Kind::Device, seen.handle)?;
            if let Some(known) = state.devices.get(&seen.handle) {
                if lost.contains(&seen.handle) {
                    found = fault(
                        "B13",
                        format!("`{}` is listed with the handle that it was lost with", seen.id),
                    );
                } else if known.seen != seen {
                    found = fault(
                        "B29",
                        format!("`{}` is not what its handle was before, `{}`", seen.id, known.seen.id),
                    );
                }
                continue;
            }
            state.devices.insert(seen.handle, DeviceBook { instance, seen, refs_max, spaces, lost: None });
        }
        found
    }

    pub(super) unsafe fn buffer_alloc(
        &self,
        device: *mut Device,
        desc: *const AllocDesc,
        out: *mut Allocation,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("buffer_alloc", On::Device(device.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        let space = self.expect(entered.function(), self.space_of(device.addr(), &wanted))?;
        let call = |out, words| entered.call(|| next!(self, buffer_alloc(device, desc, out, words)));
        let (status, made) = self.watched(entered.function(), out, error, call)?;
        if status != DEVBAY_STATUS_OK {
            return Ok(status);
        }
        let found = if made.buffer.is_null() {
            Ok(())
        } else if made.size_bytes < wanted.size_bytes {
            let (found, asked) = (made.size_bytes, wanted.size_bytes);
            fault("B11", format!("the buffer has {found} bytes, expected {asked} at least"))
        } else if wanted.align.is_power_of_two() && !made.base.is_multiple_of(wanted.align) {
            fault(
                "B11",
                format!("the buffer begins at {:#x}, expected a multiple of {}", made.base, wanted.align),
            )
        } else {
            Ok(())
        };
        self.check(entered.function(), found);
        self.enter_buffer(entered.function(), device.addr(), &made, space, false);
        Ok(status)
    }

    /// Adds a buffer that the plugin made.
    pub(super) fn enter_buffer(
        &self,
        function: &'static str,
        device: usize,
        made: &Allocation,
        space: Option<MemorySpace>,
        written: bool,
    ) {
        if made.buffer.is_null() {
            return self.plugin_broke(function, "B9", "it succeeded without a buffer");
        }
        let space = space.unwrap_or_else(MemorySpace::empty);
        let (base, size) = (made.base, made.size_bytes);
        let book = BufferBook { device, base, size, space, written, unsaid: false };
        let known = self.enter_book(Kind::Buffer, made.buffer.addr(), |state| {
            state.buffers.insert(made.buffer.addr(), book);
        });
        self.check(function, known);
    }

    /// Returns the memory space for an allocation, if the allocation is allowed.
    fn space_of(&self, device: usize, wanted: &AllocDesc) -> Result<Option<MemorySpace>, Fault> {
        let state = self.state();
        let spaces = &state.device(device)?.spaces;
        let Some(space) = spaces.get(wanted.space_idx as usize) else {
            return fault("B11", format!("memory space {} of {}", wanted.space_idx, spaces.len()));
        };
        let least = space.alloc_align.max(1);
        if !wanted.align.is_power_of_two() || wanted.align < least {
            let found = wanted.align;
            return fault("B11", format!("an alignment of {found}, expected a power of two from {least} on"));
        }
        if space.flags & DEVBAY_SPACE_TYPED != 0 && wanted.tensor.is_null() {
            return fault("B11", "an allocation without a tensor's type in a space that wants it");
        }
        Ok(Some(*space))
    }

    pub(super) unsafe fn buffer_free(&self, buffer: *mut Buffer) -> Result<(), Status> {
        let entered = self.enter("buffer_free", On::Buffer(buffer.addr()))?;
        let mut state = self.state();
        let lent = state.not_lent(Lent::Buffer(buffer.addr()));
        let book = state.buffers.remove(&buffer.addr());
        state.ended(Kind::Buffer, buffer.addr());
        let instance = book.and_then(|book| state.devices.get(&book.device).map(|device| device.instance));
        drop(state);
        self.expect(entered.function(), lent)
            .inspect_err(|_| instance.into_iter().for_each(|of| self.leak(of)))?;
        entered.run(|| next!(self, void buffer_free(buffer)));
        Ok(())
    }

    pub(super) unsafe fn stream_create(
        &self,
        device: *mut Device,
        desc: *const StreamDesc,
        out: *mut *mut Stream,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("stream_create", On::Device(device.addr()))?;
        let wanted = self.read(entered.function(), desc)?;
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        // Starts as NULL instead of the host's value, which a host in C may leave uninitialised.
        let mut made = null_mut();
        let status = entered.call(|| next!(self, stream_create(device, desc, &mut made, words.as_ptr())));
        self.settle(entered.function(), words, status);
        if status != DEVBAY_STATUS_OK {
            return Ok(status);
        }
        // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one handle.
        unsafe { *out = made };
        let copies = wanted.is_some_and(|wanted| wanted.kind == DEVBAY_STREAM_COPY);
        self.enter_stream(entered.function(), device.addr(), made, copies);
        Ok(status)
    }

    /// Adds a stream that the plugin made.
    pub(super) fn enter_stream(
        &self,
        function: &'static str,
        device: usize,
        made: *mut Stream,
        copies: bool,
    ) {
        if made.is_null() {
            return self.plugin_broke(function, "B9", "it succeeded without a stream");
        }
        let of = self.state().device(device).map(|book| (book.instance, book.seen.flags)).unwrap_or_default();
        let book = StreamBook {
            serial: next_number(),
            device,
            instance: of.0,
            inline: of.1 & DEVBAY_DEVICE_INLINE != 0,
            copies,
            n_calls: 0,
            owned: false,
            last_signalled: 0,
            tried: 0,
            floor: 0,
            told: 0,
            failed: None,
            refused: None,
            records: None,
            unsignalled: HashSet::new(),
            in_flight: std::collections::VecDeque::new(),
        };
        let known = self.enter_book(Kind::Stream, made.addr(), |state| {
            state.streams.insert(made.addr(), book);
        });
        self.check(function, known);
    }

    pub(super) unsafe fn stream_destroy(&self, stream: *mut Stream) -> Result<(), Status> {
        let entered = self.enter("stream_destroy", On::Owner(stream.addr()))?;
        let mut state = self.state();
        let n_calls = state.streams.get(&stream.addr()).map_or(0, |book| book.n_calls);
        if n_calls > 1 {
            drop(state);
            let words = "called while another call is in the stream".to_owned();
            self.host(entered.function(), Fault { rule: "B17", words })?;
            state = self.state();
        }
        let book = state.streams.remove(&stream.addr());
        state.ended(Kind::Stream, stream.addr());
        drop(state);
        entered.run(|| next!(self, void stream_destroy(stream)));
        let Some(book) = book else {
            return Ok(());
        };
        let mut state = self.state();
        let overdue = state.callbacks.values_mut().filter(|callback| callback.stream_serial == book.serial);
        let n = overdue.map(|callback| callback.state = CallbackState::Overdue).count();
        state.stream_ended(book);
        drop(state);
        if n > 0 {
            let words = format!("{n} callbacks of the stream have not come when it has ended");
            self.plugin(entered.function(), Fault { rule: "B16", words });
        }
        Ok(())
    }

    /// Adds an object that the plugin made. A handle that is already alive is a fault.
    pub(super) fn enter_book(
        &self,
        kind: Kind,
        handle: usize,
        insert: impl FnOnce(&mut Register),
    ) -> Result<(), Fault> {
        let mut state = self.state();
        let known = state.made(kind, handle);
        insert(&mut state);
        known
    }

    /// Records that an instance can no longer be destroyed, because a part of it must not be freed.
    pub(super) fn leak(&self, instance: usize) {
        if let Some(book) = self.state().instances.get_mut(&instance) {
            book.leaks = true;
        }
    }
}
