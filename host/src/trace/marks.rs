//! Plugins' marks as tracks, and which of them are launches of ours.
//!
//! A stream does its work in order, so that the marks of a stream's launches come in the order in which they were put on
//! it. A mark is of a launch if it is called `launch`, or as a node of the plans; equal nodes share a kernel, whose
//! plugin knows the name of one of them, so that the order says which node it was, not the name.

use super::slices::kind_of;
use super::{Flow, FlowKind, Slice, SliceAt, SliceKind, StepAt, Track};
use devbay_core::services::Mark;
use devbay_core::trace::{Recording, StepKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// A launch that was put on a stream.
struct Enqueued {
    begin_ns: u64,
    run: u32,
    step: StepAt,
    at: SliceAt,
}

/// Adds the tracks of marks behind those of threads; gives arrows from launches to their marks.
pub(super) fn add(tracks: &mut Vec<Track>, recording: &Recording) -> Vec<Flow> {
    let mut enqueued = by_stream(tracks, recording);
    let names: HashSet<&str> = recording
        .sections
        .iter()
        .flat_map(|section| &section.steps)
        .map(|step| step.name.as_str())
        .chain(["launch"])
        .collect();
    let mut by_track: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (i, (plugin, mark)) in recording.marks.iter().enumerate() {
        let device = if mark.device.is_empty() { plugin } else { &mark.device };
        by_track.entry((device, &mark.track)).or_default().push(i);
    }
    let mut flows = Vec::new();
    for ((device, name), mut marks) in by_track {
        let mark = |i: usize| -> &Mark { &recording.marks[i].1 };
        marks.sort_by_key(|&i| (mark(i).begin_ns, Reverse(mark(i).end_ns)));
        let mut lanes: Vec<(Track, Vec<u64>)> = Vec::new();
        for i in marks {
            let mark = mark(i);
            let is_launch = names.contains(mark.name.as_str());
            let waiting = enqueued.get_mut(&mark.stream).filter(|_| is_launch);
            let launch = waiting.and_then(|waiting| {
                // A launch cannot run before it is enqueued: such a mark is of one that was not recorded.
                waiting
                    .front()
                    .is_some_and(|first| first.begin_ns <= mark.begin_ns)
                    .then(|| waiting.pop_front())
            });
            let launch = launch.flatten();
            let end_ns = mark.end_ns.max(mark.begin_ns);
            let (run, step) = launch.as_ref().map_or((0, None), |launch| (launch.run, Some(launch.step)));
            let slice = Slice { kind: SliceKind::Mark(i, step), run, begin_ns: mark.begin_ns, end_ns };
            let lane = lane_for(&mut lanes, &slice, device, name);
            lanes[lane].0.slices.push(slice);
            if let Some(launch) = launch {
                let to = SliceAt { track: tracks.len() + lane, slice: lanes[lane].0.slices.len() - 1 };
                flows.push(Flow { from: launch.at, to, kind: FlowKind::Enqueue });
            }
        }
        tracks.extend(lanes.into_iter().map(|(track, _)| track));
    }
    flows
}

/// Launches by the stream that they were put on, in order.
fn by_stream(tracks: &[Track], recording: &Recording) -> HashMap<u64, VecDeque<Enqueued>> {
    let mut enqueued: HashMap<u64, Vec<Enqueued>> = HashMap::new();
    for (track, of) in tracks.iter().enumerate() {
        for (slice, of) in of.slices.iter().enumerate() {
            if let SliceKind::Launch(step, stream) = of.kind
                && kind_of(recording, step) == Some(StepKind::Enqueue)
            {
                let at = SliceAt { track, slice };
                let launch = Enqueued { begin_ns: of.begin_ns, run: of.run, step, at };
                enqueued.entry(stream).or_default().push(launch);
            }
        }
    }
    let in_order = |mut launches: Vec<Enqueued>| {
        launches.sort_by_key(|launch| launch.begin_ns);
        launches.into()
    };
    enqueued.into_iter().map(|(stream, launches)| (stream, in_order(launches))).collect()
}

/// The lane of a track in which a slice is inside or behind all others; a new one if there is none. Beside each lane
/// stand the ends of the slices that go on.
fn lane_for(lanes: &mut Vec<(Track, Vec<u64>)>, slice: &Slice, device: &str, name: &str) -> usize {
    for (i, (_, ends)) in lanes.iter_mut().enumerate() {
        while ends.last().is_some_and(|&end| end <= slice.begin_ns) {
            ends.pop();
        }
        if ends.last().is_none_or(|&end| slice.end_ns <= end) {
            ends.push(slice.end_ns);
            return i;
        }
    }
    let name = if lanes.is_empty() { name.to_owned() } else { format!("{name} ({})", lanes.len() + 1) };
    lanes.push((Track { device: Some(device.to_owned()), name, slices: Vec::new() }, vec![slice.end_ns]));
    lanes.len() - 1
}
