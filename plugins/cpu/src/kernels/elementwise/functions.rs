//! Functions of one number that are calculated in f64, an element at a time.
//!
//! A function is a plain pointer, so that one loop serves them all. Results are rounded once, to the element type.

use crate::device::CpuDevice;
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 2 * 1024;

/// A function of one number and two parameters.
pub(crate) type Function = fn(f64, [f64; 2]) -> f64;

struct Map {
    host: Host,
    n: usize,
    kind: Kind,
    function: Function,
    params: [f64; 2],
}

/// Prepares a function for the element type of input 0.
///
/// # Errors
/// Invalid for a result of another size; unsupported for elements that are not numbers.
pub(crate) fn prepare(request: &Request<'_>, params: [f64; 2], function: Function) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    let n = x.n_elements();
    if y.n_elements() != n {
        return Err(Error::invalid(format!("an output of {} elements for {n} of the input", y.n_elements())));
    }
    Ok(Prepared::new(Map { host: request.host, n, kind: Kind::of(x.dtype())?, function, params }))
}

impl Launch<CpuDevice> for Map {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            for i in range {
                // SAFETY: the range lies within both operands, whose sizes `prepare` was told.
                let value = unsafe { self.kind.read(x.at(0), i) };
                let result = (self.function)(value.to_f64(), self.params);
                // SAFETY: the range lies within the output; chunks are apart, and the element was read before.
                unsafe { self.kind.write(y.at(0), i, Value::Float(result), Limits::DEFAULT) };
            }
            Ok(())
        })
    }
}
