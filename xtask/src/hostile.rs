//! `cargo xtask hostile`: builds the plugins and the hostile corpus (`conformance/src/hostile`), and runs it on every
//! instruction set of the processor, on wgpu and on OpenCL.

use crate::test::build;
use crate::{opencl, target_folder};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Sides to run on: cpu-baseline, cpu-avx2, cpu-avx512, wgpu, opencl; all that this machine has by default. The others
    /// are compared with the first
    #[arg(value_name = "SIDE")]
    sides: Vec<String>,
    /// Run only seeds of this op; may be repeated
    #[arg(long, value_name = "OP")]
    op: Vec<String>,
    /// Maximum number of seeds per op
    #[arg(long, value_name = "N", default_value_t = 4)]
    seeds_per_op: usize,
    /// Run one of every N changes of each seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
    /// Deadline of a run in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    deadline_ms: u64,
    /// Time beyond the deadline until a case counts as a hang
    #[arg(long, value_name = "MS", default_value_t = 8000)]
    grace_ms: u64,
    /// Memory that a worker may map, besides its device's memory after opening
    #[arg(long, value_name = "MB", default_value_t = 3072)]
    memory_mb: u64,
    /// List the cases without running them
    #[arg(long)]
    list: bool,
}

/// The sides: name, device and plugin, the variable of the instruction set, and the required processor feature.
const SIDES: &[(&str, &str, &str, Option<&str>, &str)] = &[
    ("cpu-baseline", "cpu", "cpu", Some("baseline"), ""),
    ("cpu-avx2", "cpu", "cpu", Some("avx2"), "avx2"),
    ("cpu-avx512", "cpu", "cpu", Some("avx512"), "avx512f"),
    ("wgpu", "wgpu:0", "wgpu", None, ""),
    ("opencl", "opencl:0", "opencl", None, ""),
];

/// Runs the corpus and exits with its exit code: 0 if nothing failed, 3 otherwise.
///
/// # Errors
/// For an unknown side, and build errors.
pub fn run(arguments: &Arguments) -> Result<()> {
    build(&["--lib", "--bin", "devbay", "--bin", "devbay-hostile"])?;
    let folder = target_folder()?.join("debug");
    let mut command = Command::new(folder.join("devbay-hostile"));
    for name in &arguments.sides {
        if !SIDES.iter().any(|(known, ..)| known == name) {
            let known: Vec<&str> = SIDES.iter().map(|(name, ..)| *name).collect();
            bail!("there is no side `{name}`; there are: {}", known.join(", "));
        }
    }
    for (name, device, plugin, isa, needs) in SIDES {
        let is_named = arguments.sides.iter().any(|wanted| wanted == name);
        if !arguments.sides.is_empty() && !is_named {
            continue;
        }
        if *plugin == "opencl" {
            opencl::build_if_possible()?;
        }
        let library = folder.join(format!("libdevbay_plugin_{plugin}.so"));
        if !library.exists() || !has(needs) {
            eprintln!("xtask hostile: {name} is left out, as this machine has none");
            continue;
        }
        command.arg("--side").arg(side(name, device, &library, *isa));
    }
    command.args(arguments.op.iter().flat_map(|op| ["--op", op]));
    command.args(arguments.list.then_some("--list"));
    for (name, number) in [
        ("--seeds-per-op", arguments.seeds_per_op as u64),
        ("--every", arguments.every as u64),
        ("--deadline-ms", arguments.deadline_ms),
        ("--grace-ms", arguments.grace_ms),
        ("--memory-mb", arguments.memory_mb),
    ] {
        command.args([name, &number.to_string()]);
    }
    command.arg("--out").arg(target_folder()?.join("hostile"));
    std::process::exit(command.status()?.code().unwrap_or(1));
}

fn side(name: &str, device: &str, library: &Path, isa: Option<&str>) -> String {
    let isa = isa.map(|isa| format!(",DEVBAY_CPU_ISA={isa}")).unwrap_or_default();
    format!("{name},{device},{}{isa}", library.display())
}

/// Returns whether the processor has a feature, according to the system; the empty feature is always present.
fn has(feature: &str) -> bool {
    let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    feature.is_empty() || listed.split_whitespace().any(|word| word == feature)
}
