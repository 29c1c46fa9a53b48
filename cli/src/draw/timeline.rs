//! A profile as a page for a browser: the time by op, how long runs took, and the timeline of one run. It loads nothing from the
//! network and runs no script; it is also well-formed XML, so that a parser can check it.

use super::html::{Escaped, head};
use crate::machine;
use devbay_host::internals::core::units::{count, duration, percent};
use devbay_host::trace::{Slice, SliceKind, Summary, Timeline, Track};
use std::collections::HashMap;
use std::fmt::{self, Write};

/// Colours of the most expensive ops. They differ in lightness too, for grey print.
pub(super) const COLOURS: [&str; 8] =
    ["#b3261e", "#f2994a", "#2f6f9f", "#7fb069", "#6a4c93", "#f2c14e", "#4d9078", "#d886a5"];
/// Colour of all other ops.
pub(super) const OTHER: &str = "#9a9aa2";
/// Colour of copies, waits and launches that only enqueue.
const QUIET: &str = "#d5d5da";

/// Width of the drawings in their own units, which are pixels on a wide screen.
pub(super) const WIDTH: f64 = 960.0;
/// Height of a line of the timeline.
const LINE: f64 = 26.0;
/// Width below which slices are joined with their neighbours.
const SLICE_MIN: f64 = 0.75;
/// Number of bars of the histogram, at most.
const BARS_MAX: usize = 24;

/// A square of an op's colour before its name.
pub(super) const CHIP: &str = "
.chip { display: inline-block; width: .7rem; height: .7rem; margin-right: .4rem; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
";

const STYLE: &str = "
.facts { display: flex; flex-wrap: wrap; gap: .25rem 2rem; }
";

/// Returns a profile as a page; `model` names its model.
pub fn page(model: &str, timeline: &Timeline<'_>, summary: &Summary) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(model, timeline, summary, &mut out);
    out
}

fn write_page(model: &str, timeline: &Timeline<'_>, summary: &Summary, out: &mut String) -> fmt::Result {
    let mut runs: Vec<Slice> = timeline
        .tracks
        .iter()
        .flat_map(|track| &track.slices)
        .filter(|slice| slice.kind == SliceKind::Run)
        .copied()
        .collect();
    runs.sort_by_key(|run| run.end_ns - run.begin_ns);
    head(out, &format!("Profile of {model}"), &[CHIP, STYLE].concat())?;
    writeln!(out, "<p class=\"quiet\">{}; {}</p>", machine::now(), Escaped(&machine::describe()))?;
    let colours: HashMap<&str, &str> =
        summary.ops.iter().map(|op| op.op.as_str()).zip(COLOURS.iter().copied()).collect();
    runs_of(&runs, out)?;
    ops(summary, &colours, out)?;
    if let Some(run) = runs.get((runs.len().saturating_sub(1)) / 2) {
        one_run(timeline, run, runs.len(), &colours, out)?;
    }
    if summary.n_dropped > 0 {
        let n = summary.n_dropped;
        writeln!(
            out,
            "<p>{n} events were lost, because there was no room for more: the sums lack them.</p>"
        )?;
    }
    writeln!(out, "</body>\n</html>")
}

/// Writes how long runs took: the figures, and a histogram of several.
fn runs_of(runs: &[Slice], out: &mut String) -> fmt::Result {
    let times: Vec<u64> = runs.iter().map(|run| run.end_ns - run.begin_ns).collect();
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
        return writeln!(out, "<p>No run ended while the profile was recorded.</p>");
    };
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize] as f64;
    writeln!(out, "<h2>{}</h2>", count(times.len(), "run"))?;
    if times.len() > 1 {
        writeln!(
            out,
            "<p class=\"quiet\">All of them, those before the measurement too. A bar counts runs by duration.</p>"
        )?;
    }
    if times.len() == 1 {
        return writeln!(out, "<p>It took {}.</p>", duration(first as f64));
    }
    writeln!(
        out,
        "<p class=\"facts\"><span>median {}</span><span>90 % below {}</span><span>shortest {}</span><span>longest {}</span></p>",
        duration(at(0.5)),
        duration(at(0.9)),
        duration(first as f64),
        duration(last as f64)
    )?;
    let n_bars = BARS_MAX.min(times.len());
    // The longest run is in the last bar.
    let width_ns = ((last - first) as f64 / n_bars as f64).max(1.0);
    let mut bars = vec![0usize; n_bars];
    for &time in &times {
        bars[(((time - first) as f64 / width_ns) as usize).min(n_bars - 1)] += 1;
    }
    let most = bars.iter().copied().max().unwrap_or(1).max(1) as f64;
    let (height, base) = (120.0, 140.0);
    svg(base + 24.0, "Histogram of the runs' durations", out)?;
    let step = WIDTH / n_bars as f64;
    for (i, &n) in bars.iter().enumerate().filter(|(_, n)| **n > 0) {
        let (from, tall) = (first as f64 + i as f64 * width_ns, n as f64 / most * height);
        writeln!(
            out,
            "<g><title>{}: {} to {}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"#2f6f9f\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{n}</text></g>",
            count(n, "run"),
            duration(from),
            duration(from + width_ns),
            i as f64 * step + 1.0,
            base - tall,
            step - 2.0,
            (i as f64 + 0.5) * step,
            base - tall - 4.0
        )?;
    }
    for (x, anchor, ns) in [(0.0, "start", first as f64), (WIDTH, "end", last as f64)] {
        writeln!(
            out,
            "<text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
            base + 18.0,
            duration(ns)
        )?;
    }
    writeln!(out, "</svg>\n</div>")
}

/// Writes the time by op.
fn ops(summary: &Summary, colours: &HashMap<&str, &str>, out: &mut String) -> fmt::Result {
    writeln!(out, "<h2>Time by op</h2>")?;
    if let Some(share) = summary.not_in_kernels() {
        writeln!(
            out,
            "<p>{} of the runs' time was spent in kernels. The rest is starting kernels, copies and waiting.</p>",
            percent(1.0 - share)
        )?;
    }
    if summary.n_unmarked > 0 {
        let n = summary.n_unmarked;
        writeln!(
            out,
            "<p>The device did not say when {n} of its kernels ran: their time is not counted.</p>"
        )?;
    }
    writeln!(
        out,
        "<div class=\"table\">\n<table>\n<tr><th>Op</th><th class=\"number\">Nodes</th><th class=\"number\">Times run</th>\
         <th class=\"number\">Time</th><th class=\"number\">Share</th><th class=\"bar\"></th></tr>"
    )?;
    let most = summary.ops.first().map_or(1.0, |op| op.share).max(f64::MIN_POSITIVE);
    for op in &summary.ops {
        let colour = colours.get(op.op.as_str()).copied().unwrap_or(OTHER);
        writeln!(
            out,
            "<tr><td class=\"node\"><i class=\"chip\" style=\"background: {colour}\"></i>{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"bar\"><i style=\"width: {:.1}%; background: {colour}\"></i></td></tr>",
            Escaped(&op.op),
            op.n_nodes,
            op.n_launches,
            duration(op.total_ns as f64),
            percent(op.share),
            op.share / most * 100.0
        )?;
    }
    writeln!(out, "</table>\n</div>")
}

/// A slice of the timeline, or several that are too narrow to be drawn one by one.
struct Drawn<'c> {
    begin_ns: u64,
    end_ns: u64,
    colour: &'c str,
    title: String,
    n: usize,
}

/// Writes the timeline of one run, with a line for each thread and stream that worked on it.
fn one_run(
    timeline: &Timeline<'_>,
    run: &Slice,
    n_runs: usize,
    colours: &HashMap<&str, &str>,
    out: &mut String,
) -> fmt::Result {
    let which = if n_runs > 1 { "the run of median duration" } else { "the run" };
    writeln!(out, "<h2>Timeline of {which}</h2>")?;
    writeln!(
        out,
        "<p class=\"quiet\">A line is a thread, or a queue of a device. Colours are those of the ops above; light grey is \
         copying, waiting and handing kernels to a device. Point at a slice for its name and time.</p>"
    )?;
    let lines: Vec<(&Track, Vec<Drawn<'_>>)> = timeline
        .tracks
        .iter()
        .map(|track| (track, slices(timeline, track, run, colours)))
        .filter(|(_, slices)| !slices.is_empty())
        .collect();
    let (label, top) = (20.0, 22.0);
    let height = top + lines.len() as f64 * (LINE + label) + 4.0;
    svg(height, "Timeline", out)?;
    let ns = (run.end_ns - run.begin_ns).max(1) as f64;
    let x_of = |at_ns: u64| (at_ns.saturating_sub(run.begin_ns)) as f64 / ns * WIDTH;
    for i in 0..=4 {
        let (x, anchor) =
            (WIDTH * f64::from(i) / 4.0, ["start", "middle", "middle", "middle", "end"][i as usize]);
        writeln!(
            out,
            "<path d=\"M{x:.1} {top:.0} V{height:.0}\" stroke=\"#d5d5da\"/>\
             <text x=\"{x:.1}\" y=\"14\" text-anchor=\"{anchor}\" font-size=\"11\">{}</text>",
            duration(ns * f64::from(i) / 4.0)
        )?;
    }
    for (i, (track, slices)) in lines.iter().enumerate() {
        let y = top + i as f64 * (LINE + label);
        let name = match &track.device {
            Some(device) => format!("{device}, {}", track.name),
            None => format!("thread {}", track.name),
        };
        writeln!(out, "<text x=\"2\" y=\"{:.0}\" font-size=\"12\">{}</text>", y + 14.0, Escaped(&name))?;
        for slice in slices {
            let (from, to) = (x_of(slice.begin_ns), x_of(slice.end_ns));
            writeln!(
                out,
                "<g><title>{}: {}</title><rect x=\"{from:.2}\" y=\"{:.0}\" width=\"{:.2}\" height=\"{LINE:.0}\" fill=\"{}\"/></g>",
                Escaped(&slice.title),
                duration((slice.end_ns - slice.begin_ns) as f64),
                y + label - 1.0,
                (to - from).max(0.3),
                slice.colour
            )?;
        }
    }
    writeln!(out, "</svg>\n</div>")
}

/// Returns a track's innermost slices within a run, in order.
fn slices<'c>(
    timeline: &Timeline<'_>,
    track: &Track,
    run: &Slice,
    colours: &HashMap<&str, &'c str>,
) -> Vec<Drawn<'c>> {
    let ns = (run.end_ns - run.begin_ns).max(1) as f64;
    let width = |from: u64, to: u64| to.saturating_sub(from) as f64 / ns * WIDTH;
    let mut drawn: Vec<Drawn<'c>> = Vec::new();
    let within =
        track.slices.iter().filter(|slice| slice.begin_ns < run.end_ns && slice.end_ns > run.begin_ns);
    for slice in within {
        let (title, category) = timeline.title(slice);
        let colour = match category {
            "run" | "task" | "control" => continue,
            "kernel" => {
                let op = timeline.executed(slice).map(|(_, step)| step.op());
                op.and_then(|op| colours.get(op).copied()).unwrap_or(OTHER)
            }
            _ => QUIET,
        };
        let (begin_ns, end_ns) = (slice.begin_ns.max(run.begin_ns), slice.end_ns.min(run.end_ns));
        if let Some(last) = drawn.last_mut()
            && width(last.begin_ns, end_ns) < SLICE_MIN
        {
            last.n += 1;
            last.title = format!("{} in short succession", count(last.n, "slice"));
            last.end_ns = last.end_ns.max(end_ns);
            continue;
        }
        drawn.push(Drawn { begin_ns, end_ns, colour, title: title.into_owned(), n: 1 });
    }
    drawn
}

/// Begins a drawing of the whole width.
pub(super) fn svg(height: f64, label: &str, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "<div class=\"picture\">\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH:.0} {height:.0}\" style=\"min-width: 44rem\" role=\"img\" aria-label=\"{label}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\">"
    )
}
