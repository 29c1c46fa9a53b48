//! `--profile FILE`: writes a timeline of the runs, and prints its main figures.

use crate::{failure, say, table, tell};
use anyhow::Result;
use devbay_host::internals::core::units::percent;
use devbay_host::trace::{self, OpTime, Recorder, Summary, Timeline};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Maximum number of listed ops, slowest first.
const OPS_SHOWN: usize = 10;

/// Arguments for the timeline.
#[derive(clap::Args)]
pub struct ProfileArguments {
    /// Write a timeline for ui.perfetto.dev or chrome://tracing, and list the slowest ops
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

/// A timeline that is being recorded.
pub struct Profile {
    path: PathBuf,
    recorder: Recorder,
}

impl ProfileArguments {
    /// Starts recording; None if no timeline was requested.
    pub fn start(&self) -> Option<Profile> {
        self.profile.clone().map(|path| Profile { path, recorder: Recorder::default() })
    }
}

impl Profile {
    /// Returns the recorder for the runtime and the session.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Writes the file; returns its summary.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(&self) -> Result<Summary> {
        let recording = self.recorder.take();
        let timeline = Timeline::of(&recording);
        trace::write_file(&self.path, &timeline)?;
        Ok(Summary::of(&timeline))
    }

    /// Writes the file after a failure, to show how far the run came. Prints the outcome on standard error, and leaves the
    /// failure to the caller, since that decides the exit code.
    pub fn finish_failed(&self) {
        match self.finish() {
            Ok(_) => tell!("timeline until the failure written to {}", self.path.display()),
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
        say!("timeline written to {}: open it at https://ui.perfetto.dev", self.path.display());
    }

    /// Returns a summary as JSON.
    pub fn json(&self, summary: &Summary) -> Value {
        let ops: Vec<Value> = summary
            .ops
            .iter()
            .map(|op| {
                json!({ "op": op.op, "nodes": op.n_nodes, "launches": op.n_launches, "total_ns": op.total_ns,
                        "share": op.share })
            })
            .collect();
        json!({
            "file": self.path, "runs": summary.n_runs, "wall_ns": summary.wall_ns, "kernel_ns": summary.kernel_ns,
            "busy_ns": summary.busy_ns, "available_ns": summary.available_ns, "not_in_kernels": summary.not_in_kernels(),
            "unmarked_launches": summary.n_unmarked, "lost_events": summary.n_dropped, "ops": ops,
        })
    }
}
