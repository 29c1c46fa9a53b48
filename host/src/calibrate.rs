//! Measures how fast a device works, for the planner's estimates.
//!
//! Measurements use the ordinary path: small programs run in sessions, and a loop runs on the work queue. A program is a
//! chain of equal launches. A short and a long chain run in turn, and the difference of their times is the cost of the
//! additional launches. So the fixed costs of a run (copies, waiting, checks) cancel out. The result is the median of many
//! such pairs. Copies between host and device memory are measured alike, except for the wait that always ends a copy to the
//! host.
//!
//! Rates are per thread if the device is the processor: its kernels divide their loops among the queue's threads, so the
//! measured device has a queue of one. A rate that cannot be measured keeps its default, with the reason. Measurement
//! happens only on request: a runtime reads stored rates ([`crate::rates_file`]).

use crate::model::Model;
use crate::probes;
use crate::session::{RunOptions, Session};
use devbay_core::device::{Device, Ferry};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::host_io::InputView;
use devbay_core::exec::queue::WorkQueue;
use devbay_core::passes::Switches;
use devbay_core::plan::PlanOptions;
use devbay_core::plan::cost::Rates;
use devbay_core::plan::tasks::Policy;
use devbay_core::plan::work::WorkKind;
use devbay_core::program::{Node, Op, Program};
use devbay_core::tensor::{F32, Tensor, TensorType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Measuring time per figure. A result needs at least [`PAIRS_MIN`] pairs.
const BUDGET: Duration = Duration::from_millis(250);
/// Maximum measuring time per figure, if the clock gives no result.
const BUDGET_MAX: Duration = Duration::from_secs(4);
const PAIRS_MIN: usize = 5;
const PAIRS_MAX: usize = 2000;

/// Rows and columns of the matrices; at this size their product is bound by arithmetic, not memory traffic.
const MATRIX: usize = 256;

/// Elements of the tensors that are added: 4 MiB each, more than a core's private caches hold.
const ELEMENTS: usize = 1 << 20;

/// Bytes of a copy bound by latency, and of one bound by bandwidth.
const SMALL: usize = 64;
const LARGE: usize = 8 << 20;

/// Time after which an offered chunk counts as not taken.
const HAND_OVER_MAX: Duration = Duration::from_millis(1);

/// One of a device's rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// Arithmetic.
    Flops,
    /// Memory traffic.
    Bytes,
    /// A launch that does nothing.
    Launch,
    /// Time from offering a task until another thread runs it.
    HandOver,
    /// Latency of a copy to the device.
    ToDevice,
    /// Copies to the device.
    ToDeviceBytes,
    /// Latency of a copy to the host, until the host may read it.
    FromDevice,
    /// Copies to the host.
    FromDeviceBytes,
    /// One of the rates of a kind of work.
    Work(WorkKind, WorkRate),
}

impl Quantity {
    /// Returns all of them: those of the device, then those measured for each kind of work.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = [
            Self::Flops,
            Self::Bytes,
            Self::Launch,
            Self::HandOver,
            Self::ToDevice,
            Self::ToDeviceBytes,
            Self::FromDevice,
            Self::FromDeviceBytes,
        ];
        let rates = [WorkRate::Launch, WorkRate::Flops, WorkRate::Bytes];
        let of = move |kind| rates.into_iter().map(move |rate| Self::Work(kind, rate));
        own.into_iter().chain(WorkKind::ALL.into_iter().flat_map(of))
    }

    /// Returns its name in [`Rates`] and in JSON; the name ends with the unit.
    pub fn name(self) -> String {
        match self {
            Self::Flops => "flops_per_ns".to_owned(),
            Self::Bytes => "bytes_per_ns".to_owned(),
            Self::Launch => "launch_ns".to_owned(),
            Self::HandOver => "hand_over_ns".to_owned(),
            Self::ToDevice => "to_device_ns".to_owned(),
            Self::ToDeviceBytes => "to_device_bytes_per_ns".to_owned(),
            Self::FromDevice => "from_device_ns".to_owned(),
            Self::FromDeviceBytes => "from_device_bytes_per_ns".to_owned(),
            Self::Work(kind, rate) => format!("{}_{}", kind.name(), rate.of_device().name()),
        }
    }

    /// Describes it in words.
    pub fn title(self) -> String {
        match self {
            Self::Flops => "arithmetic of one thread".to_owned(),
            Self::Bytes => "memory traffic of one thread".to_owned(),
            Self::Launch => "a launch that does nothing".to_owned(),
            Self::HandOver => "a task handed to another thread".to_owned(),
            Self::ToDevice => "a copy of nothing to the device".to_owned(),
            Self::ToDeviceBytes => "copies to the device".to_owned(),
            Self::FromDevice => "a copy of nothing to the host".to_owned(),
            Self::FromDeviceBytes => "copies to the host".to_owned(),
            Self::Work(kind, WorkRate::Launch) => format!("{}, a launch among others", kind.title()),
            Self::Work(kind, WorkRate::Flops) => format!("{}, arithmetic", kind.title()),
            Self::Work(kind, WorkRate::Bytes) => format!("{}, memory traffic", kind.title()),
        }
    }

    /// Returns its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Flops => "operations/ns",
            Self::Bytes | Self::ToDeviceBytes | Self::FromDeviceBytes => "bytes/ns",
            Self::Launch | Self::HandOver | Self::ToDevice | Self::FromDevice => "ns",
            Self::Work(_, rate) => rate.of_device().unit(),
        }
    }

    /// Returns its place in rates. A kind of work that had no rates gets the device's own.
    pub fn of(self, rates: &mut Rates) -> &mut f64 {
        match self {
            Self::Flops => &mut rates.flops_per_ns,
            Self::Bytes => &mut rates.bytes_per_ns,
            Self::Launch => &mut rates.launch_ns,
            Self::HandOver => &mut rates.hand_over_ns,
            Self::ToDevice => &mut rates.to_device.latency_ns,
            Self::ToDeviceBytes => &mut rates.to_device.bytes_per_ns,
            Self::FromDevice => &mut rates.from_device.latency_ns,
            Self::FromDeviceBytes => &mut rates.from_device.bytes_per_ns,
            Self::Work(kind, rate) => {
                let own = rates.of_work(kind);
                let work = rates.by_work[kind as usize].get_or_insert(own);
                match rate {
                    WorkRate::Launch => &mut work.launch_ns,
                    WorkRate::Flops => &mut work.flops_per_ns,
                    WorkRate::Bytes => &mut work.bytes_per_ns,
                }
            }
        }
    }
}

/// One of the rates of a kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkRate {
    /// A launch that does next to nothing, between other launches.
    Launch,
    /// Arithmetic.
    Flops,
    /// Memory traffic.
    Bytes,
}

impl WorkRate {
    /// Returns the device's quantity of this kind.
    fn of_device(self) -> Quantity {
        match self {
            Self::Launch => Quantity::Launch,
            Self::Flops => Quantity::Flops,
            Self::Bytes => Quantity::Bytes,
        }
    }
}

/// One figure, and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The quantity that it measures.
    pub quantity: Quantity,
    /// Its value, in the quantity's unit.
    pub value: f64,
    /// Why it was not measured and is the default; None if it was measured.
    pub default_because: Option<String>,
}

/// Measured rates of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    /// Measured quantities, in the order of [`Quantity::all`].
    pub figures: Vec<Figure>,
    /// Default rates for this kind of device, used for quantities that were not measured.
    pub defaults: Rates,
    /// Time that calibration took.
    pub took: Duration,
}

impl Calibration {
    /// Returns the rates, with defaults where nothing was measured.
    pub fn rates(&self) -> Rates {
        let mut rates = self.defaults;
        for figure in self.figures.iter().filter(|figure| figure.default_because.is_none()) {
            *figure.quantity.of(&mut rates) = figure.value;
        }
        rates
    }
}

/// Measures `device`. `alone` is the same device in a runtime of one thread; arithmetic, traffic, launches and copies are
/// measured on it, and hand-overs on the queue of `device`. Takes some seconds.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `alone` is another device, or has more than one thread. A failed measurement is not an
/// error; it is the reason of its figure.
pub fn calibrate(device: &Arc<Device>, alone: &Arc<Device>) -> Result<Calibration> {
    let n_alone = alone.plugin().services().queue().n_threads();
    if n_alone != 1 || alone.stable_id() != device.stable_id() {
        let text = format!(
            "{} is measured on itself with one thread, found {} with {n_alone}",
            device.stable_id(),
            alone.stable_id()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let begin = Instant::now();
    let said = |result: Result<f64>| result.map_err(|error| error.to_string());
    // Launches come first, because their cost is subtracted from arithmetic and traffic.
    let launch = said(launch_ns(alone));
    let launch_ns = launch.clone().unwrap_or(0.0);
    let rate = |work: usize, link: Result<f64>| -> std::result::Result<f64, String> {
        let ns = said(link)? - launch_ns;
        if ns > 0.0 { Ok(work as f64 / ns) } else { Err("it took no longer than an empty launch".to_owned()) }
    };
    let flops = rate(2 * MATRIX * MATRIX * MATRIX, product_ns(alone));
    let bytes = rate(3 * ELEMENTS * size_of::<f32>(), sum_ns(alone));
    let hand_over = hand_over_ns(device.plugin().services().queue());
    let links = links(alone);
    let defaults = device.default_rates();
    let figure = |(quantity, measured): (Quantity, std::result::Result<f64, String>)| {
        let measured = measured.and_then(|value| match value {
            value if value.is_finite() && value > 0.0 => Ok(value),
            value => Err(format!("the clock gave {value} {}", quantity.unit())),
        });
        let default = *quantity.of(&mut { defaults });
        Figure { quantity, value: *measured.as_ref().unwrap_or(&default), default_because: measured.err() }
    };
    let measured = [flops, bytes, launch, hand_over].into_iter().chain(links);
    let measured = Quantity::all().zip(measured).chain(probes::of_kinds(alone));
    let figures = measured.map(figure).collect();
    Ok(Calibration { figures, defaults, took: begin.elapsed() })
}

/// Measures copies to the device, then from it: first latency in nanoseconds, then bytes per nanosecond.
///
/// Copies to a device are enqueued back to back; each copy from it is awaited.
fn links(device: &Arc<Device>) -> [std::result::Result<f64, String>; 4] {
    let about = device.about();
    if about.host_refs && device.space().host_visible {
        return std::array::from_fn(|_| Err("its kernels work in the host's memory".to_owned()));
    }
    let ferry = |size| Ferry::new(device, size);
    let to = ferry(SMALL).and_then(|mut ferry| each_ns(&mut ferry, Ferry::copy_in, (1, 33)));
    let from = ferry(SMALL).and_then(|mut ferry| median(|| ns_of(&mut ferry, Ferry::copy_out, 1)));
    let rate = |copy: Copy| {
        let mut ferry = ferry(LARGE)?;
        Ok(ferry.size() as f64 / each_ns(&mut ferry, copy, (1, 3))?)
    };
    let (to_rate, from_rate) = (rate(Ferry::copy_in), rate(Ferry::copy_out));
    [to, to_rate, from, from_rate].map(|result: Result<f64>| result.map_err(|error| error.to_string()))
}

/// Makes a given number of copies.
type Copy = fn(&mut Ferry, usize) -> Result<()>;

/// Measures one copy in nanoseconds: the median of pairs of few and many copies.
fn each_ns(ferry: &mut Ferry, copy: Copy, (few, many): (usize, usize)) -> Result<f64> {
    copy(ferry, many)?;
    median(|| {
        let [few_ns, many_ns] = [ns_of(ferry, copy, few)?, ns_of(ferry, copy, many)?];
        Ok((many_ns - few_ns) / (many - few) as f64)
    })
}

fn ns_of(ferry: &mut Ferry, copy: Copy, n: usize) -> Result<f64> {
    let begin = Instant::now();
    copy(ferry, n)?;
    Ok(begin.elapsed().as_nanos() as f64)
}

/// Measures a product of two matrices, the second one constant like weights.
fn product_ns(device: &Arc<Device>) -> Result<f64> {
    let shape = [MATRIX, MATRIX];
    let weights = Tensor::from_elements(&shape, &[1.0 / MATRIX as f32; MATRIX * MATRIX])?;
    link_ns(device, &Op::onnx("MatMul", 13), &shape, &weights, (2, 6))
}

/// Measures a sum of two large tensors.
fn sum_ns(device: &Arc<Device>) -> Result<f64> {
    let zeros = Tensor::from_elements(&[ELEMENTS], &vec![0f32; ELEMENTS])?;
    link_ns(device, &Op::onnx("Add", 14), &[ELEMENTS], &zeros, (2, 8))
}

/// Measures a sum of two numbers.
fn launch_ns(device: &Arc<Device>) -> Result<f64> {
    let zero = Tensor::from_elements(&[1], &[0f32])?;
    link_ns(device, &Op::onnx("Add", 14), &[1], &zero, (100, 1100))
}

/// Measures one link of a chain in nanoseconds: the median of pairs of a short and a long chain.
fn link_ns(
    device: &Arc<Device>,
    op: &Op,
    shape: &[usize],
    operand: &Tensor,
    (short, long): (usize, usize),
) -> Result<f64> {
    let mut chains =
        [Chain::new(device, op, shape, operand, short)?, Chain::new(device, op, shape, operand, long)?];
    for chain in &mut chains {
        chain.run_ns()?;
    }
    median(|| {
        let [short_ns, long_ns] = [chains[0].run_ns()?, chains[1].run_ns()?];
        Ok((long_ns - short_ns) / (long - short) as f64)
    })
}

/// Returns the median of `measure` within the budget. On a busy machine the longer of two runs may seem shorter, so a median
/// that is not above zero is measured for longer.
fn median(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let begin = Instant::now();
    let mut budget = BUDGET;
    let mut values = Vec::new();
    loop {
        while values.len() < PAIRS_MIN || (values.len() < PAIRS_MAX && begin.elapsed() < budget) {
            values.push(measure()?);
        }
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        if median > 0.0 || values.len() >= PAIRS_MAX || budget >= BUDGET_MAX {
            return Ok(median);
        }
        budget *= 2;
    }
}

/// A chain of launches, each taking a constant and the result of the one before.
struct Chain {
    session: Session,
    input: Tensor,
    output: Vec<u8>,
}

impl Chain {
    fn new(device: &Arc<Device>, op: &Op, shape: &[usize], operand: &Tensor, n: usize) -> Result<Self> {
        let mut program = Program { name: "calibration".to_owned(), ..Program::default() };
        let ty = TensorType::new(F32, shape);
        let operand = program.add_constant("operand", operand.clone());
        let mut value = program.add_typed("x", ty.clone());
        program.main.inputs.push(value);
        for _ in 0..n {
            let next = program.add_typed("y", ty.clone());
            program.main.nodes.push(Node::new(
                op.clone(),
                vec![Some(value), Some(operand)],
                vec![Some(next)],
            ));
            value = next;
        }
        program.main.outputs.push(value);
        // Fusion and other passes would change the number of launches.
        let options = PlanOptions { tasks: Policy::One, passes: Switches::none(), ..PlanOptions::default() };
        let session = Session::with_options(&Model::from_program(program), device, options)?;
        let ones = vec![1f32; shape.iter().product()];
        let input = Tensor::from_elements(shape, &ones)?;
        let output = vec![0u8; input.bytes().len()];
        Ok(Self { session, input, output })
    }

    fn run_ns(&mut self) -> Result<f64> {
        let begin = Instant::now();
        self.session.run_into(
            &[InputView::of(&self.input)],
            &mut [self.output.as_mut_slice()],
            &RunOptions::default(),
        )?;
        Ok(begin.elapsed().as_nanos() as f64)
    }
}

/// Measures the nanoseconds from offering a chunk for each thread until a thread other than the caller's has taken one.
fn hand_over_ns(queue: &WorkQueue) -> std::result::Result<f64, String> {
    if queue.n_threads() < 2 {
        return Err("there is one thread".to_owned());
    }
    let limit = HAND_OVER_MAX.as_nanos() as f64;
    match median(|| Ok(one_hand_over_ns(queue))) {
        Ok(value) if value < limit => Ok(value),
        Ok(_) => Err(format!("other threads mostly took longer than {limit} ns")),
        Err(error) => Err(error.to_string()),
    }
}

fn one_hand_over_ns(queue: &WorkQueue) -> f64 {
    let taken = AtomicU64::new(0);
    let caller = std::thread::current().id();
    let offered = Instant::now();
    queue.parallel_for(queue.n_threads() as u64, 1, &|_, _, _| {
        if std::thread::current().id() == caller {
            while taken.load(Ordering::Relaxed) == 0 && offered.elapsed() < HAND_OVER_MAX {
                std::hint::spin_loop();
            }
        } else {
            let ns = (offered.elapsed().as_nanos() as u64).max(1);
            // Only the first thread's time counts.
            let _ = taken.compare_exchange(0, ns, Ordering::Relaxed, Ordering::Relaxed);
        }
        0
    });
    match taken.into_inner() {
        0 => HAND_OVER_MAX.as_nanos() as f64,
        ns => ns as f64,
    }
}
