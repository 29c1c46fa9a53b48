//! Builds descriptors of kernels from their ops' rows.

use crate::row::OpRow;
use crate::{ROWS, is_equal};
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
use devbay_plugin_api::sdk::{Kernel, PrepareFn};

/// Returns the descriptor of a kernel of ONNX's op `op` as defined in opset `since_version`: see [`OpRow::descriptor`].
///
/// # Panics
/// If the row does not exist; at compile time of the plugin, since descriptors are constants.
pub const fn descriptor<D: 'static>(
    op: &'static str,
    since_version: u32,
    prepare: PrepareFn<D>,
) -> Kernel<D> {
    descriptor_of("", op, since_version, prepare)
}

/// Returns a descriptor as [`descriptor`] does, for an op of any domain.
///
/// # Panics
/// As [`descriptor`].
pub const fn descriptor_of<D: 'static>(
    domain: &'static str,
    op: &'static str,
    since_version: u32,
    prepare: PrepareFn<D>,
) -> Kernel<D> {
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        if is_equal(row.name.as_bytes(), op.as_bytes()) && is_equal(row.domain.as_bytes(), domain.as_bytes())
        {
            return row.descriptor(since_version, prepare);
        }
        i += 1;
    }
    panic!("no row of that op")
}

impl OpRow {
    /// Returns the descriptor of a kernel that takes all operands of the op: their number, which of them share an element
    /// type, and which must be known at preparation. The caller then adds their element types, in the order of the row's
    /// numbers.
    ///
    /// A kernel that takes less than the row allows declares it with [`Kernel::operands`], [`Kernel::inputs`] or
    /// [`Kernel::outputs`].
    pub const fn descriptor<D: 'static>(
        &'static self,
        since_version: u32,
        prepare: PrepareFn<D>,
    ) -> Kernel<D> {
        const fn most(n_max: Option<usize>) -> u32 {
            match n_max {
                Some(n) => n as u32,
                None => DEVBAY_VARIADIC,
            }
        }
        let (inputs, outputs) = (&self.inputs, &self.outputs);
        Kernel::new(self.name, since_version, prepare)
            .domain(self.domain)
            .operands(inputs.types(), outputs.types())
            .inputs(inputs.n_min() as u32, most(inputs.n_max()))
            .outputs(outputs.n_min() as u32, most(outputs.n_max()))
            .host_values(inputs.known())
    }
}
