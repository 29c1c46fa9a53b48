//! STFT and DFT, the windows that go with them, and the weights of mel spectra.
//!
//! Transforms are sums over all elements: a workgroup has 64 bins of some signals, whose samples it brings into its
//! memory piece by piece, four signals' samples in a vector. The roots of unity are a table; STFT has those of
//! onnxruntime ([`chirp`]).

use super::cost;
use super::lines::{count, div_up, expect_output};
use super::math;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::{Signal, Spectra, host_int};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const NUMBER: TypeVar = TypeVar::of(&[F32]);
const LENGTH: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
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
    // The optimal Hamming window and the Blackman window of the specification's function bodies.
    window("BlackmanWindow", |request| prepare_window(request, [0.42, 0.5, 0.08])),
    window("HammingWindow", |request| prepare_window(request, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    window("HannWindow", |request| prepare_window(request, [0.5, 0.5, 0.0])),
    descriptor("MelWeightMatrix", 17, prepare_mel)
        .types(&[LENGTH, NUMBER])
        .operands(&[0, 0, 0, 1, 1], &[1])
        .cost(|request| cost::per_output(request, 8))
        .doc("frequencies by bands of hearing"),
];

const fn window(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<Target> {
    descriptor(name, 17, prepare)
        .types(&[LENGTH, NUMBER])
        .cost(|request| Ok(Cost { bytes_read: 0, ..cost::per_output(request, 50)? }))
}

/// Longest transform: of more a table of roots would be large, and the sums would take long.
const LENGTH_MAX: i64 = 1 << 20;
/// Longest window: numbers of 32 bits hold four turns of it.
const WINDOW_MAX: i64 = 1 << 28;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Stft,
    Dft17,
    Dft20,
}

fn spectra(request: &Request<'_>, op: Op) -> Result<Spectra> {
    match op {
        Op::Stft => Spectra::of_stft(request),
        Op::Dft17 => Spectra::of_dft_17(request),
        Op::Dft20 => Spectra::of_dft_20(request),
    }
}

fn cost(request: &Request<'_>, op: Op) -> Result<Cost> {
    let shape = spectra(request, op)?;
    let flops = if shape.signal == Signal::Real && !is_chirp(op, &shape) { 4 } else { 8 };
    let n = (shape.signals as u64).saturating_mul(shape.bins as u64).saturating_mul(shape.n as u64);
    Ok(cost::of(request, n.saturating_mul(flops)))
}

/// A table of `n` complex numbers.
fn factors(n: i64, factor: impl Fn(i64) -> [u32; 2]) -> Result<Vec<u32>> {
    let mut table =
        reserve::with_capacity(2 * usize::try_from(n).unwrap_or(0), "the factors of a transform")?;
    (0..n).for_each(|i| table.extend(factor(i)));
    Ok(table)
}

/// The roots of unity of a length.
fn roots(n: i64, inverse: bool) -> Result<Vec<u32>> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let root = |i: i64| {
        let angle = std::f64::consts::TAU * i as f64 / n as f64;
        // At whole quarters one part is 0. It is left out, because an infinite sample times 0 is NaN.
        let cos = if 4 * i == n || 4 * i == 3 * n { 0.0 } else { angle.cos() };
        let sin = if i == 0 || 2 * i == n { 0.0 } else { sign * angle.sin() };
        [(cos as f32).to_bits(), (sin as f32).to_bits()]
    };
    factors(n, root)
}

/// Returns whether factors are those of [`chirp`].
fn is_chirp(op: Op, shape: &Spectra) -> bool {
    op == Op::Stft && !(shape.n as u64).is_power_of_two()
}

/// The conjugates of `c[j] = e^(-pi i j^2 / n)`, with angles that are rounded to f32 before they are reduced: as in
/// onnxruntime, whose spectra of other lengths than powers of two are `c[k] * sum over j of x[j] * c[j] * conj(c[k - j])`.
/// Spectra that are small beside their frame then agree with its, and with the CPU plugin's.
fn chirp(n: i64) -> Result<Vec<u32>> {
    let factor = |j: i64| {
        let angle = f64::from(std::f32::consts::PI * j as f32 * j as f32 / n as f32);
        [(angle.cos() as f32).to_bits(), (angle.sin() as f32).to_bits()]
    };
    factors(n, factor)
}

fn prepare(request: &Request<'_>, op: Op) -> Result<Prepared> {
    let shape = spectra(request, op)?;
    expect_output(request, 0, &shape.output)?;
    if shape.n > LENGTH_MAX {
        return Err(Error::unsupported(format!("transforms of {} elements", shape.n)));
    }
    if request.required_input(0)?.n_elements() == 0 {
        return Err(Error::unsupported("transforms of no elements"));
    }
    let mut build = Build::new(request);
    let is_chirp = is_chirp(op, &shape);
    let roots = build.table(&if is_chirp { chirp(shape.n) } else { roots(shape.n, shape.inverse) }?);
    let has_window = op == Op::Stft && request.input(2).is_some();
    let mut buffers =
        vec![("x", "f32", Slot::Input(0)), ("roots", "vec2<f32>", roots), ("y", "f32", Slot::Output(0))];
    if has_window {
        buffers.push(("window", "f32", Slot::Input(2)));
    }
    let numbers = [
        ("length", shape.n),
        ("signals", shape.signals),
        ("samples", shape.samples),
        ("bins", shape.bins),
        ("from_per", shape.from.per),
        ("from_outer", shape.from.outer),
        ("from_inner", shape.from.inner),
        ("from_step", shape.from.step),
        ("to_per", shape.to.per),
        ("to_outer", shape.to.outer),
        ("to_inner", shape.to.inner),
        ("to_step", shape.to.step),
    ];
    let mut params: Vec<(String, Param)> =
        numbers.iter().map(|&(name, n)| Ok((name.to_owned(), count(n)?))).collect::<Result<_>>()?;
    let factor = if shape.inverse { 1.0 / shape.n as f64 } else { 1.0 };
    params.push(("factor".to_owned(), Param::F32(factor as f32)));
    let fours: i64 = if shape.signals >= 64 { 4 } else { 1 };
    let is_real = shape.signal == Signal::Real;
    let module = wgsl!(
        "signal/spectra.wgsl",
        fours,
        is_chirp,
        is_real,
        is_half = shape.signal == Signal::Half,
        has_im = !is_real || is_chirp,
        has_window,
        gives_im = shape.parts == 2,
    );
    let groups = |n: i64, of: i64| u32::try_from(div_up(n, of)).unwrap_or(u32::MAX);
    let groups = [groups(shape.bins, 64), groups(shape.signals, fours * 4), 1];
    let turns = turns(div_up(shape.n, 64) as u64, turns(fours as u64, 0) + turns(64, 0));
    let body = Body::Groups { groups, module: &module };
    build.add(ShaderStep { name: "spectra", buffers, params, turns, body })?;
    build.finish()
}

/// A window: `a - b cos(x) + c cos(2 x)` for x from 0 to 2 pi.
fn prepare_window(request: &Request<'_>, [a, b, c]: [f64; 3]) -> Result<Prepared> {
    let n = host_int(request, 0, 0)?;
    expect_output(request, 0, &[n])?;
    if n > WINDOW_MAX {
        return Err(Error::unsupported(format!("a window of {n} elements")));
    }
    // The last element of a symmetric window equals the first one; a window of one element has no period.
    let is_periodic = request.attrs.int("periodic", 1)? != 0;
    let period = (if is_periodic { n } else { n - 1 }).max(1);
    let mut build = Build::new(request);
    build.add(ShaderStep {
        name: "window",
        buffers: vec![("y", "f32", Slot::Output(0))],
        params: vec![
            ("period".to_owned(), count(period)?),
            ("a".to_owned(), Param::F32(a as f32)),
            ("b".to_owned(), Param::F32(b as f32)),
            ("c".to_owned(), Param::F32(c as f32)),
        ],
        turns: 0,
        body: Body::Items {
            n: n.max(0) as u64,
            functions: &(math::functions(&["sincos_f"]) + &wgsl!("signal/turn.wgsl")),
            each: &wgsl!("signal/window.wgsl"),
        },
    })?;
    build.finish()
}

fn prepare_mel(request: &Request<'_>) -> Result<Prepared> {
    let whole = |i: usize| match host_int(request, i, -1)? {
        n if n >= 0 => Ok(n),
        n => Err(Error::invalid(format!("input {i} is {n}, expected at least 0"))),
    };
    let number = |i: usize| match request.required_input(i)?.constant_f32s()?.as_deref() {
        Some([value]) => Ok(f64::from(*value)),
        _ => Err(Error::invalid(format!("input {i} has to be a constant of one number"))),
    };
    let (cols, length, rate) = (whole(0)?, whole(1)?, whole(2)?);
    let (low, high) = (number(3)?, number(4)?);
    let rows = length / 2 + 1;
    expect_output(request, 0, &[rows, cols])?;
    count(rows)?;
    count(cols)?;
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let hertz = |mel: f64| 700.0 * (f64::powf(10.0, mel / 2595.0) - 1.0);
    let step = (mel(high) - mel(low)) / (cols as f64 + 2.0);
    // The row where each triangle begins; it ends where the one after the next begins.
    let edge = |i: i64| {
        let bin = ((length as f64 + 1.0) * hertz(mel(low) + i as f64 * step) / rate as f64).floor();
        if bin >= 0.0 && bin < rows as f64 {
            return Ok(bin as u32);
        }
        Err(Error::invalid(format!(
            "bands from {low} to {high} hertz, which end beyond a spectrum of {rows} frequencies at {rate} hertz"
        )))
    };
    let edges: Vec<u32> =
        reserve::try_collected(cols as usize + 2, (0..cols + 2).map(edge), "the edges of bands")?;
    if !edges.is_sorted() {
        return Err(Error::invalid(format!("bands from {low} to {high} hertz, expected rising ones")));
    }
    let mut build = Build::new(request);
    let edges = build.table(&edges);
    build.add(ShaderStep {
        name: "mel weights",
        buffers: vec![("edges", "u32", edges), ("y", "f32", Slot::Output(0))],
        params: vec![("cols".to_owned(), count(cols)?)],
        turns: 0,
        body: Body::Items {
            n: request.required_output(0)?.n_elements() as u64,
            functions: "",
            each: &wgsl!("signal/mel.wgsl"),
        },
    })?;
    build.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_turn_backwards_and_chirps_begin_at_one() {
        let numbers = |words: Vec<u32>| words.into_iter().map(f32::from_bits).collect::<Vec<_>>();
        let found = numbers(roots(4, false).expect("memory"));
        for (found, expected) in found.iter().zip([1.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0, 1.0]) {
            assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        }
        assert_eq!(numbers(chirp(400).expect("memory"))[..2], [1.0, 0.0]);
    }
}
