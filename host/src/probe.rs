//! Probing: an unknown library is tried in a child process with a time limit before it is loaded here (B27).
//!
//! Real libraries abort when their hardware is missing, or hang when a network is. The child is this program's
//! own command (`devbay probe PATH`), which loads the library, makes an instance, lists its devices ([`answer`])
//! and prints one line that begins with [`MARK`]; whatever else the library prints is not mistaken for it.

use crate::discover::name_of_library;
use crate::report::Outcome;
use crate::runtime::{Runtime, RuntimeOptions};
use devbay_core::about::{Refusal, RefusalKind};
use devbay_core::error::{Error, ErrorKind, Result as CoreResult};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Begins the line with the result.
pub const MARK: &str = "devbay-probe-result ";

/// How unknown libraries are tried.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// The program that probes: the `devbay` command.
    pub program: PathBuf,
    /// How long it may take.
    pub limit: Duration,
}

impl ProbeOptions {
    /// Ten seconds with a program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), limit: Duration::from_secs(10) }
    }
}

/// What a probe found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProbeResult {
    /// The plugin's name, if it could be read.
    pub name: Option<String>,
    /// Number of devices, if they could be listed.
    pub n_devices: Option<usize>,
    /// Why the plugin was refused, kind and reason.
    pub refusal: Option<(String, String)>,
}

/// Tries a library in a child process.
///
/// # Errors
/// A refusal if the child crashes, hangs or cannot be started; what the child itself refused is refused again
/// when the library is loaded here, with its full reason.
pub fn probe(
    library: &Path,
    options: &[(String, String)],
    probe: &ProbeOptions,
) -> Result<ProbeResult, Refusal> {
    let failed = |reason: String| Refusal::new(RefusalKind::FailedProbe, reason);
    let mut command = Command::new(&probe.program);
    command.arg("probe").arg(library).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (key, value) in options {
        command.arg("--option").arg(format!("{key}={value}"));
    }
    let mut child = command.spawn().map_err(|e| {
        Refusal::new(
            RefusalKind::NotProbed,
            format!("not probed: cannot start {}: {e}", probe.program.display()),
        )
    })?;
    let stdout = child.stdout.take().map(read_in_background);
    let stderr = child.stderr.take().map(read_in_background);
    let Some(status) =
        wait(&mut child, probe.limit).map_err(|e| failed(format!("the probe was lost: {e}")))?
    else {
        return Err(failed(format!(
            "the library did not answer within {:?} in a probing process",
            probe.limit
        )));
    };
    let text = |reader: Option<Reader>| reader.map(Reader::text).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let line = stdout.lines().find_map(|line| line.strip_prefix(MARK));
    if let Some(result) = line.and_then(|line| serde_json::from_str(line).ok()) {
        return Ok(result);
    }
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    let last: String = last.chars().take(LAST_WORDS_MAX).collect();
    Err(failed(format!("the library ended the probing process ({}): {last}", describe(status))))
}

/// The child's part: loads the library, makes an instance, lists its devices, and gives the line to print.
///
/// What it finds out is an answer, also a refusal.
///
/// # Errors
/// If the system gives no threads.
pub fn answer(library: &Path, options: &[(String, String)]) -> CoreResult<String> {
    // The plugin's name is known after loading, so the options go to whatever its file is called.
    let name = name_of_library(library).unwrap_or_default();
    let options = options.iter().map(|(key, value)| (name.clone(), key.clone(), value.clone()));
    let runtime = Runtime::new(RuntimeOptions {
        threads: 1,
        plugins: vec![library.to_owned()],
        plugin_options: options.collect(),
        ..RuntimeOptions::default()
    })?;
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
    Ok(format!("{MARK}{json}"))
}

/// Characters of a dead child's last line that are quoted.
const LAST_WORDS_MAX: usize = 300;

/// How long the end of a dead child's output is waited for: its own children may hold it open.
const REST_OF_OUTPUT: Duration = Duration::from_secs(1);

/// Reads a pipe to its end in a thread of its own, so that a talkative child does not block.
struct Reader {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: mpsc::Receiver<()>,
}

impl Reader {
    /// What was read when the pipe ended, the last megabyte of it: the answer comes last.
    fn text(self) -> String {
        let _ = self.ended.recv_timeout(REST_OF_OUTPUT);
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> Reader {
    const KEPT_MAX: usize = 1 << 20;
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let (end, ended) = mpsc::channel();
    let kept = Arc::clone(&bytes);
    std::thread::spawn(move || {
        let mut chunk = [0u8; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&chunk[..n]);
            if kept.len() > 2 * KEPT_MAX {
                let superfluous = kept.len() - KEPT_MAX;
                kept.drain(..superfluous);
            }
        }
        let _ = end.send(());
    });
    Reader { bytes, ended }
}

/// Waits for a child; kills it and gives None when the time is over.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
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
