//! CausalConvWithState: each channel's convolution with what came before, and what the next step has to know of it.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("CausalConvWithState", 27, causal_conv).types(&[TypeVar::of(&[F32, F16, BF16])]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let k = extents(request.required_input(1)?)?.get(2).copied().unwrap_or(1);
    cost::per_output(request, 2 * k as u64)
}

struct CausalConv {
    host: Host,
    real: Real,
    lanes: usize,
    channels: usize,
    length: usize,
    /// Elements of a kernel.
    k: usize,
    silu: bool,
}

fn causal_conv(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let (from, kernel) = (extents(x)?, extents(request.required_input(1)?)?);
    let ([batches, channels, length], [of_kernel, 1, k]) = (&from[..], &kernel[..]) else {
        return Err(Error::invalid(format!("an input of {from:?} and kernels of {kernel:?}")));
    };
    if channels != of_kernel || *k == 0 {
        return Err(Error::invalid(format!("an input of {from:?} and kernels of {kernel:?}")));
    }
    let past = [*batches, *channels, k - 1];
    let expected: [(usize, &[usize]); 2] = [(2, &[*channels]), (3, &past)];
    for (i, expected) in expected {
        if let Some(found) = request.input(i).map(extents).transpose()?.filter(|found| found != expected) {
            return Err(Error::invalid(format!("input {i} of {found:?}, expected {expected:?}")));
        }
    }
    expect_output(request, 0, &from)?;
    if request.output(1).is_some() {
        expect_output(request, 1, &past)?;
    }
    Ok(Prepared::new(CausalConv {
        host: request.host,
        real: Real::of(x.dtype())?,
        lanes: batches * channels,
        channels: *channels,
        length: *length,
        k: *k,
        silu: match request.attrs.string("activation", "none")? {
            "none" => false,
            "silu" | "swish" => true,
            name => return Err(Error::invalid(format!("activation is none, silu or swish, found {name}"))),
        },
    }))
}

impl Launch<CpuDevice> for CausalConv {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let source = |i: usize| (i < operands.n_inputs()).then(|| self.real.source(operands.input_ref(i)));
        let (Some(x), Some(w)) = (source(0), source(1)) else {
            return Err(Error::invalid("fewer than two inputs"));
        };
        let is_there = |source: &Source| !source.is_empty();
        let (bias, past) = (source(2).filter(is_there), source(3).filter(is_there));
        let y = self.real.sink(operands.output_ref(0));
        let state = (operands.n_outputs() > 1).then(|| self.real.sink(operands.output_ref(1)));
        let state = state.filter(|state| !state.is_empty());
        let grain = (4096 / (self.length * self.k).max(1)).max(1);
        self.host.parallel_for(self.lanes, grain, |range, _| {
            for lane in range {
                self.lane([x, w], [bias, past], y, state, lane)?;
            }
            Ok(())
        })
    }
}

impl CausalConv {
    /// One channel of one batch, which is this chunk's own.
    fn lane(
        &self,
        [x, w]: [Source; 2],
        [bias, past]: [Option<Source>; 2],
        y: Sink,
        state: Option<Sink>,
        lane: usize,
    ) -> Result<()> {
        let (before, channel) = (self.k - 1, lane % self.channels);
        // The element at `i` of the past and the present, one behind the other.
        let at = |i: usize| match i.checked_sub(before) {
            Some(i) => x.get(lane * self.length + i),
            None => past.map_or(0.0, |past| past.get(lane * before + i)),
        };
        let mut pace = self.host.pace();
        for i in 0..self.length {
            pace.work(8 * self.k)?;
            let products = (0..self.k).map(|k| at(i + k) * w.get(channel * self.k + k));
            let sum = products.sum::<f64>() + bias.map_or(0.0, |bias| bias.get(channel));
            let value = if self.silu { sum / (1.0 + (-sum).exp()) } else { sum };
            // SAFETY: the lane is this chunk's own.
            unsafe { y.set(lane * self.length + i, value) };
        }
        if let Some(state) = state {
            for i in 0..before {
                // SAFETY: the lane of the state is this chunk's own, too.
                unsafe { state.set(lane * before + i, at(self.length + i)) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn a_channel_goes_on_where_it_was() {
        let convolved = |past: Option<[f32; 2]>, activation: &'static str, of_kernel: usize| {
            let inputs = [
                Some(Array::of(&[1, 1, 2], &[1.0f32, 2.0])),
                Some(Array::of(&[of_kernel, 1, 3], &[1.0f32, 10.0, 100.0, 0.0, 0.0, 0.0][..3 * of_kernel])),
                Some(Array::of(&[1], &[0.5f32])),
                past.map(|past| Array::of(&[1, 1, 2], &past)),
            ];
            let outputs = [Some(Array::empty::<f32>(&[1, 1, 2])), Some(Array::empty::<f32>(&[1, 1, 2]))];
            let attrs = [("activation", Value::Text(activation))];
            let found = run(Isa::Baseline, "CausalConvWithState", &attrs, &inputs, &outputs)?;
            let elements = |i: usize| found[i].as_ref().expect("an output").elements::<f32>();
            Ok((elements(0), elements(1)))
        };
        assert_eq!(convolved(None, "none", 1), Ok((vec![100.5, 210.5], vec![1.0, 2.0])));
        assert_eq!(convolved(Some([3.0, 4.0]), "none", 1), Ok((vec![143.5, 214.5], vec![1.0, 2.0])));
        let error: String = convolved(None, "relu", 1).expect_err("an activation of nothing");
        assert!(error.contains("found relu"), "{error}");
        assert!(convolved(None, "none", 2).is_err());
    }
}
