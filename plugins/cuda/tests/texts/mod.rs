//! The texts of all kernels, made without a device: kernels prepared for one that only writes their texts down.

use devbay_plugin_api::abi::{self, *};
use devbay_plugin_api::sdk;
use devbay_plugin_api::sdk::{
    AllocRequest, Allocated, CopyRequest, DeviceDesc, HostBuffer, Launch, Operands, StreamRequest,
};
use devbay_shaders::kernels::ALL;
use devbay_shaders::step::{Job, Work};
use devbay_shaders::target::{Abilities, Backend, Target};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Texts by themselves, with the name of a kernel that has it.
static TEXTS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Abilities of an NVIDIA GPU.
const ABILITIES: Abilities = Abilities {
    is_software: false,
    f16: true,
    i64: true,
    subgroup: 32,
    storage_buffers_max: 32,
    groups_max: 65535,
    binding_max: 1 << 40,
};

/// Writes texts down.
struct Notes;

impl Backend for Notes {
    fn prepare(&self, work: Work) -> sdk::Result<sdk::Prepared> {
        let mut texts = TEXTS.lock().expect("no test panics with it");
        for job in work.jobs {
            let Job::Dispatch(dispatch) = job else { unreachable!("this back end has no library") };
            texts.insert(dispatch.wgsl, dispatch.name);
        }
        Ok(sdk::Prepared::new::<Paper, _>(Nothing))
    }
}

/// A kernel that cannot be launched.
struct Nothing;

impl Launch<Paper> for Nothing {
    fn launch(&self, _stream: &NoStream, _operands: &mut Operands<'_>) -> sdk::Result<()> {
        Err(sdk::Error::unsupported("a launch"))
    }
}

/// A device that runs nothing.
struct Paper {
    desc: DeviceDesc,
    target: Target,
}

impl Borrow<Target> for Paper {
    fn borrow(&self) -> &Target {
        &self.target
    }
}

impl sdk::Device for Paper {
    type Buffer = HostBuffer;
    type Stream = NoStream;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> sdk::Result<Allocated<HostBuffer>> {
        HostBuffer::alloc(request)
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> sdk::Result<NoStream> {
        Ok(NoStream)
    }
}

/// A stream on which nothing runs.
struct NoStream;

impl sdk::Stream for NoStream {
    type Buffer = HostBuffer;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> sdk::Result<()> {
        copy.run_on_host();
        Ok(())
    }
}

static KERNELS: [sdk::Kernel<Paper>; ALL.len()] = sdk::Kernel::shared_all(ALL);

struct Texts(Paper);

impl sdk::Plugin for Texts {
    type Device = Paper;
    const ABOUT: sdk::About = sdk::About { name: "texts", ..sdk::About::DEFAULT };
    const KERNELS: &'static [sdk::Kernel<Paper>] = &KERNELS;

    fn create(_host: sdk::Host, _options: &sdk::Options<'_>) -> sdk::Result<Self> {
        let target = Target { abilities: ABILITIES, backend: Arc::new(Notes), checks: Some(Arc::default()) };
        Ok(Self(Paper { desc: DeviceDesc::default(), target }))
    }

    fn devices(&self) -> sdk::Result<Vec<&Paper>> {
        Ok(vec![&self.0])
    }
}

devbay_plugin_api::static_plugin!(Texts);

/// Returns the texts of all kernels, each once, with a kernel's name; and the kernels without a text.
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
    // SAFETY: `create` has made the instance, and `devices` is local; the list is read before `destroy`.
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
                // SAFETY: `prepare` has succeeded above, and this is the kernel's only `unprepare`.
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

/// Parameters that a kernel is prepared for.
struct Description {
    attrs: &'static [(&'static str, i64)],
    inputs: Vec<(abi::DType, Vec<i64>)>,
    outputs: Vec<(abi::DType, Vec<i64>)>,
}

type Case = (&'static [&'static [i64]], &'static [i64], &'static [(&'static str, i64)]);

/// Shapes of operands and of the result, and attributes: operands of one shape, broadcast ones, and a scalar; lines that
/// threads share; a row by columns that lie next to each other.
const CASES: &[Case] = &[
    (&[&[2, 3, 5]], &[2, 3, 5], &[]),
    (&[&[2, 3, 5]], &[2, 3, 5], &[("fmod", 1)]),
    (&[&[2, 3, 5], &[3, 1], &[1]], &[2, 3, 5], &[]),
    (&[&[2, 3, 5], &[3, 1], &[1]], &[2, 3, 5], &[("fmod", 1)]),
    (&[&[2, 1, 5], &[3, 5]], &[2, 3, 5], &[]),
    (&[&[2, 1, 5], &[3, 5]], &[2, 3, 5], &[("fmod", 1)]),
    (&[&[2, 3, 5], &[], &[]], &[2, 3, 5], &[]),
    (&[&[2, 3, 600]], &[2, 3, 600], &[]),
    (&[&[2, 3, 60]], &[1, 1, 1], &[]),
    (&[&[2, 3, 6000]], &[1, 1, 1], &[]),
    (&[&[2, 3, 60], &[60]], &[2, 3, 60], &[]),
    (&[&[1, 64], &[70, 64]], &[1, 70], &[("transB", 1)]),
    (&[&[3, 64], &[70, 64]], &[3, 70], &[("transB", 1)]),
];

/// Every choice of its dtypes, with each of the cases.
fn descriptions(kernel: &KernelInfo) -> Vec<Description> {
    // SAFETY: the plugin's own static lists.
    let typevars = unsafe { read_growable_list::<TypeVar>(&kernel.typevars) }.expect("type variables");
    let dtypes = |var: &TypeVar| {
        // SAFETY: the plugin's own static list has this length.
        unsafe { core::slice::from_raw_parts(var.dtypes, var.n_dtypes as usize) }
    };
    let vars = |list: &List| -> Vec<u8> {
        // SAFETY: the list is static data of the plugin, which builds its elements as `uint8_t`.
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
    let n_inputs_max = if kernel.n_inputs_max == DEVBAY_VARIADIC { 3 } else { kernel.n_inputs_max as usize };
    // With all of the inputs, and without those that may be absent.
    let mut numbers = vec![kernel.n_inputs_min as usize, n_inputs_max];
    numbers.dedup();
    let mut descriptions = Vec::new();
    for choice in &choices {
        for (&n_inputs, &(shapes, output, attrs)) in
            numbers.iter().flat_map(|n| CASES.iter().map(move |case| (n, case)))
        {
            let of = |i: usize| {
                let var = inputs.get(i).or(inputs.last()).copied().unwrap_or_default();
                (choice[usize::from(var)], shapes[i % shapes.len()].to_vec())
            };
            let to = outputs.iter().map(|&var| (choice[usize::from(var)], output.to_vec())).collect();
            descriptions.push(Description { attrs, inputs: (0..n_inputs).map(of).collect(), outputs: to });
        }
    }
    descriptions
}
