//! The host learns that a point is reached: by asking, or by waiting on its own thread (B12, B14).

use super::chain::refuse_early;
use crate::rig::{PATIENCE, Rig, status_name};
use crate::verdict::{Outcome, ensure, failed};
use devbay_plugin_api::abi::*;
use std::time::{Duration, Instant};

pub(super) fn not_early(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let how = if device.inline() { "the call returned" } else { "`stream_reached` reported the point" };
        refuse_early(device, how, |stream, value| stream.poll(value))
    })
}

pub(super) fn host_wait(rig: &Rig<'_>) -> Outcome {
    let host_wait = rig.optional(rig.table()?.stream_host_wait, "stream_host_wait")?;
    rig.each_timeline(|device| {
        // In short waits, so that some end by TIMEOUT: those change nothing, and the next goes on.
        refuse_early(device, "`stream_host_wait` returned OK", |stream, value| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let begin = Instant::now();
                let limit = Duration::from_micros(100);
                // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
                let status = unsafe { host_wait(stream.handle.as_ptr(), value, limit.as_nanos() as u64) };
                match status {
                    DEVBAY_STATUS_OK => return Ok(()),
                    DEVBAY_STATUS_TIMEOUT => {}
                    status => {
                        return failed(format!("stream_host_wait returned {}", stream.error_words(status)));
                    }
                }
                // Generous: the machine may be busy. One that ignores its limit blocks until the work is done.
                ensure!(
                    begin.elapsed() < Duration::from_secs(2),
                    "a wait of {limit:?} ended with TIMEOUT after {:?}",
                    begin.elapsed()
                );
                ensure!(Instant::now() < deadline, "value {value} was not reached within {PATIENCE:?}");
            }
        })?;
        // A value that was reached is no reason to wait.
        let stream = device.stream()?;
        let value = stream.signal()?;
        stream.poll(value)?;
        // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
        let status = unsafe { host_wait(stream.handle.as_ptr(), value, 0) };
        ensure!(status == DEVBAY_STATUS_OK, "a wait for a reached value returned {}", status_name(status));
        Ok(())
    })
}

pub(super) fn host_wait_limits(rig: &Rig<'_>) -> Outcome {
    let host_wait = rig.optional(rig.table()?.stream_host_wait, "stream_host_wait")?;
    rig.each_timeline(|device| {
        // None is late: a wait for ever that ends at once has not waited for the work.
        refuse_early(device, "`stream_host_wait` without a limit returned", |stream, value| {
            // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
            let asked = unsafe { host_wait(stream.handle.as_ptr(), value, 0) };
            ensure!(
                matches!(asked, DEVBAY_STATUS_OK | DEVBAY_STATUS_TIMEOUT),
                "a wait of 0 ns returned {}, expected OK or TIMEOUT",
                stream.error_words(asked)
            );
            // SAFETY: the stream is the plugin's own, and alive for the call.
            let status = unsafe { host_wait(stream.handle.as_ptr(), value, u64::MAX) };
            ensure!(
                status == DEVBAY_STATUS_OK,
                "a wait without a limit returned {}",
                stream.error_words(status)
            );
            Ok(())
        })
    })
}
