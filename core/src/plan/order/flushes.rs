//! Flushes: points at which a stream that gathers work must hand it to the device.
//!
//! Such a plugin hands over at a signal, and the host signals behind a task: without more, the device would begin when the last of
//! a task's launches is enqueued. Each flush costs a submission, so that the first one stands behind work that is worth it, and
//! each further one behind as much work as was handed over before it: while the device does the one half, the host enqueues the
//! other. A task of 2^n times the least work has n flushes.

/// Work that is worth a submission of its own, in estimated nanoseconds. A submission takes some microseconds of the host's.
const WORTH_NS: f64 = 100_000.0;

/// For each launch of a task on one stream, by their costs, whether a flush stands behind it.
pub(in crate::plan) fn flushes(costs_ns: &[f64]) -> Vec<bool> {
    let mut left: f64 = costs_ns.iter().sum();
    let (mut handed_over, mut gathered) = (0.0, 0.0);
    let flush_behind = |&cost: &f64| {
        left -= cost;
        gathered += cost;
        // The signal hands over the rest, which should be worth it, too.
        let is_worth = gathered >= f64::max(WORTH_NS, handed_over) && left >= WORTH_NS;
        if is_worth {
            handed_over += gathered;
            gathered = 0.0;
        }
        is_worth
    };
    costs_ns.iter().map(flush_behind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_follow_work_and_not_launches() {
        let behind = |costs: &[f64]| -> Vec<usize> {
            flushes(costs).iter().enumerate().filter(|(_, is)| **is).map(|(i, _)| i).collect()
        };
        assert_eq!(behind(&[]), []);
        assert_eq!(behind(&[1e9]), [], "the signal follows");
        assert_eq!(behind(&[1e3; 150]), [], "too little is left behind 100 of them");
        assert_eq!(behind(&[5e4; 40]), [1, 3, 7, 15, 31], "each doubles what was handed over");
        assert_eq!(behind(&[1e6, 0.0, 1e3, 1e6]), [0], "what is left is worth it");
        assert_eq!(behind(&[f64::NAN; 4]), [], "what nobody can estimate");
    }
}
