//! Aligned tables for the terminal.

use crate::say;
pub use devbay_host::internals::core::units::{bytes, duration};
use std::io::IsTerminal;

/// Returns whether a stream is a terminal that supports colour.
pub fn colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Prints rows under a header, with aligned columns; columns whose header begins with `>` are right-aligned.
pub fn print(head: &[&str], rows: &[Vec<String>]) {
    let text = text(head, rows);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (bold, normal) = if colour(&std::io::stdout()) { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    say::styled(bold, format_args!("{first}"), normal);
    rest.lines().for_each(|line| say!("{line}"));
}

/// Returns the output of [`print()`] without colour; each row ends with a new line.
pub fn text(head: &[&str], rows: &[Vec<String>]) -> String {
    let right: Vec<bool> = head.iter().map(|title| title.starts_with('>')).collect();
    let head: Vec<String> = head.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| say::cell(cell).into_owned()).collect()).collect();
    let width = |i: usize| {
        let cells = rows.iter().chain([&head]).filter_map(|row| row.get(i));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let pad = " ".repeat(widths[i].saturating_sub(cell.chars().count()));
            if right[i] { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    [&head].into_iter().chain(&rows).map(|row| line(row) + "\n").collect()
}

/// Returns a number of arithmetic operations in a unit that suits it, such as `770.4 M`.
pub fn operations(n: u64) -> String {
    let (unit, name) = match n {
        1_000_000_000.. => (1e9, "G"),
        1_000_000.. => (1e6, "M"),
        1_000.. => (1e3, "k"),
        _ => return n.to_string(),
    };
    format!("{:.1} {name}", n as f64 / unit)
}

/// Returns a bar for a share between 0 and 1.
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}
