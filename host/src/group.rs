//! Child processes that are ended together with all their descendants.
//!
//! A child leads a process group of its own. The whole group is ended when the child has ended, has exceeded its time limit,
//! or is no longer needed, and on Linux when this process ends. A child that leaves its group on purpose escapes. Core files
//! are off, because the caller expects children to crash.

use std::io::Result;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A child and its group; dropping it ends both.
pub struct Group {
    /// The child.
    pub leader: Child,
    /// True once the child was reaped: its process id may then be reused.
    is_reaped: bool,
}

impl Group {
    /// Starts a command as the leader of a group.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        confine(command);
        Ok(Self { leader: command.spawn()?, is_reaped: false })
    }

    /// Returns whether the child ends within a time. It is not reaped, so that its process id stays its own.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        while !self.has_ended()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(true)
    }

    /// Returns whether the child has ended.
    ///
    /// # Errors
    /// Errors of the system.
    #[cfg(unix)]
    pub fn has_ended(&mut self) -> Result<bool> {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match Pid::from_raw(self.leader.id() as i32).filter(|_| !self.is_reaped) {
            Some(pid) => Ok(waitid(WaitId::Pid(pid), options)?.is_some()),
            None => Ok(true),
        }
    }

    /// Returns whether the child has ended.
    ///
    /// # Errors
    /// Errors of the system.
    #[cfg(not(unix))]
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.leader.try_wait()?.is_some())
    }

    /// Ends the whole group, and returns the child's exit status.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn end(&mut self) -> Result<ExitStatus> {
        #[cfg(unix)]
        if let Some(leader) =
            rustix::process::Pid::from_raw(self.leader.id() as i32).filter(|_| !self.is_reaped)
        {
            // Fails if the whole group has ended.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
        if !self.is_reaped {
            let _ = self.leader.kill();
        }
        self.is_reaped = true;
        self.leader.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A failure to wait changes nothing.
        let _ = self.end();
    }
}

/// Gives a child its own group, no core files, and on Linux a lifetime bound to that of the starting thread.
#[cfg_attr(not(unix), expect(unused_variables, reason = "other systems end a child by its handle alone"))]
fn confine(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
        let prepare = || {
            // One byte, not zero: Linux hands a core to a program in spite of a limit of 0 (core(5)).
            let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            Ok(())
        };
        // SAFETY: between fork and exec, `prepare` makes only two system calls, which neither allocate nor lock.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
    }
}
