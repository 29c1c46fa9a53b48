//! The date and the machine, for pages and reports that are read elsewhere and later.

use devbay_host::internals::core::units::count;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the date and time of now, in UTC: `2026-11-28 14:05 UTC`.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

/// Returns the machine in words: system, architecture, processor and number of processors.
pub fn describe() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map(|(_, name)| format!(", {}", name.trim())).unwrap_or_default();
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} {}{model}, {}", std::env::consts::OS, std::env::consts::ARCH, count(n, "processor"))
}

/// Returns the date of a number of seconds after 1970 in UTC.
fn date(seconds: u64) -> String {
    let (day, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, in eras of 400 years. A year that begins in March has its leap day at its end, so that
    // all months before it begin on the same day of every year: (153 * month + 2) / 5.
    // Source: Howard Hinnant, chrono-Compatible Low-Level Date Algorithms, civil_from_days.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    format!("{year}-{month:02}-{of_month:02} {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (1_795_874_700, "2026-11-28 14:05 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
