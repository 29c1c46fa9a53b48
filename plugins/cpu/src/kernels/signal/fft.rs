//! Discrete Fourier transforms of many signals at once, each in a lane of a vector.
//!
//! The transform is a Stockham FFT of radix 4, 2, 3, 5 and any other prime: every stage reads one buffer
//! and writes the other in the order that the next one wants, so that there is no bit reversal. A lane
//! does not look at its neighbours, so no instruction shuffles, and a signal's result does not depend on
//! the others. Twiddle factors come from f64.
//!
//! Lengths with a large prime factor are a convolution with a chirp, of a length that is a power of two
//! (L. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", 1970).
//!
//! A buffer holds complex elements: a vector of real parts, then one of imaginary parts.

use crate::isa::{Arith, Separate, Single};
use crate::lanes::Lanes;
use devbay_plugin_api::reserve::{self, NoMemory, Size};
use devbay_plugin_api::sdk::Result;

/// Hears of work that is done, in operations, and gives an error if there is to be no more.
pub(crate) type Look<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// Elements between two looks.
const BLOCK: usize = 1 << 14;

/// e^(-2 pi i k / n).
fn root(k: usize, n: usize) -> [f32; 2] {
    let angle = -2.0 * core::f64::consts::PI * (k % n) as f64 / n as f64;
    [angle.cos() as f32, angle.sin() as f32]
}

/// One stage: `radix` elements that lie `columns * stride` apart become `radix` neighbours, `stride`
/// apart.
struct Stage {
    radix: usize,
    columns: usize,
    stride: usize,
    /// For each column, the factors of all outputs but the first.
    twiddles: Vec<[f32; 2]>,
    /// Roots of unity of the radix, for those without a butterfly of their own.
    roots: Vec<[f32; 2]>,
}

/// Rounding of the factors of a transform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// To the nearest f32.
    Exact,
    /// As in onnxruntime: a length that is no power of two goes through a chirp whose angles are rounded
    /// to f32 before they are reduced, which moves the factors by up to 2e-4 (at 400 elements). Results
    /// then agree with onnxruntime's where a spectrum is small beside its frame.
    Onnxruntime,
}

/// Name of the memory that a plan takes.
const FACTORS: &str = "the factors of a Fourier transform";

/// Prime factors above this one go through a chirp.
const RADIX_MAX: usize = 61;

/// A transform of `n` complex elements.
pub(crate) struct Plan {
    n: usize,
    way: Way,
}

enum Way {
    Stages(Vec<Stage>),
    Chirp(Chirp),
}

/// A transform as a convolution: with `c[j] = e^(-pi i j^2 / n)`, element `k` of the spectrum is
/// `c[k] * sum over j of (x[j] * c[j]) * conj(c[k - j])`.
struct Chirp {
    stages: Vec<Stage>,
    /// Elements of the convolution, a power of two.
    len: usize,
    factors: Vec<[f32; 2]>,
    /// The spectrum of the conjugate factors, divided by `len`.
    filter: Vec<[f32; 2]>,
}

impl Plan {
    /// A transform of `n` elements; 0 counts as 1.
    ///
    /// # Errors
    /// Without memory for its factors; what `look` says.
    pub(crate) fn new(n: usize, rounding: Rounding, look: Look<'_>) -> Result<Self> {
        let n = n.max(1);
        let way = match is_chirp(n, rounding) {
            true => Way::Chirp(Chirp::new(n, rounding, look)?),
            false => Way::Stages(stages(n, look)?),
        };
        Ok(Self { n, way })
    }

    /// Elements of a transform.
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Elements of each of the two buffers, at least [`Plan::len`].
    pub(crate) fn buffer_len(&self) -> usize {
        match &self.way {
            Way::Stages(_) => self.n,
            Way::Chirp(chirp) => chirp.len,
        }
    }

    /// Floating-point operations of one transform of `n` elements.
    pub(crate) fn flops(n: usize, rounding: Rounding) -> u64 {
        let of = |n: usize| -> u64 {
            let of_stage = |radix: &usize| (8 * n as u64).saturating_mul(radix.ilog2().max(1).into());
            radices(n).iter().map(of_stage).fold(0, u64::saturating_add)
        };
        let n = n.max(1);
        match is_chirp(n, rounding) {
            false => of(n),
            true => {
                let len = chirp_len(n).unwrap_or(usize::MAX);
                let ends = (len as u64).saturating_add((n as u64).saturating_mul(2)).saturating_mul(8);
                of(len).saturating_mul(2).saturating_add(ends)
            }
        }
    }

    /// Transforms the elements in `from`; returns the buffer that has the result, and the other one.
    ///
    /// # Safety
    /// Both buffers hold [`Plan::buffer_len`] elements and are apart, and the processor has the
    /// instructions of `A`.
    ///
    /// # Errors
    /// Errors of `look`.
    #[inline(always)]
    pub(crate) unsafe fn run<A: Arith>(
        &self,
        from: *mut f32,
        to: *mut f32,
        look: Look<'_>,
    ) -> Result<(*mut f32, *mut f32)> {
        match &self.way {
            // SAFETY: both buffers hold the transform's elements and are apart, and the instructions are there
            // (# Safety).
            Way::Stages(stages) => unsafe { run_stages::<A>(stages, from, to, look) },
            // SAFETY: both buffers hold the plan's elements and are apart, and the instructions are there (# Safety).
            Way::Chirp(chirp) => unsafe { chirp.run::<A>(from, to, look) },
        }
    }
}

fn is_chirp(n: usize, rounding: Rounding) -> bool {
    match rounding {
        Rounding::Exact => largest_prime(n) > RADIX_MAX,
        Rounding::Onnxruntime => !n.is_power_of_two(),
    }
}

/// Elements of the convolution that a transform of `n` elements is.
///
/// # Errors
/// For more than can be counted.
fn chirp_len(n: usize) -> core::result::Result<usize, NoMemory> {
    let len = (Size::of(n) * 2).get(FACTORS)? - 1;
    len.checked_next_power_of_two().ok_or(NoMemory::new(None, FACTORS))
}

impl Chirp {
    fn new(n: usize, rounding: Rounding, look: Look<'_>) -> Result<Self> {
        let len = chirp_len(n)?;
        // The conjugate factors for the distances -(n - 1) to n - 1, counted modulo `len`; in one lane. The largest lists come
        // first: without memory for them, the others would be worked out in vain.
        let lanes = <Single<Separate> as Arith>::Lanes::N;
        let n_floats = (Size::of(len) * (2 * lanes)).get(FACTORS)?;
        let mut from = reserve::zeroed(n_floats, FACTORS)?;
        let mut to = reserve::zeroed(n_floats, FACTORS)?;
        let stages = stages(len, look)?;
        let factor = |j: usize| {
            if j.is_multiple_of(BLOCK) {
                look(32 * BLOCK)?;
            }
            let angle = match rounding {
                // The square is reduced while it is an integer; its period is 2n.
                Rounding::Exact => {
                    let square = (j as u128 * j as u128 % (2 * n as u128)) as f64;
                    core::f64::consts::PI * square / n as f64
                }
                Rounding::Onnxruntime => f64::from(core::f32::consts::PI * j as f32 * j as f32 / n as f32),
            };
            Result::Ok([angle.cos() as f32, -angle.sin() as f32])
        };
        let factors: Vec<[f32; 2]> = reserve::try_collected(n, (0..n).map(factor), FACTORS)?;
        for (j, [re, im]) in factors.iter().enumerate() {
            for at in [j, (len - j) % len] {
                from[at * 2 * lanes] = *re;
                from[(at * 2 + 1) * lanes] = -im;
            }
        }
        // SAFETY: both buffers hold `len` elements, and every processor has the baseline's instructions.
        let (found, _) =
            unsafe { run_stages::<Single<Separate>>(&stages, from.as_mut_ptr(), to.as_mut_ptr(), look) }?;
        let found = if core::ptr::eq(found, from.as_ptr()) { &from } else { &to };
        let scale = 1.0 / len as f32;
        let filter = found.chunks_exact(2 * lanes).map(|e| [e[0] * scale, e[lanes] * scale]);
        let filter = reserve::collected(filter, FACTORS)?;
        Ok(Self { stages, len, factors, filter })
    }

    /// As [`Plan::run`].
    ///
    /// # Safety
    /// As [`Plan::run`].
    ///
    /// # Errors
    /// Errors of `look`.
    #[inline(always)]
    unsafe fn run<A: Arith>(
        &self,
        from: *mut f32,
        to: *mut f32,
        look: Look<'_>,
    ) -> Result<(*mut f32, *mut f32)> {
        for (j, &factor) in self.factors.iter().enumerate() {
            // SAFETY: the buffer has more than `len` elements, and the processor has the instructions (# Safety).
            unsafe { Complex::<A::Lanes>::load(from, j).mul(Complex::splat(factor)).store(from, j) };
        }
        for j in self.factors.len()..self.len {
            // SAFETY: `j` is below `len`, which the buffer has.
            unsafe { Complex::<A::Lanes>::splat([0.0, 0.0]).store(from, j) };
        }
        // SAFETY: both buffers hold the stages' elements, which are `len`, and the instructions are there (# Safety).
        let (found, free) = unsafe { run_stages::<A>(&self.stages, from, to, look) }?;
        for (k, &factor) in self.filter.iter().enumerate() {
            // SAFETY: `k` is below `filter.len()`, which is `len`.
            let product = unsafe { Complex::<A::Lanes>::load(found, k).mul(Complex::splat(factor)) };
            // The inverse transform is the forward one of the conjugate.
            // SAFETY: the same element of the buffer.
            unsafe { product.conj().store(found, k) };
        }
        // SAFETY: `found` and `free` are the same two buffers.
        let (found, free) = unsafe { run_stages::<A>(&self.stages, found, free, look) }?;
        for (k, &factor) in self.factors.iter().enumerate() {
            // SAFETY: `k` is below `factors.len()`, which the buffer has.
            unsafe { Complex::<A::Lanes>::load(found, k).conj().mul(Complex::splat(factor)).store(found, k) };
        }
        Ok((found, free))
    }
}

fn largest_prime(n: usize) -> usize {
    let (mut rest, mut largest, mut p) = (n, 1, 2);
    while p * p <= rest {
        while rest.is_multiple_of(p) {
            (rest, largest) = (rest / p, p);
        }
        p += 1;
    }
    largest.max(rest)
}

/// The radices of the stages of a transform of `n` elements.
fn radices(n: usize) -> Vec<usize> {
    let (mut rest, mut all) = (n, Vec::new());
    while rest > 1 {
        let prime = || (3..).step_by(2).find(|p| rest % p == 0).unwrap_or(rest);
        let radix = match rest {
            n if n % 4 == 0 => 4,
            n if n % 2 == 0 => 2,
            _ => prime(),
        };
        all.push(radix);
        rest /= radix;
    }
    all
}

/// The stages of a transform of `n` elements.
///
/// # Errors
/// Without memory for their factors; what `look` says.
fn stages(n: usize, look: Look<'_>) -> Result<Vec<Stage>> {
    let (mut rest, mut stride) = (n, 1);
    let mut stages = Vec::new();
    for radix in radices(n) {
        let columns = rest / radix;
        let mut twiddles = reserve::with_capacity(columns * (radix - 1), FACTORS)?;
        for p in 0..columns {
            if p.is_multiple_of(BLOCK) {
                look(32 * BLOCK)?;
            }
            twiddles.extend((1..radix).map(|k| root(p * k, rest)));
        }
        let roots = reserve::collected((0..radix).map(|k| root(k, radix)), FACTORS)?;
        stages.push(Stage { radix, columns, stride, twiddles, roots });
        (rest, stride) = (columns, stride * radix);
    }
    Ok(stages)
}

/// Runs the stages; returns the buffer that has the result, and the other one.
///
/// # Safety
/// Both buffers hold the elements of the transform and are apart, and the processor has the instructions
/// of `A`.
///
/// # Errors
/// Errors of `look`.
#[inline(always)]
unsafe fn run_stages<A: Arith>(
    stages: &[Stage],
    mut from: *mut f32,
    mut to: *mut f32,
    look: Look<'_>,
) -> Result<(*mut f32, *mut f32)> {
    for stage in stages {
        // SAFETY: both buffers hold the transform's elements, all of which a stage reads and writes; the instructions
        // are there (# Safety).
        unsafe {
            match stage.radix {
                2 => run_stage::<A, Radix2, 2>(stage, from, to, look),
                3 => run_stage::<A, Radix3, 3>(stage, from, to, look),
                4 => run_stage::<A, Radix4, 4>(stage, from, to, look),
                5 => run_stage::<A, Radix5, 5>(stage, from, to, look),
                _ => run_any_stage::<A>(stage, from, to, look),
            }
        }?;
        (from, to) = (to, from);
    }
    Ok((from, to))
}

/// A complex number in each lane.
#[derive(Clone, Copy)]
pub(crate) struct Complex<L> {
    pub(crate) re: L,
    pub(crate) im: L,
}

impl<L: Lanes> Complex<L> {
    /// Reads element `i` of a buffer.
    ///
    /// # Safety
    /// The buffer has that element, and the processor has the instructions.
    #[inline(always)]
    pub(crate) unsafe fn load(buffer: *const f32, i: usize) -> Self {
        let at = buffer.wrapping_add(i * 2 * L::N);
        Self {
            // SAFETY: the buffer has the element, and the processor has the instructions (# Safety).
            re: unsafe { L::load(at) },
            // SAFETY: the other half of that element.
            im: unsafe { L::load(at.wrapping_add(L::N)) },
        }
    }

    /// Writes element `i` of a buffer.
    ///
    /// # Safety
    /// The buffer has that element.
    #[inline(always)]
    pub(crate) unsafe fn store(self, buffer: *mut f32, i: usize) {
        let at = buffer.wrapping_add(i * 2 * L::N);
        // SAFETY: the buffer has the element (# Safety).
        unsafe { self.re.store(at) };
        // SAFETY: the other half of that element.
        unsafe { self.im.store(at.wrapping_add(L::N)) };
    }

    /// The same number in every lane.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    pub(crate) unsafe fn splat([re, im]: [f32; 2]) -> Self {
        Self {
            // SAFETY: the processor has the instructions (# Safety).
            re: unsafe { L::splat(re) },
            // SAFETY: the processor has the instructions (# Safety).
            im: unsafe { L::splat(im) },
        }
    }

    #[inline(always)]
    pub(crate) fn add(self, b: Self) -> Self {
        Self { re: self.re.add(b.re), im: self.im.add(b.im) }
    }

    #[inline(always)]
    pub(crate) fn sub(self, b: Self) -> Self {
        Self { re: self.re.sub(b.re), im: self.im.sub(b.im) }
    }

    #[inline(always)]
    pub(crate) fn mul(self, b: Self) -> Self {
        Self { re: self.re.mul(b.re).sub(self.im.mul(b.im)), im: self.re.fma(b.im, self.im.mul(b.re)) }
    }

    /// The conjugate.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    unsafe fn conj(self) -> Self {
        // SAFETY: the processor has the instructions (# Safety).
        Self { re: self.re, im: unsafe { L::splat(0.0) }.sub(self.im) }
    }

    /// `self * scale`, with a real scale.
    #[inline(always)]
    fn times(self, scale: L) -> Self {
        Self { re: self.re.mul(scale), im: self.im.mul(scale) }
    }

    /// `self * scale + b`, with a real scale.
    #[inline(always)]
    fn scaled(self, scale: L, b: Self) -> Self {
        Self { re: self.re.fma(scale, b.re), im: self.im.fma(scale, b.im) }
    }

    /// `self + i * b` and `self - i * b`.
    #[inline(always)]
    fn around(self, b: Self) -> (Self, Self) {
        let plus = Self { re: self.re.sub(b.im), im: self.im.add(b.re) };
        let minus = Self { re: self.re.add(b.im), im: self.im.sub(b.re) };
        (plus, minus)
    }
}

/// A transform of `R` numbers, without factors. A type and not a function, so that it is inlined.
trait Butterfly<const R: usize> {
    /// # Safety
    /// The processor has the instructions.
    unsafe fn transform<L: Lanes>(inputs: [Complex<L>; R]) -> [Complex<L>; R];
}

/// # Safety
/// As [`Plan::run`]; the stage's radix is `R`.
///
/// # Errors
/// Errors of `look`.
#[inline(always)]
unsafe fn run_stage<A: Arith, B: Butterfly<R>, const R: usize>(
    stage: &Stage,
    from: *const f32,
    to: *mut f32,
    look: Look<'_>,
) -> Result<()> {
    let (columns, stride) = (stage.columns, stage.stride);
    let mut left = BLOCK;
    for p in 0..columns {
        let twiddles = &stage.twiddles[p * (R - 1)..][..R - 1];
        let mut begin = 0;
        while begin < stride {
            let until = stride.min(begin + left);
            for q in begin..until {
                let first = q + stride * p;
                // SAFETY: the element is below `columns * stride * R`, which is `n`.
                let mut inputs = [unsafe { Complex::<A::Lanes>::load(from, first) }; R];
                for (i, input) in inputs.iter_mut().enumerate().skip(1) {
                    // SAFETY: `i` is below `R`, so the element is below `columns * stride * R`, which is `n`.
                    *input = unsafe { Complex::load(from, first + stride * i * columns) };
                }
                // SAFETY: the processor has the instructions (# Safety).
                let outputs = unsafe { B::transform(inputs) };
                let first = q + stride * R * p;
                // SAFETY: the element is below `columns * stride * R`, which is `n`, in the other buffer, too.
                unsafe { outputs[0].store(to, first) };
                for (k, (output, &twiddle)) in outputs[1..].iter().zip(twiddles).enumerate() {
                    // SAFETY: the processor has the instructions (# Safety).
                    let twiddle = unsafe { Complex::splat(twiddle) };
                    // SAFETY: `k + 1` is below `R`, so the element is below `n` in the other buffer.
                    unsafe { output.mul(twiddle).store(to, first + stride * (k + 1)) };
                }
            }
            left -= until - begin;
            begin = until;
            if left == 0 {
                look(8 * R * A::Lanes::N * BLOCK)?;
                left = BLOCK;
            }
        }
    }
    Ok(())
}

/// # Safety
/// As [`Plan::run`].
///
/// # Errors
/// Errors of `look`.
#[inline(always)]
unsafe fn run_any_stage<A: Arith>(
    stage: &Stage,
    from: *const f32,
    to: *mut f32,
    look: Look<'_>,
) -> Result<()> {
    let (radix, columns, stride) = (stage.radix, stage.columns, stage.stride);
    for p in 0..columns {
        for q in 0..stride {
            if (p * stride + q).is_multiple_of(BLOCK / RADIX_MAX) {
                look(8 * radix * radix * A::Lanes::N * (BLOCK / RADIX_MAX))?;
            }
            for k in 0..radix {
                let first = q + stride * p;
                // SAFETY: the element is below `columns * stride * radix`, which is `n`.
                let mut sum: Complex<A::Lanes> = unsafe { Complex::load(from, first) };
                for i in 1..radix {
                    // SAFETY: `i` is below `radix`, so the element is below `columns * stride * radix`, which is `n`.
                    let input = unsafe { Complex::load(from, first + stride * i * columns) };
                    // SAFETY: the processor has the instructions (# Safety).
                    let root = unsafe { Complex::splat(stage.roots[i * k % radix]) };
                    sum = sum.add(root.mul(input));
                }
                if k > 0 {
                    let twiddle = stage.twiddles[p * (radix - 1) + k - 1];
                    // SAFETY: the processor has the instructions (# Safety).
                    sum = sum.mul(unsafe { Complex::splat(twiddle) });
                }
                // SAFETY: `k` is below `radix`, so the element is below `n` in the other buffer, too.
                unsafe { sum.store(to, q + stride * (radix * p + k)) };
            }
        }
    }
    Ok(())
}

struct Radix2;

impl Butterfly<2> for Radix2 {
    #[inline(always)]
    unsafe fn transform<L: Lanes>([a, b]: [Complex<L>; 2]) -> [Complex<L>; 2] {
        [a.add(b), a.sub(b)]
    }
}

struct Radix3;

impl Butterfly<3> for Radix3 {
    #[inline(always)]
    unsafe fn transform<L: Lanes>([a, b, c]: [Complex<L>; 3]) -> [Complex<L>; 3] {
        // SAFETY: the processor has the instructions (# Safety of `Butterfly::transform`).
        let (half, sine) = unsafe { (L::splat(-0.5), L::splat(-0.866_025_4)) };
        let sum = b.add(c);
        let (second, third) = sum.scaled(half, a).around(b.sub(c).times(sine));
        [a.add(sum), second, third]
    }
}

struct Radix4;

impl Butterfly<4> for Radix4 {
    #[inline(always)]
    unsafe fn transform<L: Lanes>([a, b, c, d]: [Complex<L>; 4]) -> [Complex<L>; 4] {
        let (even, odd) = (a.add(c), b.add(d));
        let (fourth, second) = a.sub(c).around(b.sub(d));
        [even.add(odd), second, even.sub(odd), fourth]
    }
}

struct Radix5;

impl Butterfly<5> for Radix5 {
    #[inline(always)]
    unsafe fn transform<L: Lanes>([a, b, c, d, e]: [Complex<L>; 5]) -> [Complex<L>; 5] {
        // Cosines and sines of a fifth and two fifths of a turn.
        // SAFETY: the processor has the instructions (# Safety of `Butterfly::transform`).
        let (cos_1, cos_2) = unsafe { (L::splat(0.309_017), L::splat(-0.809_017)) };
        // SAFETY: the processor has the instructions (# Safety of `Butterfly::transform`).
        let (sin_1, sin_2) = unsafe { (L::splat(-0.951_056_5), L::splat(-0.587_785_24)) };
        let (sum_1, difference_1) = (b.add(e), b.sub(e));
        let (sum_2, difference_2) = (c.add(d), c.sub(d));
        let near = sum_2.scaled(cos_2, sum_1.scaled(cos_1, a));
        let far = sum_2.scaled(cos_1, sum_1.scaled(cos_2, a));
        let (second, fifth) = near.around(difference_2.scaled(sin_2, difference_1.times(sin_1)));
        let turned = difference_1.times(sin_2).sub(difference_2.times(sin_1));
        let (third, fourth) = far.around(turned);
        [a.add(sum_1).add(sum_2), second, third, fourth, fifth]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Separate;

    #[test]
    fn transforms_of_all_radices_agree_with_the_definition() {
        const LANES: usize = 4;
        for n in [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 25, 26, 30, 49, 60, 64, 101, 200, 201, 397, 400] {
            let plan = Plan::new(n, Rounding::Exact, &mut |_| Ok(())).unwrap();
            let signal: Vec<f32> =
                (0..2 * LANES * n).map(|i| ((i * 73 + i / 11) % 199) as f32 / 100.0 - 1.0).collect();
            let mut from = signal.clone();
            from.resize(2 * LANES * plan.buffer_len(), f32::NAN);
            let mut to = vec![0.0; from.len()];
            // SAFETY: the buffers hold `n` elements of four lanes, which the baseline has.
            let ran = unsafe { plan.run::<Separate>(from.as_mut_ptr(), to.as_mut_ptr(), &mut |_| Ok(())) };
            let (found, _) = ran.unwrap();
            for lane in 0..LANES {
                for k in 0..n {
                    let (mut re, mut im) = (0.0, 0.0);
                    for j in 0..n {
                        let x = f64::from(signal[j * 2 * LANES + lane]);
                        let y = f64::from(signal[(j * 2 + 1) * LANES + lane]);
                        let turn = (j * k % n) as f64 / n as f64;
                        let (sin, cos) = (-2.0 * core::f64::consts::PI * turn).sin_cos();
                        re += x * cos - y * sin;
                        im += x * sin + y * cos;
                    }
                    // SAFETY: the element lies within the buffer.
                    let found = unsafe {
                        let at = found.add(k * 2 * LANES + lane);
                        [at.read(), at.add(LANES).read()]
                    };
                    let error = (f64::from(found[0]) - re).hypot(f64::from(found[1]) - im);
                    let limit = 3e-6 * (n as f64).sqrt();
                    assert!(error < limit, "n {n}, k {k}: {found:?}, expected {re} {im}");
                }
            }
        }
    }

    #[test]
    fn the_factors_of_onnxruntime_are_a_chirp_with_rounded_angles() {
        // onnxruntime 1.31.1: the DFT of an impulse at 399 of 400 elements, bins 5 and 50.
        let plan = Plan::new(400, Rounding::Onnxruntime, &mut |_| Ok(())).unwrap();
        const LANES: usize = 4;
        let mut from = vec![0.0; 2 * LANES * plan.buffer_len()];
        from[399 * 2 * LANES] = 1.0;
        let mut to = from.clone();
        // SAFETY: the buffers hold the plan's elements, of four lanes, which the baseline has.
        let ran = unsafe { plan.run::<Separate>(from.as_mut_ptr(), to.as_mut_ptr(), &mut |_| Ok(())) };
        let (found, _) = ran.unwrap();
        for (k, error) in [(5, 167.0e-6), (50, 80.5e-6)] {
            // SAFETY: the element lies within the buffer.
            let [re, im] =
                unsafe { [found.add(k * 2 * LANES).read(), found.add((k * 2 + 1) * LANES).read()] };
            let exact = -2.0 * core::f64::consts::PI * ((k * 399) % 400) as f64 / 400.0;
            let turn = core::f64::consts::TAU;
            let phase = (f64::from(im).atan2(f64::from(re)) - exact + 1.5 * turn) % turn - turn / 2.0;
            assert!((phase - error).abs() < 5e-6, "bin {k}: a phase error of {phase:e}, expected {error:e}");
        }
    }
}
