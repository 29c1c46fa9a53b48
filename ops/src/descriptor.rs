//! Descriptors of kernels: what an op's row says of them.

use crate::row::OpRow;
use crate::{ROWS, is_equal};
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
use devbay_plugin_api::sdk::{Kernel, PrepareFn};

/// A kernel of ONNX's op `op` as defined in opset `since_version`: see [`OpRow::descriptor`].
///
/// # Panics
/// If there is no such row; when the plugin is compiled, as descriptors are constants.
pub const fn descriptor<D: 'static>(
    op: &'static str,
    since_version: u32,
    prepare: PrepareFn<D>,
) -> Kernel<D> {
    descriptor_of("", op, since_version, prepare)
}

/// As [`descriptor`], of an op of a domain.
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
    /// Returns the descriptor of a kernel that takes all operands of the op: how many there are, which have one element
    /// type, and which have to be known when it is prepared. Say next which element types they are, in the order of the
    /// row's numbers.
    ///
    /// A kernel that takes less than the row allows says so with [`Kernel::operands`], [`Kernel::inputs`] or [`Kernel::outputs`].
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
