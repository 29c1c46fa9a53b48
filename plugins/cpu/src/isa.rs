//! Instructions that the kernels use, and the compilation of one body of code for each choice.
//!
//! The library is built for the baseline. A kernel's inner function is written once, generic over
//! [`Arith`], and `dispatch!` compiles it with other target features for each set that the target may have: three on
//! x86-64, one elsewhere. The kernel picks one when it is prepared. Vectors come from the compiler's autovectoriser; only
//! the matrix and small dense kernels name instructions.

#[cfg(target_arch = "aarch64")]
use crate::lanes::F32x4Fused;
use crate::lanes::{F32x1, F32x4, Lanes};
#[cfg(target_arch = "x86_64")]
use crate::lanes::{F32x8, F32x16};
use devbay_plugin_api::sdk::{Error, Result};

/// An instruction set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// Instructions that the target always has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, VL, BW and DQ.
    Avx512,
}

impl Isa {
    /// The best of this processor.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq");
            if avx2 && avx512 {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }

    /// Chooses what the option `isa` asks for: a name, or `auto` for `DEVBAY_CPU_ISA` and else the best.
    ///
    /// # Errors
    /// Invalid for an unknown name, unavailable for one that this processor does not have.
    pub fn choose(option: &str) -> Result<Self> {
        let (name, source) = match option {
            "auto" => match std::env::var("DEVBAY_CPU_ISA") {
                Ok(name) if !name.is_empty() => (name, "DEVBAY_CPU_ISA"),
                _ => return Ok(Self::best()),
            },
            name => (name.to_owned(), "option isa"),
        };
        let isa = match name.as_str() {
            "auto" => return Ok(Self::best()),
            "baseline" => Some(Self::Baseline),
            "neon" => cfg!(target_arch = "aarch64").then_some(Self::Baseline),
            "avx2" => Some(Self::Avx2),
            "avx512" => Some(Self::Avx512),
            _ => {
                return Err(Error::invalid(format!(
                    "{source} is auto, baseline, neon, avx2 or avx512, found {name}"
                )));
            }
        };
        isa.filter(|&isa| isa <= Self::best()).ok_or_else(|| {
            Error::unavailable(format!(
                "{source} asks for {name}, this processor has {}",
                Self::best().name()
            ))
        })
    }

    /// Numbers of its widest vector of f32, [`Arith::Lanes`].
    pub fn lanes(self) -> usize {
        match self {
            Self::Baseline => 4,
            Self::Avx2 => 8,
            Self::Avx512 => 16,
        }
    }

    /// Returns whether there is a multiply-add of pairs of bf16: AVX512-BF16, which belongs to no set but comes with AVX-512.
    #[cfg(target_arch = "x86_64")]
    pub fn multiplies_pairs(self) -> bool {
        self == Self::Avx512 && is_x86_feature_detected!("avx512bf16")
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline if cfg!(target_arch = "aarch64") => "neon",
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Arithmetic that differs between instruction sets.
pub trait Arith: Copy + Send + Sync + 'static {
    /// Its widest vector of f32, for the few kernels that name instructions.
    type Lanes: Lanes;
    /// Number of registers that hold such vectors, which bounds the sums that a kernel keeps.
    const REGISTERS: usize;
    /// `a * b + c`, rounded once where the instruction exists, twice where it does not.
    fn fma(a: f32, b: f32, c: f32) -> f32;
}

/// Two roundings: a fused multiply-add without the instruction is a library call.
#[derive(Clone, Copy)]
pub struct Separate;
/// One rounding, and vectors of 256 bits with AVX2 or of 128 bits with NEON.
#[derive(Clone, Copy)]
pub struct Fused;
/// One rounding, and vectors of 512 bits.
#[derive(Clone, Copy)]
pub struct FusedWide;

impl Arith for Separate {
    type Lanes = F32x4;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[cfg(target_arch = "x86_64")]
impl Arith for Fused {
    type Lanes = F32x8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

#[cfg(target_arch = "aarch64")]
impl Arith for Fused {
    type Lanes = F32x4Fused;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

#[cfg(target_arch = "x86_64")]
impl Arith for FusedWide {
    type Lanes = F32x16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// The arithmetic of [`Isa::Baseline`].
#[cfg(target_arch = "aarch64")]
pub type Baseline = Fused;
/// The arithmetic of [`Isa::Baseline`].
#[cfg(not(target_arch = "aarch64"))]
pub type Baseline = Separate;

/// One number where `A` has a vector: the same arithmetic, for what does not fill vectors.
#[derive(Clone, Copy)]
pub struct Single<A>(A);

impl<A: Arith> Arith for Single<A> {
    type Lanes = F32x1<A>;
    const REGISTERS: usize = A::REGISTERS;

    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        A::fma(a, b, c)
    }
}

/// [`Isa::lanes`] is what bodies find.
const _: () = assert!(<Baseline as Arith>::Lanes::N == 4);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(<Fused as Arith>::Lanes::N == 8 && <FusedWide as Arith>::Lanes::N == 16);

/// Compiles a generic body once for each instruction set.
///
/// `dispatch! { pub fn relu(x: *const f32, y: *mut f32, n: usize) = relu_body }` makes a function
/// `relu(isa: Isa) -> unsafe fn(*const f32, *mut f32, usize)` from an
/// `#[inline(always)] unsafe fn relu_body<A: Arith>(...)`. Type parameters after the name are passed on:
/// `dispatch! { fn unary<Op: Unary>(...) = unary_body }` calls `unary_body::<A, Op>`.
///
/// The returned function is unsafe for two reasons: what the body asks for, and the instructions, which
/// the given `Isa` has promised.
#[macro_export]
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($p:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        $vis fn $name $(<$($p: $bound),+>)? (isa: $crate::isa::Isa) -> unsafe fn($($ty),*) $(-> $ret)? {
            unsafe fn baseline $(<$($p: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps to the `# Safety` of the body.
                unsafe { $body::<$crate::isa::Baseline $($(, $p)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2 $(<$($p: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps to the `# Safety` of the body.
                unsafe { $body::<$crate::isa::Fused $($(, $p)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            unsafe fn avx512 $(<$($p: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps to the `# Safety` of the body.
                unsafe { $body::<$crate::isa::FusedWide $($(, $p)+)?>($($arg),*) }
            }
            match isa {
                $crate::isa::Isa::Baseline => baseline $(::<$($p),+>)?,
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => avx2 $(::<$($p),+>)?,
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => avx512 $(::<$($p),+>)?,
                #[cfg(not(target_arch = "x86_64"))]
                _ => baseline $(::<$($p),+>)?,
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_this_target() {
        for name in ["baseline", Isa::best().name()] {
            assert!(Isa::choose(name).is_ok(), "{name}");
        }
        assert_eq!(Isa::choose(Isa::best().name()).expect("the best"), Isa::best());
        let refused = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
        let error = Isa::choose(refused).expect_err("another processor's").to_string();
        assert!(error.contains(&format!("option isa asks for {refused}, this processor has")), "{error}");
        let error = Isa::choose("mmx").expect_err("no name").to_string();
        assert!(error.contains("option isa is auto, baseline, neon, avx2 or avx512, found mmx"), "{error}");
    }
}
