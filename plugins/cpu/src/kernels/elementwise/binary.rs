//! Ops on two elements: arithmetic, comparison and logic, with multidirectional broadcasting. Pow is in
//! [`crate::kernels::elementwise::power`].
//!
//! An op is a type with [`Binary`]. `prepare` collapses the shapes ([`Broadcast`]), so that one loop over
//! rows, in which each operand either goes on or stays, covers every case. A single element has a launch
//! of its own, because there the launch is all that counts.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::cost;
use crate::kernels::elementwise::loops::{BLOCK, blocks, grain};
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::shape::{Broadcast, Rows};
use crate::kernels::numbers::number::{Bool, Number, plain};
use crate::kernels::numbers::widen;
use crate::kernels::types::MOVABLE;
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_plugin_api::abi;
use devbay_plugin_api::sdk::*;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const NUMBER: &[TypeVar] = &[TypeVar::of(NUMBERS)];
const TRUTH: TypeVar = TypeVar::of(&[BOOL]);
const TRUTHS: &[TypeVar] = &[TRUTH];
const ORDERED: &[TypeVar] = &[TypeVar::of(NUMBERS), TRUTH];
const EQUATABLE: &[TypeVar] = &[TypeVar::of(MOVABLE), TRUTH];

/// Prepares an op of numbers for the element type of input 0.
macro_rules! numbers {
    ($op:ident) => {
        |request| match request.required_input(0)?.dtype() {
            I64 => prepare::<$op<i64>>(request),
            I32 => prepare::<$op<i32>>(request),
            dtype => plain!(dtype, prepare_plain::<$op>(request), prepare::<$op<f32>>(request)),
        }
    };
}

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel("Add", 14, NUMBER, numbers!(Add)),
    kernel("Sub", 14, NUMBER, numbers!(Sub)),
    kernel("Mul", 14, NUMBER, numbers!(Mul)),
    kernel("Div", 14, NUMBER, numbers!(Div)).doc("integers truncate; an integer divided by 0 gives 0"),
    kernel("Mod", 13, NUMBER, prepare_mod).doc("an integer divided by 0 leaves 0"),
    kernel("PRelu", 16, NUMBER, numbers!(Sloped)),
    kernel("And", 7, TRUTHS, prepare::<And>),
    kernel("Or", 7, TRUTHS, prepare::<Or>),
    kernel("Xor", 7, TRUTHS, prepare::<Xor>),
    comparison("Equal", 19, EQUATABLE, |request| match request.required_input(0)?.dtype() {
        BOOL => prepare::<EqualTruth>(request),
        I64 => prepare::<Equal<i64>>(request),
        I32 => prepare::<Equal<i32>>(request),
        dtype => plain!(dtype, prepare_plain::<Equal>(request), prepare::<Equal<f32>>(request)),
    }),
    comparison("Less", 13, ORDERED, numbers!(Less)),
    comparison("LessOrEqual", 16, ORDERED, numbers!(LessOrEqual)),
    comparison("Greater", 13, ORDERED, numbers!(Greater)),
    comparison("GreaterOrEqual", 16, ORDERED, numbers!(GreaterOrEqual)),
];

/// The descriptor of an op whose result has the type of its operands.
const fn kernel(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    Kernel::new(name, since_version, prepare)
        .types(types)
        .operands(&[0, 0], &[0])
        .in_place(&[0])
        .adapted(widen::floats)
        .cost(|request| cost::per_output(request, 1))
}

/// The descriptor of an op whose result is a truth value.
const fn comparison(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    Kernel::new(name, since_version, prepare)
        .types(types)
        .operands(&[0, 0], &[1])
        .adapted(widen::floats)
        .cost(|request| cost::per_output(request, 1))
}

/// A function of two elements.
pub(crate) trait Binary: 'static {
    type Left: Element;
    type Right: Element;
    type Out: Element;
    /// Arithmetic operations for an element, roughly.
    const FLOPS: u64 = 1;

    /// The result for `a` and `b`. Does not panic.
    fn apply(a: Self::Left, b: Self::Right) -> Self::Out;
}

/// Defines ops: name, operands, and the result.
macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident $(<$t:ident>)? ($a:ident: $left:ty, $b:ident: $right:ty) -> $out:ty = $value:expr;)*) => {$(
        $(#[$meta])*
        pub(crate) struct $name $(<$t>(PhantomData<$t>))?;

        impl $(<$t: Number>)? Binary for $name $(<$t>)? {
            type Left = $left;
            type Right = $right;
            type Out = $out;

            #[inline(always)]
            fn apply($a: $left, $b: $right) -> $out {
                $value
            }
        }
    )*};
}

ops! {
    Add<T>(a: T, b: T) -> T = a.add(b);
    Sub<T>(a: T, b: T) -> T = a.sub(b);
    Mul<T>(a: T, b: T) -> T = a.mul(b);
    Div<T>(a: T, b: T) -> T = a.div(b);
    /// Mod with `fmod=1`.
    Remainder<T>(a: T, b: T) -> T = a.remainder(b);
    /// Mod with `fmod=0`.
    Modulo<T>(a: T, b: T) -> T = a.modulo(b);
    /// PRelu: the right operand is the slope below 0.
    Sloped<T>(a: T, b: T) -> T = if a < T::ZERO { a.mul(b) } else { a };
    Larger<T>(a: T, b: T) -> T = a.larger(b);
    Smaller<T>(a: T, b: T) -> T = a.smaller(b);
    And(a: Bool, b: Bool) -> Bool = Bool::new(a.get() & b.get());
    Or(a: Bool, b: Bool) -> Bool = Bool::new(a.get() | b.get());
    Xor(a: Bool, b: Bool) -> Bool = Bool::new(a.get() ^ b.get());
    Equal<T>(a: T, b: T) -> Bool = Bool::new(a == b);
    EqualTruth(a: Bool, b: Bool) -> Bool = Bool::new(a.get() == b.get());
    Less<T>(a: T, b: T) -> Bool = Bool::new(a < b);
    LessOrEqual<T>(a: T, b: T) -> Bool = Bool::new(a <= b);
    Greater<T>(a: T, b: T) -> Bool = Bool::new(a > b);
    GreaterOrEqual<T>(a: T, b: T) -> Bool = Bool::new(a >= b);
}

/// Loops take addresses without a type, so that one state and one launch serve all ops.
pub(crate) type Body = unsafe fn(*const u8, *const u8, *mut u8, &Rows<2>);

dispatch! {
    /// The loop of an op over rows of `a` and `b`; `y` may be one of them if that is not broadcast.
    pub(crate) fn body<Op: Binary>(a: *const u8, b: *const u8, y: *mut u8, rows: &Rows<2>) = rows_body
}

#[inline(always)]
unsafe fn rows_body<A: Arith, Op: Binary>(a: *const u8, b: *const u8, y: *mut u8, rows: &Rows<2>) {
    let (mut a, mut b, mut y) = (a.cast::<Op::Left>(), b.cast::<Op::Right>(), y.cast::<Op::Out>());
    // Short rows with a row that every one of them meets: copies of it side by side make rows longer.
    let mut copies_a = [const { MaybeUninit::<Op::Left>::uninit() }; WIDE];
    let mut copies_b = [const { MaybeUninit::<Op::Right>::uninit() }; WIDE];
    let mut group = 1;
    if rows.inner == [1, 1] && rows.n_rows > 1 && rows.n_cols <= WIDE / 4 {
        if rows.steps == [rows.n_cols, 0] {
            // SAFETY: the caller lends a row of the operand.
            (b, group) = unsafe { repeated(b, &mut copies_b, rows.n_cols) };
        } else if rows.steps == [0, rows.n_cols] {
            // SAFETY: the caller lends a row of this operand.
            (a, group) = unsafe { repeated(a, &mut copies_a, rows.n_cols) };
        }
    }
    for row in (0..rows.n_rows).step_by(group) {
        let n_rows = group.min(rows.n_rows - row);
        let n = n_rows * rows.n_cols;
        match rows.inner {
            [1, 1] => blocks!(false, n, y, [p = a, q = b] => Op::apply(p, q)),
            [1, _] => {
                // SAFETY: a row has at least one column, and a broadcast operand one element.
                let q = unsafe { b.read() };
                blocks!(false, n, y, [p = a] => Op::apply(p, q))
            }
            [_, 1] => {
                // SAFETY: a row has at least one column, and a broadcast operand one element.
                let p = unsafe { a.read() };
                blocks!(false, n, y, [q = b] => Op::apply(p, q))
            }
            _ => {
                // SAFETY: both operands are broadcast here, of one element each.
                let (p, q) = unsafe { (a.read(), b.read()) };
                let value = Op::apply(p, q);
                for i in 0..n {
                    // SAFETY: the caller lends `n` elements of the row.
                    unsafe { y.add(i).write(value) };
                }
            }
        }
        a = a.wrapping_add(n_rows * rows.steps[0]);
        b = b.wrapping_add(n_rows * rows.steps[1]);
        y = y.wrapping_add(n);
    }
}

/// The loop of a rare element type, without instructions that not every processor has.
unsafe fn plain_body<Op: Binary>(a: *const u8, b: *const u8, y: *mut u8, rows: &Rows<2>) {
    let (mut a, mut b, mut y) = (a.cast::<Op::Left>(), b.cast::<Op::Right>(), y.cast::<Op::Out>());
    for _ in 0..rows.n_rows {
        for i in 0..rows.n_cols {
            // SAFETY: the caller lends the row, or one element of an operand that is broadcast.
            let (p, q) = unsafe { (a.add(i * rows.inner[0]).read(), b.add(i * rows.inner[1]).read()) };
            // SAFETY: `i` is below `n_cols`, and the caller lends the row; the elements were read before.
            unsafe { y.add(i).write(Op::apply(p, q)) };
        }
        a = a.wrapping_add(rows.steps[0]);
        b = b.wrapping_add(rows.steps[1]);
        y = y.wrapping_add(rows.n_cols);
    }
}

/// Elements of a row made of copies.
const WIDE: usize = 4 * BLOCK;

/// A row of copies of a short row, and how many.
///
/// # Safety
/// `x` has `n` elements, from 1 to [`WIDE`].
#[inline(always)]
unsafe fn repeated<T: Element>(
    x: *const T,
    copies: &mut [MaybeUninit<T>; WIDE],
    n: usize,
) -> (*const T, usize) {
    let n_copies = WIDE / n;
    for copy in copies.chunks_exact_mut(n) {
        for (k, place) in copy.iter_mut().enumerate() {
            // SAFETY: `k` is below `n`, and `x` has `n` elements (# Safety).
            place.write(unsafe { x.add(k).read() });
        }
    }
    (copies.as_ptr().cast(), n_copies)
}

/// Code that is compiled for each op; all else works on addresses without a type.
pub(crate) struct Loops {
    body: Body,
    /// [`launch_one`] of the op.
    one: abi::LaunchFn,
    /// Bytes of an element of the inputs and the output.
    sizes: [usize; 3],
    grain: usize,
}

impl Loops {
    /// An op with a loop for each instruction set.
    pub(crate) fn of<Op: Binary>(isa: Isa) -> Self {
        Self::with::<Op>(body::<Op>(isa))
    }

    /// An op of a rare element type.
    pub(crate) fn plain<Op: Binary>() -> Self {
        Self::with::<Op>(plain_body::<Op>)
    }

    fn with<Op: Binary>(body: Body) -> Self {
        let sizes = [size_of::<Op::Left>(), size_of::<Op::Right>(), size_of::<Op::Out>()];
        Self { body, one: launch_one::<Op>, sizes, grain: grain(Op::FLOPS) }
    }
}

/// A prepared op over operands of any shapes.
pub(crate) struct Zip {
    pub host: Host,
    pub plan: Broadcast<2>,
    pub body: Body,
    /// Bytes of an element of the inputs and the output.
    pub sizes: [usize; 3],
    pub grain: usize,
}

impl Zip {
    /// `a` and `b` are the extents of the operands.
    ///
    /// # Errors
    /// Invalid if they do not broadcast to `out`.
    pub(crate) fn new(
        request: &Request<'_>,
        op: &Loops,
        out: &[usize],
        a: &[usize],
        b: &[usize],
    ) -> Result<Self> {
        let plan = Broadcast::new(out, [a, b])?;
        Ok(Self { host: request.host, plan, body: op.body, sizes: op.sizes, grain: op.grain })
    }

    /// Runs the elements `range` of the result.
    ///
    /// # Safety
    /// The operands have the shapes that this was prepared for, and no other thread writes these elements.
    #[inline]
    pub(crate) unsafe fn run(&self, [a, b, y]: [*mut u8; 3], range: std::ops::Range<usize>) {
        self.plan.walk(range, |first, at, rows| {
            let a = a.wrapping_add(first[0] * self.sizes[0]);
            let b = b.wrapping_add(first[1] * self.sizes[1]);
            let y = y.wrapping_add(at * self.sizes[2]);
            // SAFETY: the rows lie within the operands (`walk`, and the caller's promise); the
            // instructions are the device's.
            unsafe { (self.body)(a, b, y, rows) };
        });
    }
}

impl Launch<CpuDevice> for Zip {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let a = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let b = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.plan.len(), self.grain, |range, _| {
            // SAFETY: the operands are the launch's, and chunks are apart.
            unsafe { self.run([a.at(0), b.at(0), y.at(0)], range) };
            Ok(())
        })
    }
}

/// Prepares an op of a rare element type.
pub(crate) fn prepare_plain<Op: Binary>(request: &Request<'_>) -> Result<Prepared> {
    prepared(request, &Loops::plain::<Op>())
}

/// Prepares an op.
pub(crate) fn prepare<Op: Binary>(request: &Request<'_>) -> Result<Prepared> {
    prepared(request, &Loops::of::<Op>(request.device.isa))
}

/// Prepares an op that is given by its loops.
pub(crate) fn prepared(request: &Request<'_>, op: &Loops) -> Result<Prepared> {
    let out = extents(request.required_output(0)?)?;
    let a = extents(request.required_input(0)?)?;
    let b = extents(request.required_input(1)?)?;
    let zip = Zip::new(request, op, &out, &a, &b)?;
    if zip.plan.len() == 1 {
        // SAFETY: it is a `launch_one`, which needs no state, does not unwind, and uses the references of
        // the two inputs and of the output.
        return Ok(unsafe { Prepared::raw(op.one, ()) });
    }
    match zip.plan.as_row() {
        Some(rows) if rows.n_cols <= zip.grain => {
            let row = Row { rows, body: zip.body };
            // SAFETY: `launch_row` takes a `State<Row>`, does not unwind (it only calls a loop, which
            // cannot panic), and uses the references of the two inputs and of the output.
            Ok(unsafe { Prepared::raw(launch_row, row) })
        }
        _ => Ok(Prepared::new(zip)),
    }
}

/// Two elements: the least that a launch can be.
unsafe extern "C" fn launch_one<Op: Binary>(
    _state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const abi::BufferRef,
    _dims: *const i64,
) -> abi::Status {
    // SAFETY: two inputs and an output have references (B21).
    let [a, b, y] = unsafe { &*refs.cast::<[abi::BufferRef; 3]>() };
    // SAFETY: the input has one element, `prepare` was told so.
    let p = unsafe { (a.addr as *const Op::Left).read() };
    // SAFETY: the other input has one element, too.
    let q = unsafe { (b.addr as *const Op::Right).read() };
    // SAFETY: the output has one element, and is this launch's.
    unsafe { (y.addr as *mut Op::Out).write(Op::apply(p, q)) };
    abi::DEVBAY_STATUS_OK
}

/// One row that is one chunk.
struct Row {
    rows: Rows<2>,
    body: Body,
}

/// A launch of one row, without what a walk, a parallel loop and a guard cost.
unsafe extern "C" fn launch_row(
    state: *const c_void,
    _stream: *mut abi::Stream,
    refs: *const abi::BufferRef,
    _dims: *const i64,
) -> abi::Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let state = unsafe { &(*state.cast::<KernelState<Row>>()).kernel };
    // SAFETY: two inputs and an output have references (B21).
    let [a, b, y] = unsafe { &*refs.cast::<[abi::BufferRef; 3]>() };
    // SAFETY: they have the shapes that `prepare` was told; the instructions are the device's.
    unsafe { (state.body)(a.addr as *const u8, b.addr as *const u8, y.addr as *mut u8, &state.rows) };
    abi::DEVBAY_STATUS_OK
}

fn prepare_mod(request: &Request<'_>) -> Result<Prepared> {
    let c_sign = request.attrs.int("fmod", 0)? != 0;
    let prepare: fn(&Request<'_>) -> Result<Prepared> = match c_sign {
        true => numbers!(Remainder),
        false => numbers!(Modulo),
    };
    prepare(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::loops::GRAIN;
    use crate::kernels::testing::{Chance, broadcast_extents, broadcast_position, isas};

    /// A subtraction of operands by chance, in chunks by chance, against one element after the other.
    /// `in_place` writes over the given operand if it has the result's shape.
    fn check(chance: &mut Chance, in_place: Option<usize>) {
        let extents = chance.extents();
        let (a, b) = (chance.operand_of(&extents), chance.operand_of(&extents));
        let out = broadcast_extents(&[&a, &b]);
        let n: usize = out.iter().product();
        let left = chance.values(a.iter().product());
        let right = chance.values(b.iter().product());
        let expected: Vec<f32> = (0..n)
            .map(|i| left[broadcast_position(&out, &a, i)] - right[broadcast_position(&out, &b, i)])
            .collect();
        let plan = Broadcast::new(&out, [&a, &b]).expect("the shapes broadcast");
        assert_eq!(plan.len(), n);
        for isa in isas() {
            let zip =
                Zip { host: Host::none(), plan, body: body::<Sub<f32>>(isa), sizes: [4; 3], grain: GRAIN };
            let mut operands = [left.clone(), right.clone(), vec![0.0; n]];
            let y = match in_place {
                Some(k) if [&a, &b][k] == &out => k,
                _ => 2,
            };
            let addresses = operands.each_mut().map(|operand| operand.as_mut_ptr().cast::<u8>());
            for part in chance.parts(n) {
                // SAFETY: the operands have the shapes of the plan.
                unsafe { zip.run([addresses[0], addresses[1], addresses[y]], part) };
            }
            assert_eq!(operands[y], expected, "{a:?} - {b:?}, {isa:?}, in place {in_place:?}");
        }
    }

    #[test]
    fn every_broadcast_is_that_of_the_specification() {
        let mut chance = Chance::new(1);
        for _ in 0..400 {
            for in_place in [None, Some(0), Some(1)] {
                check(&mut chance, in_place);
            }
        }
    }

    #[test]
    fn shapes_that_do_not_broadcast_are_refused() {
        for (out, operand) in [(&[2, 3][..], &[2][..]), (&[3], &[1, 3, 1]), (&[3], &[2, 3]), (&[1], &[4])] {
            assert!(Broadcast::new(out, [operand]).is_err(), "{operand:?} to {out:?}");
        }
    }

    /// Broadcast in every way, in a type without a vectorised loop.
    #[test]
    fn plain_loops_broadcast_alike() {
        let mut chance = Chance::new(2);
        for _ in 0..200 {
            let extents = chance.extents();
            let (a, b) = (chance.operand_of(&extents), chance.operand_of(&extents));
            let out = broadcast_extents(&[&a, &b]);
            let n: usize = out.iter().product();
            let left: Vec<u16> = (0..a.iter().product()).map(|_| chance.below(70_000) as u16).collect();
            let right: Vec<u16> = (0..b.iter().product()).map(|_| chance.below(70_000) as u16).collect();
            let expected: Vec<u16> = (0..n)
                .map(|i| {
                    left[broadcast_position(&out, &a, i)].wrapping_sub(right[broadcast_position(&out, &b, i)])
                })
                .collect();
            let plan = Broadcast::new(&out, [&a, &b]).expect("the shapes broadcast");
            let zip =
                Zip { host: Host::none(), plan, body: plain_body::<Sub<u16>>, sizes: [2; 3], grain: GRAIN };
            let mut y = vec![0u16; n];
            let addresses =
                [left.as_ptr().cast_mut().cast(), right.as_ptr().cast_mut().cast(), y.as_mut_ptr().cast()];
            for part in chance.parts(n) {
                // SAFETY: the operands have the shapes of the plan.
                unsafe { zip.run(addresses, part) };
            }
            assert_eq!(y, expected, "{a:?} - {b:?}");
        }
    }

    #[test]
    fn integer_arithmetic_never_traps() {
        assert_eq!([7i32.div(0), i32::MIN.div(-1), 7.remainder(0), i32::MIN.modulo(-1)], [0, i32::MIN, 0, 0]);
        assert_eq!([7i64.modulo(-3), (-7i64).modulo(3), (-7i64).remainder(3)], [-2, 2, -1]);
    }
}
