//! The report as one page that needs nothing else: no script, no font, no picture. It reads on a phone and in print.

use super::{Report, Summary, Test};
use std::fmt::Write;

/// Where a page's links to rules lead, unless it is told otherwise.
pub const RULES_URL: &str = "https://github.com/devbay/devbay/blob/main/docs/abi-rules.md";

/// The page's look, shared with the index.
pub(super) const STYLE: &str = include_str!("style.css");

/// Escapes a text, for between tags and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that no HTML may have; plugins choose their words.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Writes the page; `rules_url` is the document that rules' numbers link to.
pub fn to_html(report: &Report, rules_url: &str) -> String {
    let mut page = String::new();
    let name = report.plugin.as_ref().map_or(report.subject.as_str(), |plugin| plugin.name.as_str());
    head(&mut page, &format!("{name}: devbay conformance"));
    title(&mut page, report, name);
    tiles(&mut page, &report.summary());
    legend(&mut page);
    failures(&mut page, report, rules_url);
    ops(&mut page, report);
    page.push_str("<h2>Every test</h2>\n");
    for (topic, tests) in report.topics() {
        let summary = Summary::of(tests.iter().copied());
        let open = if summary.failed > 0 { " open" } else { "" };
        let _ = writeln!(
            page,
            "<details{open}><summary><b>{}</b> {}</summary>\n<table><thead><tr><th>test<th>rules<th>outcome\
             <th>requirement and reason</tr></thead><tbody>",
            escape(topic),
            counts(&summary)
        );
        tests.iter().for_each(|test| row(&mut page, test, rules_url));
        page.push_str("</tbody></table></details>\n");
    }
    page.push_str("</main></body></html>\n");
    page
}

/// Everything before a page's content.
pub(super) fn head(page: &mut String, title: &str) {
    let _ = writeln!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body><main>",
        escape(title)
    );
}

fn title(page: &mut String, report: &Report, name: &str) {
    let _ = writeln!(page, "<h1>{}</h1>", escape(name));
    if let Some(level) = report.level() {
        let grade = level.grade.name();
        let _ = writeln!(page, "<p class=\"level {grade}\">{}</p>", escape(&level.line()));
    }
    let mut facts = vec![("file", report.subject.clone())];
    match &report.plugin {
        None => facts.push(("plugin", "unknown: it did not describe itself".to_owned())),
        Some(plugin) => {
            let (min, max) = plugin.abi_minors;
            facts.push(("version", format!("{} by {}", plugin.version, plugin.vendor)));
            facts.push(("ABI", format!("0.{min} to 0.{max}, agreed on 0.{}", plugin.abi_minor)));
            facts.push(("threading", plugin.threading.clone()));
            facts.push(("claims", format!("{}; {} kernels", plugin.profiles.join(", "), plugin.n_kernels)));
            let untested: Vec<&str> = plugin.claims_untested().collect();
            if !untested.is_empty() {
                facts.push((
                    "not judged",
                    format!("{}: this suite has no tests for them", untested.join(", ")),
                ));
            }
        }
    }
    if let Some(nodes) = report.node_summary() {
        let Summary { passed, not_claimed, .. } = nodes.plugin;
        let text = format!(
            "{passed} of {} passed; {not_claimed} more of ops without a kernel, {} of ops that the host runs",
            nodes.plugin.claimed(),
            nodes.host
        );
        facts.push(("ONNX's node tests", text));
    }
    if let Some(made) = &report.made {
        facts.push(("date", made.date.clone()));
        facts.push(("machine", made.machine.clone()));
    }
    facts.push(("suite", format!("devbay {}", env!("CARGO_PKG_VERSION"))));
    page.push_str("<dl>");
    for (term, text) in facts {
        let _ = write!(page, "<div><dt>{}<dd>{}</div>", escape(term), escape(&text));
    }
    page.push_str("</dl>\n");
}

fn tiles(page: &mut String, summary: &Summary) {
    page.push_str("<div class=\"tiles\">");
    for (class, n) in named(summary) {
        let _ = write!(page, "<div class=\"{class}\"><b>{n}</b>{class}</div>");
    }
    page.push_str("</div>\n");
}

/// The meaning of each outcome.
const LEGEND: [(&str, &str); 5] = [
    ("passed", "does what the rule or the op requires"),
    ("failed", "does something else, crashes, or does not end"),
    ("unsupported", "claimed, and refused in this case, as a plugin may"),
    ("not-claimed", "not offered by the plugin, such as an op without a kernel"),
    ("skipped", "could not be asked: the reason is at the test"),
];

/// Adds the meanings of the outcomes.
pub(super) fn legend(page: &mut String) {
    page.push_str("<p class=\"legend\">");
    for (outcome, meaning) in LEGEND {
        let _ = write!(page, "<span><i class=\"{outcome}\">{outcome}</i>: {meaning}</span> ");
    }
    page.push_str("</p>\n");
}

fn named(summary: &Summary) -> [(&'static str, usize); 5] {
    [
        ("passed", summary.passed),
        ("failed", summary.failed),
        ("unsupported", summary.unsupported),
        ("not-claimed", summary.not_claimed),
        ("skipped", summary.skipped),
    ]
}

/// Returns the counts that are not 0, in words.
pub(super) fn counts(summary: &Summary) -> String {
    let some = named(summary).into_iter().filter(|(_, n)| *n > 0);
    let words: Vec<String> = some.map(|(class, n)| format!("<i class=\"{class}\">{n} {class}</i>")).collect();
    words.join(" ")
}

fn failures(page: &mut String, report: &Report, rules_url: &str) {
    if report.failures().next().is_none() {
        return;
    }
    page.push_str("<h2>Failures</h2>\n");
    for test in report.failures() {
        let _ = writeln!(
            page,
            "<section class=\"failure\"><h3>{} {}</h3><p>Required: {}.</p><p class=\"reason\">{}</p>",
            escape(&test.id),
            rules(test, rules_url),
            escape(&test.requires),
            escape(test.verdict.reason().unwrap_or_default())
        );
        if let Some(command) = &test.reproduce {
            let _ = writeln!(page, "<pre>{}</pre>", escape(command));
        }
        page.push_str("</section>\n");
    }
}

/// ONNX's ops, and how many tests of each pass.
fn ops(page: &mut String, report: &Report) {
    let ops = report.ops();
    if ops.is_empty() {
        return;
    }
    let claimed = ops.iter().filter(|op| op.claimed()).count();
    let _ = writeln!(
        page,
        "<h2>Ops of ONNX's node tests: {claimed} of {} claimed</h2>\n<p>Each op has the number of its tests that passed, of \
         those that the plugin claims.</p>\n<ul class=\"ops\">",
        ops.len()
    );
    for op in ops {
        let summary = &op.summary;
        let n = summary.claimed();
        let class = match summary {
            Summary { failed: 1.., .. } => "failed",
            Summary { passed: 0, unsupported: 1.., .. } => "unsupported",
            Summary { passed: 0, .. } => "not-claimed",
            _ if summary.passed < n => "partly",
            _ => "passed",
        };
        let what = match n {
            0 if summary.not_claimed > 0 => "-".to_owned(),
            0 => "host".to_owned(),
            n => format!("{}/{n}", summary.passed),
        };
        let _ = write!(page, "<li class=\"{class}\">{} <small>{what}</small>", escape(&op.op));
    }
    page.push_str("</ul>\n");
}

fn rules(test: &Test, rules_url: &str) -> String {
    let link = |rule: &&str| {
        let url = escape(&format!("{rules_url}#{}", rule.to_lowercase()));
        format!("<a href=\"{url}\">{}</a>", escape(rule))
    };
    test.rules.iter().map(link).collect::<Vec<_>>().join(" ")
}

fn row(page: &mut String, test: &Test, rules_url: &str) {
    let outcome = test.verdict.outcome();
    let words = test.verdict.reason().or(test.note.as_deref());
    let reason =
        words.map(|words| format!("<br><span class=\"reason\">{}</span>", escape(words))).unwrap_or_default();
    let _ = writeln!(
        page,
        "<tr id=\"{id}\"><td><code>{id}</code><td>{}<td class=\"{outcome}\">{outcome}<td>{}{reason}</tr>",
        rules(test, rules_url),
        escape(&test.requires),
        id = escape(&test.id)
    );
}
