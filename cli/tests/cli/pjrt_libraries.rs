//! PJRT libraries that the plugin finds and tries in a child process: real ones from the environment, and ones that crash,
//! hang and refuse, as `devbay devices` shows them.

use crate::support::{Finished, Folder, command, finish, pjrt_plugin};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a PJRT library with one fault, `plugins/pjrt/tests/fixtures/library.c`.
fn library(folder: &Folder, fault: &str) -> PathBuf {
    let library = folder.path(&format!("{fault}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/pjrt/tests/fixtures/library.c");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-fPIC", "-shared", &format!("-D{fault}"), "-o"]).arg(&library).arg(source);
    let compiled = cc.output().expect("expected a C compiler called cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

/// Runs `devbay devices` on the plugin without trying it first, so that only the plugin's own probing is measured.
fn devices(plugin: &[String], options: &[&str]) -> Finished {
    let mut command = command();
    command.args(["devices", "--no-probe"]).args(plugin);
    for option in options {
        command.args(["--plugin-option", option]);
    }
    finish(&mut command).expect(0)
}

fn n_devices(found: &Finished) -> usize {
    found.out.lines().filter(|line| line.starts_with("pjrt:")).count()
}

#[test]
fn b27_pjrt_libraries_that_crash_or_hang_harm_nobody_else() {
    let Some((plugin, n_good)) = pjrt_plugin() else { return };
    let (plugin, good) = (&plugin[..2], &plugin[3]);
    let folder = Folder::new();
    let with = |faults: &[&str]| {
        let named =
            faults.iter().map(|fault| format!(",{fault}:{}", folder.path(&format!("{fault}.so")).display()));
        format!("{good}{}", named.collect::<String>())
    };
    let faults = ["ABORTS", "EXITS", "REFUSES", "RETURNS_NULL", "NO_DEVICES"];
    for fault in faults {
        library(&folder, fault);
    }
    // A generous limit, for busy machines.
    let found = devices(plugin, &[&with(&faults), "pjrt.probe_ms=60000"]);
    assert_eq!(n_devices(&found), n_good);
    let said = [
        "ABORTS: it ended the probing process (signal 6): FATAL: no chips found",
        "EXITS: it ended the probing process (exit status: 0)",
        "REFUSES: PJRT_Client_Create: No visible devices. (FAILED_PRECONDITION)",
        "RETURNS_NULL: the PJRT library breaks its API in GetPjrtApi: no table",
        "NO_DEVICES: it has no device",
    ];
    let found = found.says(&said);
    assert!(!found.err.contains("goodbye"), "a child's output is not ours:\n{}", found.err);
    // One line each in the report, besides the log's.
    for reason in said {
        let is_reported = |line: &str| line.starts_with("note: plugin pjrt") && line.contains(reason);
        assert!(found.out.lines().any(is_reported), "{reason} in {}", found.out);
    }

    // All others are known by now; only the one that hangs is tried.
    library(&folder, "HANGS");
    let all = [&faults[..], &["HANGS"]].concat();
    let found = devices(plugin, &[&with(&all), "pjrt.probe_ms=1000"]);
    assert_eq!(n_devices(&found), n_good);
    found.says(&said).says(&["HANGS: it did not answer within 1s in a probing process"]);
}

#[test]
fn packages_for_jax_and_manifests_are_found_and_tried() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let (plugin, good) = (&plugin[..2], &plugin[3]);
    // In `pjrt.libraries=NAME:PATH,...`, the first library is installed here, and named by a manifest.
    let first = good.split(['=', ',']).nth(1).expect("a library");
    let (_, path) = first.split_once(':').expect("a name and a path");
    let folder = Folder::new();
    let package = folder.path("site/jax_plugins/xla_mine");
    std::fs::create_dir_all(&package).expect("a folder");
    std::os::unix::fs::symlink(path, package.join("mine.so")).expect("a link");
    std::fs::rename(library(&folder, "ABORTS"), package.join("other.so")).expect("a second library");
    let site = format!("pjrt.site_packages={}", folder.path("site").display());
    let found = devices(plugin, &[&site, "pjrt.probe_ms=60000"]);
    assert!(n_devices(&found) > 0 && found.out.contains("(xla_mine)"), "{}", found.out);
    found.says(&["xla_mine: ", "mine.so has this name", "other.so needs another"]);

    let manifest = format!(r#"{{"name": "written", "library": "{path}"}}"#);
    folder.write("a.pjrt.json", manifest);
    folder.write("b.pjrt.json", "{");
    let manifests = format!("pjrt.manifests={}", folder.path("").display());
    let found = devices(plugin, &[&manifests, &site, "pjrt.probe_ms=60000"]);
    // One file is one library, under the first name that refers to it. The library installed beside it still crashes.
    assert!(found.out.contains("(written)") && !found.out.contains("(xla_mine)"), "{}", found.out);
    found.says(&["b.pjrt.json", "xla_mine: it ended the probing process"]);
}
