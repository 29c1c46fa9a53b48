//! A page that puts reports of several plugins beside each other: topics and ops down, plugins across.
//!
//! It is made of reports in JSON, so that every vendor's CI can hand in its own.

use super::Made;
use super::REPORT_VERSION;
use super::html::{escape, head, legend};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The part of a report that the page needs.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    report_version: u32,
    subject: String,
    plugin: Option<Plugin>,
    #[serde(default)]
    made: Option<Made>,
    level: Option<Level>,
    #[serde(default)]
    ops: Vec<Op>,
    tests: Vec<Test>,
}

#[derive(Clone, Debug, Deserialize)]
struct Plugin {
    name: String,
    version: String,
    vendor: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Level {
    grade: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Op {
    op: String,
    passed: usize,
    failed: usize,
    unsupported: usize,
    not_claimed: usize,
}

#[derive(Clone, Debug, Deserialize)]
struct Test {
    id: String,
    outcome: String,
}

/// Passed and failed tests, and how many tests the plugin claims and does not claim.
#[derive(Clone, Copy, Default)]
struct Count {
    passed: usize,
    failed: usize,
    claimed: usize,
    not_claimed: usize,
}

impl Entry {
    /// Reads a report.
    ///
    /// # Errors
    /// In words, for what is no report, or one of another version.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let entry: Self = serde_json::from_str(text).map_err(|error| format!("not a report: {error}"))?;
        if entry.report_version != REPORT_VERSION {
            return Err(format!(
                "the report has version {}, expected {REPORT_VERSION}",
                entry.report_version
            ));
        }
        Ok(entry)
    }

    fn topics(&self) -> BTreeMap<&str, Count> {
        let mut topics: BTreeMap<&str, Count> = BTreeMap::new();
        for test in &self.tests {
            let topic = test.id.split(['.', '/']).next().unwrap_or(&test.id);
            let count = topics.entry(topic).or_default();
            match test.outcome.as_str() {
                "passed" => (count.passed, count.claimed) = (count.passed + 1, count.claimed + 1),
                "failed" => (count.failed, count.claimed) = (count.failed + 1, count.claimed + 1),
                "unsupported" => count.claimed += 1,
                "not-claimed" => count.not_claimed += 1,
                // Skipped: the test could not be asked.
                _ => {}
            }
        }
        topics
    }
}

/// Writes the page; each report may have a link to its own page.
pub fn to_html(entries: &[(&Entry, Option<String>)]) -> String {
    let mut page = String::new();
    head(&mut page, "devbay conformance: plugins");
    page.push_str(
        "<h1>Plugins and their conformance</h1>\n<p>A fraction is the tests that passed, of those of what the plugin claims. \
         A dash stands for what it does not claim.</p>\n",
    );
    legend(&mut page);
    let mut columns = "<table class=\"matrix\"><thead><tr><th>".to_owned();
    for (entry, link) in entries {
        let (name, version) = match &entry.plugin {
            Some(plugin) => (plugin.name.as_str(), format!("{} by {}", plugin.version, plugin.vendor)),
            None => (entry.subject.as_str(), "not loaded".to_owned()),
        };
        let name = escape(name);
        let name =
            link.as_ref().map_or(name.clone(), |url| format!("<a href=\"{}\">{name}</a>", escape(url)));
        let _ = write!(columns, "<th>{name}<br><small>{}</small>", escape(&version));
    }
    columns.push_str("</tr></thead>\n<tbody>");
    page.push_str(&columns);
    page.push_str("<tr><th>level");
    for (entry, _) in entries {
        let grade = entry.level.as_ref().map_or("part", |level| level.grade.as_str());
        let class = match grade {
            "gold" | "silver" | "bronze" | "none" => grade,
            _ => "skipped",
        };
        let _ = write!(page, "<td class=\"{class}\"><b>{}</b>", escape(grade));
    }
    page.push_str("</tr>\n");
    for (title, part) in
        [("date", (|made| &made.date) as fn(&Made) -> &String), ("machine", |made| &made.machine)]
    {
        if entries.iter().any(|(entry, _)| entry.made.is_some()) {
            let _ = write!(page, "<tr><th>{title}");
            for (entry, _) in entries {
                let text = entry.made.as_ref().map_or("-", |made| part(made));
                let _ = write!(page, "<td class=\"made\">{}", escape(text));
            }
            page.push_str("</tr>\n");
        }
    }
    let topics: Vec<BTreeMap<&str, Count>> = entries.iter().map(|(entry, _)| entry.topics()).collect();
    let mut names: Vec<&str> = topics.iter().flat_map(BTreeMap::keys).copied().collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        row(&mut page, name, topics.iter().map(|topics| topics.get(name).copied().unwrap_or_default()));
    }
    page.push_str("</tbody></table>\n<h2>Ops of ONNX's node tests</h2>\n");
    page.push_str(&columns);
    page.push('\n');
    let ops: Vec<BTreeMap<&str, Count>> = entries.iter().map(|(entry, _)| ops_of(entry)).collect();
    let mut names: Vec<&str> = ops.iter().flat_map(BTreeMap::keys).copied().collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        row(&mut page, name, ops.iter().map(|ops| ops.get(name).copied().unwrap_or_default()));
    }
    page.push_str("</tbody></table>\n</main></body></html>\n");
    page
}

fn ops_of(entry: &Entry) -> BTreeMap<&str, Count> {
    let count = |op: &Op| Count {
        passed: op.passed,
        failed: op.failed,
        claimed: op.passed + op.failed + op.unsupported,
        not_claimed: op.not_claimed,
    };
    entry.ops.iter().map(|op| (op.op.as_str(), count(op))).collect()
}

fn row(page: &mut String, name: &str, counts: impl Iterator<Item = Count>) {
    let _ = write!(page, "<tr><th>{}", escape(name));
    for count in counts {
        let (class, text) = match count {
            Count { claimed: 0, not_claimed: 0, .. } => ("skipped", String::new()),
            Count { claimed: 0, .. } => ("not-claimed", "-".to_owned()),
            Count { failed: 1.., .. } => {
                ("failed", format!("{} failed, {}/{}", count.failed, count.passed, count.claimed))
            }
            Count { passed: 0, .. } => ("unsupported", format!("0/{}", count.claimed)),
            _ => ("passed", format!("{}/{}", count.passed, count.claimed)),
        };
        let _ = write!(page, "<td class=\"{class}\">{text}");
    }
    page.push_str("</tr>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, outcome: &str) -> String {
        format!(
            r#"{{"report_version": 1, "subject": "a.so", "plugin": {{"name": "{name}", "version": "1", "vendor": "v"}},
                "level": {{"grade": "silver"}},
                "made": {{"date": "2026-11-28", "machine": "a <machine>"}},
                "ops": [{{"op": "Add", "passed": 2, "failed": 0, "unsupported": 1, "not-claimed": 5}},
                        {{"op": "Tan", "passed": 0, "failed": 0, "unsupported": 0, "not-claimed": 2}}],
                "tests": [{{"id": "load.entry", "outcome": "{outcome}"}}, {{"id": "load.more", "outcome": "not-claimed"}},
                          {{"id": "load.other", "outcome": "skipped"}}]}}"#
        )
    }

    #[test]
    fn plugins_stand_beside_each_other() {
        let entry = |name, outcome| Entry::from_json(&text(name, outcome)).expect("a report");
        let page = to_html(&[
            (&entry("one", "passed"), Some("one.html".to_owned())),
            (&entry("<two>", "failed"), None),
        ]);
        assert!(page.contains("<a href=\"one.html\">one</a>") && page.contains("&lt;two&gt;"));
        let load = page.lines().find(|line| line.starts_with("<tr><th>load")).expect("a row of the topic");
        assert_eq!(load, "<tr><th>load<td class=\"passed\">1/1<td class=\"failed\">1 failed, 0/1</tr>");
        // Of three that are claimed; five more are not.
        assert!(page.contains("<tr><th>Add<td class=\"passed\">2/3<td class=\"passed\">2/3</tr>"));
        assert!(page.contains("<tr><th>Tan<td class=\"not-claimed\">-<td class=\"not-claimed\">-</tr>"));
        assert!(page.contains("a &lt;machine&gt;") && page.contains("2026-11-28"));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(Entry::from_json("{}").is_err_and(|words| words.contains("report_version")));
        let other = text("a", "passed").replace("\"report_version\": 1", "\"report_version\": 99");
        assert!(Entry::from_json(&other).is_err_and(|words| words.contains("version 99")));
    }
}
