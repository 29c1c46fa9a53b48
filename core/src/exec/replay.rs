//! Straight lines of launches that an asynchronous device runs with one call, because it has recorded them.
//!
//! A frame's references stay the same from run to run, except those to inputs and results: these are the frame's own
//! staging memory if one device has the section to itself, else the caller's memory. So the first run of a frame
//! launches, the second one records its launches, and all others replay them. Memory of inputs and results is bound: if
//! it has moved, a replay is given the new place. If a plugin records no bindings, the line is then launched and
//! recorded again.

use super::cancel::Cancel;
use super::frame::Frame;
use super::section::launch_steps;
use crate::device::Recording;
use crate::error::Result;
use crate::plan::section::{Section, StepKind};
use devbay_plugin_api::abi::BufferRef;

/// Number of times that a frame's references may have moved until nothing is recorded any more.
const MOVES_MAX: u32 = 3;

/// State of a frame's recording.
pub(crate) enum Replay {
    /// Launches are launches.
    Off,
    /// Nothing yet: whether the line was launched before, and how often references have moved.
    Launched { before: bool, n_moves: u32 },
    /// A recording, the references to inputs and results that it was made with, and how often they have moved; it `stays` where
    /// this run's are elsewhere and do not come again.
    Recorded {
        recording: Recording,
        bound: Box<[BufferRef]>,
        places: Option<Places>,
        n_moves: u32,
        stays: bool,
    },
}

impl Replay {
    /// For a new frame.
    pub fn of(section: &Section) -> Self {
        let is_alone = section.lanes.len() == 1 && !section.device.about().inline;
        // Copies and control flow are not launches of the device's.
        let is_all_kernels = section.kinds.iter().all(|kind| *kind == StepKind::Kernel);
        let is_worth_it = section.is_line() && section.steps.len() > 1 && !section.is_traced();
        match is_alone && is_all_kernels && is_worth_it && section.device.replays() {
            true => Self::Launched { before: false, n_moves: 0 },
            false => Self::Off,
        }
    }

    /// Returns whether there is something to record or to replay.
    #[inline]
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }
}

impl Frame {
    /// Launches as [`Frame::launch`] does, with references that will not come again. Nothing is recorded. An existing
    /// recording stays, and is replayed if it has bindings.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    pub(crate) unsafe fn launch_once(&mut self, section: &Section, cancel: Option<&Cancel>) -> Result<()> {
        if let Replay::Recorded { places: Some(_), stays, .. } = &mut self.replay {
            *stays = true;
            // SAFETY: the frame is bound, and its memory stays (# Safety of `launch`).
            let launched = unsafe { self.launch(section, cancel) };
            if let Replay::Recorded { stays, .. } = &mut self.replay {
                *stays = false;
            }
            return launched;
        }
        let replay = std::mem::replace(&mut self.replay, Replay::Off);
        // SAFETY: bound memory that stays (# Safety of `launch`).
        let launched = unsafe { self.launch(section, cancel) };
        self.replay = replay;
        launched
    }

    /// Launches a line, records it, or replays its recording.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    #[inline(never)]
    pub(super) unsafe fn launch_or_replay(
        &mut self,
        section: &Section,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        Cancel::check(cancel)?;
        let n_moves = match &mut self.replay {
            Replay::Recorded { recording, bound, places, n_moves, stays } => {
                let has_moved =
                    bound_refs(section, &self.refs).zip(&*bound).any(|(now, then)| !same(&now, then));
                let places = match (has_moved, places) {
                    (false, _) => Some(&[][..]),
                    (true, Some(places)) => places.follow(bound_refs(section, &self.refs), bound),
                    (true, None) => None,
                };
                if let Some(places) = places {
                    // SAFETY: memory that the recording names is where it was when it was recorded, or bound; it stays
                    // (# Safety of `launch`).
                    return unsafe { self.streams.first.replay(recording, places) };
                }
                if *stays {
                    // SAFETY: the frame is bound, and its memory stays (# Safety of `launch`).
                    return unsafe { self.launch_line(section, cancel) };
                }
                *n_moves + 1
            }
            Replay::Launched { before: true, n_moves } => {
                let n_moves = *n_moves;
                // SAFETY: bound memory that stays (# Safety of `launch`).
                return unsafe { self.record(section, cancel, n_moves) };
            }
            Replay::Launched { n_moves, .. } => *n_moves,
            Replay::Off => MOVES_MAX,
        };
        // The recorded work is at rest: the frame is.
        self.replay = match n_moves < MOVES_MAX {
            true => Replay::Launched { before: true, n_moves },
            false => Replay::Off,
        };
        // SAFETY: bound memory that stays (# Safety of `launch`).
        unsafe { self.launch_line(section, cancel) }
    }

    /// Records the line, and enqueues it.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    unsafe fn record(&mut self, section: &Section, cancel: Option<&Cancel>, n_moves: u32) -> Result<()> {
        let (streams, refs) = (self.streams.handles(), self.refs.as_ptr());
        // SAFETY: references and streams are the frame's, made for this section, and bound (# Safety of `launch`).
        let launches = || unsafe { launch_steps::<false>(section, &section.steps, refs, streams, None) };
        let bound: Box<[BufferRef]> = bound_refs(section, &self.refs).collect();
        let mut places = Some(Places::of(&bound));
        let bindings = places.as_ref().map_or(&[][..], |places| &places.now);
        // SAFETY: memory and kernels stay as long as the frame, which drops the recording before them.
        let mut recorded = unsafe { self.streams.first.record(bindings, launches) };
        if matches!(recorded, Ok(Ok(None))) && !bindings.is_empty() {
            places = None;
            // SAFETY: memory and kernels stay as long as the frame, as for the recording with bindings.
            recorded = unsafe { self.streams.first.record(&[], launches) };
        }
        match recorded? {
            Ok(Some(recording)) => {
                // SAFETY: the new recording names memory and kernels of the frame, where they are; they stay
                // (# Safety of `launch`).
                let replayed = unsafe { self.streams.first.replay(&recording, &[]) };
                self.replay = Replay::Recorded { recording, bound, places, n_moves, stays: false };
                replayed
            }
            // It cannot be recorded. If a launch failed for another reason, it fails again below with the same words.
            Ok(None) | Err(_) => {
                self.replay = Replay::Off;
                // SAFETY: the frame is bound, and its memory stays (# Safety of `launch`).
                unsafe { self.launch_line(section, cancel) }
            }
        }
    }
}

/// The memory that a recording's references to inputs and results are in: of each buffer the ranges that have no byte in
/// common with another.
pub(crate) struct Places {
    /// As they were recorded.
    then: Box<[BufferRef]>,
    /// Where they are now.
    now: Box<[BufferRef]>,
    /// Of each reference, the place that it is in.
    place_of: Box<[u32]>,
}

impl Places {
    fn of(bound: &[BufferRef]) -> Self {
        let mut order: Vec<usize> = (0..bound.len()).filter(|i| bound[*i].length > 0).collect();
        order.sort_by_key(|i| (bound[*i].buffer.addr(), first_byte(&bound[*i])));
        let mut then: Vec<BufferRef> = Vec::new();
        let mut place_of = vec![0; bound.len()].into_boxed_slice();
        for i in order {
            let reference = &bound[i];
            match then.last_mut() {
                Some(place)
                    if place.buffer == reference.buffer
                        && first_byte(reference) < first_byte(place) + place.length =>
                {
                    let end = first_byte(reference) + reference.length;
                    place.length = place.length.max(end - first_byte(place));
                }
                _ => then.push(*reference),
            }
            place_of[i] = then.len() as u32 - 1;
        }
        let then = then.into_boxed_slice();
        Self { now: then.clone(), then, place_of }
    }

    /// Where the places are now, by the references `now` in the place of those that were recorded; None if those of one place
    /// have not moved together.
    fn follow(
        &mut self,
        now: impl Iterator<Item = BufferRef>,
        recorded: &[BufferRef],
    ) -> Option<&[BufferRef]> {
        self.now.iter_mut().for_each(|place| place.length = 0);
        for ((now, recorded), place) in now.zip(recorded).zip(&self.place_of) {
            if now.length != recorded.length {
                return None;
            }
            if now.length == 0 {
                continue;
            }
            let (then, place) = (&self.then[*place as usize], &mut self.now[*place as usize]);
            let within = first_byte(recorded) - first_byte(then);
            let begin = BufferRef {
                buffer: now.buffer,
                addr: now.addr.wrapping_sub(within),
                offset: if now.buffer.is_null() { 0 } else { now.offset.checked_sub(within)? },
                length: then.length,
            };
            if place.length == 0 {
                *place = begin;
            } else if !same(place, &begin) {
                return None;
            }
        }
        Some(&self.now)
    }
}

/// By which number references of one buffer, or of the host's memory, are compared.
fn first_byte(reference: &BufferRef) -> u64 {
    if reference.buffer.is_null() { reference.addr } else { reference.offset }
}

/// References to inputs and results.
fn bound_refs<'a>(section: &'a Section, refs: &'a [BufferRef]) -> impl Iterator<Item = BufferRef> + 'a {
    let patches = section.input_patches.iter().chain(&section.output_patches);
    patches.map(|patch| refs[patch.ref_idx as usize])
}

fn same(a: &BufferRef, b: &BufferRef) -> bool {
    let parts = |at: &BufferRef| (at.buffer, at.addr, at.offset, at.length);
    parts(a) == parts(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(buffer: usize, offset: u64, length: u64) -> BufferRef {
        let buffer = std::ptr::without_provenance_mut(buffer);
        BufferRef { buffer, addr: 4096 * buffer.addr() as u64 + offset, offset, length }
    }

    fn follow(recorded: &[BufferRef], now: &[BufferRef]) -> Option<Vec<BufferRef>> {
        let mut places = Places::of(recorded);
        places.follow(now.iter().copied(), recorded).map(<[_]>::to_vec)
    }

    fn expect(found: Option<Vec<BufferRef>>, expected: &[BufferRef]) {
        let found = found.expect("they have moved together");
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| same(a, b)));
    }

    #[test]
    fn references_of_one_place_move_together() {
        // A whole, a part of it that another launch reads, and something behind it.
        let recorded = [at(1, 64, 32), at(1, 0, 128), at(1, 128, 16), at(2, 0, 8)];
        let now = [at(3, 320, 32), at(3, 256, 128), at(4, 0, 16), at(2, 8, 8)];
        expect(follow(&recorded, &now), &[at(3, 256, 128), at(4, 0, 16), at(2, 8, 8)]);
    }

    #[test]
    fn operands_that_shared_memory_and_do_not_any_more_are_not_followed() {
        let recorded = [at(1, 0, 64), at(1, 0, 64)];
        expect(follow(&recorded, &[at(2, 0, 64), at(2, 0, 64)]), &[at(2, 0, 64)]);
        assert!(follow(&recorded, &[at(2, 0, 64), at(3, 0, 64)]).is_none());
        assert!(follow(&recorded, &[at(2, 0, 64), at(2, 64, 64)]).is_none());
    }

    #[test]
    fn operands_that_come_to_share_memory_are_followed() {
        let recorded = [at(1, 0, 64), at(2, 0, 64)];
        expect(follow(&recorded, &[at(3, 0, 64), at(3, 0, 64)]), &[at(3, 0, 64), at(3, 0, 64)]);
    }

    #[test]
    fn what_would_begin_before_its_buffer_or_has_another_length_is_not_followed() {
        let recorded = [at(1, 64, 32), at(1, 32, 64)];
        assert!(follow(&recorded, &[at(2, 0, 32), at(2, 0, 64)]).is_none());
        assert!(follow(&[at(1, 0, 64)], &[at(1, 0, 32)]).is_none());
    }

    #[test]
    fn absent_operands_have_no_place() {
        let recorded = [BufferRef::ABSENT, at(1, 0, 64)];
        expect(follow(&recorded, &[BufferRef::ABSENT, at(2, 0, 64)]), &[at(2, 0, 64)]);
    }
}
