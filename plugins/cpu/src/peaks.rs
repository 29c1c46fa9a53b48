//! The two limits of one thread that a roofline has: arithmetic and memory traffic, as measured on this machine.
//!
//! They are what the hardware does at its best with the instructions that kernels use. The rates by which the host plans
//! are what kernels achieve of that (`devbay devices --calibrate`).
//! Source: Williams, Waterman and Patterson, "Roofline", 2009; McCalpin's STREAM for the traffic.

use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::lanes::Lanes;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time for each of the two.
const BUDGET: Duration = Duration::from_millis(200);
/// Fewest measurements of each, of which the best counts.
const PARTS_MIN: usize = 5;
/// Sums: more than the latency of a multiply-add times the number of units that compute one, which are two on x86-64 and
/// up to four on aarch64. They and a factor fit into the 16 registers of AVX2 or the 32 of NEON.
const SUMS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
/// What sums are multiplied by. It is too small to change them: no number becomes denormal or infinite.
const FACTOR: f32 = 1e-12;
/// Rounds of a measurement, some tens of microseconds.
const ROUNDS: usize = 20_000;
/// Bytes of each of the three arrays, at least and at most.
const ARRAY_BYTES: (usize, usize) = (32 << 20, 128 << 20);

/// What one thread can do at most.
#[derive(Clone, Copy, Debug)]
pub struct Peaks {
    /// The instructions, which are the best of this processor.
    pub isa: Isa,
    /// Operations of f32 per nanosecond; a multiply-add is two.
    pub flops_per_ns: f64,
    /// Bytes per nanosecond of `a[i] = b[i] + s * c[i]`, read and written, in arrays that no cache holds.
    pub bytes_per_ns: f64,
    /// Bytes of each of the three arrays.
    pub array_bytes: usize,
}

impl Peaks {
    /// Measures them on the calling thread, which takes half a second.
    pub fn measure() -> Self {
        let isa = Isa::best();
        let array_bytes = array_bytes();
        Self {
            isa,
            flops_per_ns: flops_per_ns(isa),
            bytes_per_ns: bytes_per_ns(isa, array_bytes),
            array_bytes,
        }
    }

    /// Describes the instructions.
    pub fn instructions(&self) -> &'static str {
        match self.isa {
            Isa::Baseline if cfg!(target_arch = "aarch64") => "fused multiply-adds, NEON",
            Isa::Baseline => "separate multiplications and additions, as kernels compute here",
            Isa::Avx2 => "fused multiply-adds, AVX2",
            Isa::Avx512 => "fused multiply-adds, AVX-512",
        }
    }
}

/// Returns the greatest of several rates, for work of a size that takes a time.
fn best(work: f64, mut part: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let (mut shortest_ns, mut n_parts) = (f64::INFINITY, 0);
    while n_parts < PARTS_MIN || begin.elapsed() < BUDGET {
        let begin = Instant::now();
        part();
        shortest_ns = shortest_ns.min(begin.elapsed().as_nanos() as f64);
        n_parts += 1;
    }
    work / shortest_ns.max(1.0)
}

fn flops_per_ns(isa: Isa) -> f64 {
    let multiply_add = multiply_add(isa);
    let flops = 2 * ROUNDS * SUMS * isa.lanes();
    best(flops as f64, || {
        // SAFETY: the processor has the instructions of its best set.
        black_box(unsafe { multiply_add(black_box(FACTOR), ROUNDS) });
    })
}

fn bytes_per_ns(isa: Isa, array_bytes: usize) -> f64 {
    let n = array_bytes / size_of::<f32>();
    // Written, so that their pages are there.
    let (mut a, b, c) = (vec![1.0f32; n], vec![2.0f32; n], vec![3.0f32; n]);
    let triad = triad(isa);
    best(3.0 * array_bytes as f64, || {
        // SAFETY: the processor has the instructions of its best set.
        unsafe { triad(black_box(&mut a), &b, &c, black_box(0.5)) }
    })
}

/// Returns the size of the arrays: together four times the last cache, as far as limits allow.
fn array_bytes() -> usize {
    let (least, most) = ARRAY_BYTES;
    last_cache_bytes().map_or(most, |cache| (cache / 3 * 4).clamp(least, most))
}

/// Returns the size of the processor's last cache, where the system tells it.
fn last_cache_bytes() -> Option<usize> {
    let size = |level: usize| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{level}/size");
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
    };
    (0..8).filter_map(size).max()
}

dispatch! {
    /// Adds a multiple of the next sum to each of `SUMS` vectors, `n` times. Returns the sum of all, so that none is left out.
    fn multiply_add(factor: f32, n: usize) -> f32 = multiply_add_body
}

#[inline(always)]
unsafe fn multiply_add_body<A: Arith>(factor: f32, n: usize) -> f32 {
    // SAFETY: `dispatch!` compiles this for instructions that its caller promised.
    let (factor, one) = unsafe { (A::Lanes::splat(factor), A::Lanes::splat(1.0)) };
    let mut sums = [one; SUMS];
    for _ in 0..n {
        for i in 0..SUMS {
            // The result takes the place of the summand, as NEON's instruction has it. The product changes from round to
            // round for the compiler, which would otherwise compute it once where it is separate.
            sums[i] = sums[(i + 1) % SUMS].fma(factor, sums[i]);
        }
    }
    let mut all = sums[0];
    for i in 1..SUMS {
        all = all.add(sums[i]);
    }
    A::Lanes::sums([all; 4])[0]
}

dispatch! {
    /// STREAM's triad: `a[i] = b[i] + s * c[i]`.
    fn triad(a: &mut [f32], b: &[f32], c: &[f32], s: f32) = triad_body
}

#[inline(always)]
unsafe fn triad_body<A: Arith>(a: &mut [f32], b: &[f32], c: &[f32], s: f32) {
    for ((a, &b), &c) in a.iter_mut().zip(b).zip(c) {
        *a = A::fma(s, c, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_computed_as_often_as_said() {
        // Multiples of a power of two, which are exact, and the same in each lane.
        let mut sums = [1.0; SUMS];
        for n in 0..3 {
            // SAFETY: the processor has the instructions of its best set.
            let found = unsafe { multiply_add(Isa::best())(0.25, n) };
            assert_eq!(found, sums.iter().sum::<f32>() * Isa::best().lanes() as f32);
            for i in 0..SUMS {
                sums[i] += 0.25 * sums[(i + 1) % SUMS];
            }
        }
    }

    #[test]
    fn triads_are_written() {
        let (mut a, b, c) = (vec![0.0f32; 1003], vec![1.0f32; 1003], vec![4.0f32; 1003]);
        // SAFETY: the processor has the instructions of its best set.
        unsafe { triad(Isa::best())(&mut a, &b, &c, 0.5) };
        assert!(a.iter().all(|&a| a == 3.0));
    }

    #[test]
    fn peaks_are_possible() {
        let peaks = Peaks::measure();
        assert!(peaks.flops_per_ns > 0.1 && peaks.flops_per_ns < 1e4, "{peaks:?}");
        assert!(peaks.bytes_per_ns > 0.01 && peaks.bytes_per_ns < 1e4, "{peaks:?}");
        assert!(peaks.array_bytes >= ARRAY_BYTES.0, "{peaks:?}");
    }
}
