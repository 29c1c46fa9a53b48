//! A plugin's extensions, and the extension that makes streams fail and devices be lost.

use super::compile::Programs;
use super::export::{InstanceBox, deref, enqueue_on, report};
use super::interop::Interop;
use super::replay::Replays;
use super::{Device, Error, Plugin, Stream, guard};
use crate::abi;
use crate::abi::*;
use core::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{from_ref, null, null_mut};

/// Looks up an extension: first those that the SDK builds from a trait's functions, then the plugin's own.
pub(super) unsafe extern "C" fn get_extension<P: Plugin>(
    instance: *mut Instance,
    id: u32,
    min_revision: u32,
) -> *const c_void {
    let table = guard(|| {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let instance: &InstanceBox<P> = unsafe { deref(instance, "the instance") }?;
        type StreamOf<P> = <<P as Plugin>::Device as Device>::Stream;
        let own: Option<*const c_void> = match id {
            _ if min_revision > 1 => None,
            extension::FAULT if StreamOf::<P>::FAIL || P::Device::LOSE => {
                Some(from_ref(Faults::<P::Device>::TABLE).cast())
            }
            extension::REPLAY if StreamOf::<P>::REPLAY => Some(from_ref(Replays::<P::Device>::TABLE).cast()),
            extension::INTEROP if P::Device::INTEROP => Some(from_ref(Interop::<P::Device>::TABLE).cast()),
            extension::COMPILE if !P::Device::FORMATS.is_empty() || P::Device::GRAPHS => {
                Some(from_ref(Programs::<P>::TABLE).cast())
            }
            _ => None,
        };
        if own.is_some() {
            return Ok(own);
        }
        Ok(instance.plugin.extension(id, min_revision))
    });
    table.ok().flatten().unwrap_or(null())
}

/// The extension that makes streams fail and devices be lost.
struct Faults<D>(PhantomData<D>);

impl<D: Device> Faults<D> {
    const TABLE: &'static FaultTable = &FaultTable {
        struct_size: size_of::<FaultTable>() as u32,
        reserved: 0,
        stream_fail: if D::Stream::FAIL { Some(stream_fail::<D>) } else { None },
        device_lose: if D::LOSE { Some(device_lose::<D>) } else { None },
    };
}

unsafe extern "C" fn stream_fail<D: Device>(stream: *mut abi::Stream, status: Status) -> Status {
    let body = |stream: &D::Stream| match status {
        DEVBAY_STATUS_OK => Err(Error::invalid("a failure with the status OK")),
        status => stream.fail(Error::new(status, "a failure that was asked for")),
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { enqueue_on::<D>(stream, body) }
}

unsafe extern "C" fn device_lose<D: Device>(device: *mut abi::Device) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        device.lose()
    };
    // SAFETY: NULL stands for no error struct.
    unsafe { report(null_mut(), body) }
}
