//! A client, which owns everything on its devices, and the devices.

use crate::api::{self, NamedValueUnion, RawClient, RawDescription, RawDevice, RawMemory, named_value_kind};
use crate::error::{Error, Result, optional};
use crate::library::{Attribute, Library, Value, list, text};
use std::sync::Arc;

/// A client of a library. Clones are the same client, which is destroyed with the last of them and of what was made with
/// it.
#[derive(Clone, Debug)]
pub struct Client(Arc<Owner>);

/// # Invariants
/// `raw` is a client of `library`, destroyed in `drop` alone; the devices are its own.
#[derive(Debug)]
struct Owner {
    library: &'static Library,
    raw: *mut RawClient,
    platform_name: String,
    platform_version: String,
    devices: Vec<DeviceFacts>,
}

// SAFETY: a client may be used and destroyed on any thread (the crate's page on threads).
unsafe impl Send for Owner {}
// SAFETY: several threads may call a client's functions at once (the crate's page on threads); the rest is never
// changed.
unsafe impl Sync for Owner {}

/// Properties of a device that do not change.
#[derive(Debug)]
struct DeviceFacts {
    raw: *mut RawDevice,
    id: i32,
    local_hardware_id: Option<i32>,
    kind: String,
    description: String,
    detail: String,
    default_memory: Option<Memory>,
}

/// A device that its client can give work to.
#[derive(Clone, Debug)]
pub struct Device {
    client: Client,
    index: usize,
}

/// A memory of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Its number, unique in its client.
    pub id: i32,
    /// The library's word for its kind, such as `device` or `pinned_host`.
    pub kind: String,
    /// The library's words for it.
    pub description: String,
}

/// Statistics of a device's allocator, in bytes; what it does not say is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryStats {
    /// In use now.
    pub in_use_bytes: i64,
    /// The most that was in use.
    pub peak_in_use_bytes: Option<i64>,
    /// The most that can be in use.
    pub limit_bytes: Option<i64>,
    /// The largest block that is free.
    pub largest_free_block_bytes: Option<i64>,
    /// The largest allocation so far.
    pub largest_allocation_bytes: Option<i64>,
    /// Allocations so far; a number, not bytes.
    pub n_allocations: Option<i64>,
    /// Memory that the allocator holds, in use or not.
    pub pool_bytes: Option<i64>,
}

impl Client {
    /// Creates a client. Its options are the library's own; an unknown one is an error with some libraries and nothing
    /// with others.
    ///
    /// **Threads**: any; blocks as long as the library looks for its devices.
    ///
    /// # Errors
    /// The library's words, such as that there is no device; [`Error::Invalid`] for an option of an unknown kind.
    pub fn create(library: &'static Library, options: &[Attribute]) -> Result<Self> {
        let options = options.iter().map(named_value).collect::<Result<Vec<_>>>()?;
        let mut args = api::ClientCreate {
            create_options: options.as_ptr(),
            num_options: options.len(),
            ..api::ClientCreate::ZERO
        };
        // SAFETY: the options live for the call; there are no callbacks.
        unsafe { library.call(&mut args) }?;
        if args.client.is_null() {
            return Err(Error::Broken { function: "PJRT_Client_Create", text: "no client" });
        }
        // From here on the owner destroys the client, also after an error.
        let mut owner = Owner {
            library,
            raw: args.client,
            platform_name: String::new(),
            platform_version: String::new(),
            devices: Vec::new(),
        };
        owner.read()?;
        Ok(Self(Arc::new(owner)))
    }

    /// The library.
    pub fn library(&self) -> &'static Library {
        self.0.library
    }

    /// The platform's name, such as `cpu` or `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The platform's version in the library's words, for people; empty where it has none.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// The devices that this process can give work to, in the library's order.
    pub fn devices(&self) -> Vec<Device> {
        (0..self.0.devices.len()).map(|index| Device { client: self.clone(), index }).collect()
    }

    /// Returns whether both are the same client.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn raw(&self) -> *mut RawClient {
        self.0.raw
    }
}

impl Owner {
    fn read(&mut self) -> Result<()> {
        let library = self.library;
        let mut args = api::ClientPlatformName { client: self.raw, ..api::ClientPlatformName::ZERO };
        // SAFETY: the client is alive (invariant).
        unsafe { library.call(&mut args) }?;
        // SAFETY: a text that lives as long as the client.
        self.platform_name = unsafe { text(args.text, args.text_size) };

        let mut args = api::ClientPlatformVersion { client: self.raw, ..api::ClientPlatformVersion::ZERO };
        // SAFETY: the client is alive (invariant).
        optional(unsafe { library.call(&mut args) })?;
        // SAFETY: a text that lives as long as the client.
        self.platform_version = unsafe { text(args.text, args.text_size) };

        let mut args =
            api::ClientAddressableDevices { client: self.raw, ..api::ClientAddressableDevices::ZERO };
        // SAFETY: the client is alive (invariant).
        unsafe { library.call(&mut args) }?;
        // SAFETY: a list that lives as long as the client.
        let devices = unsafe { list(args.devices, args.num_devices) };
        for device in devices {
            // SAFETY: the device is one of this client's, which is alive (invariant).
            self.devices.push(unsafe { read_device(library, *device) }?);
        }
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        struct Raw(*mut RawClient);
        // SAFETY: a client may be destroyed on any thread (the crate's page on threads).
        unsafe impl Send for Raw {}
        let (library, raw) = (self.library, Raw(self.raw));
        let destroy = move || {
            let Raw(client) = { raw };
            // SAFETY: the client is alive (invariant) and ends here. An error leaves nothing to do.
            let _ = unsafe { library.call(&mut api::ClientDestroy { client, ..api::ClientDestroy::ZERO }) };
        };
        // A client waits for its threads to end: on one of them it would wait for itself.
        if crate::event::in_callback() {
            // Without a thread the client stays: there is no caller to give the error to.
            let _ = std::thread::Builder::new().name("pjrt destroy".into()).spawn(destroy);
        } else {
            destroy();
        }
    }
}

impl Device {
    fn facts(&self) -> &DeviceFacts {
        &self.client.0.devices[self.index]
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its number, unique in its client: what a program is compiled for.
    pub fn id(&self) -> i32 {
        self.facts().id
    }

    /// The driver's number of it, if it has one.
    pub fn local_hardware_id(&self) -> Option<i32> {
        self.facts().local_hardware_id
    }

    /// Returns its kind, such as `cpu` or `TPU v5 lite`.
    pub fn kind(&self) -> &str {
        &self.facts().kind
    }

    /// The library's short words for it, such as `TFRT_CPU_0`.
    pub fn description(&self) -> &str {
        &self.facts().description
    }

    /// The library's longer words for it; empty where it has none.
    pub fn detail(&self) -> &str {
        &self.facts().detail
    }

    /// Returns the memory of arrays that name none; `None` where the library does not say.
    pub fn default_memory(&self) -> Option<&Memory> {
        self.facts().default_memory.as_ref()
    }

    /// Returns its allocator's statistics now; `None` where it says nothing.
    ///
    /// # Errors
    /// The library's words.
    pub fn memory_stats(&self) -> Result<Option<MemoryStats>> {
        let mut args = api::DeviceMemoryStats { device: self.raw(), ..api::DeviceMemoryStats::ZERO };
        // SAFETY: the device is alive as long as its client.
        let said = optional(unsafe { self.client.library().call(&mut args) })?;
        let set = |value: i64, is_set: u8| (is_set != 0).then_some(value);
        Ok(said.map(|()| MemoryStats {
            in_use_bytes: args.bytes_in_use,
            peak_in_use_bytes: set(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set),
            limit_bytes: set(args.bytes_limit, args.bytes_limit_is_set),
            largest_free_block_bytes: set(
                args.largest_free_block_bytes,
                args.largest_free_block_bytes_is_set,
            ),
            largest_allocation_bytes: set(args.largest_alloc_size, args.largest_alloc_size_is_set),
            n_allocations: set(args.num_allocs, args.num_allocs_is_set),
            pool_bytes: set(args.pool_bytes, args.pool_bytes_is_set),
        }))
    }

    pub(crate) fn raw(&self) -> *mut RawDevice {
        self.facts().raw
    }
}

/// Reads what does not change about a device.
///
/// # Safety
/// The device is one of a client of the library's that is alive.
unsafe fn read_device(library: &Library, raw: *mut RawDevice) -> Result<DeviceFacts> {
    let mut args = api::DeviceGetDescription { device: raw, ..api::DeviceGetDescription::ZERO };
    // SAFETY: the device is one of a living client of the library's (# Safety).
    unsafe { library.call(&mut args) }?;
    let description: *mut RawDescription = args.description;

    let mut id = api::DescriptionId { description, ..api::DescriptionId::ZERO };
    // SAFETY: the device's description, which lives as long as the device.
    unsafe { library.call(&mut id) }?;
    let mut hardware = api::DeviceLocalHardwareId { device: raw, ..api::DeviceLocalHardwareId::ZERO };
    // SAFETY: the device is one of a living client (# Safety).
    let has_hardware = optional(unsafe { library.call(&mut hardware) })?.is_some();
    let mut kind = api::DescriptionKind { description, ..api::DescriptionKind::ZERO };
    // SAFETY: the device's description, which lives as long as the device.
    unsafe { library.call(&mut kind) }?;
    let mut short = api::DescriptionToString { description, ..api::DescriptionToString::ZERO };
    // SAFETY: the device's description, which lives as long as the device.
    optional(unsafe { library.call(&mut short) })?;
    let mut long = api::DescriptionDebugString { description, ..api::DescriptionDebugString::ZERO };
    // SAFETY: the device's description, which lives as long as the device.
    optional(unsafe { library.call(&mut long) })?;
    let mut memory = api::DeviceDefaultMemory { device: raw, ..api::DeviceDefaultMemory::ZERO };
    // SAFETY: the device is one of a living client (# Safety).
    optional(unsafe { library.call(&mut memory) })?;
    let default_memory = if memory.memory.is_null() {
        None
    } else {
        // SAFETY: the memory is one of the device's, and not NULL.
        optional(unsafe { read_memory(library, memory.memory) })?
    };
    Ok(DeviceFacts {
        raw,
        id: id.id,
        // The header's -1 is "undefined".
        local_hardware_id: (has_hardware && hardware.id >= 0).then_some(hardware.id),
        // SAFETY: texts that live as long as the device; NULL where there is none.
        kind: unsafe { text(kind.text, kind.text_size) },
        // SAFETY: a text of the description, which lives as long as the device; NULL where there is none.
        description: unsafe { text(short.text, short.text_size) },
        // SAFETY: a text of the description, which lives as long as the device; NULL where there is none.
        detail: unsafe { text(long.text, long.text_size) },
        default_memory,
    })
}

/// Reads what a memory is.
///
/// # Safety
/// The memory is one of a device that is alive.
unsafe fn read_memory(library: &Library, memory: *mut RawMemory) -> Result<Memory> {
    let mut id = api::MemoryId { memory, ..api::MemoryId::ZERO };
    // SAFETY: the memory is one of a living device (# Safety).
    unsafe { library.call(&mut id) }?;
    let mut kind = api::MemoryKind { memory, ..api::MemoryKind::ZERO };
    // SAFETY: the memory is one of a living device (# Safety).
    unsafe { library.call(&mut kind) }?;
    let mut words = api::MemoryToString { memory, ..api::MemoryToString::ZERO };
    // SAFETY: the memory is one of a living device (# Safety).
    optional(unsafe { library.call(&mut words) })?;
    // SAFETY: a text that lives as long as the memory.
    let kind = unsafe { text(kind.text, kind.text_size) };
    // SAFETY: a text that lives as long as the memory; NULL where there is none.
    let description = unsafe { text(words.text, words.text_size) };
    Ok(Memory { id: id.id, kind, description })
}

/// An option as the header has it, borrowed from ours.
fn named_value(option: &Attribute) -> Result<api::NamedValue> {
    let (kind, value, value_size) = match &option.value {
        Value::Text(text) => {
            (named_value_kind::TEXT, NamedValueUnion { text: text.as_ptr().cast() }, text.len())
        }
        Value::Integer(integer) => (named_value_kind::INTEGER, NamedValueUnion { integer: *integer }, 1),
        Value::Integers(integers) => {
            (named_value_kind::INTEGERS, NamedValueUnion { integers: integers.as_ptr() }, integers.len())
        }
        Value::Float(float) => (named_value_kind::FLOAT, NamedValueUnion { float: *float }, 1),
        Value::Flag(flag) => (named_value_kind::FLAG, NamedValueUnion { flag: (*flag).into() }, 1),
        Value::Unknown(kind) => {
            return Err(Error::invalid(format!("option {} has a value of unknown kind {kind}", option.name)));
        }
    };
    Ok(api::NamedValue {
        name: option.name.as_ptr().cast(),
        name_size: option.name.len(),
        kind,
        value,
        value_size,
        ..api::NamedValue::ZERO
    })
}
