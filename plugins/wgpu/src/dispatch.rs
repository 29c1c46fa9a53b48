//! What a prepared kernel is: dispatches of shaders, with their parameters and what they are bound to.
//!
//! A kernel's prepare function adds [`Step`]s to a [`Build`]; all launches then go one way, [`Program::launch`]: it
//! resolves operands to ranges of buffers, finds the bind group that was made for them before, and records the
//! dispatch.

use crate::device::{Abilities, Shared, WgpuDevice};
use crate::memory::{Purpose, Raw, WgpuBuffer, lock};
use crate::shader::Shader;
use crate::stream::WgpuStream;
use devbay_plugin_api::sdk::*;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Threads of a workgroup that runs over items.
pub const GROUP: u32 = 256;
/// Bind groups that a stream keeps.
const GROUPS_MAX: usize = 4096;
/// Offsets of what lies in one workspace.
const SCRATCH_ALIGN: u64 = 256;

/// What a buffer of a shader is bound to.
#[derive(Clone, Debug)]
pub enum Slot {
    /// An input, whole.
    Input(usize),
    /// An output, whole.
    Output(usize),
    /// A part of the workspace.
    Scratch(Range<u64>),
    /// Numbers of the kernel's own ([`Build::table`]).
    Table(Arc<Table>),
}

/// Memory that is written once, when a kernel is prepared, and freed with the kernel.
pub struct Table {
    shared: Arc<Shared>,
    raw: Option<Raw>,
    size: u64,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a table of {} bytes", self.size)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.shared.pool.give(raw);
        }
    }
}

/// A parameter of a shader: a field of its struct `p`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Param {
    /// `u32`.
    U32(u32),
    /// `i32`.
    I32(i32),
    /// `f32`.
    F32(f32),
}

impl Param {
    fn type_name(self) -> &'static str {
        match self {
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
        }
    }

    fn bytes(self) -> [u8; 4] {
        match self {
            Self::U32(value) => value.to_le_bytes(),
            Self::I32(value) => value.to_le_bytes(),
            Self::F32(value) => value.to_le_bytes(),
        }
    }
}

/// Turns of loops of a thread, at most, where a device is a program: Mesa's llvmpipe leaves every loop after 65535 turns
/// of all of them together, and says nothing.
const SOFTWARE_TURNS_MAX: u64 = 60_000;

/// Turns of a loop that goes round `n` times, with `inner` turns of other loops each time. The one that only finds that
/// it is over counts, too.
pub fn turns(n: u64, inner: u64) -> u64 {
    n.saturating_mul(inner.saturating_add(1)).saturating_add(1)
}

/// One dispatch, as a kernel describes it.
///
/// `code` is WGSL. Buffers are declared from `buffers` as `var<storage, read_write> NAME: array<TYPE>`, parameters as
/// the fields of `p`, in order.
pub struct Step<'a> {
    /// A name for errors and debuggers.
    pub name: &'a str,
    /// Name, element type and slot of each buffer.
    pub buffers: Vec<(&'a str, &'a str, Slot)>,
    /// Name and value of each parameter.
    pub params: Vec<(String, Param)>,
    /// Turns of loops that one thread makes at most, all loops together, nested ones multiplied; what a driver unrolls
    /// counts too ([`turns`]). 0 without loops.
    pub turns: u64,
    /// What runs.
    pub body: Body<'a>,
}

/// The code of a step, and over what it runs.
pub enum Body<'a> {
    /// Functions, and statements that are run for every `i` below `n`.
    Items {
        /// Items.
        n: u64,
        /// WGSL at module scope.
        functions: &'a str,
        /// WGSL statements over `i: u32`.
        each: &'a str,
    },
    /// A module with an entry `main` of its own.
    Groups {
        /// Workgroups along each axis.
        groups: [u32; 3],
        /// WGSL.
        module: &'a str,
    },
}

/// A dispatch that is ready.
struct Dispatch {
    shader: Arc<Shader>,
    params: Option<ParamSlot>,
    slots: Vec<Slot>,
    groups: [u32; 3],
}

/// A kernel in the making.
pub struct Build {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    scratch_bytes: u64,
    /// The node's name, for traces.
    label: Box<str>,
}

impl Build {
    /// Nothing yet.
    pub fn new(request: &PrepareRequest<'_, WgpuDevice>) -> Self {
        let shared = Arc::clone(request.device.shared());
        Self { shared, dispatches: Vec::new(), scratch_bytes: 0, label: request.label.into() }
    }

    /// What the device can.
    pub fn abilities(&self) -> &Abilities {
        &self.shared.abilities
    }

    /// Workgroups along one axis, at most.
    pub fn groups_max(&self) -> u32 {
        self.shared.abilities.groups_max
    }

    /// What [`Step::turns`] may be, at most.
    pub fn turns_max(&self) -> u64 {
        if self.shared.abilities.is_software { SOFTWARE_TURNS_MAX } else { u64::MAX }
    }

    /// Bytes of the workspace.
    pub fn scratch(&mut self, bytes: u64) -> Slot {
        let begin = self.scratch_bytes.next_multiple_of(SCRATCH_ALIGN);
        self.scratch_bytes = begin + bytes.max(4).next_multiple_of(4);
        Slot::Scratch(begin..self.scratch_bytes)
    }

    /// Numbers that the kernel reads in each launch; shaders never write them.
    ///
    /// # Errors
    /// Out of memory.
    pub fn table(&self, words: &[u32]) -> Result<Slot> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let size = (bytes.len() as u64).max(4);
        let raw = self.shared.pool.take(&self.shared, Purpose::Operands, size)?;
        self.shared.guarded(|| self.shared.queue.write_buffer(&raw.buffer, 0, &bytes))?;
        Ok(Slot::Table(Arc::new(Table { shared: Arc::clone(&self.shared), raw: Some(raw), size })))
    }

    /// Adds a dispatch behind those before.
    ///
    /// # Errors
    /// Internal with the compiler's words; unsupported for more items, buffers or turns of loops than the device can.
    pub fn add(&mut self, step: Step<'_>) -> Result<()> {
        let mut text = String::new();
        let space = self.shared.abilities.param_space();
        if !step.params.is_empty() {
            text.push_str("struct Params {\n");
            for (name, value) in &step.params {
                text.push_str(&format!("  {name}: {},\n", value.type_name()));
            }
            text.push_str(&format!("}}\n@group(0) @binding(0) var<{space}> p: Params;\n"));
        }
        let mut params = step.params;
        for (i, (name, element, _)) in step.buffers.iter().enumerate() {
            let binding = i + 1;
            text.push_str(&format!(
                "@group(0) @binding({binding}) var<storage, read_write> {name}: array<{element}>;\n"
            ));
        }
        let groups = match step.body {
            Body::Groups { groups, module } => {
                text.push_str(module);
                groups
            }
            Body::Items { n, functions, each } => {
                if n == 0 {
                    return Ok(());
                }
                let n_items = u32::try_from(n)
                    .map_err(|_| Error::unsupported(format!("{n} items of a dispatch, more than 2^32")))?;
                if params.is_empty() {
                    text.insert_str(0, &format!("@group(0) @binding(0) var<{space}> p: Params;\n"));
                    text.insert_str(0, "struct Params {\n  n_items: u32,\n}\n");
                } else {
                    text = text.replacen("struct Params {\n", "struct Params {\n  n_items: u32,\n", 1);
                }
                params.insert(0, ("n_items".to_owned(), Param::U32(n_items)));
                text.push_str(functions);
                text.push_str(&format!(
                    "\n@compute @workgroup_size({GROUP})\n\
                     fn main(@builtin(global_invocation_id) id: vec3<u32>, \
                     @builtin(num_workgroups) groups: vec3<u32>) {{\n\
                     let i = id.y * (groups.x * {GROUP}u) + id.x;\n\
                     if (i >= p.n_items) {{ return; }}\n{each}\n}}\n"
                ));
                let n_groups = n_items.div_ceil(GROUP);
                let width = n_groups.min(self.shared.abilities.groups_max);
                [width, n_groups.div_ceil(width), 1]
            }
        };
        if step.turns > self.turns_max() {
            return Err(Error::unsupported(format!(
                "{}: loops of {} turns, of which a device that is a program makes {SOFTWARE_TURNS_MAX}",
                step.name, step.turns
            )));
        }
        if step.turns == 0 && LOOPS.iter().any(|word| text.contains(word)) {
            return Err(Error::internal(format!("{}: loops without a bound", step.name)));
        }
        if text.contains("f16") {
            text.insert_str(0, "enable f16;\n");
        }
        let shared = &self.shared;
        if groups.iter().any(|&n| n > shared.abilities.groups_max) {
            let most = shared.abilities.groups_max;
            return Err(Error::unsupported(format!(
                "{groups:?} workgroups, the device has {most} on an axis"
            )));
        }
        let shader = shared.shaders.get(shared, step.name, &text, !params.is_empty(), step.buffers.len())?;
        let params = match params.is_empty() {
            true => None,
            false => Some(ParamSlot::new(shared, &params)?),
        };
        let slots = step.buffers.into_iter().map(|(.., slot)| slot).collect();
        self.dispatches.push(Dispatch { shader, params, slots, groups });
        Ok(())
    }

    /// The kernel.
    pub fn finish(self) -> Prepared {
        let scratch = self.scratch_bytes as usize;
        let id = NEXT_PROGRAM.fetch_add(1, Ordering::Relaxed);
        let program = Program { id, shared: self.shared, dispatches: self.dispatches, label: self.label };
        let prepared = Prepared::new::<WgpuDevice, _>(program);
        if scratch == 0 { prepared } else { prepared.with_workspace(scratch, SCRATCH_ALIGN as usize) }
    }
}

/// How loops begin in WGSL.
const LOOPS: [&str; 3] = ["for (", "loop {", "while ("];

static NEXT_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// A prepared kernel.
pub struct Program {
    id: u64,
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    /// The node's name, for traces; equal nodes share a kernel, and then it is that of the first of them.
    label: Box<str>,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.shared.pool.forget();
    }
}

/// A range of a buffer.
#[derive(Clone, Copy)]
struct Bound<'a> {
    raw: &'a Raw,
    offset: u64,
    size: u64,
}

/// Buffers that a dispatch may bind without allocating.
const BOUND_INLINE: usize = 12;

impl Launch<WgpuDevice> for Program {
    fn launch(&self, stream: &WgpuStream, operands: &mut Operands<'_, WgpuBuffer>) -> Result<()> {
        let shared = stream.shared();
        stream.record(|recording, label| {
            recording.groups.refresh(shared.pool.epoch());
            for (at, dispatch) in self.dispatches.iter().enumerate() {
                let mut inline = [None; BOUND_INLINE];
                let mut spilled = Vec::new();
                let n = dispatch.slots.len();
                let bound = match inline.get_mut(..n) {
                    Some(bound) => bound,
                    None => {
                        spilled.resize(n, None);
                        &mut spilled[..]
                    }
                };
                for (bound, slot) in bound.iter_mut().zip(&dispatch.slots) {
                    *bound = Some(resolve(slot, operands)?);
                }
                let (pass, groups) = recording.pass(shared, label, &self.label);
                let group = groups.get(shared, (self.id, at as u32), dispatch, bound)?;
                pass.set_pipeline(&dispatch.shader.pipeline);
                pass.set_bind_group(0, group, &[]);
                let [x, y, z] = dispatch.groups;
                pass.dispatch_workgroups(x, y, z);
            }
            Ok(())
        })
    }
}

/// The memory that a slot is bound to in this launch.
fn resolve<'a>(slot: &'a Slot, operands: &Operands<'a, WgpuBuffer>) -> Result<Bound<'a>> {
    let region = match slot {
        Slot::Table(table) => {
            let raw = table.raw.as_ref().ok_or_else(|| Error::internal("a table without memory"))?;
            return Ok(Bound { raw, offset: 0, size: table.size });
        }
        Slot::Input(i) => operands.input_region(*i),
        Slot::Output(i) => operands.output_region(*i),
        Slot::Scratch(_) => operands.workspace_region(),
    };
    let (buffer, mut range) =
        region.ok_or_else(|| Error::invalid(format!("{slot:?} is not in this device's memory")))?;
    if let Slot::Scratch(part) = slot {
        range = range.start + part.start..range.start + part.end;
    }
    // What is bound is words; the host pads what it allocates to them.
    let size = (range.end - range.start).next_multiple_of(4);
    Ok(Bound { raw: buffer.raw(), offset: range.start, size })
}

/// Bind groups of earlier launches: a frame's operands are the same in every run.
#[derive(Default)]
pub struct Groups {
    by_hash: HashMap<u64, Vec<Group>>,
    n: usize,
    epoch: u64,
}

struct Group {
    dispatch: (u64, u32),
    /// Number, offset and size of each buffer.
    bound: Vec<(u64, u64, u64)>,
    group: wgpu::BindGroup,
}

impl Groups {
    /// Forgets all of them if buffers or kernels are gone since.
    fn refresh(&mut self, epoch: u64) {
        if self.epoch != epoch || self.n >= GROUPS_MAX {
            self.by_hash.clear();
            self.n = 0;
            self.epoch = epoch;
        }
    }

    fn get(
        &mut self,
        shared: &Shared,
        key: (u64, u32),
        dispatch: &Dispatch,
        bound: &[Option<Bound<'_>>],
    ) -> Result<&wgpu::BindGroup> {
        let mut hash = mix(mix(0, key.0), u64::from(key.1));
        for bound in bound.iter().flatten() {
            hash = mix(mix(mix(hash, bound.raw.id), bound.offset), bound.size);
        }
        let list = self.by_hash.entry(hash).or_default();
        let is_same = |group: &Group| {
            let own = group.bound.iter().copied();
            let wanted = bound.iter().flatten().map(|bound| (bound.raw.id, bound.offset, bound.size));
            group.dispatch == key && own.eq(wanted)
        };
        if let Some(at) = list.iter().position(is_same) {
            return Ok(&list[at].group);
        }
        let params = dispatch
            .params
            .as_ref()
            .map(|params| wgpu::BindGroupEntry { binding: 0, resource: params.binding() });
        let buffers = bound.iter().flatten().enumerate().map(|(i, bound)| wgpu::BindGroupEntry {
            binding: i as u32 + 1,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &bound.raw.buffer,
                offset: bound.offset,
                size: std::num::NonZeroU64::new(bound.size),
            }),
        });
        let entries: Vec<_> = params.into_iter().chain(buffers).collect();
        let group = shared.guarded(|| {
            shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &dispatch.shader.layout,
                entries: &entries,
            })
        })?;
        let bound = bound.iter().flatten().map(|bound| (bound.raw.id, bound.offset, bound.size)).collect();
        list.push(Group { dispatch: key, bound, group });
        self.n += 1;
        Ok(&list[list.len() - 1].group)
    }
}

/// One step of a hash: a multiplication that carries every bit upward, and a rotation that brings them down.
fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Bytes of a chunk of parameters, at most what every device can bind.
const CHUNK_BYTES: u64 = 16 << 10;

/// Memory for parameters: slots of chunks, so that a kernel with a few numbers is no allocation.
pub struct ParamPool {
    align: u64,
    free: Mutex<HashMap<u64, Vec<(wgpu::Buffer, u64)>>>,
}

impl ParamPool {
    /// Empty; slots begin at multiples of `align`.
    pub fn new(align: u32) -> Self {
        Self { align: u64::from(align).max(16), free: Mutex::default() }
    }

    fn take(&self, shared: &Shared, size: u64) -> Result<(wgpu::Buffer, u64)> {
        if size > CHUNK_BYTES {
            return Err(Error::unsupported(format!("{size} bytes of parameters")));
        }
        if let Some(slot) = lock(&self.free).get_mut(&size).and_then(Vec::pop) {
            return Ok(slot);
        }
        let chunk = shared.guarded(|| {
            shared.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("parameters"),
                size: CHUNK_BYTES,
                usage: shared.abilities.param_usage() | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })?;
        let mut free = lock(&self.free);
        let slots = free.entry(size).or_default();
        slots.extend((0..CHUNK_BYTES / size).map(|i| (chunk.clone(), i * size)));
        slots.pop().ok_or_else(|| Error::internal("a chunk of parameters without a slot"))
    }
}

/// The parameters of one dispatch.
struct ParamSlot {
    shared: Arc<Shared>,
    buffer: wgpu::Buffer,
    offset: u64,
    size: u64,
}

impl ParamSlot {
    fn new(shared: &Arc<Shared>, params: &[(String, Param)]) -> Result<Self> {
        let mut bytes: Vec<u8> = params.iter().flat_map(|(_, value)| value.bytes()).collect();
        // A uniform struct's size is a multiple of 16.
        let size = (bytes.len() as u64).next_multiple_of(shared.params.align);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        let (buffer, offset) = shared.params.take(shared, size)?;
        let slot = Self { shared: Arc::clone(shared), buffer, offset, size };
        shared.guarded(|| shared.queue.write_buffer(&slot.buffer, offset, &bytes))?;
        Ok(slot)
    }

    fn binding(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.buffer,
            offset: self.offset,
            size: std::num::NonZeroU64::new(self.size),
        })
    }
}

impl Drop for ParamSlot {
    fn drop(&mut self) {
        let slot = (self.buffer.clone(), self.offset);
        lock(&self.shared.params.free).entry(self.size).or_default().push(slot);
    }
}
