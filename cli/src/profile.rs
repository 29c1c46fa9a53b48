//! `--profile FILE`: writes a timeline of the runs, or a page about them, and prints their main figures.

use crate::{draw, failure, say, table, tell};
use anyhow::{Context, Result};
use devbay_host::internals::core::units::percent;
use devbay_host::internals::file::write_bytes;
use devbay_host::trace::{self, OpTime, Recorder, Summary, Timeline};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Maximum number of listed ops, slowest first.
const OPS_SHOWN: usize = 10;

/// Arguments for the timeline.
#[derive(clap::Args)]
pub struct ProfileArguments {
    /// Write a timeline for ui.perfetto.dev or chrome://tracing, and list the slowest ops. FILE.html is a page of its own for
    /// a browser, without a network; may be repeated
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
}

/// A timeline that is being recorded.
pub struct Profile {
    paths: Vec<PathBuf>,
    /// Name of the model, for the page.
    model: String,
    recorder: Recorder,
}

impl ProfileArguments {
    /// Starts recording the runs of a model; None if no timeline was requested.
    pub fn start(&self, model: &Path) -> Option<Profile> {
        (!self.profile.is_empty()).then(|| Profile {
            paths: self.profile.clone(),
            model: model.display().to_string(),
            recorder: Recorder::default(),
        })
    }
}

/// Returns whether a file is to be a page, by its extension.
fn is_page(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["html", "htm"].contains(&extension.to_ascii_lowercase().as_str()))
}

impl Profile {
    /// Returns the recorder for the runtime and the session.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Writes the files; returns their summary.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn finish(&self) -> Result<Summary> {
        let recording = self.recorder.take();
        let timeline = Timeline::of(&recording);
        let summary = Summary::of(&timeline);
        for path in &self.paths {
            if is_page(path) {
                let page = draw::timeline(&self.model, &timeline, &summary);
                write_bytes(path, page.as_bytes())
                    .with_context(|| format!("cannot write {}", path.display()))?;
            } else {
                trace::write_file(path, &timeline)?;
            }
        }
        Ok(summary)
    }

    /// Returns the files' names.
    fn files(&self) -> String {
        self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    }

    /// Writes the files after a failure, to show how far the run came. Prints the outcome on standard error, and leaves the
    /// failure to the caller, since that decides the exit code.
    pub fn finish_failed(&self) {
        match self.finish() {
            Ok(_) => tell!("timeline until the failure written to {}", self.files()),
            Err(error) => failure::report(&error),
        }
    }

    /// Prints a summary.
    pub fn print(&self, summary: &Summary) {
        say!();
        let row = |op: &OpTime| {
            let (nodes, launches) = (op.n_nodes.to_string(), op.n_launches.to_string());
            vec![op.op.clone(), nodes, launches, table::duration(op.total_ns as f64), percent(op.share)]
        };
        let rows: Vec<Vec<String>> = summary.ops.iter().take(OPS_SHOWN).map(row).collect();
        table::print(&["OP", ">NODES", ">LAUNCHES", ">TIME", ">OF KERNELS"], &rows);
        if let Some(share) = summary.not_in_kernels() {
            let runs = if summary.n_runs == 1 { "the run" } else { "the runs" };
            let places = if summary.n_places > 1 {
                format!(", times up to {} threads and devices", summary.n_places)
            } else {
                String::new()
            };
            say!(
                "\n{} of the time of {runs} was not spent in kernels ({} of {}{places})",
                percent(share),
                table::duration(summary.available_ns as f64 - summary.busy_ns as f64),
                table::duration(summary.wall_ns as f64)
            );
        }
        if summary.n_unmarked > 0 {
            let n = summary.n_unmarked;
            say!("the device did not say when {n} of its launches ran: their time is not counted");
        }
        if summary.n_dropped > 0 {
            say!(
                "{} events were lost, because there was no room for more: the sums lack them",
                summary.n_dropped
            );
        }
        let tool = |path: &PathBuf| if is_page(path) { "in a browser" } else { "at https://ui.perfetto.dev" };
        for path in &self.paths {
            say!("timeline written to {}: open it {}", path.display(), tool(path));
        }
    }

    /// Returns a summary as JSON.
    pub fn json(&self, summary: &Summary) -> Value {
        let mut json = summary.json();
        json["files"] = json!(self.paths);
        json
    }
}
