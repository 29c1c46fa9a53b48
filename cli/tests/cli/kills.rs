//! Kills or interrupts the command at random moments, and checks everything that it and its plugins write: existing files
//! are complete, and nothing is left over.
//!
//! `DEVBAY_KILLS` sets the repetitions per test; the default only shows that it works at all.

use crate::support::{Folder, command, opencl_library, pjrt_plugin, root, wgpu_library};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A writing command: it runs in its own folder, with the cache in `cache` there.
struct Job {
    name: &'static str,
    arguments: Vec<OsString>,
    /// Checks whether a file is complete, given the one written without a kill.
    is_whole: fn(&[u8], &[u8]) -> bool,
    /// A folder that is written completely or not at all.
    whole_folder: Option<&'static str>,
    /// True if the host writes it: Ctrl-C then removes unfinished files. Leftovers of a plugin's library are removed by its
    /// next writer.
    is_hosts: bool,
    /// Exit code of an undisturbed run.
    code: i32,
    folder: Folder,
}

/// Paths in a job's folder, with the files' content.
type Files = BTreeMap<PathBuf, Vec<u8>>;

impl Job {
    fn new(name: &'static str, is_whole: fn(&[u8], &[u8]) -> bool, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&word| match word {
            "MNIST" => root().join("models/mnist_cnn/model.onnx").into_os_string(),
            word => word.into(),
        });
        let arguments = arguments.collect();
        let (whole_folder, is_hosts, code, folder) = (None, true, 0, Folder::new());
        let job = Self { name, arguments, is_whole, whole_folder, is_hosts, code, folder };
        fs::create_dir(job.folder.path("cache")).expect("made");
        job
    }

    /// Returns a job that makes a plugin write to the cache.
    fn cache(name: &'static str, is_whole: fn(&[u8], &[u8]) -> bool, plugin: &[String]) -> Self {
        let device = format!("{name}:0");
        let arguments = ["run", "MNIST", "--random", "1", "--no-fallback", "--device", &device];
        let mut job = Self::new(name, is_whole, &arguments);
        job.arguments.extend(plugin.iter().map(OsString::from));
        job.is_hosts = false;
        job
    }

    fn start(&self) -> Child {
        let mut work = command();
        work.args(&self.arguments).current_dir(self.folder.path(""));
        work.env("DEVBAY_CACHE_DIR", self.folder.path("cache")).stdout(Stdio::null()).stderr(Stdio::null());
        work.spawn().expect("it starts")
    }

    /// Runs it to its end.
    fn done(&self) -> Files {
        let ended = self.start().wait().expect("it ended");
        assert_eq!(ended.code(), Some(self.code), "{}: {ended}", self.name);
        self.files()
    }

    fn files(&self) -> Files {
        let mut files = Files::new();
        let mut folders = vec![self.folder.path("")];
        while let Some(folder) = folders.pop() {
            // Files may disappear while the folder is read.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(path),
                    _ => {
                        fs::read(&path)
                            .into_iter()
                            .for_each(|content| drop(files.insert(path.clone(), content)));
                    }
                }
            }
        }
        files
    }

    /// Removes all that it wrote.
    fn clear(&self) {
        for entry in fs::read_dir(self.folder.path("")).expect("a folder").flatten() {
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.expect("removed");
        }
        fs::create_dir(self.folder.path("cache")).expect("made");
    }

    fn remove_unfinished(&self) {
        for path in self.files().into_keys() {
            if let Some(left) = path.ancestors().find(|path| is_unfinished(path)) {
                let removed = if left.is_dir() { fs::remove_dir_all(left) } else { fs::remove_file(left) };
                // Removing the first also removes the folder of several files.
                assert!(removed.is_ok() || !left.exists());
            }
        }
    }

    fn has_unfinished(&self) -> bool {
        fn is_in(folder: &Path) -> bool {
            fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
                is_unfinished(&entry.path())
                    || entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_in(&entry.path())
            })
        }
        is_in(&self.folder.path(""))
    }

    /// Fails unless every finished file is as written without a kill.
    fn expect_whole(&self, first: &Files) {
        let files = self.files();
        if let Some(folder) = self.whole_folder.map(|folder| self.folder.path(folder)) {
            let n_in = |files: &Files| files.keys().filter(|path| path.starts_with(&folder)).count();
            let is_there = folder.exists();
            assert!(!is_there || n_in(&files) == n_in(first), "{}: a part of the folder is there", self.name);
        }
        for (path, found) in files {
            if path.ancestors().any(is_unfinished) {
                continue;
            }
            let expected =
                first.get(&path).unwrap_or_else(|| panic!("{}: {} is new", self.name, path.display()));
            assert!((self.is_whole)(&found, expected), "{}: {} is half written", self.name, path.display());
        }
    }
}

fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(".devbay-") && name.ends_with(".part")
}

fn same(found: &[u8], expected: &[u8]) -> bool {
    found == expected
}

/// Accepts any JSON, because another measurement has other times.
fn json(found: &[u8], _expected: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(found).is_ok()
}

/// Checks a program in the OpenCL plugin's cache: a head with two lengths and a checksum, the key, and the driver's binary.
/// Binaries may differ: PoCL's contain all kernels compiled so far by any process that shares its cache.
fn opencl_program(found: &[u8], _expected: &[u8]) -> bool {
    let Some([key_len, binary_len, hash]): Option<[u64; 3]> =
        found.get(..24).map(bytemuck::pod_read_unaligned)
    else {
        return false;
    };
    let before = 24 + key_len as usize;
    // FNV-1a.
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    found.len() as u64 == before as u64 + binary_len
        && found[before..].iter().fold(0xcbf2_9ce4_8422_2325, step) == hash
}

/// Checks a plugin's cache entry. Entries include JSON verdicts with their times, and XLA programs, which are never
/// byte-identical: the length must be within a hundredth of the complete one.
fn kept(found: &[u8], expected: &[u8]) -> bool {
    let is_as_long = || found.len().abs_diff(expected.len()) <= expected.len() / 100;
    if json(expected, &[]) { json(found, expected) } else { same(found, expected) || is_as_long() }
}

fn signal(child: &Child, signal: &str) {
    // It may have ended already.
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
    sent.expect("kill is there");
}

/// A way to end a child.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Kill,
    /// Ctrl-C, this many times.
    Interrupt(u32),
}

#[derive(Default)]
struct Counts {
    killed: u32,
    interrupted: u32,
    unfinished: u32,
}

/// Ends a job at a moment and checks its files.
fn end_one(job: &Job, first: &Files, by: By, is_time: &dyn Fn() -> bool, counts: &mut Counts) {
    if by != By::Kill {
        // Leftovers of an earlier kill are removed by the next writer, which an interrupted job may not reach.
        job.remove_unfinished();
    }
    let mut child = job.start();
    while child.try_wait().expect("it runs").is_none() && !is_time() {}
    match by {
        By::Kill => drop(child.kill()),
        By::Interrupt(n) => (0..n).for_each(|_| signal(&child, "-INT")),
    }
    let ended: ExitStatus = child.wait().expect("it ended");
    let is_unfinished = job.has_unfinished();
    match by {
        By::Kill => {
            counts.killed += u32::from(ended.signal() == Some(9));
            counts.unfinished += u32::from(is_unfinished);
        }
        By::Interrupt(_) => {
            // Before the command handles the signal, the signal ends it; and it may come too late.
            let is_expected =
                [Some(job.code), Some(130)].contains(&ended.code()) || ended.signal() == Some(2);
            assert!(is_expected, "{}, {by:?}: {ended}", job.name);
            counts.interrupted += u32::from(ended.code() != Some(job.code));
            assert!(!(job.is_hosts && is_unfinished), "{}, {by:?}: something unfinished is left", job.name);
        }
    }
    job.expect_whole(first);
}

/// Ends jobs in turn, at random moments and when an unfinished file appears, which random moments seldom hit.
fn check(jobs: &[Job], n_default: usize) {
    let n: usize = std::env::var("DEVBAY_KILLS").map_or(n_default, |n| n.parse().expect("a number"));
    let mut counts: Vec<Counts> = jobs.iter().map(|_| Counts::default()).collect();
    let begun: Vec<(Files, Duration)> = jobs
        .iter()
        .map(|job| {
            let begin = Instant::now();
            let files = job.done();
            assert!(!files.is_empty(), "{} writes nothing", job.name);
            (files, begin.elapsed())
        })
        .collect();
    for i in 0..n {
        let (at, turn) = (i % jobs.len(), i / jobs.len());
        let (job, (first, took)) = (&jobs[at], &begun[at]);
        let by = [By::Kill, By::Interrupt(1), By::Kill, By::Interrupt(2)][turn % 4];
        // Half of the runs find an earlier output and replace it. A cache does not rewrite an entry, and a project needs a
        // new folder.
        if turn % 8 < 4 || !job.is_hosts || job.whole_folder.is_some() {
            job.clear();
        }
        let random = RandomState::new().build_hasher().finish();
        let wait = Duration::from_nanos(random % (took.as_nanos() as u64).max(1));
        let begin = Instant::now();
        // A job of a few milliseconds ends before it is noticed.
        let is_random = (turn / 2 + at) % 2 == 1 || job.whole_folder.is_some();
        let is_time: &dyn Fn() -> bool =
            if is_random { &|| begin.elapsed() >= wait } else { &|| job.has_unfinished() };
        end_one(job, first, by, is_time, &mut counts[at]);
    }
    for (job, ((first, _), counts)) in jobs.iter().zip(begun.iter().zip(&counts)) {
        let Counts { killed, interrupted, unfinished } = counts;
        let name = job.name;
        eprintln!("{name}: {killed} killed, {unfinished} left an unfinished file; {interrupted} interrupted");
        // The next writer removes leftovers.
        if job.whole_folder.is_some() {
            fs::remove_dir_all(job.folder.path("project")).into_iter().for_each(drop);
        } else if !job.is_hosts {
            for (path, _) in job.files() {
                if !is_unfinished(&path) {
                    fs::remove_file(path).expect("removed");
                }
            }
        }
        job.done();
        job.expect_whole(first);
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&job.files()), names(first), "{name} leaves something");
    }
}

#[test]
fn what_is_killed_leaves_nothing_half() {
    let jobs = [
        Job::new("compile", same, &["compile", "MNIST", "-o", "m.dbx"]),
        Job::new("outputs", same, &["run", "MNIST", "--random", "1", "--output", "o.npz"]),
        Job::new("feedback", json, &["bench", "MNIST", "--cost", "--runs", "1", "--feedback", "times.json"]),
        Job::new("trace", json, &["run", "MNIST", "--random", "1", "--profile", "trace.json"]),
        Job {
            whole_folder: Some("project"),
            ..Job::new("project", same, &["new-plugin", "my-npu", "--lang", "c", "--dir", "project"])
        },
    ];
    check(&jobs, 10);
}

#[test]
#[ignore = "full: commands that take a second each"]
fn what_is_killed_leaves_nothing_half_of_rarer_files() {
    let jobs = [
        Job::new("rates", json, &["devices", "--calibrate", "--threads", "1"]),
        Job::new("report", json, &["conformance", "cpu", "--only", "negotiate.*", "-o", "report.json"]),
        Job::new("page", same, &["inspect", "MNIST", "--plan", "--html", "plan.html"]),
        Job::new("folder of outputs", same, &["run", "MNIST", "--random", "1", "--output", "made/"]),
        Job {
            code: 3,
            ..Job::new(
                "differing node",
                same,
                &[
                    "diff",
                    "MNIST",
                    "--a",
                    "cpu",
                    "--b",
                    "narrow=f32=f16",
                    "--random",
                    "1",
                    "--rtol",
                    "1e-7",
                    "--output",
                    "node",
                ],
            )
        },
    ];
    check(&jobs, 40);
}

#[test]
fn caches_that_are_killed_are_whole() {
    let library = |path: PathBuf| ["--plugin".to_owned(), path.display().to_string()];
    let mut jobs = Vec::new();
    jobs.extend(wgpu_library().map(|path| Job::cache("wgpu", same, &library(path))));
    jobs.extend(opencl_library().map(|path| Job::cache("opencl", opencl_program, &library(path))));
    jobs.extend(pjrt_plugin().map(|(plugin, _)| Job::cache("pjrt", kept, &plugin)));
    if jobs.is_empty() {
        eprintln!("not run: no plugin with a cache has a device here");
        return;
    }
    check(&jobs, 6);
}

/// A cached program whose bytes differ from the written ones is compiled again, and never given to the driver.
#[test]
fn programs_of_opencl_that_are_damaged_are_compiled_anew() {
    let Some(library) = opencl_library() else {
        eprintln!("not run: OpenCL has no device here");
        return;
    };
    let job = Job::cache("opencl", opencl_program, &["--plugin".to_owned(), library.display().to_string()]);
    let first = job.done();
    let damages: [fn(&mut Vec<u8>); 3] = [
        |bytes| *bytes.last_mut().expect("a program") ^= 0x40,
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.extend([0; 100]),
    ];
    let paths: Vec<&PathBuf> = first.keys().collect();
    for (damage, path) in damages.iter().zip(paths.iter().cycle()) {
        let mut bytes = first[*path].clone();
        damage(&mut bytes);
        fs::write(path, &bytes).expect("written");
        assert!(!opencl_program(&bytes, &[]), "the damage shows");
        job.done();
        job.expect_whole(&first);
        assert_ne!(fs::read(path).expect("it is there"), bytes, "{} is still damaged", path.display());
    }
}
