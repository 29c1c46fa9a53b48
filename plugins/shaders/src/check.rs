//! Values that a launch has to find in its data, and how it says that it has found others (B13).
//!
//! A shader cannot answer with an error. So a kernel whose data may be at fault, as an index may lie outside of its axis, has
//! a step in front that reads the integers and compares. The first thread that finds one outside writes a report to
//! [`Slot::Status`], a few words of memory that each stream has of its own. The plugin reads them where the stream is waited
//! for, and fails the stream with INVALID. Kernels still clamp what they read, so that no memory beside the operands is ever
//! touched; what they write then is undefined.
//!
//! A report is the number of the rule that was broken, 0 for none, and the value that broke it, low half first.

use crate::step::{Body, Build, Param, ShaderStep, Slot};
use crate::template::wgsl;
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::{Error, I64, Result, TensorView};
use std::sync::{Arc, Mutex, MutexGuard};

/// Words of a report.
pub const REPORT_WORDS: usize = 4;
/// Bytes of a report.
pub const REPORT_BYTES: usize = 4 * REPORT_WORDS;

/// Requirements on integers.
#[derive(Clone, Debug)]
struct Expected {
    /// The op, and the node's name.
    of: Box<str>,
    /// The word for one of them.
    what: &'static str,
    low: i64,
    high: i64,
}

/// The rules of the kernels that are prepared on a device, by the number that a report has for each.
#[derive(Default, Debug)]
pub struct Checks {
    /// Number 1 is the first; None where the kernel is gone.
    rules: Mutex<Vec<Option<Expected>>>,
}

/// A rule of a kernel; its number is free again when this is dropped, which is when no launch of the kernel is under way.
#[derive(Debug)]
pub struct Check {
    checks: Arc<Checks>,
    number: u32,
}

impl Checks {
    fn rules(&self) -> MutexGuard<'_, Vec<Option<Expected>>> {
        lock(&self.rules)
    }

    fn add(self: &Arc<Self>, rule: Expected) -> Check {
        let mut rules = self.rules();
        let at = rules.iter().position(Option::is_none).unwrap_or(rules.len());
        match rules.get_mut(at) {
            Some(place) => *place = Some(rule),
            None => rules.push(Some(rule)),
        }
        Check { checks: Arc::clone(self), number: at as u32 + 1 }
    }

    /// Returns the failure in a stream's report; None if no rule was broken.
    pub fn failure(&self, report: [u32; REPORT_WORDS]) -> Option<Error> {
        let [number, low, high, _] = report;
        if number == 0 {
            return None;
        }
        let value = (u64::from(high) << 32 | u64::from(low)) as i64;
        let rules = self.rules();
        let rule = rules.get(number as usize - 1).and_then(Option::as_ref);
        Some(Error::invalid(match rule {
            Some(Expected { of, what, low, high }) => {
                format!("{of}: {what} {value}, expected {low} up to {high}")
            }
            None => format!("a value of {value} that an op does not allow"),
        }))
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        if let Some(rule) = self.checks.rules().get_mut(self.number as usize - 1) {
            *rule = None;
        }
    }
}

/// Integers that a kernel reads, and what they have to be.
pub struct Integers<'a> {
    /// The op.
    pub op: &'static str,
    /// The word for one of them.
    pub what: &'static str,
    /// The operand: int32 or int64.
    pub tensor: &'a TensorView<'a>,
    /// Where it is.
    pub slot: Slot,
    /// Lowest and highest value. Of several bounds, integer `i` has number `i` modulo their count.
    pub bounds: &'a [(i64, i64)],
}

/// The bounds of an index of an axis.
pub fn index_bounds(n: i64) -> (i64, i64) {
    (-n, n - 1)
}

impl Build {
    /// Adds a step that fails the stream if an integer is out of its bounds, unless an option of the plugin leaves checks
    /// out, or the integers are constants within their bounds.
    ///
    /// # Errors
    /// As [`Build::add`].
    pub fn expect(&mut self, integers: &Integers<'_>) -> Result<()> {
        let &Integers { op, what, tensor, ref slot, bounds } = integers;
        let n = tensor.n_elements() as u64;
        let is_within = |(i, &value): (usize, &i64)| {
            let (low, high) = bounds[i % bounds.len()];
            (low..=high).contains(&value)
        };
        let known = tensor.constant_ints()?;
        if n == 0 || bounds.is_empty() || known.is_some_and(|values| values.iter().enumerate().all(is_within))
        {
            return Ok(());
        }
        let Some(checks) = self.checks() else { return Ok(()) };
        let of = match self.label() {
            "" => op.into(),
            label => format!("{op} of node `{label}`").into(),
        };
        let expected = |&(low, high): &(i64, i64)| Expected { of: Box::clone(&of), what, low, high };
        let added: Vec<Check> = bounds.iter().map(|pair| checks.add(expected(pair))).collect();
        let mut params = Vec::with_capacity(5 * bounds.len());
        for (k, (check, &(low, high))) in added.iter().zip(bounds).enumerate() {
            for (name, value) in [("low", low), ("high", high)] {
                params.push((format!("{name}{k}x"), Param::U32(value as u32)));
                params.push((format!("{name}{k}y"), Param::U32((value >> 32) as u32)));
            }
            params.push((format!("number{k}"), Param::U32(check.number)));
        }
        let value = match tensor.dtype() {
            I64 => "ids[i]",
            _ => "vec2<u32>(ids[i], select(0u, 0xffffffffu, bitcast<i32>(ids[i]) < 0))",
        };
        let each = wgsl!("check/bounds.wgsl", value, last = bounds.len() - 1);
        self.hold(added);
        self.add(ShaderStep {
            name: "check",
            buffers: vec![
                ("ids", if tensor.dtype() == I64 { "vec2<u32>" } else { "u32" }, slot.clone()),
                ("status", "atomic<u32>", Slot::Status),
            ],
            params,
            turns: 0,
            body: Body::Items { n, functions: &wgsl!("check/less.wgsl"), each: &each },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_rule_that_was_broken() {
        let checks = Arc::<Checks>::default();
        let rule = |of: &str| Expected { of: of.into(), what: "index", low: -3, high: 2 };
        let first = checks.add(rule("Gather"));
        let second = checks.add(rule("GatherND"));
        assert_eq!(checks.failure([0, 7, 0, 0]), None);
        let words = |report| checks.failure(report).map(|error| error.text().to_owned());
        assert_eq!(
            words([second.number, 3, 0, 0]).as_deref(),
            Some("GatherND: index 3, expected -3 up to 2")
        );
        let lowest = [first.number, 0, 0x8000_0000, 0];
        assert_eq!(words(lowest).as_deref(), Some("Gather: index -9223372036854775808, expected -3 up to 2"));
        drop(first);
        // A number is given again when its kernel is gone.
        assert_eq!(checks.add(rule("OneHot")).number, 1);
    }
}
