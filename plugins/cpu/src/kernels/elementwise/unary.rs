//! Ops that work on each element alone.
//!
//! An op is a type with [`Unary`]; one loop serves them all, compiled for each instruction set, and a plain one
//! serves the rarer element types. The common conversions of Cast are among them: ops whose output has another
//! element type.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa, Separate};
use crate::kernels::cost;
use crate::kernels::elementwise::loops::{BLOCK, HEAVY_FLOPS, blocks, grain, store};
use crate::kernels::numbers::number::{Bool, Number, plain};
use crate::kernels::numbers::widen;
use crate::kernels::numbers::{math, math_double};
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::abi;
use devbay_plugin_api::sdk::*;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const NUMBER: &[TypeVar] = &[TypeVar::of(NUMBERS)];
const SIGNED: &[TypeVar] = &[TypeVar::of(&[F32, I64, I32, F16, BF16, F64, I8, I16])];
const TRUTH: &[TypeVar] = &[TypeVar::of(&[BOOL])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel::<Relu>("Relu", 14, SIGNED, prepare_relu),
    kernel::<Clip<f32>>("Clip", 13, NUMBER, prepare_clip)
        .operands(&[0, 0, 0], &[0])
        .inputs(1, 3)
        .doc("limits that are constant are read once, others in each launch"),
    kernel::<Neg<f32>>("Neg", 13, SIGNED, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Neg<i64>>(request),
        I32 => prepare::<Neg<i32>>(request),
        dtype => plain!(dtype, zeroed::<Neg>(request), prepare::<Neg<f32>>(request)),
    }),
    kernel::<Abs<f32>>("Abs", 13, NUMBER, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Abs<i64>>(request),
        I32 => prepare::<Abs<i32>>(request),
        dtype => plain!(dtype, zeroed::<Abs>(request), prepare::<Abs<f32>>(request)),
    }),
    kernel::<Not>("Not", 1, TRUTH, prepare::<Not>),
];

/// The descriptor that most ops of this file have.
pub(crate) const fn kernel<Op: Unary>(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare)
        .types(types)
        .in_place(&[0])
        .adapted(widen::floats)
        .cost(|request| cost::per_output(request, Op::FLOPS))
}

/// A function of one element.
pub(crate) trait Unary: 'static {
    type In: Element;
    type Out: Element;
    /// Arithmetic operations for an element, roughly.
    const FLOPS: u64 = 1;

    /// True if `apply` is not for all arguments.
    const HAS_FAR: bool = false;

    /// The result for `x`; `p` are the node's parameters, zeros for an op without.
    fn apply<A: Arith>(x: Self::In, p: [Self::In; 2]) -> Self::Out;

    /// Returns whether `apply` is not for an argument.
    #[inline(always)]
    fn is_far(_: Self::In) -> bool {
        false
    }

    /// The result for any argument. Slower.
    #[inline(always)]
    fn far(x: Self::In, p: [Self::In; 2]) -> Self::Out {
        Self::apply::<Separate>(x, p)
    }
}

/// Defines ops: name, argument, parameters, and the result; and what it costs, if no formula of the name says it.
macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident $(<$t:ident>)? ($x:ident: $in:ty, $p:pat $(, $flops:literal)?) -> $out:ty = $value:expr;)*) => {$(
        $(#[$meta])*
        pub(crate) struct $name $(<$t>(std::marker::PhantomData<$t>))?;

        impl $(<$t: Number>)? Unary for $name $(<$t>)? {
            type In = $in;
            type Out = $out;
            const FLOPS: u64 = {
                let given: &[u64] = &[$($flops)?];
                match given {
                    [flops] => *flops,
                    _ => devbay_ops::flops(stringify!($name)),
                }
            };

            #[inline(always)]
            fn apply<A: Arith>($x: $in, $p: [$in; 2]) -> $out {
                $value
            }
        }
    )*};
}
pub(crate) use ops;

ops! {
    Relu(x: f32, _) -> f32 = if x < 0.0 { 0.0 } else { x };
    /// Of the rarer element types.
    Positive<T>(x: T, _, 1) -> T = if x < T::ZERO { T::ZERO } else { x };
    LeakyRelu(x: f32, [alpha, _]) -> f32 = if x < 0.0 { alpha * x } else { x };
    /// The upper limit is applied last, so that it holds where the limits cross. NaN passes.
    Clip<T>(x: T, [low, high]) -> T = {
        let x = if x < low { low } else { x };
        if x > high { high } else { x }
    };
    Sigmoid(x: f32, _) -> f32 = math::sigmoid::<A>(x);
    HardSigmoid(x: f32, [alpha, beta]) -> f32 = A::fma(alpha, x, beta).clamp(0.0, 1.0);
    HardSwish(x: f32, _) -> f32 = x * A::fma(1.0 / 6.0, x, 0.5).clamp(0.0, 1.0);
    Gelu(x: f32, _) -> f32 = 0.5 * x * (1.0 + math::erf::<A>(x * std::f32::consts::FRAC_1_SQRT_2));
    /// The form with `approximate="tanh"`.
    GeluTanh(x: f32, _) -> f32 = {
        // sqrt(2 / pi)
        let inner = 0.797_884_6 * A::fma(0.044715 * x * x, x, x);
        0.5 * x * (1.0 + math::tanh::<A>(inner))
    };
    Tanh(x: f32, _) -> f32 = math::tanh::<A>(x);
    Exp(x: f32, _) -> f32 = math::exp::<A>(x);
    Log(x: f32, _) -> f32 = math::log::<A>(x);
    Sqrt(x: f32, _) -> f32 = x.sqrt();
    Erf(x: f32, _) -> f32 = math::erf::<A>(x);
    Asin(x: f32, _) -> f32 = math_double::asin(x);
    Acos(x: f32, _) -> f32 = math_double::acos(x);
    Atan(x: f32, _) -> f32 = math_double::atan(x);
    Sinh(x: f32, _) -> f32 = math_double::sinh(x);
    Cosh(x: f32, _) -> f32 = math_double::cosh(x);
    Asinh(x: f32, _) -> f32 = math_double::asinh(x);
    Acosh(x: f32, _) -> f32 = math_double::acosh(x);
    Atanh(x: f32, _) -> f32 = math_double::atanh(x);
    Reciprocal(x: f32, _) -> f32 = 1.0 / x;
    Neg<T>(x: T, _) -> T = x.neg();
    Abs<T>(x: T, _) -> T = x.abs();
    Floor(x: f32, _) -> f32 = math::floor(x);
    Ceil(x: f32, _) -> f32 = math::ceil(x);
    Round(x: f32, _) -> f32 = math::round(x);
    Not(x: Bool, _) -> Bool = Bool::new(!x.get());
    Square(x: f32, _, 1) -> f32 = x * x;
    Cube(x: f32, _, 2) -> f32 = x * x * x;
    /// As `powf(0.5)`: of -0 it is 0, of -inf it is inf.
    SquareRootPower(x: f32, _, 3) -> f32 = {
        if x == f32::NEG_INFINITY { f32::INFINITY } else { (x + 0.0).sqrt() }
    };
    Identity<T>(x: T, _, 1) -> T = x;
}

/// Functions of angles, of which the large ones are left to the library: their reduction needs more digits of pi.
macro_rules! angles {
    ($($name:ident = $near:path, $far:path;)*) => {$(
        pub(crate) struct $name;

        impl Unary for $name {
            type In = f32;
            type Out = f32;
            const FLOPS: u64 = devbay_ops::flops(stringify!($name));
            const HAS_FAR: bool = true;

            #[inline(always)]
            fn apply<A: Arith>(x: f32, _: [f32; 2]) -> f32 {
                $near(x)
            }

            #[inline(always)]
            fn is_far(x: f32) -> bool {
                x.abs() > math_double::ANGLE_MAX
            }

            #[inline(always)]
            fn far(x: f32, _: [f32; 2]) -> f32 {
                $far(f64::from(x)) as f32
            }
        }
    )*};
}
angles! {
    Sin = math_double::sin, f64::sin;
    Cos = math_double::cos, f64::cos;
    Tan = math_double::tan, f64::tan;
}

/// The parameters of an op, two numbers of its input's element type.
#[derive(Clone, Copy)]
pub(crate) struct Params([u64; 2]);

impl Params {
    const NONE: Self = Self([0; 2]);

    pub(crate) fn of<T: Element>(values: [T; 2]) -> Self {
        let mut bits = [0u64; 2];
        bytemuck::cast_slice_mut(&mut bits)[..2].copy_from_slice(&values);
        Self(bits)
    }

    #[inline(always)]
    fn get<T: Element>(&self) -> [T; 2] {
        let elements = bytemuck::cast_slice(&self.0);
        [elements[0], elements[1]]
    }
}

/// Loops take addresses without a type, so that one state and one launch serve all ops.
pub(crate) type Body = unsafe fn(*const u8, *mut u8, usize, &Params);

dispatch! {
    /// The loop of an op: `n` elements from `x` to `y`, which may be the same memory.
    pub(crate) fn body<Op: Unary>(x: *const u8, y: *mut u8, n: usize, params: &Params) = unary_body
}

#[inline(always)]
unsafe fn unary_body<A: Arith, Op: Unary>(x: *const u8, y: *mut u8, n: usize, params: &Params) {
    let (x, y) = (x.cast::<Op::In>(), y.cast::<Op::Out>());
    let params = params.get::<Op::In>();
    if Op::HAS_FAR {
        // SAFETY: the caller lends `n` elements.
        unsafe { far_body::<A, Op>(x, y, n, params) };
        return;
    }
    blocks!(Op::FLOPS >= HEAVY_FLOPS, n, y, [value = x] => Op::apply::<A>(value, params));
}

/// Blocks like those of [`blocks!`], in which elements that the function is not for are calculated again.
///
/// # Safety
/// `x` and `y` have `n` elements, and may be the same memory.
#[inline(always)]
unsafe fn far_body<A: Arith, Op: Unary>(x: *const Op::In, y: *mut Op::Out, n: usize, params: [Op::In; 2]) {
    let mut values = [params[0]; BLOCK];
    for first in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - first);
        // SAFETY: `count` elements are left (# Safety), and the block is a local one.
        unsafe { core::ptr::copy_nonoverlapping(x.add(first), values.as_mut_ptr(), count) };
        let mut results = [const { MaybeUninit::uninit() }; BLOCK];
        let mut any_far = false;
        // A constant number of steps is vectorised best; a few elements are not worth a whole block.
        if count == BLOCK {
            for (result, &value) in results.iter_mut().zip(&values) {
                result.write(Op::apply::<A>(value, params));
                any_far |= Op::is_far(value);
            }
        } else {
            for (result, &value) in results[..count].iter_mut().zip(&values) {
                result.write(Op::apply::<A>(value, params));
                any_far |= Op::is_far(value);
            }
        }
        if any_far {
            let far = |(result, &value): (&mut MaybeUninit<_>, _)| {
                if Op::is_far(value) {
                    result.write(Op::far(value, params));
                }
            };
            results[..count].iter_mut().zip(&values).for_each(far);
        }
        // SAFETY: `count` elements are left (# Safety), and the loop has written as many results.
        unsafe { store(y, first, &results, count) };
    }
}

/// The loop of a rare element type, without instructions that not every processor has.
unsafe fn plain_body<Op: Unary>(x: *const u8, y: *mut u8, n: usize, params: &Params) {
    let (x, y) = (x.cast::<Op::In>(), y.cast::<Op::Out>());
    let params = params.get::<Op::In>();
    for i in 0..n {
        // SAFETY: the caller lends `n` elements.
        let value = unsafe { x.add(i).read() };
        // SAFETY: `i` is below `n`, and the caller lends `n` elements; the element was read before.
        unsafe { y.add(i).write(Op::apply::<Separate>(value, params)) };
    }
}

/// A prepared op.
struct Map {
    host: Host,
    n: usize,
    grain: usize,
    in_bytes: usize,
    out_bytes: usize,
    /// Position of the output's reference: after all inputs, of which an op may have more than it reads.
    y_idx: usize,
    body: Body,
    params: Params,
}

/// Code that is compiled for each op; all else works on addresses without a type.
struct Loop {
    body: Body,
    in_bytes: usize,
    out_bytes: usize,
    grain: usize,
}

impl Loop {
    /// An op with a loop for each instruction set.
    fn of<Op: Unary>(isa: Isa) -> Self {
        Self::with::<Op>(body::<Op>(isa))
    }

    /// An op of a rare element type.
    fn plain<Op: Unary>() -> Self {
        Self::with::<Op>(plain_body::<Op>)
    }

    fn with<Op: Unary>(body: Body) -> Self {
        let (in_bytes, out_bytes) = (size_of::<Op::In>(), size_of::<Op::Out>());
        Self { body, in_bytes, out_bytes, grain: grain(Op::FLOPS) }
    }
}

impl Map {
    fn new(request: &Request<'_>, op: &Loop, params: Params) -> Result<Self> {
        let n = request.required_input(0)?.n_elements();
        let n_out = request.required_output(0)?.n_elements();
        if n != n_out {
            return Err(Error::invalid(format!("an output of {n_out} elements for {n} of the input")));
        }
        Ok(Self {
            host: request.host,
            n,
            grain: op.grain,
            in_bytes: op.in_bytes,
            out_bytes: op.out_bytes,
            y_idx: request.inputs.len(),
            body: op.body,
            params,
        })
    }

    fn run(&self, operands: &Operands<'_>, params: &Params) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n, self.grain, |range, _| {
            let x = x.at(range.start * self.in_bytes);
            let y = y.at(range.start * self.out_bytes);
            // SAFETY: the range lies within both operands, whose sizes `prepare` was told; the chunks are
            // apart; the instructions are the device's.
            unsafe { (self.body)(x, y, range.len(), params) };
            Ok(())
        })
    }

    fn prepared(self) -> Prepared {
        if self.n <= self.grain {
            // SAFETY: `launch_small` takes a `State<Map>`, does not unwind (it only calls a loop, which
            // cannot panic), and uses the references of input 0 and output 0.
            unsafe { Prepared::raw(launch_small, self) }
        } else {
            Prepared::new(self)
        }
    }
}

impl Launch<CpuDevice> for Map {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        self.run(operands, &self.params)
    }
}

/// A launch of one chunk, without what a parallel loop and a guard cost.
unsafe extern "C" fn launch_small(
    state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const abi::BufferRef,
    _dims: *const i64,
) -> abi::Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let state = unsafe { &(*state.cast::<KernelState<Map>>()).kernel };
    // SAFETY: input 0 has a reference (B21).
    let x = unsafe { (*refs).addr } as *const u8;
    // SAFETY: so has output 0, which comes after `y_idx` inputs.
    let y = unsafe { (*refs.add(state.y_idx)).addr } as *mut u8;
    // SAFETY: both have the elements that `prepare` was told; the instructions are the device's.
    unsafe { (state.body)(x, y, state.n, &state.params) };
    abi::DEVBAY_STATUS_OK
}

/// Prepares an op without parameters.
pub(crate) fn prepare<Op: Unary>(request: &Request<'_>) -> Result<Prepared> {
    Ok(Map::new(request, &Loop::of::<Op>(request.device.isa), Params::NONE)?.prepared())
}

pub(crate) fn prepare_with<Op: Unary>(request: &Request<'_>, params: [Op::In; 2]) -> Result<Prepared> {
    Ok(Map::new(request, &Loop::of::<Op>(request.device.isa), Params::of(params))?.prepared())
}

/// Prepares an op of a rare element type.
pub(crate) fn prepare_plain<Op: Unary>(request: &Request<'_>, params: [Op::In; 2]) -> Result<Prepared> {
    Ok(Map::new(request, &Loop::plain::<Op>(), Params::of(params))?.prepared())
}

/// Prepares an op of a rare element type that has no parameters.
pub(crate) fn zeroed<Op: Unary<In: Number>>(request: &Request<'_>) -> Result<Prepared> {
    prepare_plain::<Op>(request, [Op::In::ZERO; 2])
}

/// Prepares the loop of an op of f32.
pub(crate) fn prepare_body(
    request: &Request<'_>,
    body: Body,
    flops: u64,
    params: [f32; 2],
) -> Result<Prepared> {
    let size = size_of::<f32>();
    let op = Loop { body, in_bytes: size, out_bytes: size, grain: grain(flops) };
    Ok(Map::new(request, &op, Params::of(params))?.prepared())
}

fn prepare_relu(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        I64 => prepare_plain::<Positive<i64>>(request, [0; 2]),
        I32 => prepare_plain::<Positive<i32>>(request, [0; 2]),
        dtype => plain!(dtype, zeroed::<Positive>(request), prepare::<Relu>(request)),
    }
}

fn prepare_clip(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        I64 => clip::<i64>(request, &Loop::of::<Clip<i64>>(request.device.isa)),
        I32 => clip::<i32>(request, &Loop::of::<Clip<i32>>(request.device.isa)),
        dtype => plain!(
            dtype,
            clip_plain::<Clip>(request),
            clip::<f32>(request, &Loop::of::<Clip<f32>>(request.device.isa))
        ),
    }
}

fn clip_plain<Op: Unary<In: Number>>(request: &Request<'_>) -> Result<Prepared> {
    clip::<Op::In>(request, &Loop::plain::<Op>())
}

/// Clip of one element type.
fn clip<T: Number>(request: &Request<'_>, op: &Loop) -> Result<Prepared> {
    let mut limits = [T::LOWEST, T::HIGHEST];
    let mut later = [false; 2];
    for (k, limit) in limits.iter_mut().enumerate() {
        let Some(tensor) = request.input(1 + k) else {
            continue;
        };
        if tensor.n_elements() != 1 {
            return Err(Error::invalid(format!(
                "a limit of shape {:?}, expected one number",
                tensor.shape()
            )));
        }
        match tensor.constant() {
            Some(bytes) => {
                *limit = element(bytes)
                    .ok_or_else(|| Error::invalid(format!("a constant limit of {} bytes", bytes.len())))?;
            }
            None => later[k] = true,
        }
    }
    let map = Map::new(request, op, Params::of(limits))?;
    if later == [false; 2] {
        return Ok(map.prepared());
    }
    Ok(Prepared::new(ClipLater { map, limits, later }))
}

/// The first element of a constant.
fn element<T: Element>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// Clip with limits that come with the launch.
struct ClipLater<T> {
    map: Map,
    limits: [T; 2],
    /// True for each limit that is read in the launch.
    later: [bool; 2],
}

impl<T: Number> Launch<CpuDevice> for ClipLater<T> {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut limits = self.limits;
        for (k, limit) in limits.iter_mut().enumerate() {
            if self.later[k] {
                // SAFETY: the input is present and has one element, `prepare` has checked that.
                *limit = unsafe { operands.input_ptr::<T>(1 + k).read() };
            }
        }
        self.map.run(operands, &Params::of(limits))
    }
}

/// Conversion as Cast does it.
trait CastTo<Y> {
    fn cast(self) -> Y;
}

macro_rules! casts {
    ($($from:ty: $($to:ty)*;)*) => {$(
        $(impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                self as $to
            }
        })*
        impl CastTo<Bool> for $from {
            #[inline(always)]
            fn cast(self) -> Bool {
                Bool::new(self != 0 as $from)
            }
        }
        impl CastTo<$from> for Bool {
            #[inline(always)]
            fn cast(self) -> $from {
                u8::from(self.get()) as $from
            }
        }
    )*};
}
casts! {
    f32: f32 f64 i64;
    f64: f32 f64 i64 i32 u8 i8;
    i64: f32 f64 i64 i32 u8 i8;
    i32: f32 f64 i64 i32 u8 i8;
    u8: f32 f64 i64 i32 u8 i8;
    i8: f32 f64 i64 i32 u8 i8;
}

/// `x as i32`, which compilers do not vectorise.
#[inline(always)]
fn to_i32(x: f32) -> i32 {
    // The largest f32 below 2^31; NaN fails the first comparison.
    let limited = if x > -2_147_483_648.0 { x } else { -2_147_483_648.0 };
    let limited = if limited < 2_147_483_520.0 { limited } else { 2_147_483_520.0 };
    // SAFETY: the number is between the limits.
    let converted = unsafe { limited.to_int_unchecked::<i32>() };
    let converted = if x >= 2_147_483_648.0 { i32::MAX } else { converted };
    if x.is_nan() { 0 } else { converted }
}

impl CastTo<i32> for f32 {
    #[inline(always)]
    fn cast(self) -> i32 {
        to_i32(self)
    }
}

impl CastTo<u8> for f32 {
    #[inline(always)]
    fn cast(self) -> u8 {
        to_i32(self).clamp(0, 255) as u8
    }
}

impl CastTo<i8> for f32 {
    #[inline(always)]
    fn cast(self) -> i8 {
        to_i32(self).clamp(-128, 127) as i8
    }
}

impl CastTo<Bool> for Bool {
    #[inline(always)]
    fn cast(self) -> Bool {
        self
    }
}

struct Cast<X, Y>(PhantomData<(X, Y)>);

impl<X: Element + CastTo<Y>, Y: Element> Unary for Cast<X, Y> {
    type In = X;
    type Out = Y;

    #[inline(always)]
    fn apply<A: Arith>(x: X, _: [X; 2]) -> Y {
        x.cast()
    }
}

/// Returns whether an element type has conversions in this file.
pub(crate) fn casts(dtype: DType) -> bool {
    [F32, F64, I64, I32, U8, I8, BOOL].contains(&dtype)
}

/// Prepares Cast between types of this file.
pub(crate) fn prepare_cast(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        F32 => cast_from::<f32>(request),
        F64 => cast_from::<f64>(request),
        I64 => cast_from::<i64>(request),
        I32 => cast_from::<i32>(request),
        U8 => cast_from::<u8>(request),
        I8 => cast_from::<i8>(request),
        _ => cast_from::<Bool>(request),
    }
}

fn cast_from<X>(request: &Request<'_>) -> Result<Prepared>
where
    X: Element
        + CastTo<f32>
        + CastTo<f64>
        + CastTo<i64>
        + CastTo<i32>
        + CastTo<u8>
        + CastTo<i8>
        + CastTo<Bool>,
{
    match request.required_output(0)?.dtype() {
        F32 => prepare::<Cast<X, f32>>(request),
        F64 => prepare::<Cast<X, f64>>(request),
        I64 => prepare::<Cast<X, i64>>(request),
        I32 => prepare::<Cast<X, i32>>(request),
        U8 => prepare::<Cast<X, u8>>(request),
        I8 => prepare::<Cast<X, i8>>(request),
        _ => prepare::<Cast<X, Bool>>(request),
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_to_integer_is_that_of_the_language() {
        for bits in (0..=u32::MAX).step_by(1009) {
            let x = f32::from_bits(bits);
            assert_eq!(CastTo::<i32>::cast(x), x as i32, "{x}");
            assert_eq!(CastTo::<u8>::cast(x), x as u8, "{x}");
            assert_eq!(CastTo::<i8>::cast(x), x as i8, "{x}");
        }
        for x in [2_147_483_648.0f32, 2_147_483_520.0, -2_147_483_648.0, f32::INFINITY, -0.5] {
            assert_eq!(CastTo::<i32>::cast(x), x as i32, "{x}");
        }
    }
}
