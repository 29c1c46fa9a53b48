//! Kernels before launch: checks that the host's request fits the descriptor (B20), and that the plugin's result can be
//! launched (B21). Also packed constants, costs, output types and free memory.

use super::books::*;
use super::guarded::{Out, hand_on};
use super::table::LAUNCH;
use super::threads::On;
use super::{Answer, Books, next, next_number};
use devbay_core::about;
use devbay_core::kernel::KernelDef;
use devbay_core::tensor::{AlignedBytes, TensorType, bytes_of};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::sync::Arc;

/// First reserved kernel number: all others are below it.
const KERNEL_IDX_MAX: u32 = 1 << 31;
/// Highest rank of a tensor.
const RANK_MAX: u32 = 64;
/// Number of extents behind the place for a shape that must stay unchanged.
const BEHIND: usize = 8;
/// Number of bytes behind a packed constant that must stay unchanged.
const GUARD: usize = 64;
const UNTOUCHED: i64 = 0x5a5a_5a5a_5a5a_5a5a;

/// The checked part of the host's request.
#[derive(Default)]
struct Request {
    device: usize,
    name: String,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    /// Positions of inputs that are constant.
    constants: Vec<u32>,
    /// Sum of the ranks of all outputs.
    ranks: u64,
    in_place: Vec<Option<usize>>,
    data_shape: bool,
}

impl Books {
    /// # Safety
    /// `desc` was read from a struct of the host, which keeps its lists and texts for the call.
    unsafe fn request(
        &self,
        instance: usize,
        desc: &PrepareDesc,
        has_outputs: bool,
    ) -> Result<Request, Fault> {
        let state = self.state();
        let device = state.device(desc.device.addr())?;
        if device.instance != instance {
            return fault("B10", "the device is of another instance");
        }
        let added = state.added.get(&(instance, desc.kernel_idx)).cloned();
        drop(state);
        let Some(kernel) = self.about.kernels.get(desc.kernel_idx).or(added.as_ref()) else {
            return fault("B20", format!("kernel {} of {}", desc.kernel_idx, self.about.kernels.len()));
        };
        // SAFETY: the host keeps the struct's lists for the call (# Safety).
        let lists = unsafe { (read_tensors(&desc.inputs), read_tensors(&desc.outputs)) };
        let (inputs, outputs) = (lists.0?, lists.1?);
        // SAFETY: B5: the list holds attributes, and the host keeps it for the call (# Safety).
        let attrs = unsafe { read_growable_list::<Attr>(&desc.attrs) };
        let attrs = attrs.map_err(|error| Fault { rule: "B5", words: format!("attributes: {error}") })?;
        for attr in &attrs {
            // SAFETY: the host keeps the attribute's text for the call (# Safety).
            if let Err(error) = unsafe { attr.name.get() } {
                return fault("B5", format!("the name of an attribute: {error}"));
            }
        }
        let types = |list: &[Option<Tensor>]| -> Vec<Option<TensorType>> {
            let of = |tensor: &Tensor| TensorType { dtype: tensor.dtype, shape: None };
            list.iter().map(|tensor| tensor.as_ref().map(of)).collect()
        };
        let (in_types, out_types) = (types(&inputs), types(&outputs));
        let in_types: Vec<Option<&TensorType>> = in_types.iter().map(Option::as_ref).collect();
        let out_types: Vec<Option<&TensorType>> = out_types.iter().map(Option::as_ref).collect();
        if has_outputs {
            let takes = kernel.takes(&in_types, &out_types);
            takes.map_err(|words| Fault { rule: "B20", words: format!("{}: {words}", kernel.op) })?;
        }
        let mut request = Request {
            device: desc.device.addr(),
            name: kernel.op.clone(),
            in_place: kernel.in_place.clone(),
            data_shape: kernel.data_shape,
            ranks: outputs.iter().flatten().map(|tensor| u64::from(tensor.rank)).sum(),
            ..Request::default()
        };
        for (i, tensor) in inputs.iter().enumerate() {
            request.inputs.push(check_tensor(kernel, tensor.as_ref(), &format!("input {i}"))?);
            let is_constant = tensor.is_some_and(|tensor| tensor.flags & DEVBAY_TENSOR_CONSTANT != 0);
            if is_constant {
                request.constants.push(i as u32);
            } else if kernel.needs_value(i) && tensor.is_some() {
                return fault("B20", format!("input {i} is not constant, the kernel wants its value"));
            }
        }
        for (i, tensor) in outputs.iter().enumerate() {
            request.outputs.push(check_tensor(kernel, tensor.as_ref(), &format!("output {i}"))?);
        }
        Ok(request)
    }

    pub(super) unsafe fn prepare(
        &self,
        instance: *mut Instance,
        desc: *const PrepareDesc,
        out: *mut Prepared,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("prepare", On::Instance(instance.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        // SAFETY: B5: `wanted` was read from the host's struct, and the host keeps its lists and texts for the call.
        let request = unsafe { self.request(instance.addr(), &wanted, true) };
        let request = self.expect(entered.function(), request)?;
        // SAFETY: B4: `out` is NULL or the host's struct with its size; the host keeps it for the call.
        let guarded = unsafe { Out::of(out.cast_const()) };
        let Some(mut guarded) = self.expect(entered.function(), guarded.map(Some))? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        let mut words = self.words(entered.function(), error)?;
        let status = entered.call(|| next!(self, prepare(instance, desc, guarded.as_ptr(), words.as_ptr())));
        self.settle(entered.function(), words, status);
        let (mut inner, found) = guarded.read();
        self.check(entered.function(), found);
        if status != DEVBAY_STATUS_OK {
            if !guarded.is_untouched_or_zero() {
                self.plugin_broke(entered.function(), "B21", "it failed and wrote a prepared kernel");
            }
            if guarded.is_written() {
                // SAFETY: `Out::of` read this struct and checked its size; the host lends it for writing until the call
                // returns.
                unsafe { hand_on(out, &inner) };
            }
            return Ok(status);
        }
        if inner.launch.is_none() {
            self.plugin_broke(entered.function(), "B21", "it succeeded without a launch function");
            // SAFETY: `Out::of` read this struct and checked its size; the host lends it for writing until the call
            // returns.
            unsafe { hand_on(out, &inner) };
            return Ok(status);
        }
        let packs = self.packs_of(&inner, &request);
        let packs = packs.unwrap_or_else(|found| {
            self.plugin(entered.function(), found);
            // Hides constants from the host whose packing would be refused.
            inner.packs = List::EMPTY;
            Vec::new()
        });
        if inner.workspace_align != 0 && !inner.workspace_align.is_power_of_two() {
            let words =
                format!("a workspace's alignment of {}, expected a power of two", inner.workspace_align);
            self.plugin(entered.function(), Fault { rule: "B21", words });
        }
        let book = kernel_book(instance.addr(), inner, request, packs);
        let refs_max = self.state().device(book.device).map_or(0, |device| device.refs_max);
        if refs_max != 0 && book.operands.len() > refs_max as usize {
            let words =
                format!("a kernel with {} references, the device takes {refs_max}", book.operands.len());
            self.host_noted(entered.function(), Fault { rule: "B11", words });
        }
        let number = next_number();
        self.state().kernels.insert(number, Arc::new(book));
        let own = Prepared {
            launch: Some(LAUNCH[self.slot]),
            state: std::ptr::without_provenance_mut(number),
            ..inner
        };
        // SAFETY: `Out::of` read this struct and checked its size; the host lends it for writing until the call
        // returns.
        unsafe { hand_on(out, &own) };
        Ok(status)
    }

    /// Reads the list of constants that a kernel wants packed.
    fn packs_of(&self, inner: &Prepared, request: &Request) -> Result<Vec<(u32, u64, u64)>, Fault> {
        // SAFETY: B5: the plugin keeps the list until `unprepare`, and `prepare` has just returned the kernel.
        let packs = unsafe { read_growable_list::<ConstantPack>(&inner.packs) };
        let packs =
            packs.map_err(|error| Fault { rule: "B5", words: format!("packed constants: {error}") })?;
        for pack in &packs {
            if !request.constants.contains(&pack.input_idx) {
                return fault(
                    "B21",
                    format!("it wants input {} packed, which is no constant", pack.input_idx),
                );
            }
            if !pack.align.is_power_of_two() {
                return fault(
                    "B21",
                    format!("a packed constant's alignment of {}, expected a power of two", pack.align),
                );
            }
        }
        Ok(packs.iter().map(|pack| (pack.input_idx, pack.size_bytes, pack.align)).collect())
    }

    pub(super) unsafe fn unprepare(
        &self,
        instance: *mut Instance,
        prepared: *mut Prepared,
    ) -> Result<(), Status> {
        let entered = self.enter("unprepare", On::Instance(instance.addr()))?;
        let Some(own) = self.read(entered.function(), prepared.cast_const())? else {
            return Ok(());
        };
        let number = own.state.addr();
        let mut state = self.state();
        let known = state.kernel(number).and_then(|kernel| {
            let kernel = Arc::clone(kernel);
            if kernel.instance != instance.addr() {
                return fault("B10", "the kernel is of another instance");
            }
            state.not_lent(Lent::Kernel(number)).map(|()| kernel)
        });
        if state.kernels.remove(&number).is_some() {
            state.ended(Kind::Kernel, number);
        }
        drop(state);
        let kernel = match known {
            Ok(kernel) => kernel,
            Err(found) => {
                // The plugin does not know this number, so there is nothing to pass on.
                if let Some(book) = self.state().instances.get_mut(&instance.addr()) {
                    book.leaks |= found.words.contains("in flight");
                }
                let _ = self.host(entered.function(), found);
                return Ok(());
            }
        };
        let mut inner = kernel.inner;
        entered.run(|| next!(self, void unprepare(instance, &mut inner)));
        Ok(())
    }

    pub(super) unsafe fn pack(
        &self,
        instance: *mut Instance,
        prepared: *const Prepared,
        input_idx: u32,
        src: *const Tensor,
        dst: *mut c_void,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("pack", On::Instance(instance.addr()))?;
        let Some(own) = self.read(entered.function(), prepared)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        self.refuse_null(entered.function(), dst)?;
        let kernel = self.state().kernel(own.state.addr()).map(Arc::clone);
        let Ok(kernel) = kernel.map_err(|found| self.host(entered.function(), found)) else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        let asked = kernel.packs.iter().find(|pack| pack.0 == input_idx);
        let Some(&(_, size, align)) = asked else {
            let words = format!("input {input_idx}, which the kernel did not ask for");
            self.host(entered.function(), Fault { rule: "B21", words })?;
            return Ok(DEVBAY_STATUS_INVALID);
        };
        if !dst.addr().is_multiple_of(align as usize) {
            let words = format!("the destination is at {:#x}, expected a multiple of {align}", dst.addr());
            self.host(entered.function(), Fault { rule: "B21", words })?;
        }
        self.read(entered.function(), src)?;
        let mut words = self.words(entered.function(), error)?;
        // Packs into memory of the layer, with guard bytes after it that must stay unchanged.
        let size = size as usize;
        let Ok(mut memory) = AlignedBytes::zeroed_aligned(size.saturating_add(GUARD), align as usize) else {
            return Ok(DEVBAY_STATUS_OUT_OF_MEMORY);
        };
        let memory = memory.as_mut_slice();
        memory[size..].fill(UNTOUCHED as u8);
        let place = memory.as_mut_ptr();
        let status = entered.call(|| {
            next!(self, pack(instance, &kernel.inner, input_idx, src, place.cast(), words.as_ptr()))
        });
        self.settle(entered.function(), words, status);
        if memory[size..].iter().any(|&byte| byte != UNTOUCHED as u8) {
            self.plugin_broke(entered.function(), "B21", "it wrote behind the packed constant");
        }
        // SAFETY: `dst` is not NULL, and the host guarantees `size` bytes there, as `prepare` told it (B21).
        unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr(), dst.cast(), size) };
        Ok(status)
    }

    pub(super) unsafe fn kernel_cost(
        &self,
        instance: *mut Instance,
        desc: *const PrepareDesc,
        out: *mut KernelCost,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("kernel_cost", On::Instance(instance.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        // SAFETY: B5: `wanted` was read from the host's struct, and the host keeps its lists and texts for the call.
        let request = unsafe { self.request(instance.addr(), &wanted, true) };
        self.expect(entered.function(), request)?;
        // SAFETY: B4: `out` is NULL or the host's struct with its size; the host keeps it for the call.
        let guarded = unsafe { Out::of(out.cast_const()) };
        let Some(mut guarded) = self.expect(entered.function(), guarded.map(Some))? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        let mut words = self.words(entered.function(), error)?;
        let status =
            entered.call(|| next!(self, kernel_cost(instance, desc, guarded.as_ptr(), words.as_ptr())));
        self.settle(entered.function(), words, status);
        let (cost, found) = guarded.read();
        self.check(entered.function(), found);
        if status == DEVBAY_STATUS_OK {
            // SAFETY: `Out::of` read this struct and checked its size; the host lends it for writing until the call
            // returns.
            unsafe { hand_on(out, &cost) };
        }
        Ok(status)
    }

    pub(super) unsafe fn memory_info(
        &self,
        device: *mut Device,
        space_idx: u32,
        out: *mut MemoryInfo,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("memory_info", On::Device(device.addr()))?;
        let n_spaces =
            self.state().device(device.addr()).map_or(u32::MAX, |device| device.spaces.len() as u32);
        if space_idx >= n_spaces {
            let words = format!("memory space {space_idx} of {n_spaces}");
            self.host(entered.function(), Fault { rule: "B11", words })?;
        }
        // SAFETY: B4: `out` is NULL or the host's struct with its size; the host keeps it for the call.
        let guarded = unsafe { Out::of(out.cast_const()) };
        let Some(mut guarded) = self.expect(entered.function(), guarded.map(Some))? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        let mut words = self.words(entered.function(), error)?;
        let status =
            entered.call(|| next!(self, memory_info(device, space_idx, guarded.as_ptr(), words.as_ptr())));
        self.settle(entered.function(), words, status);
        let (info, found) = guarded.read();
        self.check(entered.function(), found);
        if status == DEVBAY_STATUS_OK {
            // SAFETY: `Out::of` read this struct and checked its size; the host lends it for writing until the call
            // returns.
            unsafe { hand_on(out, &info) };
        }
        Ok(status)
    }

    pub(super) unsafe fn device_kernels(
        &self,
        instance: *mut Instance,
        device: *mut Device,
        out: *mut List,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("device_kernels", On::Device(device.addr()))?;
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        let mut list = List::EMPTY;
        let status =
            entered.call(|| next!(self, device_kernels(instance, device, &mut list, words.as_ptr())));
        self.settle(entered.function(), words, status);
        if status == DEVBAY_STATUS_OK {
            // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one list.
            unsafe { *out = list };
            // SAFETY: `list` is the successful result of the plugin's `device_kernels`, called above.
            let found = unsafe { self.read_device_kernels(instance.addr(), &list) };
            self.check(entered.function(), found);
        }
        Ok(status)
    }

    /// # Safety
    /// `list` is a result of the plugin's `device_kernels`.
    unsafe fn read_device_kernels(&self, instance: usize, list: &List) -> Result<(), Fault> {
        let broken = |error: ListError| Fault { rule: "B5", words: format!("its list of kernels: {error}") };
        // SAFETY: B20: the plugin keeps the list that it returned (# Safety), and the instance is held by this call.
        let listed = unsafe { read_growable_list::<DeviceKernel>(list) }.map_err(broken)?;
        for DeviceKernel { kernel_idx, info, .. } in listed {
            match (self.about.kernels.get(kernel_idx), info.is_null()) {
                (Some(_), true) => continue,
                (None, true) if u64::from(kernel_idx) < self.shown.kernels.len => continue,
                (None, false) if kernel_idx < KERNEL_IDX_MAX => {}
                _ => {
                    return fault(
                        "B20",
                        format!("kernel {kernel_idx} is none of the plugin's list, nor a new one"),
                    );
                }
            }
            // SAFETY: B20: `info` is not NULL here, and the plugin keeps it as long as the list (# Safety).
            let info = unsafe { read_struct(info) }.map_err(broken)?;
            // SAFETY: B5: `info` was read from the plugin's list, whose texts and lists live as long (# Safety).
            let kernel = unsafe { about::read_kernel(kernel_idx, &info) };
            let kernel = kernel.map_err(|refusal| Fault { rule: "B20", words: refusal.reason })?;
            // A kernel with flags unknown to the layer is skipped: a host of the same version never asks for it.
            if let Ok(kernel) = kernel {
                self.state().added.insert((instance, kernel_idx), kernel);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the function of the ABI has so many")]
    pub(super) unsafe fn kernel_shape(
        &self,
        instance: *mut Instance,
        desc: *const PrepareDesc,
        output_idx: u32,
        out_dtype: *mut DType,
        out_shape: *mut i64,
        rank_max: u32,
        out_rank: *mut u32,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("kernel_shape", On::Instance(instance.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        // SAFETY: B5: `wanted` was read from the host's struct, and the host keeps its lists and texts for the call.
        let request = unsafe { self.request(instance.addr(), &wanted, false) };
        self.expect(entered.function(), request)?;
        self.refuse_null(entered.function(), out_dtype)?;
        self.refuse_null(entered.function(), out_rank)?;
        if rank_max > 0 {
            self.refuse_null(entered.function(), out_shape)?;
        }
        let room = rank_max.min(RANK_MAX);
        let mut shape = vec![UNTOUCHED; room as usize + BEHIND];
        let mut rank = 0u32;
        let mut words = self.words(entered.function(), error)?;
        let status = entered.call(|| {
            let place = shape.as_mut_ptr();
            next!(
                self,
                kernel_shape(instance, desc, output_idx, out_dtype, place, room, &mut rank, words.as_ptr())
            )
        });
        self.settle(entered.function(), words, status);
        if shape[room as usize..].iter().any(|&extent| extent != UNTOUCHED) {
            self.plugin_broke(entered.function(), "B21", "it wrote more extents than there is room for");
        }
        if status == DEVBAY_STATUS_OK {
            if rank > room {
                let words = format!("it succeeded with a rank of {rank}, there is room for {room}");
                self.plugin(entered.function(), Fault { rule: "B21", words });
            }
            let n = rank.min(room) as usize;
            // SAFETY: `n` is at most `rank_max`; the host guarantees room for that many extents, and `refuse_null`
            // checked it.
            unsafe { std::ptr::copy_nonoverlapping(shape.as_ptr(), out_shape, n) };
            // SAFETY: `out_rank` is not NULL (`refuse_null`), so it is the host's place for one number.
            unsafe { *out_rank = rank };
        }
        Ok(status)
    }
}

/// Records the operands that launches of a kernel need.
fn kernel_book(
    instance: usize,
    inner: Prepared,
    request: Request,
    packs: Vec<(u32, u64, u64)>,
) -> KernelBook {
    let n_inputs = request.inputs.len();
    let mut operands = request.inputs;
    for &(input, size, align) in &packs {
        operands[input as usize] = Operand::Bytes(size, align);
    }
    operands.extend(request.outputs);
    if request.data_shape {
        operands.push(Operand::Bytes(8 * request.ranks, 8));
    }
    if inner.workspace_bytes > 0 {
        operands.push(Operand::Bytes(inner.workspace_bytes, inner.workspace_align.max(1)));
    }
    KernelBook {
        instance,
        device: request.device,
        name: request.name,
        inner,
        operands,
        n_inputs,
        in_place: request.in_place,
        packs,
    }
}

/// # Safety
/// `list` is a list of the host, which keeps it for the call.
unsafe fn read_tensors(list: &List) -> Result<Vec<Option<Tensor>>, Fault> {
    // SAFETY: B5: the host keeps the list for the call (# Safety).
    match unsafe { read_growable_list::<Tensor>(list) } {
        Ok(tensors) => {
            let present = |tensor: &Tensor| (tensor.flags & DEVBAY_TENSOR_ABSENT == 0).then_some(*tensor);
            Ok(tensors.iter().map(present).collect())
        }
        Err(error) => fault("B5", format!("operands: {error}")),
    }
}

/// Checks a tensor. Returns the requirement on its operand.
fn check_tensor(kernel: &KernelDef, tensor: Option<&Tensor>, what: &str) -> Result<Operand, Fault> {
    let Some(tensor) = tensor else {
        return Ok(Operand::Absent);
    };
    let rank = tensor.rank;
    if rank > RANK_MAX || rank > 0 && tensor.shape.is_null() {
        return fault(
            "B5",
            format!("{what} has {rank} dimensions and a shape at {:#x}", tensor.shape.addr()),
        );
    }
    let extents: Vec<i64> = (0..rank as usize)
        .map(|i| {
            // SAFETY: B5: the host's shape is not NULL here, has `rank` extents, and is kept for the call.
            unsafe { tensor.shape.add(i).read_unaligned() }
        })
        .collect();
    if extents.iter().any(|&extent| extent < 0) {
        let words = format!("{what} has the shape {extents:?}, the kernel wants extents that are known");
        return fault("B20", words);
    }
    if !tensor.strides.is_null() && !kernel.strided {
        return fault("B20", format!("{what} has strides, which the kernel does not take"));
    }
    let n = extents.iter().try_fold(1usize, |n, &extent| n.checked_mul(usize::try_from(extent).ok()?));
    let bytes =
        n.and_then(|n| bytes_of(tensor.dtype, n)).filter(|_| tensor.strides.is_null()).unwrap_or(0) as u64;
    if tensor.flags & DEVBAY_TENSOR_CONSTANT != 0 {
        let missing = tensor.constant.is_null() && tensor.constant_bytes > 0;
        if missing || tensor.constant_bytes != bytes && n.is_some() && tensor.strides.is_null() {
            let found = if missing { 0 } else { tensor.constant_bytes };
            return fault("B20", format!("{what} is a constant of {found} bytes, its type has {bytes}"));
        }
    }
    Ok(Operand::Bytes(bytes, u64::from(tensor.dtype.bits / 8).max(1)))
}
