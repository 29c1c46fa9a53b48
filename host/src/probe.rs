//! Probing: an unknown library is tried in a child process with a time limit before it is loaded here (B27).
//!
//! Real libraries abort when their hardware is missing, or hang when a network is. The child is this program's
//! own command (`devbay probe PATH`), which loads the library, makes an instance, lists its devices and prints
//! one line that begins with [`MARK`]; whatever else the library prints is not mistaken for it.

use devbay_core::about::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
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
    let text = |reader: Option<Reader>| reader.and_then(|r| r.join().ok()).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let line = stdout.lines().find_map(|line| line.strip_prefix(MARK));
    if let Some(result) = line.and_then(|line| serde_json::from_str(line).ok()) {
        return Ok(result);
    }
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(failed(format!("the library ended the probing process ({}): {last}", describe(status))))
}

type Reader = std::thread::JoinHandle<String>;

/// Reads a pipe to its end, at most a megabyte, so that a talkative child does not block.
fn read_in_background(mut pipe: impl Read + Send + 'static) -> Reader {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.by_ref().take(1 << 20).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
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
