//! A stream that is destroyed: all that was enqueued is done, and nothing is touched afterwards (B24).

use super::chain::{Chain, ROUNDS};
use crate::rig::{Rig, difference};
use crate::verdict::{Outcome, failed};
use std::time::{Duration, Instant};

pub(super) fn destroy(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 700 + round)?;
            // Measures how long the work takes, so that a device that goes on is still seen to.
            let stream = device.stream()?;
            let begin = Instant::now();
            // SAFETY: the chain was made before the stream, whose drop waits for its work.
            unsafe { chain.enqueue(&stream) }?;
            stream.finish()?;
            let needed = begin.elapsed();
            drop(stream);

            if device.writes_once() {
                chain = Chain::new(device, 800 + round)?;
            }
            let stream = device.stream()?;
            // SAFETY: the second chain was made before the stream, whose drop waits for its work.
            unsafe { chain.enqueue(&stream) }?;
            stream.signal()?;
            drop(stream);
            let size = chain.size();
            chain.destination.0.fill(0xee);
            std::thread::sleep(2 * needed + Duration::from_millis(2));
            if chain.destination.0.iter().any(|&byte| byte != 0xee) {
                // The device may not be done yet, with the buffers neither.
                std::mem::forget(chain);
                return failed(format!(
                    "the device wrote to a destination of {size} bytes after stream_destroy returned"
                ));
            }
        }
        Ok(())
    })
}

pub(super) fn destroy_finishes(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 1100 + round)?;
            let stream = device.stream()?;
            // SAFETY: the chain was made before the stream, whose drop waits for its work.
            unsafe { chain.enqueue(&stream) }?;
            if round % 2 == 0 {
                stream.signal()?;
                // SAFETY: the chain's buffer and destination were made before the stream, whose drop waits for its
                // work.
                unsafe {
                    stream.enqueue_out(chain.a.whole(), chain.destination.0.as_mut_ptr(), chain.size())
                }?;
            }
            drop(stream);
            if let Some(found) = difference(&chain.destination.0, &chain.source) {
                return failed(format!("enqueued work was not done when stream_destroy returned: {found}"));
            }
        }
        Ok(())
    })
}
