//! Rows of results: for a person a table, with `--json` one object a line.

use serde::Serialize;

/// What one subject took in one case.
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
}

/// The rows as they come.
pub struct Rows {
    json: bool,
    headed: bool,
}

impl Rows {
    /// Prints JSON or a table.
    pub fn new(json: bool) -> Self {
        Self { json, headed: false }
    }

    /// Prints the rows of one case: the yardstick first, and the others with their ratio to it, taken pass by
    /// pass.
    pub fn case(
        &mut self,
        bench: &str,
        case: &str,
        threads: usize,
        unit: &str,
        subjects: &[(String, Vec<f64>)],
    ) {
        let yardstick = subjects.first().map(|(_, figures)| figures.clone()).unwrap_or_default();
        for (subject, figures) in subjects {
            let mut sorted = figures.clone();
            sorted.sort_by(f64::total_cmp);
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
            };
            let mut ratios: Vec<f64> = figures.iter().zip(&yardstick).map(|(a, b)| a / b).collect();
            ratios.sort_by(f64::total_cmp);
            self.print(&row, &ratios);
        }
    }

    fn print(&mut self, row: &Row, ratios: &[f64]) {
        if self.json {
            if let Ok(line) = serde_json::to_string(row) {
                println!("{line}");
            }
            return;
        }
        if !self.headed {
            println!(
                "{:<11} {:<24} {:>3}  {:<26} {:>10} {:>10} {:>10} {:<9} {:>5}  ratio to the first",
                "BENCH", "CASE", "THR", "SUBJECT", "MEDIAN", "MIN", "MAX", "UNIT", "RUNS"
            );
            self.headed = true;
        }
        let ratio = match ratios {
            [] => String::new(),
            ratios => format!("{:.3} ({:.3} to {:.3})", median(ratios), ratios[0], ratios[ratios.len() - 1]),
        };
        println!(
            "{:<11} {:<24} {:>3}  {:<26} {:>10.4} {:>10.4} {:>10.4} {:<9} {:>5}  {ratio}",
            row.bench, row.case, row.threads, row.subject, row.median, row.min, row.max, row.unit, row.runs
        );
    }
}

/// The middle of sorted figures.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
