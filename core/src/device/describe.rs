//! A plugin's description of a device and its memory, read once and owned.

use crate::about::{Refusal, RefusalKind, must_understand};
use devbay_plugin_api::abi::tables::{DEVICE_FLAGS, SPACE_FLAGS};
use devbay_plugin_api::abi::version::not_understood;
use devbay_plugin_api::abi::*;

/// A memory space of a device, as the plugin describes it.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// `DEVBAY_SPACE_DEVICE`, `_PINNED_HOST`, `_UNIFIED` or an unknown code.
    pub kind: u32,
    /// The host may read and write at a buffer's base.
    pub host_visible: bool,
    /// A buffer cannot be divided.
    pub no_suballoc: bool,
    /// A buffer is written once and is never a kernel's output.
    pub write_once: bool,
    /// `buffer_alloc` needs the tensor's type.
    pub typed: bool,
    /// Flags that must be understood and are not known here: nothing is put there.
    pub not_understood: u64,
    /// Memory in all; 0 if unknown.
    pub bytes_total: u64,
    /// Largest allocation; 0 for no limit.
    pub alloc_max: u64,
    /// Alignment of allocations.
    pub alloc_align: u64,
    /// Alignment of operands.
    pub bind_align: u64,
    /// Largest operand; 0 for no limit.
    pub bind_max: u64,
    /// Alignment of copies.
    pub copy_align: u64,
    /// Copies are multiples of this.
    pub copy_granule: u64,
}

/// A device, as the plugin describes it.
#[derive(Clone, Debug)]
pub struct DeviceAbout {
    /// `DEVBAY_DEVICE_KIND_*`.
    pub kind: u32,
    /// Name that stays the same from run to run.
    pub id: String,
    /// The product's name.
    pub product: String,
    /// Driver underneath.
    pub driver: String,
    /// Work is complete when the call that enqueues it returns.
    pub inline: bool,
    /// Enqueuing may block.
    pub may_block: bool,
    /// References may name host memory.
    pub host_refs: bool,
    /// Streams that may exist at once; 0 for no limit.
    pub streams_max: u32,
    /// References of one launch; 0 for no limit.
    pub refs_max: u32,
    /// Memory spaces; operands live in the first.
    pub spaces: Vec<Space>,
    /// The same for one chip under two plugins; zero if unknown.
    pub physical_id: [u8; 16],
}

/// Kinds of devices and their names; another kind is `other`.
const KINDS: [(u32, &str); 6] = [
    (DEVBAY_DEVICE_KIND_CPU, "cpu"),
    (DEVBAY_DEVICE_KIND_GPU, "gpu"),
    (DEVBAY_DEVICE_KIND_NPU, "npu"),
    (DEVBAY_DEVICE_KIND_TPU, "tpu"),
    (DEVBAY_DEVICE_KIND_DSP, "dsp"),
    (DEVBAY_DEVICE_KIND_FPGA, "fpga"),
];
const OTHER_KIND: &str = "other";

/// Lists the names of kinds of devices.
pub fn kind_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(_, name)| *name).chain([OTHER_KIND])
}

impl DeviceAbout {
    /// Why a device has to be left out; None if it has not.
    pub(super) fn left_out(&self, raw: &DeviceInfo) -> Option<String> {
        let unknown = not_understood(raw.flags, DEVICE_FLAGS);
        if unknown != 0 {
            return Some(must_understand(unknown));
        }
        let unknown = self.spaces[0].not_understood;
        (unknown != 0)
            .then(|| format!("has its operands in a memory space that {}", must_understand(unknown)))
    }

    /// # Safety
    /// `raw` was read from a plugin's list of devices.
    pub(super) unsafe fn read(raw: &DeviceInfo) -> std::result::Result<Self, Refusal> {
        // SAFETY: `raw` was read from a plugin's list of devices (# Safety), which the plugin keeps with all that it
        // names.
        let spaces = unsafe { read_growable_list::<MemorySpace>(&raw.spaces) }?;
        if spaces.is_empty() {
            return Err(Refusal::new(RefusalKind::DevicesFailed, "a device has no memory space"));
        }
        Ok(Self {
            kind: raw.kind,
            // SAFETY: text of that list (# Safety).
            id: unsafe { crate::about::text(&raw.id) }?,
            // SAFETY: text of that list (# Safety).
            product: unsafe { crate::about::text(&raw.name) }?,
            // SAFETY: text of that list (# Safety).
            driver: unsafe { crate::about::text(&raw.driver) }?,
            inline: raw.flags & DEVBAY_DEVICE_INLINE != 0,
            may_block: raw.flags & DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK != 0,
            host_refs: raw.flags & DEVBAY_DEVICE_HOST_REFS != 0,
            streams_max: raw.streams_max,
            refs_max: raw.refs_max,
            spaces: spaces.iter().map(Space::read).collect::<std::result::Result<_, _>>()?,
            physical_id: raw.physical_id,
        })
    }

    /// Returns the kind's name.
    pub fn kind_name(&self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(OTHER_KIND, |(_, name)| name)
    }
}

impl Space {
    /// Returns the most bytes that can be wanted at once; None if the device does not say.
    pub fn bytes_max(&self) -> Option<u64> {
        [self.alloc_max, self.bytes_total].into_iter().filter(|&limit| limit > 0).min()
    }

    fn read(raw: &MemorySpace) -> std::result::Result<Self, Refusal> {
        let power = |what: &str, value: u64| match value {
            0 => Ok(1),
            value if value.is_power_of_two() => Ok(value),
            value => Err(Refusal::new(
                RefusalKind::DevicesFailed,
                format!("a memory space says {what} {value}, expected a power of two"),
            )),
        };
        Ok(Self {
            kind: raw.kind,
            host_visible: raw.flags & DEVBAY_SPACE_HOST_VISIBLE != 0,
            no_suballoc: raw.flags & DEVBAY_SPACE_NO_SUBALLOC != 0,
            write_once: raw.flags & DEVBAY_SPACE_WRITE_ONCE != 0,
            typed: raw.flags & DEVBAY_SPACE_TYPED != 0,
            not_understood: not_understood(raw.flags, SPACE_FLAGS),
            bytes_total: raw.bytes_total,
            alloc_max: raw.alloc_max,
            alloc_align: power("alloc_align", raw.alloc_align)?,
            bind_align: power("bind_align", raw.bind_align)?,
            bind_max: raw.bind_max,
            copy_align: power("copy_align", raw.copy_align)?,
            copy_granule: raw.copy_granule.max(1),
        })
    }
}
