//! Expected times of launches: the work that kernels report, and the speed at which a device does it.
//!
//! A kernel's cost function counts operations and bytes for the shapes that it was prepared for (B20). A device's
//! [`Rates`] turn them into nanoseconds: the greater of arithmetic and memory traffic, and the fixed cost of a launch
//! ("roofline", Williams, Waterman and Patterson, 2009), with rates of its own for each kind of work
//! ([`WorkKind`]). Estimates decide how a program is divided into tasks
//! and where its nodes run, never its results.
//!
//! A copy between memories takes the time of its [`Link`]. A device without measurements gets the defaults of its kind
//! ([`Rates::of_kind`]).

use devbay_plugin_api::abi::{DEVBAY_DEVICE_KIND_CPU, DEVBAY_DEVICE_KIND_OTHER, KernelCost, NodeClaim};

/// The kind of work that a launch mostly does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkKind {
    /// Products of matrices, and ops built on them.
    Product,
    /// Convolutions that are products of matrices: many channels out for many in.
    Convolution,
    /// Convolutions of one channel by itself, or that make one channel: nothing that is read is used for several.
    Depthwise,
    /// The largest or the mean of each window.
    Pooling,
    /// One value of many: sums, norms, Softmax.
    Reduction,
    /// Each element by itself.
    Elements,
    /// Several elementwise ops as one, strip by strip.
    Chain,
    /// Runs of bytes from one place to another.
    Copying,
    /// Single elements from one place to another.
    Permutation,
}

impl WorkKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Product,
        Self::Convolution,
        Self::Depthwise,
        Self::Pooling,
        Self::Reduction,
        Self::Elements,
        Self::Chain,
        Self::Copying,
        Self::Permutation,
    ];

    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Convolution => "convolution",
            Self::Depthwise => "depthwise",
            Self::Pooling => "pooling",
            Self::Reduction => "reduction",
            Self::Elements => "elements",
            Self::Chain => "chain",
            Self::Copying => "copying",
            Self::Permutation => "permutation",
        }
    }

    /// Returns its name, in words.
    pub fn title(self) -> &'static str {
        match self {
            Self::Product => "matrix products",
            Self::Convolution => "convolutions",
            Self::Depthwise => "depthwise convolutions",
            Self::Pooling => "pooling",
            Self::Reduction => "reductions",
            Self::Elements => "elementwise ops",
            Self::Chain => "fused elementwise ops",
            Self::Copying => "copying",
            Self::Permutation => "permutations",
        }
    }
}

/// The speed of a device at one kind of work.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WorkRates {
    /// Operations per nanosecond.
    pub flops_per_ns: f64,
    /// Bytes per nanosecond, read and written.
    pub bytes_per_ns: f64,
    /// Nanoseconds of a launch that does next to nothing, among others.
    pub launch_ns: f64,
}

/// The speed of a device, or of one thread if it is the processor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Operations per nanosecond.
    pub flops_per_ns: f64,
    /// Bytes per nanosecond, read and written.
    pub bytes_per_ns: f64,
    /// Nanoseconds of a launch that does nothing.
    pub launch_ns: f64,
    /// Nanoseconds from offering a task until another thread runs it.
    pub hand_over_ns: f64,
    /// The same of each kind of work, in the order of [`WorkKind::ALL`]; None for those that the rates above hold for.
    pub by_work: [Option<WorkRates>; WorkKind::ALL.len()],
    /// Copies from the host's memory; unused if the device works in that memory.
    pub to_device: Link,
    /// Copies to the host's memory, until the host or another device may read them.
    pub from_device: Link,
}

/// The time that copies in one direction take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Nanoseconds of a copy of nothing.
    pub latency_ns: f64,
    /// Bytes per nanosecond beyond that.
    pub bytes_per_ns: f64,
}

impl Link {
    /// The link for data that is already there.
    pub const NONE: Self = Self { latency_ns: 0.0, bytes_per_ns: f64::INFINITY };

    /// The same where nothing is copied, but one waits for the other.
    #[must_use]
    pub fn without_bytes(self) -> Self {
        Self { latency_ns: self.latency_ns, ..Self::NONE }
    }

    /// Nanoseconds of a copy.
    pub fn copy(&self, bytes: usize) -> f64 {
        self.latency_ns + bytes as f64 / self.bytes_per_ns
    }
}

impl Default for Rates {
    /// Returns rates of a server core of the 2020s, as far as kernels reach its peak. Its copies are the processor's own;
    /// their latency is the cost of a separate stream, a hand-over each way.
    fn default() -> Self {
        let link = Link { latency_ns: 1000.0, bytes_per_ns: 10.0 };
        Self {
            flops_per_ns: 40.0,
            bytes_per_ns: 10.0,
            launch_ns: 2.0,
            hand_over_ns: 1000.0,
            by_work: [None; WorkKind::ALL.len()],
            to_device: link,
            from_device: link,
        }
    }
}

impl Rates {
    /// Returns the rates assumed for a device that was not measured, by its `DEVBAY_DEVICE_KIND_*`, and by whether it
    /// has a memory of its own.
    ///
    /// An accelerator is taken for a middling graphics card with plain kernels: 2 of the 10 to 30 Tflop/s and 300 of the
    /// 400 to 1000 GB/s that data sheets of the 2020s say, launches and copies of the order that drivers are known for,
    /// 5 to 20 us, and the rate of a PCIe 3.0 bus of 16 lanes, about 10 GB/s. A processor with a memory of its own is a
    /// driver that plays a graphics card in software: figures of the order that `devbay devices --calibrate` gave for
    /// Mesa's llvmpipe on two cores. The kinds of work of a core are about half of its figures for one with
    /// AVX-512.
    pub fn of_kind(kind: u32, has_own_memory: bool) -> Self {
        match kind {
            DEVBAY_DEVICE_KIND_CPU | DEVBAY_DEVICE_KIND_OTHER if has_own_memory => Self {
                flops_per_ns: 1.0,
                bytes_per_ns: 1.0,
                launch_ns: 25_000.0,
                to_device: Link { latency_ns: 50_000.0, bytes_per_ns: 2.0 },
                from_device: Link { latency_ns: 100_000.0, bytes_per_ns: 2.0 },
                ..Self::default()
            },
            DEVBAY_DEVICE_KIND_CPU | DEVBAY_DEVICE_KIND_OTHER => Self { by_work: CORE, ..Self::default() },
            _ => Self {
                flops_per_ns: 2000.0,
                bytes_per_ns: 300.0,
                launch_ns: 5000.0,
                to_device: Link { latency_ns: 10_000.0, bytes_per_ns: 10.0 },
                from_device: Link { latency_ns: 20_000.0, bytes_per_ns: 10.0 },
                ..Self::default()
            },
        }
    }

    /// Returns whether all of them are possible: above zero and finite.
    pub fn are_possible(&self) -> bool {
        let possible = |rate: f64| rate.is_finite() && rate > 0.0;
        let links = [self.to_device, self.from_device];
        let work = self.by_work.iter().flatten();
        let mut work = work.flat_map(|work| [work.flops_per_ns, work.bytes_per_ns, work.launch_ns]);
        [self.flops_per_ns, self.bytes_per_ns, self.launch_ns, self.hand_over_ns].into_iter().all(possible)
            && work.all(possible)
            && links.into_iter().all(|link| possible(link.latency_ns) && possible(link.bytes_per_ns))
    }

    /// Returns the rates of a kind of work.
    pub fn of_work(&self, kind: WorkKind) -> WorkRates {
        let Self { flops_per_ns, bytes_per_ns, launch_ns, .. } = *self;
        self.by_work[kind as usize].unwrap_or(WorkRates { flops_per_ns, bytes_per_ns, launch_ns })
    }

    /// Nanoseconds that a launch should take. A kernel that cannot say counts as its operands' bytes.
    pub fn launch(&self, kind: WorkKind, cost: Option<&KernelCost>, operand_bytes: usize) -> f64 {
        let rates = self.of_work(kind);
        let (flops, bytes) = match cost {
            Some(cost) => (cost.flops, cost.bytes_read.saturating_add(cost.bytes_written)),
            None => (0, operand_bytes as u64),
        };
        rates.launch_ns + (flops as f64 / rates.flops_per_ns).max(bytes as f64 / rates.bytes_per_ns)
    }

    /// Nanoseconds of a launch that takes so long on one thread, where the kernel may divide its loops among so many:
    /// among as many as make a part worth a hand-over.
    pub fn divided(&self, ns: f64, n_threads: usize) -> f64 {
        let launch = self.launch_ns.min(ns);
        let work = ns - launch;
        launch + work / (work / self.hand_over_ns).clamp(1.0, n_threads.max(1) as f64)
    }

    /// Nanoseconds of a node within a compiled program, which is launched as a whole.
    pub fn compiled(&self, claim: &NodeClaim) -> f64 {
        (claim.flops as f64 / self.flops_per_ns).max(claim.bytes as f64 / self.bytes_per_ns)
    }
}

/// The kinds of work of a core, in the order of [`WorkKind::ALL`].
const CORE: [Option<WorkRates>; WorkKind::ALL.len()] = [
    core(80.0, 15.0, 300.0),
    core(90.0, 15.0, 500.0),
    core(15.0, 10.0, 400.0),
    core(1.0, 10.0, 150.0),
    core(8.0, 30.0, 100.0),
    core(40.0, 20.0, 100.0),
    core(12.0, 40.0, 200.0),
    core(40.0, 20.0, 100.0),
    core(40.0, 25.0, 100.0),
];

const fn core(flops_per_ns: f64, bytes_per_ns: f64, launch_ns: f64) -> Option<WorkRates> {
    Some(WorkRates { flops_per_ns, bytes_per_ns, launch_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_plugin_api::abi::Growable;

    #[test]
    fn a_launch_takes_the_greater_of_arithmetic_and_traffic() {
        let rates = Rates { flops_per_ns: 10.0, bytes_per_ns: 2.0, launch_ns: 3.0, ..Rates::default() };
        let cost = |flops, bytes_read| KernelCost { flops, bytes_read, ..KernelCost::empty() };
        let launch = |cost: Option<&KernelCost>, bytes| rates.launch(WorkKind::Elements, cost, bytes);
        assert_eq!(launch(Some(&cost(100, 4)), 0), 13.0);
        assert_eq!(launch(Some(&cost(100, 40)), 0), 23.0);
        assert_eq!(launch(None, 8), 7.0);
    }

    #[test]
    fn a_kind_of_work_has_rates_of_its_own() {
        let mut rates = Rates { flops_per_ns: 10.0, bytes_per_ns: 2.0, launch_ns: 3.0, ..Rates::default() };
        rates.by_work[WorkKind::Pooling as usize] = core(0.5, 1.0, 20.0);
        assert!(rates.are_possible());
        let cost = KernelCost { flops: 100, bytes_read: 4, ..KernelCost::empty() };
        assert_eq!(rates.launch(WorkKind::Pooling, Some(&cost), 0), 220.0);
        assert_eq!(rates.launch(WorkKind::Product, Some(&cost), 0), 13.0);
        rates.by_work[WorkKind::Pooling as usize] = core(0.0, 1.0, 20.0);
        assert!(!rates.are_possible());
    }

    #[test]
    fn what_is_divided_among_threads_is_worth_a_hand_over_each() {
        let rates = Rates { launch_ns: 1.0, hand_over_ns: 100.0, ..Rates::default() };
        assert_eq!(rates.divided(51.0, 4), 51.0);
        assert_eq!(rates.divided(201.0, 4), 101.0);
        assert_eq!(rates.divided(4001.0, 4), 1001.0);
        assert_eq!(rates.divided(4001.0, 1), 4001.0);
        // The measured time may be less than the assumed time of a launch.
        assert_eq!(rates.divided(0.5, 4), 0.5);
    }

    #[test]
    fn a_copy_takes_its_latency_and_its_bytes() {
        assert_eq!(Link { latency_ns: 7.0, bytes_per_ns: 2.0 }.copy(10), 12.0);
    }

    #[test]
    fn a_graphics_card_that_nobody_measured_is_no_core_of_a_processor() {
        use devbay_plugin_api::abi::DEVBAY_DEVICE_KIND_GPU;
        let card = Rates::of_kind(DEVBAY_DEVICE_KIND_GPU, true);
        let program = Rates::of_kind(DEVBAY_DEVICE_KIND_CPU, true);
        let core = Rates::of_kind(DEVBAY_DEVICE_KIND_CPU, false);
        assert_eq!(Rates { by_work: Rates::default().by_work, ..core }, Rates::default());
        assert!(card.flops_per_ns > 10.0 * core.flops_per_ns && program.flops_per_ns < core.flops_per_ns);
        assert!(card.are_possible() && program.are_possible() && core.are_possible());
    }
}
