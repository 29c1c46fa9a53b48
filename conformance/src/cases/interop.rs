//! Native memory and streams that are wrapped and handed out, where the plugin has the extension (B6, B10, B15).

use crate::case::Case;
use crate::rig::{Buffer, Detail, Device, Lent, Rig, Stream, difference, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "interop.device",
        rules: &["B6", "B10"],
        requires: "each space reports its DLPack device, or that it has none; a nonexistent space is refused",
        needs: &["devices.list", "negotiate.extensions"],
        run: names,
    },
    Case {
        id: "interop.buffers",
        rules: &["B9", "B10"],
        requires: "a buffer's native memory is wrapped without a copy, and freeing the wrapper leaves the memory \
                   unchanged",
        needs: &["transfer.offsets", "negotiate.extensions"],
        run: buffers,
    },
    Case {
        id: "interop.refusals",
        rules: &["B10", "B18"],
        requires: "memory at address 0 or at a misaligned address, or of a nonexistent space, is refused with INVALID",
        needs: &["interop.buffers"],
        run: refusals,
    },
    Case {
        id: "interop.streams",
        rules: &["B12", "B15"],
        requires: "work through a wrapper and through its native stream runs in call order, and the native \
                   stream outlives the wrapper",
        needs: &["stream.signal", "negotiate.extensions"],
        run: streams,
    },
];

/// Bytes that are moved.
const SIZE: usize = 4096;

fn table(device: &Device<'_>) -> Outcome<InteropTable> {
    device.extension(extension::INTEROP, "wraps native memory and streams")
}

fn names(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let Some(ask) = table(device)?.dlpack_device else {
            return failed("the interop extension has no dlpack_device");
        };
        let n_spaces = device.spaces.len() as u32;
        for space_idx in 0..=n_spaces {
            let (mut device_type, mut id, mut detail) = (-1, -1, Detail::new());
            // SAFETY: the plugin's function with its own device; the places are ours.
            let status =
                unsafe { ask(device.info.handle, space_idx, &mut device_type, &mut id, &mut detail.raw) };
            match status {
                DEVBAY_STATUS_INVALID if space_idx == n_spaces => {}
                _ if space_idx == n_spaces => {
                    return failed(format!(
                        "dlpack_device of space {space_idx} of {n_spaces} returned {}, expected INVALID",
                        status_name(status)
                    ));
                }
                DEVBAY_STATUS_UNSUPPORTED => {}
                DEVBAY_STATUS_OK => ensure!(
                    device_type > 0 && id >= 0,
                    "space {space_idx} has an invalid DLPack device: type {device_type}, id {id}"
                ),
                _ => return failed(format!("dlpack_device returned {}", detail.describe(status))),
            }
        }
        Ok(())
    })
}

/// Returns whether two handles of one kind are the same.
fn is_same(a: &NativeHandle, b: &NativeHandle) -> bool {
    (a.kind, a.value, a.aux) == (b.kind, b.value, b.aux)
}

fn words(native: &NativeHandle) -> String {
    format!("{:#x} of kind {}, with {}", native.value, native.kind, native.aux)
}

/// Returns the native name of a buffer, where there is one.
fn native_of(table: &InteropTable, buffer: &Buffer<'_>) -> Outcome<NativeHandle> {
    let Some(export) = table.buffer_export else {
        return failed("the interop extension has no buffer_export");
    };
    let (mut native, mut detail) = (NativeHandle::empty(), Detail::new());
    // SAFETY: the plugin's function with its own buffer; the struct is ours.
    let status = unsafe { export(buffer.handle.as_ptr(), &mut native, &mut detail.raw) };
    match status {
        DEVBAY_STATUS_OK if native.kind == 0 => failed("buffer_export returned a handle without a kind"),
        DEVBAY_STATUS_OK if native.value == 0 => failed("buffer_export returned address 0"),
        DEVBAY_STATUS_OK => Ok(native),
        DEVBAY_STATUS_UNSUPPORTED => not_run(Why::NotOffered, "buffers have no native handle"),
        _ => failed(format!("buffer_export returned {}", detail.describe(status))),
    }
}

fn import(
    table: &InteropTable,
    device: &Device<'_>,
    desc: &ImportDesc,
) -> Outcome<(Status, Allocation, Detail)> {
    let Some(import) = table.buffer_import else {
        return failed("the interop extension has no buffer_import");
    };
    let (mut out, mut detail) = (Allocation::empty(), Detail::new());
    // SAFETY: the plugin's function with its own device; the structs are ours.
    let status = unsafe { import(device.info.handle, desc, &mut out, &mut detail.raw) };
    Ok((status, out, detail))
}

fn desc(native: &NativeHandle, size: usize) -> ImportDesc {
    ImportDesc { native, size_bytes: size as u64, ..ImportDesc::empty() }
}

fn buffers(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let table = table(device)?;
        let size = device.pad(SIZE);
        let (first, second) = (pattern(size, 1), pattern(size, 2));
        let owner = device.alloc(size)?;
        let native = native_of(&table, &owner)?;
        let stream = device.stream()?;
        stream.upload(&first, &owner, 0)?;
        for round in 0..2 {
            let (status, out, detail) = import(&table, device, &desc(&native, size))?;
            ensure!(status == DEVBAY_STATUS_OK, "buffer_import returned {}", detail.describe(status));
            ensure!(
                out.size_bytes >= size as u64,
                "a wrapper of {} bytes was made for {size} bytes of memory",
                out.size_bytes
            );
            let wrapper = device.own(out, size)?;
            let again = native_of(&table, &wrapper)?;
            ensure!(
                is_same(&again, &native),
                "memory at {} was wrapped, but its buffer is at {}",
                words(&native),
                words(&again)
            );
            let (before, after) = if round == 0 { (&first, &second) } else { (&second, &first) };
            if let Some(found) = difference(&stream.download(&wrapper, 0, size)?, before) {
                return failed(format!("a copy from wrapped memory: {found}"));
            }
            stream.upload(after, &wrapper, 0)?;
            drop(wrapper);
            if let Some(found) = difference(&stream.download(&owner, 0, size)?, after) {
                return failed(format!(
                    "memory after a write through its wrapper, which was then freed: {found}"
                ));
            }
        }
        Ok(())
    })
}

fn refusals(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let table = table(device)?;
        let size = device.pad(SIZE);
        let owner = device.alloc(size)?;
        let native = native_of(&table, &owner)?;
        let nowhere = NativeHandle { value: 0, ..native };
        let unknown = NativeHandle { kind: DEVBAY_EXPERIMENTAL_FIRST, ..native };
        let odd = NativeHandle { value: native.value + 1, ..native };
        let invalid = DEVBAY_STATUS_INVALID;
        let mut wrong = vec![
            ("memory at address 0", desc(&nowhere, size), invalid),
            (
                "a nonexistent space",
                ImportDesc { space_idx: device.spaces.len() as u32, ..desc(&native, size) },
                invalid,
            ),
            ("a handle of an unknown kind", desc(&unknown, size), DEVBAY_STATUS_UNSUPPORTED),
        ];
        if native.kind == DEVBAY_NATIVE_ADDRESS && device.space().bind_align > 1 {
            wrong.push(("misaligned memory", desc(&odd, size - 1), invalid));
        }
        for (what, desc, expected) in wrong {
            let (status, out, detail) = import(&table, device, &desc)?;
            ensure!(
                status == expected,
                "buffer_import of {what} returned {}, expected {}",
                detail.describe(status),
                status_name(expected)
            );
            ensure!(out.buffer.is_null(), "buffer_import refused {what}, but returned a buffer");
        }
        Ok(())
    })
}

/// Returns the native stream of a stream, where there is one.
fn native_stream(table: &InteropTable, stream: &Stream<'_>) -> Outcome<NativeHandle> {
    let Some(export) = table.stream_export else {
        return failed("the interop extension has no stream_export");
    };
    let (mut native, mut detail) = (NativeHandle::empty(), Detail::new());
    // SAFETY: the stream is the plugin's own and alive; the struct is ours for the call.
    let status = unsafe { export(stream.handle.as_ptr(), &mut native, &mut detail.raw) };
    match status {
        DEVBAY_STATUS_OK if native.kind == 0 => failed("stream_export returned a handle without a kind"),
        DEVBAY_STATUS_OK => Ok(native),
        DEVBAY_STATUS_UNSUPPORTED => not_run(Why::NotOffered, "streams have no native handle"),
        _ => failed(format!("stream_export returned {}", detail.describe(status))),
    }
}

fn streams(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let table = table(device)?;
        let size = device.pad(SIZE);
        let images = [pattern(size, 1), pattern(size, 2)];
        let buffer = device.alloc(size)?;
        let mut late: Vec<Lent> = (0..4).map(|_| Lent::new(vec![0u8; size])).collect();
        let own = device.stream()?;
        let native = native_stream(&table, &own)?;
        let Some(import) = table.stream_import else {
            return failed("the interop extension has no stream_import");
        };
        let (mut out, mut detail) = (null_mut(), Detail::new());
        // SAFETY: the plugin's function with its own device; the place is ours, and the stream lives as long.
        let status = unsafe { import(device.info.handle, &native, &mut out, &mut detail.raw) };
        ensure!(status == DEVBAY_STATUS_OK, "stream_import returned {}", detail.describe(status));
        let wrapped = device.own_stream(out)?;
        let again = native_stream(&table, &wrapped)?;
        ensure!(
            is_same(&again, &native),
            "a wrapped stream exports {}, expected {}",
            words(&again),
            words(&native)
        );
        // Through one and the other in turn, without waits in between.
        for (i, late) in late.iter_mut().enumerate() {
            let (write, read) = if i % 2 == 0 { (&own, &wrapped) } else { (&wrapped, &own) };
            // SAFETY: images, buffer and `late` were made before the streams, whose drop waits for their work.
            unsafe { write.enqueue_in(&images[i % 2], buffer.whole()) }?;
            // SAFETY: images, buffer and `late` were made before the streams.
            unsafe { read.enqueue_out(buffer.whole(), late.0.as_mut_ptr(), size) }?;
        }
        wrapped.finish()?;
        own.finish()?;
        drop(wrapped);
        for (i, late) in late.into_iter().enumerate() {
            if let Some(found) = difference(&late.done(), &images[i % 2]) {
                return failed(format!("copy {i} between a stream and its wrapper: {found}"));
            }
        }
        own.upload(&images[0], &buffer, 0)?;
        match difference(&own.download(&buffer, 0, size)?, &images[0]) {
            None => Ok(()),
            Some(found) => failed(format!("a copy on a stream whose wrapper was destroyed: {found}")),
        }
    })
}
