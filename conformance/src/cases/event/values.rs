//! The values that may be waited for: all up to the last signal, and none behind it (B12, B16).

use super::callback::{Calls, call_back, count};
use super::chain::{Chain, ROUNDS};
use super::wait::wait_for;
use crate::rig::{PATIENCE, Rig, Stream, difference, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use std::time::Duration;

pub(super) fn unsignalled(rig: &Rig<'_>) -> Outcome {
    let table = *rig.table()?;
    let mut n_functions = 0;
    rig.each_timeline(|device| {
        let (stream, other) = (device.stream()?, device.stream()?);
        let value = stream.signal()?;
        stream.poll(value)?;
        let asked = value + 1;
        let invalid = |status: Status, what: &str| {
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "{what} for value {asked} after a last signal of {value}: expected INVALID, found {}",
                status_name(status)
            );
            Ok(())
        };
        if let Some(wait) = table.stream_wait {
            n_functions += 1;
            // SAFETY: both streams are the plugin's own, and alive until they are dropped.
            invalid(unsafe { wait(other.handle.as_ptr(), stream.handle.as_ptr(), asked) }, "stream_wait")?;
        }
        if let Some(host_wait) = table.stream_host_wait {
            n_functions += 1;
            // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
            invalid(unsafe { host_wait(stream.handle.as_ptr(), asked, 1_000_000) }, "stream_host_wait")?;
        }
        if let Some(on_reached) = table.stream_on_reached {
            n_functions += 1;
            let calls = Calls::new(1);
            // SAFETY: the stream is the plugin's own and alive; the callback's place is leaked.
            let status = unsafe { on_reached(stream.handle.as_ptr(), asked, Some(count), calls.arg(0)) };
            invalid(status, "stream_on_reached")?;
            stream.finish()?;
            std::thread::sleep(Duration::from_millis(2));
            ensure!(calls.of(0) == 0, "a refused callback ran anyway");
        }
        // Both go on.
        other.finish()
    })?;
    if n_functions == 0 {
        return not_run(Why::NotOffered, "the plugin has no function to wait with");
    }
    Ok(())
}

pub(super) fn between(rig: &Rig<'_>) -> Outcome {
    let table = *rig.table()?;
    if table.stream_wait.is_none() && table.stream_host_wait.is_none() && table.stream_on_reached.is_none() {
        return not_run(Why::NotOffered, "the plugin has no function to wait with");
    }
    rig.each_timeline(|device| {
        let fresh = device.stream()?;
        let waiting = device.stream()?;
        // Waits for a point with the first function that the plugin has for it.
        let learn = |stream: &Stream<'_>, value: u64| -> Outcome {
            if let Some(host_wait) = table.stream_host_wait {
                let limit = PATIENCE.as_nanos() as u64;
                // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
                let status = unsafe { host_wait(stream.handle.as_ptr(), value, limit) };
                ensure!(
                    status == DEVBAY_STATUS_OK,
                    "stream_host_wait({value}) after a last signal of {}: {}",
                    stream.signalled(),
                    stream.error_words(status)
                );
                return Ok(());
            }
            if table.stream_on_reached.is_some() {
                let calls = Calls::new(1);
                call_back(stream, value, count, calls.arg(0))?;
                calls.wait();
                return calls.check("for a value that counts as signalled");
            }
            wait_for(&waiting, stream, value)?;
            waiting.finish()
        };
        learn(&fresh, 0)?;
        if table.stream_wait.is_some() {
            wait_for(&waiting, &fresh, 0)?;
            waiting.finish()?;
        }
        if table.stream_on_reached.is_some() {
            let calls = Calls::new(1);
            call_back(&fresh, 0, count, calls.arg(0))?;
            calls.wait();
            calls.check("for the value 0")?;
        }
        drop(fresh);
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 1000 + round)?;
            let stream = device.stream()?;
            stream.signal_value(10)?;
            // SAFETY: the chain was made before the stream, whose drop waits for its work.
            unsafe { chain.enqueue(&stream) }?;
            stream.signal_value(20)?;
            if table.stream_wait.is_some() {
                wait_for(&waiting, &stream, 15)?;
            }
            let calls = Calls::new(1);
            if table.stream_on_reached.is_some() {
                call_back(&stream, 15, count, calls.arg(0))?;
            }
            learn(&stream, 11)?;
            let reported = chain.tail();
            stream.poll(20)?;
            if table.stream_on_reached.is_some() {
                calls.wait();
                calls.check("for a value between two signals")?;
            }
            waiting.finish()?;
            drop(stream);
            if let Some(found) = difference(&reported, &chain.tail()) {
                return failed(format!(
                    "11 was reached before 20, although it lies above the previous signal, 10: in the last \
                     bytes, {found}"
                ));
            }
        }
        Ok(())
    })
}
