//! The kernels: `Node`, and `Busy`, which is a `Node` that then computes for a while.
//!
//! Inputs and the output are `i64[1]`. Sums wrap around, as those of the peers do. With one input and with two a
//! launch has no loop: which function it is was decided by `prepare`. All inputs are read before the output is
//! written, so the output may lie where the first input does.

use crate::BenchDevice;
use devbay_plugin_api::abi::{self, BufferRef, DEVBAY_STATUS_OK, DEVBAY_VARIADIC, LaunchFn, Status};
use devbay_plugin_api::sdk::*;
use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

type Request<'a> = PrepareRequest<'a, BenchDevice>;

/// Domain of the ops.
pub const DOMAIN: &str = "bench";

/// The kernels.
pub static KERNELS: [Kernel<BenchDevice>; 2] = [
    any("Node", prepare_node, node_cost).doc("the sum of the inputs, and 1 if there is one"),
    any("Busy", prepare_busy, busy_cost).doc("as Node; then computes for about `ns` nanoseconds (1000)"),
];

const INTS: &[TypeVar] = &[TypeVar::of(&[I64])];

const fn any(
    op: &'static str,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
    cost: fn(&Request<'_>) -> Result<Cost>,
) -> Kernel<BenchDevice> {
    Kernel::new(op, 1, prepare)
        .domain(DOMAIN)
        .types(INTS)
        .operands(&[0], &[0])
        .inputs(1, DEVBAY_VARIADIC)
        .in_place(&[0])
        .attributes(&["ns"])
        .cost(cost)
        .shape(output_type)
}

fn output_type(_request: &Request<'_>, _output_idx: usize) -> Result<(DType, Vec<i64>)> {
    Ok((I64, vec![1]))
}

/// Refuses operands that are not one number each; their element type the SDK has checked.
fn check(request: &Request<'_>) -> Result<usize> {
    let operands = request.inputs.iter().chain(&request.outputs);
    match operands.clone().find(|operand| operand.is_absent() || operand.shape() != [1]) {
        Some(other) => Err(Error::unsupported(format!("expected operands [1], found {:?}", other.shape()))),
        None if request.inputs.is_empty() => Err(Error::invalid("no operands")),
        None => Ok(request.inputs.len()),
    }
}

fn prepare_node(request: &Request<'_>) -> Result<Prepared> {
    let n = check(request)?;
    let launch: LaunchFn = match n {
        1 => launch_one,
        2 => launch_two,
        _ => launch_many,
    };
    // SAFETY: the functions take a `State<usize>`, the number of inputs; they do not unwind, and use the references of
    // as many inputs and of the output.
    Ok(unsafe { Prepared::raw(launch, n) })
}

fn node_cost(request: &Request<'_>) -> Result<Cost> {
    let n = request.inputs.len() as u64;
    Ok(Cost { flops: n.saturating_sub(1).max(1), bytes_read: 8 * n, bytes_written: 8 })
}

/// State of a prepared `Busy` kernel.
struct Busy {
    n_inputs: usize,
    rounds: u64,
}

/// Returns the number of rounds of a launch.
fn rounds(request: &Request<'_>) -> Result<u64> {
    let ns = request.attrs.int("ns", 1000)?;
    let ns = u32::try_from(ns)
        .map_err(|_| Error::invalid(format!("attribute ns is a time of at most 4 s, found {ns}")))?;
    Ok((request.device.pace.rounds_per_us * f64::from(ns) / 1000.0).round() as u64)
}

fn prepare_busy(request: &Request<'_>) -> Result<Prepared> {
    let busy = Busy { n_inputs: check(request)?, rounds: rounds(request)? };
    // SAFETY: `launch_busy` takes a `State<Busy>`, does not unwind, and uses the references of as many inputs as that
    // says and of the output.
    Ok(unsafe { Prepared::raw(launch_busy, busy) })
}

fn busy_cost(request: &Request<'_>) -> Result<Cost> {
    let node = node_cost(request)?;
    Ok(Cost { flops: node.flops + OPERATIONS * rounds(request)?, ..node })
}

/// Speed of this processor.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Rounds of [`go_round`] in a microsecond.
    pub rounds_per_us: f64,
}

impl Pace {
    /// The fastest of a few tries: what slowed the others down was not the work.
    pub fn measured() -> Self {
        const ROUNDS: u64 = 20_000;
        let fastest = (0..20).map(|_| {
            let begin = Instant::now();
            black_box(go_round(black_box(1), ROUNDS));
            begin.elapsed().as_nanos() as f64
        });
        let nanos = fastest.fold(f64::INFINITY, f64::min).max(1.0);
        Self { rounds_per_us: ROUNDS as f64 * 1000.0 / nanos }
    }
}

/// Operations of a round.
const OPERATIONS: u64 = 2;

/// A multiplication and an addition a round, each waiting for the one before (Knuth's MMIX generator).
#[inline(never)]
pub fn go_round(seed: u64, rounds: u64) -> u64 {
    let mut x = seed;
    for _ in 0..rounds {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    x
}

/// Reads the number that reference `i` points to.
///
/// # Safety
/// `refs` has a reference `i`, to a number that may be read.
#[inline(always)]
unsafe fn read(refs: *const BufferRef, i: usize) -> i64 {
    // SAFETY: `refs` has a reference `i` (# Safety).
    let addr = unsafe { (*refs.add(i)).addr };
    // SAFETY: the reference is to a number that may be read (# Safety); the host aligns operands (`bind_align`).
    unsafe { (addr as *const i64).read() }
}

/// Writes where reference `i` points to.
///
/// # Safety
/// `refs` has a reference `i`, to a number that this launch alone may write.
#[inline(always)]
unsafe fn write(refs: *const BufferRef, i: usize, value: i64) {
    // SAFETY: `refs` has a reference `i` (# Safety).
    let addr = unsafe { (*refs.add(i)).addr };
    // SAFETY: the reference is to a number that this launch alone may write (# Safety); the host aligns operands
    // (`bind_align`).
    unsafe { (addr as *mut i64).write(value) };
}

/// The sum of `n` inputs, and 1 if that is one.
///
/// # Safety
/// `refs` has `n` references to numbers that may be read.
#[inline(always)]
unsafe fn sum(refs: *const BufferRef, n: usize) -> i64 {
    // SAFETY: `i` is below `n`, and `refs` has `n` references (# Safety).
    (0..n).fold(i64::from(n == 1), |sum, i| sum.wrapping_add(unsafe { read(refs, i) }))
}

unsafe extern "C" fn launch_one(
    _state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: one input and the output have references (B21).
    let x = unsafe { read(refs, 0) };
    // SAFETY: the output's reference comes after the input's (B21).
    unsafe { write(refs, 1, x.wrapping_add(1)) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn launch_two(
    _state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: two inputs and the output have references (B21).
    let a = unsafe { read(refs, 0) };
    // SAFETY: the second input's reference (B21).
    let b = unsafe { read(refs, 1) };
    // SAFETY: the output's reference comes after the inputs' (B21).
    unsafe { write(refs, 2, a.wrapping_add(b)) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn launch_many(
    state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let n = unsafe { (*state.cast::<KernelState<usize>>()).kernel };
    // SAFETY: as many inputs as `prepare` was told have references (B21).
    let sum = unsafe { sum(refs, n) };
    // SAFETY: the output's reference comes after the inputs' (B21).
    unsafe { write(refs, n, sum) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn launch_busy(
    state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let Busy { n_inputs, rounds } = unsafe { &(*state.cast::<KernelState<Busy>>()).kernel };
    // SAFETY: as many inputs as `prepare` was told have references (B21).
    let sum = unsafe { sum(refs, *n_inputs) };
    black_box(go_round(sum.cast_unsigned(), *rounds));
    // SAFETY: the output's reference comes after the inputs' (B21).
    unsafe { write(refs, *n_inputs, sum) };
    DEVBAY_STATUS_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(launch: LaunchFn, state: *const c_void, inputs: &[i64]) -> i64 {
        let mut out = 0i64;
        let of = |addr: u64| BufferRef { addr, length: 8, ..BufferRef::ABSENT };
        let mut refs: Vec<_> = inputs.iter().map(|input| of(std::ptr::from_ref(input) as u64)).collect();
        refs.push(of(&raw mut out as u64));
        // SAFETY: the references are those of the inputs and of the output.
        let status = unsafe { launch(state, std::ptr::null_mut(), refs.as_ptr(), std::ptr::null()) };
        assert_eq!(status, DEVBAY_STATUS_OK);
        out
    }

    #[test]
    fn a_node_is_the_sum_of_its_inputs_and_one_more_if_it_is_alone() {
        assert_eq!(launched(launch_one, std::ptr::null(), &[41]), 42);
        assert_eq!(launched(launch_two, std::ptr::null(), &[i64::MAX, 1]), i64::MIN);
        // SAFETY: the state of `launch_many` is the number of inputs.
        let many = unsafe { Prepared::raw(launch_many, 3usize) };
        assert_eq!(launched(launch_many, std::ptr::from_ref(many.header()).cast(), &[1, 2, 4]), 7);
    }

    #[test]
    fn busy_is_a_node_that_takes_longer() {
        let busy = |n_inputs, rounds| {
            // SAFETY: the state of `launch_busy` is a `Busy`.
            unsafe { Prepared::raw(launch_busy, Busy { n_inputs, rounds }) }
        };
        let (one, two) = (busy(1, 10), busy(2, 0));
        assert_eq!(launched(launch_busy, std::ptr::from_ref(one.header()).cast(), &[1]), 2);
        assert_eq!(launched(launch_busy, std::ptr::from_ref(two.header()).cast(), &[1, 2]), 3);
        assert!(Pace::measured().rounds_per_us > 0.0);
    }
}
