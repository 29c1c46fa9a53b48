//! `cargo xtask fuzz`: builds the targets of `fuzz/` with libFuzzer's coverage and AddressSanitizer, makes a target's seeds,
//! runs it, and reports the number of executions and when coverage last grew.
//!
//! The flags are those of cargo-fuzz; `RUSTC_BOOTSTRAP` makes the stable compiler accept them. Everything is below
//! `target/fuzz`: seeds, which are made from ONNX's node tests, the growing corpus, and failing inputs.

use crate::abi::repository_root;
use crate::target_folder;
use crate::test::{build, cargo_command, succeed};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub struct Arguments {
    /// The target, a module of `fuzz/src`, such as text
    #[arg(value_name = "TARGET")]
    target: String,
    /// Seconds to run
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// An input to run once, such as a failing one
    #[arg(long, value_name = "FILE")]
    input: Option<std::path::PathBuf>,
}

/// Flags of the compiler: counters at every edge, comparisons, and the sanitiser.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address -Ccodegen-units=16";

/// Memory limit of a target in megabytes.
const MEMORY_MB: u32 = 3072;

/// Limit of one memory request in megabytes. The sanitiser marks all of it, which takes long.
const REQUEST_MB: u32 = 64;

/// Time limit of one input in seconds.
const INPUT_SECONDS: u32 = 25;

/// Parts of the paths of libraries' sources; the last one covers the standard library's own dependencies. An edge with an
/// unknown source counts as devbay's own.
const FOREIGN: &[&str] = &["/registry/src/", "/rustc/", "/rustlib/src/", "/rust/deps/"];

/// Builds and runs.
///
/// # Errors
/// For an unknown target, build errors, and failing inputs.
pub fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.target.as_str();
    let (root, target) = (repository_root(), target_folder()?);
    let targets = targets(&root.join("fuzz/src"))?;
    if !targets.iter().any(|target| target == name) {
        bail!("there is no fuzz target `{name}`; there are: {}", targets.join(", "));
    }
    let folder = target.join("fuzz");
    let host = host_triple()?;
    let mut command = cargo_command(&["build", "--release", "--target", &host]);
    command.arg("--manifest-path").arg(root.join("fuzz/libfuzzer/Cargo.toml"));
    command.arg("--target-dir").arg(folder.join("build"));
    command.env("RUSTFLAGS", FLAGS).env("RUSTC_BOOTSTRAP", "1");
    succeed(command)?;
    let (seeds, corpus, failed) =
        (folder.join("seeds").join(name), folder.join("corpus").join(name), folder.join("failed").join(name));
    for folder in [&seeds, &corpus, &failed] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    make_seeds(name, &target, &seeds)?;
    let mut command = Command::new(folder.join("build").join(&host).join("release/devbay-libfuzzer"));
    command.env("DEVBAY_FUZZ_TARGET", name);
    // The conformance suite looks for leaks: a pool that lives as long as the process is not one.
    // A request beyond the limit is refused: an error if it may fail, an abort otherwise.
    let options = format!(
        "detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1:max_allocation_size_mb={REQUEST_MB}"
    );
    command.env("ASAN_OPTIONS", options);
    // Targets write files to memory, if there is such a folder.
    if Path::new("/dev/shm").is_dir() {
        command.env("TMPDIR", "/dev/shm");
    }
    let plugin = target.join("debug/libdevbay_plugin_cpu.so");
    if name == "onnx_run" && plugin.exists() {
        command.env("DEVBAY_FUZZ_PLUGIN", plugin);
    }
    command.arg(format!("-timeout={INPUT_SECONDS}")).arg(format!("-rss_limit_mb={MEMORY_MB}"));
    command.arg(format!("-artifact_prefix={}/", failed.display()));
    if let Some(input) = &arguments.input {
        return succeed({
            command.arg(input);
            command
        });
    }
    command
        .arg(format!("-max_total_time={}", arguments.seconds))
        .arg("-print_final_stats=1")
        .arg("-print_funcs=0")
        .arg("-print_pcs=1")
        // Slower inputs are drawn less often.
        .arg("-entropic_scale_per_exec_time=1");
    if let Some(words) = words(name, &seeds)? {
        let file = folder.join(name).with_extension("dict");
        fs::write(&file, words).with_context(|| format!("cannot write {}", file.display()))?;
        command.arg(format!("-dict={}", file.display()));
    }
    command.arg("-max_len=65536").args([&corpus, &seeds]);
    watch(&mut command, name, &failed)
}

/// Maximum bytes of a libFuzzer word.
const WORD_BYTES: usize = 64;

/// Returns a dictionary for mutations in libFuzzer's format: the words that two or more seeds have. Random mutations would
/// not find names of ops, attributes and types. `None` for targets whose format has no words of its own.
fn words(name: &str, seeds: &Path) -> Result<Option<String>> {
    let words_of: fn(&[u8]) -> BTreeSet<&[u8]> = match name {
        "text" | "manifest" => names,
        "onnx_run" => protobuf_strings,
        _ => return Ok(None),
    };
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for entry in fs::read_dir(seeds).with_context(|| format!("cannot read {}", seeds.display()))? {
        let path = entry?.path();
        let seed = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for word in words_of(&seed) {
            *seen.entry(word.to_vec()).or_default() += 1;
        }
    }
    let escaped = |word: &[u8]| word.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let shared = seen.iter().filter(|(_, n_seeds)| **n_seeds > 1);
    Ok(Some(shared.map(|(word, _)| format!("\"{}\"\n", escaped(word))).collect()))
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns names of two characters or more.
fn names(text: &[u8]) -> BTreeSet<&[u8]> {
    text.split(|byte| !is_of_name(*byte)).filter(|word| (2..=WORD_BYTES).contains(&word.len())).collect()
}

/// Returns names in protobuf's encoding, with the field's tag and the length in front: ops, attributes and values.
fn protobuf_strings(message: &[u8]) -> BTreeSet<&[u8]> {
    let field = |at: usize| {
        let len = usize::from(*message.get(at + 1)?);
        let word = message.get(at..at + 2 + len)?;
        let is_name = (2..=WORD_BYTES - 2).contains(&len) && word[2..].iter().all(|byte| is_of_name(*byte));
        // Wire type 2: bytes with a length.
        (word[0] & 7 == 2 && is_name).then_some(word)
    };
    (0..message.len()).filter_map(field).collect()
}

/// Returns the targets: each is a file of the crate.
fn targets(sources: &Path) -> Result<Vec<String>> {
    let mut targets = Vec::new();
    for entry in fs::read_dir(sources).with_context(|| format!("cannot read {}", sources.display()))? {
        let path = entry?.path();
        let file = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".rs"));
        targets.extend(file.map(str::to_owned));
    }
    targets.retain(|target| target != "lib");
    targets.sort_unstable();
    Ok(targets)
}

/// Runs a target, and summarises its output: when it last reached a new edge, in any code and in devbay's own.
fn watch(command: &mut Command, name: &str, failed: &Path) -> Result<()> {
    let mut process = command.stderr(Stdio::piped()).spawn().context("cannot start the target")?;
    let lines = BufReader::new(process.stderr.take().context("its output is a pipe")?).lines();
    let (mut runs, mut edges, mut any, mut own) = (0u64, 0u64, 0u64, 0u64);
    // A new edge is printed before the line of the execution that reached it.
    let mut own_edge = false;
    for line in lines {
        let line = line?;
        if line.trim_start().starts_with("NEW_PC:") {
            own_edge |= !FOREIGN.iter().any(|folder| line.contains(folder));
            continue;
        }
        // Lines look like `#123 NEW cov: 45 ft: 67 ...`, and at the end `#200 DONE ...`.
        let progress = line.strip_prefix('#').and_then(|rest| rest.split_once(char::is_whitespace));
        let number = progress.and_then(|(number, rest)| Some((number.parse::<u64>().ok()?, rest)));
        let Some((number, rest)) = number else {
            eprintln!("{line}");
            continue;
        };
        runs = runs.max(number);
        let mut words = rest.split_whitespace();
        let found =
            words.find(|word| *word == "cov:").and_then(|_| words.next()).and_then(|n| n.parse().ok());
        if let Some(found) = found.filter(|found| *found > edges) {
            // Edges of the initial corpus are printed in one line, not one by one.
            own_edge |= edges == 0;
            (edges, any) = (found, number);
        }
        if own_edge {
            (own, own_edge) = (number, false);
        }
    }
    let status = process.wait()?;
    println!("{name}: {runs} executions, {edges} edges");
    for (what, at) in [("any code", any), ("devbay's own", own)] {
        let quiet = 100.0 * runs.saturating_sub(at) as f64 / runs.max(1) as f64;
        println!("  the last new edge in {what}: execution {at}, {quiet:.0} % of them without one since");
    }
    if !status.success() {
        bail!("{name} failed: {status}; the input is in {}", failed.display());
    }
    Ok(())
}

/// Makes the seeds of a target: ONNX's node tests, and the repository's files in the other formats.
fn make_seeds(name: &str, target: &Path, folder: &Path) -> Result<()> {
    let root = repository_root();
    match name {
        "onnx_run" | "arrays" | "text" => node_tests(name, target, folder)?,
        "dbx" => compiled(&root, target, folder)?,
        "manifest" => manifests(folder)?,
        // Four bytes that select how a list is made, then a struct of 8 bytes.
        "abi_lists" => {
            fs::write(folder.join("list"), [8, 0, 2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0])?;
        }
        _ => {}
    }
    // Seeds that are stored, not generated: photos and arrays, after the byte that selects the form.
    let own = root.join("fuzz/seeds").join(name);
    if own.exists() {
        copy(&own, folder)?;
    }
    // Earlier failures of any kind, which the tests run too.
    let regressions = root.join("fuzz/regressions").join(name);
    if regressions.exists() {
        copy(&regressions, folder)?;
    }
    Ok(())
}

/// Keys of a manifest, each with a valid value.
const MANIFEST: &[(&str, &str)] = &[
    ("devbay_manifest", "1"),
    ("name", r#""cpu""#),
    ("library", r#""lib.so""#),
    ("sha256", r#""00""#),
    ("os", r#""linux""#),
    ("arch", r#""x86_64""#),
    ("abi", r#"{"major":0,"min":1,"max":2}"#),
    ("devices", r#"["gpu"]"#),
    ("driver", r#""535 or newer""#),
    ("options", r#"{"streams":"4"}"#),
];

/// Keys of its range.
const RANGE: &[(&str, &str)] = &[("major", "0"), ("min", "1"), ("max", "2")];

/// Values of each JSON type, and some truncated ones.
const VALUES: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "7",
    "-1",
    "4294967296",
    "18446744073709551616",
    "0.5",
    "1e9",
    "1e999",
    r#""""#,
    r#""\u0041\n\ud83d\ude00""#,
    r#""\ud800""#,
    r#""\x""#,
    "[]",
    r#"["a","b"]"#,
    "[1,[2]]",
    "{}",
    r#"{"a":"b"}"#,
    r#"{"a":1,"a":2}"#,
    "[",
    "{",
    r#"""#,
    "-",
    "nul",
];

/// Makes manifests with each key absent, duplicated, and with each value; as an object and as a list of its values.
fn manifests(folder: &Path) -> Result<()> {
    let mut texts = Vec::new();
    for (keys, wrap) in [(MANIFEST, None), (RANGE, Some("abi"))] {
        let changed = changes(keys).map(|text| match wrap {
            None => text,
            Some(key) => object(MANIFEST.iter().map(|&(k, v)| (k, if k == key { text.as_str() } else { v }))),
        });
        texts.extend(changed);
    }
    for (i, text) in texts.iter().enumerate() {
        fs::write(folder.join(format!("manifest-{i}")), text)?;
    }
    Ok(())
}

/// Returns an object's text with one key changed in each way.
fn changes(keys: &'static [(&'static str, &'static str)]) -> impl Iterator<Item = String> {
    let list =
        |n: usize| format!("[{}]", keys[..n].iter().map(|(_, value)| *value).collect::<Vec<_>>().join(","));
    let lists = (0..=keys.len()).map(list);
    let without =
        (0..keys.len()).map(|i| object(keys.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, e)| *e)));
    let twice = keys.iter().map(|entry| object(keys.iter().chain([entry]).copied()));
    let of_values = keys.iter().flat_map(|(key, _)| {
        VALUES.iter().map(|value| object(keys.iter().map(|&(k, v)| (k, if k == *key { *value } else { v }))))
    });
    let unknown = VALUES.iter().map(|value| object(keys.iter().copied().chain([("unknown", *value)])));
    [object(keys.iter().copied())]
        .into_iter()
        .chain(lists)
        .chain(without)
        .chain(twice)
        .chain(of_values)
        .chain(unknown)
}

/// Returns the text of an object.
fn object<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let entries: Vec<String> = entries.map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", entries.join(","))
}

/// Node tests whose compiled forms are seeds: regions, constants, attributes of each kind, a recurrent op.
const COMPILED: &[&str] = &[
    "test_if",
    "test_loop11",
    "test_scan9_sum",
    "test_constant",
    "test_constant_pad_axes",
    "test_lstm_with_peepholes",
    "test_conv_with_strides_padding",
    "test_einsum_transpose",
    "test_resize_upsample_scales_nearest",
];

/// Compiles node tests, and a trained model with packed weights.
fn compiled(root: &Path, target: &Path, folder: &Path) -> Result<()> {
    build(&["--lib", "--bin", "devbay"])?;
    let programs = target.join("fuzz/seeds/programs");
    node_tests("text", target, &programs)?;
    let models = COMPILED.iter().map(|name| (*name, programs.join(name)));
    for (name, model) in models.chain([("mnist", root.join("models/mnist_cnn/model.onnx"))]) {
        let compiled = folder.join(name).with_extension("dbx");
        let mut command = Command::new(target.join("debug/devbay"));
        command.arg("compile").arg(&model).arg("-o").arg(compiled).stdout(Stdio::null());
        succeed(command)?;
    }
    Ok(())
}

/// Writes ONNX's node tests in the form that a target reads, a file each.
fn node_tests(form: &str, target: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    build(&["--bin", "devbay-hostile"])?;
    let mut command = Command::new(target.join("debug/devbay-hostile"));
    command.args(["--seeds", form]).arg(folder).stdout(Stdio::null());
    succeed(command)
}

/// Copies the files of a folder into another folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in from.read_dir().with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Returns the machine's own target: naming it keeps the flags from build scripts.
fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its target")?.to_owned())
}
