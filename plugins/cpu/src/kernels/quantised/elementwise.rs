//! Elementwise ops on dequantised bytes in one pass over memory: devbay's QuantisedElementwise.
//!
//! Strips of bytes become f32 in the nearest cache, the ops run on them as those of a
//! [`FusedElementwise`](crate::kernels::elementwise::fused), and the result becomes bytes again. Every element is what
//! DequantizeLinear, the ops and QuantizeLinear one by one would have made of it, since their loops are the same.

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kernels::elementwise::fused::{Fused, INPUTS_MAX, STRIP, Slots, Strip, cost_of_steps};
use crate::kernels::geometry::shape::Rows;
use crate::kernels::quantised::scales::{Linear, dequantize_run, quantize_run};
use crate::stream::CpuStream;
use devbay_ops::descriptor_of;
use devbay_plugin_api::sdk::*;
use std::mem::MaybeUninit;

const FEW: TypeVar = TypeVar::of(&[F32, I8, U8]);

/// The kernel of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor_of("devbay", "QuantisedElementwise", 1, prepare)
    .types(&[FEW; INPUTS_MAX + 1])
    .cost(cost_of_steps)
    .doc("elementwise ops on bytes, one after the other, strip by strip")];

/// How an operand of bytes becomes f32.
struct Load {
    body: LoadFn,
    scale: f32,
    zero: u8,
}

/// How f32 becomes the result.
struct Store {
    body: unsafe fn(*const f32, *mut u8, usize, Linear, f32, f32),
    linear: Linear,
    low: f32,
    high: f32,
}

struct Quantised {
    chain: Fused,
    /// None for operands of f32.
    loads: [Option<Load>; INPUTS_MAX],
    /// None for a result of f32.
    store: Option<Store>,
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let chain = Fused::of(request)?;
    let isa = request.device.isa;
    let scales = request.attrs.floats("scales")?.unwrap_or_default();
    let zeros = request.attrs.ints("zero_points")?.unwrap_or_default();
    if scales.len() != chain.n_inputs + 1 || zeros.len() != scales.len() {
        let text = format!("{} scales and {} zero points", scales.len(), zeros.len());
        return Err(Error::invalid(format!("{text} for {} operands and a result", chain.n_inputs)));
    }
    let mut loads = [const { None }; INPUTS_MAX];
    for (i, load) in loads.iter_mut().enumerate().take(chain.n_inputs) {
        let dtype = request.required_input(i)?.dtype();
        let zero = zero_of(dtype, zeros[i])?;
        *load = load_of(isa, dtype).map(|body| Load { body, scale: scales[i], zero });
    }
    let dtype = request.required_output(0)?.dtype();
    let (scale, zero) = (scales[chain.n_inputs], zeros[chain.n_inputs]);
    zero_of(dtype, zero)?;
    let (low, high) = if dtype == I8 { (-128.0, 127.0) } else { (0.0, 255.0) };
    let linear = Linear { scale, zero: zero as f32 };
    let store = (dtype != F32).then(|| Store { body: quantize_run(isa), linear, low, high });
    Ok(Prepared::new(Quantised { chain, loads, store }))
}

/// Returns the byte of a zero point.
fn zero_of(dtype: DType, zero: i64) -> Result<u8> {
    match dtype {
        I8 => i8::try_from(zero).ok().map(|zero| zero as u8),
        U8 => u8::try_from(zero).ok(),
        _ => (zero == 0).then_some(0),
    }
    .ok_or_else(|| Error::invalid(format!("a zero point of {zero} for {dtype:?}")))
}

/// Dequantises so many bytes with a scale and a zero point.
type LoadFn = unsafe fn(*const u8, *mut f32, usize, f32, *const u8);

fn load_of(isa: Isa, dtype: DType) -> Option<LoadFn> {
    match dtype {
        I8 => Some(dequantize_run::<i8>(isa)),
        U8 => Some(dequantize_run::<u8>(isa)),
        _ => None,
    }
}

/// Memory of a chunk: that of the chain, a strip for each operand of bytes, and one for the result.
struct Memory {
    slots: Slots,
    inputs: MaybeUninit<[[f32; STRIP]; INPUTS_MAX]>,
    result: MaybeUninit<[f32; STRIP]>,
}

impl Memory {
    fn new() -> Self {
        Self { slots: Slots::uninit(), inputs: MaybeUninit::uninit(), result: MaybeUninit::uninit() }
    }
}

impl Load {
    /// Makes f32 of an operand's part of a strip, and returns the elements from one row to the next, and to the next column.
    ///
    /// # Safety
    /// From `x` on are the bytes that rows with these steps cover, `to` has room for a strip, and the instructions are the
    /// device's.
    unsafe fn run(
        &self,
        x: *const u8,
        to: *mut f32,
        steps: usize,
        inner: usize,
        n: [usize; 2],
    ) -> [usize; 2] {
        let [n_rows, n_cols] = n;
        let zero = std::ptr::from_ref(&self.zero);
        let n_each = if inner == 0 { 1 } else { n_cols };
        // Rows that are the same, or follow each other, are one.
        let (n_runs, n_run) = match steps {
            0 => (1, n_each),
            _ if steps == n_each => (1, n_rows * n_each),
            _ => (n_rows, n_each),
        };
        for row in 0..n_runs {
            // SAFETY: the row lies within the operand and within the strip (# Safety).
            unsafe { (self.body)(x.add(row * steps), to.add(row * n_each), n_run, self.scale, zero) };
        }
        [if steps == 0 { 0 } else { n_each }, inner]
    }
}

impl Launch<CpuDevice> for Quantised {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut inputs = [SendPtr(std::ptr::null_mut::<u8>()); INPUTS_MAX];
        for (i, input) in inputs.iter_mut().take(self.chain.n_inputs).enumerate() {
            *input = SendPtr(operands.input_ptr::<u8>(i).cast_mut());
        }
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.chain.each_strip(Memory::new, |memory, first, at, (rows, n_rows, n_cols)| {
            let mut starts = [std::ptr::null(); INPUTS_MAX];
            let mut walked: Rows<INPUTS_MAX> = *rows;
            for i in 0..self.chain.n_inputs {
                let Some(load) = &self.loads[i] else {
                    starts[i] = inputs[i].at(first[i] * size_of::<f32>()).cast_const().cast();
                    continue;
                };
                let to = memory.inputs.as_mut_ptr().cast::<[f32; STRIP]>().wrapping_add(i).cast::<f32>();
                let (x, n) = (inputs[i].at(first[i]).cast_const(), [n_rows, n_cols]);
                // SAFETY: the rows lie within the operand, a strip has at most `STRIP` elements, and the instructions are
                // the device's.
                let walk = unsafe { load.run(x, to, rows.steps[i], rows.inner[i], n) };
                [walked.steps[i], walked.inner[i]] = walk;
                starts[i] = to.cast_const();
            }
            let result = match &self.store {
                Some(_) => memory.result.as_mut_ptr().cast(),
                None => y.at(at * size_of::<f32>()).cast(),
            };
            let strip = Strip { inputs: starts, y: result, rows: &walked, n_rows, n_cols };
            // SAFETY: the rows lie within the operands or in the memory; chunks are apart.
            unsafe { self.chain.run(&strip, &mut memory.slots) };
            if let Some(Store { body, linear, low, high }) = &self.store {
                // SAFETY: the result has the strip's elements, which the chain wrote, and so has `y`; chunks are apart.
                unsafe { body(result.cast_const(), y.at(at), n_rows * n_cols, *linear, *low, *high) };
            }
        })
    }
}
