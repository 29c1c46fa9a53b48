//! MaxUnpool: what a MaxPool chose, put back where it was, and zeros around it.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents};
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("MaxUnpool", 9, max_unpool)
    .types(&[TypeVar::of(FLOATS), TypeVar::of(&[I64])])
    .cost(cost::moved)];

/// Runs on one thread: two windows may have chosen the same element, and the later one counts.
struct MaxUnpool {
    n: usize,
    size: usize,
    /// Extents that the indices count in, and those of the output.
    inferred: Vec<usize>,
    to: Vec<usize>,
}

fn max_unpool(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let from = extents(x)?;
    let indices = extents(request.required_input(1)?)?;
    if indices != from || from.len() < 3 {
        return Err(Error::invalid(format!("{indices:?} indices for {from:?}, expected one for each")));
    }
    let axes = from.len() - 2;
    let list = |name: &str, default: i64, n: usize| match request.attrs.ints(name)? {
        None => Ok(vec![default; n]),
        Some(list) if list.len() == n => Ok(list),
        Some(list) => Err(Error::invalid(format!("{name} is {list:?}, expected {n} numbers"))),
    };
    let (kernel, strides) = (list("kernel_shape", 1, axes)?, list("strides", 1, axes)?);
    let pads = list("pads", 0, 2 * axes)?;
    let mut inferred = from[..2].to_vec();
    for i in 0..axes {
        let span = (from[2 + i] as i128 - 1) * i128::from(strides[i]) + i128::from(kernel[i]);
        let extent = span - i128::from(pads[i]) - i128::from(pads[axes + i]);
        inferred.push(usize::try_from(extent).map_err(|_| {
            Error::invalid(format!("an extent of {extent} from windows of {kernel:?} every {strides:?}"))
        })?);
    }
    let to = match request.input(2) {
        None => inferred.clone(),
        Some(_) => extents(request.required_output(0)?)?,
    };
    if to.len() != from.len() {
        return Err(Error::invalid(format!("an output of {to:?} from {from:?}")));
    }
    expect_output(request, 0, &to)?;
    Ok(Prepared::new(MaxUnpool { n: x.n_elements(), size: element_size(x.dtype()), inferred, to }))
}

impl Launch<CpuDevice> for MaxUnpool {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (x, y) = (operands.input_ptr::<u8>(0), operands.output_ptr::<u8>(0));
        let indices = operands.input::<i64>(1);
        let bytes = self.to.iter().product::<usize>() * self.size;
        // SAFETY: the output has these extents; zero has the same bits in all of the dtypes.
        unsafe { y.write_bytes(0, bytes) };
        for (i, &index) in indices[..self.n].iter().enumerate() {
            let mut rest = usize::try_from(index).ok();
            let (mut at, mut stride) = (0, 1);
            for (&inferred, &to) in self.inferred.iter().zip(&self.to).rev() {
                rest = rest.filter(|rest| inferred > 0 && rest % inferred < to).map(|rest| {
                    at += rest % inferred * stride;
                    rest / inferred
                });
                stride *= to;
            }
            if rest != Some(0) {
                return Err(Error::invalid(format!("index {index} of an output of {:?}", self.to)));
            }
            let source = x.wrapping_add(i * self.size);
            // SAFETY: every coordinate lies within the output, and `i` within the input.
            unsafe { copy_run(source, y.wrapping_add(at * self.size), self.size) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn elements_come_back_to_their_places() {
        let put = |indices: [i64; 2], to: Option<i64>| {
            let n = to.unwrap_or(4) as usize;
            let inputs = [
                Some(Array::of(&[1, 1, 2], &[5.0f32, 6.0])),
                Some(Array::of(&[1, 1, 2], &indices)),
                to.map(|to| Array::of(&[3], &[1, 1, to])),
            ];
            let attrs = [("kernel_shape", Value::Ints(vec![2])), ("strides", Value::Ints(vec![2]))];
            let output = [Some(Array::empty::<f32>(&[1, 1, n]))];
            let found = run(Isa::Baseline, "MaxUnpool", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(put([1, 2], None), Ok(vec![0.0, 5.0, 6.0, 0.0]));
        assert_eq!(put([3, 0], Some(6)), Ok(vec![6.0, 0.0, 0.0, 5.0, 0.0, 0.0]));
        for (indices, to) in [([4, 0], None), ([-1, 0], None), ([3, 0], Some(3))] {
            let error: String = put(indices, to).expect_err("no such place");
            assert!(error.contains("of an output of"), "{error}");
        }
    }
}
