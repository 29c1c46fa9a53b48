//! Plugins' reports of failures (B18).
//!
//! The failure that every plugin has is an unknown option, so that is what these cases provoke.

use super::negotiate::UNKNOWN_OPTION;
use crate::case::Case;
use crate::desk::Desk;
use crate::rig::{AnySize, Detail, Rig, SLOTS, empty_copy, status_name};
use crate::verdict::{Outcome, ensure, failed};
use devbay_plugin_api::abi::*;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "error.text",
        rules: &["B18"],
        requires: "a failure writes its status, and a UTF-8 message that says what was found",
        needs: &["negotiate.options.unknown"],
        run: text,
    },
    Case {
        id: "error.capacity",
        rules: &["B18"],
        requires: "no text is written beyond the caller's capacity, and the full length is reported",
        needs: &["error.text"],
        run: capacity,
    },
    Case {
        id: "error.sizes",
        rules: &["B4", "B18"],
        requires: "error details of older and newer hosts are filled up to their size",
        needs: &["error.text"],
        run: sizes,
    },
    Case {
        id: "error.absent",
        rules: &["B18"],
        requires: "a failed call without an error detail, or with a detail of capacity 0, still returns its status",
        needs: &["negotiate.options.unknown"],
        run: absent,
    },
    Case {
        id: "error.success",
        rules: &["B18"],
        requires: "a successful call leaves the error detail unchanged",
        needs: &["negotiate.create"],
        run: success,
    },
    Case {
        id: "error.stream",
        rules: &["B13", "B18"],
        requires: "`stream_error` gives the message of the stream's last refusal, and OK before the first",
        needs: &["devices.list"],
        run: stream,
    },
];

/// Provokes the failure.
fn fail(rig: &Rig<'_>, error: *mut ErrorDetail) -> Outcome<Status> {
    let pairs = [KeyValue { key: Str::new(UNKNOWN_OPTION), value: Str::new("1") }];
    let desk = Desk::open(SLOTS);
    let minor = match rig.agreement() {
        Ok(agreement) => agreement.minor,
        Err(refusal) => return failed(refusal.reason.clone()),
    };
    let desc =
        CreateDesc { abi_minor: minor, host: desk.api(), options: List::new(&pairs), ..CreateDesc::empty() };
    match rig.create_raw(&desc, desk, error)? {
        Err(status) => Ok(status),
        Ok(_) => failed("an unknown option was accepted"),
    }
}

fn text(rig: &Rig<'_>) -> Outcome {
    let mut bytes = vec![0u8; 4096];
    let mut detail = ErrorDetail {
        text: bytes.as_mut_ptr().cast(),
        text_capacity: bytes.len() as u64,
        ..ErrorDetail::empty()
    };
    let status = fail(rig, &mut detail)?;
    ensure!(
        detail.status == status,
        "the call returned {}, but its detail says {}",
        status_name(status),
        status_name(detail.status)
    );
    ensure!(detail.text_len > 0, "a failure without a message");
    ensure!(detail.text_len <= 4096, "a message of {} bytes about one option", detail.text_len);
    match std::str::from_utf8(&bytes[..detail.text_len as usize]) {
        Err(error) => failed(format!("the message is not UTF-8: {error}")),
        Ok(text) if !text.contains(UNKNOWN_OPTION) => {
            failed(format!("the message does not name the option: {text}"))
        }
        Ok(_) => Ok(()),
    }
}

fn capacity(rig: &Rig<'_>) -> Outcome {
    let mut whole = Detail::new();
    fail(rig, &mut whole.raw)?;
    for capacity in [1usize, 7, 16] {
        let mut bytes = vec![0xa5u8; 256];
        let mut detail = ErrorDetail {
            text: bytes.as_mut_ptr().cast(),
            text_capacity: capacity as u64,
            ..ErrorDetail::empty()
        };
        fail(rig, &mut detail)?;
        ensure!(
            bytes[capacity..].iter().all(|&byte| byte == 0xa5),
            "text was written beyond a capacity of {capacity} bytes"
        );
        ensure!(
            detail.text_len == whole.raw.text_len,
            "with a capacity of {capacity} bytes the reported length is {}, expected the full {}",
            detail.text_len,
            whole.raw.text_len
        );
        let filled = bytes[..capacity].iter().take_while(|&&byte| byte != 0xa5).count();
        ensure!(
            std::str::from_utf8(&bytes[..filled]).is_ok(),
            "the message was cut within a character at {capacity} bytes"
        );
    }
    Ok(())
}

fn sizes(rig: &Rig<'_>) -> Outcome {
    for size in [ErrorDetail::REQUIRED_SIZE, size_of::<ErrorDetail>() + 8] {
        let mut bytes = vec![0u8; 512];
        let detail = ErrorDetail {
            text: bytes.as_mut_ptr().cast(),
            text_capacity: bytes.len() as u64,
            ..ErrorDetail::empty()
        };
        let mut detail = AnySize::new(&detail, size);
        let status = fail(rig, detail.as_ptr())?;
        ensure!(detail.is_intact(), "the plugin wrote beyond the end of a detail of {size} bytes");
        let value = detail.value();
        ensure!(
            value.struct_size as usize == size,
            "the plugin changed the struct_size of a detail from {size} to {}",
            value.struct_size
        );
        ensure!(
            value.status == status && value.text_len > 0,
            "a detail of {size} bytes was not filled up to its size"
        );
    }
    Ok(())
}

fn absent(rig: &Rig<'_>) -> Outcome {
    fail(rig, null_mut())?;
    let mut detail = ErrorDetail::empty();
    fail(rig, &mut detail)?;
    Ok(())
}

fn success(rig: &Rig<'_>) -> Outcome {
    let pairs: Vec<(&str, &str)> = rig.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut detail = Detail::new();
    detail.raw.status = 77;
    detail.raw.text_len = 3;
    detail.raw.native_code = 99;
    match rig.create(Desk::open(SLOTS), None, &pairs, Some(&mut detail))? {
        Err(status) => return failed(format!("create returned {}", detail.describe(status))),
        Ok(opened) => drop(opened),
    }
    let raw = &detail.raw;
    ensure!(
        raw.status == 77 && raw.text_len == 3 && raw.native_code == 99,
        "`create` succeeded, but changed the error detail"
    );
    Ok(())
}

fn stream(rig: &Rig<'_>) -> Outcome {
    let stream_error = rig.optional(rig.table()?.stream_error, "stream_error")?;
    rig.each_device(|device| {
        let stream = device.stream()?;
        let mut detail = Detail::new();
        // SAFETY: the stream is the plugin's own and alive; the struct is ours for the call.
        let status = unsafe { stream_error(stream.handle.as_ptr(), &mut detail.raw) };
        ensure!(status == DEVBAY_STATUS_OK, "a new stream's error is {}", detail.describe(status));
        let nonsense = CopyDesc { kind: 0x7fff, size_bytes: 64, ..empty_copy() };
        // SAFETY: the copy names nothing.
        let refusal = unsafe { stream.copy(&nonsense) }?;
        ensure!(refusal != DEVBAY_STATUS_OK, "a copy of an unknown kind was accepted");
        // SAFETY: the stream is the plugin's own and alive; the struct is ours.
        let status = unsafe { stream_error(stream.handle.as_ptr(), &mut detail.raw) };
        ensure!(
            status == refusal && detail.raw.status == refusal,
            "the copy returned {}, then `stream_error` returned {} with a detail of {}",
            status_name(refusal),
            status_name(status),
            status_name(detail.raw.status)
        );
        ensure!(detail.raw.text_len > 0, "`stream_error` has no message for {}", status_name(refusal));
        // SAFETY: the stream is the plugin's own and alive; NULL stands for no place for words.
        let status = unsafe { stream_error(stream.handle.as_ptr(), null_mut()) };
        ensure!(status == refusal, "`stream_error` without a detail returned {}", status_name(status));
        Ok(())
    })
}
