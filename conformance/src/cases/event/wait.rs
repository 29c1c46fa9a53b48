//! A stream waits for a point of another one, of its own, or of one that is gone (B12, B24).

use super::chain::{Chain, ROUNDS};
use crate::rig::{Lent, Rig, Stream, difference, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;

/// Enqueues a wait.
pub(super) fn wait_for(stream: &Stream<'_>, other: &Stream<'_>, value: u64) -> Outcome {
    let Some(wait) = stream.device.opened.table.stream_wait else {
        return not_run(Why::NotOffered, "the plugin has no stream_wait");
    };
    // SAFETY: both streams are the plugin's own, and alive until they are dropped.
    let status = unsafe { wait(stream.handle.as_ptr(), other.handle.as_ptr(), value) };
    ensure!(status == DEVBAY_STATUS_OK, "stream_wait({value}) returned {}", stream.error_words(status));
    Ok(())
}

pub(super) fn wait(rig: &Rig<'_>) -> Outcome {
    let wait = rig.optional(rig.table()?.stream_wait, "stream_wait")?;
    rig.each_timeline(|device| {
        device.plain_memory()?;
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 200 + round)?;
            let stale = vec![0u8; chain.size()];
            let mut found = Lent::new(vec![0; chain.size()]);
            let (first, second) = (device.stream()?, device.stream()?);
            first.upload(&stale, &chain.a, 0)?;
            // SAFETY: the chain was made before the streams, whose drop waits for their work.
            unsafe { chain.enqueue(&first) }?;
            let value = first.signal()?;
            // SAFETY: both streams are the plugin's own, and alive until they are dropped.
            let status = unsafe { wait(second.handle.as_ptr(), first.handle.as_ptr(), value) };
            ensure!(status == DEVBAY_STATUS_OK, "stream_wait returned {}", second.error_words(status));
            let size = chain.size();
            let last = chain.b.as_ref().unwrap_or(&chain.a);
            // SAFETY: chain and `found` were made before the streams. Read from the buffer that only the chain's last
            // copies fill.
            unsafe { second.enqueue_out(last.whole(), found.0.as_mut_ptr(), size) }?;
            second.finish()?;
            let (reached, _) = first.reached()?;
            ensure!(
                reached >= value,
                "the second stream finished when the first had reached {reached}, expected at least {value}"
            );
            if let Some(difference) = difference(&found.0, &chain.source) {
                return failed(format!("the second stream did not wait for the first: {difference}"));
            }
            // The stream waited for stays usable, and so does the one that waited.
            // SAFETY: both streams are the plugin's own, and still alive.
            let again = unsafe { wait(second.handle.as_ptr(), first.handle.as_ptr(), value) };
            ensure!(again == DEVBAY_STATUS_OK, "a wait for a reached value returned {}", status_name(again));
            second.finish()?;
            first.finish()?;
            found.done();
        }
        Ok(())
    })
}

pub(super) fn wait_self(rig: &Rig<'_>) -> Outcome {
    let wait = rig.optional(rig.table()?.stream_wait, "stream_wait")?;
    rig.each_timeline(|device| {
        let mut chain = Chain::new(device, 900)?;
        let stream = device.stream()?;
        // SAFETY: the chain was made before the stream, whose drop waits for its work.
        unsafe { chain.enqueue(&stream) }?;
        let value = stream.signal()?;
        wait_for(&stream, &stream, value)?;
        // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
        let status = unsafe { wait(stream.handle.as_ptr(), stream.handle.as_ptr(), value + 1) };
        ensure!(
            status == DEVBAY_STATUS_INVALID,
            "a stream's wait for its own unsignalled point: expected INVALID, found {}",
            status_name(status)
        );
        stream.finish()?;
        wait_for(&stream, &stream, value)?;
        stream.finish()
    })
}

pub(super) fn wait_destroyed(rig: &Rig<'_>) -> Outcome {
    rig.optional(rig.table()?.stream_wait, "stream_wait")?;
    rig.each_timeline(|device| {
        device.plain_memory()?;
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 950 + round)?;
            let mut found = Lent::new(vec![0; chain.size()]);
            let (first, second) = (device.stream()?, device.stream()?);
            // SAFETY: the chain was made before the streams, whose drop waits for their work.
            unsafe { chain.enqueue(&first) }?;
            let value = first.signal()?;
            wait_for(&second, &first, value)?;
            drop(first);
            // A new stream may lie where the first stream lay.
            let other = device.stream()?;
            let last = chain.b.as_ref().unwrap_or(&chain.a);
            // SAFETY: chain and `found` were made before the streams.
            unsafe { second.enqueue_out(last.whole(), found.0.as_mut_ptr(), chain.size()) }?;
            second.finish()?;
            other.finish()?;
            if let Some(difference) = difference(&found.done(), &chain.source) {
                return failed(format!("a copy after a wait for a destroyed stream: {difference}"));
            }
        }
        Ok(())
    })
}
