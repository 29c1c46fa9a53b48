//! Probing: an unknown library is tried in a child process with a time limit before it is loaded here (B27).
//!
//! Real libraries abort if their hardware is missing, or hang if a network is. The child is this program's own command
//! (`devbay probe PATH`), which loads the library, makes an instance, lists its devices ([`answer`]) and prints one line
//! that begins with [`MARK`] and a token of this probe. The token distinguishes that line from the library's own output,
//! even from another probe's line. It is printed only after loading: a library that ends the process earlier, with whatever
//! exit code, has not answered.
//!
//! The child and all its descendants end when the time is over or the child has answered ([`crate::group`]).

use crate::discover::name_of_library;
use crate::group::Group;
use crate::report::Outcome;
use crate::runtime::Runtime;
use devbay_core::about::{Refusal, RefusalKind};
use devbay_core::error::{Error, ErrorKind, Result as CoreResult};
use devbay_plugin_api::locks::lock;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Begins the line with the result.
pub const MARK: &str = "devbay-probe-result ";

/// Treatment of libraries whose SHA-256 is in no manifest.
#[derive(Clone, Debug, Default)]
pub enum Probing {
    /// They are refused. A library named explicitly is loaded as it is, because naming it means trusting it.
    #[default]
    Refused,
    /// They are tried in a child process first, even those named explicitly.
    Tried(ProbeOptions),
    /// They are loaded as they are.
    Trusted,
}

/// Options for trying unknown libraries.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// The program that probes: the `devbay` command.
    pub program: PathBuf,
    /// Time limit of a probe.
    pub limit: Duration,
}

impl ProbeOptions {
    /// Returns options for a program, with a limit of ten seconds.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), limit: Duration::from_secs(10) }
    }
}

/// Result of a probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProbeResult {
    /// The plugin's name, if it could be read.
    pub name: Option<String>,
    /// Number of devices, if they could be listed.
    pub n_devices: Option<usize>,
    /// Kind and reason of the refusal, if the plugin was refused.
    pub refusal: Option<(String, String)>,
}

/// Tries a library in a child process.
///
/// # Errors
/// A refusal if the child crashes, hangs or cannot be started. If the child itself refused the library, loading it here
/// refuses it again, with the full reason.
pub fn probe(
    library: &Path,
    options: &[(String, String)],
    probe: &ProbeOptions,
) -> Result<ProbeResult, Refusal> {
    let failed = |reason: String| Refusal::new(RefusalKind::FailedProbe, reason);
    let token = token();
    let mut command = Command::new(&probe.program);
    command.arg("probe").arg(library).args(["--token", &token]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (key, value) in options {
        command.arg("--option").arg(format!("{key}={value}"));
    }
    let not_probed = |e: std::io::Error, what: &dyn std::fmt::Display| {
        Refusal::new(RefusalKind::NotProbed, format!("not probed: cannot start {what}: {e}"))
    };
    let mut child = Group::spawn(&mut command).map_err(|e| not_probed(e, &probe.program.display()))?;
    let reader = |pipe: Option<Box<dyn Read + Send>>| pipe.map(read_in_background).transpose();
    let readers = reader(child.leader.stdout.take().map(|pipe| Box::new(pipe) as _))
        .and_then(|stdout| Ok((stdout, reader(child.leader.stderr.take().map(|pipe| Box::new(pipe) as _))?)));
    let (stdout, stderr) = readers.map_err(|e| not_probed(e, &"a thread"))?;
    let has_ended = child.ends_within(probe.limit);
    // This also ends its own children, and closes their pipes.
    let status = child.end();
    let lost = |e: std::io::Error| failed(format!("the probe was lost: {e}"));
    let Some(status) = has_ended.map_err(lost)?.then_some(status).transpose().map_err(lost)? else {
        return Err(failed(format!(
            "the library did not answer within {:?} in a probing process",
            probe.limit
        )));
    };
    let text = |reader: Option<Reader>| reader.map(Reader::text).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let line = stdout.lines().rev().find_map(|line| line.strip_prefix(MARK)?.strip_prefix(&*token));
    if let Some(result) = line.and_then(|line| serde_json::from_str(line).ok()) {
        return Ok(result);
    }
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    let last: String = last.chars().take(LAST_WORDS_MAX).collect();
    Err(failed(format!("the library ended the probing process ({}): {last}", describe(status))))
}

/// Runs the child's part: loads the library, makes an instance, lists its devices, and returns the line to print, with the
/// parent's token.
///
/// Every finding is an answer, even a refusal.
///
/// # Errors
/// If the system gives no threads.
pub fn answer(library: &Path, options: &[(String, String)], token: &str) -> CoreResult<String> {
    // The plugin's name is known only after loading, so the options are matched by the library's file name.
    let name = name_of_library(library).unwrap_or_default();
    let options = options.iter().map(|(key, value)| (name.clone(), key.clone(), value.clone()));
    let runtime = Runtime::builder().threads(1).plugin(library).options(options).build()?;
    let plugin = runtime
        .report()
        .plugins
        .first()
        .ok_or_else(|| Error::new(ErrorKind::Internal, "a library without a report"))?;
    let (n_devices, refusal) = match &plugin.outcome {
        Outcome::Loaded { n_devices, .. } => (Some(*n_devices), None),
        Outcome::Refused(refusal) => (None, Some((refusal.kind.name().to_owned(), refusal.reason.clone()))),
        Outcome::NotAsked | Outcome::Replaced => (None, None),
    };
    let result = ProbeResult { name: plugin.name.clone(), n_devices, refusal };
    let json = serde_json::to_string(&result)
        .map_err(|e| Error::new(ErrorKind::Internal, "a result that is no JSON").because(e))?;
    Ok(format!("{MARK}{token}{json}"))
}

/// Prints the child's line, and ends the child, because the library's behaviour at exit or unload is not under test.
pub fn print_and_end(line: &str) -> ! {
    // Start a new line, in case the library has printed part of one.
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "\n{line}").and_then(|()| stdout.flush());
    let code = i32::from(written.is_err());
    #[cfg(unix)]
    // SAFETY: the call does not return, and runs no code of the library's or ours.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// Returns a token that only this probe's child knows.
fn token() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{random:016x} ")
}

/// Maximum number of quoted characters of a dead child's last line.
const LAST_WORDS_MAX: usize = 300;

/// Time to wait for the end of a dead child's output. The end comes at once, however late a busy machine reads it, unless a
/// process that left the child's group is still alive.
const REST_OF_OUTPUT: Duration = Duration::from_secs(10);

/// Reads a pipe to its end in a separate thread, so that a verbose child does not block.
struct Reader {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: mpsc::Receiver<()>,
}

impl Reader {
    /// Returns the last megabyte up to the pipe's end: the answer comes last.
    fn text(self) -> String {
        let _ = self.ended.recv_timeout(REST_OF_OUTPUT);
        let bytes = lock(&self.bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn read_in_background(mut pipe: Box<dyn Read + Send>) -> std::io::Result<Reader> {
    const KEPT_MAX: usize = 1 << 20;
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let (end, ended) = mpsc::channel();
    let kept = Arc::clone(&bytes);
    std::thread::Builder::new().name("devbay-probe".to_owned()).spawn(move || {
        let mut chunk = [0u8; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            let mut kept = lock(&kept);
            kept.extend_from_slice(&chunk[..n]);
            if kept.len() > 2 * KEPT_MAX {
                let superfluous = kept.len() - KEPT_MAX;
                kept.drain(..superfluous);
            }
        }
        let _ = end.send(());
    })?;
    Ok(Reader { bytes, ended })
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if let Some(signal) = status.signal() {
            return format!("signal {signal}");
        }
    }
    status.to_string()
}
