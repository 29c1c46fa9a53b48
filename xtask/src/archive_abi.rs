//! `cargo xtask archive-abi`: archives a plugin and a host of the current minor in `conformance/matrix`, as source and
//! binary.
//!
//! Run it once per release of the ABI, on linux-x86_64, and commit the folder. The tests named `b08_` run every archived
//! binary against every other and against the current one. An existing archive is never changed.

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use zip::write::{SimpleFileOptions, ZipWriter};

#[derive(clap::Args)]
pub struct Arguments {
    /// Build the binaries of a folder that already has its sources, such as 1 for conformance/matrix/0.1
    #[arg(long, value_name = "N")]
    minor: Option<u32>,
}

/// Name in the archive, and path of the current source.
const SOURCES: &[(&str, &str)] = &[
    ("devbay_plugin.h", "plugin-api/include/devbay_plugin.h"),
    ("plugin.c", "conformance/fixtures/minimal.c"),
    ("host.c", "conformance/fixtures/host.c"),
];

/// Name of the binaries' folder, and of its archive file.
const SYSTEM: &str = "linux-x86_64";

/// Flags of every compilation. They keep paths and dates out of the binaries, so that one compiler always makes the same
/// file.
const FLAGS: &[&str] =
    &["-std=c11", "-O2", "-s", "-Wl,--build-id=none", "-Wall", "-Wextra", "-pedantic", "-Werror"];

/// Binary, and the compiler's arguments for it.
const BINARIES: &[(&str, &[&str])] = &[
    ("plugin.so", &["-shared", "-fPIC", "-o", "plugin.so", "plugin.c"]),
    ("host", &["-o", "host", "host.c", "-ldl"]),
];

/// Copies the sources, builds and packs the binaries, and prints the lines for the `README.md` beside them.
///
/// # Errors
/// If the minor is archived already, or a file cannot be made.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(cfg!(all(target_os = "linux", target_arch = "x86_64")), "archives are made on {SYSTEM}");
    let root = crate::abi::repository_root();
    let header = fs::read_to_string(root.join(SOURCES[0].1)).context("cannot read the header")?;
    let minor = match arguments.minor {
        Some(minor) => minor,
        None => crate::header_package::number(&header, "DEVBAY_ABI_MINOR")?,
    };
    let folder = root.join(format!("conformance/matrix/0.{minor}"));
    if arguments.minor.is_none() {
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (name, source) in SOURCES {
            fs::copy(root.join(source), folder.join(name))
                .with_context(|| format!("cannot copy {source}"))?;
        }
    }
    let packed = folder.join(SYSTEM).with_extension("zip");
    ensure!(!packed.exists(), "{} is there, and archives do not change", packed.display());
    let mut lines = Vec::new();
    let mut archive = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    // No timestamps, so that equal binaries give an equal file.
    let options = SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
    for (name, arguments) in BINARIES {
        let binary = compile(&folder, name, arguments)?;
        let name = format!("{SYSTEM}/{name}");
        archive.start_file(&name, options.unix_permissions(0o755))?;
        archive.write_all(&binary)?;
        lines.push(line(&binary, minor, &name));
    }
    fs::write(&packed, archive.finish()?.into_inner())?;
    for name in SOURCES.iter().map(|(name, _)| *name).chain([&*format!("{SYSTEM}.zip")]) {
        lines.push(line(&fs::read(folder.join(name))?, minor, name));
    }
    let compiler = Command::new("cc").arg("--version").output().context("there is no cc")?;
    println!("{}", String::from_utf8_lossy(&compiler.stdout).lines().next().unwrap_or_default());
    println!("{}", lines.join("\n"));
    Ok(())
}

/// Compiles in the archive's folder, so that the compiler sees no path of this machine.
fn compile(folder: &Path, name: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    println!("cc {} {}", FLAGS.join(" "), arguments.join(" "));
    let mut compiler = Command::new("cc");
    let status = compiler.current_dir(folder).args(FLAGS).args(arguments).status();
    ensure!(status.context("cannot start cc")?.success(), "cc could not compile {name}");
    let path = folder.join(name);
    let binary = fs::read(&path)?;
    fs::remove_file(&path)?;
    Ok(binary)
}

/// Returns a line in the format of `sha256sum`.
fn line(bytes: &[u8], minor: u32, name: &str) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}  0.{minor}/{name}")
}
