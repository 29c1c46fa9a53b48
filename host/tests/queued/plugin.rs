//! The plugin on a world: its forms, devices, streams and buffers. Streams queue what they are given, and leave the rest
//! to the world.

use super::kernels::{prepare, prepare_odd, prepare_trips};
use super::world::{Command, Span, World};
use super::{INLINE, N_DEVICES, OWN};
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    DEVBAY_VARIADIC,
};
use devbay_plugin_api::sdk::*;
use std::sync::Arc;
use std::time::Duration;

/// Byte that fills fresh and freed memory.
const GARBAGE: u8 = 0xA7;

/// A form of the plugin: whether streams wait for each other, and whether they call back.
pub struct Queued<const WAIT: bool, const CALLS: bool>(Vec<QueuedDevice<WAIT, CALLS>>);

/// One device.
pub struct QueuedDevice<const WAIT: bool, const CALLS: bool> {
    desc: DeviceDesc,
    world: Arc<World>,
    /// Its name in the world.
    name: String,
    has_own_memory: bool,
}

/// One stream.
pub struct QueuedStream<const WAIT: bool, const CALLS: bool> {
    world: Arc<World>,
    /// Device, and whether operands must be its own.
    device: String,
    has_own_memory: bool,
    /// None for an inline one.
    serial: Option<u64>,
}

/// An allocation, which is garbage before and after.
pub struct QueuedBuffer {
    inner: Option<HostBuffer>,
    base: u64,
    size_bytes: usize,
    /// The world that knows it as a device's own.
    owner: Option<Arc<World>>,
}

const fn name_of(wait: bool, calls: bool) -> &'static str {
    match (wait, calls) {
        (true, true) => "queued",
        (true, false) => "queued-polled",
        (false, true) => "queued-alone",
        (false, false) => "queued-alone-polled",
    }
}

impl<const WAIT: bool, const CALLS: bool> Plugin for Queued<WAIT, CALLS> {
    type Device = QueuedDevice<WAIT, CALLS>;
    const ABOUT: About = About {
        name: name_of(WAIT, CALLS),
        vendor: "tests",
        version: "1",
        options: &[
            PluginOption { key: "world", default: "0", doc: "the number of the world" },
            PluginOption { key: "bind_max", default: "0", doc: "bytes of an operand, by device; 0 for any" },
        ],
        ..About::DEFAULT
    };
    const KERNELS: &'static [Kernel<Self::Device>] = &[
        Kernel::new("Node", 1, prepare::<WAIT, CALLS>)
            .domain("test")
            .types(&[TypeVar::of(&[I64])])
            .attributes(&["fails", "flops", "n", "plus", "spins"])
            .operands(&[0], &[0])
            .inputs(1, DEVBAY_VARIADIC)
            .in_place(&[0])
            .cost(|request| {
                let flops = request.attrs.int("flops", 1)? as u64;
                Ok(Cost { flops, bytes_read: 8, bytes_written: 8 })
            })
            .shape(|request, _| Ok((I64, vec![request.attrs.int("n", 1)?]))),
        Kernel::new("Odd", 1, prepare_odd::<WAIT, CALLS>)
            .domain("test")
            .types(&[TypeVar::of(&[I64]), TypeVar::of(&[BOOL])])
            .operands(&[0], &[1])
            .shape(|_, _| Ok((BOOL, Vec::new()))),
        Kernel::new("Trips", 1, prepare_trips::<WAIT, CALLS>)
            .domain("test")
            .types(&[TypeVar::of(&[I64])])
            .operands(&[0], &[0])
            .shape(|_, _| Ok((I64, Vec::new()))),
    ];

    fn create(_host: Host, options: &Options<'_>) -> Result<Self> {
        let world = World::of(options.get("world"))?;
        let bind_max: Vec<u64> = options
            .get("bind_max")
            .split(',')
            .map(|bytes| bytes.parse().map_err(|_| Error::invalid("bind_max is numbers between commas")))
            .collect::<Result<_>>()?;
        let device = |i: usize| {
            let (inline, has_own_memory) = (INLINE.contains(&i), OWN.contains(&i));
            let kind = if inline {
                "inline"
            } else if has_own_memory {
                "own"
            } else {
                "shared"
            };
            let visible = if has_own_memory { 0 } else { DEVBAY_SPACE_HOST_VISIBLE };
            let space = SpaceDesc {
                kind: if has_own_memory {
                    devbay_plugin_api::abi::DEVBAY_SPACE_DEVICE
                } else {
                    SpaceDesc::default().kind
                },
                flags: visible | DEVBAY_SPACE_ADDRESSABLE,
                bind_align: 16,
                bind_max: bind_max.get(i).copied().unwrap_or(0),
                ..SpaceDesc::default()
            };
            let id = format!("{kind}-{i}");
            QueuedDevice {
                name: format!("{}:{i}", Self::ABOUT.name),
                desc: DeviceDesc {
                    kind: DEVBAY_DEVICE_KIND_CPU,
                    id,
                    name: kind.to_owned(),
                    inline,
                    flags: if has_own_memory { 0 } else { DEVBAY_DEVICE_HOST_REFS },
                    spaces: vec![space],
                    ..DeviceDesc::default()
                },
                world: Arc::clone(&world),
                has_own_memory,
            }
        };
        Ok(Self((0..N_DEVICES).map(device).collect()))
    }

    fn devices(&self) -> Result<Vec<&QueuedDevice<WAIT, CALLS>>> {
        Ok(self.0.iter().collect())
    }
}

impl<const WAIT: bool, const CALLS: bool> Device for QueuedDevice<WAIT, CALLS> {
    type Buffer = QueuedBuffer;
    type Stream = QueuedStream<WAIT, CALLS>;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<QueuedBuffer>> {
        let inner = HostBuffer::alloc(request)?;
        let (base, size_bytes) = (inner.base, inner.size_bytes);
        // SAFETY: the allocation is new and this long.
        unsafe { std::ptr::write_bytes(base as *mut u8, GARBAGE, size_bytes) };
        let owner = self.has_own_memory.then(|| Arc::clone(&self.world));
        if let Some(world) = &owner {
            world.own(&self.name, base..base + size_bytes as u64);
        }
        let buffer = QueuedBuffer { inner: Some(inner.buffer), base, size_bytes, owner };
        Ok(Allocated { buffer, base, size_bytes })
    }

    fn defers(&self) -> bool {
        !self.desc.inline
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<QueuedStream<WAIT, CALLS>> {
        let serial = (!self.desc.inline).then(|| self.world.add(&self.name));
        let device = self.name.clone();
        let world = Arc::clone(&self.world);
        Ok(QueuedStream { world, device, has_own_memory: self.has_own_memory, serial })
    }
}

impl Drop for QueuedBuffer {
    fn drop(&mut self) {
        if let Some(world) = &self.owner {
            world.disown(self.base);
        }
        // SAFETY: the allocation is this buffer's until `inner` goes, and no work uses it any more.
        unsafe { std::ptr::write_bytes(self.base as *mut u8, GARBAGE, self.size_bytes) };
        drop(self.inner.take());
    }
}

impl<const WAIT: bool, const CALLS: bool> Drop for QueuedStream<WAIT, CALLS> {
    fn drop(&mut self) {
        if let Some(serial) = self.serial {
            self.world.remove(serial);
        }
    }
}

impl<const WAIT: bool, const CALLS: bool> QueuedStream<WAIT, CALLS> {
    fn serial(&self) -> Result<u64> {
        self.serial.ok_or_else(|| Error::unsupported("an inline stream has no timeline"))
    }

    /// Complains of operands that are in another memory than the device's.
    pub fn check(&self, addr: u64, length: u64) {
        self.world.check(&self.device, self.has_own_memory, addr, length);
    }
}

impl<const WAIT: bool, const CALLS: bool> Stream for QueuedStream<WAIT, CALLS> {
    type Buffer = QueuedBuffer;
    const TIMELINE: bool = true;
    const WAIT: bool = WAIT;
    const ON_REACHED: bool = CALLS;
    const HOST_WAIT: bool = CALLS;

    fn copy(&self, copy: &CopyRequest<'_, QueuedBuffer>) -> Result<()> {
        let Some(serial) = self.serial else {
            copy.run_on_host();
            return Ok(());
        };
        let device_ends = match &copy.kind {
            CopyKind::HostToBuffer(_, region) | CopyKind::BufferToHost(region, _) => vec![region.addr],
            CopyKind::BufferToBuffer(src, dst) => vec![src.addr, dst.addr],
        };
        device_ends.into_iter().for_each(|addr| self.check(addr, copy.size_bytes as u64));
        let (src, dst) = copy.host_addresses();
        self.world.push(serial, Command::Copy(Span { src, dst, size_bytes: copy.size_bytes }))
    }

    fn defer(&self, launch: DeferredLaunch) -> Result<()> {
        self.world.push(self.serial()?, Command::Launch(launch, DeferredLaunch::run))
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.world.push(self.serial()?, Command::Signal(value))
    }

    fn reached(&self) -> (u64, Result<()>) {
        let Some(serial) = self.serial else {
            return (0, Err(Error::unsupported("an inline stream has no timeline")));
        };
        let (value, failure) = self.world.reached(serial);
        (value, failure.map_or(Ok(()), Err))
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        self.world.wait(self.serial()?, other.serial()?, value)
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.world.on_reached(self.serial()?, value, done)
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        self.world.host_wait(self.serial()?, value, timeout)
    }

    fn failure(&self) -> Option<Error> {
        self.world.reached(self.serial?).1
    }
}

macro_rules! forms {
    ($($module:ident $wait:literal $calls:literal)*) => {$(
        mod $module {
            use super::Queued;
            devbay_plugin_api::static_plugin!(Queued<$wait, $calls>);
            pub const PLUGIN: devbay_plugin_api::sdk::export::LinkedPlugin = devbay_entry::PLUGIN;
        }
    )*

    /// The forms: name, whether streams wait, whether they call back, entry.
    pub const FORMS: &[(&str, bool, bool, export::LinkedPlugin)] =
        &[$((name_of($wait, $calls), $wait, $calls, $module::PLUGIN)),*];
    };
}

forms! {
    waiting_calling true true
    waiting_polled true false
    alone_calling false true
    alone_polled false false
}
