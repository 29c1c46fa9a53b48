//! One node on a device: what `prepare` is asked, and a launch whose operands stand between guards.

use crate::ops::{Attribute, OPS, Op, Sample};
use crate::rig::{Buffer, Detail, Device, Rig, Stream, pattern, status_name};
use crate::tensor::HostTensor;
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_host::internals::core::about::About;
use devbay_host::internals::core::kernel::KernelDef;
use devbay_plugin_api::abi::{self, *};
use std::ffi::c_void;
use std::ptr::null;

/// Request to `prepare`, with all that it points to. Tests may change anything before they ask.
pub(crate) struct Request {
    pub kernel_idx: u32,
    pub device: *mut abi::Device,
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    pub attrs: Vec<Attr>,
    #[expect(dead_code, reason = "owns what the tensors and attributes point to")]
    owned: Vec<Vec<i64>>,
    constants: Vec<Vec<u8>>,
}

impl Request {
    pub(crate) fn new(device: &Device<'_>, kernel_idx: u32, sample: &Sample) -> Self {
        let mut owned = Vec::new();
        let mut tensor = |tensor: &HostTensor| {
            owned.push(tensor.shape.clone());
            Tensor {
                rank: tensor.shape.len() as u32,
                dtype: tensor.dtype,
                // A vector's elements stay where they are when the vector is moved.
                shape: owned.last().map_or(null(), |shape| shape.as_ptr()),
                ..Tensor::empty()
            }
        };
        let inputs = sample.inputs.iter().map(&mut tensor).collect();
        let outputs = vec![tensor(&sample.expected)];
        let attrs = sample.attributes.iter().map(|attribute| match attribute {
            Attribute::Int(name, i) => {
                Attr { kind: DEVBAY_ATTR_INT, name: Str::new(name), i: *i, ..Attr::empty() }
            }
            Attribute::Ints(name, list) => {
                owned.push(list.clone());
                let list = owned.last().map_or(List::EMPTY, |list| List::new(list));
                Attr { kind: DEVBAY_ATTR_INTS, name: Str::new(name), list, ..Attr::empty() }
            }
        });
        let attrs = attrs.collect();
        Self { kernel_idx, device: device.info.handle, inputs, outputs, attrs, owned, constants: Vec::new() }
    }

    /// Gives an input's value with the question.
    pub(crate) fn make_constant(&mut self, i: usize, bytes: Vec<u8>) {
        let tensor = &mut self.inputs[i];
        tensor.flags |= DEVBAY_TENSOR_CONSTANT;
        tensor.constant = bytes.as_ptr().cast();
        tensor.constant_bytes = bytes.len() as u64;
        self.constants.push(bytes);
    }

    /// Returns the struct, which borrows this value.
    pub(crate) fn desc(&self) -> PrepareDesc {
        PrepareDesc {
            kernel_idx: self.kernel_idx,
            device: self.device,
            attrs: List::new(&self.attrs),
            inputs: List::new(&self.inputs),
            outputs: List::new(&self.outputs),
            ..PrepareDesc::empty()
        }
    }

    /// Asks.
    pub(crate) fn prepare<'a>(&self, device: &'a Device<'a>) -> Outcome<Result<Node<'a>, (Status, String)>> {
        let desc = self.desc();
        let mut out = Prepared::empty();
        // SAFETY: the description and all that it points to live for the call; the result is whole.
        unsafe { prepare_raw(device, &desc, &mut out) }
    }
}

/// Calls `prepare`: a node, or the refusal with its words.
///
/// # Safety
/// `desc` and `out` are as `PluginTable::prepare` says.
pub(crate) unsafe fn prepare_raw<'a>(
    device: &'a Device<'a>,
    desc: *const PrepareDesc,
    out: *mut Prepared,
) -> Outcome<Result<Node<'a>, (Status, String)>> {
    let Some(prepare) = device.opened.table.prepare else {
        return failed("the plugin has kernels, but no prepare");
    };
    let mut detail = Detail::new();
    // SAFETY: the instance is the plugin's own; the pointers are as `PluginTable::prepare` says (# Safety).
    let status = unsafe { prepare(device.opened.handle.as_ptr(), desc, out, &mut detail.raw) };
    // SAFETY: the result is at least as large as every version's.
    let raw = match unsafe { read_struct(out) } {
        Ok(raw) => raw,
        Err(error) => return failed(format!("prepare wrote an invalid result: {error}")),
    };
    if status != DEVBAY_STATUS_OK {
        ensure!(
            raw.launch.is_none() && raw.state.is_null() && raw.workspace_bytes == 0,
            "prepare returned {}, but wrote a result",
            status_name(status)
        );
        return Ok(Err((status, detail.describe(status))));
    }
    ensure!(raw.launch.is_some(), "prepare succeeded without a launch function");
    ensure!(
        raw.workspace_align == 0 || raw.workspace_align.is_power_of_two(),
        "prepare requests a workspace aligned to {}, expected a power of two",
        raw.workspace_align
    );
    Ok(Ok(Node { device, raw }))
}

/// A prepared kernel.
pub(crate) struct Node<'a> {
    pub device: &'a Device<'a>,
    pub raw: Prepared,
}

// SAFETY: the result of `prepare` is immutable, and belongs to no thread (B21).
unsafe impl Send for Node<'_> {}
// SAFETY: many threads may launch it at once (B21).
unsafe impl Sync for Node<'_> {}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if let Some(unprepare) = self.device.opened.table.unprepare {
            // SAFETY: `prepare` made the state, and it is given back once, here; its launches are done.
            unsafe { unprepare(self.device.opened.handle.as_ptr(), &mut self.raw) };
        }
    }
}

/// Damage by a launch beside its outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// It wrote into an input.
    Input(usize),
    /// It wrote beside an operand: inputs first, then outputs.
    Beside(usize),
    /// It wrote beside its workspace.
    Workspace,
}

/// Result of a launch.
pub(crate) struct Ran {
    pub output: Vec<u8>,
    pub damage: Vec<Damage>,
}

/// Manner of a launch.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// The output stands in this input's memory.
    pub in_place: Option<usize>,
    /// Content of the output and the workspace before.
    pub fill: u8,
    /// Inputs are host memory (devices with HOST_REFS).
    pub host_refs: bool,
}

/// An operand between two guards.
struct Area<'a> {
    buffer: Buffer<'a>,
    image: Vec<u8>,
    offset: usize,
    length: usize,
    /// Bytes that belong to the operand: its length, padded as copies are.
    owned: usize,
}

impl<'a> Area<'a> {
    /// An area whose operand stands at an odd multiple of the alignment: no better aligned than the device asks.
    fn new(device: &'a Device<'a>, content: &[u8], align: usize, seed: u64) -> Outcome<Self> {
        let step = device.step().max(align);
        let mut offset = step;
        while offset < 64 {
            offset += 2 * step;
        }
        let owned = device.pad(content.len());
        let size = device.pad(offset + owned + 64);
        let mut image = pattern(size, seed);
        image[offset..][..content.len()].copy_from_slice(content);
        let mut detail = Detail::new();
        let wanted = device.space().alloc_align.max(align as u64);
        let (status, out) = device.try_alloc(0, size as u64, wanted, &mut detail)?;
        ensure!(status == DEVBAY_STATUS_OK, "buffer_alloc of {size} bytes: {}", detail.describe(status));
        Ok(Self { buffer: device.own(out, size)?, image, offset, length: content.len(), owned })
    }

    fn reference(&self) -> BufferRef {
        self.buffer.part(self.offset, self.length)
    }

    /// Reads it back: the operand, and whether everything beside it is as it was.
    fn read(&self, stream: &Stream<'_>) -> Outcome<(Vec<u8>, bool)> {
        let found = stream.download(&self.buffer, 0, self.image.len())?;
        let end = self.offset + self.owned;
        let beside = found[..self.offset] == self.image[..self.offset] && found[end..] == self.image[end..];
        Ok((found[self.offset..][..self.length].to_vec(), beside))
    }
}

impl Node<'_> {
    /// Launches the node on a sample's data, and looks at everything afterwards.
    pub(crate) fn run(
        &self,
        kernel: &KernelDef,
        stream: &Stream<'_>,
        sample: &Sample,
        how: How,
    ) -> Outcome<Ran> {
        let device = self.device;
        let contents: Vec<Vec<u8>> = sample.inputs.iter().map(HostTensor::bytes).collect();
        let mut inputs = Vec::new();
        for (i, content) in contents.iter().enumerate() {
            inputs.push(Area::new(device, content, 1, i as u64 + 1)?);
        }
        let output = match how.in_place {
            Some(_) => None,
            None => Some(Area::new(device, &vec![how.fill; sample.expected.size()], 1, 50)?),
        };
        let workspace = match self.raw.workspace_bytes as usize {
            0 => None,
            n => Some(Area::new(device, &vec![how.fill; n], self.raw.workspace_align.max(1) as usize, 60)?),
        };
        for area in inputs.iter().chain(&output).chain(&workspace) {
            stream.upload(&area.image, &area.buffer, 0)?;
        }
        let mut refs: Vec<BufferRef> = if how.host_refs {
            contents.iter().map(|content| host_ref(content)).collect()
        } else {
            inputs.iter().map(Area::reference).collect()
        };
        refs.extend(output.as_ref().map(Area::reference).or_else(|| how.in_place.map(|i| refs[i])));
        refs.extend(workspace.as_ref().map(Area::reference));
        self.launch(kernel, stream, &refs)?;
        // The state and the operands stay until the point.
        stream.finish()?;

        let mut damage = Vec::new();
        let mut result = Vec::new();
        for (i, area) in inputs.iter().enumerate() {
            let (found, beside) = area.read(stream)?;
            if !beside {
                damage.push(Damage::Beside(i));
            }
            if how.in_place == Some(i) {
                result = found;
            } else if found != contents[i] {
                damage.push(Damage::Input(i));
            }
        }
        if let Some(area) = &output {
            let (found, beside) = area.read(stream)?;
            if !beside {
                damage.push(Damage::Beside(inputs.len()));
            }
            result = found;
        }
        if let Some(area) = &workspace
            && !area.read(stream)?.1
        {
            damage.push(Damage::Workspace);
        }
        Ok(Ran { output: result, damage })
    }

    /// Launches the node so that it should fail, as on a sample whose data is at fault: the status of the launch, or of the
    /// point behind it, the stream's words for it, and what was written beside operands or into inputs, which `other` reads.
    /// `launching` is told before the launch and behind the point.
    pub(crate) fn run_to_failure(
        &self,
        stream: &Stream<'_>,
        other: &Stream<'_>,
        sample: &Sample,
        launching: impl Fn(bool),
    ) -> Outcome<(Status, String, Vec<Damage>)> {
        let contents: Vec<Vec<u8>> = sample.inputs.iter().map(HostTensor::bytes).collect();
        let areas = self.areas(other, sample)?;
        let refs: Vec<BufferRef> = areas.iter().map(Area::reference).collect();
        launching(true);
        let status = match self.launch_status(stream, &refs)? {
            DEVBAY_STATUS_OK => stream.end_status()?,
            status => {
                // Earlier work on the stream, if any, is done before the operands are read.
                stream.end_status()?;
                status
            }
        };
        launching(false);
        let words = stream.words(status);
        let mut damage = Vec::new();
        for (i, area) in areas.iter().enumerate() {
            let (found, beside) = area.read(other)?;
            match contents.get(i) {
                _ if !beside && i > contents.len() => damage.push(Damage::Workspace),
                _ if !beside => damage.push(Damage::Beside(i)),
                Some(content) if *content != found => damage.push(Damage::Input(i)),
                _ => {}
            }
        }
        Ok((status, words, damage))
    }

    /// Inputs, the output and the workspace, as a stream has put them on the device.
    fn areas(&self, stream: &Stream<'_>, sample: &Sample) -> Outcome<Vec<Area<'_>>> {
        let device = self.device;
        let mut areas = Vec::new();
        for (i, input) in sample.inputs.iter().enumerate() {
            areas.push(Area::new(device, &input.bytes(), 1, i as u64 + 1)?);
        }
        areas.push(Area::new(device, &vec![0x3c; sample.expected.size()], 1, 50)?);
        if self.raw.workspace_bytes > 0 {
            let content = vec![0x3c; self.raw.workspace_bytes as usize];
            areas.push(Area::new(device, &content, self.raw.workspace_align.max(1) as usize, 60)?);
        }
        for area in &areas {
            stream.upload(&area.image, &area.buffer, 0)?;
        }
        Ok(areas)
    }

    /// Launches the node on a stream that has failed: the status, and whether memory is as it was, which `other` reads.
    pub(crate) fn run_on_failed(
        &self,
        stream: &Stream<'_>,
        other: &Stream<'_>,
        sample: &Sample,
    ) -> Outcome<(Status, bool)> {
        let areas = self.areas(other, sample)?;
        let refs: Vec<BufferRef> = areas.iter().map(Area::reference).collect();
        let status = self.launch_status(stream, &refs)?;
        let mut is_whole = true;
        for area in &areas {
            is_whole &= other.download(&area.buffer, 0, area.image.len())? == area.image;
        }
        Ok((status, is_whole))
    }

    /// Enqueues one launch.
    pub(crate) fn launch(&self, kernel: &KernelDef, stream: &Stream<'_>, refs: &[BufferRef]) -> Outcome {
        match self.launch_status(stream, refs)? {
            DEVBAY_STATUS_OK => Ok(()),
            status => failed(format!("a launch of {} returned {}", kernel.op, stream.error_words(status))),
        }
    }

    /// As [`Node::launch`], and gives the status.
    fn launch_status(&self, stream: &Stream<'_>, refs: &[BufferRef]) -> Outcome<Status> {
        let Some(launch) = self.raw.launch else {
            return failed("a prepared kernel has no launch function");
        };
        let state: *const c_void = self.raw.state.cast_const();
        // SAFETY: the plugin's function with its own state and stream, and as many references as `prepare` fixed.
        Ok(unsafe { launch(state, stream.handle.as_ptr(), refs.as_ptr(), null()) })
    }
}

/// Host memory as an operand.
pub(crate) fn host_ref(bytes: &[u8]) -> BufferRef {
    BufferRef {
        buffer: std::ptr::null_mut(),
        addr: bytes.as_ptr() as u64,
        offset: 0,
        length: bytes.len() as u64,
    }
}

/// Kernels of an op, with the dtypes that both the kernel and the suite know.
pub(crate) fn candidates<'k>(about: &'k About, op: &Op) -> Vec<(&'k KernelDef, DType)> {
    let fits = |kernel: &&KernelDef| {
        kernel.domain.is_empty()
            && kernel.op == op.name
            && op.versions.contains(&kernel.since_version)
            && (0..op.n_inputs()).all(|i| !kernel.needs_value(i))
    };
    let kernels = about.kernels.iter().filter(fits);
    kernels
        .flat_map(|kernel| {
            let typevar = kernel.input_typevars.first().and_then(|&var| kernel.typevars.get(var as usize));
            let known = typevar.into_iter().flatten().filter(|dtype| op.dtypes.contains(dtype));
            known.map(move |&dtype| (kernel, dtype))
        })
        .collect()
}

/// Returns the first and the last of an op's dtypes: where numbers are not judged, others say nothing new.
fn few<'k>(all: &[(&'k KernelDef, DType)]) -> Vec<(&'k KernelDef, DType)> {
    match all {
        [first, .., last] => vec![*first, *last],
        few => few.to_vec(),
    }
}

/// Runs a body on every kernel of the base set that takes the sample that `pick` makes of it.
pub(crate) fn each_node(
    rig: &Rig<'_>,
    pick: fn(&Op, DType) -> Sample,
    body: impl FnMut(&Device<'_>, &KernelDef, &Request, Sample) -> Outcome,
) -> Outcome {
    each_node_of(rig, |_| true, pick, body)
}

/// As [`each_node`], for ops that a condition holds for.
pub(crate) fn each_node_of(
    rig: &Rig<'_>,
    wanted: impl Fn(&Op) -> bool,
    pick: fn(&Op, DType) -> Sample,
    mut body: impl FnMut(&Device<'_>, &KernelDef, &Request, Sample) -> Outcome,
) -> Outcome {
    let about = rig.about()?;
    let (mut n_offered, mut n_taken) = (0, 0);
    rig.each_device(|device| {
        device.plain_memory()?;
        for op in OPS.iter().filter(|op| wanted(op)) {
            for (kernel, dtype) in few(&candidates(about, op)) {
                n_offered += 1;
                let sample = pick(op, dtype);
                let request = Request::new(device, kernel.idx, &sample);
                match request.prepare(device)? {
                    Ok(node) => drop(node),
                    // As it may: the table is a superset.
                    Err((DEVBAY_STATUS_UNSUPPORTED, _)) => continue,
                    Err((_, words)) => return failed(format!("prepare of {}: {words}", kernel.op)),
                }
                n_taken += 1;
                body(device, kernel, &request, sample)?;
            }
        }
        Ok(())
    })?;
    if n_offered == 0 {
        let names: Vec<&str> = OPS.iter().filter(|op| wanted(op)).map(|op| op.name).collect();
        return not_run(Why::NotOffered, format!("the plugin has no kernel for {}", names.join(", ")));
    }
    if n_taken == 0 {
        return not_run(Why::Refused, "prepare returned UNSUPPORTED for every node");
    }
    Ok(())
}
