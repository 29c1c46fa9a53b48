//! `devbay bench --sessions N`: opens and closes sessions, and reports memory that they leave behind.

use anyhow::Result;
use devbay_host::internals::core::units::percent;
use devbay_host::{Device, Model, RunOptions, Session, SessionOptions, Tensor};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of initial sessions that fill pools and a driver's caches before counting starts.
const WARMUP: usize = 50;

/// Memory left behind by sessions.
pub struct Left {
    n: usize,
    took: Duration,
    /// Resident bytes of this process, before and after; None if the system does not report them.
    resident: Option<(u64, u64)>,
    /// Bytes of device memory that the host allocated, before and after.
    device: (u64, u64),
}

/// Opens, runs and closes `n` sessions, one after the other, of a model that no other session uses.
///
/// # Errors
/// The first error of a session; cancelled.
pub fn come_and_go(
    n: usize,
    path: &Path,
    device: &Arc<Device>,
    options: &SessionOptions,
    inputs: &[(&str, &Tensor)],
    run: &RunOptions,
) -> Result<Left> {
    let model = Model::load(path)?;
    let one = || -> Result<()> {
        Session::with_options(&model, device, options.clone())?.run_with(inputs, run)?;
        Ok(())
    };
    (0..WARMUP).try_for_each(|_| one())?;
    let (resident, in_use, begin) = (resident_bytes(), device.bytes_in_use().0, Instant::now());
    (0..n).try_for_each(|_| one())?;
    let took = begin.elapsed();
    Ok(Left { n, took, resident: resident.zip(resident_bytes()), device: (in_use, device.bytes_in_use().0) })
}

/// Returns the resident bytes of this process.
fn resident_bytes() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let status = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = status.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

impl Left {
    fn per_session_ns(&self) -> f64 {
        self.took.as_nanos() as f64 / self.n as f64
    }

    /// Returns the figures as text.
    pub fn text(&self) -> String {
        let mut text = format!("{} sessions, {} each", self.n, crate::table::duration(self.per_session_ns()));
        if let Some((before, after)) = self.resident {
            let grown = after as f64 / before.max(1) as f64 - 1.0;
            text.push_str(&format!(
                "; memory of the process {} before, {} after ({})",
                crate::table::bytes(before),
                crate::table::bytes(after),
                percent(grown)
            ));
        }
        text.push_str(&format!(
            "; of the device {} before, {} after",
            crate::table::bytes(self.device.0),
            crate::table::bytes(self.device.1)
        ));
        text
    }

    /// Returns the figures as JSON.
    pub fn json(&self) -> Value {
        json!({
            "n": self.n, "session_ns": self.per_session_ns(),
            "resident_before_bytes": self.resident.map(|(before, _)| before),
            "resident_after_bytes": self.resident.map(|(_, after)| after),
            "device_before_bytes": self.device.0, "device_after_bytes": self.device.1,
        })
    }
}
