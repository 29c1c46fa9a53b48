//! A safe way to write a plugin in Rust.
//!
//! Implement [`Plugin`], [`Device`] and [`Stream`], list [`Kernel`]s, and name the plugin in
//! [`export_plugin!`](crate::export_plugin). The SDK builds the table, and reads and writes the ABI's structs
//! by their sizes. It catches every panic and turns it into a status with its message and place (B19). It
//! keeps the detail of a stream's last failure (B18).
//!
//! ```
//! use devbay_plugin_api::sdk::*;
//! use devbay_plugin_api::{abi, export_plugin};
//!
//! struct Demo { device: DemoDevice }
//! struct DemoDevice { desc: DeviceDesc }
//! struct DemoStream;
//!
//! impl Plugin for Demo {
//!     type Device = DemoDevice;
//!     const ABOUT: About = About { name: "demo", vendor: "me", version: "1.0", ..About::DEFAULT };
//!     const KERNELS: &'static [Kernel<DemoDevice>] = &[
//!         Kernel::new("Neg", 13, prepare_neg).types(&[TypeVar::of(&[F32])]).operands(&[0], &[0]),
//!     ];
//!     fn create(_host: Host, _options: &Options<'_>) -> Result<Self> {
//!         let desc = DeviceDesc { id: "0".into(), name: "demo".into(), inline: true, ..DeviceDesc::default() };
//!         Ok(Demo { device: DemoDevice { desc } })
//!     }
//!     fn devices(&self) -> Result<Vec<&DemoDevice>> { Ok(vec![&self.device]) }
//! }
//!
//! impl Device for DemoDevice {
//!     type Buffer = HostBuffer;
//!     type Stream = DemoStream;
//!     fn describe(&self) -> &DeviceDesc { &self.desc }
//!     fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> { HostBuffer::alloc(request) }
//!     fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<DemoStream> { Ok(DemoStream) }
//! }
//!
//! impl Stream for DemoStream {
//!     type Buffer = HostBuffer;
//!     fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> { copy.run_on_host(); Ok(()) }
//! }
//!
//! struct Neg;
//! impl Launch<DemoDevice> for Neg {
//!     fn launch(&self, _stream: &DemoStream, operands: &mut Operands<'_>) -> Result<()> {
//!         let (x, y) = (operands.input::<f32>(0), operands.output::<f32>(0));
//!         for (y, x) in y.iter_mut().zip(x) { *y = -x; }
//!         Ok(())
//!     }
//! }
//! fn prepare_neg(_request: &PrepareRequest<'_, DemoDevice>) -> Result<Prepared> { Ok(Prepared::new(Neg)) }
//!
//! export_plugin!(Demo);
//! # fn main() {
//! #     let info = unsafe { &*devbay_plugin_query_v0() };
//! #     assert_eq!(unsafe { info.name.get() }, Ok("demo"));
//! # }
//! ```

mod compile;
mod devices;
mod error;
pub mod export;
mod extensions;
mod fused;
mod host;
mod interop;
mod kernel;
mod launch;
pub mod layout;
mod listing;
mod memory;
mod prepared;
mod replay;
mod timeline;
mod view;
pub mod whole_file;

pub use crate::abi::DType;
pub use compile::{
    BlobUse, Claim, CompileRequest, Executable, GraphRequest, ProgramInput, ProgramOutput, ValueType,
};
pub use devices::{DeviceSet, Listed};
pub use error::{Error, Result, guard};
pub use fused::{FusedOperand, FusedStep, fused_steps};
pub use host::{Host, LogLevel, Pace};
pub use kernel::{Cost, Kernel, PrepareFn, TypeVar, dtypes::*};
pub use launch::{DeferredLaunch, Element, Launch, Operands, Pod, SendPtr};
pub use memory::{
    AllocRequest, Allocated, Budget, CopyKind, CopyRequest, HostBuffer, ImportRequest, MemoryUse, Native,
    Region, Share, SpaceDesc, StreamRequest,
};
pub use prepared::{KernelState, Prepared, StateHeader};
pub use replay::Replay;
pub use timeline::{Timeline, failed_dependency};
pub use view::{AttrContent, AttrView, Attrs, GraphView, NodeView, PrepareRequest, TensorView, ValueView};

use std::time::Duration;

/// Identity of a plugin; see [`crate::abi::PluginInfo`].
#[derive(Clone, Copy)]
pub struct About {
    /// Short name, `[a-z][a-z0-9_-]*`.
    pub name: &'static str,
    /// Name of its vendor.
    pub vendor: &'static str,
    /// Its own version.
    pub version: &'static str,
    /// `DEVBAY_THREADING_*`: the calls that the host must serialise.
    pub threading: u32,
    /// Conformance profiles that it claims.
    pub profiles: &'static [&'static str],
    /// Oldest ABI minor that it can work with.
    pub abi_minor_min: u32,
    /// True if the host may unload the library.
    pub unloadable: bool,
    /// Options of `create`.
    pub options: &'static [PluginOption],
}

impl About {
    /// A free-threaded plugin that claims the profile `base`.
    pub const DEFAULT: Self = Self {
        name: "",
        vendor: "",
        version: "",
        threading: crate::abi::DEVBAY_THREADING_FREE,
        profiles: &["base"],
        abi_minor_min: crate::abi::DEVBAY_ABI_MINOR_MIN,
        unloadable: false,
        options: &[],
    };
}

/// An option that `create` accepts.
#[derive(Clone, Copy)]
pub struct PluginOption {
    /// Name of the option, without the plugin's name.
    pub key: &'static str,
    /// Value if the option is not given.
    pub default: &'static str,
    /// One human-readable line.
    pub doc: &'static str,
}

/// The settings passed to `create`, with defaults filled in. The SDK has refused unknown keys.
pub struct Options<'a> {
    pub(crate) declared: &'static [PluginOption],
    pub(crate) given: Vec<(&'a str, &'a str)>,
    pub(crate) abi_minor: u32,
    pub(crate) memory_limit: Option<u64>,
}

impl<'a> Options<'a> {
    /// Returns the value of an option, or its default.
    ///
    /// # Panics
    /// If the plugin did not declare the option, which is a bug in the plugin.
    pub fn get(&self, key: &str) -> &'a str {
        let given = self.given.iter().find(|(given, _)| *given == key);
        given.map(|(_, value)| *value).unwrap_or_else(|| {
            let declared = self.declared.iter().find(|option| option.key == key);
            declared.expect("the option is declared in ABOUT").default
        })
    }

    /// Returns `devbay.memory_limit`, if the host limits memory: the most bytes that the buffers of one
    /// memory space may have together.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    /// Returns the minor that host and plugin agreed on (B3).
    pub fn abi_minor(&self) -> u32 {
        self.abi_minor
    }
}

/// A plugin, from which [`export_plugin!`](crate::export_plugin) builds a table.
pub trait Plugin: Sized + Send + Sync + 'static {
    /// Its devices.
    type Device: Device;
    /// Its identity.
    const ABOUT: About;
    /// The kernels of its devices (B20).
    const KERNELS: &'static [Kernel<Self::Device>];

    /// Returns whether a kernel reads an attribute besides those of [`Kernel::attributes`]: for plugins with
    /// a table of all ops' attributes. A node with any other attribute is refused.
    fn reads_attribute(_domain: &str, _op: &str, _name: &str) -> bool {
        false
    }

    /// Creates an instance; `host` is valid until the instance is dropped.
    ///
    /// # Errors
    /// Unavailable without a driver; invalid for an unknown value of an option.
    fn create(host: Host, options: &Options<'_>) -> Result<Self>;

    /// Lists the devices that are present now. Called from any thread. Each device lives as long as the
    /// instance and does not move, even after it is lost and no longer listed; [`DeviceSet`] keeps devices
    /// that come and go.
    ///
    /// # Errors
    /// Unavailable with the reason if the driver cannot be queried.
    fn devices(&self) -> Result<Vec<&Self::Device>>;

    /// True if the plugin compiles for devices that are not present.
    const AHEAD: bool = false;

    /// Compiles a graph for a device that is not present. The program has results and stored bytes, and
    /// cannot be run.
    ///
    /// # Errors
    /// Unsupported for an unknown target, or for a node that the compiler does not take, with its name.
    fn compile_ahead(
        &self,
        target: &str,
        _request: &GraphRequest<'_>,
    ) -> Result<Box<dyn Executable<Self::Device>>> {
        Err(Error::unsupported(format!("programs for {target}")))
    }

    /// True if [`Plugin::has_kernel`] is called.
    const NARROWS: bool = false;

    /// Returns whether a device has a kernel of [`Plugin::KERNELS`], by its position there. The host does not know of a
    /// kernel that a device lacks, and `prepare` is not called for it.
    ///
    /// # Errors
    /// The driver's error; the device is then left out.
    fn has_kernel(&self, _device: &Self::Device, _kernel_idx: usize) -> Result<bool> {
        Ok(true)
    }

    /// Returns the table of an extension, or None (B6); it lives as long as the instance.
    fn extension(&self, _id: u32, _min_revision: u32) -> Option<*const core::ffi::c_void> {
        None
    }
}

/// Description of a device; see [`crate::abi::DeviceInfo`].
#[derive(Clone, Debug)]
pub struct DeviceDesc {
    /// `DEVBAY_DEVICE_KIND_*`.
    pub kind: u32,
    /// Name that is the same in every run, unique within the plugin.
    pub id: String,
    /// The product's name.
    pub name: String,
    /// Work is complete when the call that enqueues it returns (B14).
    pub inline: bool,
    /// More `DEVBAY_DEVICE_*` flags.
    pub flags: u64,
    /// Streams that may exist at once; 0 for no limit.
    pub streams_max: u32,
    /// References that one launch may have; 0 for no limit.
    pub refs_max: u32,
    /// Memory spaces; operands live in the first.
    pub spaces: Vec<SpaceDesc>,
    /// The same for one chip under two plugins; zero if unknown.
    pub physical_id: [u8; 16],
    /// Underlying driver, with its version.
    pub driver: String,
}

impl Default for DeviceDesc {
    fn default() -> Self {
        Self {
            kind: crate::abi::DEVBAY_DEVICE_KIND_OTHER,
            id: String::new(),
            name: String::new(),
            inline: false,
            flags: 0,
            streams_max: 0,
            refs_max: 0,
            spaces: vec![SpaceDesc::default()],
            physical_id: [0; 16],
            driver: String::new(),
        }
    }
}

/// One device.
pub trait Device: Send + Sync + 'static {
    /// An allocation; dropping it frees the memory.
    type Buffer: Send + Sync + 'static;
    /// Its streams.
    type Stream: Stream<Buffer = Self::Buffer>;

    /// Returns its description, the same for as long as the instance lives.
    fn describe(&self) -> &DeviceDesc;

    /// Allocates memory with undefined content. The SDK has checked space, alignment and size.
    ///
    /// # Errors
    /// Out of memory; the driver's error.
    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<Self::Buffer>>;

    /// Returns whether launches are deferred and run by [`Stream::defer`]; a launch then returns before its
    /// kernel has run.
    fn defers(&self) -> bool {
        false
    }

    /// True if `memory_info` works.
    const MEMORY_INFO: bool = false;

    /// Returns the current use of a space's memory.
    ///
    /// # Errors
    /// Invalid for a space that the device does not have, unsupported if the plugin cannot tell.
    fn memory_info(&self, space_idx: usize) -> Result<MemoryUse> {
        Err(Error::unsupported(format!("memory_info of space {space_idx}")))
    }

    /// Creates a stream. Dropping it waits until all enqueued work is done or, if the stream has failed or
    /// the device is lost, until the device no longer touches the work's memory (B24).
    ///
    /// # Errors
    /// Out of memory; the driver's error.
    fn create_stream(&self, request: &StreamRequest<'_>) -> Result<Self::Stream>;

    /// True if [`Device::lose`] works.
    const LOSE: bool = false;

    /// Loses the device as its driver would, for conformance runs. From then on calls on it return
    /// DEVICE_LOST, and [`Plugin::devices`] no longer lists it.
    ///
    /// # Errors
    /// Device lost if the device is already lost.
    fn lose(&self) -> Result<()> {
        Err(Error::unsupported("lose on this device"))
    }

    /// True if the functions below work: the extension that imports and exports native memory
    /// ([`crate::abi::InteropTable`]).
    const INTEROP: bool = false;

    /// Returns DLPack's name for the device of a memory space: `DLDevice`'s device_type and device_id.
    ///
    /// # Errors
    /// Unsupported for memory that DLPack has no name for.
    fn dlpack_device(&self, space_idx: usize) -> Result<(i32, i32)> {
        Err(Error::unsupported(format!("DLPack's name of space {space_idx}")))
    }

    /// Creates a buffer from external memory, which dropping the buffer does not free. The SDK has checked
    /// space and alignment, and that there is an address.
    ///
    /// # Errors
    /// Invalid for memory that the plugin knows is not the device's.
    fn import(&self, request: &ImportRequest) -> Result<Allocated<Self::Buffer>> {
        Err(Error::unsupported(format!("imported memory in space {}", request.space_idx)))
    }

    /// Returns the native handle of a buffer's first byte.
    ///
    /// # Errors
    /// Unsupported for a buffer without a native handle.
    fn export(_buffer: &Self::Buffer) -> Result<Native> {
        Err(Error::unsupported("a native name of this buffer"))
    }

    /// Creates a stream on top of a native one, whose value may be 0. Dropping it waits for the work enqueued
    /// through it, and does not destroy the native stream.
    ///
    /// # Errors
    /// Unsupported on a device without native streams, and for a handle of another kind.
    fn import_stream(&self, _native: Native) -> Result<Self::Stream> {
        Err(Error::unsupported("a native stream on this device"))
    }

    /// Program formats that [`Device::compile`] accepts, such as `stablehlo`; empty if there are none. At
    /// most 8.
    const FORMATS: &'static [&'static str] = &[];

    /// Compiles a program (B23, [`crate::abi::CompileTable`]). The SDK has checked its format.
    ///
    /// # Errors
    /// Invalid with the compiler's message for code that is wrong; out of memory.
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable<Self>>>
    where
        Self: Sized,
    {
        Err(Error::unsupported(format!("programs of format {}", request.format)))
    }

    /// True if its compiler accepts graphs, which are then passed to [`Device::claim`].
    const GRAPHS: bool = false;

    /// Returns the cost of each node of a graph on this device; None for nodes that its compiler does not
    /// take. A claim is a promise: any set of claimed nodes compiles.
    ///
    /// # Errors
    /// The driver's error; an unknown node is not an error.
    fn claim(&self, graph: &GraphView<'_>) -> Result<Vec<Option<Claim>>> {
        Ok(vec![None; graph.nodes.len()])
    }

    /// Compiles a graph of claimed nodes.
    ///
    /// # Errors
    /// As [`Device::compile`]; unsupported for a node that the compiler does not take, with its name.
    fn compile_graph(&self, _request: &GraphRequest<'_>) -> Result<Box<dyn Executable<Self>>>
    where
        Self: Sized,
    {
        Err(Error::unsupported("graphs on this device"))
    }

    /// True if its programs can be stored ([`Executable::blob`]) and loaded.
    const BLOBS: bool = false;

    /// Checks whether this device can use stored bytes, which may be arbitrary.
    ///
    /// # Errors
    /// The driver's error.
    fn validate(&self, _blob: &[u8]) -> Result<BlobUse> {
        Ok(BlobUse::Unsupported)
    }

    /// Makes a stored program ready to run.
    ///
    /// # Errors
    /// Unsupported for bytes that [`Device::validate`] does not report as usable; out of memory.
    fn load(&self, _blob: &[u8], _label: &str) -> Result<Box<dyn Executable<Self>>>
    where
        Self: Sized,
    {
        Err(Error::unsupported("stored programs on this device"))
    }

    /// Returns the native handle of a stream.
    ///
    /// # Errors
    /// Unsupported on a device without native streams.
    fn export_stream(_stream: &Self::Stream) -> Result<Native> {
        Err(Error::unsupported("a native stream on this device"))
    }
}

/// Callback for a point: called once, with the status, when the point is reached or has failed (B16).
pub struct Done {
    pub(crate) function: crate::abi::DoneFn,
    pub(crate) arg: *mut core::ffi::c_void,
}

// SAFETY: the host takes the callback on any thread (B16); the argument is only handed back to it.
unsafe impl Send for Done {}

impl Done {
    /// Calls back. The caller holds no lock that another function of this plugin takes.
    pub fn call(self, outcome: &Result<()>) {
        let status = outcome.as_ref().map_or_else(Error::status, |()| crate::abi::DEVBAY_STATUS_OK);
        // SAFETY: `self` is taken, so the call comes once; the host keeps `arg` until then (B16).
        unsafe { (self.function)(self.arg, status) };
    }
}

/// Recording of a stream, in the plugin's own representation.
pub type Recorded = Box<dyn std::any::Any + Send + Sync>;

/// An in-order queue of work with a timeline (B12).
///
/// Inline devices need only [`Stream::copy`]. Others set [`Stream::TIMELINE`] and implement `signal` and
/// `reached`. The rest is optional; a constant declares each part that is implemented.
pub trait Stream: Send + Sync + 'static {
    /// The device's allocations.
    type Buffer: Send + Sync + 'static;
    /// True if `signal` and `reached` work.
    const TIMELINE: bool = false;
    /// True if `wait` works.
    const WAIT: bool = false;
    /// True if `on_reached` works.
    const ON_REACHED: bool = false;
    /// True if `host_wait` works.
    const HOST_WAIT: bool = false;
    /// True if `flush` works.
    const FLUSH: bool = false;
    /// True if `fail` works.
    const FAIL: bool = false;
    /// True if work can be recorded and replayed ([`crate::abi::ReplayTable`]).
    const REPLAY: bool = false;

    /// Enqueues a copy. The SDK has checked its ranges and, as for all enqueued work, that the stream has not
    /// failed.
    ///
    /// # Errors
    /// An error that is known now.
    fn copy(&self, copy: &CopyRequest<'_, Self::Buffer>) -> Result<()>;

    /// Enqueues a launch to run in order; called only on devices with [`Device::defers`].
    ///
    /// # Errors
    /// An error that is known now.
    fn defer(&self, _launch: DeferredLaunch) -> Result<()> {
        Err(Error::unsupported("a deferred launch on this stream"))
    }

    /// Enqueues a point whose value is above every earlier one (B12).
    ///
    /// # Errors
    /// Invalid for a value that does not increase, which changes nothing. After any other error, everything
    /// since the last successful signal has failed.
    fn signal(&self, value: u64) -> Result<()> {
        Err(Error::unsupported(format!("signal({value}) on an inline stream")))
    }

    /// Returns the last value reached successfully, and the stream's failure if it has failed. Never blocks.
    fn reached(&self) -> (u64, Result<()>) {
        (0, Err(Error::unsupported("reached on an inline stream")))
    }

    /// Holds back later work until `other` has reached `value`. `other` may be this stream, and may be
    /// dropped once the call has returned.
    ///
    /// # Errors
    /// Invalid for a value that was not signalled.
    fn wait(&self, _other: &Self, value: u64) -> Result<()> {
        Err(Error::unsupported(format!("wait({value})")))
    }

    /// Calls `done` when `value` is reached or can no longer be reached (B16).
    ///
    /// # Errors
    /// Invalid for a value that was not signalled; `done` is then returned uncalled.
    fn on_reached(&self, value: u64, _done: Done) -> Result<()> {
        Err(Error::unsupported(format!("on_reached({value})")))
    }

    /// Blocks until `value` is reached. A timeout of zero checks without blocking; one of `u64::MAX`
    /// nanoseconds never expires.
    ///
    /// # Errors
    /// Timeout, the stream's failure, invalid for a value that was not signalled.
    fn host_wait(&self, value: u64, _timeout: Duration) -> Result<()> {
        Err(Error::unsupported(format!("host_wait({value})")))
    }

    /// Makes the device start the enqueued work.
    ///
    /// # Errors
    /// As `signal`.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Records launches and copies between buffers from now on, instead of running them. The SDK refuses all
    /// other work meanwhile. An operand within one of `bindings` may be elsewhere in a replay, as
    /// [`Replay::place`] says.
    ///
    /// # Errors
    /// Unsupported on an inline stream, and for bindings if none can be recorded.
    fn record_begin(&self, _bindings: &[crate::abi::BufferRef]) -> Result<()> {
        Err(Error::unsupported("a recording on this stream"))
    }

    /// Ends the recording and returns it.
    ///
    /// # Errors
    /// Unsupported for work that cannot be recorded; the stream is then as it was before the recording.
    fn record_end(&self) -> Result<Recorded> {
        Err(Error::unsupported("a recording on this stream"))
    }

    /// Enqueues a recording of this stream or another one of its device. The SDK has checked the bindings.
    ///
    /// # Errors
    /// As a launch.
    fn replay(&self, _recorded: &Recorded, _replay: Replay) -> Result<()> {
        Err(Error::unsupported("a recording on this stream"))
    }

    /// Returns whether the stream is known to have failed. The SDK calls this before it enqueues work, and on
    /// failure returns [`Stream::failure`] (B13). Launches call it too, so a load is better than a lock.
    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Returns the detail of a failure found after the failing call had returned.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// Enqueues work that fails with `failure`, as a device's would. Conformance runs use it to see how a
    /// failure affects points and waiters (B13). Needs [`Stream::FAIL`].
    ///
    /// # Errors
    /// Unsupported on an inline stream.
    fn fail(&self, _failure: Error) -> Result<()> {
        Err(Error::unsupported("fail on this stream"))
    }
}
