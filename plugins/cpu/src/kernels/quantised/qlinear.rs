//! QLinearMatMul and QLinearConv: a product of 8-bit integers, exact in i32, then scaled, rounded and saturated.
//!
//! The product is that of MatMulInteger or ConvInteger, into the workspace: the kernels are prepared and launched
//! within these. Scales come with the launch; their quotient is made in f32, as the specification's formula and its
//! peers have it, and applied once.

use crate::device::CpuDevice;
use crate::kernels::convolution::conv_integer;
use crate::kernels::cost;
use crate::kernels::geometry::extents::extents;
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::kernels::product::int_product::SMALL;
use crate::kernels::product::matmul_integer;
use devbay_ops::descriptor;
use devbay_plugin_api::abi;
use devbay_plugin_api::sdk::*;
use std::ffi::c_void;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FACTOR: TypeVar = TypeVar::of(&[F32, F16, BF16]);
const FEW: TypeVar = TypeVar::of(SMALL);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("QLinearMatMul", 21, prepare_matmul)
        .types(&[FEW, FACTOR, FEW, FEW])
        .cost(|request| cost::per_output(request, 100)),
    descriptor("QLinearConv", 10, prepare_conv)
        .types(&[FEW, FACTOR, FEW, FEW, TypeVar::of(&[I32])])
        .cost(|request| cost::per_output(request, 100)),
];

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 16 * 1024;

// Where the operands are.
const A: usize = 0;
const A_SCALE: usize = 1;
const A_ZERO: usize = 2;
const B: usize = 3;
const B_SCALE: usize = 4;
const B_ZERO: usize = 5;
const Y_SCALE: usize = 6;
const Y_ZERO: usize = 7;
const BIAS: usize = 8;

/// Index of the scale of an element of the result: `i / inner % n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    n: usize,
    inner: usize,
}

impl Turn {
    const ONE: Self = Self { n: 1, inner: 1 };

    fn at(self, i: usize) -> usize {
        i / self.inner % self.n
    }
}

/// A product with what becomes of it.
struct QLinear {
    product: Prepared,
    host: Host,
    n: usize,
    n_inputs: usize,
    /// Where the product's own workspace begins, after the product itself.
    workspace: usize,
    turns: [Turn; 2],
    of_bias: Turn,
    scale: Kind,
    result: Kind,
}

/// Rows of the left and columns of the right may have scales of their own.
fn prepare_matmul(request: &Request<'_>) -> Result<Prepared> {
    let [a, b] = [extents(request.required_input(A)?)?, extents(request.required_input(B)?)?];
    let cols = if b.len() < 2 { 1 } else { b[b.len() - 1] };
    let rows = if a.len() < 2 { 1 } else { a[a.len() - 2] };
    let turns = [Turn { n: rows, inner: cols }, Turn { n: cols, inner: 1 }];
    prepare(request, turns, Turn::ONE, matmul_integer::prepare)
}

/// Filters may have scales of their own, and have a bias each.
fn prepare_conv(request: &Request<'_>) -> Result<Prepared> {
    let y = extents(request.required_output(0)?)?;
    let channels = Turn { n: y.get(1).copied().unwrap_or(1), inner: y.iter().skip(2).product() };
    prepare(request, [Turn::ONE, channels], channels, conv_integer::prepare)
}

fn prepare(
    request: &Request<'_>,
    several: [Turn; 2],
    of_bias: Turn,
    product: fn(&Request<'_>) -> Result<Prepared>,
) -> Result<Prepared> {
    let y = request.required_output(0)?;
    let n_scales = |i: usize| request.required_input(i).map(TensorView::n_elements);
    let turn = |i: usize, several: Turn| match n_scales(i)? {
        1 => Ok(Turn::ONE),
        n if n == several.n => Ok(several),
        n => Err(Error::unsupported(format!("{n} scales as input {i}, expected 1 or {}", several.n))),
    };
    let turns = [turn(A_SCALE, several[0])?, turn(B_SCALE, several[1])?];
    if n_scales(Y_SCALE)? != 1 || n_scales(Y_ZERO)? != 1 {
        return Err(Error::unsupported("several scales of the result, expected one"));
    }
    if let Some(bias) = request.input(BIAS)
        && bias.n_elements() != of_bias.n
    {
        return Err(Error::invalid(format!("a bias of {} for {} filters", bias.n_elements(), of_bias.n)));
    }
    let operand = |i: usize| request.required_input(i).copied();
    let mut product = product(&PrepareRequest {
        device: request.device,
        domain: request.domain,
        op: request.op,
        host: request.host,
        attrs: request.attrs.clone(),
        inputs: vec![operand(A)?, operand(B)?, operand(A_ZERO)?, operand(B_ZERO)?],
        outputs: vec![y.retyped(I32, None)],
        numerics: request.numerics,
        label: request.label,
        // Nothing comes packed: this kernel reads the operands as they are.
        abi_minor: 0,
    })?;
    product.set_operands(4, 1);
    let (size, align) = product.workspace();
    let align = align.max(64);
    let bytes = y.n_elements().checked_mul(4).and_then(|bytes| bytes.checked_next_multiple_of(align));
    let bytes = bytes.and_then(|bytes| Some((bytes, bytes.checked_add(size.max(64))?)));
    let (workspace, end) =
        bytes.ok_or_else(|| Error::out_of_memory("a product that is larger than memory"))?;
    let kernel = QLinear {
        product,
        host: request.host,
        n: y.n_elements(),
        n_inputs: request.inputs.len(),
        workspace,
        turns,
        of_bias,
        scale: Kind::of(request.required_input(A_SCALE)?.dtype())?,
        result: Kind::of(y.dtype())?,
    };
    // SAFETY: `launch` takes a `State<QLinear>`, does not unwind (a loop that cannot panic, and the launch of another
    // kernel), and uses the references of the operands and of the workspace.
    Ok(unsafe { Prepared::raw(launch, kernel) }.with_workspace(end, align))
}

/// A launch: the product, then every element of it scaled.
unsafe extern "C" fn launch(
    state: *const c_void,
    stream: *mut abi::Stream,
    refs: *const abi::BufferRef,
    _dims: *const i64,
) -> abi::Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let state = unsafe { &(*state.cast::<KernelState<QLinear>>()).kernel };
    // SAFETY: the inputs, the output and the workspace have references (B21).
    let refs = unsafe { std::slice::from_raw_parts(refs, state.n_inputs + 2) };
    let (y, workspace) = (refs[state.n_inputs], refs[state.n_inputs + 1]);
    let part = |offset: u64, length: u64| abi::BufferRef {
        addr: workspace.addr + offset,
        offset: workspace.offset + offset,
        length,
        ..workspace
    };
    let sums = part(0, 4 * state.n as u64);
    let own = part(state.workspace as u64, state.product.workspace().0 as u64);
    let inner = [refs[A], refs[B], refs[A_ZERO], refs[B_ZERO], sums, own];
    // SAFETY: the stream is this launch's, and the references are those that the product was prepared for.
    let status = unsafe { state.product.launch_within(stream, &inner[..state.product.header().n_refs()]) };
    if status != abi::DEVBAY_STATUS_OK {
        return status;
    }
    let bias = refs[..state.n_inputs].get(BIAS).map_or(0, |bias| bias.addr);
    // SAFETY: the references are those of operands that `prepare` was told of, and the product is done.
    let scaled = unsafe { state.scale_all(refs, sums.addr, bias, y.addr) };
    match scaled {
        Ok(()) => abi::DEVBAY_STATUS_OK,
        Err(error) => error.status(),
    }
}

impl QLinear {
    /// Makes results of sums.
    ///
    /// # Safety
    /// `refs` are the operands' references; there are `n` sums and results, and no bias or one for each filter.
    unsafe fn scale_all(&self, refs: &[abi::BufferRef], sums: u64, bias: u64, y: u64) -> Result<()> {
        let scale = |input: usize, i: usize| {
            let scales = refs[input].addr as *const u8;
            // SAFETY: `refs` are the operands' references (# Safety), and `prepare` has counted the scales.
            unsafe { self.scale.read(scales, i) }.to_f64() as f32
        };
        // SAFETY: `refs` are the operands' references (# Safety), and the zero point is one element.
        let zero = unsafe { self.result.read(refs[Y_ZERO].addr as *const u8, 0) }.to_f64();
        let y_scale = scale(Y_SCALE, 0);
        let (low, high) = self.result.integers().unwrap_or_default();
        let (sums, y) = (SendPtr(sums as *mut i32), SendPtr(y as *mut u8));
        let bias = SendPtr(bias as *mut i32);
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            for i in range {
                let factor =
                    scale(A_SCALE, self.turns[0].at(i)) * scale(B_SCALE, self.turns[1].at(i)) / y_scale;
                let bias = match bias.at(0).is_null() {
                    true => 0,
                    // SAFETY: there is one for each filter.
                    false => unsafe { bias.at(self.of_bias.at(i)).read() },
                };
                // SAFETY: `i` is below their number, and the product is done.
                let sum = unsafe { sums.at(i).read() }.wrapping_add(bias);
                let result = (sum as f32 * factor).round_ties_even();
                // NaN becomes the lowest.
                let result = (f64::from(result) + zero).max(low as f64).min(high as f64);
                // SAFETY: `i` is below the number of results, and chunks are apart.
                unsafe { self.result.write(y.at(0), i, Value::Float(result), Limits::DEFAULT) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};
    use devbay_plugin_api::sdk::Element;

    fn scalar<T: Element>(x: T) -> Option<Array> {
        Some(Array::of(&[], &[x]))
    }

    /// `(a - 1) b`: rows (1, 2) and (-1, 0), columns (3, 5) and (-4, 2): sums 13, 0, -3, 4.
    #[test]
    fn products_are_scaled_and_saturate() {
        let inputs = |y_scale: f32| {
            [
                Some(Array::of(&[2, 2], &[2u8, 3, 0, 1])),
                scalar(0.5f32),
                scalar(1u8),
                Some(Array::of(&[2, 2], &[3i8, -4, 5, 2])),
                Some(Array::of(&[2], &[1.0f32, 2.0])),
                Some(Array::of(&[2], &[0i8, 0])),
                scalar(y_scale),
                scalar(10u8),
            ]
        };
        let output = [Some(Array::empty::<u8>(&[2, 2]))];
        let found = run(Isa::Baseline, "QLinearMatMul", &[], &inputs(1.0), &output).expect("QLinearMatMul");
        // 6.5 and -1.5 go to the even number.
        assert_eq!(found[0].as_ref().expect("a result").elements::<u8>(), [16, 10, 8, 14]);
        let found = run(Isa::Baseline, "QLinearMatMul", &[], &inputs(0.01), &output).expect("QLinearMatMul");
        assert_eq!(found[0].as_ref().expect("a result").elements::<u8>(), [255, 10, 0, 255]);
        let mut wrong = inputs(1.0);
        wrong[4] = Some(Array::of(&[3], &[1.0f32; 3]));
        let found = run(Isa::Baseline, "QLinearMatMul", &[], &wrong, &output);
        assert!(found.is_err_and(|error| error.contains("3 scales as input 4, expected 1 or 2")));
    }

    /// Two filters of one element over two pixels, with scales and a bias of their own.
    #[test]
    fn filters_have_scales_and_biases() {
        let inputs = [
            Some(Array::of(&[1, 1, 2], &[5u8, 9])),
            scalar(1.0f32),
            scalar(4u8),
            Some(Array::of(&[2, 1, 1], &[2i8, -3])),
            Some(Array::of(&[2], &[1.0f32, 0.5])),
            Some(Array::of(&[2], &[0i8, 1])),
            scalar(2.0f32),
            scalar(-1i8),
            Some(Array::of(&[2], &[10i32, 0])),
        ];
        let output = [Some(Array::empty::<i8>(&[1, 2, 2]))];
        let found = run(Isa::Baseline, "QLinearConv", &[], &inputs, &output).expect("QLinearConv");
        // (1, 5) times 2 and 10: 12, 20; times -4: -4, -20.
        assert_eq!(found[0].as_ref().expect("a result").elements::<i8>(), [5, 9, -2, -6]);
    }
}
