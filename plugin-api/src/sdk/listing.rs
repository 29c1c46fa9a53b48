//! Lists of an instance: its devices, and the kernels of one.

use super::export::{InstanceBox, deref, report};
use super::{Device, DeviceDesc, Error, Plugin, Result, SpaceDesc};
use crate::abi;
use crate::abi::*;
use crate::locks::lock;
use std::sync::Mutex;

/// Every list given to the host, the newest last; the host may hold any of them until `destroy`.
#[derive(Default)]
pub(super) struct Lists {
    devices: Mutex<Vec<DeviceList>>,
    kernels: Mutex<Vec<KernelList>>,
}

/// A list of a device's kernels.
struct KernelList(#[expect(dead_code, reason = "owns what the host reads")] Vec<DeviceKernel>);

// SAFETY: its kernels are positions; their pointers are NULL.
unsafe impl Send for KernelList {}
// SAFETY: no method changes it after it was made.
unsafe impl Sync for KernelList {}

/// Memory that a list of devices points to.
struct DeviceList {
    #[expect(dead_code, reason = "owns the texts that `infos` points to")]
    descriptions: Vec<DeviceDesc>,
    #[expect(dead_code, reason = "owns the spaces that `infos` points to")]
    spaces: Vec<Vec<MemorySpace>>,
    infos: Vec<DeviceInfo>,
}

// SAFETY: the pointers in `infos` are to arrays of the same value and to the instance; all of it is read-only.
unsafe impl Send for DeviceList {}

impl DeviceList {
    fn new(descriptions: Vec<DeviceDesc>, handles: &[*mut abi::Device]) -> Self {
        let spaces: Vec<Vec<MemorySpace>> = descriptions.iter().map(spaces_of).collect();
        let infos = handles.iter().zip(&descriptions).zip(&spaces);
        let infos = infos.map(|((&handle, desc), spaces)| DeviceInfo {
            struct_size: size_of::<DeviceInfo>() as u32,
            kind: desc.kind,
            handle,
            id: Str::new(&desc.id),
            name: Str::new(&desc.name),
            flags: desc.flags | if desc.inline { DEVBAY_DEVICE_INLINE } else { 0 },
            streams_max: desc.streams_max,
            refs_max: desc.refs_max,
            spaces: List::new(spaces),
            physical_id: desc.physical_id,
            driver: Str::new(&desc.driver),
        });
        let infos = infos.collect();
        Self { descriptions, spaces, infos }
    }
}

pub(super) unsafe extern "C" fn devices<P: Plugin>(
    instance: *mut Instance,
    out: *mut List,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let instance: &InstanceBox<P> = unsafe { deref(instance, "the instance") }?;
        needs_place(out)?;
        let devices = instance.plugin.devices()?;
        let handles: Vec<*mut abi::Device> =
            devices.iter().map(|device| (&raw const **device).cast_mut().cast()).collect();
        let mut lists = lock(&instance.lists.devices);
        // Gives the last list again if nothing has changed, so that frequent calls use up no memory.
        if lists
            .last()
            .is_none_or(|list| !list.infos.iter().map(|info| info.handle).eq(handles.iter().copied()))
        {
            let descriptions: Vec<DeviceDesc> =
                devices.iter().map(|device| device.describe().clone()).collect();
            lists.push(DeviceList::new(descriptions, &handles));
        }
        if let Some(list) = lists.last() {
            // SAFETY: `out` is not NULL (`needs_place`); the list's array does not move, and is kept until the instance
            // goes.
            unsafe { out.write(List::new(&list.infos)) };
        }
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

fn needs_place(out: *mut List) -> Result<()> {
    if out.is_null() { Err(Error::invalid("the place for the list is NULL")) } else { Ok(()) }
}

fn spaces_of(desc: &DeviceDesc) -> Vec<MemorySpace> {
    let space = |space: &SpaceDesc| MemorySpace {
        struct_size: size_of::<MemorySpace>() as u32,
        kind: space.kind,
        flags: space.flags,
        bytes_total: space.bytes_total,
        alloc_max: space.alloc_max,
        alloc_align: space.alloc_align,
        bind_align: space.bind_align,
        bind_max: space.bind_max,
        copy_align: space.copy_align,
        copy_granule: space.copy_granule,
    };
    desc.spaces.iter().map(space).collect()
}

pub(super) unsafe extern "C" fn device_kernels<P: Plugin>(
    instance: *mut Instance,
    device: *mut abi::Device,
    out: *mut List,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let instance: &InstanceBox<P> = unsafe { deref(instance, "the instance") }?;
        // SAFETY: B9: NULL, or a device that this plugin listed.
        let device: &P::Device = unsafe { deref(device, "the device") }?;
        needs_place(out)?;
        let mut list = Vec::with_capacity(P::KERNELS.len());
        for idx in 0..P::KERNELS.len() {
            if instance.plugin.has_kernel(device, idx)? {
                list.push(DeviceKernel { kernel_idx: idx as u32, ..DeviceKernel::empty() });
            }
        }
        // SAFETY: `out` is not NULL (`needs_place`); the list's array does not move, and is kept until the instance
        // goes.
        unsafe { out.write(List::new(&list)) };
        lock(&instance.lists.kernels).push(KernelList(list));
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}
