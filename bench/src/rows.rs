//! Rows of results: a table, or with `--json` one object per line.

use crate::ran::Ran;
use anyhow::Result;
use serde::Serialize;

/// Our subject's name.
pub const OURS: &str = "devbay";

/// Width of the column of benchmarks. Rows are printed as they are measured, so it is known beforehand; the longest name is
/// `compiled-start`.
pub const NAME_WIDTH: usize = 14;

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
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Number of passes.
    pub runs: usize,
    /// Number of launches, or of the row's other unit, in a round of devbay's: claimed and counted.
    pub counted: u64,
    /// Unit of that number.
    pub counted_what: &'static str,
    /// devbay's time as a share of the subject's; None for devbay itself.
    pub ratio: Option<Ratio>,
}

/// Ratios, one per pass.
#[derive(Clone, Copy, Serialize)]
pub struct Ratio {
    /// Median over passes.
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
}

impl Ratio {
    /// Summarises sorted ratios; None if there are none.
    fn of(sorted: &[f64]) -> Option<Self> {
        Some(Self { median: median(sorted), min: *sorted.first()?, max: *sorted.last()? })
    }
}

/// The printer of rows.
pub struct Rows {
    json: bool,
    headed: bool,
    /// Text that the names of wanted cases contain.
    only: Option<String>,
}

impl Rows {
    /// Prints JSON or a table; with `only`, just the cases whose names contain it.
    pub fn new(json: bool, only: Option<String>) -> Self {
        Self { json, headed: false, only }
    }

    /// Returns whether a case's rows will be printed, so that it has to be measured.
    pub fn want(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
    }

    /// Prints the rows of one case, if it is wanted. Each subject's row has devbay's share of its time, computed per pass.
    ///
    /// # Errors
    /// If devbay's count differs from the claim.
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
                "{:<NAME_WIDTH$} {:<24} {:>3}  {:<26} {:>10} {:>10} {:>10} {:<9} {:>5}  devbay / this",
                "BENCH", "CASE", "THR", "SUBJECT", "MEDIAN", "MIN", "MAX", "UNIT", "RUNS"
            );
            self.headed = true;
        }
        let ratio = row.ratio.map_or_else(String::new, |Ratio { median, min, max }| {
            if row.runs > 1 { format!("{median:.3} ({min:.3} to {max:.3})") } else { format!("{median:.3}") }
        });
        println!(
            "{:<NAME_WIDTH$} {:<24} {:>3}  {:<26} {:>10} {:>10} {:>10} {:<9} {:>5}  {ratio}",
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

/// Formats a figure with four digits, or more before the decimal point.
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

/// Returns the median of sorted figures.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
