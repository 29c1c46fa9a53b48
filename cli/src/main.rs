//! The `devbay` command: one file per subcommand.
//!
//! Exit codes are documented in [`exit`] and in `docs/cli.md`. Results go to standard output, everything else to
//! standard error; with `--json` standard output is one JSON value, and a failure is one line of JSON ([`failure`]).

mod bench;
mod compile;
mod completions;
mod config;
mod conformance;
mod cost;
mod crash;
mod describe;
mod devices;
mod diff;
mod doctor;
mod draw;
mod exit;
mod failure;
mod image;
mod inputs;
mod inspect;
mod interrupt;
mod launches;
mod layers;
mod lint;
mod machine;
mod man;
mod memory;
mod new_plugin;
mod ops;
mod options;
mod passes;
mod probe;
mod profile;
mod program;
mod progress;
mod roofline;
mod run;
mod say;
mod sessions;
mod shapes;
mod shares;
mod simulate;
mod table;
mod usage;
mod values;
mod vary;
mod work;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "devbay", about = "Runs models on whatever accelerator is plugged in")]
struct Arguments {
    /// Print more messages on standard error; twice for debug messages
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List devices, and the plugins that were refused
    Devices(devices::Arguments),
    /// Check what devbay finds on this machine, and give advice on problems
    Doctor(doctor::Arguments),
    /// Run a model
    Run(run::Arguments),
    /// Measure a model's latency
    Bench(bench::Arguments),
    /// Find the first node whose results differ between two devices, two sets of options, or a file of outputs
    Diff(diff::Arguments),
    /// Compile a model into a file that starts at once, or for a device with a compiler, which may be absent
    Compile(compile::Arguments),
    /// Show the content of a model or a plugin file
    Inspect(inspect::Arguments),
    /// List ops by version, element type and device; of a model, the device of each node, and why not another
    Ops(ops::Arguments),
    /// Test a plugin against the ABI's rules, case by case
    Conformance(conformance::Arguments),
    /// Find problems in a plugin library without loading it
    Lint(lint::Arguments),
    /// Generate a plugin project that builds and passes the conformance suite
    NewPlugin(new_plugin::Arguments),
    /// Print a script that completes devbay's arguments in a shell
    #[command(hide = true)]
    Completions(completions::Arguments),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Arguments),
    /// Run one conformance case, for a parent that does not trust the plugin
    #[command(hide = true)]
    ConformanceCase(conformance::CaseArguments),
    /// Try out a plugin library, for a parent that does not trust it
    #[command(hide = true)]
    Probe(probe::Arguments),
}

fn main() -> ExitCode {
    memory::guard();
    die_with_pipe();
    failure::choose_form(std::env::args_os().skip(1));
    let arguments = parse();
    start_logging(arguments.verbose);
    // The parent of a child command ends it by its own means.
    let is_child = matches!(arguments.command, Command::Probe(_) | Command::ConformanceCase(_));
    let _own_end = crash::OwnEnd;
    if !is_child {
        interrupt::install();
        crash::install();
    }
    let command = || match &arguments.command {
        Command::Devices(arguments) => devices::main(arguments),
        Command::Doctor(arguments) => doctor::main(arguments),
        Command::Run(arguments) => run::main(arguments),
        Command::Bench(arguments) => bench::main(arguments),
        Command::Diff(arguments) => diff::main(arguments),
        Command::Compile(arguments) => compile::main(arguments),
        Command::Inspect(arguments) => inspect::main(arguments),
        Command::Ops(arguments) => ops::main(arguments),
        Command::Conformance(arguments) => conformance::main(arguments),
        Command::Lint(arguments) => lint::main(arguments),
        Command::NewPlugin(arguments) => new_plugin::main(arguments),
        Command::Completions(arguments) => completions::main(arguments),
        Command::Man(arguments) => man::main(arguments),
        Command::ConformanceCase(arguments) => conformance::case(arguments),
        Command::Probe(arguments) => probe::main(arguments),
    };
    let result = match arguments.command {
        Command::Bench(_)
        | Command::Compile(_)
        | Command::Diff(_)
        | Command::Inspect(_)
        | Command::Ops(_) => progress::shown(command),
        // `run` and `conformance` show what they do themselves.
        _ => command(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            failure::report(&error);
            if interrupt::is_pressed() { interrupt::CANCELLED } else { exit::code_of(exit::kind(&error)) }
                .into()
        }
    }
}

/// Makes a closed pipe end the command, as for other commands: Rust ignores the signal, and printing then panics.
fn die_with_pipe() {
    #[cfg(unix)]
    // SAFETY: the default action is valid, and no other thread runs yet.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL)
    };
}

/// Returns the command line, as clap knows it.
fn command_line() -> clap::Command {
    // The ABI's range comes from the contract and is not a compile-time constant here.
    Arguments::command().version(options::version())
}

/// Parses the arguments, or ends the process: after help and version with success, after an error with its report.
fn parse() -> Arguments {
    let parsed = command_line().try_get_matches();
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| usage::end(error, &command_line()))
}

fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(table::colour(&std::io::stderr()))
        .without_time()
        .with_target(false)
        .init();
}
