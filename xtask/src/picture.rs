//! `cargo xtask picture TRACE.json FILE.svg --run N`: draws kernels and copies of one run of a `--profile`, one line per
//! stream, for the documentation.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Arguments {
    /// Output of `devbay bench MODEL --profile`
    trace: PathBuf,
    /// The picture
    picture: PathBuf,
    /// Number of the run in the trace's args; 1 is the first, which creates streams and recordings
    #[arg(long, value_name = "N", default_value_t = 2)]
    run: u64,
}

/// The part of Chrome's trace event format that the picture shows.
#[derive(Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// Times are microseconds.
#[derive(Deserialize)]
struct Event {
    name: String,
    ph: String,
    pid: u64,
    tid: u64,
    cat: Option<String>,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: EventArguments,
}

#[derive(Default, Deserialize)]
struct EventArguments {
    run: Option<u64>,
    /// Value of `thread_name`.
    name: Option<String>,
}

/// Drawn categories, and their colours.
const COLOURS: [(&str, &str); 2] = [("kernel", "#4878a8"), ("copy", "#d08040")];
/// The process of the host's threads, which are not drawn.
const HOST: u64 = 1;
/// Sizes in pixels.
const WIDTH: f64 = 960.0;
const LABELS: f64 = 120.0;
const LINE: f64 = 34.0;

pub fn run(arguments: &Arguments) -> Result<()> {
    let text = fs::read(&arguments.trace).with_context(|| format!("{}", arguments.trace.display()))?;
    let trace: Trace = serde_json::from_slice(&text).context("not a trace of devbay's")?;
    let colour = |event: &Event| {
        let category = event.cat.as_deref().filter(|_| event.ph == "X" && event.pid != HOST)?;
        COLOURS.iter().find(|(name, _)| *name == category).map(|(_, colour)| *colour)
    };
    let mut lanes: BTreeMap<(u64, u64), Vec<&Event>> = BTreeMap::new();
    let of_run = trace.events.iter().filter(|event| event.args.run == Some(arguments.run));
    for event in of_run.filter(|event| colour(event).is_some()) {
        lanes.entry((event.pid, event.tid)).or_default().push(event);
    }
    let drawn = || lanes.values().flatten();
    let from = drawn().map(|event| event.ts).fold(f64::INFINITY, f64::min);
    let to = drawn().map(|event| event.ts + event.dur).fold(0.0, f64::max);
    ensure!(from < to, "run {} has no kernels and no copies", arguments.run);

    let x = |ts: f64| LABELS + (ts - from) / (to - from) * (WIDTH - LABELS - 10.0);
    let bottom = LINE * lanes.len() as f64;
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
        bottom + 24.0
    )?;
    for (i, ((pid, tid), events)) in lanes.iter().enumerate() {
        let top = LINE * i as f64 + 5.0;
        let label = trace.events.iter().find_map(|event| {
            let is_name = event.name == "thread_name" && (event.pid, event.tid) == (*pid, *tid);
            event.args.name.as_deref().filter(|_| is_name)
        });
        let what = if events.iter().any(|event| event.cat.as_deref() == Some("kernel")) {
            "kernels"
        } else {
            "copies"
        };
        let label = escaped(label.unwrap_or("stream"));
        writeln!(svg, "<text x=\"4\" y=\"{}\">{label}: {what}</text>", top + 16.0)?;
        for event in events {
            let (left, right) = (x(event.ts), x(event.ts + event.dur));
            writeln!(
                svg,
                "<rect x=\"{left:.2}\" y=\"{top}\" width=\"{:.2}\" height=\"{}\" fill=\"{}\"/>",
                (right - left).max(0.1),
                LINE - 10.0,
                colour(event).unwrap_or_default()
            )?;
        }
    }
    let step = tick((to - from) / 1e3);
    for i in 0..=((to - from) / 1e3 / step) as usize {
        let ms = i as f64 * step;
        let at = x(from + ms * 1e3);
        writeln!(
            svg,
            "<path d=\"M{at:.1} 0V{bottom}\" stroke=\"black\" stroke-opacity=\"0.15\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{ms} ms</text>",
            bottom + 16.0
        )?;
    }
    svg.push_str("</svg>\n");
    fs::write(&arguments.picture, svg)?;
    Ok(())
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides the span into at most ten parts.
fn tick(span: f64) -> f64 {
    let power = 10f64.powf((span / 10.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| span / step <= 10.0)
        .unwrap_or(span)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
