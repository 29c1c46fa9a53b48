//! The plugin's kernels, and what they compute as functions that the interpreter calls, too.

use super::plugin::{QueuedBuffer, QueuedDevice, QueuedStream};
use devbay_plugin_api::sdk::*;

/// Element `i` of the output is the sum of the elements `i` of all inputs, which repeat, and a number.
struct Add {
    n_inputs: usize,
    n: usize,
    plus: i64,
    spins: u32,
    fails: bool,
}

pub(super) fn prepare<const WAIT: bool, const CALLS: bool>(
    request: &PrepareRequest<'_, QueuedDevice<WAIT, CALLS>>,
) -> Result<Prepared> {
    Ok(Prepared::new::<QueuedDevice<WAIT, CALLS>, _>(Add {
        n_inputs: request.inputs.len(),
        n: request.attrs.int("n", 1)? as usize,
        plus: request.attrs.int("plus", 0)?,
        spins: request.attrs.int("spins", 0)? as u32,
        fails: request.attrs.int("fails", 0)? != 0,
    }))
}

impl<const WAIT: bool, const CALLS: bool> Launch<QueuedDevice<WAIT, CALLS>> for Add {
    fn launch(
        &self,
        stream: &QueuedStream<WAIT, CALLS>,
        operands: &mut Operands<'_, QueuedBuffer>,
    ) -> Result<()> {
        for reference in operands.input_refs().iter().chain(operands.output_refs()) {
            stream.check(reference.addr, reference.length);
        }
        for _ in 0..self.spins {
            std::hint::spin_loop();
        }
        if self.fails {
            return Err(Error::invalid("it was told to fail"));
        }
        // In place the output is the first input: all is read before anything is written.
        let inputs: Vec<&[i64]> = (0..self.n_inputs).map(|k| operands.input::<i64>(k)).collect();
        let at = |i: usize| add_up(self.plus, inputs.iter().copied(), i);
        let sums: Vec<i64> = (0..self.n).map(at).collect();
        let output = operands.output_ref(0).addr as *mut i64;
        // SAFETY: the host lends as many numbers as the output has, and the inputs are read no more.
        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), output, self.n) };
        Ok(())
    }
}

/// Element `i` of a node's result.
pub fn add_up<'a>(plus: i64, inputs: impl Iterator<Item = &'a [i64]>, i: usize) -> i64 {
    inputs.fold(plus, |sum, input| match input.len() {
        0 => sum,
        n => sum.wrapping_mul(3).wrapping_add(input[i % n]),
    })
}

/// Returns whether the sum of a value's elements is odd.
pub fn is_odd(value: &[i64]) -> bool {
    value.iter().fold(0i64, |sum, x| sum.wrapping_add(*x)) & 1 == 1
}

/// Returns the trip count of a loop that depends on a value.
pub fn trips(value: &[i64]) -> i64 {
    value.iter().fold(0i64, |sum, x| sum.wrapping_add(*x)).rem_euclid(4)
}

/// One number of a value.
struct Ask {
    odd: bool,
}

pub(super) fn prepare_odd<const WAIT: bool, const CALLS: bool>(
    _request: &PrepareRequest<'_, QueuedDevice<WAIT, CALLS>>,
) -> Result<Prepared> {
    Ok(Prepared::new::<QueuedDevice<WAIT, CALLS>, _>(Ask { odd: true }))
}

pub(super) fn prepare_trips<const WAIT: bool, const CALLS: bool>(
    _request: &PrepareRequest<'_, QueuedDevice<WAIT, CALLS>>,
) -> Result<Prepared> {
    Ok(Prepared::new::<QueuedDevice<WAIT, CALLS>, _>(Ask { odd: false }))
}

impl<const WAIT: bool, const CALLS: bool> Launch<QueuedDevice<WAIT, CALLS>> for Ask {
    fn launch(
        &self,
        stream: &QueuedStream<WAIT, CALLS>,
        operands: &mut Operands<'_, QueuedBuffer>,
    ) -> Result<()> {
        for reference in operands.input_refs().iter().chain(operands.output_refs()) {
            stream.check(reference.addr, reference.length);
        }
        let input = operands.input::<i64>(0);
        if self.odd {
            operands.output::<u8>(0)[0] = u8::from(is_odd(input));
        } else {
            operands.output::<i64>(0)[0] = trips(input);
        }
        Ok(())
    }
}
