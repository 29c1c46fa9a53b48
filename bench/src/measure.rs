//! Timing in passes: subjects take short turns.

use anyhow::Result;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Makes a warm-up round, then the given number of rounds, and returns the nanoseconds per round.
type Turn<'a> = Box<dyn FnMut(u32) -> Result<f64> + 'a>;

/// A subject to time.
pub struct Subject<'a> {
    /// Its name.
    pub name: String,
    /// The process that it runs in.
    process: Pid,
    turn: Turn<'a>,
    /// Divisor of a round's nanoseconds.
    per: f64,
}

impl<'a> Subject<'a> {
    /// Creates a subject of this process, whose round counts as `per` things.
    pub fn new(name: impl Into<String>, per: f64, mut round: impl FnMut() + 'a) -> Self {
        Self::fallible(name, per, move || {
            round();
            Ok(())
        })
    }

    /// Creates a subject of this process whose rounds may fail.
    pub fn fallible(name: impl Into<String>, per: f64, mut round: impl FnMut() -> Result<()> + 'a) -> Self {
        let turn = move |n| {
            // Caches hold the data of the previous subject, so the first round is not counted.
            round()?;
            let begin = Instant::now();
            for _ in 0..n {
                round()?;
            }
            Ok(begin.elapsed().as_nanos() as f64 / f64::from(n))
        };
        Self { name: name.into(), process: Pid::this(), turn: Box::new(turn), per }
    }

    /// Creates a subject of this process that times its own rounds, because only a part of each is measured.
    pub fn timed(
        name: impl Into<String>,
        per: f64,
        mut round: impl FnMut() -> Result<Duration> + 'a,
    ) -> Self {
        let turn = move |n| {
            round()?;
            let mut took = Duration::ZERO;
            for _ in 0..n {
                took += round()?;
            }
            Ok(took.as_nanos() as f64 / f64::from(n))
        };
        Self { name: name.into(), process: Pid::this(), turn: Box::new(turn), per }
    }

    /// Creates a subject in another process, which times its own rounds, and whose round counts as `per` things.
    pub fn elsewhere(
        name: impl Into<String>,
        process: Pid,
        per: f64,
        turn: impl FnMut(u32) -> Result<f64> + 'a,
    ) -> Self {
        Self { name: name.into(), process, turn: Box::new(turn), per }
    }

    /// Takes a turn, and waits until the machine is idle again.
    fn take_turn(&mut self, rounds: u32) -> Result<f64> {
        let nanos = (self.turn)(rounds)?;
        wait_for_rest(self.process);
        Ok(nanos / self.per)
    }
}

/// Each subject's figures, one per pass, from which rows are computed.
pub type Figures = Vec<(String, Vec<f64>)>;

/// Returns the nanoseconds per thing of each subject in each pass; a turn takes about `moment`, and at least one round.
///
/// # Errors
/// The first error of a subject.
pub fn passes(subjects: &mut [Subject<'_>], n: usize, moment: Duration) -> Result<Figures> {
    let mut figures: Figures =
        subjects.iter().map(|subject| (subject.name.clone(), Vec::with_capacity(n))).collect();
    let rounds: Vec<u32> =
        subjects.iter_mut().map(|subject| rounds(subject, moment)).collect::<Result<_>>()?;
    for pass in 0..n {
        // The first subject changes with each pass, so that none always finds a warmer machine.
        for turn in 0..subjects.len() {
            let at = (turn + pass) % subjects.len();
            figures[at].1.push(subjects[at].take_turn(rounds[at])?);
        }
    }
    Ok(figures)
}

/// Warms a subject up, and returns the number of rounds that fit a moment.
fn rounds(subject: &mut Subject<'_>, moment: Duration) -> Result<u32> {
    let moment = moment.as_nanos() as f64;
    let mut n = 1u32;
    loop {
        let nanos = subject.take_turn(n)? * subject.per;
        let fit = (moment / nanos.max(1.0)).clamp(1.0, f64::from(u32::MAX)) as u32;
        // A count from far fewer rounds is a guess; half a moment or more is a measurement.
        if fit <= n.saturating_mul(2) {
            return Ok(fit);
        }
        n = fit.min(n.saturating_mul(16));
    }
}

/// Waits until a process uses no processor. A pool's threads keep looking for work after a run, onnxruntime's for tens of
/// milliseconds, and would take a core from the next subject.
pub fn wait_for_rest(process: Pid) {
    // The scheduler updates the time of a running thread only at its ticks, at most 10 ms apart; within less than two ticks,
    // a spinning thread would seem idle.
    const STEP: Duration = Duration::from_millis(25);
    let give_up = Instant::now() + Duration::from_secs(1);
    let used = || clock_getcpuclockid(process).and_then(clock_gettime).map(Duration::from);
    while Instant::now() < give_up {
        let before = used();
        sleep(STEP);
        match (before, used()) {
            // Up to a tenth of a core is this loop itself.
            (Ok(before), Ok(after)) if after.saturating_sub(before) > STEP / 10 => {}
            _ => return,
        }
    }
}
