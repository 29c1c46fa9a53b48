//! Vectors of aarch64: NEON.

use super::Lanes;
use core::arch::aarch64::*;

/// Four numbers: NEON, which every aarch64 has. Its `fma` rounds once.
#[derive(Clone, Copy)]
pub struct F32x4Fused(float32x4_t);

impl Lanes for F32x4Fused {
    const N: usize = 4;
    const TAKES_ELEMENTS: bool = true;
    type Half = Self;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vdupq_n_f32(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: NEON belongs to the target, and `from` holds a vector (# Safety of `Lanes::load`).
        Self(unsafe { vld1q_f32(from) })
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: NEON belongs to the target, and `from` holds four bytes (# Safety of `Lanes::load_u8`).
        Self(unsafe {
            let bytes = vreinterpret_u8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: NEON belongs to the target, and `from` holds four bytes (# Safety of `Lanes::load_i8`).
        Self(unsafe {
            let bytes = vreinterpret_s8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: NEON belongs to the target, and `to` holds a vector (# Safety of `Lanes::store`).
        unsafe { vst1q_f32(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        // SAFETY: NEON belongs to the target, and what is behind the first numbers is not touched
        // (# Safety of `Lanes::load_first`).
        Self(unsafe {
            let none = vdup_n_f32(0.0);
            match n {
                0 => vcombine_f32(none, none),
                1 => vcombine_f32(vld1_lane_f32::<0>(from, none), none),
                2 => vcombine_f32(vld1_f32(from), none),
                3 => vcombine_f32(vld1_f32(from), vld1_lane_f32::<0>(from.add(2), none)),
                _ => vld1q_f32(from),
            }
        })
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        // SAFETY: NEON belongs to the target, and what is behind the first numbers is not touched
        // (# Safety of `Lanes::store_first`).
        unsafe {
            match n {
                0 => {}
                1 => vst1q_lane_f32::<0>(to, self.0),
                2 => vst1_f32(to, vget_low_f32(self.0)),
                3 => {
                    vst1_f32(to, vget_low_f32(self.0));
                    vst1q_lane_f32::<2>(to.add(2), self.0);
                }
                _ => vst1q_f32(to, self.0),
            }
        }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vaddq_f32(self.0, b.0) })
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vsubq_f32(self.0, b.0) })
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vmulq_f32(self.0, b.0) })
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vfmaq_f32(c.0, self.0, b.0) })
    }

    #[inline(always)]
    fn fma_element<const I: i32>(self, b: Self, c: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vfmaq_laneq_f32::<I>(c.0, b.0, self.0) })
    }

    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        // The instruction for a maximum gives NaN for a NaN on either side, and 0 of two zeros.
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vbslq_f32(vcgtq_f32(low.0, self.0), low.0, self.0) })
    }

    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vbslq_f32(vcltq_f32(high.0, self.0), high.0, self.0) })
    }

    #[inline(always)]
    fn or_nan(self, b: Self) -> Self {
        // SAFETY: NEON belongs to the target.
        Self(unsafe { vbslq_f32(vceqq_f32(b.0, b.0), self.0, b.0) })
    }

    #[inline(always)]
    fn prefetch(from: *const f32) {
        // SAFETY: the instruction gives a hint, changes nothing that the compiler knows of, and does not fail.
        unsafe {
            core::arch::asm!(
                "prfm pldl2keep, [{}]",
                in(reg) from,
                options(nomem, nostack, preserves_flags)
            );
        }
    }

    four_places!();

    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: NEON belongs to the target, and there is room for four sums.
        unsafe {
            let all = vpaddq_f32(vpaddq_f32(a.0, b.0), vpaddq_f32(c.0, d.0));
            vst1q_f32(sums.as_mut_ptr(), all);
        }
        sums
    }
}
