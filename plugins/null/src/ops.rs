//! The ops that the device takes: all that devbay's table has kernels run, each in the version that programs hold.

use crate::NullDevice;
use crate::kernel::{prepare, prepare_extents};
use devbay_ops::{DEVBAY, ONNX, OpKind, OpRow};
use devbay_plugin_api::abi::{DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_VARIADIC};
use devbay_plugin_api::sdk::*;

/// Every dtype that the ABI has, complex numbers left out: ONNX's ops have none.
const DTYPES: &[DType] = &[
    F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, I4, U4, I2, U2, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, F8E8M0, F4E2M1,
];

/// Operands of one kind whose types do not depend on each other; those after them have the last one's.
const N_FREE: usize = 16;
/// A variable for each of them, inputs first.
const TYPEVARS: &[TypeVar] = &[TypeVar::of(DTYPES); 2 * N_FREE];
const INPUTS: &[u8] = &numbers::<N_FREE>(0);
const OUTPUTS: &[u8] = &numbers::<N_FREE>(N_FREE as u8);

const fn numbers<const N: usize>(first: u8) -> [u8; N] {
    let mut all = [0; N];
    let mut i = 0;
    while i < N {
        all[i] = first + i as u8;
        i += 1;
    }
    all
}

/// A kernel of any number of operands of any types. It is not DETERMINISTIC: what its outputs hold is what was there.
const fn kernel(
    op: &'static str,
    version: u32,
    prepare: fn(&PrepareRequest<'_, NullDevice>) -> Result<Prepared>,
) -> Kernel<NullDevice> {
    Kernel::new(op, version, prepare)
        .types(TYPEVARS)
        .operands(INPUTS, OUTPUTS)
        .inputs(0, DEVBAY_VARIADIC)
        .outputs(0, DEVBAY_VARIADIC)
        .flags(0)
        .doc("takes everything, computes nothing")
}

/// The kernel of an op: its results are left as they are, or, where the data say how large they are, empty.
const fn of_row(row: &'static OpRow) -> Kernel<NullDevice> {
    if row.has_data_shape {
        return kernel(row.name, row.version, prepare_extents)
            .domain(row.domain)
            .flags(DEVBAY_KERNEL_DATA_SHAPE);
    }
    kernel(row.name, row.version, prepare).domain(row.domain)
}

/// How many of some rows are run by kernels.
const fn n_kernels(rows: &[OpRow]) -> usize {
    let (mut n, mut i) = (0, 0);
    while i < rows.len() {
        n += matches!(rows[i].kind, OpKind::Kernel) as usize;
        i += 1;
    }
    n
}

const N_KERNELS: usize = n_kernels(ONNX) + n_kernels(DEVBAY);

/// The kernels, sorted by domain and name.
pub static KERNELS: [Kernel<NullDevice>; N_KERNELS] = {
    let mut all = [of_row(&ONNX[0]); N_KERNELS];
    let (mut at, mut i) = (0, 0);
    while i < ONNX.len() + DEVBAY.len() {
        let row = if i < ONNX.len() { &ONNX[i] } else { &DEVBAY[i - ONNX.len()] };
        if matches!(row.kind, OpKind::Kernel) {
            all[at] = of_row(row);
            at += 1;
        }
        i += 1;
    }
    all
};
