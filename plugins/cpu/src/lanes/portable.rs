//! Vectors of processors that the others are not for.

use super::Lanes;

/// Four numbers without instructions of their own, for other processors; its `fma` rounds twice.
#[derive(Clone, Copy)]
pub struct F32x4([f32; 4]);

impl Lanes for F32x4 {
    const N: usize = 4;
    type Half = Self;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: `from` holds four numbers (# Safety of `Lanes::load`, 2).
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: `from` holds four bytes (# Safety of `Lanes::load_u8`).
        Self(unsafe { from.cast::<[u8; 4]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: `from` holds four bytes (# Safety of `Lanes::load_i8`).
        Self(unsafe { from.cast::<[i8; 4]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: `to` holds four numbers (# Safety of `Lanes::store`).
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] + b.0[i]))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] - b.0[i]))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] * b.0[i]))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
    }

    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        Self(core::array::from_fn(|i| if self.0[i] < low.0[i] { low.0[i] } else { self.0[i] }))
    }

    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        Self(core::array::from_fn(|i| if self.0[i] > high.0[i] { high.0[i] } else { self.0[i] }))
    }

    #[inline(always)]
    fn or_nan(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| if b.0[i].is_nan() { b.0[i] } else { self.0[i] }))
    }

    four_places!();

    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|v| (v.0[0] + v.0[2]) + (v.0[1] + v.0[3]))
    }
}
