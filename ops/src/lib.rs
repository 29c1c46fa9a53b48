//! The definition of each op, one row per op, shared by the host, the conformance suite and plugins.
//!
//! A row has an op's versions, its operands (which are required, which optional, which repeated), and its attributes with
//! their types and defaults. It also has the facts that passes need, the types of its results ([`infer`]), and, if it is
//! elementwise, its computation ([`formula`]).
//! The crate depends only on the ABI's types and has no notion of a program. So the engine, the conformance suite and every
//! plugin in Rust can read the same row ([decision
//! 0020](https://github.com/devbay/devbay/blob/main/docs/decisions/0020-one-definition-an-op.md)). A plugin does not need
//! it: a kernel's descriptor states the same facts.
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
mod axes;
mod constant;
mod descriptor;
pub mod formula;
pub mod infer;
pub mod node;
mod node_attrs;
pub mod onnx_types;
pub mod opencl;
mod operands;
pub mod read;
mod row;
mod table;
pub mod types;

pub use attributes::{Attribute, AttributeDefault, AttributeFault, AttributeType, Attributes};
pub use constant::Constant;
pub use descriptor::{descriptor, descriptor_of};
pub use formula::Formula;
pub use node_attrs::{AttrRef, NodeAttrs};
pub use operands::{Fault, Operands, Side};
pub use row::{DEVBAY_DOMAIN, Failure, Form, MICROSOFT_DOMAIN, ML_DOMAIN, OpKind, OpRow, Takes, Work};
pub use table::ROWS;

/// Returns the row of an op; None if there is none.
pub fn find(domain: &str, name: &str) -> Option<&'static OpRow> {
    let mut slot = slot_of(name.as_bytes());
    // The table has empty slots, so this ends.
    while let Some(at) = INDEX[slot].checked_sub(1) {
        let row = &ROWS[usize::from(at)];
        if row.name == name && row.domain == domain {
            return Some(row);
        }
        slot = (slot + 1) % N_SLOTS;
    }
    None
}

/// Number of slots of [`INDEX`]: a power of two, more than twice the number of rows.
const N_SLOTS: usize = 512;

/// Rows by the hash of their names, counted from 1; 0 is an empty slot. On a collision the row is in the next free slot.
/// Eagerly run nodes look up their op in every call.
static INDEX: [u16; N_SLOTS] = {
    assert!(2 * ROWS.len() < N_SLOTS, "N_SLOTS is too small");
    let (mut index, mut at) = ([0; N_SLOTS], 0);
    while at < ROWS.len() {
        let mut slot = slot_of(ROWS[at].name.as_bytes());
        while index[slot] != 0 {
            slot = (slot + 1) % N_SLOTS;
        }
        at += 1;
        index[slot] = at as u16;
    }
    index
};

/// Returns the slot of a name by FNV-1a.
const fn slot_of(name: &[u8]) -> usize {
    let (mut hash, mut i) = (0xcbf2_9ce4_8422_2325u64, 0);
    while i < name.len() {
        hash = (hash ^ name[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    (hash ^ hash >> 32) as usize % N_SLOTS
}

/// Returns whether an op has an attribute of that name; `false` for an op without a row.
pub fn has_attribute(domain: &str, op: &str, name: &str) -> bool {
    find(domain, op).is_some_and(|row| row.attributes.has(name))
}

/// Returns all rows, ONNX's first, each domain's sorted by name.
pub fn all() -> impl Iterator<Item = &'static OpRow> {
    ROWS.iter()
}

/// Returns the operations per element of a named formula, for constants.
///
/// # Panics
/// If the formula does not exist.
pub const fn flops(name: &str) -> u64 {
    let (mut i, name) = (0, name.as_bytes());
    while i < 2 * ROWS.len() {
        if let Some(form) = &ROWS[i / 2].forms[i % 2]
            && is_equal(form.name.as_bytes(), name)
        {
            return form.flops;
        }
        i += 1;
    }
    panic!("no formula of that name")
}

const fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}
