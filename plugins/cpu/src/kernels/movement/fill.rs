//! Tensors made of a value, a progression, or of ones in a field of zeros: ConstantOfShape, Range, OneHot
//! and Trilu.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents, host_int, host_ints};
use crate::kernels::geometry::strided::{GRAIN_BYTES, fill};
use crate::kernels::movement::index::Index;
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::{descriptor, read};
use devbay_plugin_api::sdk::*;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("ConstantOfShape", 21, constant_of_shape).types(&[TypeVar::of(&[I64]), MOVED]).cost(written),
    descriptor("Range", 11, range).types(&[TypeVar::of(&[F32, I64, I32, F64, I16, F16, BF16])]).cost(written),
    descriptor("OneHot", 11, one_hot)
        .types(&[TypeVar::of(&[I64, I32, F32]), TypeVar::of(&[I64, I32, F32, F64]), MOVED])
        .cost(written),
    descriptor("Trilu", 14, trilu)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved)
        .doc("the upper or lower triangle of matrices"),
];

/// Returns the cost of a kernel that reads next to nothing.
fn written(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    Ok(Cost { bytes_read: 0, ..cost::moved(request)? })
}

struct Constant<U> {
    host: Host,
    n: usize,
    value: U,
}

fn constant_of_shape(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let to = host_ints(request, 0)?.ok_or_else(|| Error::invalid("the shape is missing"))?;
    let output = request.required_output(0)?;
    if output.shape() != to {
        return Err(Error::invalid(format!("an output of {:?}, expected {to:?}", output.shape())));
    }
    let bytes = match request.attrs.get("value") {
        // Zero has the same bits in all dtypes.
        None => &[0; 8],
        Some(AttrContent::Tensor(value)) if value.dtype() == output.dtype() => {
            value.constant().ok_or_else(|| Error::invalid("the attribute value has no content"))?
        }
        Some(_) => {
            return Err(Error::invalid("the attribute value is no tensor of the output's dtype"));
        }
    };
    let (host, n) = (request.host, extents(output)?.iter().product());
    macro_rules! prepared {
        ($($unit:ty)*) => {
            match element_size(output.dtype()) {
                $(size if size == size_of::<$unit>() && bytes.len() >= size => {
                    let value: $unit = bytemuck::pod_read_unaligned(&bytes[..size]);
                    Ok(Prepared::new(Constant { host, n, value }))
                })*
                size => Err(Error::invalid(format!(
                    "a value of {} bytes for elements of {size}",
                    bytes.len()
                ))),
            }
        };
    }
    prepared!(u8 u16 u32 u64)
}

impl<U: Element + Send + Sync> Launch<CpuDevice> for Constant<U> {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let output = SendPtr(operands.output_ptr::<U>(0));
        let grain = GRAIN_BYTES / size_of::<U>();
        self.host.parallel_for(self.n, grain, |range, _| {
            // SAFETY: the range lies within the output, whose extents `prepare` was told, and chunks do
            // not overlap.
            unsafe { fill(output.at(range.start), range.len(), self.value) };
            Ok(())
        })
    }
}

/// `start + i * delta`, rounded once.
struct Progression<T> {
    host: Host,
    n: usize,
    start: T,
    delta: T,
}

/// A type that Range counts in.
trait Counted: Element + Send + Sync {
    /// `start + i * delta`.
    fn step(start: Self, delta: Self, i: usize) -> Self;
}

macro_rules! counted {
    ($($float:ty)*; $($int:ty)*) => {
        $(impl Counted for $float {
            #[inline(always)]
            fn step(start: Self, delta: Self, i: usize) -> Self {
                (f64::from(start) + i as f64 * f64::from(delta)) as Self
            }
        })*
        $(impl Counted for $int {
            #[inline(always)]
            fn step(start: Self, delta: Self, i: usize) -> Self {
                start.wrapping_add(delta.wrapping_mul(i as Self))
            }
        })*
    };
}
counted! { f32 f64; i16 i32 i64 }

/// A progression of numbers of 16 bits, calculated in f64.
struct SmallProgression {
    host: Host,
    n: usize,
    real: Real,
    start: f64,
    delta: f64,
}

impl Launch<CpuDevice> for SmallProgression {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let output = self.real.sink(operands.output_ref(0));
        self.host.parallel_for(self.n, GRAIN_BYTES / 2, |range, _| {
            for i in range {
                // SAFETY: chunks do not overlap.
                unsafe { output.set(i, self.start + i as f64 * self.delta) };
            }
            Ok(())
        })
    }
}

fn range(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let output = request.required_output(0)?;
    let (host, n) = (request.host, extents(output)?.iter().product());
    if let F16 | BF16 = output.dtype() {
        let real = Real::of(output.dtype())?;
        return Ok(Prepared::new(SmallProgression {
            host,
            n,
            real,
            start: real.constant(request.required_input(0)?)?,
            delta: real.constant(request.required_input(2)?)?,
        }));
    }
    macro_rules! progression {
        ($($dtype:pat => $type:ty,)*) => {
            match output.dtype() {
                $($dtype => {
                    let scalar = |i: usize| {
                        let bytes = request.required_input(i)?.constant().unwrap_or_default();
                        bytemuck::try_pod_read_unaligned::<$type>(bytes).map_err(|_| {
                            Error::invalid(format!("input {i} has to be a constant of one element"))
                        })
                    };
                    Ok(Prepared::new(Progression::<$type> {
                        host,
                        n,
                        start: scalar(0)?,
                        delta: scalar(2)?,
                    }))
                })*
                dtype => half_range(request, Kind::of(dtype)?),
            }
        };
    }
    progression! { F32 => f32, F64 => f64, I16 => i16, I32 => i32, I64 => i64, }
}

/// A progression of f16 or bf16, in f64 and rounded once.
struct HalfProgression {
    n: usize,
    kind: Kind,
    start: f64,
    delta: f64,
}

fn half_range(request: &PrepareRequest<'_, CpuDevice>, kind: Kind) -> Result<Prepared> {
    let scalar = |i: usize| match request.required_input(i)?.constant() {
        // SAFETY: the constant has the two bytes of an element.
        Some(bytes) if bytes.len() == 2 => Ok(unsafe { kind.read(bytes.as_ptr(), 0) }.to_f64()),
        _ => Err(Error::invalid(format!("input {i} has to be a constant of one element"))),
    };
    let n = request.required_output(0)?.n_elements();
    Ok(Prepared::new(HalfProgression { n, kind, start: scalar(0)?, delta: scalar(2)? }))
}

impl Launch<CpuDevice> for HalfProgression {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        for i in 0..self.n {
            let value = Value::Float(self.start + i as f64 * self.delta);
            // SAFETY: `i` lies within the output, whose extent `prepare` was told.
            unsafe { self.kind.write(operands.output_ptr(0), i, value, Limits::DEFAULT) };
        }
        Ok(())
    }
}

impl<T: Counted> Launch<CpuDevice> for Progression<T> {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let output = SendPtr(operands.output_ptr::<T>(0));
        let grain = GRAIN_BYTES / size_of::<T>();
        self.host.parallel_for(self.n, grain, |range, _| {
            for i in range {
                // SAFETY: `i` lies within the output, whose extent `prepare` was told.
                unsafe { output.at(i).write(T::step(self.start, self.delta, i)) };
            }
            Ok(())
        })
    }
}

/// OneHot takes floating-point indices, and cuts their fractions off.
impl Index for f32 {
    #[inline(always)]
    fn get(self) -> i64 {
        self as i64
    }
}

type OneHotFn = fn(&OneHot, *const u8, *const u8, *mut u8) -> Result<()>;

struct OneHot {
    host: Host,
    outer: usize,
    depth: usize,
    inner: usize,
    body: OneHotFn,
}

fn one_hot(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (indices, values) = (request.required_input(0)?, request.required_input(2)?);
    let read::OneHot { outer, depth, inner } = read::OneHot::of(request)?;
    Ok(Prepared::new(OneHot {
        host: request.host,
        outer: outer as usize,
        depth: depth as usize,
        inner: inner as usize,
        body: match (indices.dtype(), element_size(values.dtype())) {
            (I32, 1) => hot::<i32, u8>,
            (I32, 2) => hot::<i32, u16>,
            (I32, 4) => hot::<i32, u32>,
            (I32, _) => hot::<i32, u64>,
            (I64, 1) => hot::<i64, u8>,
            (I64, 2) => hot::<i64, u16>,
            (I64, 4) => hot::<i64, u32>,
            (I64, _) => hot::<i64, u64>,
            (_, 1) => hot::<f32, u8>,
            (_, 2) => hot::<f32, u16>,
            (_, 4) => hot::<f32, u32>,
            (_, _) => hot::<f32, u64>,
        },
    }))
}

impl Launch<CpuDevice> for OneHot {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (indices, values) = (operands.input_ptr(0), operands.input_ptr(2));
        (self.body)(self, indices, values, operands.output_ptr(0))
    }
}

fn hot<I: Index, U: Element + Send + Sync>(
    op: &OneHot,
    indices: *const u8,
    values: *const u8,
    output: *mut u8,
) -> Result<()> {
    let indices = SendPtr(indices.cast_mut().cast::<I>());
    let output = SendPtr(output.cast::<U>());
    // SAFETY: `prepare` checked that there are two values.
    let [off, on] = unsafe { values.cast::<[U; 2]>().read_unaligned() };
    let block = op.depth * op.inner;
    let grain = (GRAIN_BYTES / (block * size_of::<U>()).max(1)).max(1);
    op.host.parallel_for(op.outer, grain, |range, _| {
        for outer in range {
            let block = output.at(outer * block);
            // SAFETY: the block lies within the output, whose extents were checked, and no other chunk
            // writes it.
            unsafe { fill(block, op.depth * op.inner, off) };
            for inner in 0..op.inner {
                // SAFETY: the position lies within the indices.
                let index = unsafe { indices.at(outer * op.inner + inner).read() }.get();
                let from_front = if index < 0 { index + op.depth as i64 } else { index };
                // An index out of range leaves its column off.
                if (from_front as u64) < op.depth as u64 {
                    let at = from_front as usize * op.inner + inner;
                    // SAFETY: the element lies within the block.
                    unsafe { block.add(at).write(on) };
                }
            }
        }
        Ok(())
    })
}

struct Trilu {
    host: Host,
    n_rows: usize,
    rows: usize,
    cols: usize,
    size: usize,
    /// Diagonal that the triangle begins or ends with.
    k: i64,
    upper: bool,
}

fn trilu(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, &from)?;
    let [outer @ .., rows, cols] = &from[..] else {
        return Err(Error::invalid(format!("{from:?} has no matrices")));
    };
    Ok(Prepared::new(Trilu {
        host: request.host,
        n_rows: outer.iter().product::<usize>() * rows,
        rows: *rows,
        cols: *cols,
        size: element_size(input.dtype()),
        k: host_int(request, 1, 0)?,
        upper: request.attrs.int("upper", 1)? != 0,
    }))
}

impl Launch<CpuDevice> for Trilu {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        let row_bytes = self.cols * self.size;
        let grain = (GRAIN_BYTES / row_bytes.max(1)).max(1);
        self.host.parallel_for(self.n_rows, grain, |range, _| {
            for row in range {
                let diagonal = ((row % self.rows) as i64).saturating_add(self.k);
                // Columns before the border belong to the lower triangle, the diagonal to both.
                let border = match self.upper {
                    true => diagonal,
                    false => diagonal.saturating_add(1),
                };
                let border = border.clamp(0, self.cols as i64) as usize * self.size;
                let (zeros, kept) = match self.upper {
                    true => (0..border, border..row_bytes),
                    false => (border..row_bytes, 0..border),
                };
                let at = row * row_bytes;
                // SAFETY: the row lies within the output, and no other chunk writes it.
                unsafe { output.at(at + zeros.start).write_bytes(0, zeros.len()) };
                let (source, target) = (input.at(at + kept.start), output.at(at + kept.start));
                // SAFETY: the row lies within both, which do not overlap (B21).
                unsafe { core::ptr::copy_nonoverlapping(source, target, kept.len()) };
            }
            Ok(())
        })
    }
}
