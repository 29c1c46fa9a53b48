//! Common parts of the ops on single elements: the loop over blocks and the grain of parallel loops.
//!
//! An output may share its memory with an input (`in_place`), so the compiler cannot know that a store
//! changes no later operand, and a plain loop would run one element at a time exactly then. [`blocks!`]
//! therefore loads a whole block, calculates, and stores it.

use std::mem::MaybeUninit;

/// Elements of a block: several vectors of every element type and instruction set.
pub(crate) const BLOCK: usize = 64;

/// Elements of a block where a whole one does not fit any more.
pub(crate) const SMALL_BLOCK: usize = 8;

/// Elements of a chunk of a parallel loop: enough that handing it over is cheap beside it.
pub(crate) const GRAIN: usize = 16 * 1024;

/// From this number of arithmetic operations per element on, chunks are smaller, and the last elements of
/// a loop are worth a detour to be vectorised.
pub(crate) const HEAVY_FLOPS: u64 = 10;

/// The grain of an op with `flops` operations per element.
pub(crate) const fn grain(flops: u64) -> usize {
    if flops < HEAVY_FLOPS { GRAIN } else { GRAIN / 4 }
}

/// `N` elements from `x[at]` on.
///
/// # Safety
/// They can be read.
#[inline(always)]
pub(crate) unsafe fn load<T: Copy, const N: usize>(x: *const T, at: usize) -> [T; N] {
    // SAFETY: `N` elements from `x[at]` on can be read (# Safety).
    unsafe { x.add(at).cast::<[T; N]>().read_unaligned() }
}

/// Writes `n` elements of `values` from `y[at]` on.
///
/// # Safety
/// They can be written, and the first `n` of `values` are initialised.
#[inline(always)]
pub(crate) unsafe fn store<T: Copy, const N: usize>(
    y: *mut T,
    at: usize,
    values: &[MaybeUninit<T>; N],
    n: usize,
) {
    // SAFETY: `n` elements from `y[at]` on can be written, and as many values are initialised (# Safety); `values` is a
    // local of the caller's and overlaps nothing.
    unsafe { core::ptr::copy_nonoverlapping(values.as_ptr().cast(), y.add(at), n.min(N)) };
}

/// The `n` elements from `x` on; an empty operand may have no address.
///
/// # Safety
/// They can be read, and nobody writes them during `'a`.
#[inline(always)]
pub(crate) unsafe fn slice<'a, T>(x: *const T, n: usize) -> &'a [T] {
    if n == 0 {
        return &[];
    }
    // SAFETY: the `n` elements can be read, and are not written during `'a` (# Safety); the host aligns operands to
    // more than their elements.
    unsafe { core::slice::from_raw_parts(x, n) }
}

/// Sets `y[i]` for all `i < n` to an expression of the elements at `i` of some operands.
///
/// `blocks!(HEAVY, n, y, [a = x, b = z] => a + b)` binds `a` to `x[i]` and `b` to `z[i]`; `HEAVY` is a
/// constant. `y` may be an operand, or overlap none of them. Stands in an unsafe function whose caller
/// promises `n` elements behind each pointer.
macro_rules! blocks {
    ($heavy:expr, $n:expr, $y:expr, [$($x:ident = $from:expr),*] => $value:expr) => {{
        use $crate::kernels::elementwise::loops::{self, BLOCK, SMALL_BLOCK};
        let n: usize = $n;
        let y = $y;
        let mut i = 0;
        while i + BLOCK <= n {
            // SAFETY: the block ends at `n` or before.
            $(let $x: [_; BLOCK] = unsafe { loops::load($from, i) };)*
            let mut block = [const { core::mem::MaybeUninit::uninit() }; BLOCK];
            for k in 0..BLOCK {
                $(let $x = $x[k];)*
                block[k].write($value);
            }
            // SAFETY: the block ends at `n` or before; the loop has written every element.
            unsafe { loops::store(y, i, &block, BLOCK) };
            i += BLOCK;
        }
        if $heavy {
            // Fewer than a block are left. They go through a local array too, whose length the compiler
            // does not see, so that it vectorises the loop instead of unrolling it.
            let mut block = [const { core::mem::MaybeUninit::uninit() }; BLOCK];
            let rest = (n - i).min(BLOCK);
            for (k, place) in block[..rest].iter_mut().enumerate() {
                // SAFETY: `i + k` is below `n`.
                $(let $x = unsafe { $from.add(i + k).read() };)*
                place.write($value);
            }
            // SAFETY: the loop has written `rest` elements, and as many are left.
            unsafe { loops::store(y, i, &block, rest) };
        } else {
            while i + SMALL_BLOCK <= n {
                // SAFETY: the block ends at `n` or before.
                $(let $x: [_; SMALL_BLOCK] = unsafe { loops::load($from, i) };)*
                let mut block = [const { core::mem::MaybeUninit::uninit() }; SMALL_BLOCK];
                for k in 0..SMALL_BLOCK {
                    $(let $x = $x[k];)*
                    block[k].write($value);
                }
                // SAFETY: the block ends at `n` or before; the loop has written every element.
                unsafe { loops::store(y, i, &block, SMALL_BLOCK) };
                i += SMALL_BLOCK;
            }
            while i < n {
                // SAFETY: `i` is below `n`.
                $(let $x = unsafe { $from.add(i).read() };)*
                // SAFETY: `i` is below `n`.
                unsafe { y.add(i).write($value) };
                i += 1;
            }
        }
    }};
}
pub(crate) use blocks;
