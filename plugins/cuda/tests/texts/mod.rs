//! The WGSL of every kernel that the wgpu plugin has, made without wgpu: its kernels, prepared for a device that only
//! writes their texts down.
//!
//! The kernel files stand in this crate under the names that they expect: `device`, `dispatch`, `kernels`.

use devbay_plugin_api::abi::{self, *};
use devbay_plugin_api::sdk;
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Texts by themselves, with the name of a kernel that has it.
static TEXTS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// As the wgpu plugin's module of this name.
pub mod device {
    use devbay_plugin_api::sdk::*;

    /// A device that runs nothing.
    #[derive(Default)]
    pub struct WgpuDevice {
        desc: DeviceDesc,
        shared: Shared,
    }

    /// As the wgpu plugin's.
    #[derive(Default)]
    pub struct Shared {
        /// What shaders may use.
        pub abilities: Abilities,
    }

    /// As the wgpu plugin's.
    #[allow(dead_code, reason = "which of them kernels ask for changes with the kernels")]
    #[allow(missing_docs, reason = "as there")]
    pub struct Abilities {
        pub f16: bool,
        pub i64: bool,
        pub subgroups: bool,
        pub timestamps: bool,
        pub is_software: bool,
        pub storage_buffers_max: u32,
        pub groups_max: u32,
        pub shared_bytes: u32,
        pub binding_max: u64,
    }

    impl Default for Abilities {
        fn default() -> Self {
            Self {
                f16: true,
                i64: true,
                subgroups: false,
                timestamps: false,
                is_software: false,
                storage_buffers_max: 32,
                groups_max: 65535,
                shared_bytes: 48 << 10,
                binding_max: 1 << 40,
            }
        }
    }

    impl WgpuDevice {
        /// As the wgpu plugin's.
        pub fn shared(&self) -> &Shared {
            &self.shared
        }
    }

    impl Device for WgpuDevice {
        type Buffer = HostBuffer;
        type Stream = NoStream;

        fn describe(&self) -> &DeviceDesc {
            &self.desc
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<NoStream> {
            Ok(NoStream)
        }
    }

    /// A stream on which nothing runs.
    pub struct NoStream;

    impl Stream for NoStream {
        type Buffer = HostBuffer;

        fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
            copy.run_on_host();
            Ok(())
        }
    }
}

/// As the wgpu plugin's module of this name.
#[allow(dead_code, reason = "which of it kernels use changes with the kernels")]
#[allow(missing_docs, reason = "as there")]
pub mod dispatch {
    use super::device::{Abilities, NoStream, WgpuDevice};
    use devbay_plugin_api::sdk::*;
    use devbay_plugin_cuda::step;
    pub use devbay_plugin_cuda::step::{Body, Param};
    use std::ops::Range;

    #[derive(Clone, Debug)]
    pub enum Slot {
        Input(usize),
        Output(usize),
        Scratch(Range<u64>),
        Table,
    }

    pub struct Step<'a> {
        pub name: &'a str,
        pub buffers: Vec<(&'a str, &'a str, Slot)>,
        pub params: Vec<(String, Param)>,
        pub turns: u64,
        pub body: Body<'a>,
    }

    pub fn turns(n: u64, inner: u64) -> u64 {
        n.saturating_mul(inner.saturating_add(1)).saturating_add(1)
    }

    /// Writes texts down.
    pub struct Build {
        abilities: Abilities,
    }

    impl Build {
        pub fn new(_request: &PrepareRequest<'_, WgpuDevice>) -> Self {
            Self { abilities: Abilities::default() }
        }

        pub fn abilities(&self) -> &Abilities {
            &self.abilities
        }

        pub fn groups_max(&self) -> u32 {
            self.abilities.groups_max
        }

        pub fn turns_max(&self) -> u64 {
            u64::MAX
        }

        pub fn scratch(&mut self, bytes: u64) -> Slot {
            Slot::Scratch(0..bytes)
        }

        pub fn table(&self, _words: &[u32]) -> Result<Slot> {
            Ok(Slot::Table)
        }

        /// Writes the step's text down.
        pub fn add(&mut self, step: Step<'_>) -> Result<()> {
            let name = step.name.to_owned();
            let place = |slot| match slot {
                Slot::Input(i) => step::Slot::Input(i),
                Slot::Output(i) => step::Slot::Output(i),
                Slot::Scratch(range) => step::Slot::Scratch(range),
                // Where it lies is nothing to the text.
                Slot::Table => step::Slot::Scratch(0..4),
            };
            let buffers = step.buffers.into_iter().map(|(name, ty, slot)| (name, ty, place(slot))).collect();
            let step = step::Step { name: step.name, buffers, params: step.params, body: step.body };
            if let Some(text) = step.text(65535)? {
                super::TEXTS.lock().expect("no test panics with it").insert(text.wgsl, name);
            }
            Ok(())
        }

        /// A kernel that cannot be launched.
        pub fn finish(self) -> Prepared {
            Prepared::new::<WgpuDevice, _>(Nothing)
        }
    }

    struct Nothing;

    impl Launch<WgpuDevice> for Nothing {
        fn launch(&self, _stream: &NoStream, _operands: &mut Operands<'_>) -> Result<()> {
            Err(Error::unsupported("a launch"))
        }
    }
}

struct Texts(device::WgpuDevice);

impl sdk::Plugin for Texts {
    type Device = device::WgpuDevice;
    const ABOUT: sdk::About = sdk::About { name: "texts", ..sdk::About::DEFAULT };
    const KERNELS: &'static [sdk::Kernel<device::WgpuDevice>] = &crate::kernels::ALL;

    fn create(_host: sdk::Host, _options: &sdk::Options<'_>) -> sdk::Result<Self> {
        Ok(Self(device::WgpuDevice::default()))
    }

    fn devices(&self) -> sdk::Result<Vec<&device::WgpuDevice>> {
        Ok(vec![&self.0])
    }
}

devbay_plugin_api::static_plugin!(Texts);

/// What the texts of all kernels are, each once, with a kernel's name; and the kernels that gave none.
pub fn all() -> (Vec<(String, String)>, Vec<String>) {
    let info = info();
    // SAFETY: the plugin's own table.
    let table = unsafe { read_struct(info.table) }.expect("a table");
    let host = HostApi::empty();
    let desc = CreateDesc { abi_minor: info.abi_minor_max, host: &host, ..CreateDesc::empty() };
    let (mut instance, mut devices) = (null_mut(), List::EMPTY);
    // SAFETY: the table's function, with structs that outlive the call.
    let status = unsafe { table.create.expect("create")(&desc, &mut instance, null_mut()) };
    assert_eq!(status, DEVBAY_STATUS_OK);
    // SAFETY: as above.
    let status = unsafe { table.devices.expect("devices")(instance, &mut devices, null_mut()) };
    assert_eq!(status, DEVBAY_STATUS_OK);
    // SAFETY: the list has one device.
    let device = unsafe { (*devices.ptr.cast::<DeviceInfo>()).handle };
    // SAFETY: the plugin's own static list.
    let kernels = unsafe { read_growable_list::<KernelInfo>(&info.kernels) }.expect("kernels");
    let mut silent = Vec::new();
    for (kernel_idx, kernel) in kernels.iter().enumerate() {
        let mut given = 0;
        for desc in descriptions(kernel) {
            let tensors = |of: &[(abi::DType, Vec<i64>)]| -> Vec<Tensor> {
                let tensor = |(dtype, shape): &(abi::DType, Vec<i64>)| Tensor {
                    dtype: *dtype,
                    rank: shape.len() as u32,
                    shape: shape.as_ptr(),
                    ..Tensor::empty()
                };
                of.iter().map(tensor).collect()
            };
            let (inputs, outputs) = (tensors(&desc.inputs), tensors(&desc.outputs));
            let attrs: Vec<Attr> = desc
                .attrs
                .iter()
                .map(|&(name, i)| Attr { name: Str::new(name), kind: DEVBAY_ATTR_INT, i, ..Attr::empty() })
                .collect();
            let desc = PrepareDesc {
                kernel_idx: kernel_idx as u32,
                device,
                attrs: List::new(&attrs),
                inputs: List::new(&inputs),
                outputs: List::new(&outputs),
                ..PrepareDesc::empty()
            };
            let mut prepared = Prepared::empty();
            // SAFETY: the table's function, with structs that outlive the call.
            let status =
                unsafe { table.prepare.expect("prepare")(instance, &desc, &mut prepared, null_mut()) };
            if status == DEVBAY_STATUS_OK {
                given += 1;
                // SAFETY: as above, once.
                unsafe { table.unprepare.expect("unprepare")(instance, &mut prepared) };
            }
        }
        if given == 0 {
            // SAFETY: the plugin's own static text.
            silent.push(unsafe { kernel.op.get() }.expect("a name").to_owned());
        }
    }
    // SAFETY: made above, once.
    unsafe { table.destroy.expect("destroy")(instance) };
    let texts = TEXTS.lock().expect("no test panics with it");
    (texts.iter().map(|(text, name)| (name.clone(), text.clone())).collect(), silent)
}

fn info() -> &'static PluginInfo {
    // SAFETY: the plugin's own static.
    unsafe { &*devbay_entry::query() }
}

/// What a kernel is prepared for.
struct Description {
    attrs: &'static [(&'static str, i64)],
    inputs: Vec<(abi::DType, Vec<i64>)>,
    outputs: Vec<(abi::DType, Vec<i64>)>,
}

/// Every choice of its dtypes, with operands of one shape, broadcast ones, and a scalar.
fn descriptions(kernel: &KernelInfo) -> Vec<Description> {
    // SAFETY: the plugin's own static lists.
    let typevars = unsafe { read_growable_list::<TypeVar>(&kernel.typevars) }.expect("type variables");
    let dtypes = |var: &TypeVar| {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(var.dtypes, var.n_dtypes as usize) }
    };
    let vars = |list: &List| -> Vec<u8> {
        // SAFETY: as above.
        unsafe { read_list(list, "uint8_t") }.expect("type variables of operands")
    };
    let (inputs, outputs) = (vars(&kernel.input_typevars), vars(&kernel.output_typevars));
    let mut choices: Vec<Vec<abi::DType>> = vec![Vec::new()];
    for var in &typevars {
        let extended = choices.iter().flat_map(|choice| {
            dtypes(var).iter().map(move |&dtype| choice.iter().copied().chain([dtype]).collect())
        });
        choices = extended.collect();
    }
    let shapes: [&[&[i64]]; 4] =
        [&[&[2, 3, 5]], &[&[2, 3, 5], &[3, 1], &[1]], &[&[2, 1, 5], &[3, 5]], &[&[2, 3, 5], &[], &[]]];
    let mut descriptions = Vec::new();
    for choice in &choices {
        for shapes in &shapes[..if inputs.len() > 1 || kernel.n_inputs_max > 1 { 4 } else { 1 }] {
            let n_inputs = match kernel.n_inputs_max {
                DEVBAY_VARIADIC => 3,
                n => n as usize,
            };
            let of = |i: usize| {
                let var = inputs.get(i).or(inputs.last()).copied().unwrap_or_default();
                (choice[usize::from(var)], shapes[i % shapes.len()].to_vec())
            };
            let to = outputs.iter().map(|&var| (choice[usize::from(var)], vec![2, 3, 5])).collect::<Vec<_>>();
            for attrs in [&[][..], &[("fmod", 1)]] {
                let inputs = (0..n_inputs).map(of).collect();
                descriptions.push(Description { attrs, inputs, outputs: to.clone() });
            }
        }
    }
    descriptions
}
