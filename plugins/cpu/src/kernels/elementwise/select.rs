//! Where: each element from one operand or the other.
//!
//! Elements are only moved, so their size is all that matters: a few loops serve every type.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::elementwise::loops::{BLOCK, GRAIN, blocks};
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::shape::{Broadcast, Rows};
use crate::kernels::numbers::number::{Bool, Number};
use crate::lanes::Lanes;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("Where", 16, prepare)
    .types(&[TypeVar::of(&[BOOL]), TypeVar::of(crate::kernels::types::MOVABLE)])
    .in_place(&[1])
    .cost(|request| cost::per_output(request, 1))];

type Body = unsafe fn(*const Bool, *const u8, *const u8, *mut u8, &Rows<3>);

dispatch! {
    fn body<T: Number>(condition: *const Bool, a: *const u8, b: *const u8, y: *mut u8, rows: &Rows<3>) = rows_body
}

/// Columns that are worked on at once.
const TILE: usize = 4 * BLOCK;

/// An operand's columns `at..at + n`: its own, or `copies` of its only one.
///
/// # Safety
/// The operand has them, or one element if `inner` is 0.
#[inline(always)]
unsafe fn columns<T: Element>(
    x: *const T,
    at: usize,
    inner: usize,
    copies: &mut [T; TILE],
    n: usize,
) -> *const T {
    if inner != 0 {
        return x.wrapping_add(at);
    }
    if at == 0 {
        // SAFETY: the operand has one element if `inner` is 0 (# Safety).
        copies[..n].fill(unsafe { x.read() });
    }
    copies.as_ptr()
}

#[inline(always)]
unsafe fn rows_body<A: Arith, T: Number>(
    condition: *const Bool,
    a: *const u8,
    b: *const u8,
    y: *mut u8,
    rows: &Rows<3>,
) {
    let (mut condition, mut a, mut b, mut y) = (condition, a.cast::<T>(), b.cast::<T>(), y.cast::<T>());
    let mut choices = [Bool::new(false); TILE];
    let (mut firsts, mut seconds) = ([T::ZERO; TILE], [T::ZERO; TILE]);
    for _ in 0..rows.n_rows {
        // The first tile is the widest, so that its copies do for the row.
        for at in (0..rows.n_cols).step_by(TILE) {
            let n = (rows.n_cols - at).min(TILE);
            // SAFETY: `n` columns of the row are left, and a broadcast operand has one.
            let choice = unsafe { columns(condition, at, rows.inner[0], &mut choices, n) };
            // SAFETY: `n` columns of the row are left, and a broadcast operand has one.
            let first = unsafe { columns(a, at, rows.inner[1], &mut firsts, n) };
            // SAFETY: `n` columns of the row are left, and a broadcast operand has one.
            let second = unsafe { columns(b, at, rows.inner[2], &mut seconds, n) };
            let y = y.wrapping_add(at);
            blocks!(false, n, y, [c = choice, p = first, q = second] => if c.get() { p } else { q });
        }
        condition = condition.wrapping_add(rows.steps[0]);
        a = a.wrapping_add(rows.steps[1]);
        b = b.wrapping_add(rows.steps[2]);
        y = y.wrapping_add(rows.n_cols);
    }
}

dispatch! {
    /// The rows of elements of 32 bits, which most are, as vectors of f32 that are only moved.
    fn singles(condition: *const Bool, a: *const u8, b: *const u8, y: *mut u8, rows: &Rows<3>) = singles_body
}

/// # Safety
/// The operands have the rows, and the processor the instructions. `y` may be `a`.
#[inline(always)]
unsafe fn singles_body<A: Arith>(
    condition: *const Bool,
    a: *const u8,
    b: *const u8,
    y: *mut u8,
    rows: &Rows<3>,
) {
    let [steps_condition, steps_a, steps_b] = rows.inner.map(|step| step != 0);
    for row in 0..rows.n_rows {
        let condition = condition.cast::<u8>().wrapping_add(row * rows.steps[0]);
        let a = a.cast::<f32>().wrapping_add(row * rows.steps[1]);
        let b = b.cast::<f32>().wrapping_add(row * rows.steps[2]);
        let y = y.cast::<f32>().wrapping_add(row * rows.n_cols);
        // A vector of an operand's own numbers, or of its only one.
        let numbers = |x: *const f32, steps: bool, at: usize| {
            if steps {
                // SAFETY: the vector ends within the row, and the processor has the instructions (# Safety).
                unsafe { A::Lanes::load(x.add(at)) }
            } else {
                // SAFETY: the operand has one number for the row, and the processor the instructions (# Safety).
                unsafe { A::Lanes::splat(x.read()) }
            }
        };
        // SAFETY: the processor has the instructions (# Safety).
        let zero = unsafe { A::Lanes::splat(0.0) };
        let mut at = 0;
        while at + A::Lanes::N <= rows.n_cols {
            let choice = if steps_condition {
                // SAFETY: the vector ends within the row.
                unsafe { A::Lanes::load_u8(condition.add(at)) }
            } else {
                // SAFETY: the operand has one truth value for the row.
                unsafe { A::Lanes::splat(f32::from(condition.read())) }
            };
            let chosen = zero.if_below(choice, numbers(a, steps_a, at), numbers(b, steps_b, at));
            // SAFETY: the vector ends within the row, and was read before.
            unsafe { chosen.store(y.add(at)) };
            at += A::Lanes::N;
        }
        for at in at..rows.n_cols {
            // SAFETY: the operand has the column, or one truth value for the row.
            let choice = unsafe { condition.add(if steps_condition { at } else { 0 }).read() };
            let (from, steps) = if choice != 0 { (a, steps_a) } else { (b, steps_b) };
            // SAFETY: the operand has the column, or one number for the row.
            let number = unsafe { from.add(if steps { at } else { 0 }).read() };
            // SAFETY: the column is one of the row, and was read before.
            unsafe { y.add(at).write(number) };
        }
    }
}

struct Where {
    host: Host,
    plan: Broadcast<3>,
    body: Body,
    element_bytes: usize,
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let out = extents(request.required_output(0)?)?;
    let condition = extents(request.required_input(0)?)?;
    let a = extents(request.required_input(1)?)?;
    let b = extents(request.required_input(2)?)?;
    let dtype = request.required_input(1)?.dtype();
    let isa = request.device.isa;
    let (body, element_bytes) = match dtype.bits {
        8 => (body::<u8>(isa), 1),
        16 => (body::<i16>(isa), 2),
        32 => (singles(isa), 4),
        64 => (body::<i64>(isa), 8),
        bits => return Err(Error::unsupported(format!("elements of {bits} bits"))),
    };
    Ok(Prepared::new(Where {
        host: request.host,
        plan: Broadcast::new(&out, [&condition, &a, &b])?,
        body,
        element_bytes,
    }))
}

impl Launch<CpuDevice> for Where {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let condition = SendPtr(operands.input_ptr::<Bool>(0).cast_mut());
        let a = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let b = SendPtr(operands.input_ptr::<u8>(2).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.plan.len(), GRAIN, |range, _| {
            self.plan.walk(range, |first, at, rows| {
                let condition = condition.at(first[0]);
                let a = a.at(first[1] * self.element_bytes);
                let b = b.at(first[2] * self.element_bytes);
                let y = y.at(at * self.element_bytes);
                // SAFETY: the rows lie within the operands, whose shapes `prepare` was told; chunks are
                // apart; the instructions are the device's.
                unsafe { (self.body)(condition, a, b, y, rows) };
            });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_host::{Array, run};
    use crate::kernels::testing::{Chance, broadcast_extents, broadcast_position, isas};

    #[test]
    fn every_broadcast_is_that_of_the_specification() {
        let mut chance = Chance::new(2);
        for _ in 0..300 {
            let extents = chance.extents();
            let [c, a, b] = [0; 3].map(|_| chance.operand_of(&extents));
            let out = broadcast_extents(&[&c, &a, &b]);
            let n: usize = out.iter().product();
            let condition: Vec<Bool> =
                (0..c.iter().product()).map(|_| bytemuck::cast([0u8, 0, 1, 255][chance.below(4)])).collect();
            let first = chance.values(a.iter().product());
            let second = chance.values(b.iter().product());
            let expected: Vec<f32> = (0..n)
                .map(|i| match condition[broadcast_position(&out, &c, i)].get() {
                    true => first[broadcast_position(&out, &a, i)],
                    false => second[broadcast_position(&out, &b, i)],
                })
                .collect();
            let plan = Broadcast::new(&out, [&c, &a, &b]).expect("the shapes broadcast");
            for (isa, by_vectors) in isas().flat_map(|isa| [(isa, false), (isa, true)]) {
                // In place where the first operand has the result's shape.
                let mut first = first.clone();
                let mut other = vec![0.0; n];
                let a_address = first.as_mut_ptr();
                let y = if a == out { a_address } else { other.as_mut_ptr() };
                for part in chance.parts(n) {
                    plan.walk(part, |[c, a, b], at, rows| {
                        let c = condition.as_ptr().wrapping_add(c);
                        let a = a_address.wrapping_add(a).cast();
                        let b = second.as_ptr().wrapping_add(b).cast();
                        let y = y.wrapping_add(at).cast();
                        let rows_body = if by_vectors { singles(isa) } else { body::<i32>(isa) };
                        // SAFETY: the operands have the shapes of the plan.
                        unsafe { rows_body(c, a, b, y, rows) };
                    });
                }
                assert_eq!(if a == out { first } else { other }, expected, "{c:?} {a:?} {b:?}, {isa:?}");
            }
        }
    }

    #[test]
    fn elements_of_every_width_are_chosen() {
        fn check<T: Element + PartialEq + std::fmt::Debug>(a: [T; 3], b: T) {
            let inputs = [
                Some(Array::of(&[3], &[Bool::new(true), Bool::new(false), Bool::new(true)])),
                Some(Array::of(&[3], &a)),
                Some(Array::of(&[], &[b])),
            ];
            let output = [Some(Array::empty::<T>(&[3]))];
            let found = run(crate::isa::Isa::Baseline, "Where", &[], &inputs, &output).expect("Where");
            assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), [a[0], b, a[2]]);
        }
        check([1u8, 2, 3], 9);
        check([-1i16, 2, 3], 9);
        check([1.5f32, 2.0, 3.0], 9.0);
        check([u64::MAX, 2, 3], 9);
    }
}
