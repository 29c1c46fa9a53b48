//! BatchNormalization in f64 and of mixed types, and in training: there with the statistics of the operand itself, which
//! also go into the running ones.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file; the one of f32 with given statistics comes first where it can.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("BatchNormalization", 15, prepare)
    .types(&[TypeVar::of(FLOATS), TypeVar::of(FLOATS), TypeVar::of(FLOATS)])
    .priority(-1)
    .cost(cost)
    .doc("all types, and training mode")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 8)
}

struct BatchNorm {
    host: Host,
    /// The statistics are those of the operand, and not what the node is given.
    trains: bool,
    /// Readers of the operand, scale and bias, and the running statistics.
    reals: [Real; 3],
    batches: usize,
    channels: usize,
    /// Elements of a channel of one batch.
    n: usize,
    epsilon: f64,
    momentum: f64,
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let trains = request.attrs.int("training_mode", 0)? != 0;
    let from = extents(request.required_input(0)?)?;
    let channels = from.get(1).copied().unwrap_or(1);
    for i in 1..5 {
        let found = extents(request.required_input(i)?)?;
        if found != [channels] {
            return Err(Error::invalid(format!("input {i} of {found:?} for {channels} channels")));
        }
    }
    expect_output(request, 0, &from)?;
    for i in (1..3).filter(|&i| request.output(i).is_some()) {
        if !trains {
            return Err(Error::invalid("running statistics without training_mode"));
        }
        expect_output(request, i, &[channels])?;
    }
    let real = |i: usize| Real::of(request.required_input(i)?.dtype());
    Ok(Prepared::new(BatchNorm {
        host: request.host,
        trains,
        reals: [real(0)?, real(1)?, real(3)?],
        batches: from.first().copied().unwrap_or(1),
        channels,
        n: from.get(2..).unwrap_or_default().iter().product(),
        epsilon: request.attrs.float("epsilon", 1e-5)?.into(),
        momentum: request.attrs.float("momentum", 0.9)?.into(),
    }))
}

impl Launch<CpuDevice> for BatchNorm {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [x, scale, bias, mean, variance] = [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)]
            .map(|(i, real)| self.reals[real].source(operands.input_ref(i)));
        let y = self.reals[0].sink(operands.output_ref(0));
        let running = [1, 2].map(|i| {
            let is_there = i < operands.n_outputs() && operands.output_ref(i).addr != 0;
            is_there.then(|| self.reals[2].sink(operands.output_ref(i)))
        });
        self.host.parallel_for(self.channels, 1, |range, _| {
            for channel in range {
                let at = |i: usize| (i / self.n * self.channels + channel) * self.n + i % self.n;
                let n = self.batches * self.n;
                let (of_x, spread) = if self.trains {
                    let of_x = (0..n).map(|i| x.get(at(i))).sum::<f64>() / n as f64;
                    (of_x, (0..n).map(|i| (x.get(at(i)) - of_x).powi(2)).sum::<f64>() / n as f64)
                } else {
                    (mean.get(channel), variance.get(channel))
                };
                let factor = scale.get(channel) / (spread + self.epsilon).sqrt();
                for i in 0..n {
                    let value = (x.get(at(i)) - of_x) * factor + bias.get(channel);
                    // SAFETY: the channel is this chunk's own.
                    unsafe { y.set(at(i), value) };
                }
                for (sink, old, new) in [(running[0], mean, of_x), (running[1], variance, spread)] {
                    if let Some(sink) = sink {
                        let value = old.get(channel) * self.momentum + new * (1.0 - self.momentum);
                        // SAFETY: the channel's running statistics are this chunk's own, too.
                        unsafe { sink.set(channel, value) };
                    }
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn statistics_are_those_of_the_operand() {
        // In f64, which only this kernel takes; the channels have the means 3 and 20 and the variances 4 and 100.
        let x = [1.0f64, 5.0, 10.0, 30.0, 5.0, 1.0, 30.0, 10.0];
        let list = |values: [f64; 2]| Some(Array::of(&[2], &values));
        let inputs = [
            Some(Array::of(&[2, 2, 2], &x)),
            list([1.0, 2.0]),
            list([0.0, 7.0]),
            list([1.0, 0.0]),
            list([0.0; 2]),
        ];
        let output = || Some(Array::empty::<f64>(&[2]));
        let outputs = [Some(Array::empty::<f64>(&[2, 2, 2])), output(), output()];
        let attrs = [("training_mode", Value::Int(1))];
        let found = run(Isa::Baseline, "BatchNormalization", &attrs, &inputs, &outputs).expect("normalises");
        let close = |i: usize, expected: &[f64]| {
            let found = found[i].as_ref().expect("an output").elements::<f64>();
            let fits = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-5);
            assert!(fits, "{found:?}, expected {expected:?}");
        };
        close(0, &[-1.0, 1.0, 5.0, 9.0, 1.0, -1.0, 9.0, 5.0]);
        close(1, &[1.2, 2.0]);
        close(2, &[0.4, 10.0]);
        // With the statistics that are given: means 1 and 0, variances 0 and 0.
        let epsilon = [("epsilon", Value::Float(0.25))];
        let found =
            run(Isa::Baseline, "BatchNormalization", &epsilon, &inputs, &outputs[..1]).expect("normalises");
        let y = found[0].as_ref().expect("an output").elements::<f64>();
        assert_eq!(y, [0.0, 8.0, 47.0, 127.0, 8.0, 0.0, 127.0, 47.0]);
        let error = run(Isa::Baseline, "BatchNormalization", &[], &inputs, &outputs);
        assert!(error.expect_err("no training").contains("without training_mode"));
    }
}
