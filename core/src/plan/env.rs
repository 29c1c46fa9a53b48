//! The environment of plans: devices with their constants, which nodes may run where, and options.

use super::executor::Executor;
use super::limits::Limits;
use super::memory::constants::{ConstantPool, PackCounts};
use super::place::kernel_cache::KernelCache;
use super::specialise::ahead::{PackedConstant, Specialised};
use super::specialise::fold_cache::FoldCache;
use super::specialise::quantised::multiplies_bytes;
use super::specialise::{Folds, specialise};
use super::steps::OwnStep;
use super::{cost, feedback, tasks};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{KernelDef, Numerics};
use crate::passes::narrow_dtypes::{Narrowed, Narrowing};
use crate::passes::{
    self, Applied, Around, FOLD_CONSTANTS, Moment, Switches, fuse_dequantized, lower_quantised,
};
use crate::program::{DEVBAY_DOMAIN, Node, Program};
use crate::tensor::TensorType;
use crate::trace::Recorder;
use devbay_plugin_api::abi::{DEVBAY_DEVICE_KIND_CPU, LaunchFn};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// The environment of plans: devices and their constants.
pub struct Env {
    /// The device that runs whatever it can, and is not pinned elsewhere.
    pub device: Arc<Device>,
    /// Its constants.
    pub constants: ConstantPool,
    /// Devices for the rest, first choice first.
    others: Vec<(Arc<Device>, ConstantPool)>,
    /// Nodes by name that run on a device of their own, by position.
    pins: HashMap<String, usize>,
    /// The placement that all of this was made from.
    pub placement: Placement,
    /// Options of planning.
    pub options: PlanOptions,
    /// Kernels of the plans that are there.
    pub(crate) kernels: KernelCache,
    /// Constants that were folded.
    pub(crate) folds: FoldCache,
    /// Constants that became narrower.
    narrowed: Narrowed,
    /// Runs the plans.
    executor: &'static dyn Executor,
}

/// Where the nodes of a program may run.
#[derive(Clone)]
pub struct Placement {
    /// The device that runs whatever it can.
    pub device: Arc<Device>,
    /// Devices for nodes that the first one cannot run, first choice first.
    pub others: Vec<Arc<Device>>,
    /// Nodes by name, and the device that each must run on.
    pub pins: Vec<(String, Arc<Device>)>,
    /// The rule that picks a device for nodes that are not pinned.
    pub by: PlaceBy,
}

/// The rule that decides which device runs a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlaceBy {
    /// The order of the devices: the first one runs whatever it has a kernel for, the others the rest.
    #[default]
    Order,
    /// The expected time of launches and copies together ([`super::place::by_cost`]).
    Cost,
}

impl Placement {
    /// Everything on one device.
    pub fn on(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), others: Vec::new(), pins: Vec::new(), by: PlaceBy::Order }
    }

    /// Returns all devices, each once: the first, the others, and those that nodes are pinned to.
    pub fn devices(&self) -> Vec<&Arc<Device>> {
        let mut devices: Vec<&Arc<Device>> = vec![&self.device];
        for device in self.others.iter().chain(self.pins.iter().map(|(_, device)| device)) {
            if !devices.iter().any(|known| Arc::ptr_eq(known, device)) {
                devices.push(device);
            }
        }
        devices
    }
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        let same = |a: &[&Arc<Device>], b: &[&Arc<Device>]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        same(&self.devices(), &other.devices())
            && self.by == other.by
            && self.others.len() == other.others.len()
            && self.pins.len() == other.pins.len()
            && self.pins.iter().zip(&other.pins).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1))
    }
}

/// Options of planning.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanOptions {
    /// Plans that a unit keeps, by input types; the least recently used goes first.
    pub plans_max: usize,
    /// The policy that divides launches into tasks.
    pub tasks: tasks::Policy,
    /// Passes that run over programs before they are planned.
    pub passes: Switches,
    /// The precision that matrix products may round their inputs to. Ops that run one by one, since their types depend
    /// on data, are strict.
    pub numerics: Numerics,
    /// Priority of the work beside that of other sessions on the same device: above 0 more urgent, below 0 less. A
    /// hint, which devices with streams of several priorities follow.
    pub stream_priority: i32,
    /// True if devices whose plugins gather launches are told to begin within long tasks (`order/flushes.rs`), and not at their ends
    /// alone. Each time costs a submission of the driver's.
    pub flushes: bool,
    /// Floats that are narrower than the model says, where kernels allow it; inputs and results keep their types.
    pub narrow: Option<Narrowing>,
    /// Bytes of the device's memory that a section may take: constants that stay there, arena and workspaces of one
    /// run. In larger sections constants are streamed
    /// ([decisions/0018](../../../docs/decisions/0018-weight-streaming.md)). None for no limit.
    pub memory_budget: Option<u64>,
    /// Limits of a model's requests.
    pub limits: Limits,
    /// Speeds of devices; None for each one's own rates.
    pub rates: Option<cost::Rates>,
    /// Measured times of launches, used in place of estimates.
    pub feedback: Option<Arc<feedback::Feedback>>,
    /// Recorder of all that runs of these plans do, with times; None, at no cost, without tracing.
    pub trace: Option<Recorder>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            plans_max: 16,
            tasks: tasks::Policy::Auto,
            passes: Switches::default(),
            numerics: Numerics::Strict,
            stream_priority: 0,
            flushes: false,
            narrow: None,
            memory_budget: None,
            limits: Limits::default(),
            rates: None,
            feedback: None,
            trace: None,
        }
    }
}

impl Env {
    /// Makes an environment with pools of its own and with constants that were packed ahead of time, for plans that this
    /// executor will run.
    pub(crate) fn of(
        placement: &Placement,
        options: PlanOptions,
        packed: &[PackedConstant],
        executor: &'static dyn Executor,
    ) -> Arc<Self> {
        let devices = placement.devices();
        let position = |device| devices.iter().position(|known| Arc::ptr_eq(known, device)).unwrap_or(0);
        Arc::new(Self {
            device: Arc::clone(devices[0]),
            constants: ConstantPool::new(devices[0], packed),
            others: devices[1..]
                .iter()
                .map(|&device| (Arc::clone(device), ConstantPool::new(device, packed)))
                .collect(),
            pins: placement.pins.iter().map(|(name, device)| (name.clone(), position(device))).collect(),
            placement: placement.clone(),
            options,
            kernels: KernelCache::default(),
            folds: FoldCache::default(),
            narrowed: Narrowed::default(),
            executor,
        })
    }

    /// Returns the executor that runs the plans.
    pub(super) fn executor(&self) -> &'static dyn Executor {
        self.executor
    }

    /// Returns the function that the launch loop calls for a step of ours.
    pub(super) fn launch_fn(&self, own: OwnStep) -> LaunchFn {
        self.executor.launch_fn(own)
    }

    /// Devices, by position.
    pub fn n_sites(&self) -> usize {
        1 + self.others.len()
    }

    /// Gives back memory of a program's constants that are in files, were read to make others of them, and are not read where
    /// they are.
    pub(crate) fn release_constants(&self, program: &Program) {
        program.release_constants(|tensor| {
            (0..self.n_sites()).any(|site| self.site(site).1.reads_in_place(tensor))
        });
    }

    /// A device and its constants.
    pub fn site(&self, site: usize) -> (&Arc<Device>, &ConstantPool) {
        match site.checked_sub(1) {
            None => (&self.device, &self.constants),
            Some(other) => (&self.others[other].0, &self.others[other].1),
        }
    }

    /// Returns the devices that a node may run on, first choice first.
    pub fn sites_of(&self, node: &Node) -> std::ops::Range<usize> {
        match self.pins.get(&*node.name) {
            Some(&site) => site..site + 1,
            None => 0..self.n_sites(),
        }
    }

    /// Returns the first of a node's devices that lists a kernel for it; the very first if none does.
    pub fn listed_site(&self, node: &Node) -> usize {
        self.listed_sites(node).next().unwrap_or(self.sites_of(node).start)
    }

    /// A node's devices that list a kernel for it, first choice first; the very first alone if none does.
    pub fn listed_sites<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = usize> + 'a {
        let sites = self.sites_of(node);
        let is_listed = move |site: &usize| self.listed(*site, node).next().is_some();
        let first = sites.start;
        let unlisted = (!sites.clone().any(|site| is_listed(&site))).then_some(first);
        sites.filter(is_listed).chain(unlisted)
    }

    pub(super) fn listed<'a>(&'a self, site: usize, node: &'a Node) -> impl Iterator<Item = &'a KernelDef> {
        self.site(site).0.kernels().find(&node.op.domain, &node.op.name)
    }

    /// Runs the enabled passes of a moment, and returns the changes of each. Pinned nodes stay.
    ///
    /// # Errors
    /// As [`passes::run`].
    pub fn run_passes(&self, program: &mut Program, moment: Moment) -> Result<Vec<Applied>> {
        let mut evaluator = self.executor.evaluator(self);
        let around = Around {
            kernels: self.device.kernels(),
            fuses_weights: self.fuses_weights(),
            rates: cost::Rates::of_kind(DEVBAY_DEVICE_KIND_CPU, false),
            stay: &|node: &Node| self.is_pinned(node),
            narrow: self.options.narrow.map(|narrowing| (narrowing, &self.narrowed)),
            evaluator: RefCell::new(&mut *evaluator),
        };
        passes::run(program, moment, &self.options.passes, &around)
    }

    /// Returns the program for inputs of given types, one for each, after the passes for types; with the changes of
    /// each pass.
    ///
    /// # Errors
    /// As [`specialise()`] and [`passes::run`].
    pub fn specialised(&self, program: &Program, types: &[TensorType]) -> Result<(Program, Vec<Applied>)> {
        let folds = self.options.passes.runs(FOLD_CONSTANTS);
        let mut specialised =
            specialise(program, types, self.folds(folds), &mut *self.executor.evaluator(self))?;
        let (before, after) = (program.n_nodes(), specialised.n_nodes());
        let folded = Applied { name: FOLD_CONSTANTS, changes: before.saturating_sub(after), before, after };
        let mut applied = if folds { vec![folded] } else { Vec::new() };
        applied.extend(self.run_passes(&mut specialised, Moment::Shapes)?);
        Ok((specialised, applied))
    }

    /// Infers the types of a program that was specialised ahead of time again, because the file may be wrong.
    ///
    /// # Errors
    /// As [`specialise()`].
    pub(crate) fn typed_again(&self, ahead: &Specialised, types: &[TensorType]) -> Result<Program> {
        specialise(&ahead.program, types, self.folds(false), &mut *self.executor.evaluator(self))
    }

    /// The nodes that specialising runs: all on constants or few, but for weights that a pass wants as they are.
    pub fn folds(&self, all: bool) -> Folds {
        let lowers = self.options.passes.runs(lower_quantised::NAME);
        Folds {
            all,
            keeps_bytes: lowers && multiplies_bytes(self.device.kernels()),
            keeps_weights: all && self.fuses_weights(),
        }
    }

    /// Returns whether a pass fuses quantised weights with their products.
    fn fuses_weights(&self) -> bool {
        self.options.passes.runs(fuse_dequantized::NAME)
            && self.device.kernels().has(DEVBAY_DOMAIN, fuse_dequantized::FUSED)
    }

    /// Returns the constants that kernels of the plans that are there have in layouts of their own.
    ///
    /// # Errors
    /// As [`ConstantPool::packed`].
    pub fn packed(&self) -> Result<Vec<PackedConstant>> {
        let all = (0..self.n_sites()).map(|site| self.site(site).1.packed());
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the number of constants packed for kernels so far, on all devices.
    pub fn pack_counts(&self) -> PackCounts {
        let counts = (0..self.n_sites()).map(|site| self.site(site).1.pack_counts());
        counts.fold(PackCounts::default(), |sum, counts| PackCounts {
            ahead: sum.ahead + counts.ahead,
            now: sum.now + counts.now,
        })
    }

    /// Returns whether a node is pinned.
    pub fn is_pinned(&self, node: &Node) -> bool {
        self.pins.contains_key(&*node.name)
    }

    /// Returns whether a device's kernels work, inline, in memory that the host reads and writes at the references'
    /// addresses: such devices share a section, and need no copies between them.
    pub(crate) fn works_in_host_memory(&self, site: usize) -> bool {
        let device = self.site(site).0;
        let (about, space) = (device.about(), device.space());
        about.inline && about.host_refs && space.host_visible && !device.plugin().is_serialised()
    }

    /// Returns whether a device's kernels work in the host's memory, at once or later.
    pub(crate) fn reads_host_memory(&self, site: usize) -> bool {
        let device = self.site(site).0;
        device.about().host_refs && device.space().host_visible
    }

    /// Returns whether a device's launches may be in one section with those of other devices.
    pub(super) fn shares_sections(&self, site: usize) -> bool {
        let device = self.site(site).0;
        let (about, space) = (device.about(), device.space());
        let is_plain = !space.no_suballoc && !space.write_once && !space.typed;
        !device.plugin().is_serialised() && !about.may_block && is_plain
    }

    /// Returns whether operands of a device's kernels may be parts of values, and these be moved: in the host's memory
    /// by the host, else by the device.
    pub(crate) fn divides_operands(&self, site: usize) -> bool {
        self.shares_sections(site) && (self.works_in_host_memory(site) || !self.reads_host_memory(site))
    }

    /// Returns the device whose memory, the host's, the inputs and results of a section of several devices live in.
    pub(crate) fn home_site(&self) -> Option<usize> {
        let is_home = |site: &usize| self.reads_host_memory(*site) && self.shares_sections(*site);
        let inline = (0..self.n_sites()).find(|&site| self.works_in_host_memory(site));
        inline.or_else(|| (0..self.n_sites()).find(is_home))
    }

    /// Returns the rates for costs of the first device: those of the options, else those measured, else those
    /// usual for its kind.
    pub fn rates(&self) -> cost::Rates {
        self.rates_of(0)
    }

    /// As [`Env::rates`], of any of the devices.
    pub fn rates_of(&self, site: usize) -> cost::Rates {
        self.options.rates.unwrap_or_else(|| self.site(site).0.expected_rates())
    }
}
