//! Timing in passes: subjects take turns, each for a moment.

use std::time::{Duration, Instant};

/// Something to time: one call is one round.
pub struct Subject<'a> {
    /// Its name.
    pub name: String,
    /// One round.
    pub round: Box<dyn FnMut() + 'a>,
    /// By what a round's nanoseconds are divided.
    pub per: f64,
}

impl<'a> Subject<'a> {
    /// A subject whose round counts as `per` things.
    pub fn new(name: impl Into<String>, per: f64, round: impl FnMut() + 'a) -> Self {
        Self { name: name.into(), round: Box::new(round), per }
    }
}

/// Nanoseconds per thing of each subject in each pass; in a pass each runs for about `moment`.
pub fn passes(subjects: &mut [Subject<'_>], n: usize, moment: Duration) -> Vec<(String, Vec<f64>)> {
    let mut figures: Vec<(String, Vec<f64>)> =
        subjects.iter().map(|subject| (subject.name.clone(), Vec::with_capacity(n))).collect();
    let mut rounds: Vec<u32> = Vec::new();
    for subject in subjects.iter_mut() {
        // Warm up, and learn how many rounds a moment has.
        let begin = Instant::now();
        let mut count = 0u32;
        while begin.elapsed() < moment || count < 2 {
            (subject.round)();
            count += 1;
        }
        rounds.push(count);
    }
    for pass in 0..n {
        // Who goes first changes, so that neither always meets a warmer machine.
        for turn in 0..subjects.len() {
            let at = (turn + pass) % subjects.len();
            let begin = Instant::now();
            for _ in 0..rounds[at] {
                (subjects[at].round)();
            }
            let nanos = begin.elapsed().as_nanos() as f64;
            figures[at].1.push(nanos / f64::from(rounds[at]) / subjects[at].per);
        }
    }
    figures
}
