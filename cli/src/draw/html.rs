//! A page for a browser: drawings in SVG, and every launch in a table. It loads nothing from the network and runs no script.
//! It is also well-formed XML, so that a parser can check it.

use super::page::{BOX_WIDTH, Page};
use super::{Drawn, Picture};
use devbay_host::internals::core::plan::report::{PlanReport, RatesFrom, SectionReport, StepReport};
use devbay_host::internals::core::units::{count, duration, percent};
use std::fmt::{self, Display, Write};
use std::path::Path;

/// Maximum number of rows of all tables together; more make a page slow on a phone.
const ROWS_MAX: usize = 3000;

/// Maximum characters of a line in a box: at 13 units, text of average letters takes 7.2 a character, and of wide ones 8.
const LINE_MAX: usize = 20;

/// Scale below which a drawing is not shrunk on a narrow screen: it scrolls then.
const SCALE_MIN: f64 = 0.6;

/// The look of all pages.
const STYLE: &str = "
:root { color-scheme: light; }
body { font: 16px/1.45 system-ui, sans-serif; color: #1b1b1f; background: #fff; margin: 0 auto; max-width: 64rem; padding: 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere; }
p { margin: .25rem 0; overflow-wrap: anywhere; }
.quiet { color: #5a5a62; }
.picture { overflow-x: auto; margin: .75rem 0; }
svg { display: block; max-width: 100%; height: auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; padding: .15rem .5rem .15rem 0; vertical-align: top; }
td.node { overflow-wrap: anywhere; min-width: 8rem; }
.number { text-align: right; white-space: nowrap; }
.bar { min-width: 4rem; width: 20%; }
.bar i { display: block; height: .7rem; margin-top: .3rem; background: #f2994a; min-width: 1px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
@media print { .picture { overflow: visible; } svg { max-width: 100%; height: auto; } rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
";

/// Returns a plan's tasks, edges and launches as a page; `file` is the model's.
pub fn html(report: &PlanReport, file: &Path) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = page(report, file, &mut out);
    out
}

/// Writes a page's head and title, with the look of all pages and some of its own.
pub fn head(out: &mut String, title: &str, style: &str) -> fmt::Result {
    let title = Escaped(title);
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>{STYLE}{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    )
}

fn page(report: &PlanReport, file: &Path, out: &mut String) -> fmt::Result {
    let picture = Picture::of(report);
    head(out, &format!("Plan of {}", file.display()), "")?;
    let (rates, launches) = (&report.conditions.rates, report.n_launches());
    writeln!(out, "<p>{}</p>", Escaped(&picture.title))?;
    writeln!(
        out,
        "<p>Estimated time in kernels: {}, for {}.</p>",
        duration(report.work_ns()),
        count(launches, "kernel")
    )?;
    writeln!(
        out,
        "<p class=\"quiet\">A box is a task: kernels that run one after another. Taller and darker boxes take longer. The red \
         boxes are the longest way from start to end; they bound how fast a run can be.</p>"
    )?;
    writeln!(
        out,
        "<p class=\"quiet\">Estimates assume {:.1} arithmetic operations and {:.1} bytes of memory a nanosecond, {:.1} ns to \
         start a kernel, and {} to pass work to another thread. {}</p>",
        rates.flops_per_ns,
        rates.bytes_per_ns,
        rates.launch_ns,
        duration(rates.hand_over_ns),
        match report.conditions.rates_from {
            RatesFrom::Options => "These speeds were given.",
            RatesFrom::Measured => "These speeds were measured on this machine.",
            RatesFrom::Default =>
                "These speeds are typical of such a device and not measured: `devbay devices --calibrate` measures them.",
        }
    )?;
    for (name, ty) in &report.inputs {
        writeln!(out, "<p class=\"quiet\">Input {} {}</p>", Escaped(name), Escaped(ty))?;
    }
    let mut rows_left = ROWS_MAX;
    for stage in &picture.stages {
        writeln!(out, "<h2>{}</h2>", Escaped(&stage.title))?;
        for note in &stage.notes {
            writeln!(out, "<p>{}</p>", Escaped(note))?;
        }
        if !stage.boxes.is_empty() {
            svg(stage, out)?;
        }
        if let Some(section) = stage.section {
            table(section, &mut rows_left, out)?;
        }
    }
    writeln!(out, "</body>\n</html>")
}

fn svg(stage: &Drawn<'_>, out: &mut String) -> fmt::Result {
    let Page { places, width, height } = Page::of(stage);
    // Attributes instead of styles, so that the drawing stays complete outside the page.
    writeln!(
        out,
        "<div class=\"picture\">\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" style=\"min-width: {:.0}px\" role=\"img\" aria-label=\"Tasks and their order\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">",
        SCALE_MIN * width
    )?;
    for &(from, to) in &stage.edges {
        let stroke = stroke(stage.boxes[from].on_path && stage.boxes[to].on_path);
        let (a, b) = (places[from], places[to]);
        let (x1, y1, x2, y2) = (a.x + BOX_WIDTH / 2.0, a.y + a.height, b.x + BOX_WIDTH / 2.0, b.y);
        let bend = ((y2 - y1) / 2.0).max(12.0);
        let (c1, c2) = (y1 + bend, y2 - bend);
        writeln!(
            out,
            "<path fill=\"none\" {stroke} d=\"M{x1:.0} {y1:.0} C{x1:.0} {c1:.0} {x2:.0} {c2:.0} {x2:.0} {y2:.0}\"/>"
        )?;
    }
    for (boxed, place) in stage.boxes.iter().zip(&places) {
        write!(out, "<g><title>{}", Escaped(&format!("{}: {}", boxed.name, boxed.cost)))?;
        for step in &boxed.steps {
            write!(out, "\n{}", Escaped(step))?;
        }
        let (x, y, height, fill) = (place.x, place.y, place.height, place.fill());
        let stroke = stroke(boxed.on_path);
        write!(
            out,
            "</title><rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{BOX_WIDTH:.0}\" height=\"{height:.0}\" rx=\"6\" \
             fill=\"{fill}\" {stroke}/>"
        )?;
        let lines = [("600", &boxed.name), ("400", &boxed.cost), ("400", &boxed.ops)];
        for (i, (weight, line)) in lines.into_iter().enumerate() {
            let (x, y) = (x + 8.0, y + 18.0 + 16.0 * i as f64);
            let line = cut(line);
            write!(
                out,
                "<text x=\"{x:.0}\" y=\"{y:.0}\" font-weight=\"{weight}\">{}</text>",
                Escaped(&line)
            )?;
        }
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</svg>\n</div>")
}

/// Returns the style of an edge or border: the critical path stands out, in grey print too.
fn stroke(on_path: bool) -> &'static str {
    if on_path {
        "stroke=\"#b3261e\" stroke-width=\"2.5\""
    } else {
        "stroke=\"#85858e\" stroke-width=\"1.2\""
    }
}

fn table(section: &SectionReport, rows_left: &mut usize, out: &mut String) -> fmt::Result {
    let most = section.tasks.iter().flat_map(|task| &task.steps).map(|step| step.cost_ns).fold(0.0, f64::max);
    writeln!(
        out,
        "<div class=\"table\">\n<table>\n<tr><th>Node</th><th class=\"number\">Task</th><th>Kernel</th>\
         <th class=\"number\">Estimate</th><th class=\"number\">Share</th><th class=\"bar\"></th></tr>"
    )?;
    // The most expensive first, so that what is left out does not matter.
    let steps = section.tasks.iter().enumerate();
    let mut steps: Vec<(usize, &StepReport)> =
        steps.flat_map(|(i, task)| task.steps.iter().map(move |step| (i, step))).collect();
    steps.sort_by(|(_, a), (_, b)| b.cost_ns.total_cmp(&a.cost_ns));
    let n_shown = steps.len().min(*rows_left);
    *rows_left -= n_shown;
    let mut n_omitted = steps.len() - n_shown;
    for &(task, step) in &steps[..n_shown] {
        writeln!(
            out,
            "<tr><td class=\"node\">{}</td><td class=\"number\">{task}</td><td>{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"bar\"><i style=\"width: {:.1}%\"></i></td></tr>",
            Escaped(&step.node),
            Escaped(&step.kernel),
            duration(step.cost_ns),
            percent(section.share(step.cost_ns)),
            if most > 0.0 { step.cost_ns / most * 100.0 } else { 0.0 }
        )?;
        inlined_rows(step, 1, rows_left, &mut n_omitted, out)?;
    }
    writeln!(out, "</table>\n</div>")?;
    if n_omitted > 0 {
        writeln!(
            out,
            "<p class=\"quiet\">{n_omitted} more kernels are not shown; they take less. The text form has all of them.</p>"
        )?;
    }
    Ok(())
}

/// Adds rows of the regions that a step runs, and subtracts them from the page's limit.
fn inlined_rows(
    step: &StepReport,
    depth: usize,
    rows_left: &mut usize,
    n_omitted: &mut usize,
    out: &mut String,
) -> fmt::Result {
    for region in &step.regions {
        for step in &region.steps {
            if *rows_left == 0 {
                *n_omitted += 1;
                continue;
            }
            *rows_left -= 1;
            writeln!(
                out,
                "<tr class=\"quiet\"><td class=\"node\" style=\"padding-left: {depth}rem\">{}: {}</td><td></td><td>{}</td>\
                 <td class=\"number\">{}</td><td class=\"number\">each time</td><td></td></tr>",
                region.name,
                Escaped(&step.node),
                Escaped(&step.kernel),
                duration(step.cost_ns)
            )?;
            inlined_rows(step, depth + 1, rows_left, n_omitted, out)?;
        }
    }
    Ok(())
}

/// Truncates a line to the width of a box.
fn cut(line: &str) -> String {
    if line.chars().count() <= LINE_MAX {
        return line.to_owned();
    }
    line.chars().take(LINE_MAX - 1).chain(['…']).collect()
}

/// Text escaped for HTML and XML.
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_str(" ")?,
                // XML does not allow these, not even escaped.
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Escaped, LINE_MAX, cut};

    #[test]
    fn what_has_a_meaning_is_escaped() {
        let hostile = "<script>\"a\" & 'b'\n\u{0}\u{ffff}";
        let expected = "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39; \u{fffd}\u{fffd}";
        assert_eq!(Escaped(hostile).to_string(), expected);
    }

    #[test]
    fn a_long_line_is_cut_at_characters() {
        assert_eq!(cut(&"ä".repeat(30)).chars().count(), LINE_MAX);
        assert_eq!(cut("short"), "short");
    }
}
