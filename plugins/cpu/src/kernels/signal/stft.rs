//! STFT and DFT: Fourier transforms of frames of a signal, or along an axis.
//!
//! As many signals as a vector has lanes are transformed at once ([`crate::kernels::signal::fft`]). A real signal of even
//! length is taken as a complex one of half the length, its even elements real and its odd ones
//! imaginary, and the spectrum put together afterwards. The inverse transform is the forward one of the
//! conjugate.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Single};
use crate::kernels::cost;
use crate::kernels::geometry::extents::expect_output;
use crate::kernels::signal::fft::{Complex, Plan, Rounding};
use crate::lanes::Lanes;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::{self, Signal};
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

const NUMBER: TypeVar = TypeVar::of(&[F32]);
const LENGTH: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("STFT", 17, |request| prepare(request, Op::Stft))
        .types(&[NUMBER, LENGTH])
        .cost(|request| cost(request, Op::Stft))
        .doc("spectra of frames, real or complex signals of any length"),
    Kernel::new("DFT", 17, |request| prepare(request, Op::Dft17))
        .types(&[NUMBER, LENGTH])
        .operands(&[0, 1], &[0])
        .inputs(1, 2)
        .host_values(0b10)
        .cost(|request| cost(request, Op::Dft17)),
    descriptor("DFT", 20, |request| prepare(request, Op::Dft20))
        // The length has a type of its own; the axis is i64.
        .types(&[NUMBER, LENGTH, TypeVar::of(&[I64])])
        .cost(|request| cost(request, Op::Dft20)),
];

/// Floating-point operations of a chunk.
const GRAIN: usize = 512 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Stft,
    Dft17,
    Dft20,
}

/// Layout of signals and spectra: signal `i` begins at `i / per * outer + i % per * inner`, and its
/// elements are `step` apart.
#[derive(Clone, Copy, Debug)]
struct Layout {
    per: usize,
    outer: usize,
    inner: usize,
    step: usize,
}

impl Layout {
    fn begin(&self, signal: usize) -> usize {
        signal / self.per * self.outer + signal % self.per * self.inner
    }
}

/// Shape of the transforms.
struct Shape {
    /// Length of a transform.
    n: usize,
    signals: usize,
    kind: Signal,
    /// Elements that a signal has; zeros follow.
    samples: usize,
    /// Elements that a spectrum has.
    bins: usize,
    inverse: bool,
    from: Layout,
    to: Layout,
    /// Numbers of an element of the output: 1 or 2.
    parts: usize,
    output: Vec<usize>,
    rounding: Rounding,
}

impl Shape {
    fn of(request: &PrepareRequest<'_, CpuDevice>, op: Op) -> Result<Self> {
        let read = match op {
            Op::Stft => read::Spectra::of_stft(request),
            Op::Dft17 => read::Spectra::of_dft_17(request),
            Op::Dft20 => read::Spectra::of_dft_20(request),
        }?;
        let extent = |extent: i64| usize::try_from(extent).unwrap_or(usize::MAX);
        let layout = |layout: &read::Layout| Layout {
            per: extent(layout.per),
            outer: extent(layout.outer),
            inner: extent(layout.inner),
            step: extent(layout.step),
        };
        Ok(Self {
            n: extent(read.n),
            signals: extent(read.signals),
            kind: read.signal,
            samples: extent(read.samples),
            bins: extent(read.bins),
            inverse: read.inverse,
            from: layout(&read.from),
            to: layout(&read.to),
            parts: extent(read.parts),
            output: read.output.iter().copied().map(extent).collect(),
            rounding: match op {
                Op::Stft => request.device.dft,
                // No program relies on numbers of its own: ONNX's tests ask for what the formula gives.
                _ => Rounding::Exact,
            },
        })
    }

    /// Returns whether a signal is packed into a complex one of half its length.
    fn is_packed(&self) -> bool {
        let halves = match self.rounding {
            Rounding::Exact => self.n.is_multiple_of(2),
            Rounding::Onnxruntime => self.n.is_power_of_two() && self.n > 1,
        };
        self.kind == Signal::Real && halves && !self.inverse
    }

    /// Elements of the transform.
    fn plan_len(&self) -> usize {
        if self.is_packed() { self.n / 2 } else { self.n }
    }
}

fn cost(request: &PrepareRequest<'_, CpuDevice>, op: Op) -> Result<Cost> {
    let shape = Shape::of(request, op)?;
    // Refused before any table is made for a length that no operand has.
    expect_output(request, 0, &shape.output)?;
    let per_signal = Plan::flops(shape.plan_len(), shape.rounding).saturating_add(8 * shape.bins as u64);
    let flops = (shape.signals as u64).saturating_mul(per_signal);
    Ok(cost::of(request, flops))
}

struct Spectra {
    host: Host,
    shape: Shape,
    plan: Plan,
    /// Roots of unity of the whole length, for spectra that are put together.
    roots: Vec<[f32; 2]>,
    has_window: bool,
    /// Signals that are transformed at once, and numbers of a slot's two buffers.
    lanes: usize,
    slot_scratch: usize,
    grain: usize,
    transform: unsafe fn(&Spectra, &Group) -> Result<()>,
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>, op: Op) -> Result<Prepared> {
    let shape = Shape::of(request, op)?;
    expect_output(request, 0, &shape.output)?;
    let mut pace = request.host.pace();
    let plan = Plan::new(shape.plan_len(), shape.rounding, &mut |n| pace.work(n))?;
    // A spectrum that was put together has one element more than the packed signal.
    let scratch_of = |lanes: usize| (Size::of(plan.buffer_len()) + 1) * (4 * lanes);
    // One signal does not fill vectors; and vectors that no cache holds wait for memory as long as numbers do.
    let all_lanes = request.device.isa.lanes();
    let is_single = shape.signals <= 1 || scratch_of(all_lanes).saturated() > SCRATCH_MAX;
    let lanes = if is_single { 1 } else { all_lanes };
    let slot_scratch = scratch_of(lanes);
    let angle = |k: usize| -2.0 * core::f64::consts::PI * k as f64 / shape.n as f64;
    let roots = match shape.is_packed() {
        true => {
            let roots = (0..=shape.n / 2).map(|k| [angle(k).cos() as f32, angle(k).sin() as f32]);
            reserve::collected(roots, "the factors of a Fourier transform")?
        }
        false => Vec::new(),
    };
    let flops = (Size::of(Plan::flops(plan.len(), shape.rounding) as usize) + 8 * shape.n) * lanes;
    let grain = (GRAIN / flops.saturated()).max(1);
    let kernel = Spectra {
        host: request.host,
        plan,
        roots,
        has_window: op == Op::Stft && request.input(2).is_some(),
        lanes,
        slot_scratch: slot_scratch.get("the buffers of a Fourier transform")?,
        grain,
        transform: if is_single { transform_single } else { transform }(request.device.isa),
        shape,
    };
    // One chunk is run by one thread.
    let slots = if kernel.shape.signals.div_ceil(lanes) <= grain { 1 } else { request.host.n_slots() };
    Prepared::new(kernel).with_room(slot_scratch * (slots * size_of::<f32>()), 64)
}

/// Signals that are transformed at once.
struct Group {
    first: usize,
    n: usize,
    x: *const f32,
    window: Option<*const f32>,
    y: *mut f32,
    scratch: *mut f32,
}

impl Launch<CpuDevice> for Spectra {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let window = SendPtr(match self.has_window {
            true => operands.input_ptr::<f32>(2).cast_mut(),
            false => core::ptr::null_mut(),
        });
        let y = SendPtr(operands.output_ptr::<f32>(0));
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let n_groups = self.shape.signals.div_ceil(self.lanes);
        self.host.parallel_for(n_groups, self.grain, |range, slot| {
            for group in range {
                let first = group * self.lanes;
                let group = Group {
                    first,
                    n: self.lanes.min(self.shape.signals - first),
                    x: x.at(0),
                    window: self.has_window.then(|| window.at(0).cast_const()),
                    y: y.at(0),
                    scratch: workspace.at(slot * self.slot_scratch),
                };
                // SAFETY: the operands are those that `prepare` was told, the scratch is this slot's
                // own, no other chunk has these signals, and the instructions are the device's.
                unsafe { (self.transform)(self, &group) }?;
            }
            Ok(())
        })
    }
}

/// Numbers of a thread's scratch from which on signals are transformed one by one.
const SCRATCH_MAX: usize = 1 << 23;

dispatch! { fn transform(spectra: &Spectra, group: &Group) -> Result<()> = transform_body }
dispatch! { fn transform_single(spectra: &Spectra, group: &Group) -> Result<()> = transform_single_body }

/// # Safety
/// As [`transform_body`], with scratch for one lane.
#[inline(always)]
unsafe fn transform_single_body<A: Arith>(spectra: &Spectra, group: &Group) -> Result<()> {
    // SAFETY: operands, scratch and outputs are the group's own, and the instructions are there (# Safety).
    unsafe { transform_body::<Single<A>>(spectra, group) }
}

/// # Safety
/// The group's operands belong to a launch, no other code uses its scratch and outputs, and the processor has the
/// instructions.
#[inline(always)]
unsafe fn transform_body<A: Arith>(spectra: &Spectra, group: &Group) -> Result<()> {
    let shape = &spectra.shape;
    let other = group.scratch.wrapping_add(spectra.slot_scratch / 2);
    // SAFETY: operands and scratch are the group's own, and the instructions are there (# Safety).
    unsafe { load::<A>(spectra, group) };
    let mut pace = spectra.host.pace();
    // SAFETY: both halves of the scratch hold the plan's elements.
    let ran = unsafe { spectra.plan.run::<A>(group.scratch, other, &mut |n| pace.work(n)) };
    let (mut found, free) = ran?;
    if shape.is_packed() {
        // SAFETY: the two buffers hold the plan's elements, with room for one more.
        unsafe { unpack::<A>(spectra, found, free) };
        found = free;
    }
    let n = A::Lanes::N;
    // The spectrum of a real signal is there up to its middle; the rest is the conjugate.
    let there = match shape.kind {
        Signal::Real if !shape.inverse => shape.n / 2 + 1,
        _ => shape.n,
    };
    let scale = if shape.inverse { 1.0 / shape.n as f32 } else { 1.0 };
    for lane in 0..group.n {
        let to = group.y.wrapping_add(shape.to.begin(group.first + lane));
        let element = |k: usize| {
            let at = found.wrapping_add(k * 2 * n + lane);
            // SAFETY: the buffer has that element.
            unsafe { [at.read(), at.wrapping_add(n).read()] }
        };
        let write = |k: usize, [re, im]: [f32; 2]| {
            let to = to.wrapping_add(k * shape.to.step);
            // SAFETY: the spectrum has that element, of one part or two.
            unsafe { to.write(re) };
            if shape.parts == 2 {
                // SAFETY: the second part of that element.
                unsafe { to.wrapping_add(1).write(im) };
            }
        };
        // The first bin is the sum of all samples.
        if !element(0).iter().all(|part| part.is_finite()) {
            // SAFETY: operands and scratch are the group's own (# Safety).
            let is_written = unsafe { spectra.infinite(group, lane, &write) }?;
            if is_written {
                continue;
            }
        }
        if shape.inverse {
            for k in 0..shape.bins {
                let [re, im] = element(k);
                write(k, [re * scale, -im * scale]);
            }
            continue;
        }
        for k in 0..there.min(shape.bins) {
            write(k, element(k));
        }
        for k in there..shape.bins {
            let [re, im] = element(shape.n - k);
            write(k, [re, -im]);
        }
    }
    Ok(())
}

impl Spectra {
    /// Writes the spectrum of a signal with samples that are infinite or no numbers, as the formula has it; gives false if
    /// there are none. A fast transform subtracts sums that the formula keeps apart, and makes NaN of most bins.
    ///
    /// Only such samples decide: all others leave an infinite sum as it is. And of their factors only the signs do, so
    /// those are exact. Most sums end early, as what is no number stays so.
    ///
    /// # Safety
    /// As [`transform_body`].
    unsafe fn infinite(&self, group: &Group, lane: usize, write: &dyn Fn(usize, [f32; 2])) -> Result<bool> {
        let shape = &self.shape;
        let mut samples = Vec::new();
        for i in 0..shape.n {
            // SAFETY: operands are the group's own (# Safety), and `i` is below the transform's length.
            let sample = unsafe { self.sample(group, lane, i) };
            if !sample.iter().all(|part| part.is_finite()) {
                reserve::push(&mut samples, (i, sample), "the infinite samples of a signal")?;
            }
        }
        if samples.is_empty() {
            return Ok(false);
        }
        let mut pace = self.host.pace();
        for k in 0..shape.bins {
            let (mut re, mut im, mut n_terms) = (0.0, 0.0, 0);
            for &(i, [a, b]) in &samples {
                let [cos, sin] = quarter_signs(i as u128 * k as u128 % shape.n as u128, shape.n as u128);
                let sin = if shape.inverse { sin } else { -sin };
                re += a * cos - b * sin;
                im += a * sin + b * cos;
                n_terms += 1;
                if re.is_nan() && im.is_nan() {
                    break;
                }
            }
            pace.work(n_terms)?;
            write(k, [re, im]);
        }
        Ok(true)
    }

    /// A sample in the formula: its parts, with the window's weight.
    ///
    /// # Safety
    /// As [`transform_body`], for a sample of the transform's length.
    unsafe fn sample(&self, group: &Group, lane: usize, i: usize) -> [f32; 2] {
        let shape = &self.shape;
        let (place, sign) = match shape.kind {
            Signal::Half if i > shape.n / 2 => (shape.n - i, -1.0),
            _ => (i, 1.0),
        };
        if place >= shape.samples {
            return [0.0; 2];
        }
        let at = group.x.wrapping_add(shape.from.begin(group.first + lane) + place * shape.from.step);
        // SAFETY: the window is as long as a frame.
        let weight = group.window.map_or(1.0, |window| unsafe { window.wrapping_add(i).read() });
        // SAFETY: the signal has that sample.
        let re = unsafe { at.read() } * weight;
        match shape.kind {
            Signal::Real => [re, 0.0],
            // SAFETY: the signal has that sample, of two parts.
            _ => [re, sign * unsafe { at.wrapping_add(1).read() } * weight],
        }
    }
}

/// The signs of the cosine and the sine of `at / n` turns: -1, 0 or 1.
fn quarter_signs(at: u128, n: u128) -> [f32; 2] {
    let sign = |is_zero: bool, is_positive: bool| match (is_zero, is_positive) {
        (true, _) => 0.0,
        (_, true) => 1.0,
        _ => -1.0,
    };
    let (fours, twos) = (4 * at, 2 * at);
    [sign(fours == n || fours == 3 * n, fours < n || fours > 3 * n), sign(at == 0 || twos == n, twos < n)]
}

/// Brings the signals into the first buffer, each to its lane.
///
/// # Safety
/// As [`transform_body`].
#[inline(always)]
unsafe fn load<A: Arith>(spectra: &Spectra, group: &Group) {
    let (shape, n) = (&spectra.shape, A::Lanes::N);
    let step = shape.from.step;
    for lane in 0..group.n {
        let x = group.x.wrapping_add(shape.from.begin(group.first + lane));
        let to = group.scratch.wrapping_add(lane);
        // The number at `at`, if sample `i` is there.
        let number = |i: usize, at: usize| match i < shape.samples {
            // SAFETY: the signal has that sample.
            true => unsafe { x.wrapping_add(at).read() },
            false => 0.0,
        };
        let weight = |i: usize| match group.window {
            // SAFETY: the window is as long as a frame.
            Some(window) => unsafe { window.wrapping_add(i).read() },
            None => 1.0,
        };
        let write = |i: usize, re: f32, im: f32| {
            let at = to.wrapping_add(i * 2 * n);
            // SAFETY: the buffer has that element.
            unsafe { at.write(re) };
            // SAFETY: the other half of that element.
            unsafe { at.wrapping_add(n).write(im) };
        };
        // The inverse is the forward transform of the conjugate.
        let sign = if shape.inverse { -1.0 } else { 1.0 };
        match shape.kind {
            Signal::Real if shape.is_packed() => {
                for i in 0..shape.n / 2 {
                    let (even, odd) = (2 * i, 2 * i + 1);
                    write(i, number(even, even * step) * weight(even), number(odd, odd * step) * weight(odd));
                }
            }
            Signal::Real => {
                for i in 0..shape.n {
                    write(i, number(i, i * step) * weight(i), 0.0);
                }
            }
            Signal::Complex => {
                for i in 0..shape.n {
                    let (re, im) = (number(i, i * step), number(i, i * step + 1));
                    write(i, re * weight(i), sign * im * weight(i));
                }
            }
            Signal::Half => {
                for i in 0..shape.n {
                    let (k, sign) = match i <= shape.n / 2 {
                        true => (i, -1.0),
                        false => (shape.n - i, 1.0),
                    };
                    write(i, number(k, k * step), sign * number(k, k * step + 1));
                }
            }
        }
    }
}

/// Puts the spectra of packed signals together.
///
/// # Safety
/// As [`transform_body`]; `from` and `to` are the two buffers.
#[inline(always)]
unsafe fn unpack<A: Arith>(spectra: &Spectra, from: *const f32, to: *mut f32) {
    let n = spectra.plan.len();
    // SAFETY: the processor has the instructions (# Safety).
    let half = unsafe { A::Lanes::splat(0.5) };
    for (k, &root) in spectra.roots.iter().enumerate() {
        // SAFETY: the buffer has `n` elements.
        let a: Complex<A::Lanes> = unsafe { Complex::load(from, k % n) };
        // SAFETY: `(n - k) % n` is below `n`, which the buffer has.
        let b: Complex<A::Lanes> = unsafe { Complex::load(from, (n - k) % n) };
        // SAFETY: the processor has the instructions (# Safety).
        let root = unsafe { Complex::splat(root) };
        // The spectrum of the even elements, and that of the odd ones.
        let even = Complex { re: a.re.add(b.re).mul(half), im: a.im.sub(b.im).mul(half) };
        let odd = Complex { re: a.im.add(b.im).mul(half), im: b.re.sub(a.re).mul(half) };
        // SAFETY: the buffer has room for `n + 1` elements.
        unsafe { even.add(odd.mul(root)).store(to, k) };
    }
}

#[cfg(test)]
mod tests {
    use super::KERNELS;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};
    use devbay_plugin_api::abi::read_list;

    #[test]
    fn an_axis_of_i64_goes_with_a_length_of_i32() {
        let dft = KERNELS.iter().map(|kernel| kernel.info()).find(|info| info.n_inputs_max == 3);
        // SAFETY: the plugin's own static list.
        let of = unsafe { read_list::<u8>(&dft.expect("DFT since 20").input_typevars, "uint8_t") };
        assert_eq!(of.expect("list"), [0, 1, 2]);
    }

    /// Samples that are not finite reach the bins as in the formula: an infinite sample times 0 is NaN, and any other
    /// product has the factor's sign.
    #[test]
    fn infinite_samples_are_those_of_the_definition() {
        const INF: f32 = f32::INFINITY;
        let dft = |x: &[f32], parts: usize, inverse: bool| {
            let n = x.len() / parts;
            let attrs = [("inverse", Value::Int(inverse.into()))];
            let inputs = [Some(Array::of(&[1, n, parts], x))];
            let output = [Some(Array::empty::<f32>(&[1, n, 2]))];
            let mut all = isas().map(|isa| {
                let found = run(isa, "DFT", &attrs, &inputs, &output).expect("transforms");
                found[0].as_ref().expect("an output").elements::<f32>()
            });
            let first = all.next().expect("an instruction set");
            let same = |a: &f32, b: &f32| a == b || (a.is_nan() && b.is_nan());
            assert!(all.all(|found| found.iter().zip(&first).all(|(a, b)| same(a, b))));
            first
        };
        let check = |x: &[f32], parts: usize, inverse: bool, expected: &[f32]| {
            let found = dft(x, parts, inverse);
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(found.iter().zip(expected).all(same), "{x:?}: {found:?}, expected {expected:?}");
        };
        let nan = f32::NAN;
        check(&[INF, 1.0, 1.0, 1.0], 1, false, &[INF, nan, INF, nan, INF, nan, INF, nan]);
        check(&[1.0, INF, 1.0, 1.0], 1, false, &[INF, nan, nan, -INF, -INF, nan, nan, INF]);
        check(&[1.0, INF, 1.0, 1.0], 1, true, &[INF, nan, nan, INF, -INF, nan, nan, -INF]);
        check(&[INF, INF, INF, INF], 1, false, &[INF, nan, nan, nan, nan, nan, nan, nan]);
        check(&[1.0, 0.0, nan, 0.0, 1.0, 0.0], 2, false, &[nan; 6]);
        check(&[1.0, 2.0, INF, 0.0, 1.0, 3.0], 2, false, &[INF, nan, -INF, -INF, -INF, INF]);
    }

    #[test]
    fn frames_agree_with_the_definition() {
        let mut random = Chance::new(4);
        for (n, parts, bins) in [(12, 1, 7), (12, 1, 12), (15, 1, 8), (20, 2, 20), (11, 2, 11)] {
            let (length, step) = (200, 3);
            let frames = (length - n) / step + 1;
            let x = random.floats(2 * length * parts, 1.0);
            let window = random.floats(n, 1.0);
            let mut expected = Vec::new();
            for at in 0..2 * frames * bins {
                let (batch, frame, k) = (at / (frames * bins), at / bins % frames, at % bins);
                let (mut re, mut im) = (0.0, 0.0);
                for (j, &weight) in window.iter().enumerate() {
                    let sample = ((batch * length) + frame * step + j) * parts;
                    let part = |i: usize| f64::from(x[sample + i]) * f64::from(weight);
                    let (a, b) = (part(0), if parts == 2 { part(1) } else { 0.0 });
                    let turn = -2.0 * core::f64::consts::PI * (j * k) as f64 / n as f64;
                    re += a * turn.cos() - b * turn.sin();
                    im += a * turn.sin() + b * turn.cos();
                }
                expected.extend([re, im]);
            }
            let inputs = [
                Some(Array::of(&[2, length, parts], &x)),
                Some(Array::of(&[], &[step as i64])),
                Some(Array::of(&[n], &window)),
            ];
            for isa in isas() {
                let output = [Some(Array::empty::<f32>(&[2, frames, bins, 2]))];
                let onesided = [("onesided", Value::Int((bins < n).into()))];
                let found = run(isa, "STFT", &onesided, &inputs, &output).expect("transforms");
                let found = found[0].as_ref().expect("an output").elements::<f32>();
                for (at, (f, e)) in found.iter().zip(&expected).enumerate() {
                    assert!((f64::from(*f) - e).abs() < 1e-5, "{isa:?} {n}: {f} at {at}, expected {e}");
                }
            }
        }
    }
}
