//! Sessions: a model on a device, run from many threads at once, or in the background.

mod ports;
mod values;

pub use ports::Port;

use crate::buckets::{BucketOptions, Buckets};
use crate::dbx::{self, Written};
use crate::deadline::{self, Armed};
use crate::device_tensor::DeviceTensor;
use crate::failover::{Failover, Failure};
use crate::model::Model;
use crate::run::{Admission, InFlight, OnFull, Run};
use crate::seed::{self, RunSeed, Seeds};
use crate::values::session::HostSession;
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result, caught};
use devbay_core::exec::cancel::Cancel;
use devbay_core::exec::host_io::{Bound, InputView, OutputView};
use devbay_core::exec::jobs::Priority;
use devbay_core::exec::prepared::Prepared;
use devbay_core::exec::statistics::PlanStatistics;
use devbay_core::exec::unit::{Point, Unit};
use devbay_core::exec::value::RunTensor;
use devbay_core::passes::Applied;
use devbay_core::plan::constants::PackCounts;
use devbay_core::plan::report::PlanReport;
use devbay_core::plan::{PlaceBy, Placement, Plan, PlanOptions};
use devbay_core::program::Program;
use devbay_core::tensor::{DType, Tensor};
use smallvec::SmallVec;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Grace period past its deadline for a run with unstoppable kernels. Our own code checks more often than that.
const GRACE: Duration = Duration::from_millis(200);

/// A model on a device. Shared by reference: any number of threads run it at once.
///
/// ```
/// use devbay_host::{Model, Runtime, Session, Tensor};
///
/// # fn main() -> devbay_host::Result<()> {
/// let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
/// let model = Model::load("../models/mnist_cnn/model.onnx")?;
/// let session = Session::new(&model, &runtime.device_for(&model)?)?;
/// for port in session.inputs() {
///     println!("{} {:?}", port.name, port.ty);
/// }
///
/// // Many threads may run it; runs share plans and weights.
/// let image = Tensor::from_elements(&[1, 1, 28, 28], &[0.5f32; 28 * 28])?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| session.run(&[("input", &image)]).expect("the model takes this image"));
///     }
/// });
/// # Ok(()) }
/// ```
pub struct Session {
    unit: Arc<Unit>,
    device: Arc<Device>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// The plan of a model whose inputs have known extents: no other plan is possible.
    only_plan: Option<Prepared>,
    in_flight: Option<Arc<InFlight>>,
    /// Fallback for a device that fails, if enabled.
    failover: Option<Arc<Failover>>,
    /// Padding of inputs, if enabled.
    buckets: Option<Arc<Buckets>>,
    /// Seeds of the runs, if the model has random numbers.
    seeds: Option<Seeds>,
    /// Sessions of the segments, if the host interprets the model's graph.
    values: Option<Arc<HostSession>>,
}

/// Options of a session.
#[derive(Clone, Default)]
pub struct SessionOptions {
    /// Options of plans.
    pub plans: PlanOptions,
    /// Devices for nodes that the session's device has no kernel for, first choice first.
    pub others: Vec<Arc<Device>>,
    /// Nodes by name, and the device that each must run on.
    pub pins: Vec<(String, Arc<Device>)>,
    /// Criterion for placing nodes that are not pinned: the order of devices, or estimated times of nodes and copies.
    pub by: PlaceBy,
    /// Spare devices for failover. When a device fails at run time, runs continue on the session's other devices, then on
    /// these. None turns failover off: the run fails.
    ///
    /// On a failure, the model is planned for the remaining devices. The run is repeated there from its inputs, and later
    /// runs start there. Bound runs ([`Session::bind`]) do not fail over. A node that is pinned to the failed device
    /// prevents failover.
    pub failover: Option<Vec<Arc<Device>>>,
    /// Maximum number of runs in flight, including those that wait for a thread; None for no limit.
    pub runs_max: Option<NonZeroUsize>,
    /// Padding of inputs of varying length to a few sizes, so that few plans suffice; None for no padding. Only for models
    /// in which padding does not affect the other elements.
    ///
    /// Bound runs, and runs whose tensors stay on devices, are not padded: they take inputs of a bucket's size, or longer
    /// than all buckets.
    pub buckets: Option<BucketOptions>,
    /// Seed of the model's random numbers; None to let the operating system draw one. Two sessions with one seed give the
    /// same results, run by run. A node's own `seed` takes precedence.
    pub seed: Option<u64>,
}

impl From<PlanOptions> for SessionOptions {
    fn from(plans: PlanOptions) -> Self {
        Self { plans, ..Self::default() }
    }
}

/// Options of one run: its start, and early ends.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Ends the run when set: during planning, between launches, and within a launch between chunks of its parallel loops.
    pub cancel: Option<Cancel>,
    /// Time limit; ends the run as [`RunOptions::cancel`] does.
    ///
    /// Counted from the call, including the time until the run starts.
    ///
    /// On an inline device of a library, a thread of the blocking pool makes the run, on inputs that it owns. If a
    /// kernel does not return, the call returns with an error that names it; thread, inputs and memory stay with the kernel.
    /// Without a deadline the call waits for as long as the kernel takes.
    pub deadline: Option<Duration>,
    /// Order in which queued runs start ([`Session::run_async`]); running ones continue.
    pub priority: Priority,
    /// Behaviour of the run if [`SessionOptions::runs_max`] are in flight.
    pub on_full: OnFull,
    /// Seed of this run's random numbers, as in the first run of a session with that seed. The session's later runs are as
    /// if this one had not been made. None for the session's next numbers.
    pub seed: Option<u64>,
}

/// Resources that a run holds until it ends, and the means to end it early.
struct Limits {
    // Dropped in this order.
    #[expect(dead_code, reason = "its drop makes room for the next run")]
    admission: Option<Admission>,
    #[expect(dead_code, reason = "its drop disarms the deadline")]
    armed: Option<Armed>,
    cancel: Option<Cancel>,
}

impl Session {
    /// Makes a session. A model whose inputs have known extents is planned now, others on their first run.
    ///
    /// # Errors
    /// Errors of passes and planning: an op without a kernel, types that do not fit, too little memory.
    pub fn new(model: &Model, device: &Arc<Device>) -> Result<Self> {
        Self::with_options(model, device, SessionOptions::default())
    }

    /// Makes a session as [`Session::new`] does, with options.
    ///
    /// # Errors
    /// As [`Session::new`]; [`ErrorKind::InvalidArgument`] for buckets that the model's inputs do not have.
    pub fn with_options(
        model: &Model,
        device: &Arc<Device>,
        options: impl Into<SessionOptions>,
    ) -> Result<Self> {
        let options = options.into();
        if let Some(host) = model.host() {
            return Self::of_values(model, host, device, options);
        }
        let SessionOptions { plans, others, pins, by, failover, runs_max, buckets, seed } = options;
        let placement = Placement { device: Arc::clone(device), others, pins, by };
        let unit = model.placed(&placement, plans.clone())?;
        let failover = failover.map(|spares| {
            let (next, planning) = (OnceLock::new(), Mutex::new(()));
            Arc::new(Failover { model: model.clone(), placement, plans, spares, next, planning })
        });
        let program = unit.program();
        // Those that runs pass on, including the seed.
        let all_inputs = Port::list(program, &program.main.inputs);
        let seeds = program.seed_input().map(|_| Seeds::new(seed)).transpose()?;
        let mut session = Self {
            inputs: Port::list(program, program.given_inputs()),
            outputs: Port::list(program, &program.main.outputs),
            device: Arc::clone(device),
            unit,
            only_plan: None,
            in_flight: runs_max.map(|runs_max| InFlight::new(runs_max.get())),
            failover,
            buckets: None,
            seeds,
            values: None,
        };
        if let Some(buckets) = &buckets {
            session.buckets = Some(Arc::new(Buckets::new(buckets, &all_inputs, &session.outputs)?));
        }
        let known: Option<Vec<(DType, Vec<usize>)>> = all_inputs
            .iter()
            .map(|port| port.ty.as_ref().and_then(|ty| Some((ty.dtype, ty.known_shape()?))))
            .collect();
        if let Some(known) = known {
            let types = known.iter().map(|(dtype, shape)| (*dtype, shape.as_slice()));
            match session.unit.prepared_for(types) {
                Ok(plan) => session.only_plan = Some(plan),
                Err(error) => match session.failover.as_ref().and_then(|failover| failover.after(&error)) {
                    // Runs use that session from the start.
                    Some(_) => {}
                    None => return Err(error),
                },
            }
        }
        Ok(session)
    }

    /// Returns the model's inputs, in its order.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Returns the model's outputs, in its order.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Returns the session that executes runs: this one, until a device fails and another session takes over
    /// ([`SessionOptions::failover`]).
    pub fn current(&self) -> &Session {
        let mut session = self;
        while let Some(next) = session.failover.as_ref().and_then(|failover| failover.next()) {
            session = next;
        }
        session
    }

    /// Returns the devices that failed and were replaced so far, in order.
    pub fn failures(&self) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut session = self;
        while let Some((failure, next)) = session.failover.as_ref().and_then(|failover| failover.next.get()) {
            failures.push(failure.clone());
            session = next;
        }
        failures
    }

    /// Returns the device that the session was made for.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the program as this device runs it.
    pub fn program(&self) -> &Program {
        self.unit.program()
    }

    /// Returns the plan for inputs by name, making it if needed. If inputs are padded, this is the plan for the padded ones.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn plan_for(&self, inputs: &[(&str, &Tensor)]) -> Result<Arc<Plan>> {
        self.refuse_values("there is no plan of the whole")?;
        let inputs = ports::in_order(&self.inputs, inputs)?;
        let types: Vec<_> = inputs.iter().map(|input| (input.dtype(), input.shape())).collect();
        self.plan_for_types(&types)
    }

    /// Returns the plan for inputs of these types, in the model's order, as [`Session::plan_for`] does.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn plan_for_types(&self, types: &[(DType, &[usize])]) -> Result<Arc<Plan>> {
        self.refuse_values("there is no plan of the whole")?;
        ports::check(&self.inputs, types.iter().copied())?;
        let types = || types.iter().copied().chain(self.seeds.as_ref().map(|_| seed::TYPE));
        if let Some(buckets) = &self.buckets
            && let Some(fit) = buckets.fit(types().map(|(_, shape)| shape))?
        {
            return self.attempt(|session| session.unit.plan_for(fit.types(buckets)));
        }
        self.attempt(|session| session.unit.plan_for(types()))
    }

    /// Reports the tasks of a plan of this session, their estimated costs, and memory.
    pub fn plan_report(&self, plan: &Plan) -> PlanReport {
        self.current().unit.report(plan)
    }

    /// Writes the model as a compiled file (`.dbx`): specialised for the input types that this session has plans
    /// for, with constants packed for the kernels of its devices. [`Model::load`] reads the file. An existing file is
    /// replaced atomically.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; errors of devices that return constants.
    pub fn compile_to(&self, path: &Path) -> Result<Written> {
        self.refuse_values("the model cannot be compiled ahead of time")?;
        dbx::write(path, &self.current().unit)
    }

    /// Counts the constants packed for kernels of this session's plans, now and ahead of time.
    pub fn pack_counts(&self) -> PackCounts {
        self.current().unit.env().pack_counts()
    }

    /// Lists the changes that passes made to the model, and then to the program of a plan of this session, in order. Passes
    /// that are off are left out, as are those of control-flow regions, which are planned when first taken.
    pub fn passes(&self, plan: &Plan) -> Vec<Applied> {
        self.current().unit.passes(plan)
    }

    /// Returns the use of plans so far, and the cost of making them, on the devices that currently execute runs.
    ///
    /// Sessions of one model with equal options share their plans, and so these figures. Plans of control-flow regions,
    /// made when one is first taken, are not included.
    pub fn plan_statistics(&self) -> PlanStatistics {
        self.current().unit.statistics()
    }

    /// Runs on inputs by name and returns the outputs in the model's order ([`Session::outputs`]).
    ///
    /// ```
    /// # use devbay_host::{Model, Runtime, Session, Tensor};
    /// # fn main() -> devbay_host::Result<()> {
    /// # let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
    /// let model = Model::from_text(
    ///     "devbay-program 1
    ///     program \"halve\"(%x: f32[n]) {
    ///         %two = const f32[] [2]
    ///         %y: f32[n] = Div@14(%x, %two)
    ///         return %y
    ///     }",
    /// )?;
    /// let session = Session::new(&model, &runtime.device_for(&model)?)?;
    /// let x = Tensor::from_elements(&[3], &[1.0f32, 2.0, 3.0])?;
    /// let outputs = session.run(&[("x", &x)])?;
    /// assert_eq!(outputs[0].elements::<f32>(), Some(&[0.5, 1.0, 1.5][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for inputs that are missing, unknown or of the wrong type, with the expected ones; errors
    /// of planning; the first failure of the run; [`ErrorKind::Busy`] if the number of runs is limited
    /// ([`SessionOptions::runs_max`]).
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        self.run_with(inputs, &RunOptions::default())
    }

    /// Runs as [`Session::run`] does, with a deadline, a cancellation flag or other options.
    ///
    /// ```
    /// # use devbay_host::{Model, Runtime, Session, Tensor};
    /// use devbay_host::{ErrorKind, RunOptions};
    /// use std::time::Duration;
    ///
    /// # fn main() -> devbay_host::Result<()> {
    /// # let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
    /// # let model = Model::load("../models/mnist_cnn/model.onnx")?;
    /// # let session = Session::new(&model, &runtime.device_for(&model)?)?;
    /// # let image = Tensor::from_elements(&[1, 1, 28, 28], &[0.5f32; 28 * 28])?;
    /// let options = RunOptions { deadline: Some(Duration::ZERO), ..RunOptions::default() };
    /// let error = session.run_with(&[("input", &image)], &options).expect_err("no time at all");
    /// assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Session::run`]; [`ErrorKind::Cancelled`] and [`ErrorKind::DeadlineExceeded`].
    pub fn run_with(&self, inputs: &[(&str, &Tensor)], options: &RunOptions) -> Result<Vec<Tensor>> {
        if self.values.is_some() {
            let tensors = ports::in_order(&self.inputs, inputs)?.into_iter().cloned().collect();
            return self.run_hosted_tensors(tensors, options);
        }
        if let Some(deadline) = options.deadline.filter(|_| self.may_not_return()) {
            let tensors = ports::in_order(&self.inputs, inputs)?.into_iter().cloned().collect();
            return self.run_apart(tensors, options, deadline);
        }
        self.run_views(&self.in_order(inputs)?, options)
    }

    /// Runs as [`Session::run_with`] does, on inputs in the model's order.
    ///
    /// # Errors
    /// As [`Session::run_with`].
    pub fn run_in_order(&self, inputs: &[InputView<'_>], options: &RunOptions) -> Result<Vec<Tensor>> {
        if self.values.is_some() {
            return self.run_hosted_tensors(owned(inputs)?, options);
        }
        match options.deadline.filter(|_| self.may_not_return()) {
            Some(deadline) => self.run_apart(owned(inputs)?, options, deadline),
            None => self.run_views(inputs, options),
        }
    }

    /// Runs on the thread of the call.
    fn run_views(&self, inputs: &[InputView<'_>], options: &RunOptions) -> Result<Vec<Tensor>> {
        ports::check(&self.inputs, inputs.iter().map(InputView::ty))?;
        let buckets = self.buckets.as_deref();
        self.seeded(inputs, options, |inputs| {
            self.limited(options, |cancel| {
                self.attempt(|session| run_host(&session.unit, buckets, inputs, cancel))
            })
        })
    }

    /// Calls `run` with the inputs that the program takes: those of the caller, and the seed of the run if there is one.
    #[inline]
    fn seeded<R>(
        &self,
        inputs: &[InputView<'_>],
        options: &RunOptions,
        run: impl FnOnce(&[InputView<'_>]) -> Result<R>,
    ) -> Result<R> {
        match &self.seeds {
            None => run(inputs),
            Some(seeds) => with_seed(inputs, seeds.next(options.seed), run),
        }
    }

    /// Returns whether kernels run in a library's code on the thread of the run, which cannot be stopped from outside.
    fn may_not_return(&self) -> bool {
        let is_foreign = |device: &&Arc<Device>| device.about().inline && device.plugin().is_foreign();
        self.current().unit.env().placement.devices().into_iter().any(|device| is_foreign(&device))
    }

    /// Runs on a thread of the blocking pool that owns its inputs: a kernel that does not return keeps the thread and
    /// inputs, and the caller continues.
    #[inline(never)]
    fn run_apart(
        &self,
        inputs: Vec<Tensor>,
        options: &RunOptions,
        deadline: Duration,
    ) -> Result<Vec<Tensor>> {
        let cancel = options.cancel.clone().unwrap_or_else(Cancel::watched);
        let options = RunOptions { cancel: Some(cancel.clone()), ..options.clone() };
        let run = self.start(inputs, &options, true)?;
        if let Some(outcome) = run.wait_timeout(deadline.saturating_add(GRACE)) {
            return outcome;
        }
        let mut error = Error::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "the deadline passed before the run ended, and a launch has not returned {GRACE:?} later"
            ),
        );
        if let Some(launching) = cancel.launching().pop() {
            error = error.in_plugin(&launching.plugin).on_device(&launching.device).at_node(launching.node);
        }
        Err(error.on_device(self.device.name()))
    }

    /// Runs as [`Session::run`] does, on tensors that may be on the device, and leaves the outputs there. Copies only inputs
    /// that are elsewhere. The outputs are ready when this returns.
    ///
    /// `after` is a point of an application's stream after which the inputs are ready
    /// ([`AppStream::point`](crate::device_tensor::AppStream::point)). The device waits for it if it can; otherwise the
    /// calling thread waits.
    ///
    /// # Errors
    /// As [`Session::run`]; the failure of the application's stream.
    pub fn run_on_device(
        &self,
        inputs: &[(&str, &DeviceTensor)],
        after: Option<Point<'_>>,
        options: &RunOptions,
    ) -> Result<Vec<DeviceTensor>> {
        self.refuse_values("values cannot stay on a device between the model's parts")?;
        let inputs = ports::in_order(&self.inputs, inputs)?;
        let shapes: Vec<(DType, &[usize])> =
            inputs.iter().map(|input| (input.dtype(), input.shape())).collect();
        ports::check(&self.inputs, shapes.iter().copied())?;
        self.check_unpadded(shapes.iter().map(|(_, shape)| *shape))?;
        let seed = self.seeds.as_ref().map(|seeds| seeds.next(options.seed).tensor()).transpose()?;
        let seed = seed.and_then(RunTensor::host);
        let values = || inputs.iter().map(|input| input.value().clone()).chain(seed.clone()).collect();
        let run =
            |cancel: Option<&Cancel>| self.attempt(|session| session.unit.run_after(values(), after, cancel));
        Ok(self.limited(options, run)?.into_iter().map(DeviceTensor::of).collect())
    }

    /// Starts a run on inputs by name, and returns its handle. Any number of runs share the session's plans.
    ///
    /// The run is a job of the runtime's threads. If work is asynchronous or enqueuing it may block, it runs on threads that
    /// may wait. On a runtime of one thread, a run on an inline device has ended when this returns. Inputs are kept by
    /// reference.
    ///
    /// **Threads**: any. With [`OnFull::Wait`] it may block, so jobs and waiters of async values must not call it then.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] and [`ErrorKind::Busy`] as [`Session::run`]. Other failures are in the results.
    pub fn run_async(&self, inputs: &[(&str, &Tensor)], options: &RunOptions) -> Result<Run> {
        let inputs = ports::in_order(&self.inputs, inputs)?.into_iter().cloned().collect();
        self.start(inputs, options, false)
    }

    /// Starts a run as [`Session::run_async`] does, on inputs in the model's order; with `apart`, on a thread that no other
    /// run waits for, for all devices.
    fn start(&self, mut inputs: Vec<Tensor>, options: &RunOptions, apart: bool) -> Result<Run> {
        if self.values.is_some() {
            return self.start_hosted(inputs, options);
        }
        let views: Vec<InputView<'_>> = inputs.iter().map(InputView::of).collect();
        ports::check(&self.inputs, views.iter().map(InputView::ty))?;
        let cancel = options.cancel.clone().unwrap_or_default();
        let armed = options.deadline.map(|limit| deadline::arm(&cancel, limit));
        let admission = self.admit(options, Some(&cancel))?;
        if let Some(seeds) = &self.seeds {
            inputs.push(seeds.next(options.seed).tensor()?);
        }
        let (setter, run) = Run::new(self.outputs.len(), cancel.clone());
        let (unit, failover, buckets) = (Arc::clone(&self.unit), self.failover.clone(), self.buckets.clone());
        let job = move || {
            let run = || {
                Cancel::check(Some(&cancel))?;
                let views: Vec<InputView<'_>> = inputs.iter().map(InputView::of).collect();
                let attempt = |unit: &Unit| run_host(unit, buckets.as_deref(), &views, Some(&cancel));
                attempt_on(&unit, failover.as_deref(), &attempt)
            };
            let outcome = caught("the run", || Cancel::over(Some(&cancel), run)).flatten();
            let outcome = outcome.map_err(|error| error.on_device(unit.env().device.name()));
            // Waiters must find the run's resources released.
            drop((inputs, armed, admission, unit, failover));
            setter.set(outcome);
        };
        let queue = self.device.plugin().services().queue();
        let waits = |device: &Arc<Device>| !device.about().inline || device.about().may_block;
        let mut spares = self.failover.iter().flat_map(|failover| &failover.spares);
        if apart || self.unit.env().placement.devices().into_iter().any(waits) || spares.any(waits) {
            queue.spawn_blocking(options.priority, job);
        } else {
            queue.spawn(options.priority, job);
        }
        Ok(run)
    }

    /// Runs on inputs in the model's order, into the caller's memory. A steady-state run of a static model allocates
    /// nothing.
    ///
    /// # Errors
    /// As [`Session::run`]; [`ErrorKind::InvalidArgument`] for memory whose size is not the result's.
    pub fn run_into(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        options: &RunOptions,
    ) -> Result<()> {
        if self.values.is_some() {
            return copy_into(&self.run_hosted_tensors(owned(inputs)?, options)?, outputs);
        }
        if let Some(deadline) = options.deadline.filter(|_| self.may_not_return()) {
            return self.run_apart_into(inputs, outputs, options, deadline);
        }
        if self.seeds.is_some() {
            return self.run_seeded_into(inputs, outputs, options);
        }
        self.run_all_into(inputs, outputs, options)
    }

    /// Runs as [`Session::run_into`], on inputs that include the seed.
    #[inline]
    fn run_all_into(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        options: &RunOptions,
    ) -> Result<()> {
        if self.failover.is_some() {
            return self.run_into_or_fail_over(inputs, outputs, options);
        }
        if self.buckets.is_some() {
            return self.plan_and_run_into(inputs, outputs, options);
        }
        let planned = match &self.only_plan {
            Some(plan) => self.unit.planned_as(plan, inputs),
            None => self.unit.planned(inputs),
        };
        let Some(planned) = planned else {
            return self.plan_and_run_into(inputs, outputs, options);
        };
        // Types that have a plan were checked when it was made.
        self.limited(options, |cancel| planned.run_into(outputs, cancel))
    }

    /// Runs as [`Session::run_into`], on inputs without the seed that the program takes.
    #[inline(never)]
    fn run_seeded_into(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        options: &RunOptions,
    ) -> Result<()> {
        ports::check(&self.inputs, inputs.iter().map(InputView::ty))?;
        self.seeded(inputs, options, |inputs| self.run_all_into(inputs, outputs, options))
    }

    /// Runs as [`Session::run_apart`] does, on copies of the caller's memory.
    #[inline(never)]
    fn run_apart_into(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        options: &RunOptions,
        deadline: Duration,
    ) -> Result<()> {
        copy_into(&self.run_apart(owned(inputs)?, options, deadline)?, outputs)
    }

    #[inline(never)]
    fn run_into_or_fail_over(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        options: &RunOptions,
    ) -> Result<()> {
        self.check_all(inputs)?;
        let buckets = self.buckets.as_deref();
        self.limited(options, |cancel| {
            self.attempt(|session| run_into(&session.unit, buckets, inputs, outputs, cancel))
        })
    }

    /// Checks the inputs of a program, which were checked before if a seed was added to them.
    fn check_all(&self, inputs: &[InputView<'_>]) -> Result<()> {
        match self.seeds {
            Some(_) => Ok(()),
            None => ports::check(&self.inputs, inputs.iter().map(InputView::ty)),
        }
    }

    /// Tries a call on the current session, and on its successor when a device fails.
    fn attempt<R>(&self, mut attempt: impl FnMut(&Session) -> Result<R>) -> Result<R> {
        let mut session = self.current();
        loop {
            let result = attempt(session).map_err(|error| error.on_device(session.device.name()));
            let next = result.as_ref().err().and_then(|error| session.failover.as_ref()?.after(error));
            match next {
                Some(next) => session = next,
                None => return result,
            }
        }
    }

    #[inline(never)]
    fn plan_and_run_into(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        options: &RunOptions,
    ) -> Result<()> {
        self.check_all(inputs)?;
        let buckets = self.buckets.as_deref();
        self.limited(options, |cancel| run_into(&self.unit, buckets, inputs, outputs, cancel))
    }

    /// Prepares many runs on the same memory: nothing is checked, looked up or patched between them. None if the model is
    /// not static for these inputs, or the device cannot work in the caller's memory. These runs do not fail over to another
    /// device. None, too, for a model with random numbers, whose seed is new in each run.
    ///
    /// # Errors
    /// As [`Session::run_into`].
    pub fn bind<'a>(
        &self,
        inputs: &[InputView<'a>],
        outputs: &mut [OutputView<'a>],
    ) -> Result<Option<Bound<'a>>> {
        self.refuse_values("runs cannot be bound")?;
        ports::check(&self.inputs, inputs.iter().map(InputView::ty))?;
        self.check_unpadded(inputs.iter().map(|input| input.shape()))?;
        if self.seeds.is_some() {
            return Ok(None);
        }
        self.current().unit.bind(inputs, outputs)
    }

    #[inline]
    fn limited<R>(&self, options: &RunOptions, run: impl FnOnce(Option<&Cancel>) -> Result<R>) -> Result<R> {
        let result = if options.deadline.is_none() && self.in_flight.is_none() {
            Cancel::over(options.cancel.as_ref(), || run(options.cancel.as_ref()))
        } else {
            let limits = self.limit(options)?;
            Cancel::over(limits.cancel.as_ref(), || run(limits.cancel.as_ref()))
        };
        result.map_err(|error| error.on_device(self.device.name()))
    }

    /// Prepares a run that has a deadline or needs a place.
    #[inline(never)]
    fn limit(&self, options: &RunOptions) -> Result<Limits> {
        let mut cancel = options.cancel.clone();
        let armed = options.deadline.map(|limit| deadline::arm(cancel.get_or_insert_default(), limit));
        let admission = self.admit(options, cancel.as_ref())?;
        if armed.is_some() {
            Cancel::check(cancel.as_ref()).map_err(|error| error.on_device(self.device.name()))?;
        }
        Ok(Limits { admission, armed, cancel })
    }

    /// Takes a place among the runs in flight, if they are limited.
    fn admit(&self, options: &RunOptions, cancel: Option<&Cancel>) -> Result<Option<Admission>> {
        let in_flight = self.in_flight.as_ref();
        in_flight
            .map(|in_flight| InFlight::admit(in_flight, options.on_full, cancel))
            .transpose()
            .map_err(|error| error.on_device(self.device.name()))
    }

    /// Puts named inputs into the model's order, for [`Session::run_into`] and [`Session::bind`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for inputs that are missing, unknown or duplicated.
    pub fn in_order<'a>(&self, given: &[(&str, &'a Tensor)]) -> Result<Vec<InputView<'a>>> {
        Ok(ports::in_order(&self.inputs, given)?.into_iter().map(InputView::of).collect())
    }

    /// Refuses inputs that would need padding, where it is not supported.
    fn check_unpadded<'a>(&self, shapes: impl Iterator<Item = &'a [usize]>) -> Result<()> {
        let Some(buckets) = &self.buckets else {
            return Ok(());
        };
        match buckets.fit(shapes)? {
            None => Ok(()),
            Some(fit) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "runs that are bound or stay on a device are not padded: give {}, or make a session without buckets",
                    fit.wanted(buckets)
                ),
            )),
        }
    }
}

/// Calls `run` with the inputs and a seed behind them.
#[inline(never)]
fn with_seed<R>(
    inputs: &[InputView<'_>],
    seed: RunSeed,
    run: impl FnOnce(&[InputView<'_>]) -> Result<R>,
) -> Result<R> {
    let mut all: SmallVec<[InputView<'_>; 8]> = SmallVec::from_slice(inputs);
    all.push(seed.view()?);
    run(&all)
}

/// Copies the caller's memory.
fn owned(inputs: &[InputView<'_>]) -> Result<Vec<Tensor>> {
    let copy = |input: &InputView<'_>| {
        let (dtype, shape) = input.ty();
        Tensor::from_bytes(dtype, shape, input.bytes())
    };
    inputs.iter().map(copy).collect()
}

/// Copies results into the caller's memory.
fn copy_into(results: &[Tensor], outputs: &mut [OutputView<'_>]) -> Result<()> {
    if results.len() != outputs.len() {
        let text = format!("memory for {} results, the model has {}", outputs.len(), results.len());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    for (result, output) in results.iter().zip(outputs) {
        let (found, wanted) = (output.len(), result.bytes().len());
        if found != wanted {
            let text = format!("{found} bytes for a result of {wanted}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        output.copy_from_slice(result.bytes());
    }
    Ok(())
}

/// Runs a unit on valid inputs, padded if the session has buckets.
fn run_host(
    unit: &Unit,
    buckets: Option<&Buckets>,
    inputs: &[InputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<Vec<Tensor>> {
    match buckets {
        Some(buckets) => buckets.run(unit, inputs, cancel),
        None => unit.run_host(inputs, cancel),
    }
}

/// Runs as [`run_host()`], into the caller's memory.
fn run_into(
    unit: &Unit,
    buckets: Option<&Buckets>,
    inputs: &[InputView<'_>],
    outputs: &mut [OutputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<()> {
    match buckets {
        Some(buckets) => buckets.run_into(unit, inputs, outputs, cancel),
        None => unit.run_into(inputs, outputs, cancel),
    }
}

/// Tries a call as [`Session::attempt`] does, for callers that have only the parts of a session.
fn attempt_on<R>(
    unit: &Unit,
    failover: Option<&Failover>,
    attempt: &dyn Fn(&Unit) -> Result<R>,
) -> Result<R> {
    let go_on = |next: &Session| next.attempt(|session| attempt(&session.unit));
    if let Some(next) = failover.and_then(Failover::next) {
        return go_on(next);
    }
    let result = attempt(unit).map_err(|error| error.on_device(unit.env().device.name()));
    match result.as_ref().err().and_then(|error| failover?.after(error)) {
        Some(next) => go_on(next),
        None => result,
    }
}
