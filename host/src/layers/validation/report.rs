//! Reports: violations of the ABI's rules as data.
//!
//! Violations are counted by plugin, rule, function and side; an entry keeps the words of its first occurrence. The
//! list is bounded, because a wrong loop is wrong a million times. Each entry is logged once.

use devbay_core::services::{LogLevel, LogSink};
use devbay_plugin_api::locks::lock;
use serde::Serialize;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum number of entries. Further kinds of violations are only counted.
const VIOLATIONS_MAX: usize = 256;

/// The side that broke a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The caller of the plugin.
    Host,
    /// The plugin.
    Plugin,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Plugin => "plugin",
        })
    }
}

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    /// The rule's number in `docs/abi-rules.md`, for example `B12`.
    pub rule: &'static str,
    /// The side that broke it.
    pub by: Side,
    /// The plugin that was called, or that called the host.
    pub plugin: String,
    /// The function of the ABI in which the violation was found.
    pub function: &'static str,
    /// Expected and found values of the first occurrence.
    pub words: String,
    /// Number of occurrences.
    pub count: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, by, plugin, function, words, count } = self;
        write!(f, "{rule} broken by the {by}, plugin {plugin}, {function}: {words}")?;
        match count {
            1 => Ok(()),
            count => write!(f, " ({count} times)"),
        }
    }
}

/// Violations of all plugins wrapped with this report. Clones share them and outlive runtime and plugins, so violations
/// found at shutdown can still be read.
#[derive(Clone, Default)]
pub struct Report {
    list: Arc<Mutex<List>>,
}

#[derive(Default)]
struct List {
    violations: Vec<Violation>,
    n_lost: u64,
}

impl Report {
    /// Returns the violations found so far, in order of first occurrence.
    pub fn violations(&self) -> Vec<Violation> {
        self.list().violations.clone()
    }

    /// Returns whether there are no violations.
    pub fn is_clean(&self) -> bool {
        self.list().violations.is_empty()
    }

    /// Returns the number of violations without an entry, because the list was full.
    pub fn n_lost(&self) -> u64 {
        self.list().n_lost
    }

    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    /// Records a violation, and logs it if it is the first of its kind. The caller must hold no lock, because the log
    /// is the application's code.
    pub(super) fn add(&self, found: Violation, log: Option<&LogSink>) {
        let mut list = self.list();
        let same = |known: &&mut Violation| {
            known.rule == found.rule
                && known.by == found.by
                && known.function == found.function
                && known.plugin == found.plugin
        };
        if let Some(known) = list.violations.iter_mut().find(same) {
            known.count += 1;
            return;
        }
        if list.violations.len() == VIOLATIONS_MAX {
            list.n_lost += 1;
            return;
        }
        list.violations.push(found.clone());
        drop(list);
        if let Some(log) = log {
            let text = format!("validation: {found}");
            let sink = std::panic::AssertUnwindSafe(|| log(&found.plugin, LogLevel::Error, &text));
            if let Err(payload) = std::panic::catch_unwind(sink) {
                // Nothing may unwind into a plugin (B19), and dropping a foreign payload could panic again.
                std::mem::forget(payload);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn violation(rule: &'static str, words: &str) -> Violation {
        let (by, plugin, words) = (Side::Host, "p".to_owned(), words.to_owned());
        Violation { rule, by, plugin, function: "copy", words, count: 1 }
    }

    #[test]
    fn equal_violations_are_counted_and_logged_once() {
        let n_logged = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_logged);
        let log: LogSink = Arc::new(move |_, _, _| {
            counter.fetch_add(1, Ordering::Relaxed);
            panic!("a sink that panics");
        });
        let report = Report::default();
        assert!(report.is_clean());
        report.add(violation("B9", "first"), Some(&log));
        report.add(violation("B9", "second"), Some(&log));
        report.add(violation("B10", "third"), Some(&log));
        let found = report.violations();
        assert_eq!(found.iter().map(|v| v.count).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(found[0].to_string(), "B9 broken by the host, plugin p, copy: first (2 times)");
        assert_eq!(n_logged.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_list_is_bounded() {
        let report = Report::default();
        for i in 0..VIOLATIONS_MAX + 3 {
            report.add(Violation { plugin: i.to_string(), ..violation("B9", "") }, None);
        }
        assert_eq!((report.violations().len(), report.n_lost()), (VIOLATIONS_MAX, 3));
    }
}
