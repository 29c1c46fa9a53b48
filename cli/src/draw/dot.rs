//! Graphviz drawings: `dot -Tsvg plan.dot`.

use super::Picture;
use devbay_host::internals::core::plan::report::PlanReport;
use std::fmt::Write;

/// Returns a plan's tasks and edges in Graphviz's language.
pub fn dot(report: &PlanReport) -> String {
    let picture = Picture::of(report);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&picture, &mut out);
    out
}

fn draw(picture: &Picture<'_>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "digraph plan {{")?;
    writeln!(
        out,
        "  graph [label={}, labelloc=t, fontname=\"sans-serif\", compound=true];",
        quoted(&picture.title)
    )?;
    writeln!(out, "  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\"];")?;
    for (s, stage) in picture.stages.iter().enumerate() {
        let label = [std::slice::from_ref(&stage.title), &stage.notes].concat().join("\n");
        writeln!(out, "  subgraph cluster_{s} {{\n    label={};", quoted(&label))?;
        if stage.boxes.is_empty() {
            writeln!(out, "    s{s}_0 [label={}, style=\"rounded,dashed\"];", quoted("no task yet"))?;
        }
        for (i, boxed) in stage.boxes.iter().enumerate() {
            let label = quoted(&format!("{}\n{}\n{}", boxed.name, boxed.cost, boxed.ops));
            let colour = if boxed.on_path { ", color=\"#b3261e\", penwidth=2" } else { "" };
            writeln!(
                out,
                "    s{s}_{i} [label={label}, tooltip={}{colour}];",
                quoted(&boxed.steps.join("\n"))
            )?;
        }
        for (from, to) in &stage.edges {
            writeln!(out, "    s{s}_{from} -> s{s}_{to};")?;
        }
        writeln!(out, "  }}")?;
    }
    // Chain the stages.
    for s in 1..picture.stages.len() {
        let last = picture.stages[s - 1].boxes.len().saturating_sub(1);
        writeln!(
            out,
            "  s{}_{last} -> s{s}_0 [style=dashed, ltail=cluster_{}, lhead=cluster_{s}];",
            s - 1,
            s - 1
        )?;
    }
    writeln!(out, "}}")
}

/// Quotes text. Backslashes are doubled, because labels give `\N` and the like a meaning.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn what_has_a_meaning_is_escaped() {
        assert_eq!(quoted("a \"b\" \\N\n\u{0}"), "\"a \\\"b\\\" \\\\N\\n\u{fffd}\"");
    }
}
