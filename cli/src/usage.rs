//! Errors of the command line that clap finds.

use crate::{exit, failure};
use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind as Fault};
use devbay_host::ErrorKind;

/// Prints help or an error, and ends the process.
pub fn end(mut error: Error, command: &Command) -> ! {
    if !error.use_stderr() {
        error.exit();
    }
    if error.kind() == Fault::UnknownArgument {
        correct_tip(&mut error, command);
    }
    if !failure::is_json() {
        error.exit();
    }
    let kind = ErrorKind::InvalidArgument;
    failure::report_as(kind, exit::code_of(kind), None, &message(&error.render().to_string()));
    std::process::exit(exit::code_of(kind).into())
}

/// Replaces clap's advice to pass an unknown option as a value, which is never meant here, by the commands that have the option.
fn correct_tip(error: &mut Error, command: &Command) {
    error.remove(ContextKind::Suggested);
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return };
    let Some(name) = option.strip_prefix("--").map(str::to_owned) else { return };
    let has_it = |command: &&Command| {
        !command.is_hide_set() && command.get_arguments().any(|known| known.get_long() == Some(&name))
    };
    let commands: Vec<String> =
        command.get_subcommands().filter(has_it).map(|command| format!("`{}`", command.get_name())).collect();
    let list = match commands.as_slice() {
        [] => return,
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    let tip = StyledStr::from(format!("--{name} is an option of {list}"));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
}

/// Returns the message of an error in one line, without the usage that follows it.
fn message(rendered: &str) -> String {
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| rendered.find(mark)).min();
    let text = rendered[..end.unwrap_or(rendered.len())].trim();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn the_message_is_one_line_without_the_usage() {
        let rendered = "error: unexpected argument '--x' found\n\n  tip: a similar argument exists: '--xy'\n\nUsage: devbay run\n";
        assert_eq!(
            message(rendered),
            "unexpected argument '--x' found; tip: a similar argument exists: '--xy'"
        );
        assert_eq!(message("error: a fault\n"), "a fault");
    }
}
