//! The table at a campaign's end: executions and failures by side.

use super::campaign::SideOutcomes;

/// Classes of failures, as columns.
const CLASSES: &[&str] = &["crash", "panic", "abort", "abort for memory", "hang", "internal error"];

/// A row a side, in Markdown. `disagreements` are those of each side with the first one, and with itself about what is a constant
/// in one case and an input in another.
pub fn text(sides: &[SideOutcomes], disagreements: &[(usize, usize, String)]) -> String {
    let mut text =
        format!("| side | executions | ok | refused | {} | disagreements |\n", CLASSES.join(" | "));
    text.push_str("| --- |");
    text.push_str(&" ---: |".repeat(CLASSES.len() + 4));
    text.push('\n');
    for (i, side) in sides.iter().enumerate() {
        let count = |class: &str| side.outcomes.iter().filter(|outcome| outcome.class() == class).count();
        let failures: Vec<String> = CLASSES.iter().map(|class| count(class).to_string()).collect();
        let differ = disagreements.iter().filter(|(_, side, _)| *side == i).count();
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {differ} |\n",
            side.side.name,
            side.outcomes.len(),
            count("ok"),
            count("error"),
            failures.join(" | ")
        ));
    }
    text
}
