//! `dense`: 64 small layers, each a separate launch, beside the same layers written by hand.
//!
//! By hand: AVX-512 (or AVX2) code for one size, called through a pointer once per layer, as in an application written for
//! these layers alone. devbay's are 64 launches of a program with 64 Gemm and 64 Relu nodes.

use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::ran::Ran;
use crate::rows::Rows;
use crate::{ran, setup};
use anyhow::{Context, Result, ensure};
use devbay_core::exec::host_io::InputView;
use devbay_core::tensor::{F32, Tensor};
use devbay_host::{Model, RunOptions, Session};
use std::hint::black_box;
use std::time::Duration;

const LAYERS: usize = 64;

type Layer = unsafe fn(*const f32, *const f32, *const f32, *mut f32);

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    for n in [8, 16, 32] {
        case(rows, n, n_passes)?;
    }
    Ok(())
}

fn case(rows: &mut Rows, n: usize, n_passes: usize) -> Result<()> {
    let Some(layer) = by_hand(n) else {
        eprintln!("dense n{n}: skipped, the handwritten layers need AVX2 and FMA");
        return Ok(());
    };
    let weights: Vec<Vec<f32>> =
        (0..LAYERS).map(|l| numbers(n * n, l as u32, (6.0 / n as f32).sqrt())).collect();
    let biases: Vec<Vec<f32>> =
        (0..LAYERS).map(|l| numbers(n, 1000 + l as u32, 0.05).iter().map(|v| v + 0.05).collect()).collect();
    let x: Vec<f32> = numbers(n, 5000, 1.0).iter().map(|v| v.abs()).collect();

    let flat: Vec<f32> = weights.concat();
    let flat_biases: Vec<f32> = biases.concat();
    let mut buffers = vec![0.0f32; (LAYERS + 1) * n];
    buffers[..n].copy_from_slice(&x);
    let layers = black_box(vec![layer; LAYERS]);

    let runtime = setup::runtime(1)?;
    let model = Model::from_program(setup::dense_layers(n, &weights, &biases)?);
    let device = setup::device(&runtime)?;
    let session = Session::with_options(&model, &device, setup::of_launches())?;
    let input = Tensor::from_elements(&[1, n], &x)?;
    let counts = ran::count(&model, &device, setup::of_launches(), &[("x", &input)])?;
    let shape = [1, n];
    let bytes = bytemuck::cast_slice(&x);
    let input = InputView::new(F32, &shape, bytes)?;
    let steps = session
        .plan_for_types(&[input.ty()])?
        .single()
        .context("layers are a straight section")?
        .section
        .steps
        .len();
    ensure!(steps == LAYERS, "{steps} launches, expected {LAYERS}");
    let mut y = vec![0.0f32; n];
    let mut failed = None;
    let figures = {
        let start = buffers.as_mut_ptr();
        let hand = Subject::new("handwritten", LAYERS as f64, || {
            for (l, layer) in layers.iter().enumerate() {
                // SAFETY: weights, biases and buffers have an entry for each layer, of `n` columns.
                unsafe {
                    layer(
                        start.add(l * n),
                        flat.as_ptr().add(l * n * n),
                        flat_biases.as_ptr().add(l * n),
                        start.add((l + 1) * n),
                    );
                }
            }
            black_box(start);
        });
        let ours = Subject::new("devbay", LAYERS as f64, || {
            let result =
                session.run_into(&[input], &mut [bytemuck::cast_slice_mut(&mut y)], &RunOptions::default());
            failed = failed.take().or(result.err());
        });
        passes(&mut [hand, ours], n_passes, Duration::from_millis(30))?
    };
    failed.map_or(Ok(()), |error| Err(anyhow::Error::from(error)))?;
    let expected = &buffers[LAYERS * n..];
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    for (a, b) in y.iter().zip(expected) {
        ensure!((a - b).abs() <= 1e-4 * largest + 1e-6, "n{n}: {a} and {b} differ");
    }
    rows.case("dense", &format!("n{n}"), 1, "ns/layer", &figures, Ran::launches(LAYERS, counts.launches))
}

/// Returns numbers between -`scale` and `scale`, the same every time.
fn numbers(n: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * scale
        })
        .collect()
}

#[cfg(target_arch = "x86_64")]
fn by_hand(n: usize) -> Option<Layer> {
    let avx512 = is_x86_feature_detected!("avx512f");
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        return None;
    }
    Some(match (n, avx512) {
        (8, _) => x86::eight,
        (16, true) => x86::widest::<16, 1>,
        (32, true) => x86::widest::<32, 2>,
        (16, false) => x86::wide::<16, 2>,
        _ => x86::wide::<32, 4>,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn by_hand(_n: usize) -> Option<Layer> {
    None
}

/// The layers by hand: one row of W after the other, with the sums in four chains.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// `x`, `w`, `b` and `y` are arrays of 8, 64, 8 and 8; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn eight(x: *const f32, w: *const f32, b: *const f32, y: *mut f32) {
        // SAFETY: the arrays have 8, 64, 8 and 8 elements, and the processor has AVX2 and FMA (`# Safety`).
        unsafe {
            let mut sums =
                [_mm256_loadu_ps(b), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()];
            for i in 0..8 {
                sums[i & 3] =
                    _mm256_fmadd_ps(_mm256_set1_ps(*x.add(i)), _mm256_loadu_ps(w.add(i * 8)), sums[i & 3]);
            }
            let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
            _mm256_storeu_ps(y, _mm256_max_ps(sum, _mm256_setzero_ps()));
        }
    }

    /// # Safety
    /// `x`, `w`, `b` and `y` are arrays of `N`, `N * N`, `N` and `N`; `N` is `8 * C`; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn wide<const N: usize, const C: usize>(
        x: *const f32,
        w: *const f32,
        b: *const f32,
        y: *mut f32,
    ) {
        // SAFETY: `N` is `8 * C`, the arrays have `N`, `N * N`, `N` and `N` elements, and the processor has AVX2 and FMA
        // (`# Safety`).
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); 2]; C];
            for (c, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm256_loadu_ps(b.add(c * 8));
            }
            for i in 0..N {
                let xi = _mm256_set1_ps(*x.add(i));
                for (c, sum) in sums.iter_mut().enumerate() {
                    sum[i & 1] = _mm256_fmadd_ps(xi, _mm256_loadu_ps(w.add(i * N + c * 8)), sum[i & 1]);
                }
            }
            for (c, sum) in sums.iter().enumerate() {
                let sum = _mm256_max_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_setzero_ps());
                _mm256_storeu_ps(y.add(c * 8), sum);
            }
        }
    }

    /// # Safety
    /// `x`, `w`, `b` and `y` are arrays of `N`, `N * N`, `N` and `N`; `N` is `16 * C`; the processor has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn widest<const N: usize, const C: usize>(
        x: *const f32,
        w: *const f32,
        b: *const f32,
        y: *mut f32,
    ) {
        // SAFETY: `N` is `16 * C`, the arrays have `N`, `N * N`, `N` and `N` elements, and the processor has AVX-512 F
        // (`# Safety`).
        unsafe {
            let zero = _mm512_setzero_ps();
            let mut sums = [[zero; 4]; C];
            for (c, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm512_loadu_ps(b.add(c * 16));
            }
            for i in 0..N {
                let xi = _mm512_set1_ps(*x.add(i));
                for (c, sum) in sums.iter_mut().enumerate() {
                    sum[i & 3] = _mm512_fmadd_ps(xi, _mm512_loadu_ps(w.add(i * N + c * 16)), sum[i & 3]);
                }
            }
            for (c, sum) in sums.iter().enumerate() {
                let sum = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
                _mm512_storeu_ps(y.add(c * 16), _mm512_max_ps(sum, zero));
            }
        }
    }
}
