//! Prepared kernels: compiled shaders, with their parameters and bindings.
//!
//! [`devbay_shaders`] describes kernels as dispatches; [`Compiler`] compiles them, and all launches go one way,
//! [`Program::launch`]: it resolves operands to ranges of buffers, finds the bind group that was made for them before, and
//! records the dispatch.

use crate::device::{Shared, WgpuDevice, param_usage};
use crate::memory::{Purpose, Raw, WgpuBuffer};
use crate::shader::Shader;
use crate::stream::WgpuStream;
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::{Check, REPORT_BYTES};
use devbay_shaders::step::{self, Job, SCRATCH_ALIGN, Tables, Work};
use devbay_shaders::target::Backend;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bind groups that a stream keeps.
const GROUPS_MAX: usize = 4096;

/// Target of a shader buffer's binding.
type Slot = step::Slot<Arc<Table>>;

/// Memory that is written once, when a kernel is prepared, and freed with the kernel.
struct Table {
    shared: Arc<Shared>,
    raw: Option<Raw>,
    size: u64,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a table of {} bytes", self.size)
    }
}

impl Table {
    fn new(shared: &Arc<Shared>, words: &[u32]) -> Result<Self> {
        let size = (size_of_val(words) as u64).max(4);
        let raw = shared.pool.take(shared, Purpose::Operands, size)?;
        shared.guarded(|| shared.queue.write_buffer(&raw.buffer, 0, bytemuck::cast_slice(words)))?;
        Ok(Self { shared: Arc::clone(shared), raw: Some(raw), size })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.shared.pool.give(raw);
        }
    }
}

/// A dispatch that is ready.
struct Dispatch {
    shader: Arc<Shader>,
    params: Option<ParamSlot>,
    slots: Vec<Slot>,
    groups: [u32; 3],
}

/// Makes a device's kernels.
pub struct Compiler(pub Arc<Shared>);

impl Backend for Compiler {
    fn prepare(&self, work: Work) -> Result<Prepared> {
        let shared = &self.0;
        let mut tables = Tables::new(|words: &[u32]| Table::new(shared, words).map(Arc::new));
        let mut dispatches = Vec::with_capacity(work.jobs.len());
        for job in work.jobs {
            let Job::Dispatch(step::Dispatch { name, wgsl, params, slots, groups }) = job else {
                return Err(Error::internal("work of a library, which wgpu does not have"));
            };
            let shader = shared.shaders.get(shared, &name, &wgsl, !params.is_empty(), slots.len())?;
            let params = match params.is_empty() {
                true => None,
                false => Some(ParamSlot::new(shared, params.into_vec())?),
            };
            let slots: Vec<Slot> = slots.into_iter().map(|slot| tables.place(slot)).collect::<Result<_>>()?;
            dispatches.push(Dispatch { shader, params, slots, groups });
        }
        let id = NEXT_PROGRAM.fetch_add(1, Ordering::Relaxed);
        let (label, checks) = (work.label, work.checks.into());
        let program = Program { id, shared: Arc::clone(shared), dispatches, checks, label };
        let prepared = Prepared::new::<WgpuDevice, _>(program);
        match work.scratch_bytes as usize {
            0 => Ok(prepared),
            bytes => Ok(prepared.with_workspace(bytes, SCRATCH_ALIGN as usize)),
        }
    }
}

static NEXT_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// A prepared kernel.
pub struct Program {
    id: u64,
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    /// Requirements on its data; with any, the stream's report is read behind its launches.
    checks: Box<[Check]>,
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
            let report = match self.checks.is_empty() {
                true => None,
                false => Some(recording.report(shared, label)?),
            };
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
                    *bound = Some(resolve(slot, operands, report.as_deref())?);
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
fn resolve<'a>(
    slot: &'a Slot,
    operands: &Operands<'a, WgpuBuffer>,
    report: Option<&'a Raw>,
) -> Result<Bound<'a>> {
    let region = match slot {
        Slot::Status => {
            let raw = report.ok_or_else(|| Error::internal("a report of a kernel without checks"))?;
            return Ok(Bound { raw, offset: 0, size: REPORT_BYTES as u64 });
        }
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
    // Bindings are words; the host pads its allocations to them.
    let size = (range.end - range.start).next_multiple_of(4);
    Ok(Bound { raw: buffer.raw(), offset: range.start, size })
}

/// Key of a binding: number, offset and size of a buffer.
type Key = (u64, u64, u64);

/// Bind groups of earlier launches: a frame's operands are the same in every run.
///
/// Runs bind the same groups in the same order, so that the one that came behind the last one before is looked at first;
/// groups and keys lie in the order in which they were made, which is that of a run.
pub struct Groups {
    made: Vec<Group>,
    /// Bindings of each of them, one behind the other.
    keys: Vec<Key>,
    by_hash: HashMap<u64, Vec<usize>, BuildHasherDefault<Mixed>>,
    /// The one that was used last, if it is there.
    last: usize,
    epoch: u64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { made: Vec::new(), keys: Vec::new(), by_hash: HashMap::default(), last: NONE, epoch: 0 }
    }
}

/// No group's position.
const NONE: usize = usize::MAX;

/// Takes a number that [`mix`] has made as its own hash.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| mix(hash, u64::from(*byte)));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Group {
    dispatch: (u64, u32),
    /// Where its keys are.
    keys: Range<usize>,
    group: wgpu::BindGroup,
    /// The one that was used behind it the last time.
    follower: usize,
}

impl Groups {
    /// Forgets all of them if buffers or kernels are gone since.
    fn refresh(&mut self, epoch: u64) {
        if self.epoch != epoch || self.made.len() >= GROUPS_MAX {
            *self = Self { epoch, ..Self::default() };
        }
    }

    fn get(
        &mut self,
        shared: &Shared,
        key: (u64, u32),
        dispatch: &Dispatch,
        bound: &[Option<Bound<'_>>],
    ) -> Result<&wgpu::BindGroup> {
        let guess = self.made.get(self.last).map_or(NONE, |last| last.follower);
        let at = match self.is(guess, key, bound) {
            true => guess,
            false => self.find_or_make(shared, key, dispatch, bound)?,
        };
        if guess != at
            && let Some(last) = self.made.get_mut(self.last)
        {
            last.follower = at;
        }
        self.last = at;
        Ok(&self.made[at].group)
    }

    /// Returns whether a group is the one that is wanted.
    fn is(&self, at: usize, key: (u64, u32), bound: &[Option<Bound<'_>>]) -> bool {
        self.made.get(at).is_some_and(|group| {
            group.dispatch == key
                && self.keys[group.keys.clone()].iter().copied().eq(bound.iter().flatten().map(Bound::key))
        })
    }

    #[inline(never)]
    fn find_or_make(
        &mut self,
        shared: &Shared,
        key: (u64, u32),
        dispatch: &Dispatch,
        bound: &[Option<Bound<'_>>],
    ) -> Result<usize> {
        let mut hash = mix(mix(0, key.0), u64::from(key.1));
        for (id, offset, size) in bound.iter().flatten().map(Bound::key) {
            hash = mix(mix(mix(hash, id), offset), size);
        }
        let known = self.by_hash.get(&hash).into_iter().flatten();
        if let Some(&at) = known.into_iter().find(|at| self.is(**at, key, bound)) {
            return Ok(at);
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
        let (at, first) = (self.made.len(), self.keys.len());
        self.keys.extend(bound.iter().flatten().map(Bound::key));
        self.made.push(Group { dispatch: key, keys: first..self.keys.len(), group, follower: NONE });
        self.by_hash.entry(hash).or_default().push(at);
        Ok(at)
    }
}

impl Bound<'_> {
    fn key(&self) -> Key {
        (self.raw.id, self.offset, self.size)
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
                usage: param_usage(&shared.abilities) | wgpu::BufferUsages::COPY_DST,
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
    fn new(shared: &Arc<Shared>, mut bytes: Vec<u8>) -> Result<Self> {
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
