//! Timelines in Chrome's trace event format, for Perfetto and chrome://tracing.
//!
//! The host is a process with a track per thread, and each device is a process with a track per stream. Times are in
//! microseconds since the first slice. An arrow is a pair of events with one id. It begins just before its slice ends,
//! because an event at the end itself counts as outside.
//!
//! **Source**: Trace Event Format, <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use super::{Flow, FlowKind, Slice, SliceKind, StepAt, Timeline};
use crate::file::write_whole;
use devbay_core::trace::{StepKind, What};
use devbay_core::{Error, ErrorKind, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Number of the host's process.
const HOST: usize = 1;

/// Writes a timeline to a file atomically.
///
/// # Errors
/// [`ErrorKind::Io`] if it cannot be written.
pub fn write_file(path: &Path, timeline: &Timeline<'_>) -> Result<()> {
    let write = |file: &mut std::fs::File| {
        let mut out = BufWriter::new(file);
        write_chrome(&mut out, timeline)?;
        out.flush()
    };
    write_whole(path, write)
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot write {}", path.display())).because(error))
}

/// Writes a timeline as JSON, one event per line.
///
/// # Errors
/// Errors of `out`.
pub fn write_chrome(out: &mut impl Write, timeline: &Timeline<'_>) -> std::io::Result<()> {
    let slices = || timeline.tracks.iter().flat_map(|track| &track.slices);
    let begin_ns = slices().map(|slice| slice.begin_ns).min().unwrap_or(0);
    let mut events = Events { out, timeline, begin_ns, places: Vec::new(), is_first: true };
    events.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    events.processes()?;
    for (track, of) in timeline.tracks.iter().enumerate() {
        for slice in &of.slices {
            events.slice(track, slice)?;
        }
    }
    for (id, flow) in (1..).zip(&timeline.flows) {
        events.flow(id, flow)?;
    }
    let n_dropped = timeline.recording.n_dropped();
    if n_dropped > 0 {
        let end_ns = slices().map(|slice| slice.end_ns).max().unwrap_or(0);
        events.lost(n_dropped, end_ns)?;
    }
    write!(out, "\n],\"otherData\":{{\"writer\":\"devbay\",\"lost_events\":{n_dropped}}}}}")
}

/// An event of the format; absent fields are not written.
#[derive(Serialize, Default)]
struct Event<'a> {
    name: &'a str,
    ph: &'a str,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

/// Details that a viewer shows for a selected event.
#[derive(Serialize, Default)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    section: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate_ns: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_lost: Option<u64>,
}

struct Events<'a, 't, W: Write> {
    out: &'a mut W,
    timeline: &'a Timeline<'t>,
    begin_ns: u64,
    /// Process and thread of each track.
    places: Vec<(usize, usize)>,
    is_first: bool,
}

impl<W: Write> Events<'_, '_, W> {
    fn event(&mut self, event: &Event<'_>) -> std::io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn micros(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.begin_ns) as f64 / 1e3
    }

    /// Writes the names of processes and threads.
    fn processes(&mut self) -> std::io::Result<()> {
        let mut devices: Vec<&str> = Vec::new();
        self.metadata("process_name", HOST, 0, Args { name: Some("host"), ..Args::default() })?;
        let timeline = self.timeline;
        for (i, track) in timeline.tracks.iter().enumerate() {
            let pid = match &track.device {
                None => HOST,
                Some(device) => match devices.iter().position(|known| known == device) {
                    Some(at) => HOST + 1 + at,
                    None => {
                        devices.push(device);
                        let name = format!("device {device}");
                        let pid = HOST + devices.len();
                        self.metadata("process_name", pid, 0, Args { name: Some(&name), ..Args::default() })?;
                        pid
                    }
                },
            };
            self.places.push((pid, i + 1));
            self.metadata("thread_name", pid, i + 1, Args { name: Some(&track.name), ..Args::default() })?;
            self.metadata("thread_sort_index", pid, i + 1, Args { sort_index: Some(i), ..Args::default() })?;
        }
        Ok(())
    }

    fn metadata(&mut self, name: &str, pid: usize, tid: usize, args: Args<'_>) -> std::io::Result<()> {
        self.event(&Event { name, ph: "M", pid, tid, args: Some(args), ..Event::default() })
    }

    fn slice(&mut self, track: usize, slice: &Slice) -> std::io::Result<()> {
        let (name, cat, args) = described(self.timeline, slice);
        let (pid, tid) = self.places[track];
        let (ts, dur) = (self.micros(slice.begin_ns), (slice.end_ns - slice.begin_ns) as f64 / 1e3);
        let (cat, ts, dur, args) = (Some(cat), Some(ts), Some(dur), Some(args));
        self.event(&Event { name: &name, ph: "X", pid, tid, cat, ts, dur, args, ..Event::default() })
    }

    fn flow(&mut self, id: usize, flow: &Flow) -> std::io::Result<()> {
        let (from, to) = (self.timeline.slice(flow.from), self.timeline.slice(flow.to));
        let (name, cat) = match flow.kind {
            FlowKind::Data => ("data", "data"),
            FlowKind::Enqueue => ("enqueue", "enqueue"),
        };
        // A stream may begin a launch before the enqueuing call returns.
        let begin_ns = (from.end_ns.saturating_sub(1)).min(to.begin_ns).max(from.begin_ns);
        for (ph, track, at_ns, bp) in
            [("s", flow.from.track, begin_ns, None), ("f", flow.to.track, to.begin_ns, Some("e"))]
        {
            let (pid, tid) = self.places[track];
            let (cat, ts, id) = (Some(cat), Some(self.micros(at_ns)), Some(id));
            self.event(&Event { name, ph, pid, tid, cat, ts, id, bp, ..Event::default() })?;
        }
        Ok(())
    }

    /// Notes that the timeline is incomplete.
    fn lost(&mut self, n_lost: u64, at_ns: u64) -> std::io::Result<()> {
        let name = format!("{n_lost} events were lost: the recorder was full");
        let (ts, args) = (Some(self.micros(at_ns)), Some(Args { n_lost: Some(n_lost), ..Args::default() }));
        let tid = self.places.first().map_or(0, |place| place.1);
        self.event(&Event {
            name: &name,
            ph: "i",
            pid: HOST,
            tid,
            ts,
            s: Some("g"),
            args,
            ..Event::default()
        })
    }
}

impl<'a> Timeline<'a> {
    /// Returns a slice's name and its category: `run`, `task`, `kernel`, `enqueue`, `copy`, `order`, `control`, `wait` or
    /// `mark`.
    pub fn title(&self, slice: &Slice) -> (Cow<'a, str>, &'static str) {
        let (name, category, _) = described(self, slice);
        (name, category)
    }
}

/// Returns the name, category and arguments of a slice.
fn described<'a>(timeline: &Timeline<'a>, slice: &Slice) -> (Cow<'a, str>, &'static str, Args<'a>) {
    let args = Args { run: (slice.run > 0).then_some(slice.run), ..Args::default() };
    match slice.kind {
        SliceKind::Run | SliceKind::Part => (format!("run {}", slice.run).into(), "run", args),
        SliceKind::Task { section, task } => {
            let args = Args { section: Some(section), task: Some(task), ..args };
            (format!("task {task}").into(), "task", args)
        }
        SliceKind::Launch(at, _) => {
            let (name, category, args) = step(timeline, at, args);
            (name.into(), category, args)
        }
        SliceKind::Other(what) => {
            let (name, category, args) = other(what, args);
            (name.into(), category, args)
        }
        SliceKind::Mark(_, Some(at)) => {
            // One end enqueued the launch on a stream, and the other is the work itself.
            match step(timeline, at, args) {
                (name, "copy", args) => (name.into(), "copy", args),
                (name, _, args) => (name.into(), "kernel", args),
            }
        }
        SliceKind::Mark(i, None) => (timeline.recording.marks[i].1.name.as_str().into(), "mark", args),
    }
}

/// Returns the name, category and arguments of a step.
fn step<'a>(timeline: &Timeline<'a>, at: StepAt, args: Args<'a>) -> (&'a str, &'static str, Args<'a>) {
    let Some(step) = timeline.step(at) else {
        return ("", "", args);
    };
    let cat = match step.kind {
        StepKind::Kernel => "kernel",
        StepKind::Enqueue => "enqueue",
        StepKind::Copy => "copy",
        StepKind::Order => "order",
        StepKind::Control | StepKind::Stage => "control",
    };
    let device = timeline.recording.sections[at.section as usize].devices.get(step.lane as usize);
    let args = Args {
        section: Some(at.section),
        task: (step.kind != StepKind::Stage).then_some(step.task),
        op: Some(step.op()),
        kernel: matches!(cat, "kernel" | "enqueue").then_some(&step.kernel),
        estimate_ns: (step.cost_ns > 0.0).then_some(step.cost_ns),
        device: device.map(String::as_str),
        ..args
    };
    (&step.label, cat, args)
}

/// Returns the name, category and arguments of a copy or a wait.
fn other(what: What, args: Args<'_>) -> (&'static str, &'static str, Args<'_>) {
    match what {
        What::Loop => ("loop", "kernel", args),
        What::Chunk => ("chunk", "kernel", args),
        What::CopyIn { bytes } => ("copy in", "copy", Args { bytes: Some(bytes), ..args }),
        What::CopyOut { bytes } => ("copy out", "copy", Args { bytes: Some(bytes), ..args }),
        What::CopyWithin { bytes } => ("copy within", "copy", Args { bytes: Some(bytes), ..args }),
        What::WaitForStream => ("wait for stream", "wait", args),
        What::WaitForTasks => ("wait for tasks", "wait", args),
        What::Run | What::Launch { .. } => ("", "", args),
    }
}
