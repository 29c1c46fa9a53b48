//! Einsum: sums of products over the dimensions that an equation names.
//!
//! Every element of the result is one sum over all positions of the names that the result does not have: of f64 in f64, of narrower
//! floats in f32, whose range is that of the matrix products that a pass makes of most equations. What is left for this kernel
//! is small or rare. Absent on purpose: another order of contraction for three operands or more, and a matrix product's speed.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::walk::Walk;
use crate::kernels::numbers::real::{Real, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::{self, Equation, Name};
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("Einsum", 12, einsum).types(&[TypeVar::of(FLOATS)]).cost(cost).doc("up to four operands")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n: usize = request.inputs.iter().map(|input| input.n_elements()).max().unwrap_or(1);
    cost::per_output(request, 2 * n as u64)
}

/// Most operands.
const OPERANDS_MAX: usize = 4;

struct Einsum {
    host: Host,
    real: Real,
    /// True if products and sums are rounded to f32.
    is_single: bool,
    n_operands: usize,
    /// Positions of the result, and those that each of them sums over, but for one name.
    kept: Walk<OPERANDS_MAX>,
    summed: Walk<OPERANDS_MAX>,
    /// Extent and strides of that name, the longest one.
    run: (usize, [usize; OPERANDS_MAX]),
}

fn einsum(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let n_operands = request.inputs.len();
    if n_operands > OPERANDS_MAX {
        return Err(Error::unsupported(format!("{n_operands} operands, expected at most {OPERANDS_MAX}")));
    }
    let Equation { kept, mut summed } = Equation::of(request)?;
    let to: Vec<i64> = kept.iter().map(|name| name.extent).collect();
    read::expect_output(request, 0, &to)?;
    let longest = (0..summed.len()).max_by_key(|&i| summed[i].extent);
    let run = longest.map(|i| dim(&summed.swap_remove(i)));
    let run = run.map_or((1, [0; OPERANDS_MAX]), |(n, strides)| (n, strides.map(|stride| stride as usize)));
    Ok(Prepared::new(Einsum {
        host: request.host,
        real: Real::of(request.required_input(0)?.dtype())?,
        is_single: request.required_input(0)?.dtype() != F64,
        n_operands,
        kept: Walk::new(kept.iter().map(dim))?,
        summed: Walk::new(summed.iter().map(dim))?,
        run,
    }))
}

/// A name as it is walked over: its extent, which is from 0, and elements of each operand from one position to the next.
fn dim(name: &Name) -> (usize, [isize; OPERANDS_MAX]) {
    let mut strides = [0; OPERANDS_MAX];
    strides.iter_mut().zip(&name.strides).for_each(|(to, from)| *to = *from as isize);
    (name.extent as usize, strides)
}

impl Launch<CpuDevice> for Einsum {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let inputs: [_; OPERANDS_MAX] =
            core::array::from_fn(|i| self.real.source(operands.input_ref(i.min(self.n_operands - 1))));
        let inputs = &inputs[..self.n_operands];
        let y = self.real.sink(operands.output_ref(0));
        let (n_summed, n) = (self.summed.len(), self.run.0);
        let grain = (8192 / n_summed.saturating_mul(n).max(1)).max(1);
        self.host.parallel_for(self.kept.len(), grain, |range, _| {
            let mut at = self.kept.position(range.start);
            let mut pace = self.host.pace();
            for i in range {
                let mut sum = 0.0;
                if n_summed > 0 {
                    let mut inner = self.summed.position(0);
                    for _ in 0..n_summed {
                        pace.work(8 * n)?;
                        let first = core::array::from_fn(|k| (at.offsets[k] + inner.offsets[k]) as usize);
                        sum = self.rounded(sum + self.products(inputs, first));
                        self.summed.advance(&mut inner);
                    }
                }
                // SAFETY: chunks do not overlap.
                unsafe { y.set(i, sum) };
                self.kept.advance(&mut at);
            }
            Ok(())
        })
    }
}

impl Einsum {
    /// The sum over the longest name, from these elements of the operands on.
    fn products(&self, inputs: &[Source], first: [usize; OPERANDS_MAX]) -> f64 {
        let (n, strides) = self.run;
        let element = |k: usize, i: usize| inputs[k].get(first[k] + i * strides[k]);
        let product = |i: usize| {
            (1..inputs.len()).fold(element(0, i), |product, k| self.rounded(product * element(k, i)))
        };
        (0..n).fold(0.0, |sum, i| self.rounded(sum + product(i)))
    }

    /// A number as the sum keeps it.
    fn rounded(&self, x: f64) -> f64 {
        if self.is_single { f64::from(x as f32) } else { x }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    fn summed(
        equation: &'static str,
        inputs: &[(&[usize], &[f32])],
        to: &[usize],
    ) -> Result<Vec<f32>, String> {
        let inputs: Vec<_> = inputs.iter().map(|(shape, x)| Some(Array::of(shape, x))).collect();
        let output = [Some(Array::empty::<f32>(to))];
        let found = run(Isa::Baseline, "Einsum", &[("equation", Value::Text(equation))], &inputs, &output)?;
        Ok(found[0].as_ref().expect("an output").elements::<f32>())
    }

    #[test]
    fn equations() {
        let a: (&[usize], &[f32]) = (&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let b: (&[usize], &[f32]) = (&[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let square: (&[usize], &[f32]) = (&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(summed("ij, jk -> ik", &[a, b], &[2, 2]), Ok(vec![4.0, 5.0, 10.0, 11.0]));
        assert_eq!(summed("ij,jk", &[a, b], &[2, 2]), Ok(vec![4.0, 5.0, 10.0, 11.0]));
        assert_eq!(summed("ba", &[a], &[3, 2]), Ok(vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
        assert_eq!(summed("...i->...", &[a], &[2]), Ok(vec![6.0, 15.0]));
        assert_eq!(summed("ii->i", &[square], &[2]), Ok(vec![1.0, 4.0]));
        assert_eq!(summed("ii", &[square], &[]), Ok(vec![5.0]));
        assert_eq!(summed("i,j->ji", &[(&[2], &[1.0, 2.0]), (&[1], &[5.0])], &[1, 2]), Ok(vec![5.0, 10.0]));
        assert_eq!(summed("ij->", &[(&[2, 0], &[])], &[]), Ok(vec![0.0]));
        assert_eq!(summed("ij,jk,k->i", &[a, b, (&[2], &[1.0, 10.0])], &[2]), Ok(vec![54.0, 120.0]));
        let refused = |equation, to: &[usize], words: &str| {
            let error = summed(equation, &[square], to).expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        refused("ij,jk->ik", &[2, 2], "an equation with 1 terms");
        refused("ijk->i", &[2], "as many letters as [2,2] has dimensions");
        refused("ij->k", &[2], "whose result has letters of its terms");
        refused("ij->ii", &[2, 2], "one name twice");
    }
}
