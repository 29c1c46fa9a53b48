//! Numbers with their units, as reports for people have them.

/// Bytes with a unit: 1.5 MiB.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Bytes from a number with a unit, if it has one: `K`, `M`, `G` or `T`, or the same as `KiB` and so on, which are powers of
/// 1024. None for anything else, and for more than 2^64.
pub fn bytes_from(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1u64 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// A time with a unit: 1.25 ms.
pub fn duration(nanos: f64) -> String {
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} µs", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A number of things: 1 task, 2 tasks, 3 launches.
pub fn count(n: usize, noun: &str) -> String {
    let plural = match noun {
        _ if n == 1 => "",
        _ if noun.ends_with("ch") || noun.ends_with('s') || noun.ends_with('x') => "es",
        _ => "s",
    };
    format!("{n} {noun}{plural}")
}

/// A share of 1 in percent: 12.5 %.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_bytes_are_powers_of_1024() {
        let cases = [
            ("0", Some(0)),
            ("8000", Some(8000)),
            ("16B", Some(16)),
            ("3K", Some(3 << 10)),
            ("512M", Some(512 << 20)),
            ("512MiB", Some(512 << 20)),
            ("2G", Some(2 << 30)),
            ("1TiB", Some(1 << 40)),
            ("16777215T", Some(16_777_215 << 40)),
            ("16777216T", None),
            ("18446744073709551616", None),
            ("", None),
            ("G", None),
            ("1.5G", None),
            ("-1", None),
            ("1 G", None),
            ("1GB", None),
            ("1g", None),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes_from(text), expected, "{text}");
        }
    }
}
