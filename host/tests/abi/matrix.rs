//! Plugins of every version of the ABI in hosts of every version (B8).
//!
//! `conformance/matrix` has a folder for each archived minor: its header, a plugin and a host in C, and binaries of both for
//! linux-x86_64. Other systems compile the archived sources with their own header. Today's sides are made here, and
//! two simulated ones: the next minor, in which every growable struct has one more field, and the same after it has
//! dropped today's. What a cell should say follows from rule B3 and the two ranges ([`expected`]). The table in
//! `docs/abi-matrix.md` is what ran.

use crate::support::{Folder, Host, RELU, compile_c, faulty, fixtures, library_name, relu, root};
use devbay_plugin_api::abi::LAYOUTS;
use devbay_plugin_api::abi::version::MinorRange;
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The system that archived binaries are for.
const BINARIES: &str = "linux-x86_64";
const RUNS_BINARIES: bool = cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"));

/// An archived host answers in milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A plugin or a host, the minors that it speaks, and what it is called in the table.
struct Side<T> {
    name: String,
    minors: MinorRange,
    what: T,
}

impl<T> Side<T> {
    fn new(name: impl Into<String>, minors: MinorRange, what: T) -> Self {
        Self { name: name.into(), minors, what }
    }

    fn title(&self) -> String {
        format!("{} ({})", self.name, self.minors)
    }
}

enum HostKind {
    /// The crate that is tested.
    Today,
    /// `host.c`, compiled.
    Program(PathBuf),
}

/// A folder of `conformance/matrix`.
struct Archive {
    minor: u32,
    path: PathBuf,
    minors: MinorRange,
}

fn matrix_folder() -> PathBuf {
    root().join("conformance/matrix")
}

/// Every archive, oldest first.
fn archives() -> Vec<Archive> {
    let mut archives: Vec<Archive> = std::fs::read_dir(matrix_folder())
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let minor = path.file_name()?.to_str()?.strip_prefix("0.")?.parse().ok()?;
            let header = std::fs::read_to_string(path.join("devbay_plugin.h")).unwrap();
            let minors = MinorRange {
                min: number(&header, "DEVBAY_ABI_MINOR_MIN"),
                max: number(&header, "DEVBAY_ABI_MINOR"),
            };
            Some(Archive { minor, path, minors })
        })
        .collect();
    archives.sort_by_key(|archive| archive.minor);
    assert!(archives.len() >= 2, "archives are missing in {}", matrix_folder().display());
    for archive in &archives {
        assert_eq!(archive.minors.max, archive.minor, "the header in {}", archive.path.display());
    }
    archives
}

/// Start of the line that defines a number of a header, up to its digits.
fn definition(name: &str) -> String {
    format!("#define {name} UINT32_C(")
}

fn number(header: &str, name: &str) -> u32 {
    let line = header.lines().find_map(|line| line.strip_prefix(&definition(name)));
    line.and_then(|rest| rest.trim_end_matches(')').parse().ok())
        .unwrap_or_else(|| panic!("the header does not define {name}"))
}

impl Archive {
    /// The plugin and the host: unpacked, or compiled where the binaries do not run.
    fn plugin_and_host(&self, folder: &Folder) -> (PathBuf, PathBuf) {
        if RUNS_BINARIES {
            return self.unpack(folder);
        }
        eprintln!(
            "0.{}: the archived binaries are for {BINARIES}; here their sources are compiled",
            self.minor
        );
        self.compile(folder)
    }

    fn unpack(&self, folder: &Folder) -> (PathBuf, PathBuf) {
        let [plugin, host] = self.binaries();
        let plugin = folder.write(&format!("0.{}/{}", self.minor, library_name("minimal")), plugin);
        let host = folder.write(&format!("0.{}/host", self.minor), host);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        (plugin, host)
    }

    /// Content of the plugin's and the host's binary.
    fn binaries(&self) -> [Vec<u8>; 2] {
        let file = std::fs::File::open(self.path.join(BINARIES).with_extension("zip")).unwrap();
        let mut archive = zip::ZipArchive::new(file).unwrap();
        ["plugin.so", "host"].map(|name| {
            let mut content = Vec::new();
            archive.by_name(&format!("{BINARIES}/{name}")).unwrap().read_to_end(&mut content).unwrap();
            content
        })
    }

    fn compile(&self, folder: &Folder) -> (PathBuf, PathBuf) {
        let sources = Sources { include: self.path.clone(), plugin: "plugin.c", host: "host.c" };
        let name = format!("0.{}", self.minor);
        (sources.plugin(folder, &name), sources.host(folder, &name))
    }
}

/// A header with a plugin and a host for it, in one folder or two.
struct Sources {
    include: PathBuf,
    plugin: &'static str,
    host: &'static str,
}

impl Sources {
    fn plugin(&self, folder: &Folder, name: &str) -> PathBuf {
        let library = folder.path().join(name).join(library_name("minimal"));
        std::fs::create_dir_all(library.parent().unwrap()).unwrap();
        // A field that only the next minor has is not in every list of values.
        let arguments = ["-fPIC", "-shared", "-Wno-missing-field-initializers"];
        compile_c(&library, &self.include.join(self.plugin), &self.include, &arguments);
        library
    }

    fn host(&self, folder: &Folder, name: &str) -> PathBuf {
        let program = folder.path().join(name).join("host");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        compile_c(
            &program,
            &self.include.join(self.host),
            &self.include,
            &["-Wno-missing-field-initializers"],
        );
        program
    }
}

fn todays_header() -> String {
    std::fs::read_to_string(root().join("plugin-api/include/devbay_plugin.h")).unwrap()
}

/// Today's sources as a next minor might have them, written to a folder. `edit` changes the plugin's further.
///
/// Every growable struct ends with one more field, and the tables of functions with one more function. Both sides
/// fill them with what no reader survives: a number too large for anything, and `abort`.
fn next_minor(folder: &Folder, name: &str, minors: MinorRange, edit: impl Fn(String) -> String) -> Sources {
    let include = folder.path().join(name);
    let fixture = |name: &str| std::fs::read_to_string(fixtures().join(name)).unwrap();
    folder.write(&format!("{name}/devbay_plugin.h"), next_header(&todays_header(), minors));
    folder.write(&format!("{name}/minimal.c"), edit(next_source(&fixture("minimal.c"))));
    folder.write(&format!("{name}/host.c"), next_source(&fixture("host.c")));
    Sources { include, plugin: "minimal.c", host: "host.c" }
}

/// Tables of functions, which gain a function and no number.
const TABLES: [&str; 2] = ["devbay_plugin_table", "devbay_host_api"];

fn next_header(today: &str, minors: MinorRange) -> String {
    let mut header = String::new();
    let mut lines = today.lines().peekable();
    let (mut growable, mut n_grown) = (None, 0);
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("struct ") {
            let sized = lines.peek().is_some_and(|next| next.contains("uint32_t struct_size;"));
            growable = rest.strip_suffix(" {").filter(|_| sized);
        }
        let definitions = [("DEVBAY_ABI_MINOR", minors.max), ("DEVBAY_ABI_MINOR_MIN", minors.min)];
        let defined = definitions.into_iter().find(|(name, _)| line.starts_with(&definition(name)));
        if let Some((name, number)) = defined {
            header.push_str(&format!("{}{number})\n", definition(name)));
            continue;
        }
        if line == "};"
            && let Some(name) = growable.take()
        {
            let field = if TABLES.contains(&name) { "void (*tomorrow)(void);" } else { "uint64_t tomorrow;" };
            header.push_str(&format!("    {field}\n"));
            n_grown += 1;
        }
        header.push_str(line);
        header.push('\n');
    }
    assert_eq!(n_grown, LAYOUTS.iter().filter(|layout| layout.growable).count(), "growable structs");
    assert_eq!(
        (number(&header, "DEVBAY_ABI_MINOR_MIN"), number(&header, "DEVBAY_ABI_MINOR")),
        (minors.min, minors.max)
    );
    header
}

/// Fills the new fields of each struct that a source describes by name.
fn next_source(today: &str) -> String {
    const SIZE: &str = ".struct_size = sizeof(";
    let mut parts = today.split(SIZE);
    let mut source = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(')').unwrap();
        let value = if TABLES.contains(&name) { "abort" } else { "UINT64_MAX" };
        let field = if rest.starts_with(',') { format!(", .tomorrow = {value}") } else { String::new() };
        source.push_str(&format!("{SIZE}{name}){field}{rest}"));
    }
    source
}

/// What a cell should say, by rule B3.
fn expected(plugin: MinorRange, host: MinorRange) -> String {
    let advice = if plugin.min > host.max {
        "update devbay, or ask for a plugin built for an older one"
    } else if plugin.max < host.min {
        "ask the vendor for a newer plugin"
    } else {
        return format!("served as 0.{}", plugin.max.min(host.max));
    };
    format!("refused: no common ABI version: the plugin speaks {plugin}, this host {host}; {advice}")
}

/// What a host makes of a plugin.
fn cell(host: &HostKind, plugin: &Path) -> String {
    match host {
        HostKind::Today => todays_answer(plugin),
        HostKind::Program(program) => answer(program, plugin),
    }
}

fn todays_answer(plugin: &Path) -> String {
    let host = Host::explicit(plugin);
    let Some(plugin) = host.runtime.plugins().first() else {
        return format!("refused: {}", host.refusal().reason);
    };
    match relu(&host.device()) {
        Ok(values) if values == RELU => format!("served as 0.{}", plugin.minor()),
        other => format!("failed: Relu gave {other:?}"),
    }
}

/// The line that a host in C prints; with all that it said if its exit status does not go with it.
fn answer(program: &Path, plugin: &Path) -> String {
    let output = run(program, plugin);
    let line = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    let start = match output.status.code() {
        Some(0) => "served as ",
        Some(2) => "refused: ",
        _ => "failed: ",
    };
    if line.starts_with(start) { line } else { format!("failed: {output:?}") }
}

/// Runs a host in a process of its own, which is ended at the time limit.
fn run(program: &Path, plugin: &Path) -> Output {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut command = Command::new(program);
    command.arg(plugin).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = loop {
        match command.spawn() {
            Ok(child) => break child,
            // A process that another test has just started may still hold the program's file open for writing.
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => panic!("cannot start {}: {e}", program.display()),
        }
    };
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{} with {}: no answer within {TIME_LIMIT:?}", program.display(), plugin.display());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

/// Two ranges of a minor that does not exist yet: one with today's, and one that has dropped it.
fn next_ranges() -> [(&'static str, MinorRange); 2] {
    let (MinorRange { min, max }, next) = (MinorRange::CURRENT, MinorRange::CURRENT.max + 1);
    assert!(min <= max);
    [
        ("a next minor", MinorRange { min, max: next }),
        ("a next minor without today's", MinorRange { min: next, max: next }),
    ]
}

/// Every plugin and every host, made in a folder: the rows and the columns.
fn sides(folder: &Folder) -> (Vec<Side<PathBuf>>, Vec<Side<HostKind>>) {
    let (mut plugins, mut hosts) = (Vec::new(), Vec::new());
    for archive in archives() {
        let name = format!("archived 0.{}", archive.minor);
        let (plugin, host) = archive.plugin_and_host(folder);
        plugins.push(Side::new(&name, archive.minors, plugin));
        hosts.push(Side::new(&name, archive.minors, HostKind::Program(host)));
    }
    let today = MinorRange::CURRENT;
    plugins.push(Side::new("today's in C", today, folder.c_plugin("minimal", "minimal.c", &[])));
    plugins.push(Side::new("today's in Rust", today, faulty()));
    hosts.push(Side::new("today's", today, HostKind::Today));
    for (name, minors) in next_ranges() {
        let sources = next_minor(folder, name, minors, |plugin| plugin);
        plugins.push(Side::new(name, minors, sources.plugin(folder, name)));
        hosts.push(Side::new(name, minors, HostKind::Program(sources.host(folder, name))));
    }
    (plugins, hosts)
}

#[test]
fn b08_every_plugin_meets_every_host() {
    let folder = Folder::new();
    let (plugins, hosts) = sides(&folder);
    let titles: Vec<String> = hosts.iter().map(Side::title).collect();
    let mut table =
        format!("| plugin ↓ host → | {} |\n| --- |{}\n", titles.join(" | "), " --- |".repeat(hosts.len()));
    let mut wrong = Vec::new();
    for plugin in &plugins {
        let mut row = format!("| {} |", plugin.title());
        for host in &hosts {
            let (found, expected) = (cell(&host.what, &plugin.what), expected(plugin.minors, host.minors));
            if found != expected {
                wrong.push(format!(
                    "{} in {}:\n  {found}\nexpected\n  {expected}",
                    plugin.title(),
                    host.title()
                ));
            }
            row.push_str(&format!(" {found} |"));
        }
        table.push_str(&row);
        table.push('\n');
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let document = std::fs::read_to_string(root().join("docs/abi-matrix.md")).unwrap();
    let written: String =
        document.lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    assert!(written == table, "the table in docs/abi-matrix.md is not what ran, which is:\n\n{table}");
}

/// A plugin that writes its own, newer struct over an older host's: what the guards of `host.c` are for (B4).
#[test]
fn b08_a_plugin_that_writes_beyond_an_older_struct_is_caught() {
    let folder = Folder::new();
    let [(name, minors), _] = next_ranges();
    let careless = next_minor(&folder, name, minors, |plugin| {
        let end = "out->state = state;";
        assert!(plugin.contains(end), "minimal.c has no line `{end}`");
        plugin.replace(end, &format!("{end}\n    out->tomorrow = 1;"))
    });
    let plugin = careless.plugin(&folder, name);
    assert_eq!(answer(&careless.host(&folder, name), &plugin), format!("served as 0.{}", minors.max));
    let program = folder.path().join("host");
    compile_c(&program, &fixtures().join("host.c"), &root().join("plugin-api/include"), &[]);
    assert_eq!(answer(&program, &plugin), "failed: the plugin wrote beyond the size of a struct");
}

/// The sources make what the binaries are, with any C compiler.
#[test]
fn b08_archived_sources_compile_with_their_header() {
    let folder = Folder::new();
    for archive in archives() {
        let (plugin, host) = archive.compile(&folder);
        assert_eq!(answer(&host, &plugin), format!("served as 0.{}", archive.minor));
    }
}

#[test]
fn b08_archives_are_as_they_were_made() {
    let readme = std::fs::read_to_string(matrix_folder().join("README.md")).unwrap();
    let mut missing = Vec::new();
    for archive in archives() {
        let [plugin, host] = archive.binaries();
        let packed = format!("{BINARIES}.zip");
        let mut files = vec![(format!("{BINARIES}/plugin.so"), plugin), (format!("{BINARIES}/host"), host)];
        for name in ["devbay_plugin.h", "plugin.c", "host.c", &packed] {
            files.push((name.to_owned(), std::fs::read(archive.path.join(name)).unwrap()));
        }
        for (name, content) in files {
            let digits: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("{digits}  0.{}/{name}", archive.minor);
            if !readme.lines().any(|written| written == line) {
                missing.push(line);
            }
        }
    }
    assert!(missing.is_empty(), "conformance/matrix/README.md has other sums than:\n{}", missing.join("\n"));
}
