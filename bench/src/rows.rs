//! Rows of results: for a person a table, with `--json` one object a line.

use crate::ran::Ran;
use anyhow::Result;
use serde::Serialize;

/// Our subject's name.
pub const OURS: &str = "devbay";

/// Figures of one subject in one case.
#[derive(Clone, Serialize)]
pub struct Row {
    /// The benchmark.
    pub bench: String,
    /// The case.
    pub case: String,
    /// Threads.
    pub threads: usize,
    /// `devbay`, or the peer's name and version.
    pub subject: String,
    /// Unit of the figures.
    pub unit: String,
    /// Median over passes.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// Number of passes.
    pub runs: usize,
    /// Number of launches, or what the row counts else, of a round of devbay's: as the row says, and as it was counted.
    pub counted: u64,
    /// Unit of that number.
    pub counted_what: &'static str,
    /// Share of the subject's time that devbay takes; None for devbay itself.
    pub ratio: Option<Ratio>,
}

/// Ratios, one a pass.
#[derive(Clone, Copy, Serialize)]
pub struct Ratio {
    /// Median over passes.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Ratio {
    /// Of sorted ratios; None if there is none.
    fn of(sorted: &[f64]) -> Option<Self> {
        Some(Self { median: median(sorted), min: *sorted.first()?, max: *sorted.last()? })
    }
}

/// The rows as they come.
pub struct Rows {
    json: bool,
    headed: bool,
    /// A part of the names of the cases that are wanted.
    only: Option<String>,
}

impl Rows {
    /// Prints JSON or a table; only the cases whose names have `only` in them, if it is given.
    pub fn new(json: bool, only: Option<String>) -> Self {
        Self { json, headed: false, only }
    }

    /// Returns whether a case's rows will be printed, so that it has to be measured.
    pub fn want(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
    }

    /// Prints the rows of one case, if it is wanted. Beside each subject stands what part of its time devbay takes, pass by pass.
    ///
    /// # Errors
    /// If devbay ran something else than the row says.
    pub fn case(
        &mut self,
        bench: &str,
        case: &str,
        threads: usize,
        unit: &str,
        subjects: &[(String, Vec<f64>)],
        ran: Ran,
    ) -> Result<()> {
        if !self.want(case) {
            return Ok(());
        }
        ran.check(bench, case)?;
        let ours = subjects.iter().find(|(subject, _)| subject == OURS).map(|(_, figures)| figures);
        for (subject, figures) in subjects {
            let sorted = sorted(figures.iter().copied());
            let ratios =
                ours.filter(|_| subject != OURS).map(|ours| ours.iter().zip(figures).map(|(a, b)| a / b));
            let ratios = ratios.map(self::sorted).unwrap_or_default();
            let row = Row {
                bench: bench.to_owned(),
                case: case.to_owned(),
                threads,
                subject: subject.clone(),
                unit: unit.to_owned(),
                median: median(&sorted),
                min: sorted.first().copied().unwrap_or(f64::NAN),
                max: sorted.last().copied().unwrap_or(f64::NAN),
                runs: sorted.len(),
                counted: ran.counted,
                counted_what: ran.what,
                ratio: Ratio::of(&ratios),
            };
            self.print(&row);
        }
        Ok(())
    }

    fn print(&mut self, row: &Row) {
        if self.json {
            if let Ok(line) = serde_json::to_string(row) {
                println!("{line}");
            }
            return;
        }
        if !self.headed {
            println!(
                "{:<11} {:<24} {:>3}  {:<26} {:>10} {:>10} {:>10} {:<9} {:>5}  devbay / this",
                "BENCH", "CASE", "THR", "SUBJECT", "MEDIAN", "MIN", "MAX", "UNIT", "RUNS"
            );
            self.headed = true;
        }
        let ratio = row.ratio.map_or_else(String::new, |Ratio { median, min, max }| {
            if row.runs > 1 { format!("{median:.3} ({min:.3} to {max:.3})") } else { format!("{median:.3}") }
        });
        println!(
            "{:<11} {:<24} {:>3}  {:<26} {:>10} {:>10} {:>10} {:<9} {:>5}  {ratio}",
            row.bench,
            row.case,
            row.threads,
            row.subject,
            figure(row.median),
            figure(row.min),
            figure(row.max),
            row.unit,
            row.runs
        );
    }
}

/// Four digits, more only of what is greater.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        v if v >= 1.0 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures
}

/// The middle of sorted figures.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
