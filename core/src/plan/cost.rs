//! What launches are expected to take: what kernels say of their work, and how fast a device does it.
//!
//! A kernel's cost function counts operations and bytes for the shapes that it was prepared for (B20). A device's
//! [`Rates`] turn them into nanoseconds: the greater of arithmetic and memory traffic, and what a launch takes in any
//! case ("roofline", Williams, Waterman and Patterson, 2009). Estimates decide how a program is divided into tasks,
//! never what it computes.

use devbay_plugin_api::abi::KernelCost;

/// How fast a device works, one thread of it if it is the processor.
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
}

impl Default for Rates {
    /// A core of a server of the 2020s, as far as kernels reach its peak.
    fn default() -> Self {
        Self { flops_per_ns: 40.0, bytes_per_ns: 10.0, launch_ns: 2.0, hand_over_ns: 1000.0 }
    }
}

impl Rates {
    /// Whether all of them can be: above nothing and below infinity.
    pub fn are_possible(&self) -> bool {
        let possible = |rate: f64| rate.is_finite() && rate > 0.0;
        [self.flops_per_ns, self.bytes_per_ns, self.launch_ns, self.hand_over_ns].into_iter().all(possible)
    }

    /// Nanoseconds that a launch should take. A kernel that cannot say counts as its operands' bytes.
    pub fn launch(&self, cost: Option<&KernelCost>, operand_bytes: usize) -> f64 {
        let (flops, bytes) = match cost {
            Some(cost) => (cost.flops, cost.bytes_read.saturating_add(cost.bytes_written)),
            None => (0, operand_bytes as u64),
        };
        self.launch_ns + (flops as f64 / self.flops_per_ns).max(bytes as f64 / self.bytes_per_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_plugin_api::abi::Growable;

    #[test]
    fn a_launch_takes_the_greater_of_arithmetic_and_traffic() {
        let rates = Rates { flops_per_ns: 10.0, bytes_per_ns: 2.0, launch_ns: 3.0, hand_over_ns: 1.0 };
        let cost = |flops, bytes_read| KernelCost { flops, bytes_read, ..KernelCost::empty() };
        assert_eq!(rates.launch(Some(&cost(100, 4)), 0), 13.0);
        assert_eq!(rates.launch(Some(&cost(100, 40)), 0), 23.0);
        assert_eq!(rates.launch(None, 8), 7.0);
    }
}
