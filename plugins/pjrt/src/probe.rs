//! Trying a PJRT library in a child process with a time limit before it is opened in this one (B27).
//!
//! Libraries without their hardware abort (Tenstorrent's) and hang (libtpu looks for the cloud's metadata server for
//! minutes). The child is a program that tries devbay plugins, `devbay` or `devbay-probe`. It gets this plugin's own
//! file, with the one library as its option and probing off, and prints one line: the number of devices found, or the
//! reason for none. A library that crashes or stalls the child harms no other process.

use crate::find::{Named, Variable};
use crate::installed::packages_around;
use crate::machine::Machine;
use crate::verdicts::Verdict;
use devbay_plugin_api::locks::lock;
use serde::Deserialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// The variable with the program that probes, or `off`.
pub const VARIABLE: &str = "DEVBAY_PROBE";
/// Begins the line with the answer.
const MARK: &str = "devbay-probe-result ";
/// Begins the reasons when no library has a device. The plugin says it, in the child too.
pub const NO_DEVICE: &str = "no PJRT library has a device; ";

/// Without an accelerator in the machine nothing can be found that takes long.
const LIMIT: Duration = Duration::from_secs(4);
/// Hardware takes its time to start. A host that probes this plugin gives it ten seconds.
const LIMIT_WITH_ACCELERATOR: Duration = Duration::from_secs(8);
/// Longest wait for a killed child: one that is stuck in a driver goes when the driver lets it.
const LAST_MOMENTS: Duration = Duration::from_millis(200);
/// Time between two looks whether a child has ended.
const STEP: Duration = Duration::from_millis(2);
/// Longest wait for the end of an ended child's output. It is there at once, however late a busy machine reads it, but
/// for what has left the child's group and lives on. Less than the time that this plugin's own probe has.
const REST_OF_OUTPUT: Duration = Duration::from_secs(2);
/// The most of a child's output that is kept; the answer comes last.
const KEPT_MAX: usize = 1 << 20;
/// Characters of a child's last words that are quoted.
const LAST_WORDS_MAX: usize = 300;

/// Way to try unknown libraries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probing {
    /// They are not: the user wants them opened in this process.
    Off,
    /// There is no program for it, for this reason. A library that a person named is opened here all the same.
    Missing(String),
    /// In a child process.
    By(Prober),
}

/// A probing program and what it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prober {
    /// The program: `devbay` or `devbay-probe`.
    pub program: PathBuf,
    /// This plugin's own file.
    pub plugin: PathBuf,
    /// Time that a library may take.
    pub limit: Duration,
    /// Variables that are set in the child's environment.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// Reason why there is no verdict: the library had no part in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not probed: {0}")]
pub struct NotProbed(pub String);

impl Probing {
    /// Chooses what the options `probe` and `probe_ms` ask for, empty for the defaults.
    ///
    /// # Errors
    /// In words, if the time is no number of milliseconds above 0.
    pub fn choose(
        program: &str,
        limit_ms: &str,
        variable: Variable<'_>,
        machine: &Machine,
    ) -> Result<Self, String> {
        let limit = match limit_ms {
            "" if machine.accelerators.is_empty() => LIMIT,
            "" => LIMIT_WITH_ACCELERATOR,
            given => match given.parse() {
                Ok(ms @ 1..) => Duration::from_millis(ms),
                _ => return Err(format!("probe_ms is a number of milliseconds above 0, found {given}")),
            },
        };
        let given = if program.is_empty() { variable(VARIABLE).unwrap_or_default() } else { program.into() };
        if given == "off" {
            return Ok(Self::Off);
        }
        let own = own_file();
        let program = match given.is_empty() {
            true => program_beside().or_else(|| program_of_package(own.as_deref()?)),
            false => Some(PathBuf::from(given)),
        };
        let Some(program) = program else {
            let words = "neither devbay nor devbay-probe is beside this program, and DEVBAY_PROBE names none";
            return Ok(Self::Missing(words.to_owned()));
        };
        let Some(plugin) = own else {
            let words = "the plugin has no file of its own that a probing process could load";
            return Ok(Self::Missing(words.to_owned()));
        };
        let skips = !machine.may_have_tpu && variable(SKIP_METADATA).is_none();
        let environment = if skips { vec![(SKIP_METADATA, "1")] } else { Vec::new() };
        Ok(Self::By(Prober { program, plugin, limit, environment }))
    }
}

/// libtpu asks the cloud's metadata server what it is part of, and off the cloud it asks for minutes. Where there is a TPU
/// it needs the answer, so this is set only where no device can be one. JAX does the same where it finds no chip.
const SKIP_METADATA: &str = "TPU_SKIP_MDS_QUERY";

/// The running program if it is one that probes, else one beside it.
fn program_beside() -> Option<PathBuf> {
    const NAMES: [&str; 2] = ["devbay-probe", "devbay"];
    let running = std::env::current_exe().ok()?;
    if running.file_stem().is_some_and(|stem| NAMES.iter().any(|name| stem == *name)) {
        return Some(running);
    }
    let beside = |name| running.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    NAMES.iter().map(beside).find(|path| path.is_file())
}

/// The command in the Python environment that a plugin's library is installed in, `bin/devbay`.
fn program_of_package(plugin: &Path) -> Option<PathBuf> {
    // PREFIX/lib/python3.x/site-packages.
    let prefix = packages_around(plugin)?.ancestors().nth(3)?;
    Some(prefix.join("bin/devbay")).filter(|path| path.is_file())
}

/// The shared library that this code is in. `None` if it is linked into the program, and where the system is not asked:
/// outside of Unix.
pub fn own_file() -> Option<PathBuf> {
    #[cfg(unix)]
    {
        let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let address = own_file as *const () as *const libc::c_void;
        // SAFETY: `about` is ours to write; any address may be asked for.
        let found = unsafe { libc::dladdr(address, about.as_mut_ptr()) };
        // SAFETY: zeros are a value of the struct, whether it was written or not.
        let about = unsafe { about.assume_init() };
        if found == 0 || about.dli_fname.is_null() {
            return None;
        }
        // SAFETY: a C string of the loader's, which lives as long as this library.
        let name = unsafe { std::ffi::CStr::from_ptr(about.dli_fname) };
        let path = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name.to_bytes());
        let path = Path::new(path).canonicalize().ok()?;
        let running = std::env::current_exe().and_then(|running| running.canonicalize()).ok()?;
        (path != running).then_some(path)
    }
    #[cfg(not(unix))]
    {
        None
    }
}

/// The line's content.
#[derive(Deserialize)]
struct Answer {
    n_devices: Option<usize>,
    refusal: Option<(String, String)>,
}

impl Prober {
    /// Tries a library. Blocks until the child has answered or the time is over.
    ///
    /// # Errors
    /// [`NotProbed`] if the program cannot be started, or does not get as far as the library.
    pub fn probe(&self, library: &Named) -> Result<Verdict, NotProbed> {
        let json = serde_json::to_string(&[library])
            .map_err(|error| NotProbed(format!("{}: {error}", library.path.display())))?;
        let mut command = Command::new(&self.program);
        command.arg("probe").arg(&self.plugin);
        command.args(["--option", &format!("libraries={json}"), "--option", "probe=off"]);
        command.envs(self.environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        confine(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| NotProbed(format!("cannot start {}: {error}", self.program.display())))?;
        let (stdout, stderr) =
            (child.stdout.take().map(Output::read_all), child.stderr.take().map(Output::read_all));
        let status = wait(child, self.limit).map_err(|error| NotProbed(error.to_string()))?;
        // A killed child that does not go keeps its pipes open, and is given only a moment.
        let rest = if status.is_some() { REST_OF_OUTPUT } else { LAST_MOMENTS };
        let text = |output: Option<Output>| output.map(|output| output.text(rest)).unwrap_or_default();
        let (stdout, stderr) = (text(stdout), text(stderr));
        let Some(status) = status else {
            let words = words_of_error(&stdout, &stderr).map(|words| format!(": {words}"));
            return Ok(Verdict::Unanswered(format!(
                "it did not answer within {:?} in a probing process (option probe_ms gives it more){}",
                self.limit,
                words.unwrap_or_default()
            )));
        };
        let line = stdout.lines().rev().find_map(|line| line.strip_prefix(MARK));
        let Some(answer) = line.and_then(|line| serde_json::from_str::<Answer>(line).ok()) else {
            let words =
                words_of_error(&stdout, &stderr).or_else(|| lines(&stdout, &stderr).next().map(quote));
            let words = words.unwrap_or_else(|| "no message".to_owned());
            return Ok(Verdict::Failed(format!(
                "it ended the probing process ({}): {words}",
                describe(status)
            )));
        };
        match answer {
            Answer { n_devices: Some(n @ 1..), .. } => Ok(Verdict::Devices(n)),
            Answer { refusal: Some((_, reason)), .. } => match refusal_of(&reason, &library.name) {
                Some(reason) => Ok(Verdict::Refused(reason)),
                None => Err(NotProbed(format!("{} refused the plugin: {reason}", self.program.display()))),
            },
            Answer { .. } => Ok(Verdict::Refused("it has no device".to_owned())),
        }
    }
}

/// A child that crashes leaves no core file, and on Linux none outlives this process.
#[cfg(unix)]
fn confine(command: &mut Command) {
    let prepare = || {
        // One byte and not none: Linux hands a core to a program in spite of a limit of 0 (core(5)).
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the struct is alive for the call. That it failed is no reason not to probe.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
        #[cfg(target_os = "linux")]
        {
            // SAFETY: numbers alone. The signal comes when the thread that waits for the child ends without having
            // killed it, so with the process.
            let _ = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        }
        Ok(())
    };
    // A group of its own, which is ended as a whole: a library may start processes too.
    std::os::unix::process::CommandExt::process_group(command, 0);
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
}

/// The library's own reason in what the host of the child says about the plugin; `None` if it is about the plugin.
fn refusal_of(reason: &str, name: &str) -> Option<String> {
    let (_, about) = reason.split_once(NO_DEVICE)?;
    let about = about.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(about);
    // The host's word for the status, with which every such refusal ends.
    Some(about.strip_suffix(" (UNAVAILABLE)").unwrap_or(about).to_owned())
}

/// Returns the lines that a child printed, the last line first, standard error before standard output.
fn lines<'a>(stdout: &'a str, stderr: &'a str) -> impl Iterator<Item = &'a str> {
    // Rust's words for a library's exception tell nothing about the library.
    const OURS: &str = "Rust cannot catch foreign exceptions";
    let lines = stderr.lines().rev().chain(stdout.lines().rev()).map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.contains(OURS))
}

/// The last line that tells of an error.
fn words_of_error(stdout: &str, stderr: &str) -> Option<String> {
    const SIGNS: [&str; 4] = ["fatal", "critical", "error", "what()"];
    let has_sign = |line: &&str| SIGNS.iter().any(|sign| line.to_ascii_lowercase().contains(sign));
    lines(stdout, stderr).find(has_sign).map(quote)
}

fn quote(line: &str) -> String {
    line.chars().take(LAST_WORDS_MAX).collect()
}

/// The end of what a child printed, read in a thread of its own so that a talkative child does not block.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: mpsc::Receiver<()>,
}

impl Output {
    fn read_all(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = mpsc::channel();
        let kept = Arc::clone(&bytes);
        let read = move || {
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
        };
        // Without a thread the output stays empty, and the child's end is still told.
        let _ = std::thread::Builder::new().name("pjrt probe output".into()).spawn(read);
        Self { bytes, ended }
    }

    fn text(self, limit: Duration) -> String {
        let _ = self.ended.recv_timeout(limit);
        let bytes = lock(&self.bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Waits for a child and ends its group; kills it and gives `None` when the time is over.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let in_time = loop {
        if has_ended(&mut child)? {
            break true;
        }
        if Instant::now() >= deadline {
            break false;
        }
        std::thread::sleep(STEP);
    };
    // Not reaped yet, so its number is still its group's.
    #[cfg(unix)]
    if let Ok(leader) = i32::try_from(child.id()) {
        // SAFETY: numbers alone.
        let _ = unsafe { libc::kill(-leader, libc::SIGKILL) };
    }
    if in_time {
        return child.wait().map(Some);
    }
    child.kill()?;
    let last = Instant::now() + LAST_MOMENTS;
    while !has_ended(&mut child)? {
        if Instant::now() >= last {
            // Without a thread the child's entry stays in the system's table until this process ends.
            let _ = std::thread::Builder::new().name("pjrt probe end".into()).spawn(move || child.wait());
            return Ok(None);
        }
        std::thread::sleep(STEP);
    }
    child.wait().map(|_| None)
}

/// Returns whether a child has ended. It is not reaped, so that its number stays its own.
#[cfg(unix)]
fn has_ended(child: &mut Child) -> std::io::Result<bool> {
    // SAFETY: plain data, for which zeros are a value.
    let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the struct is alive for the call.
    if unsafe { libc::waitid(libc::P_PID, child.id(), &raw mut about, options) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // Stays 0 while there is nothing to tell.
    Ok(about.si_signo != 0)
}

/// Returns whether a child has ended.
#[cfg(not(unix))]
fn has_ended(child: &mut Child) -> std::io::Result<bool> {
    Ok(child.try_wait()?.is_some())
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
            return format!("signal {signal}");
        }
    }
    status.to_string()
}
