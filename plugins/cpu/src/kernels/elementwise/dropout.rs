//! Dropout: a part of the elements set to 0 in training, the others scaled up.
//!
//! The seed selects them as in NumPy's `RandomState`, with which ONNX's tests are made: a Mersenne Twister
//! (MT19937; Matsumoto and Nishimura, 1998), two draws for each number in 53 bits. Runs on one thread, in the order
//! of the elements. Without a seed there is no training here: results would not repeat.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents};
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::numbers::real::Real;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("Dropout", 12, dropout)
    .types(&[TypeVar::of(FLOATS), TypeVar::of(FLOATS), TypeVar::of(&[BOOL])])
    .cost(cost)
    .doc("training with a seed")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 16)
}

struct Dropout {
    real: Real,
    ratio: Option<Real>,
    may_train: bool,
    seed: Option<u32>,
    n: usize,
    size: usize,
}

fn dropout(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    for i in (0..2).filter(|&i| request.output(i).is_some()) {
        expect_output(request, i, &from)?;
    }
    for i in 1..3 {
        if let Some(found) = request.input(i).map(TensorView::n_elements).filter(|&n| n != 1) {
            return Err(Error::invalid(format!("input {i} has {found} elements, expected 1")));
        }
    }
    let seed = match request.attrs.get("seed") {
        None => None,
        Some(_) => {
            let seed = request.attrs.int("seed", 0)?;
            let seed = u32::try_from(seed);
            Some(seed.map_err(|_| Error::unsupported("a seed that is no number of 32 bits"))?)
        }
    };
    Ok(Prepared::new(Dropout {
        real: Real::of(input.dtype())?,
        ratio: request.input(1).map(|ratio| Real::of(ratio.dtype())).transpose()?,
        may_train: request.input(2).is_some(),
        seed,
        n: input.n_elements(),
        size: element_size(input.dtype()),
    }))
}

impl Launch<CpuDevice> for Dropout {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let ratio = self.ratio.map_or(0.5, |real| real.source(operands.input_ref(1)).get(0));
        // SAFETY: `prepare` checked that there is one element; any byte may be read.
        let trains = self.may_train && unsafe { operands.input_ptr::<u8>(2).read() } != 0;
        let mask =
            if operands.n_outputs() > 1 { operands.output_ptr::<u8>(1) } else { core::ptr::null_mut() };
        let set = |i: usize, kept: bool| {
            if !mask.is_null() {
                // SAFETY: the mask has the extents of the input.
                unsafe { mask.add(i).write(kept.into()) };
            }
        };
        if !trains || ratio == 0.0 {
            let (from, to) = (operands.input_ptr::<u8>(0), operands.output_ptr::<u8>(0));
            // SAFETY: both have the same extents and are apart (B21).
            unsafe { copy_run(from, to, self.n * self.size) };
            (0..self.n).for_each(|i| set(i, true));
            return Ok(());
        }
        if !(0.0..1.0).contains(&ratio) {
            return Err(Error::invalid(format!("a ratio of {ratio}, expected 0 up to 1")));
        }
        let Some(seed) = self.seed else {
            return Err(Error::unsupported("Dropout in training mode without a seed"));
        };
        let x = self.real.source(operands.input_ref(0));
        let y = self.real.sink(operands.output_ref(0));
        let mut twister = Twister::new(seed);
        for i in 0..self.n {
            let kept = twister.uniform() >= ratio;
            // SAFETY: this is the only thread that writes.
            unsafe { y.set(i, if kept { x.get(i) / (1.0 - ratio) } else { 0.0 }) };
            set(i, kept);
        }
        Ok(())
    }
}

/// MT19937.
struct Twister {
    state: [u32; 624],
    at: usize,
}

impl Twister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for i in 1..state.len() {
            let before = state[i - 1];
            state[i] = (before ^ before >> 30).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, at: 624 }
    }

    fn draw(&mut self) -> u32 {
        let n = self.state.len();
        if self.at == n {
            for i in 0..n {
                let bits = self.state[i] & 1 << 31 | self.state[(i + 1) % n] & !(1 << 31);
                let odd = if bits & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % n] ^ bits >> 1 ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// A number from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        let (high, low) = (self.draw() >> 5, self.draw() >> 6);
        (f64::from(high) * f64::from(1 << 26) + f64::from(low)) / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Twister;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::{BOOL, DType, Element};

    /// A truth value, as the tests write it.
    #[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(transparent)]
    struct Truth(u8);
    impl Element for Truth {
        const DTYPE: DType = BOOL;
    }

    #[test]
    fn numbers_are_those_of_the_authors() {
        // The first and the ten thousandth number of the seed 5489, as the C++ standard has it ([rand.predef]).
        let mut twister = Twister::new(5489);
        assert_eq!(twister.draw(), 3_499_211_612);
        assert_eq!((0..9999).map(|_| twister.draw()).last(), Some(4_123_659_995));
        // `numpy.random.RandomState(0).uniform()`.
        assert!((Twister::new(0).uniform() - 0.548_813_503_927_324_8).abs() < 1e-15);
    }

    #[test]
    fn what_is_kept_is_scaled() {
        let found = |ratio: f32, trains: u8, seed: Option<i64>| {
            let inputs = [
                Some(Array::of(&[4], &[0.4375f32; 4])),
                Some(Array::of(&[], &[ratio])),
                Some(Array::of(&[], &[Truth(trains)])),
            ];
            let outputs = [Some(Array::empty::<f32>(&[4])), Some(Array::empty::<Truth>(&[4]))];
            let attrs: Vec<_> = seed.into_iter().map(|seed| ("seed", Value::Int(seed))).collect();
            let found = run(Isa::Baseline, "Dropout", &attrs, &inputs, &outputs)?;
            let mask = found[1].as_ref().expect("a mask").elements::<Truth>();
            Ok((
                found[0].as_ref().expect("an output").elements::<f32>(),
                mask.iter().map(|t| t.0).sum::<u8>(),
            ))
        };
        // The seed 0 draws 0.549, 0.715, 0.603, 0.545.
        assert_eq!(found(0.5625, 1, Some(0)), Ok((vec![0.0, 1.0, 1.0, 0.0], 2)));
        assert_eq!(found(0.5625, 0, None), Ok((vec![0.4375; 4], 4)));
        assert_eq!(found(0.0, 1, None), Ok((vec![0.4375; 4], 4)));
        let refused = |ratio, seed, words: &str| {
            let error: String = found(ratio, 1, seed).expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        refused(0.5, None, "without a seed");
        refused(1.0, Some(0), "a ratio of 1");
        refused(f32::NAN, Some(0), "a ratio of NaN");
    }
}
