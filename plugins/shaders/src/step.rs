//! Descriptions of kernels: dispatches of shaders, with their parameters and bindings.
//!
//! A kernel's prepare function adds [`ShaderStep`]s to a [`Build`], which makes WGSL of them; a [`Backend`] compiles it and
//! launches it. Work that a vendor's library may do better is first offered to the back end as a [`Call`].

use crate::check::{Check, Checks};
use crate::target::{Abilities, Backend, Target};
use crate::template::wgsl;
use devbay_plugin_api::sdk::{Error, PrepareRequest, Prepared, Result};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Threads of a workgroup that runs over items.
pub const GROUP: u32 = 256;
/// Offsets of what lies in one workspace.
pub const SCRATCH_ALIGN: u64 = 256;

/// Target of a shader buffer's binding; `T` holds the kernel's own numbers.
#[derive(Clone, Debug)]
pub enum Slot<T = Arc<[u32]>> {
    /// An input, whole.
    Input(usize),
    /// An output, whole.
    Output(usize),
    /// A part of the workspace, in bytes.
    Scratch(Range<u64>),
    /// Numbers of the kernel's own, which shaders never write.
    Table(T),
    /// The report of the stream that it is launched on ([`crate::check`]): 0 until something is reported.
    Status,
}

/// Memory of a device for the tables of a kernel: slots with the same numbers share it.
pub struct Tables<T, F> {
    make: F,
    made: Vec<(Arc<[u32]>, T)>,
}

impl<T: Clone, F: Fn(&[u32]) -> Result<T>> Tables<T, F> {
    /// None yet; `make` makes one.
    pub fn new(make: F) -> Self {
        Self { make, made: Vec::new() }
    }

    /// A slot with its table in the device's memory.
    ///
    /// # Errors
    /// Errors of making one.
    pub fn place(&mut self, slot: Slot) -> Result<Slot<T>> {
        Ok(match slot {
            Slot::Input(i) => Slot::Input(i),
            Slot::Output(i) => Slot::Output(i),
            Slot::Scratch(range) => Slot::Scratch(range),
            Slot::Status => Slot::Status,
            Slot::Table(words) => match self.made.iter().find(|(known, _)| Arc::ptr_eq(known, &words)) {
                Some((_, table)) => Slot::Table(table.clone()),
                None => {
                    let table = (self.make)(&words)?;
                    self.made.push((words, table.clone()));
                    Slot::Table(table)
                }
            },
        })
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
            Self::U32(value) => bytemuck::cast(value),
            Self::I32(value) => bytemuck::cast(value),
            Self::F32(value) => bytemuck::cast(value),
        }
    }
}

/// Turns of a loop that goes round `n` times, with `inner` turns of other loops each time. The one that only finds that
/// it is over counts, too.
pub fn turns(n: u64, inner: u64) -> u64 {
    n.saturating_mul(inner.saturating_add(1)).saturating_add(1)
}

/// One dispatch, as a kernel describes it.
///
/// Buffers are declared from `buffers` as `var<storage, read_write> NAME: array<TYPE>`, parameters as the fields of `p`, in
/// order.
pub struct ShaderStep<'a> {
    /// A name for errors and debuggers.
    pub name: &'a str,
    /// Name, element type and slot of each buffer.
    pub buffers: Vec<(&'a str, &'a str, Slot)>,
    /// Name and value of each parameter.
    pub params: Vec<(String, Param)>,
    /// Turns of loops that one thread makes at most, all loops together, nested ones multiplied; what a driver unrolls
    /// counts too ([`turns`]). 0 without loops.
    pub turns: u64,
    /// Code that runs.
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

/// A dispatch as a back end gets it.
pub struct Dispatch {
    /// A name for errors and debuggers.
    pub name: String,
    /// The whole module, with an entry `main`: parameters at binding 0 of group 0 if there are any, then the buffers.
    pub wgsl: String,
    /// The bytes of the parameters' struct, without padding at its end.
    pub params: Box<[u8]>,
    /// The buffers' slots, from binding 1 on.
    pub slots: Vec<Slot>,
    /// Workgroups along each axis; none is 0.
    pub groups: [u32; 3],
}

/// Products of plain matrices, as a vendor's library multiplies them, of a batch each:
/// `Y = alpha * A * B + bias + beta * C`, with sums in f32.
#[derive(Clone, Debug)]
pub struct Gemm {
    /// Elements of A, B and the bias: `f32` or `f16`.
    pub element: &'static str,
    /// Elements of C and Y, likewise.
    pub result: &'static str,
    /// Rows of A and Y.
    pub rows: u64,
    /// Columns of B and Y.
    pub cols: u64,
    /// Columns of A, rows of B.
    pub k: u64,
    /// Products.
    pub n_batch: u64,
    /// `rows` by `k`.
    pub a: Matrix,
    /// `k` by `cols`.
    pub b: Matrix,
    /// Dense, and so is each behind the one before.
    pub y: Slot,
    /// Factor of the product.
    pub alpha: f32,
    /// Addend of each column, the same in all products.
    pub bias: Option<Slot>,
    /// C, which is as Y is, and its factor.
    pub added: Option<(Slot, f32)>,
    /// Precision to which A and B may be rounded, `DEVBAY_NUMERICS_*`.
    pub numerics: u64,
}

/// An operand of a [`Gemm`]: dense and row-major.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Its place.
    pub slot: Slot,
    /// True if it is stored with its rows as columns.
    pub is_turned: bool,
    /// Elements from one of the batch to the next; 0 for one of all.
    pub stride: u64,
}

/// A convolution over two dimensions, as a vendor's library has it: `Y = conv(X, W)`, and if there is more
/// `Y = relu(conv(X, W) + residual + bias)`. All is dense, images and filters channel by channel.
#[derive(Clone, Debug)]
pub struct Convolution {
    /// Elements: `f32` or `f16`.
    pub element: &'static str,
    /// Images.
    pub images: u64,
    /// Groups of channels.
    pub groups: u64,
    /// Input channels of a group.
    pub c_in: u64,
    /// Output channels of a group.
    pub c_out: u64,
    /// Extents of images, filters and results.
    pub input: [u64; 2],
    /// As above.
    pub kernel: [u64; 2],
    /// As above.
    pub output: [u64; 2],
    /// Steps of the window.
    pub stride: [u64; 2],
    /// Distance between the window's elements.
    pub dilation: [u64; 2],
    /// Zeros before the first element, and as many behind the last as the result's extents ask for.
    pub pad: [u64; 2],
    /// Images.
    pub x: Slot,
    /// Filters.
    pub w: Slot,
    /// Results.
    pub y: Slot,
    /// Steps that follow in the same pass.
    pub rest: Option<BiasRelu>,
    /// Precision to which X and W may be rounded, `DEVBAY_NUMERICS_*`.
    pub numerics: u64,
}

/// Steps of libraries behind a convolution: a bias of each channel, perhaps an addend that is as Y is, and Relu.
#[derive(Clone, Debug)]
pub struct BiasRelu {
    /// One number for each channel.
    pub bias: Slot,
    /// As Y is.
    pub residual: Option<Slot>,
}

/// Work that a vendor's library may do in place of shaders.
#[derive(Clone, Debug)]
pub enum Call {
    /// Products of matrices.
    Gemm(Gemm),
    /// A convolution.
    Convolution(Convolution),
}

/// Plan of a back end for a [`Call`] that its library can do.
pub struct Planned {
    /// Bytes of workspace.
    pub scratch_bytes: u64,
    /// The back end's own.
    pub plan: Arc<dyn Any + Send + Sync>,
}

/// A part of a kernel.
pub enum Job {
    /// A dispatch of a shader.
    Dispatch(Dispatch),
    /// Work of a library, its plan, and the workspace that was asked for.
    Call(Box<Call>, Arc<dyn Any + Send + Sync>, Option<Slot>),
}

/// A kernel as a back end gets it.
pub struct Work {
    /// The node's name, for traces; equal nodes share a kernel, and then it is that of the first of them.
    pub label: Box<str>,
    /// In order, each behind those before.
    pub jobs: Vec<Job>,
    /// Bytes of the workspace, which begins at a multiple of [`SCRATCH_ALIGN`].
    pub scratch_bytes: u64,
    /// Requirements on its data; with any, launches may report. Kept until the kernel is freed.
    pub checks: Vec<Check>,
}

/// A kernel in the making.
pub struct Build {
    abilities: Abilities,
    backend: Arc<dyn Backend>,
    checks: Option<Arc<Checks>>,
    work: Work,
}

impl Build {
    /// Nothing yet.
    pub fn new(request: &PrepareRequest<'_, Target>) -> Self {
        let Target { abilities, backend, checks } = request.device.clone();
        let (label, jobs) = (request.label.into(), Vec::new());
        Self { abilities, backend, checks, work: Work { label, jobs, scratch_bytes: 0, checks: Vec::new() } }
    }

    /// The device's rules; None if an option leaves checks out.
    pub(crate) fn checks(&self) -> Option<Arc<Checks>> {
        self.checks.clone()
    }

    /// The node's name.
    pub(crate) fn label(&self) -> &str {
        &self.work.label
    }

    /// Keeps rules as long as the kernel.
    pub(crate) fn hold(&mut self, checks: Vec<Check>) {
        self.work.checks.extend(checks);
    }

    /// Returns the device's abilities.
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Workgroups along each axis, at most.
    pub fn groups_max(&self) -> u32 {
        self.abilities.groups_max
    }

    /// Returns the largest permitted [`ShaderStep::turns`].
    pub fn turns_max(&self) -> u64 {
        self.abilities.turns_max()
    }

    /// Bytes of the workspace.
    pub fn scratch(&mut self, bytes: u64) -> Slot {
        let begin = self.work.scratch_bytes.next_multiple_of(SCRATCH_ALIGN);
        self.work.scratch_bytes = begin + bytes.max(4).next_multiple_of(4);
        Slot::Scratch(begin..self.work.scratch_bytes)
    }

    /// Numbers that the kernel reads in each launch; shaders never write them.
    pub fn table(&self, words: &[u32]) -> Slot {
        Slot::Table(words.into())
    }

    /// Adds a dispatch behind those before.
    ///
    /// # Errors
    /// Unsupported for more items, buffers, workgroups or turns of loops than the device can; internal for loops without a
    /// bound.
    pub fn add(&mut self, step: ShaderStep<'_>) -> Result<()> {
        let dispatch = step.dispatch(&self.abilities)?;
        self.work.jobs.extend(dispatch.map(Job::Dispatch));
        Ok(())
    }

    /// Returns a library's plan for this, if the back end has one that can; slots do not matter yet.
    pub fn plan(&self, call: &Call) -> Option<Planned> {
        self.backend.plan(call)
    }

    /// Adds work of a library behind what was added before.
    pub fn add_call(&mut self, call: Call, planned: Planned) {
        let Planned { scratch_bytes, plan } = planned;
        let scratch = (scratch_bytes > 0).then(|| self.scratch(scratch_bytes));
        self.work.jobs.push(Job::Call(Box::new(call), plan, scratch));
    }

    /// The kernel.
    ///
    /// # Errors
    /// As [`Backend::prepare`].
    pub fn finish(self) -> Result<Prepared> {
        self.backend.prepare(self.work)
    }
}

/// Beginnings of loops in WGSL.
const LOOPS: [&str; 3] = ["for (", "loop {", "while ("];

impl ShaderStep<'_> {
    /// The step for a device; None if there is nothing to do.
    fn dispatch(self, abilities: &Abilities) -> Result<Option<Dispatch>> {
        let Self { name, buffers, mut params, turns, body } = self;
        if let Body::Items { n, .. } = body {
            let n = u32::try_from(n)
                .map_err(|_| Error::unsupported(format!("{n} items of a dispatch, more than 2^32")))?;
            params.insert(0, ("n_items".to_owned(), Param::U32(n)));
        }
        let mut wgsl = declarations(&buffers, &params, abilities.param_space());
        let groups = match body {
            Body::Groups { groups, module } => {
                wgsl.push_str(module);
                groups
            }
            Body::Items { n, functions, each } => {
                wgsl.push_str(&wgsl!("step/items.wgsl", functions, group = GROUP, each));
                let n_groups = (n as u32).div_ceil(GROUP);
                let width = n_groups.min(abilities.groups_max);
                [width, n_groups.div_ceil(width.max(1)), 1]
            }
        };
        if wgsl.contains("f16") {
            wgsl.insert_str(0, "enable f16;\n");
        }
        if turns > abilities.turns_max() {
            let most = abilities.turns_max();
            return Err(Error::unsupported(format!(
                "{name}: loops of {turns} turns, of which a device that is a program makes {most}"
            )));
        }
        if turns == 0 && LOOPS.iter().any(|word| wgsl.contains(word)) {
            return Err(Error::internal(format!("{name}: loops without a bound")));
        }
        if groups.contains(&0) {
            return Ok(None);
        }
        if groups.iter().any(|&n| n > abilities.groups_max) {
            let most = abilities.groups_max;
            return Err(Error::unsupported(format!(
                "{name}: {groups:?} workgroups, the device has {most} on an axis"
            )));
        }
        if buffers.len() > abilities.storage_buffers_max as usize {
            let most = abilities.storage_buffers_max;
            return Err(Error::unsupported(format!(
                "{name}: {} buffers, the device has {most}",
                buffers.len()
            )));
        }
        Ok(Some(Dispatch {
            name: name.to_owned(),
            wgsl,
            params: params.iter().flat_map(|(_, value)| value.bytes()).collect(),
            slots: buffers.into_iter().map(|(.., slot)| slot).collect(),
            groups,
        }))
    }
}

/// Returns the declarations of buffers and parameters, as a module begins.
fn declarations(buffers: &[(&str, &str, Slot)], params: &[(String, Param)], space: &str) -> String {
    let mut text = String::new();
    if !params.is_empty() {
        text.push_str("struct Params {\n");
        for (name, value) in params {
            text.push_str(&format!("  {name}: {},\n", value.type_name()));
        }
        text.push_str(&format!("}}\n@group(0) @binding(0) var<{space}> p: Params;\n"));
    }
    for (i, (name, element, _)) in buffers.iter().enumerate() {
        let binding = i + 1;
        text.push_str(&format!(
            "@group(0) @binding({binding}) var<storage, read_write> {name}: array<{element}>;\n"
        ));
    }
    text
}
