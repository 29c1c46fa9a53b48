//! `cargo xtask tsan`: runs the executor's tests under ThreadSanitizer, which must report nothing.
//!
//! The sanitizer is the compiler's own, for nightly only; RUSTC_BOOTSTRAP enables it in the stable compiler. std stays
//! uninstrumented: `xtask/tsan/std.c` tells the sanitizer the ordering of std's mutexes, and `xtask/tsan/suppressions.txt`
//! lists what cannot be expressed that way.

use crate::abi::repository_root;
use crate::test::{cargo_command, succeed};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// std's functions that `std.c` wraps: its name for each, and a part of the symbol.
const WRAPPED: [(&str, &str); 5] = [
    ("LOCK_CONTENDED", "5mutex5futexNtB2_5Mutex14lock_contended"),
    ("CONDVAR_WAIT", "7condvar5futexNtB2_7Condvar4wait"),
    ("CONDVAR_WAIT_TIMEOUT", "7condvar5futexNtB2_7Condvar12wait_timeout"),
    ("ONCE_CALL", "4once5futexNtB5_4Once4call"),
    ("SCOPE_DECREMENT", "9ScopeData29decrement_num_running_threads"),
];

/// Tests to run: cargo's arguments, and the tests' own.
const TESTS: [(&[&str], &[&str]); 2] = [
    // The deep chain does not test threads, and takes a minute.
    (&["--package", "devbay-core", "--lib"], &["exec", "async_value", "--skip", "a_deep_chain_fires"]),
    (&["--package", "devbay-host", "--test", "devices"], &["tasks::", "graphs::", "stepped::"]),
];

/// Number of random programs in `graphs`, unless DEVBAY_GRAPHS gives another.
const GRAPHS: &str = "100";

pub fn run() -> Result<()> {
    let root = repository_root();
    let folder = root.join("target/tsan");
    std::fs::create_dir_all(&folder)?;
    let mut flags = vec!["-Zsanitizer=thread".to_owned(), "-Cunsafe-allow-abi-mismatch=sanitizer".to_owned()];
    flags.extend(wrap_std(&root, &folder)?);
    let suppressions = root.join("xtask/tsan/suppressions.txt");
    let mut failures = Vec::new();
    for (tests, arguments) in TESTS {
        let mut command = cargo_command(&["test", "--no-fail-fast", "--target", TARGET]);
        command.args(tests).arg("--").args(arguments);
        command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &folder);
        // Paths may contain spaces.
        command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        // Tests may leave threads until the process ends; reports of older accesses should include their stacks.
        let options = format!("suppressions={} report_thread_leaks=0 history_size=4", suppressions.display());
        command.env("TSAN_OPTIONS", options);
        if std::env::var_os("DEVBAY_GRAPHS").is_none() {
            command.env("DEVBAY_GRAPHS", GRAPHS);
        }
        failures.extend(succeed(command).err());
    }
    // Run all of them, to show all reports at once.
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Compiles `std.c` with this compiler's names of std's functions, and returns the flags that link it.
fn wrap_std(root: &Path, folder: &Path) -> Result<Vec<String>> {
    let symbols = output(Command::new("nm").arg("--dynamic").arg(std_library()?))?;
    let object = folder.join("std.o");
    let mut cc = Command::new("cc");
    cc.args(["-c", "-O2", "-g", "-fPIC", "-fexceptions", "-Wall", "-Werror", "-o"]).arg(&object);
    let mut flags = vec![format!("-Clink-arg={}", object.display())];
    for (name, part) in WRAPPED {
        let symbol = symbols.split_whitespace().find(|symbol| symbol.ends_with(part));
        let symbol =
            symbol.with_context(|| format!("std has no {part}: compare xtask/tsan/std.c with it"))?;
        cc.arg(format!("-D{name}={symbol}"));
        flags.push(format!("-Clink-arg=-Wl,--wrap={symbol}"));
    }
    succeed({
        cc.arg(root.join("xtask/tsan/std.c"));
        cc
    })?;
    Ok(flags)
}

/// Returns the shared standard library, which has the symbols of the linked static one; `nm` fails on the bitcode in the
/// latter.
fn std_library() -> Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let sysroot = output(Command::new(rustc).args(["--print", "sysroot"]))?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib");
    for entry in folder.read_dir().with_context(|| format!("no std in {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("libstd-") && name.ends_with(".so") {
            return Ok(path);
        }
    }
    bail!("no libstd in {}", folder.display())
}

/// Returns the output of a command.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
