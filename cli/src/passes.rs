//! `devbay inspect MODEL --passes` and `devbay bench MODEL --passes`: the changes of passes over the program, and their
//! savings.
//!
//! A pass is judged by leaving it out. A session without it is compared with one with all enabled passes, as predicted by
//! their plans and as measured by alternating runs. Passes depend on each other, so their savings do not add up to the
//! total. If a prediction or run is impossible, the row gives the reason instead of a figure.

use crate::bench::once;
use crate::{say, table};
use anyhow::Result;
use devbay_host::internals::core::passes::{Applied, Switches};
use devbay_host::internals::core::plan::Plan;
use devbay_host::internals::core::plan::report::PlanReport;
use devbay_host::{Device, ErrorKind, Model, RunOptions, Session, SessionOptions, Tensor};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model with its passes, and without each pass that changed it.
pub struct Passes {
    /// Number of nodes of the model, and of its planned program.
    nodes: (usize, usize),
    /// The plan with all enabled passes.
    on: Figures,
    rows: Vec<Row>,
    /// The model without any pass.
    none: Without,
}

/// A pass.
struct Row {
    name: &'static str,
    is_on: bool,
    /// Its changes; None if it did not run.
    applied: Option<Applied>,
    /// The model without it; None if that is the same model.
    without: Option<Without>,
}

/// A model without a pass, or the reason why that is impossible.
type Without = Result<Off, String>;

struct Off {
    plan: Figures,
    measured: Option<Measured>,
}

/// Figures of a plan.
#[derive(Clone, Copy)]
struct Figures {
    launches: usize,
    work_ns: f64,
    /// Number of stages that are planned when reached; launches and work exclude them.
    unplanned: usize,
}

/// Median nanoseconds of runs with and without a pass, in turn.
struct Measured {
    pairs: usize,
    off_ns: f64,
    on_ns: f64,
    /// Lower quartile, median and upper quartile of the pairs' differences.
    saves_ns: [f64; 3],
}

/// Common properties of the sessions.
pub struct Subject<'a> {
    /// The model.
    pub model: &'a Model,
    /// The device that sessions are made for.
    pub device: &'a Arc<Device>,
    /// Their options; passes that are off here are off in all of them.
    pub options: &'a SessionOptions,
    /// Returns a session's plan for the inputs in question.
    pub plan: &'a dyn Fn(&Session) -> devbay_host::Result<Arc<Plan>>,
}

/// Settings for measured runs.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// Inputs by name.
    pub given: &'a [(&'a str, &'a Tensor)],
    /// Deadline and cancellation of runs.
    pub options: &'a RunOptions,
    /// Pairs of runs per comparison; 0 for as many as fit the time, but at least five.
    pub pairs: usize,
    /// Seconds per comparison.
    pub seconds: f64,
    /// Initial pairs that are not counted.
    pub warmup: usize,
}

impl Passes {
    /// Plans the model with all enabled passes, without each pass that changed it, and without any; measures all of these if
    /// `runs` is given.
    ///
    /// # Errors
    /// Errors that keep the model from running with all enabled passes; cancelled.
    pub fn of(subject: &Subject<'_>, runs: Option<Runs<'_>>) -> Result<Self> {
        let switches = &subject.options.plans.passes;
        let session = subject.session(switches)?;
        let plan = (subject.plan)(&session)?;
        let on = Figures::of(&session.plan_report(&plan));
        let applied = session.passes(&plan);
        let mut rows = Vec::new();
        for name in Switches::names() {
            let applied = applied.iter().find(|applied| applied.name == name).copied();
            let did = applied.is_some_and(|applied| applied.changes > 0);
            let off = |other: &&str| *other == name || !switches.runs(other);
            let without = match did {
                true => {
                    let switches = Switches::without(Switches::names().filter(off))?;
                    Some(subject.without(&session, &switches, runs)?)
                }
                false => None,
            };
            rows.push(Row { name, is_on: switches.runs(name), applied, without });
        }
        let none = subject.without(&session, &Switches::none(), runs)?;
        Ok(Self { nodes: (subject.model.program().n_nodes(), plan.program.n_nodes()), on, rows, none })
    }

    /// Returns them as JSON.
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "name": row.name, "doc": Switches::doc(row.name), "on": row.is_on,
                "changes": row.applied.map(|applied| applied.changes),
                "nodes_before": row.applied.map(|applied| applied.before),
                "nodes_after": row.applied.map(|applied| applied.after),
                "without": row.without.as_ref().map(|without| self.without_json(without)),
            })
        };
        json!({
            "nodes_before": self.nodes.0, "nodes_after": self.nodes.1, "launches": self.on.launches,
            "work_ns": self.on.work_ns, "unplanned_stages": self.on.unplanned,
            "passes": self.rows.iter().map(row).collect::<Vec<_>>(), "without_all": self.without_json(&self.none),
        })
    }

    fn without_json(&self, without: &Without) -> Value {
        let off = match without {
            Ok(off) => off,
            Err(why) => return json!({ "error": why }),
        };
        let measured = off.measured.as_ref().map(|measured| {
            let [low, median, high] = measured.saves_ns;
            json!({
                "pairs": measured.pairs, "off_ns": measured.off_ns, "on_ns": measured.on_ns,
                "saves_ns": median, "saves_low_ns": low, "saves_high_ns": high,
            })
        });
        json!({
            "launches": off.plan.launches, "work_ns": off.plan.work_ns, "unplanned_stages": off.plan.unplanned,
            "predicted_saves_ns": self.predicted(off), "measured": measured,
        })
    }

    /// Returns the predicted saving in nanoseconds; None if either plan leaves a part of the model for run time.
    fn predicted(&self, off: &Off) -> Option<f64> {
        let is_whole = off.plan.unplanned == 0 && self.on.unplanned == 0;
        is_whole.then_some(off.plan.work_ns - self.on.work_ns)
    }

    /// Prints a table.
    pub fn print(&self) {
        let is_measured = self
            .rows
            .iter()
            .filter_map(|row| row.without.as_ref())
            .chain([&self.none])
            .any(|without| matches!(without, Ok(off) if off.measured.is_some()));
        let mut head =
            vec!["PASS", ">CHANGES", ">NODES", ">AFTER", ">LAUNCHES WITHOUT", ">WITH", ">SAVES, PREDICTED"];
        if is_measured {
            head.extend([">WITHOUT", ">WITH", ">SAVES, MEASURED", ">QUARTILES"]);
        }
        let mut rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                let mut cells = vec![row.name.to_owned()];
                match row.applied {
                    Some(applied) => {
                        cells.extend([applied.changes, applied.before, applied.after].map(|n| n.to_string()));
                    }
                    // A pass may be on and change nothing.
                    None if row.is_on => cells.push("0".to_owned()),
                    None => cells.push("off".to_owned()),
                }
                cells.extend(row.without.iter().flat_map(|without| self.cells(without)));
                cells
            })
            .collect();
        let (before, after) = self.nodes;
        let mut all = vec!["all".to_owned(), String::new(), before.to_string(), after.to_string()];
        all.extend(self.cells(&self.none));
        rows.push(all);
        table::print(&head, &rows);
        for (name, without) in self.rows.iter().filter_map(|row| Some((row.name, row.without.as_ref()?))) {
            self.remark(name, without);
        }
        self.remark("any pass", &self.none);
    }

    fn cells(&self, without: &Without) -> Vec<String> {
        let Ok(off) = without else {
            return vec!["fails".to_owned()];
        };
        let predicted = self.predicted(off).map_or("unknown".to_owned(), |saves| {
            let share = if off.plan.work_ns > 0.0 { saves / off.plan.work_ns } else { 0.0 };
            format!("{} ({:.1} %)", signed(saves), share * 100.0)
        });
        let mut cells = vec![off.plan.launches.to_string(), self.on.launches.to_string(), predicted];
        if let Some(measured) = &off.measured {
            let [low, median, high] = measured.saves_ns;
            cells.extend([
                table::duration(measured.off_ns),
                table::duration(measured.on_ns),
                format!("{} ({:.1} %)", signed(median), median / measured.off_ns * 100.0),
                format!("{} to {}", signed(low), signed(high)),
            ]);
        }
        cells
    }

    /// Prints remarks on the row of a pass.
    fn remark(&self, name: &str, without: &Without) {
        match without {
            Err(why) => say!("without {name} the model does not run: {why}"),
            Ok(off) if self.predicted(off).is_none() => say!(
                "without {name} {} stages are planned when they are reached, with passes {}: nothing is predicted",
                off.plan.unplanned,
                self.on.unplanned
            ),
            Ok(_) => {}
        }
    }
}

impl Subject<'_> {
    fn session(&self, switches: &Switches) -> devbay_host::Result<Session> {
        let mut options = self.options.clone();
        options.plans.passes = switches.clone();
        Session::with_options(self.model, self.device, options)
    }

    /// Compares the model with fewer passes to a session `on` with more.
    fn without(&self, on: &Session, switches: &Switches, runs: Option<Runs<'_>>) -> Result<Without> {
        let off = || -> Result<Off> {
            let session = self.session(switches)?;
            let plan = Figures::of(&session.plan_report(&*(self.plan)(&session)?));
            Ok(Off { plan, measured: runs.map(|runs| measure(on, &session, runs)).transpose()? })
        };
        match off() {
            Ok(off) => Ok(Ok(off)),
            Err(error) if is_cancelled(&error) => Err(error),
            Err(error) => Ok(Err(format!("{error:#}"))),
        }
    }
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    error.downcast_ref::<devbay_host::Error>().is_some_and(|error| error.kind() == ErrorKind::Cancelled)
}

impl Figures {
    fn of(report: &PlanReport) -> Self {
        Self { launches: report.n_launches(), work_ns: report.work_ns(), unplanned: report.n_unplanned() }
    }
}

/// Minimum number of pairs if only their time is given: fewer have no quartiles.
const PAIRS_MIN: usize = 5;

/// Runs two sessions in turn, alternating the first one, so that neither profits from the other's cache contents.
fn measure(on: &Session, off: &Session, runs: Runs<'_>) -> Result<Measured> {
    let results = on.run_with(runs.given, runs.options)?;
    off.run_with(runs.given, runs.options)?;
    let mut memory: Vec<Vec<u8>> = results.iter().map(|tensor| vec![0u8; tensor.bytes().len()]).collect();
    let views = on.in_order(runs.given)?;
    let mut time = |session: &Session| -> Result<f64> {
        let begin = Instant::now();
        once(session, &views, &mut memory, runs.options)?;
        Ok(begin.elapsed().as_nanos() as f64)
    };
    let (mut off_ns, mut on_ns, mut saves_ns) = (Vec::new(), Vec::new(), Vec::new());
    let limit = Duration::from_secs_f64(runs.seconds.clamp(0.0, 3600.0));
    let mut begin = Instant::now();
    for n in 0.. {
        let (off, on) = if n % 2 == 0 {
            let off = time(off)?;
            (off, time(on)?)
        } else {
            let on = time(on)?;
            (time(off)?, on)
        };
        if n < runs.warmup {
            begin = Instant::now();
        } else {
            off_ns.push(off);
            on_ns.push(on);
            saves_ns.push(off - on);
        }
        let enough = match runs.pairs {
            0 => saves_ns.len() >= PAIRS_MIN && begin.elapsed() >= limit,
            pairs => saves_ns.len() >= pairs,
        };
        if enough {
            break;
        }
    }
    let [_, off_ns, _] = quartiles(&mut off_ns);
    let [_, on_ns, _] = quartiles(&mut on_ns);
    Ok(Measured { pairs: saves_ns.len(), off_ns, on_ns, saves_ns: quartiles(&mut saves_ns) })
}

/// Returns the lower quartile, the median and the upper quartile of a non-empty list; the upper of two middle values.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| values[((values.len() - 1) as f64 * share).round() as usize])
}

/// Formats a time that may be negative.
fn signed(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "" };
    format!("{sign}{}", table::duration(ns.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_values_in_order() {
        assert_eq!(quartiles(&mut [5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(&mut [7.0]), [7.0; 3]);
        assert_eq!(quartiles(&mut [-1.0, 1.0]), [-1.0, 1.0, 1.0]);
    }

    #[test]
    fn what_is_lost_has_a_sign_and_its_unit() {
        assert_eq!(signed(-2500.0), format!("-{}", table::duration(2500.0)));
        assert_eq!(signed(0.0), "0 ns");
    }
}
