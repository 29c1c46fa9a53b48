//! A bar on standard error while a model takes long to read, plan or compile.
//!
//! Nothing is shown if standard error is no terminal. A bar goes when its phase ends, before the command prints anything.

use devbay_host::progress::{Phase, Progress, watch};
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A phase that takes less time has no bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// A phase under way.
struct Shown {
    phase: Phase,
    begin: Instant,
    bar: Option<ProgressBar>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Runs a command, and shows how far its long phases are.
pub fn shown<R>(command: impl FnOnce() -> R) -> R {
    if !std::io::stderr().is_terminal() {
        return command();
    }
    let shown = RefCell::new(None);
    watch(move |at| show(&mut shown.borrow_mut(), at), command)
}

fn show(shown: &mut Option<Shown>, at: Progress) {
    let Progress { phase, done, total } = at;
    if done == total {
        *shown = None;
        return;
    }
    let begun = shown.take().filter(|shown| shown.phase == phase);
    let mut now = begun.unwrap_or_else(|| Shown { phase, begin: Instant::now(), bar: None });
    // A compiler says nothing before it is done.
    if now.bar.is_none() && (phase == Phase::Compile || now.begin.elapsed() >= PATIENCE) {
        let bar = ProgressBar::new(total).with_message(phase.name());
        if let Ok(style) = ProgressStyle::with_template("{msg:10} {bar:30} {percent}% {elapsed}") {
            bar.set_style(style);
        }
        now.bar = Some(bar);
    }
    if let Some(bar) = &now.bar {
        bar.set_position(done);
    }
    *shown = Some(now);
}
