//! The definition of each op, one row an op: what the host, the conformance suite and plugins need to agree on.
//!
//! A row has an op's operands (which are required, which optional, which repeated) and its attributes with their types.
//! The crate depends on nothing of ours and knows no program, so the engine, the judge and every plugin in Rust can read the
//! same row
//! ([decision 0020](https://github.com/devbay/devbay/blob/main/docs/decisions/0020-one-definition-an-op.md)). A plugin
//! does not need it: a kernel's descriptor says the same of the kernel.
//!
//! ```
//! let topk = devbay_ops::find("", "TopK").expect("a row");
//! assert_eq!(topk.outputs.names().collect::<Vec<_>>(), ["Values", "Indices"]);
//! let fault = topk.outputs.check(&[Some("values")]).unwrap_err();
//! assert_eq!(fault.to_string(), "expected the output 1 (Indices), found none");
//! let fault = topk.attributes.check([("axis", devbay_ops::AttributeType::Float)].into_iter()).unwrap_err();
//! assert_eq!(fault.to_string(), "expected the attribute axis of type int, found one of type float");
//! ```

#![forbid(unsafe_code)]

mod attributes;
mod operands;
mod table;

pub use attributes::{Attribute, AttributeFault, AttributeType, Attributes};
pub use operands::{Fault, Operands, Side};

/// Domain of the ops that devbay's passes make.
pub const DEVBAY_DOMAIN: &str = "devbay";

/// One op in one version.
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// Domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Name.
    pub name: &'static str,
    /// The version that programs hold: the opset in which the definition appeared.
    pub version: u32,
    /// Its inputs.
    pub inputs: Operands,
    /// Its outputs.
    pub outputs: Operands,
    /// Its attributes.
    pub attributes: Attributes,
}

impl OpRow {
    /// Checks the number and presence of a node's operands.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn check<I, O>(&self, inputs: &[Option<I>], outputs: &[Option<O>]) -> Result<(), Fault> {
        self.inputs.check(inputs)?;
        self.outputs.check(outputs)
    }

    /// Compares a kernel's descriptor with the row: the fewest and the most inputs and outputs, `u32::MAX` for any number.
    /// A kernel requires what the op requires, and has no more operands than the op. It may require more, and have fewer:
    /// then it is not asked for some nodes.
    ///
    /// # Errors
    /// What is not as the op has it.
    pub fn check_counts(&self, inputs: (u32, u32), outputs: (u32, u32)) -> Result<(), String> {
        for (side, operands, (min, max)) in
            [(Side::Input, self.inputs, inputs), (Side::Output, self.outputs, outputs)]
        {
            let (min, max) = (min as usize, max as usize);
            if min < operands.n_min() {
                return Err(format!("requires {min} {side}s, the op {} ({operands:?})", operands.n_min()));
            }
            let most = operands.n_max().unwrap_or(u32::MAX as usize);
            if max > most {
                return Err(format!("has {max} {side}s, the op {most} ({operands:?})"));
            }
        }
        Ok(())
    }
}

/// The row of an op; None if programs do not hold it.
pub fn find(domain: &str, name: &str) -> Option<&'static OpRow> {
    let rows = match domain {
        "" => table::ONNX,
        DEVBAY_DOMAIN => table::DEVBAY,
        _ => return None,
    };
    let i = rows.binary_search_by_key(&name, |row| row.name).ok()?;
    Some(&rows[i])
}

/// Whether an op has an attribute of that name; `false` for an op without a row.
pub fn has_attribute(domain: &str, op: &str, name: &str) -> bool {
    find(domain, op).is_some_and(|row| row.attributes.has(name))
}

/// All rows, ONNX's first, each domain's sorted by name.
pub fn all() -> impl Iterator<Item = &'static OpRow> {
    table::ONNX.iter().chain(table::DEVBAY)
}
