//! QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: between f32 and 8-bit integers.
//!
//! Numbers are rounded half to even and saturate, as the specification has it, with the same divisions
//! and additions on every instruction set, so that all give the same bits.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, expect_output, extents};
use crate::kernels::product::int_product::SMALL;
use crate::lanes::{Lanes, read, unrolled};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

const NUMBER: TypeVar = TypeVar::of(&[F32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    Kernel::new("QuantizeLinear", 13, quantize)
        .types(&[NUMBER, TypeVar::of(SMALL)])
        .operands(&[0, 0, 1], &[1])
        .inputs(2, 3)
        .cost(cost)
        .doc("per tensor or per axis"),
    Kernel::new("DequantizeLinear", 13, dequantize)
        .types(&[TypeVar::of(&[U8, I8, I32]), NUMBER])
        .operands(&[0, 1, 0], &[1])
        .inputs(2, 3)
        .cost(cost)
        .doc("per tensor or per axis"),
    Kernel::new("DynamicQuantizeLinear", 11, dynamic)
        .types(&[NUMBER, TypeVar::of(&[U8])])
        .operands(&[0], &[1, 0, 1])
        .cost(cost)
        .doc("to u8, with scale and zero point from the extremes"),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n = request.required_input(0)?.n_elements() as u64;
    Ok(cost::of(request, 4 * n))
}

/// Elements of a chunk.
const GRAIN: usize = 32 * 1024;

/// The nearest integer, the even one of two, of a number whose magnitude is below 2^22; also without
/// SSE4.1. Adding 1.5 * 2^23 leaves no bits for a fraction, and the processor rounds them away.
#[inline(always)]
fn round_half_even(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// Scale and zero point of a run of elements.
#[derive(Clone, Copy)]
pub(super) struct Linear {
    pub scale: f32,
    pub zero: f32,
}

/// An integer that can be dequantised.
pub(super) trait Quantised: Element + Default {
    /// Its value less a zero point, as f32.
    fn less(self, zero: Self) -> f32;
}

macro_rules! quantised {
    ($($type:ty)*) => {$(
        impl Quantised for $type {
            #[inline(always)]
            fn less(self, zero: Self) -> f32 {
                i32::from(self).wrapping_sub(i32::from(zero)) as f32
            }
        }
    )*};
}
quantised! { u8 i8 i32 }

/// # Safety
/// `x` and `y` hold `n` elements, and the processor has the instructions.
#[inline(always)]
unsafe fn quantize_body<A: Arith>(x: *const f32, y: *mut u8, n: usize, linear: Linear, low: f32, high: f32) {
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        let x = unsafe { x.add(i).read() } / linear.scale;
        // Far beyond the saturated numbers, within those that can be rounded; NaN becomes the lowest.
        let x = if x > -65536.0 { x } else { -65536.0 };
        let x = if x < 65536.0 { x } else { 65536.0 };
        let q = round_half_even(x) + linear.zero;
        let q = if q > low { q } else { low };
        let q = if q < high { q } else { high };
        // SAFETY: `q` is an integer between -128 and 255.
        let q = unsafe { q.to_int_unchecked::<i32>() };
        // SAFETY: `i` is below `n`, which `y` holds. The low byte is that of u8 and of i8.
        unsafe { y.add(i).write(q as u8) };
    }
}

dispatch! {
    pub(super) fn quantize_run(x: *const f32, y: *mut u8, n: usize, linear: Linear, low: f32, high: f32)
        = quantize_body
}

/// # Safety
/// `x` and `y` hold `n` elements, and the processor has the instructions.
#[inline(always)]
unsafe fn dequantize_body<A: Arith, T: Quantised>(
    x: *const u8,
    y: *mut f32,
    n: usize,
    scale: f32,
    zero: *const u8,
) {
    let x = x.cast::<T>();
    let zero = match zero.is_null() {
        true => T::default(),
        // SAFETY: the caller names a zero point.
        false => unsafe { zero.cast::<T>().read() },
    };
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        let x = unsafe { x.add(i).read() };
        // SAFETY: `i` is below `n`, which `y` holds.
        unsafe { y.add(i).write(x.less(zero) * scale) };
    }
}

dispatch! {
    pub(super) fn dequantize_run<T: Quantised>(
        x: *const u8, y: *mut f32, n: usize, scale: f32, zero: *const u8
    ) = dequantize_body
}

/// The same with a scale, and a zero point unless `zeros` is NULL, for each element.
///
/// # Safety
/// `x`, `y`, `scales` and `zeros` hold `n` elements, and the processor has the instructions.
#[inline(always)]
unsafe fn dequantize_each_body<A: Arith, T: Quantised>(
    x: *const u8,
    y: *mut f32,
    n: usize,
    scales: *const f32,
    zeros: *const u8,
) {
    let (x, zeros) = (x.cast::<T>(), zeros.cast::<T>());
    let has_zeros = !zeros.is_null();
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        let (x, scale) = unsafe { (x.add(i).read(), scales.add(i).read()) };
        // SAFETY: `i` is below `n`.
        let zero = if has_zeros { unsafe { zeros.add(i).read() } } else { T::default() };
        // SAFETY: `i` is below `n`, which `y` holds.
        unsafe { y.add(i).write(x.less(zero) * scale) };
    }
}

dispatch! {
    fn dequantize_each<T: Quantised>(
        x: *const u8, y: *mut f32, n: usize, scales: *const f32, zeros: *const u8
    ) = dequantize_each_body
}

/// Returns whether it is one number: a scalar, or a vector of one, which exporters write in each other's place.
pub(crate) fn is_one(shape: &[usize]) -> bool {
    matches!(shape, [] | [1])
}

/// Refuses zero points that are not one for each scale.
pub(crate) fn zeros_for(zeros: &[usize], scales: &[usize]) -> Result<()> {
    if zeros == scales || (is_one(zeros) && is_one(scales)) {
        return Ok(());
    }
    Err(Error::invalid(format!("zero points of {zeros:?} for scales of {scales:?}")))
}

/// Elements in runs that share a scale and a zero point.
struct Runs {
    host: Host,
    n: usize,
    /// Elements of a run.
    run: usize,
    /// Scales, which runs take in turn.
    n_scales: usize,
}

impl Runs {
    fn new(request: &PrepareRequest<'_, CpuDevice>) -> Result<Self> {
        let x = extents(request.required_input(0)?)?;
        expect_output(request, 0, &x)?;
        let scale = extents(request.required_input(1)?)?;
        if let Some(zeros) = request.input(2) {
            zeros_for(&extents(zeros)?, &scale)?;
        }
        let n: usize = x.iter().product();
        let host = request.host;
        match scale[..] {
            [] | [1] => Ok(Self { host, n, run: n.max(1), n_scales: 1 }),
            [n_scales] => {
                let axis = axis(request.attrs.int("axis", 1)?, x.len())?;
                if x[axis] != n_scales {
                    return Err(Error::invalid(format!("{n_scales} scales for axis {axis} of {x:?}")));
                }
                Ok(Self { host, n, run: x[axis + 1..].iter().product(), n_scales })
            }
            _ => Err(Error::unsupported(format!(
                "scales of {scale:?}, expected one, or one for each position of an axis"
            ))),
        }
    }

    /// Calls `body(first element, elements, scale)` for each run and part of one, in parallel.
    fn each(&self, body: impl Fn(usize, usize, usize) + Sync) -> Result<()> {
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min((at / self.run + 1) * self.run);
                body(at, end - at, at / self.run % self.n_scales);
                at = end;
            }
            Ok(())
        })
    }
}

struct Quantize {
    runs: Runs,
    signed: bool,
    has_zeros: bool,
    body: unsafe fn(*const f32, *mut u8, usize, Linear, f32, f32),
}

fn quantize(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let output = request.required_output(0)?.dtype();
    let has_zeros = request.input(2).is_some();
    Ok(Prepared::new(Quantize {
        runs: Runs::new(request)?,
        signed: output == I8,
        has_zeros,
        body: quantize_run(request.device.isa),
    }))
}

impl Launch<CpuDevice> for Quantize {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let scales = SendPtr(operands.input_ptr::<f32>(1).cast_mut());
        let zeros = SendPtr(match self.has_zeros {
            true => operands.input_ptr::<u8>(2).cast_mut(),
            false => core::ptr::null_mut(),
        });
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let (low, high) = if self.signed { (-128.0, 127.0) } else { (0.0, 255.0) };
        self.runs.each(|at, n, i| {
            let zero = match (self.has_zeros, self.signed) {
                (false, _) => 0.0,
                // SAFETY: there are as many zero points as scales, and `i` is below their number.
                (_, true) => f32::from(unsafe { zeros.at(i).read() } as i8),
                // SAFETY: there are as many zero points as scales, and `i` is below their number.
                (_, false) => f32::from(unsafe { zeros.at(i).read() }),
            };
            // SAFETY: `i` is below the number of scales.
            let scale = unsafe { scales.at(i).read() };
            let linear = Linear { scale, zero };
            // SAFETY: the run lies within both operands, and the instructions are the device's.
            unsafe { (self.body)(x.at(at), y.at(at), n, linear, low, high) };
        })
    }
}

struct Dequantize {
    runs: Runs,
    /// Bytes of an element of the input.
    size: usize,
    has_zeros: bool,
    body: unsafe fn(*const u8, *mut f32, usize, f32, *const u8),
    each: unsafe fn(*const u8, *mut f32, usize, *const f32, *const u8),
}

fn dequantize(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let isa = request.device.isa;
    let dtype = request.required_input(0)?.dtype();
    Ok(Prepared::new(Dequantize {
        runs: Runs::new(request)?,
        size: if dtype == I32 { 4 } else { 1 },
        has_zeros: request.input(2).is_some(),
        body: match dtype {
            U8 => dequantize_run::<u8>(isa),
            I8 => dequantize_run::<i8>(isa),
            _ => dequantize_run::<i32>(isa),
        },
        each: match dtype {
            U8 => dequantize_each::<u8>(isa),
            I8 => dequantize_each::<i8>(isa),
            _ => dequantize_each::<i32>(isa),
        },
    }))
}

impl Launch<CpuDevice> for Dequantize {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let scales = SendPtr(operands.input_ptr::<f32>(1).cast_mut());
        let zeros = SendPtr(match self.has_zeros {
            true => operands.input_ptr::<u8>(2).cast_mut(),
            false => core::ptr::null_mut(),
        });
        let y = SendPtr(operands.output_ptr::<f32>(0));
        let zeros_at =
            |i: usize| if self.has_zeros { zeros.at(i * self.size) } else { core::ptr::null_mut() };
        if self.runs.run == 1 {
            // Scales of the last axis: runs of one element are lines of all scales.
            let lines = Runs { run: self.runs.n_scales, ..self.runs };
            return lines.each(|at, n, _| {
                let first = at % lines.run;
                // SAFETY: the line lies within both operands, there are as many scales from there and as many zero points, and
                // the instructions are the device's.
                unsafe {
                    (self.each)(x.at(at * self.size), y.at(at), n, scales.at(first), zeros_at(first));
                }
            });
        }
        self.runs.each(|at, n, i| {
            // SAFETY: `i` is below the number of scales.
            let scale = unsafe { scales.at(i).read() };
            let zero = zeros_at(i);
            // SAFETY: the run lies within both operands, there are as many zero points as scales, and
            // the instructions are the device's.
            unsafe { (self.body)(x.at(at * self.size), y.at(at), n, scale, zero) };
        })
    }
}

/// The lowest and the highest number, and 0. What is no number counts for nothing.
///
/// # Safety
/// `x` holds `n` elements, `extremes` two, and the processor has the instructions.
#[inline(always)]
unsafe fn extremes_body<A: Arith>(x: *const f32, n: usize, extremes: *mut f32) {
    // Several, so that one comparison need not wait for the one before.
    const CHAINS: usize = 4;
    let width = A::Lanes::N;
    // SAFETY: the processor has the instructions (# Safety).
    let zero = unsafe { A::Lanes::splat(0.0) };
    let (mut low, mut high) = ([zero; CHAINS], [zero; CHAINS]);
    let mut i = 0;
    while i + CHAINS * width <= n {
        unrolled!(chain below CHAINS {
            // SAFETY: there are as many elements from `i` on.
            let x = unsafe { A::Lanes::load(x.wrapping_add(i + chain * width)) };
            low[chain] = low[chain].at_most(x);
            high[chain] = high[chain].at_least(x);
        });
        i += CHAINS * width;
    }
    while i < n {
        // SAFETY: there are as many elements from `i` on; the vector is filled up with 0.
        let x: A::Lanes = unsafe { read(x.wrapping_add(i), width.min(n - i)) };
        low[0] = low[0].at_most(x);
        high[0] = high[0].at_least(x);
        i += width;
    }
    let mut all = [[0.0f32; 16]; 2];
    unrolled!(chain below CHAINS {
        low[0] = low[0].at_most(low[chain]);
        high[0] = high[0].at_least(high[chain]);
    });
    // SAFETY: 16 numbers are enough.
    unsafe { low[0].store(all[0].as_mut_ptr()) };
    // SAFETY: 16 numbers are enough.
    unsafe { high[0].store(all[1].as_mut_ptr()) };
    let [low, high] = [all[0].into_iter().fold(0.0, f32::min), all[1].into_iter().fold(0.0, f32::max)];
    // SAFETY: `extremes` holds two numbers (# Safety).
    unsafe { extremes.write(low) };
    // SAFETY: `extremes` holds two numbers (# Safety).
    unsafe { extremes.add(1).write(high) };
}

dispatch! { fn extremes_run(x: *const f32, n: usize, extremes: *mut f32) = extremes_body }

struct Dynamic {
    host: Host,
    n: usize,
    extremes: unsafe fn(*const f32, usize, *mut f32),
    body: unsafe fn(*const f32, *mut u8, usize, Linear, f32, f32),
}

fn dynamic(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let x = extents(request.required_input(0)?)?;
    expect_output(request, 0, &x)?;
    let n: usize = x.iter().product();
    let kernel = Dynamic {
        host: request.host,
        n,
        extremes: extremes_run(request.device.isa),
        body: quantize_run(request.device.isa),
    };
    // Two extremes for each chunk.
    Prepared::new(kernel).with_room(Size::of(n.div_ceil(GRAIN)) * (2 * size_of::<f32>()), 64)
}

impl Launch<CpuDevice> for Dynamic {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let (mut low, mut high) = (0.0f32, 0.0f32);
        if self.n > 0 {
            let extremes = SendPtr(operands.workspace_ptr::<f32>());
            self.host.parallel_for(self.n, GRAIN, |range, _| {
                let chunk = range.start / GRAIN;
                // SAFETY: the range lies within the input, each chunk has two places of its own, and
                // the instructions are the device's.
                unsafe { (self.extremes)(x.at(range.start), range.len(), extremes.at(2 * chunk)) };
                Ok(())
            })?;
            for chunk in 0..self.n.div_ceil(GRAIN) {
                // SAFETY: every chunk wrote its two places.
                low = low.min(unsafe { extremes.at(2 * chunk).read() });
                // SAFETY: every chunk wrote its two places.
                high = high.max(unsafe { extremes.at(2 * chunk + 1).read() });
            }
        }
        // A tensor of zeros has no extent; any scale but 0 gives zeros back.
        let extent = if low == high { 1.0 } else { high - low };
        let scale = extent / 255.0;
        let zero = round_half_even((0.0 - low / scale).clamp(0.0, 255.0));
        let linear = Linear { scale, zero };
        // SAFETY: the host lends one element.
        unsafe { operands.output_ptr::<f32>(1).write(scale) };
        // SAFETY: the host lends one element of this output, too.
        unsafe { operands.output_ptr::<u8>(2).write(zero as u8) };
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            let at = range.start;
            // SAFETY: the range lies within both operands, and the instructions are the device's.
            unsafe { (self.body)(x.at(at), y.at(at), range.len(), linear, 0.0, 255.0) };
            Ok(())
        })
    }
}
