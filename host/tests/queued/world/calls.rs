//! Calls of the plugin's streams and buffers to their world: keep a command, report a queue's progress.

use super::{Command, Line, World, WorldState};
use crate::queued::{Mode, When};
use devbay_plugin_api::abi::{
    DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_DEVICE_LOST, DEVBAY_STATUS_INTERNAL, DEVBAY_STATUS_TIMEOUT,
};
use devbay_plugin_api::locks::unpoisoned;
use devbay_plugin_api::sdk::{Done, Error, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

impl World {
    /// Makes a stream of a device; gives its number.
    pub(in crate::queued) fn add(&self, device: &str) -> u64 {
        let mut state = self.lock();
        state.n_lines += 1;
        let serial = state.n_lines;
        state.lines.insert(serial, Line { device: device.to_owned(), ..Line::default() });
        serial
    }

    /// Puts a command into a stream's queue, or fails as the run's fault says.
    pub(in crate::queued) fn push(&self, serial: u64, command: Command) -> Result<()> {
        let mut state = self.lock();
        let device = state.lines[&serial].device.clone();
        if state.lost.contains(&device) {
            return Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "it was lost before"));
        }
        if state.met_by(When::Enqueued, &device, command.name()) {
            let lost = state.fault.is_some_and(|fault| fault.lost);
            if lost {
                state.lost.push(device);
                return Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "lost in a call"));
            }
            let text = format!("a {} was told to fail at once", command.name());
            return Err(Error::new(DEVBAY_STATUS_INTERNAL, text));
        }
        let mode = state.mode;
        let Some(line) = state.lines.get_mut(&serial) else {
            return Err(Error::invalid("a stream that is gone"));
        };
        if let Command::Signal(value) = command {
            if value <= line.signalled {
                let text = format!("signal of value {value} after {}", line.signalled);
                state.complaints.push(text.clone());
                return Err(Error::invalid(text));
            }
            line.signalled = value;
        }
        if line.failure.is_none() {
            line.commands.push_back(command);
            state.n_enqueued += 1;
        }
        drop(state);
        self.changed.notify_all();
        if mode == Some(Mode::AtOnce) {
            while self.execute(serial) {}
        }
        Ok(())
    }

    /// Puts a wait for another stream into a queue.
    pub(in crate::queued) fn wait(&self, serial: u64, other: u64, value: u64) -> Result<()> {
        let mut state = self.lock();
        if state.lines[&other].signalled < value {
            let text = format!("a wait for {value}, which was not signalled");
            state.complaints.push(text.clone());
            return Err(Error::invalid(text));
        }
        drop(state);
        self.push(serial, Command::Wait(other, value))
    }

    /// The last value that a stream has reached, and its failure.
    pub(in crate::queued) fn reached(&self, serial: u64) -> (u64, Option<Error>) {
        let state = self.lock();
        let line = &state.lines[&serial];
        (line.reached, line.failure.clone())
    }

    /// Calls `done` when a stream has reached a value or has failed, or fails as the run's fault says.
    pub(in crate::queued) fn on_reached(&self, serial: u64, value: u64, done: Done) -> Result<()> {
        let mut state = self.lock();
        let device = state.lines[&serial].device.clone();
        if state.met_by(When::Enqueued, &device, "call back") {
            if state.fault.is_some_and(|fault| fault.lost) {
                state.lost.push(device);
                return Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "lost in a call"));
            }
            return Err(Error::new(DEVBAY_STATUS_INTERNAL, "a call back was told to fail at once"));
        }
        let Some(line) = state.lines.get_mut(&serial).filter(|line| line.signalled >= value) else {
            let text = format!("a call back for {value}, which was not signalled");
            state.complaints.push(text.clone());
            return Err(Error::invalid(text));
        };
        line.waiting.push((value, done));
        self.answer(state, serial);
        Ok(())
    }

    /// Blocks until a stream has reached a value or has failed.
    pub(in crate::queued) fn host_wait(&self, serial: u64, value: u64, timeout: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            let line = &state.lines[&serial];
            if line.reached >= value {
                return Ok(());
            }
            if let Some(error) = &line.failure {
                return Err(error.clone());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(DEVBAY_STATUS_TIMEOUT, "not in time"));
            }
            let nap = Duration::from_millis(1);
            state = unpoisoned(self.changed.wait_timeout(state, nap)).0;
        }
    }

    /// Waits until a stream has nothing to do any more, then takes it out.
    pub(in crate::queued) fn remove(&self, serial: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut state = self.lock();
        loop {
            if state.mode == Some(Mode::AtOnce) {
                drop(state);
                while self.execute(serial) {}
                state = self.lock();
            }
            let lost = state.lost.clone();
            let line = &state.lines[&serial];
            let has_work = line.commands.iter().any(|command| !matches!(command, Command::Wait(..)));
            if !line.is_busy && (!has_work || lost.contains(&line.device)) {
                break;
            }
            if Instant::now() > deadline {
                state.complaints.push(format!("stream {serial} does not end"));
                break;
            }
            let nap = Duration::from_millis(1);
            state = unpoisoned(self.changed.wait_timeout(state, nap)).0;
        }
        let line = state.lines.remove(&serial);
        drop(state);
        self.changed.notify_all();
        for (_, done) in line.into_iter().flat_map(|line| line.waiting) {
            done.call(&Err(Error::new(DEVBAY_STATUS_ABORTED, "the stream was destroyed")));
        }
    }

    /// Knows an allocation as a device's own.
    pub(in crate::queued) fn own(&self, device: &str, range: Range<u64>) {
        self.lock().owned.push((device.to_owned(), range));
    }

    /// Forgets an allocation.
    pub(in crate::queued) fn disown(&self, base: u64) {
        self.lock().owned.retain(|(_, range)| range.start != base);
    }

    /// Complains of an operand of a device that is in another memory than the device's own, or not in the host's if it
    /// has none.
    pub(in crate::queued) fn check(&self, device: &str, has_own_memory: bool, addr: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut state = self.lock();
        let owner = state.owned.iter().find(|(_, range)| range.contains(&addr)).map(|(owner, range)| {
            if addr + length > range.end { format!("{owner}, beyond its end") } else { owner.clone() }
        });
        let wanted = has_own_memory.then(|| device.to_owned());
        if owner != wanted {
            let text = format!("{device} is given memory of {owner:?}");
            state.complaints.push(text);
        }
    }
}

impl WorldState {
    /// Counts a command that is enqueued; whether the run's fault meets it.
    fn met_by(&mut self, when: When, device: &str, name: &'static str) -> bool {
        let nth = self.n_asked;
        self.n_asked += 1;
        let is_met = self.fault.is_some_and(|fault| fault.when == when && fault.nth == nth);
        if is_met {
            self.met = Some((device.to_owned(), name));
        }
        is_met
    }
}
