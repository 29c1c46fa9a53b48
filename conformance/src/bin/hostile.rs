//! `devbay-hostile`: runs the hostile corpus on plugins, and lists what failed with the command that shows it again.
//!
//! `cargo xtask hostile` builds it with the plugins and runs it. `--worker` is how it starts itself.
#![expect(clippy::print_stdout, reason = "the table and the list go to standard output")]

use devbay_conformance::hostile::campaign::{
    Side, SideOutcomes, Workers, disagreements, findings, reproduce, run_side,
};
use devbay_conformance::hostile::seeds::{Form, write_seeds};
use devbay_conformance::hostile::worker::{Work, work};
use devbay_conformance::hostile::{Corpus, Selection, table};
use devbay_conformance::judge::Subject;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str =
    "usage: devbay-hostile --side NAME,DEVICE,LIBRARY[,KEY=VALUE]... [--op OP]... [--seeds-per-op N]
       [--every N] [--deadline-ms N] [--grace-ms N] [--memory-mb N] [--batch N] [--out FOLDER] [--list]
       devbay-hostile --worker DEADLINE_MS MEMORY_MB LIBRARY
       devbay-hostile --seeds onnx_run|text|arrays FOLDER";

/// Arguments of the command line.
struct Arguments {
    sides: Vec<Side>,
    selection: Selection,
    deadline: Duration,
    grace: Duration,
    memory_mb: u64,
    batch: usize,
    out: PathBuf,
    list: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("--worker") => worker(&arguments[1..]).map(|()| true),
        Some("--seeds") => seeds(&arguments[1..]).map(|()| true),
        _ => read(&arguments).and_then(|arguments| campaign(&arguments)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::from(2)
        }
    }
}

fn worker(arguments: &[String]) -> Result<(), String> {
    let [deadline_ms, memory_mb, library] = arguments else { return Err(USAGE.to_owned()) };
    work(&Work {
        subject: Subject::Library(library.into()),
        options: Vec::new(),
        deadline: Duration::from_millis(number(deadline_ms)?),
        memory_max: number(memory_mb)? << 20,
    })
}

/// Writes seeds for a fuzz target.
fn seeds(arguments: &[String]) -> Result<(), String> {
    let [target, folder] = arguments else { return Err(USAGE.to_owned()) };
    let form = match target.as_str() {
        "onnx_run" => Form::Model,
        "text" => Form::Text,
        "arrays" => Form::Inputs,
        other => return Err(format!("no seeds exist for {other}")),
    };
    let n = write_seeds(form, Path::new(folder)).map_err(|error| error.to_string())?;
    println!("{n} seeds in {folder}");
    Ok(())
}

fn read(arguments: &[String]) -> Result<Arguments, String> {
    let mut read = Arguments {
        sides: Vec::new(),
        selection: Selection { ops: Vec::new(), seeds_per_op: 4, every: 1 },
        deadline: Duration::from_secs(2),
        grace: Duration::from_secs(8),
        memory_mb: 3072,
        batch: 2000,
        out: "target/hostile".into(),
        list: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--list" {
            read.list = true;
            continue;
        }
        let value = rest.next().ok_or(USAGE)?;
        match argument.as_str() {
            "--side" => read.sides.push(side(value)?),
            "--op" => read.selection.ops.push(value.clone()),
            "--seeds-per-op" => read.selection.seeds_per_op = number(value)? as usize,
            "--every" => read.selection.every = number(value)? as usize,
            "--deadline-ms" => read.deadline = Duration::from_millis(number(value)?),
            "--grace-ms" => read.grace = Duration::from_millis(number(value)?),
            "--memory-mb" => read.memory_mb = number(value)?,
            "--batch" => read.batch = number(value)? as usize,
            "--out" => read.out = value.into(),
            other => return Err(format!("{other} is unknown\n{USAGE}")),
        }
    }
    Ok(read)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a number, found {text}"))
}

fn side(text: &str) -> Result<Side, String> {
    let mut parts = text.split(',');
    let (Some(name), Some(device), Some(library)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(USAGE.to_owned());
    };
    let environment = parts
        .map(|pair| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect::<Option<_>>()
        .ok_or(USAGE)?;
    Ok(Side { name: name.to_owned(), device: device.to_owned(), library: library.into(), environment })
}

/// Runs all sides; whether nothing failed.
fn campaign(arguments: &Arguments) -> Result<bool, String> {
    let corpus = Corpus::select(&arguments.selection);
    let cases = corpus.cases();
    println!(
        "{} cases of {} seeds for {} ops; {} node tests are left out, as they are not models of tensors",
        cases.len(),
        corpus.n_seeds(),
        corpus.n_ops(),
        corpus.n_left_out
    );
    if arguments.list {
        for case in &cases {
            println!("{case}  {}: {}", corpus.op(case), corpus.describe(case));
        }
        return Ok(true);
    }
    let workers = Workers {
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        arguments: vec![
            "--worker".into(),
            arguments.deadline.as_millis().to_string().into(),
            arguments.memory_mb.to_string().into(),
        ],
        batch: arguments.batch,
        limit: arguments.deadline + arguments.grace,
    };
    let mut sides: Vec<SideOutcomes> = Vec::new();
    for side in &arguments.sides {
        let begin = std::time::Instant::now();
        sides.push(run_side(side, &workers, &cases, &mut |n| {
            eprintln!("{}: {n} of {} in {:.0} s", side.name, cases.len(), begin.elapsed().as_secs_f64());
        })?);
    }
    let found = findings(&corpus, &cases, &sides);
    for (i, finding) in found.iter().enumerate() {
        let folder = arguments.out.join(format!("{i:03}-{}-{}", finding.op, finding.class.replace(' ', "-")));
        let command =
            reproduce(&corpus, &finding.case, &finding.side, &folder).map_err(|error| error.to_string())?;
        println!(
            "\n{} {} x {} on {}: {}\n  {}, {}\n  {command}",
            finding.class,
            finding.n,
            finding.op,
            finding.sides.join(" "),
            finding.text,
            finding.case,
            corpus.describe(&finding.case)
        );
    }
    println!("\n{}", table::text(&sides, &disagreements(&corpus, &cases, &sides)));
    Ok(found.is_empty())
}
