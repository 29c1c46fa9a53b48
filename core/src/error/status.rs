//! The meaning of a plugin's status: the one table from a status, and the phase in which the plugin gave it, to an [`ErrorKind`].
//!
//! A status is the plugin's view of a call. Only the host knows the origin of the call's arguments, so only the phase
//! distinguishes an invalid model from an invalid input.

use super::{Error, ErrorKind};
use devbay_plugin_api::abi::{
    DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_CANCELLED, DEVBAY_STATUS_DATA_LOSS, DEVBAY_STATUS_DEVICE_LOST,
    DEVBAY_STATUS_FAILED_PRECONDITION, DEVBAY_STATUS_INTERNAL, DEVBAY_STATUS_INVALID,
    DEVBAY_STATUS_NOT_FOUND, DEVBAY_STATUS_OK, DEVBAY_STATUS_OUT_OF_MEMORY, DEVBAY_STATUS_PANICKED,
    DEVBAY_STATUS_TIMEOUT, DEVBAY_STATUS_UNAVAILABLE, DEVBAY_STATUS_UNKNOWN, DEVBAY_STATUS_UNSUPPORTED,
    Status,
};
use std::fmt;

/// A request to a plugin, by its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Make an instance of the plugin.
    Create,
    /// List its devices.
    ListDevices,
    /// List the kernels of one device.
    ListKernels,
    /// Allocate a buffer.
    Allocate,
    /// Tell how much memory is left.
    AskMemory,
    /// Make a stream.
    OpenStream,
    /// Infer the type of a result of a node.
    InferShape,
    /// Estimate the cost of a node.
    EstimateCost,
    /// Prepare a kernel for a node.
    Prepare,
    /// Pack a constant for a prepared kernel.
    Pack,
    /// Import or export native memory.
    ExchangeMemory,
    /// Wrap a native stream.
    ExchangeStream,
    /// List the formats that the compiler reads.
    ListFormats,
    /// Say which nodes of a graph the compiler takes.
    Claim,
    /// Compile a program.
    Compile,
    /// Load a stored program.
    Load,
    /// Say whether a stored program can be loaded.
    Validate,
    /// Describe a compiled program.
    Describe,
    /// Give the stored form of a compiled program.
    Store,
    /// Enqueue a copy.
    Copy,
    /// Launch a kernel.
    Launch,
    /// Run a compiled program.
    Execute,
    /// Begin to record launches.
    BeginRecording,
    /// End the recording of launches.
    EndRecording,
    /// Enqueue a recording.
    Replay,
    /// Enqueue a signal.
    Signal,
    /// Have a stream wait for another one.
    WaitForStream,
    /// Call back at a point.
    CallBack,
    /// Tell which point a stream has reached.
    AskReached,
    /// Reach a point: the status of the call back.
    Reach(u64),
    /// Do work that was enqueued before, no matter by which call.
    Work,
}

impl Phase {
    /// Returns the name of the ABI's function, or words for a person where a phase has several or none.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::ListDevices => "devices",
            Self::ListKernels => "device_kernels",
            Self::Allocate => "buffer_alloc",
            Self::AskMemory => "memory_info",
            Self::OpenStream => "stream_create",
            Self::InferShape => "kernel_shape",
            Self::EstimateCost => "kernel_cost",
            Self::Prepare => "prepare",
            Self::Pack => "pack",
            Self::ExchangeMemory => "extension for native memory",
            Self::ExchangeStream => "extension for native streams",
            Self::ListFormats => "list of formats",
            Self::Claim => "claim",
            Self::Compile => "compiler",
            Self::Load => "loader of programs",
            Self::Validate => "validation of stored programs",
            Self::Describe => "description of programs",
            Self::Store => "stored form of a program",
            Self::Copy => "copy",
            Self::Launch => "launch",
            Self::Execute => "execute",
            Self::BeginRecording => "record_begin",
            Self::EndRecording => "record_end",
            Self::Replay => "replay",
            Self::Signal => "stream_signal",
            Self::WaitForStream => "stream_wait",
            Self::CallBack => "stream_on_reached",
            Self::AskReached => "stream_reached",
            Self::Reach(_) => "point of a stream",
            Self::Work => "work on a stream",
        }
    }

    /// Whose fault it is if the plugin finds the call's arguments invalid.
    fn invalid(self) -> ErrorKind {
        match self {
            // The question is about a node with its attributes, types and constants.
            Self::InferShape | Self::Prepare => ErrorKind::InvalidModel,
            // The node was accepted: the run's data is invalid, as an index out of range or a length below 0.
            Self::Copy
            | Self::Launch
            | Self::Execute
            | Self::BeginRecording
            | Self::EndRecording
            | Self::Replay
            | Self::Signal
            | Self::WaitForStream
            | Self::CallBack
            | Self::AskReached
            | Self::Reach(_)
            | Self::Work => ErrorKind::InvalidInput,
            // An option of the plugin's, a size, a foreign pointer, a stored program: the application passed it on. A node's
            // cost and a packed constant belong to a node that `prepare` judges.
            Self::Create
            | Self::ListDevices
            | Self::ListKernels
            | Self::Allocate
            | Self::AskMemory
            | Self::OpenStream
            | Self::EstimateCost
            | Self::Pack
            | Self::ExchangeMemory
            | Self::ExchangeStream
            | Self::ListFormats
            | Self::Claim
            | Self::Compile
            | Self::Load
            | Self::Validate
            | Self::Describe
            | Self::Store => ErrorKind::InvalidArgument,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reach(value) => write!(f, "point {value} of a stream"),
            phase => f.write_str(phase.name()),
        }
    }
}

impl ErrorKind {
    /// Returns the meaning of a status that a plugin gave in a phase.
    pub fn of_status(status: Status, phase: Phase) -> Self {
        match status {
            DEVBAY_STATUS_CANCELLED => Self::Cancelled,
            DEVBAY_STATUS_INVALID => phase.invalid(),
            DEVBAY_STATUS_TIMEOUT => Self::DeadlineExceeded,
            DEVBAY_STATUS_NOT_FOUND => Self::NotFound,
            DEVBAY_STATUS_OUT_OF_MEMORY => Self::OutOfMemory,
            DEVBAY_STATUS_UNSUPPORTED => Self::UnsupportedOp,
            DEVBAY_STATUS_UNAVAILABLE => Self::Unavailable,
            DEVBAY_STATUS_DEVICE_LOST => Self::DeviceLost,
            DEVBAY_STATUS_PANICKED => Self::PluginPoisoned,
            // FAILED_PRECONDITION, ABORTED, DATA_LOSS, INTERNAL, UNKNOWN and codes of later versions (B5).
            _ => Self::PluginFailed,
        }
    }
}

impl Error {
    /// Makes the error of a status as the plugin gave it. [`Error::from_status`] looks first whether the run was ended.
    pub(crate) fn of_status(status: Status, phase: Phase, detail: &str) -> Self {
        let name = status_name(status);
        let text = if detail.is_empty() {
            format!("{phase} failed: {name}")
        } else {
            format!("{phase} failed: {detail} ({name})")
        };
        Self::new(ErrorKind::of_status(status, phase), text)
    }
}

/// Returns the ABI's name of a status.
pub fn status_name(status: Status) -> String {
    let name = match status {
        DEVBAY_STATUS_OK => "OK",
        DEVBAY_STATUS_CANCELLED => "CANCELLED",
        DEVBAY_STATUS_UNKNOWN => "UNKNOWN",
        DEVBAY_STATUS_INVALID => "INVALID",
        DEVBAY_STATUS_TIMEOUT => "TIMEOUT",
        DEVBAY_STATUS_NOT_FOUND => "NOT_FOUND",
        DEVBAY_STATUS_OUT_OF_MEMORY => "OUT_OF_MEMORY",
        DEVBAY_STATUS_FAILED_PRECONDITION => "FAILED_PRECONDITION",
        DEVBAY_STATUS_ABORTED => "ABORTED",
        DEVBAY_STATUS_UNSUPPORTED => "UNSUPPORTED",
        DEVBAY_STATUS_INTERNAL => "INTERNAL",
        DEVBAY_STATUS_UNAVAILABLE => "UNAVAILABLE",
        DEVBAY_STATUS_DATA_LOSS => "DATA_LOSS",
        DEVBAY_STATUS_DEVICE_LOST => "DEVICE_LOST",
        DEVBAY_STATUS_PANICKED => "PANICKED",
        code => return format!("UNKNOWN, code {code}"),
    };
    name.to_owned()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Every phase, by whose fault invalid arguments are.
    const OF_MODEL: &[Phase] = &[Phase::InferShape, Phase::Prepare];
    const OF_INPUT: &[Phase] = &[
        Phase::Copy,
        Phase::Launch,
        Phase::Execute,
        Phase::BeginRecording,
        Phase::EndRecording,
        Phase::Replay,
        Phase::Signal,
        Phase::WaitForStream,
        Phase::CallBack,
        Phase::AskReached,
        Phase::Reach(3),
        Phase::Work,
    ];
    const OF_APPLICATION: &[Phase] = &[
        Phase::Create,
        Phase::ListDevices,
        Phase::ListKernels,
        Phase::Allocate,
        Phase::AskMemory,
        Phase::OpenStream,
        Phase::EstimateCost,
        Phase::Pack,
        Phase::ExchangeMemory,
        Phase::ExchangeStream,
        Phase::ListFormats,
        Phase::Claim,
        Phase::Compile,
        Phase::Load,
        Phase::Validate,
        Phase::Describe,
        Phase::Store,
    ];

    #[test]
    fn invalid_is_the_fault_of_who_chose_the_arguments() {
        for (phases, kind) in [
            (OF_MODEL, ErrorKind::InvalidModel),
            (OF_INPUT, ErrorKind::InvalidInput),
            (OF_APPLICATION, ErrorKind::InvalidArgument),
        ] {
            for &phase in phases {
                assert_eq!(ErrorKind::of_status(DEVBAY_STATUS_INVALID, phase), kind, "{phase}");
            }
        }
    }

    #[test]
    fn other_statuses_mean_the_same_in_every_phase() {
        for (status, kind) in [
            (DEVBAY_STATUS_CANCELLED, ErrorKind::Cancelled),
            (DEVBAY_STATUS_TIMEOUT, ErrorKind::DeadlineExceeded),
            (DEVBAY_STATUS_NOT_FOUND, ErrorKind::NotFound),
            (DEVBAY_STATUS_OUT_OF_MEMORY, ErrorKind::OutOfMemory),
            (DEVBAY_STATUS_UNSUPPORTED, ErrorKind::UnsupportedOp),
            (DEVBAY_STATUS_UNAVAILABLE, ErrorKind::Unavailable),
            (DEVBAY_STATUS_DEVICE_LOST, ErrorKind::DeviceLost),
            (DEVBAY_STATUS_PANICKED, ErrorKind::PluginPoisoned),
            (DEVBAY_STATUS_UNKNOWN, ErrorKind::PluginFailed),
            (DEVBAY_STATUS_FAILED_PRECONDITION, ErrorKind::PluginFailed),
            (DEVBAY_STATUS_ABORTED, ErrorKind::PluginFailed),
            (DEVBAY_STATUS_INTERNAL, ErrorKind::PluginFailed),
            (DEVBAY_STATUS_DATA_LOSS, ErrorKind::PluginFailed),
            (1000, ErrorKind::PluginFailed),
        ] {
            for &phase in [OF_MODEL, OF_INPUT, OF_APPLICATION].into_iter().flatten() {
                assert_eq!(ErrorKind::of_status(status, phase), kind, "{phase}: {}", status_name(status));
            }
        }
    }

    #[test]
    fn words_are_the_phase_the_detail_and_the_status() {
        let text = |phase, detail| Error::of_status(DEVBAY_STATUS_INVALID, phase, detail).text().to_owned();
        assert_eq!(text(Phase::Prepare, ""), "prepare failed: INVALID");
        assert_eq!(text(Phase::Launch, "index 7 of 3"), "launch failed: index 7 of 3 (INVALID)");
        assert_eq!(text(Phase::Reach(3), ""), "point 3 of a stream failed: INVALID");
    }
}
