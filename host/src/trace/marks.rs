//! Plugins' marks as tracks, and the launches that they belong to.
//!
//! A stream works in order, so the marks of its launches appear in the order of enqueuing. A mark belongs to a launch if it
//! is named `launch`, or like a node of the plans; to a copy if it is named `copy`. Equal nodes share a kernel, and its
//! plugin knows only one of their names, so the order identifies the node, not the name.

use super::slices::kind_of;
use super::{Flow, FlowKind, Slice, SliceAt, SliceKind, StepAt, Track};
use devbay_core::services::Mark;
use devbay_core::trace::{Recording, StepKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// A launch enqueued on a stream.
struct Enqueued {
    begin_ns: u64,
    run: u32,
    step: StepAt,
    at: SliceAt,
}

/// Adds the tracks of marks after those of threads; returns arrows from launches to their marks.
pub(super) fn add(tracks: &mut Vec<Track>, recording: &Recording) -> Vec<Flow> {
    let mut enqueued = by_stream(tracks, recording);
    let names: HashSet<&str> = recording
        .sections
        .iter()
        .flat_map(|section| &section.steps)
        .map(|step| step.name.as_str())
        .chain(["launch", "copy"])
        .collect();
    // Sorted by time across tracks: a new stream may reuse the handle of a destroyed one.
    let mut marks: Vec<(usize, &str, &Mark)> =
        recording.marks.iter().enumerate().map(|(i, (plugin, mark))| (i, plugin.as_str(), mark)).collect();
    marks.sort_by_key(|(_, _, mark)| (mark.begin_ns, Reverse(mark.end_ns)));
    let mut lanes: BTreeMap<TrackName<'_>, Vec<Lane>> = BTreeMap::new();
    let mut arrows: Vec<(SliceAt, TrackName<'_>, SliceAt)> = Vec::new();
    for (i, plugin, mark) in marks {
        // A launch cannot run before it is enqueued, so an earlier mark belongs to an unrecorded launch.
        let waiting = enqueued.get_mut(&mark.stream).filter(|_| names.contains(mark.name.as_str()));
        let is_copy = mark.name == "copy";
        let launch = waiting.and_then(|waiting| {
            waiting.pop_front_if(|launch| {
                // Copies that are not steps have marks, too.
                let fits = (kind_of(recording, launch.step) == Some(StepKind::Copy)) == is_copy;
                fits && launch.begin_ns <= mark.begin_ns
            })
        });
        let (run, step) = launch.as_ref().map_or((0, None), |launch| (launch.run, Some(launch.step)));
        let end_ns = mark.end_ns.max(mark.begin_ns);
        let slice = Slice { kind: SliceKind::Mark(i, step), run, begin_ns: mark.begin_ns, end_ns };
        let device = if mark.device.is_empty() { plugin } else { &mark.device };
        let name = TrackName::new(device, &mark.track);
        let at = place(lanes.entry(name).or_default(), slice);
        if let Some(launch) = launch {
            arrows.push((launch.at, name, at));
        }
    }
    let mut first = HashMap::new();
    for (name, lanes) in lanes {
        first.insert(name, tracks.len());
        for (i, lane) in lanes.into_iter().enumerate() {
            let more = if i == 0 { String::new() } else { format!(" ({})", i + 1) };
            let device = Some(name.device.to_owned());
            tracks.push(Track { device, name: format!("{}{more}", name.track), slices: lane.slices });
        }
    }
    let flow = |(from, name, at): (SliceAt, TrackName<'_>, SliceAt)| {
        let to = SliceAt { track: first[&name] + at.track, ..at };
        Flow { from, to, kind: FlowKind::Enqueue }
    };
    arrows.into_iter().map(flow).collect()
}

/// A track's name as given by plugins; the order is the display order: by device, label and number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct TrackName<'a> {
    device: &'a str,
    label: &'a str,
    number: u32,
    track: &'a str,
}

impl<'a> TrackName<'a> {
    fn new(device: &'a str, track: &'a str) -> Self {
        let numbered = track.rsplit_once(' ').and_then(|(label, number)| Some((label, number.parse().ok()?)));
        let (label, number) = numbered.unwrap_or((track, 0));
        Self { device, label, number, track }
    }
}

/// Slices of a track that are disjoint or nested.
#[derive(Default)]
struct Lane {
    slices: Vec<Slice>,
    /// Ends of the open slices.
    ends: Vec<u64>,
}

/// Puts a slice into the first lane where it is nested in or after all others, else into a new lane.
fn place(lanes: &mut Vec<Lane>, slice: Slice) -> SliceAt {
    let fits = |lane: &mut Lane| {
        while lane.ends.pop_if(|end| *end <= slice.begin_ns).is_some() {}
        lane.ends.last().is_none_or(|&end| slice.end_ns <= end)
    };
    let track = lanes.iter_mut().position(fits).unwrap_or_else(|| {
        lanes.push(Lane::default());
        lanes.len() - 1
    });
    let lane = &mut lanes[track];
    lane.ends.push(slice.end_ns);
    lane.slices.push(slice);
    SliceAt { track, slice: lane.slices.len() - 1 }
}

/// Groups launches by their stream, in order.
fn by_stream(tracks: &[Track], recording: &Recording) -> HashMap<u64, VecDeque<Enqueued>> {
    let mut enqueued: HashMap<u64, Vec<Enqueued>> = HashMap::new();
    for (track, of) in tracks.iter().enumerate() {
        for (slice, of) in of.slices.iter().enumerate() {
            if let SliceKind::Launch(step, stream) = of.kind
                && matches!(kind_of(recording, step), Some(StepKind::Enqueue | StepKind::Copy))
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

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::trace::{Event, SectionInfo, StepInfo, ThreadEvents, What};
    use std::sync::Arc;

    /// Returns a timeline of launches of steps 0, 1, ... of a section on streams, given with the times at which they are
    /// enqueued, and marks: name, track, stream, begin, end.
    fn timeline(launches: &[(u64, u64)], marks: &[(&str, &str, u64, u64, u64)]) -> (Vec<Track>, Vec<Flow>) {
        let step = |step: usize| StepInfo {
            label: format!("node {step} (Op)"),
            name: format!("node {step}"),
            output: String::new(),
            kernel: "Op@1".to_owned(),
            kind: StepKind::Enqueue,
            cost_ns: 0.0,
            counts: None,
            signature: None,
            task: 0,
            lane: 0,
            preds: Box::default(),
        };
        let steps = (0..launches.len()).map(step).collect();
        let events = launches.iter().zip(0..).map(|(&(stream, begin_ns), step)| Event {
            what: What::Launch { section: 0, step, stream },
            run: 1,
            begin_ns,
            end_ns: begin_ns + 1,
        });
        let marks = marks.iter().map(|&(name, track, stream, begin_ns, end_ns)| {
            let (name, track, device) = (name.to_owned(), track.to_owned(), "d:0".to_owned());
            ("d".to_owned(), Mark { name, track, device, stream, begin_ns, end_ns })
        });
        let recording = Recording {
            threads: vec![ThreadEvents { name: "t".to_owned(), events: events.collect(), n_dropped: 0 }],
            sections: vec![Arc::new(SectionInfo {
                devices: vec!["d:0".to_owned()],
                is_shared: false,
                steps,
            })],
            marks: marks.collect(),
            n_marks_dropped: 0,
        };
        let timeline = super::super::Timeline::of(&recording);
        (timeline.tracks, timeline.flows)
    }

    /// Returns the step of each slice of a device's track.
    fn steps(track: &Track) -> Vec<Option<u32>> {
        let step = |slice: &Slice| match slice.kind {
            SliceKind::Mark(_, at) => at.map(|at| at.step),
            _ => None,
        };
        track.slices.iter().map(step).collect()
    }

    #[test]
    fn the_order_on_a_stream_says_which_launch_a_mark_is_of() {
        // Equal nodes share a kernel, and thus a name.
        let marks =
            [("copy", "run 1", 7, 11, 12), ("node 0", "run 1", 7, 13, 14), ("node 0", "run 1", 7, 15, 16)];
        let (tracks, flows) = timeline(&[(7, 1), (7, 3)], &marks);
        assert_eq!(steps(&tracks[1]), [None, Some(0), Some(1)]);
        let arrow = |i| SliceAt { track: 1, slice: i };
        assert_eq!(flows.iter().map(|flow| flow.to).collect::<Vec<_>>(), [arrow(1), arrow(2)]);
    }

    #[test]
    fn a_handle_may_come_again() {
        // The track that is displayed first starts later.
        let marks = [("launch", "b 1", 7, 3, 4), ("launch", "a 1", 7, 13, 14)];
        let (tracks, _) = timeline(&[(7, 1), (7, 11)], &marks);
        assert_eq!((tracks[1].name.as_str(), tracks[2].name.as_str()), ("a 1", "b 1"));
        assert_eq!((steps(&tracks[1]), steps(&tracks[2])), (vec![Some(1)], vec![Some(0)]));
    }

    #[test]
    fn nothing_runs_before_it_is_enqueued() {
        let (tracks, flows) =
            timeline(&[(7, 5)], &[("launch", "run 1", 7, 1, 2), ("launch", "run 1", 7, 6, 9)]);
        assert_eq!((steps(&tracks[1]), flows.len()), (vec![None, Some(0)], 1));
    }

    #[test]
    fn marks_that_cross_are_shown_side_by_side() {
        let marks =
            [("x", "e 10", 0, 1, 5), ("y", "e 10", 0, 2, 3), ("z", "e 10", 0, 4, 8), ("x", "e 2", 0, 1, 5)];
        let (tracks, _) = timeline(&[], &marks);
        let found: Vec<(&str, usize)> =
            tracks[1..].iter().map(|track| (track.name.as_str(), track.slices.len())).collect();
        assert_eq!(found, [("e 2", 1), ("e 10", 2), ("e 10 (2)", 1)]);
    }
}
