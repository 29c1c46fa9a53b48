//! Common parts of ops that move elements without calculating: units, positions, and the strided copy.
//!
//! A unit is what one thread moves: an element, or several that stay side by side wherever they go. Narrow elements
//! that do make words of 32 bits, and words make vectors of four, so that memory is used as widely as it can be.

use super::element::Width;
use super::walk::Walk;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::template::wgsl;
pub use devbay_ops::read::{axis, expect_output, host_int, host_ints};
use devbay_plugin_api::sdk::*;

/// Element types that are only moved.
pub const MOVABLE: &[DType] = &[F32, I64, I32, BOOL, U8, I8, F64, F16, BF16, I16, U16, U32, U64];

/// Edge of a tile of a transposition.
const TILE: i64 = 16;

/// Elements that positions of 64 bits count, whatever they are multiplied with here.
pub const COUNT_MAX: i64 = 1 << 40;

/// The extents of an operand, of which no product overflows.
///
/// # Errors
/// Invalid if one is negative, unsupported if they are too large.
pub fn extents<'a>(tensor: &TensorView<'a>) -> Result<&'a [i64]> {
    let shape = tensor.shape();
    if shape.iter().any(|&extent| extent < 0) {
        return Err(Error::invalid(format!("a shape of {shape:?}, expected extents from 0")));
    }
    // Also those beside an extent of 0.
    match shape.iter().fold(1i64, |n, &extent| n.saturating_mul(extent.max(1))) <= COUNT_MAX {
        true => Ok(shape),
        false => Err(Error::unsupported(format!("a tensor of {shape:?} elements"))),
    }
}

/// The elements of a shape; i64's last number for more.
pub fn count(shape: &[i64]) -> i64 {
    match shape.contains(&0) {
        true => 0,
        false => shape.iter().fold(1, |n: i64, &extent| n.saturating_mul(extent)),
    }
}

/// The extents before, at and after an axis, as three.
pub fn around(extents: &[i64], axis: usize) -> [i64; 3] {
    [extents[..axis].iter().product(), extents[axis], extents[axis + 1..].iter().product()]
}

/// A parameter of 32 bits; a negative one wraps around, as shaders calculate.
///
/// # Errors
/// Unsupported beyond 32 bits.
pub fn param(name: impl Into<String>, value: i64) -> Result<(String, Param)> {
    let bits = i32::try_from(value).map(|value| value as u32).or_else(|_| u32::try_from(value));
    let bits = bits.map_err(|_| Error::unsupported("a tensor of more elements than 32 bits count"))?;
    Ok((name.into(), Param::U32(bits)))
}

/// A signed parameter.
///
/// # Errors
/// Unsupported beyond 32 bits.
pub fn param_i32(name: impl Into<String>, value: i64) -> Result<(String, Param)> {
    let value = i32::try_from(value)
        .map_err(|_| Error::unsupported("a tensor of more elements than 32 bits count"))?;
    Ok((name.into(), Param::I32(value)))
}

/// Unit that one thread moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// An element, or several of them as wide as one.
    One(Width),
    /// Four words.
    Vector,
}

impl Unit {
    /// An element.
    ///
    /// # Errors
    /// Unsupported for what is packed more closely than bytes.
    pub fn of(dtype: DType) -> Result<Self> {
        let width = Width::of(dtype);
        width.map(Self::One).ok_or_else(|| Error::unsupported(format!("elements of {dtype:?}")))
    }

    /// Its bytes.
    pub fn bytes(self) -> i64 {
        match self {
            Self::One(Width::B1) => 1,
            Self::One(Width::B2) => 2,
            Self::One(Width::B4) => 4,
            Self::One(Width::B8) => 8,
            Self::Vector => 16,
        }
    }

    /// The widest unit of which all the numbers of elements are multiples, and its elements.
    pub fn widened(self, multiples: &[i64]) -> (Self, i64) {
        [Self::Vector, Self::One(Width::B8), Self::One(Width::B4)]
            .into_iter()
            .filter(|wide| wide.bytes() > self.bytes())
            .map(|wide| (wide, wide.bytes() / self.bytes()))
            .find(|(_, ratio)| multiples.iter().all(|n| n % ratio == 0))
            .unwrap_or((self, 1))
    }

    /// The WGSL type of a buffer of these.
    pub fn storage(self) -> &'static str {
        match self {
            Self::One(width) => width.storage(),
            Self::Vector => "vec4<u32>",
        }
    }

    /// WGSL expression for the unit at `at` (u32) of a buffer.
    pub fn load(self, buffer: &str, at: &str) -> String {
        match self {
            Self::One(width) => width.load(buffer, at),
            Self::Vector => format!("{buffer}[{at}]"),
        }
    }

    /// Returns whether a word holds several.
    pub fn is_packed(self) -> bool {
        self.bytes() < 4
    }

    /// Adds a step that makes all `n` units of the buffer `y`: `code` sets `v` from the unit's position `e`. The
    /// parameter `n` is added.
    ///
    /// # Errors
    /// As [`Build::add`].
    pub fn make(self, build: &mut Build, y: Slot, n: i64, made: Made<'_>) -> Result<()> {
        let each = match self {
            Self::One(width) => width.each("y", made.code),
            Self::Vector => format!("let e = i;\nvar v = vec4<u32>();\n{}\ny[i] = v;\n", made.code),
        };
        let mut params = made.params;
        params.push(param("n", n)?);
        let mut buffers = made.buffers;
        buffers.push(("y", self.storage(), y));
        let items = match self {
            Self::One(width) => width.items(n as u64),
            Self::Vector => n as u64,
        };
        let turns = match self {
            Self::One(width) => width.turns(made.turns),
            Self::Vector => made.turns,
        };
        let body = Body::Items { n: items, functions: made.functions, each: &each };
        build.add(ShaderStep { name: made.name, buffers, params, turns, body })
    }
}

/// Construction of the units of an output.
pub struct Made<'a> {
    /// A name for errors and debuggers.
    pub name: &'a str,
    /// Buffers that it is made from.
    pub buffers: Vec<(&'a str, &'a str, Slot)>,
    /// Parameters.
    pub params: Vec<(String, Param)>,
    /// WGSL at module scope.
    pub functions: &'a str,
    /// WGSL that sets `v` from `e`.
    pub code: &'a str,
    /// As [`ShaderStep::turns`], of `code` for one unit.
    pub turns: u64,
}

/// WGSL for `place(k, n)`: where the index at `k` of the buffer `ids` is on an axis of `n` elements. What names nothing
/// is moved to the nearest end, so that nothing else is ever read.
pub fn place(dtype: DType) -> String {
    wgsl!("moved/place.wgsl", low = if dtype == I64 { "[k].x" } else { "[k]" })
}

/// The WGSL type of a buffer of indices.
pub fn index_storage(dtype: DType) -> &'static str {
    if dtype == I64 { "vec2<u32>" } else { "u32" }
}

/// Some elements of a tensor, in another order than they have there.
#[derive(Clone, Debug)]
pub struct Strided {
    /// Extents and strides, outermost first.
    dims: Vec<(i64, i64)>,
    start: i64,
}

impl Strided {
    /// The elements at `start + sum(c[k] * strides[k])` for each position `c` of a shape.
    pub fn new(shape: &[i64], strides: &[i64], start: i64) -> Self {
        let dims = shape.iter().copied().zip(strides.iter().copied()).collect();
        Self { dims, start }.merged()
    }

    /// Without axes of extent 1, and with those merged that are walked as one.
    fn merged(self) -> Self {
        let mut dims: Vec<(i64, i64)> = Vec::new();
        for (extent, stride) in self.dims.into_iter().filter(|&(extent, _)| extent != 1) {
            match dims.last_mut() {
                Some(last) if last.1 == stride.saturating_mul(extent) => {
                    *last = (last.0.saturating_mul(extent), stride);
                }
                _ => dims.push((extent, stride)),
            }
        }
        Self { dims, start: self.start }
    }

    /// The same in wider units, if runs of elements allow it.
    fn widened(mut self, unit: Unit) -> (Self, Unit) {
        let Some((&(run, 1), outer)) = self.dims.split_last() else {
            return (self, unit);
        };
        let multiples: Vec<i64> = outer.iter().map(|dim| dim.1).chain([run, self.start]).collect();
        let (unit, ratio) = unit.widened(&multiples);
        if let Some((last, outer)) = self.dims.split_last_mut() {
            outer.iter_mut().for_each(|dim| dim.1 /= ratio);
            last.0 /= ratio;
        }
        self.start /= ratio;
        (self.merged(), unit)
    }

    /// Adds a step that copies them from one buffer to another, dense.
    ///
    /// # Errors
    /// As [`Build::add`].
    pub fn copy(self, build: &mut Build, dtype: DType, from: Slot, to: Slot) -> Result<()> {
        if self.dims.iter().any(|dim| dim.0 == 0) {
            return Ok(());
        }
        let (this, unit) = self.widened(Unit::of(dtype)?);
        if unit == Unit::One(Width::B4)
            && !build.abilities().is_software
            && let Some(across) = this.across()
        {
            return this.transpose(build, across, from, to);
        }
        let (shape, strides): (Vec<i64>, Vec<i64>) = this.dims.iter().copied().unzip();
        let walk = Walk::over(&shape).operand(this.start, &strides);
        let code = format!("{}v = {};", walk.code(), unit.load("x", "at0"));
        let made = Made {
            name: "strided copy",
            buffers: vec![("x", unit.storage(), from)],
            params: walk.params()?,
            functions: "",
            code: &code,
            turns: 0,
        };
        unit.make(build, to, count(&shape), made)
    }

    /// The axis along which elements are side by side where they are read, if it is not the last one and both are
    /// long.
    fn across(&self) -> Option<usize> {
        let (last, outer) = self.dims.split_last()?;
        let across = outer.iter().position(|dim| dim.1 == 1)?;
        let is_long = last.0 >= TILE && outer[across].0 >= TILE && last.1 > 1;
        let is_in_reach = last.0.max(outer[across].0) / TILE < 65535;
        (is_long && is_in_reach).then_some(across)
    }

    /// Tiles of words go through a workgroup's memory, so that reads and writes are both in rows.
    fn transpose(self, build: &mut Build, across: usize, from: Slot, to: Slot) -> Result<()> {
        let last = self.dims.len() - 1;
        let shape: Vec<i64> = self.dims.iter().map(|dim| dim.0).collect();
        let own = super::walk::dense_strides(&shape);
        let others: Vec<usize> = (0..last).filter(|&k| k != across).collect();
        let n_planes: i64 = others.iter().map(|&k| shape[k]).product();
        let mut params = vec![
            param("rows", shape[across])?,
            param("cols", shape[last])?,
            param("row_stride", own[across])?,
            param("col_stride", self.dims[last].1)?,
            param("start", self.start)?,
            param("n_planes", n_planes)?,
        ];
        let mut offsets = String::new();
        for &k in others.iter().rev() {
            params.push(param(format!("d{k}"), shape[k])?);
            params.push(param(format!("s{k}"), self.dims[k].1)?);
            params.push(param(format!("t{k}"), own[k])?);
            offsets.push_str(&format!(
                "from_at += (rest % p.d{k}) * p.s{k};\nto_at += (rest % p.d{k}) * p.t{k};\nrest /= p.d{k};\n"
            ));
        }
        let module = wgsl!("moved/transpose.wgsl", tile = TILE, pitch = TILE + 1, offsets);
        let tiles = |extent: i64| (extent as u64).div_ceil(TILE as u64) as u32;
        let groups = [tiles(shape[last]), tiles(shape[across]), n_planes.min(65535) as u32];
        build.add(ShaderStep {
            name: "transpose",
            buffers: vec![("x", "u32", from), ("y", "u32", to)],
            params,
            turns: turns(n_planes.max(0) as u64 / u64::from(groups[2].max(1)) + 1, 0),
            body: Body::Groups { groups, module: &module },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_moved_in_wide_units() {
        let check = |shape: &[i64], strides: &[i64], start, size, expected: (&[(i64, i64)], i64, i64)| {
            let (strided, unit) = Strided::new(shape, strides, start).widened(Unit::One(size));
            assert_eq!((&strided.dims[..], strided.start, unit.bytes()), expected);
        };
        check(&[2, 3, 8], &[48, 16, 1], 4, Width::B4, (&[(6, 4), (2, 1)], 1, 16));
        check(&[2, 8], &[10, 1], 0, Width::B4, (&[(2, 5), (4, 1)], 0, 8));
        check(&[3, 4], &[8, 1], 4, Width::B1, (&[(3, 2)], 1, 4));
        check(&[3, 4], &[1, 3], 0, Width::B2, (&[(3, 1), (4, 3)], 0, 2));
        check(&[], &[], 3, Width::B2, (&[], 3, 2));
    }
}
