//! The clock of a timeline: the system's monotonic one, which plugins' marks are on too.

/// Returns the nanoseconds that a reading of the clock takes: the median distance of two successive readings. A traced
/// launch is timed from one reading to the next, so its time includes that much overhead.
pub fn clock_ns() -> f64 {
    const READINGS: usize = 1001;
    let mut apart: Vec<u64> = (0..READINGS)
        .map(|_| {
            let begin_ns = now_ns();
            now_ns() - begin_ns
        })
        .collect();
    apart.sort_unstable();
    apart[READINGS / 2] as f64
}

/// Nanoseconds of the system's monotonic clock (`CLOCK_MONOTONIC` on Unix).
#[cfg(unix)]
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds since the first call: where the standard library alone has the clock, it does not show its reading.
#[cfg(not(unix))]
pub(crate) fn now_ns() -> u64 {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}
