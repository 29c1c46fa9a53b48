//! `xla/pjrt/c/pjrt_c_api.h` as far as it is used: argument structs, the size that the header gives each, and the place
//! of each function in the library's table.
//!
//! The table is append-only since API 0.57, so a function is found by its place. Where a struct grew since then, its
//! sizes are listed with the API minor of each: most libraries accept a larger struct than they know, some demand
//! equality, all refuse a smaller one. Sizes are the header's `*_STRUCT_SIZE`: the end of the last field, without padding.

use std::ffi::{c_char, c_int, c_void};
use std::marker::{PhantomData, PhantomPinned};

/// The one major version there is.
pub const MAJOR: i32 = 0;
/// The first minor with this order of the table.
pub const MINOR_MIN: i32 = 57;
/// Bytes before the table's first function: size, extensions, version.
pub const TABLE_HEADER_BYTES: usize = 40;
/// Functions that are read from a table: as far as the last that is used.
pub const N_SLOTS: usize = 92;

/// A function of the table, its type left away.
pub type Slot = unsafe extern "C" fn();

/// An argument struct; it stands for its function.
///
/// # Safety
/// The type is `repr(C)`, begins with `struct_size`, and is what the function at `SLOT` takes.
pub unsafe trait Args {
    /// The function's place in the table.
    const SLOT: usize;
    /// Its name in the header.
    const NAME: &'static str;
    /// The struct's size in the header.
    const SIZE: usize;
    /// `(minor, size)`: the size that it had before this minor, oldest first.
    const BEFORE: &'static [(i32, usize)];

    /// Sets the first field.
    fn set_struct_size(&mut self, size_bytes: usize);
}

/// The size of a struct for a library of an API minor.
pub const fn size_at(minor: i32, size: usize, before: &[(i32, usize)]) -> usize {
    let mut i = 0;
    while i < before.len() {
        if minor < before[i].0 {
            return before[i].1;
        }
        i += 1;
    }
    size
}

macro_rules! opaque {
    ($($name:ident)*) => {$(
        /// An object of the library's.
        #[repr(C)]
        pub struct $name {
            bytes: [u8; 0],
            // Neither Send nor Sync nor Unpin by itself: the owners around it state their own rules.
            marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

opaque! {
    RawError RawEvent RawClient RawDevice RawDescription RawMemory RawBuffer RawExecutable RawLoadedExecutable
    RawSerializedExecutable RawTopology
}

/// `repr(C)` structs with the header's size, checked, and a value of zeros.
macro_rules! structs {
    ($($name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        #[repr(C)]
        pub struct $name {
            pub struct_size: usize,
            pub extension_start: *mut c_void,
            $(pub $field: $type,)*
        }

        impl $name {
            /// Everything absent; the size is the newest that is known.
            pub const ZERO: Self = {
                // SAFETY: the fields are integers, raw pointers and optional functions, for which zeros are a value.
                let mut zero = unsafe { std::mem::MaybeUninit::<Self>::zeroed().assume_init() };
                zero.struct_size = $size;
                zero
            };
        }

        #[cfg(target_pointer_width = "64")]
        const _: () = {
            let ends = [16 $(, std::mem::offset_of!($name, $field) + size_of::<$type>())*];
            let mut end = 0;
            let mut i = 0;
            while i < ends.len() {
                if ends[i] > end {
                    end = ends[i];
                }
                i += 1;
            }
            assert!(end == $size, "not the header's size");
        };
    )*};
}

/// Argument structs: `Name = place "function": size, before [(minor, size)] { fields }`.
macro_rules! functions {
    ($($name:ident = $slot:literal $function:literal: $size:literal $(, before [$($before:tt)*])? { $($field:ident: $type:ty,)* })*) => {
        structs! { $($name: $size { $($field: $type,)* })* }
        $(
            // SAFETY: a `repr(C)` struct of `structs!`; place, name and fields are the header's.
            unsafe impl Args for $name {
                const SLOT: usize = $slot;
                const NAME: &'static str = concat!("PJRT_", $function);
                const SIZE: usize = $size;
                const BEFORE: &'static [(i32, usize)] = &[$($($before)*)?];

                fn set_struct_size(&mut self, size_bytes: usize) {
                    self.struct_size = size_bytes;
                }
            }

            const _: () = assert!($slot < N_SLOTS);
        )*
    };
}

/// Callback of `PJRT_Event_OnReady`, called once; the error is the callee's to destroy.
pub type OnReady = unsafe extern "C" fn(error: *mut RawError, argument: *mut c_void);

// Structs without a function of their own.
structs! {
    NamedValue: 56 {
        name: *const c_char,
        name_size: usize,
        kind: c_int,
        value: NamedValueUnion,
        value_size: usize,
    }
    Program: 48 {
        code: *mut c_char,
        code_size: usize,
        format: *const c_char,
        format_size: usize,
    }
    ExecuteOptions: 120 {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut c_void,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
        multi_slice_config: *mut c_void,
    }
    TiledLayout: 56 {
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        num_tiles: usize,
    }
    // The header's union of a tiled layout and strides, of which the tiled one is larger and the only one used.
    MemoryLayout: 76 {
        tiled: TiledLayout,
        kind: c_int,
    }
}

impl ExecuteOptions {
    /// Its sizes at older minors.
    pub const BEFORE: &'static [(i32, usize)] = &[(64, 72), (76, 80), (78, 88), (97, 112)];
}

/// `kind` of a tiled [`MemoryLayout`].
pub const LAYOUT_TILED: c_int = 0;

/// The value of a [`NamedValue`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union NamedValueUnion {
    pub text: *const c_char,
    pub integer: i64,
    pub integers: *const i64,
    pub float: f32,
    // C's bool, of which a library could write other bytes than 0 and 1.
    pub flag: u8,
}

/// Numbers of `PJRT_NamedValue_Type`.
pub mod named_value_kind {
    use std::ffi::c_int;

    pub const TEXT: c_int = 0;
    pub const INTEGER: c_int = 1;
    pub const INTEGERS: c_int = 2;
    pub const FLOAT: c_int = 3;
    pub const FLAG: c_int = 4;
}

functions! {
    ErrorDestroy = 0 "Error_Destroy": 24 { error: *mut RawError, }
    ErrorMessage = 1 "Error_Message": 40 { error: *const RawError, message: *const c_char, message_size: usize, }
    ErrorGetCode = 2 "Error_GetCode": 28 { error: *const RawError, code: c_int, }

    PluginInitialize = 3 "Plugin_Initialize": 16 {}
    PluginAttributes = 4 "Plugin_Attributes": 32 { attributes: *const NamedValue, num_attributes: usize, }

    EventDestroy = 5 "Event_Destroy": 24 { event: *mut RawEvent, }
    EventIsReady = 6 "Event_IsReady": 25 { event: *mut RawEvent, is_ready: u8, }
    EventError = 7 "Event_Error": 24 { event: *mut RawEvent, }
    EventAwait = 8 "Event_Await": 24 { event: *mut RawEvent, }
    EventOnReady = 9 "Event_OnReady": 40 { event: *mut RawEvent, callback: Option<OnReady>, user_arg: *mut c_void, }

    ClientCreate = 10 "Client_Create": 88, before [(61, 72)] {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut RawClient,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    ClientDestroy = 11 "Client_Destroy": 24 { client: *mut RawClient, }
    ClientPlatformName = 12 "Client_PlatformName": 40 { client: *mut RawClient, text: *const c_char, text_size: usize, }
    ClientPlatformVersion = 14 "Client_PlatformVersion": 40 {
        client: *mut RawClient, text: *const c_char, text_size: usize,
    }
    ClientAddressableDevices = 16 "Client_AddressableDevices": 40 {
        client: *mut RawClient, devices: *const *mut RawDevice, num_devices: usize,
    }
    ClientCompile = 20 "Client_Compile": 56 {
        client: *mut RawClient,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut RawLoadedExecutable,
    }
    ClientBufferFromHostBuffer = 22 "Client_BufferFromHostBuffer": 120 {
        client: *mut RawClient,
        data: *const c_void,
        kind: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut RawDevice,
        memory: *mut RawMemory,
        device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut RawEvent,
        buffer: *mut RawBuffer,
    }

    DescriptionId = 23 "DeviceDescription_Id": 28 { description: *mut RawDescription, id: c_int, }
    DescriptionKind = 26 "DeviceDescription_Kind": 40 {
        description: *mut RawDescription, text: *const c_char, text_size: usize,
    }
    DescriptionDebugString = 27 "DeviceDescription_DebugString": 40 {
        description: *mut RawDescription, text: *const c_char, text_size: usize,
    }
    DescriptionToString = 28 "DeviceDescription_ToString": 40 {
        description: *mut RawDescription, text: *const c_char, text_size: usize,
    }

    DeviceGetDescription = 29 "Device_GetDescription": 32 { device: *mut RawDevice, description: *mut RawDescription, }
    DeviceLocalHardwareId = 31 "Device_LocalHardwareId": 28 { device: *mut RawDevice, id: c_int, }
    DeviceDefaultMemory = 33 "Device_DefaultMemory": 32 { device: *mut RawDevice, memory: *mut RawMemory, }
    DeviceMemoryStats = 34 "Device_MemoryStats": 185 {
        device: *mut RawDevice,
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: u8,
        num_allocs: i64,
        num_allocs_is_set: u8,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: u8,
        bytes_limit: i64,
        bytes_limit_is_set: u8,
        bytes_reserved: i64,
        bytes_reserved_is_set: u8,
        peak_bytes_reserved: i64,
        peak_bytes_reserved_is_set: u8,
        bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: u8,
        largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: u8,
        pool_bytes: i64,
        pool_bytes_is_set: u8,
        peak_pool_bytes: i64,
        peak_pool_bytes_is_set: u8,
    }

    MemoryId = 35 "Memory_Id": 28 { memory: *mut RawMemory, id: c_int, }
    MemoryKind = 36 "Memory_Kind": 40 { memory: *mut RawMemory, text: *const c_char, text_size: usize, }
    MemoryToString = 38 "Memory_ToString": 40 { memory: *mut RawMemory, text: *const c_char, text_size: usize, }

    ExecutableDestroy = 40 "Executable_Destroy": 24 { executable: *mut RawExecutable, }
    ExecutableName = 41 "Executable_Name": 40 { executable: *mut RawExecutable, text: *const c_char, text_size: usize, }
    ExecutableNumOutputs = 44 "Executable_NumOutputs": 32 { executable: *mut RawExecutable, num_outputs: usize, }
    ExecutableSerialize = 49 "Executable_Serialize": 56 {
        executable: *const RawExecutable,
        bytes: *const c_char,
        bytes_size: usize,
        owner: *mut RawSerializedExecutable,
        deleter: Option<unsafe extern "C" fn(*mut RawSerializedExecutable)>,
    }
    ExecutableOutputElementTypes = 90 "Executable_OutputElementTypes": 40 {
        executable: *mut RawExecutable, types: *const c_int, num_types: usize,
    }
    ExecutableOutputDimensions = 91 "Executable_OutputDimensions": 48 {
        executable: *mut RawExecutable, num_outputs: usize, dims: *const i64, dim_sizes: *const usize,
    }

    TopologyCreate = 82 "TopologyDescription_Create": 56 {
        name: *const c_char,
        name_size: usize,
        create_options: *const NamedValue,
        num_options: usize,
        topology: *mut RawTopology,
    }
    TopologyDestroy = 83 "TopologyDescription_Destroy": 24 { topology: *mut RawTopology, }
    TopologyPlatformName = 84 "TopologyDescription_PlatformName": 40 {
        topology: *mut RawTopology, text: *const c_char, text_size: usize,
    }
    TopologyPlatformVersion = 85 "TopologyDescription_PlatformVersion": 40 {
        topology: *mut RawTopology, text: *const c_char, text_size: usize,
    }
    Compile = 89 "Compile": 64 {
        topology: *const RawTopology,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut RawClient,
        executable: *mut RawExecutable,
    }

    LoadedDestroy = 50 "LoadedExecutable_Destroy": 24 { executable: *mut RawLoadedExecutable, }
    LoadedGetExecutable = 51 "LoadedExecutable_GetExecutable": 32 {
        loaded: *mut RawLoadedExecutable, executable: *mut RawExecutable,
    }
    LoadedAddressableDevices = 52 "LoadedExecutable_AddressableDevices": 40 {
        executable: *mut RawLoadedExecutable, devices: *const *mut RawDevice, num_devices: usize,
    }
    LoadedExecute = 55 "LoadedExecutable_Execute": 80 {
        executable: *mut RawLoadedExecutable,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut RawBuffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut RawBuffer,
        device_complete_events: *mut *mut RawEvent,
        execute_device: *mut RawDevice,
    }
    DeserializeAndLoad = 56 "Executable_DeserializeAndLoad": 64, before [(71, 48)] {
        client: *mut RawClient,
        bytes: *const c_char,
        bytes_size: usize,
        loaded: *mut RawLoadedExecutable,
        overridden_compile_options: *const c_char,
        overridden_compile_options_size: usize,
    }

    BufferDestroy = 58 "Buffer_Destroy": 24 { buffer: *mut RawBuffer, }
    BufferElementType = 59 "Buffer_ElementType": 28 { buffer: *mut RawBuffer, kind: c_int, }
    BufferDimensions = 60 "Buffer_Dimensions": 40 { buffer: *mut RawBuffer, dims: *const i64, num_dims: usize, }
    BufferGetMemoryLayout = 63 "Buffer_GetMemoryLayout": 104 { buffer: *mut RawBuffer, layout: MemoryLayout, }
    BufferOnDeviceSizeInBytes = 64 "Buffer_OnDeviceSizeInBytes": 32 { buffer: *mut RawBuffer, size_bytes: usize, }
    BufferDelete = 67 "Buffer_Delete": 24 { buffer: *mut RawBuffer, }
    BufferIsDeleted = 68 "Buffer_IsDeleted": 25 { buffer: *mut RawBuffer, is_deleted: u8, }
    BufferToHostBuffer = 70 "Buffer_ToHostBuffer": 56 {
        src: *mut RawBuffer,
        host_layout: *mut MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut RawEvent,
    }
    BufferIsOnCpu = 71 "Buffer_IsOnCpu": 25 { buffer: *mut RawBuffer, is_on_cpu: u8, }
    BufferReadyEvent = 72 "Buffer_ReadyEvent": 32 { buffer: *mut RawBuffer, event: *mut RawEvent, }
    BufferIncreaseReferences = 74 "Buffer_IncreaseExternalReferenceCount": 24 { buffer: *mut RawBuffer, }
    BufferDecreaseReferences = 75 "Buffer_DecreaseExternalReferenceCount": 24 { buffer: *mut RawBuffer, }
    BufferDataPointer = 76 "Buffer_OpaqueDeviceMemoryDataPointer": 32 { buffer: *mut RawBuffer, data: *mut c_void, }
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<MemoryLayout>() == 80);
