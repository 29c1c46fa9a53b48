//! What keeps launches from taking an even share of the processors.
//!
//! Each launch is looked at as if it had the machine to itself; one processor loses nothing. Its time is put together step by step, and what each step
//! adds is lost to one limit:
//!
//! | time | the limit of what it adds |
//! | --- | --- |
//! | work / processors | none: that is the ideal |
//! | work / min(processors, chunks), and parts without a loop whole | [`Limit::Serial`], [`Limit::FewChunks`] |
//! | the loop, at no cost of handing over | [`Limit::LongChunk`] |
//! | the loop with those costs | [`Limit::HandOver`] |
//! | at least the bytes / bandwidth | [`Limit::Bandwidth`] |

use super::machine::{HandOver, Machine};
use super::replay::of_loop;
use super::work::{Part, StepWork, Work};

/// What a launch loses time to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Limit {
    /// Parts that are no loop: the launch runs on one processor.
    Serial,
    /// Fewer chunks than processors.
    FewChunks,
    /// Chunks that do not come out even, or one that is longer than others.
    LongChunk,
    /// Handing chunks over, and waiting for the last.
    HandOver,
    /// The bandwidth of memory.
    Bandwidth,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Serial, Self::FewChunks, Self::LongChunk, Self::HandOver, Self::Bandwidth];

    /// Returns its name in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::FewChunks => "few chunks",
            Self::LongChunk => "long chunk",
            Self::HandOver => "hand-over",
            Self::Bandwidth => "bandwidth",
        }
    }
}

/// Nanoseconds that are lost, by limit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Limits {
    lost_ns: [f64; Limit::ALL.len()],
}

impl Limits {
    /// Returns the nanoseconds that a limit costs.
    pub fn lost_ns(&self, limit: Limit) -> f64 {
        self.lost_ns[limit as usize]
    }

    /// Returns all of them.
    pub fn sum_ns(&self) -> f64 {
        self.lost_ns.iter().sum()
    }

    /// Returns the limit that costs most; None if nothing is lost.
    pub fn main(&self) -> Option<Limit> {
        let most = Limit::ALL.into_iter().max_by(|a, b| self.lost_ns(*a).total_cmp(&self.lost_ns(*b)))?;
        (self.lost_ns(most) > 0.0).then_some(most)
    }

    fn add(&mut self, limit: Limit, ns: f64) {
        self.lost_ns[limit as usize] += ns.max(0.0);
    }
}

/// Returns the limits of each launch, and of all together.
pub fn limits(work: &Work, machine: &Machine) -> (Vec<Limits>, Limits) {
    let mut launches = vec![Limits::default(); work.launches.len()];
    for step in work.stages.iter().flat_map(|stage| &stage.steps) {
        let bytes = work.launches[step.launch].counts.map_or(0.0, |counts| counts.bytes as f64);
        of_step(step, bytes, machine, &mut launches[step.launch]);
    }
    let mut all = Limits::default();
    for own in &launches {
        Limit::ALL.into_iter().for_each(|limit| all.add(limit, own.lost_ns(limit)));
    }
    (launches, all)
}

fn of_step(step: &StepWork, bytes: f64, machine: &Machine, limits: &mut Limits) {
    if machine.n < 2 {
        return;
    }
    let n = machine.n as f64;
    let step_ns = step.ns();
    for part in &step.parts {
        let ns = part.ns();
        let Part::Loop(chunks) = part else {
            limits.add(Limit::Serial, ns - ns / n);
            continue;
        };
        let evenly_ns = ns / n.min(chunks.len() as f64);
        let free = Machine { hand_over: HandOver::FREE, bytes_per_ns: f64::INFINITY, ..*machine };
        let taken_ns = of_loop(chunks, &free);
        let handed_ns = of_loop(chunks, &Machine { hand_over: machine.hand_over, ..free });
        let passed_ns = bytes * ns / step_ns.max(f64::MIN_POSITIVE) / machine.bytes_per_ns;
        limits.add(Limit::FewChunks, evenly_ns - ns / n);
        limits.add(Limit::LongChunk, taken_ns - evenly_ns);
        limits.add(Limit::HandOver, handed_ns - taken_ns);
        limits.add(Limit::Bandwidth, passed_ns - handed_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::super::work::LaunchInfo;
    use super::*;
    use crate::simulate::{Stage, TaskWork};
    use devbay_core::kernel::Counts;

    fn lost(parts: &[Part], bytes: u64, machine: &Machine) -> ([f64; 5], Option<Limit>) {
        let counts = Some(Counts { flops: 0, bytes });
        let info = LaunchInfo { node: String::new(), name: String::new(), op: String::new(), counts };
        let task = TaskWork { steps: 0..1, ..TaskWork::default() };
        let steps = vec![StepWork { launch: 0, parts: parts.to_vec() }];
        let stage = Stage { tasks: vec![task], steps, is_shared: false };
        let (each, all) = limits(&Work { launches: vec![info], stages: vec![stage], n_runs: 1 }, machine);
        assert_eq!(each, [all]);
        (Limit::ALL.map(|limit| all.lost_ns(limit)), all.main())
    }

    #[test]
    fn each_limit_takes_its_part() {
        let alone = Machine { n: 1, hand_over: HandOver::TYPICAL, bytes_per_ns: 1.0 };
        assert_eq!(lost(&[Part::Serial(9.0), Part::Loop(vec![1.0; 9])], 99, &alone), ([0.0; 5], None));
        let machine = Machine { n: 4, hand_over: HandOver::FREE, bytes_per_ns: f64::INFINITY };
        let even = |n| Part::Loop(vec![10.0; n]);
        assert_eq!(lost(&[even(8)], 0, &machine), ([0.0; 5], None));
        assert_eq!(
            lost(&[Part::Serial(40.0)], 0, &machine),
            ([30.0, 0.0, 0.0, 0.0, 0.0], Some(Limit::Serial))
        );
        assert_eq!(lost(&[even(2)], 0, &machine), ([0.0, 5.0, 0.0, 0.0, 0.0], Some(Limit::FewChunks)));
        // Five chunks on four processors: one of them has two.
        assert_eq!(lost(&[even(5)], 0, &machine), ([0.0, 0.0, 7.5, 0.0, 0.0], Some(Limit::LongChunk)));
        let costly = Machine { hand_over: HandOver { join_ns: 3.0, transfer_ns: 0.0 }, ..machine };
        assert_eq!(lost(&[even(4)], 0, &costly), ([0.0, 0.0, 0.0, 3.0, 0.0], Some(Limit::HandOver)));
        let slow = Machine { bytes_per_ns: 2.0, ..machine };
        assert_eq!(lost(&[even(4)], 50, &slow), ([0.0, 0.0, 0.0, 0.0, 15.0], Some(Limit::Bandwidth)));
    }
}
