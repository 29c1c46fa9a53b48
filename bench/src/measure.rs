//! Timing in passes: subjects take turns, each for a moment.

use anyhow::Result;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Runs so many rounds after one that does not count, and gives the nanoseconds of a round.
type Turn<'a> = Box<dyn FnMut(u32) -> Result<f64> + 'a>;

/// Something to time.
pub struct Subject<'a> {
    /// Its name.
    pub name: String,
    /// In which process it runs.
    process: Pid,
    turn: Turn<'a>,
    /// By what a round's nanoseconds are divided.
    per: f64,
}

impl<'a> Subject<'a> {
    /// A subject of this process, whose round counts as `per` things.
    pub fn new(name: impl Into<String>, per: f64, mut round: impl FnMut() + 'a) -> Self {
        Self::fallible(name, per, move || {
            round();
            Ok(())
        })
    }

    /// A subject of this process whose rounds may fail.
    pub fn fallible(name: impl Into<String>, per: f64, mut round: impl FnMut() -> Result<()> + 'a) -> Self {
        let turn = move |n| {
            // The first round warms the caches and does not count.
            round()?;
            let begin = Instant::now();
            for _ in 0..n {
                round()?;
            }
            Ok(begin.elapsed().as_nanos() as f64 / f64::from(n))
        };
        Self { name: name.into(), process: Pid::this(), turn: Box::new(turn), per }
    }

    /// A subject of this process that takes a round's time itself, because not all of the round is to be measured.
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

    /// A subject in a process of its own, which takes its time itself, and whose round counts as `per` things.
    pub fn elsewhere(
        name: impl Into<String>,
        process: Pid,
        per: f64,
        turn: impl FnMut(u32) -> Result<f64> + 'a,
    ) -> Self {
        Self { name: name.into(), process, turn: Box::new(turn), per }
    }

    /// A turn, after which others find the machine at rest.
    fn take_turn(&mut self, rounds: u32) -> Result<f64> {
        let nanos = (self.turn)(rounds)?;
        wait_for_rest(self.process);
        Ok(nanos / self.per)
    }
}

/// Each subject's figures, one a pass: what rows are made of.
pub type Figures = Vec<(String, Vec<f64>)>;

/// Nanoseconds per thing of each subject in each pass; in a pass each runs for about `moment`, at least one round.
///
/// # Errors
/// The first that a subject has.
pub fn passes(subjects: &mut [Subject<'_>], n: usize, moment: Duration) -> Result<Figures> {
    let mut figures: Figures =
        subjects.iter().map(|subject| (subject.name.clone(), Vec::with_capacity(n))).collect();
    let rounds: Vec<u32> =
        subjects.iter_mut().map(|subject| rounds(subject, moment)).collect::<Result<_>>()?;
    for pass in 0..n {
        // The order changes, so that no subject always meets a warmer machine.
        for turn in 0..subjects.len() {
            let at = (turn + pass) % subjects.len();
            figures[at].1.push(subjects[at].take_turn(rounds[at])?);
        }
    }
    Ok(figures)
}

/// Warms a subject up, and learns how many rounds a moment has.
fn rounds(subject: &mut Subject<'_>, moment: Duration) -> Result<u32> {
    let moment = moment.as_nanos() as f64;
    let mut n = 1u32;
    loop {
        let nanos = subject.take_turn(n)? * subject.per;
        let fit = (moment / nanos.max(1.0)).clamp(1.0, f64::from(u32::MAX)) as u32;
        // The figure of fewer rounds is a guess; a turn of half a moment is a measurement.
        if fit <= n.saturating_mul(2) {
            return Ok(fit);
        }
        n = fit.min(n.saturating_mul(16));
    }
}

/// Waits until a process uses no processor. Threads of a pool go on looking for work after a run, onnxruntime's for
/// tens of milliseconds, and would take a core from whoever has the next turn.
pub fn wait_for_rest(process: Pid) {
    // The time of a thread that runs elsewhere is brought up to date at the scheduler's ticks alone, 10 ms apart at
    // the most: in less than two of them a thread that spins seems to rest.
    const STEP: Duration = Duration::from_millis(25);
    let give_up = Instant::now() + Duration::from_secs(1);
    let used = || clock_getcpuclockid(process).and_then(clock_gettime).map(Duration::from);
    while Instant::now() < give_up {
        let before = used();
        sleep(STEP);
        match (before, used()) {
            // A tenth of a core is this loop itself.
            (Ok(before), Ok(after)) if after.saturating_sub(before) > STEP / 10 => {}
            _ => return,
        }
    }
}
