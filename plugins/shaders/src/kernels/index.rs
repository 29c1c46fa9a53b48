//! Gather, GatherElements, GatherND and OneHot: elements that indices name.
//!
//! A negative index counts from the back. One that names nothing fails the stream ([`crate::check`]), and is moved to the
//! nearest end, so that nothing outside the data is ever read.

use super::cost;
use super::moved::*;
use super::walk::{Walk, dense_strides};
use crate::check::{Integers, index_bounds};
use crate::step::{Build, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::OneHot;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("Gather", 13, gather).types(&[MOVED, INDEX]).cost(cost_gathered).doc("slices of one axis"),
    descriptor("GatherElements", 13, gather_elements)
        .types(&[MOVED, INDEX])
        .cost(cost_gathered)
        .doc("one element for each index along one axis"),
    descriptor("GatherND", 13, gather_nd)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost_gathered)
        .doc("slices named by tuples of indices"),
    descriptor("OneHot", 11, one_hot)
        .types(&[TypeVar::of(&[I64, I32, F32]), TypeVar::of(&[I64, I32, F32, F64]), MOVED])
        .cost(cost::written),
];

/// Of the data only what is gathered is read.
fn cost_gathered(request: &Request<'_>) -> Result<Cost> {
    let indices = cost::bytes(request.required_input(1)?);
    let all = cost::moved(request)?;
    Ok(Cost { bytes_read: all.bytes_written + indices, ..all })
}

/// Refuses axes that indices of 32 bits do not reach.
fn expect_places(extents: &[i64]) -> Result<()> {
    match extents.iter().all(|&n| n < i64::from(i32::MAX)) {
        true => Ok(()),
        false => Err(Error::unsupported(format!("indices of axes of {extents:?} elements"))),
    }
}

/// Adds the step that fails the stream for an index, of input 1, that names nothing on an axis; of several axes, tuples
/// have an index for each.
///
/// # Errors
/// As [`Build::expect`].
pub fn expect_indices(
    build: &mut Build,
    request: &Request<'_>,
    op: &'static str,
    axes: impl IntoIterator<Item = i64>,
) -> Result<()> {
    let bounds: Vec<(i64, i64)> = axes.into_iter().map(index_bounds).collect();
    let tensor = request.required_input(1)?;
    build.expect(&Integers { op, what: "index", tensor, slot: Slot::Input(1), bounds: &bounds })
}

fn gather(request: &Request<'_>) -> Result<Prepared> {
    let (data, indices) = (request.required_input(0)?, request.required_input(1)?);
    let from = extents(data)?;
    let axis = axis(request.attrs.int("axis", 0)?, from.len())?;
    let of_indices = extents(indices)?;
    expect_output(request, 0, &[&from[..axis], of_indices, &from[axis + 1..]].concat())?;
    let [_, n_places, inner] = around(from, axis);
    let n = request.required_output(0)?.n_elements() as i64;
    let mut build = Build::new(request);
    if n > 0 {
        expect_places(&[n_places])?;
        expect_indices(&mut build, request, "Gather", [n_places])?;
    }
    // If the axis has no elements, every index fails.
    if n > 0 && n_places > 0 {
        let (unit, ratio) = Unit::of(data.dtype())?.widened(&[inner]);
        let code = format!(
            "let slice = e / p.inner;\nlet outer = slice / p.n_indices;\n\
             let at = (outer * p.n_places + place(slice % p.n_indices, p.n_places)) * p.inner + e % p.inner;\n\
             v = {};",
            unit.load("x", "at")
        );
        let made = Made {
            name: "Gather",
            buffers: vec![
                ("x", unit.storage(), Slot::Input(0)),
                ("ids", index_storage(indices.dtype()), Slot::Input(1)),
            ],
            params: vec![
                param("inner", inner / ratio)?,
                param("n_indices", indices.n_elements() as i64)?,
                param("n_places", n_places)?,
            ],
            functions: &place(indices.dtype()),
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    }
    build.finish()
}

/// Checks that indices have no larger extent than the data, but on the axis.
///
/// # Errors
/// Invalid if they have.
pub fn expect_within(indices: &[i64], data: &[i64], axis: usize) -> Result<()> {
    let fits = |i: usize| i == axis || indices[i] <= data[i];
    if indices.len() == data.len() && (0..data.len()).all(fits) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "indices of {indices:?} for axis {axis} of {data:?}, expected no larger extent beside the axis"
    )))
}

fn gather_elements(request: &Request<'_>) -> Result<Prepared> {
    let (data, indices) = (request.required_input(0)?, request.required_input(1)?);
    let (from, to) = (extents(data)?, extents(indices)?);
    let axis = axis(request.attrs.int("axis", 0)?, from.len())?;
    expect_output(request, 0, to)?;
    expect_within(to, from, axis)?;
    let n = indices.n_elements() as i64;
    let mut build = Build::new(request);
    if n > 0 {
        expect_places(&from[axis..=axis])?;
        expect_indices(&mut build, request, "GatherElements", [from[axis]])?;
    }
    if n > 0 && from[axis] > 0 {
        let mut strides = dense_strides(from);
        let along = std::mem::take(&mut strides[axis]);
        let walk = Walk::over(to).operand(0, &strides).merged();
        let unit = Unit::of(data.dtype())?;
        let code = format!(
            "{}let at = at0 + place(e, p.n_places) * p.along;\nv = {};",
            walk.code(),
            unit.load("x", "at")
        );
        let mut params = walk.params()?;
        params.extend([param("n_places", from[axis])?, param("along", along)?]);
        let made = Made {
            name: "GatherElements",
            buffers: vec![
                ("x", unit.storage(), Slot::Input(0)),
                ("ids", index_storage(indices.dtype()), Slot::Input(1)),
            ],
            params,
            functions: &place(indices.dtype()),
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n, made)?;
    }
    build.finish()
}

/// Slices of a tensor that tuples of indices name.
pub struct Tuples {
    /// Tuples, and tuples of a batch.
    pub n: i64,
    per_batch: i64,
    /// Slices of a batch.
    batch: i64,
    /// Extent of each axis that a tuple names, and the slices between its positions.
    dims: Vec<(i64, i64)>,
    /// Elements of a slice.
    pub slice: i64,
}

impl Tuples {
    /// For data and indices of these extents, and the extents of all slices together.
    ///
    /// # Errors
    /// Invalid if they do not fit.
    pub fn new(data: &[i64], indices: &[i64], batch_dims: i64) -> Result<(Self, Vec<i64>)> {
        let broken = || {
            Error::invalid(format!(
                "indices of {indices:?} for data of {data:?} and {batch_dims} batch dimensions"
            ))
        };
        let (&width, outer) = indices.split_last().ok_or_else(broken)?;
        let batch = usize::try_from(batch_dims).map_err(|_| broken())?;
        let width = usize::try_from(width).ok().filter(|&width| width <= data.len()).ok_or_else(broken)?;
        if batch > outer.len() || batch + width > data.len() || outer[..batch] != data[..batch] {
            return Err(broken());
        }
        let named = &data[batch..batch + width];
        let dims = named.iter().copied().zip(dense_strides(named)).collect();
        let tuples = Self {
            n: outer.iter().product(),
            per_batch: outer[batch..].iter().product(),
            batch: named.iter().product(),
            dims,
            slice: data[batch + width..].iter().product(),
        };
        Ok((tuples, [outer, &data[batch + width..]].concat()))
    }

    /// Parameters for [`Tuples::code`].
    ///
    /// # Errors
    /// Unsupported beyond 32 bits.
    pub fn params(&self) -> Result<Vec<(String, crate::step::Param)>> {
        let named: Vec<i64> = self.dims.iter().map(|dim| dim.0).collect();
        expect_places(&named)?;
        let mut params = vec![param("per_batch", self.per_batch.max(1))?, param("batch", self.batch)?];
        for (k, &(extent, stride)) in self.dims.iter().enumerate() {
            params.extend([param(format!("n{k}"), extent)?, param(format!("m{k}"), stride)?]);
        }
        Ok(params)
    }

    /// WGSL statements that declare `slice`, the slice that `tuple` names.
    pub fn code(&self) -> String {
        let width = self.dims.len();
        let mut code = "var slice = tuple / p.per_batch * p.batch;\n".to_owned();
        for k in 0..width {
            code.push_str(&format!("slice += place(tuple * {width}u + {k}u, p.n{k}) * p.m{k};\n"));
        }
        code
    }

    /// Adds the step that fails the stream for an index that names nothing.
    ///
    /// # Errors
    /// As [`expect_indices`].
    pub fn expect(&self, build: &mut Build, request: &Request<'_>, op: &'static str) -> Result<()> {
        expect_indices(build, request, op, self.dims.iter().map(|dim| dim.0))
    }

    /// Returns whether there is anything that a tuple could name.
    pub fn names_something(&self) -> bool {
        self.dims.iter().all(|dim| dim.0 > 0)
    }

    /// Returns whether tuples are empty, and name everything.
    pub fn names_all(&self) -> bool {
        self.dims.is_empty()
    }
}

fn gather_nd(request: &Request<'_>) -> Result<Prepared> {
    let data = request.required_input(0)?;
    let indices = extents(request.required_input(1)?)?;
    let (tuples, to) = Tuples::new(extents(data)?, indices, request.attrs.int("batch_dims", 0)?)?;
    expect_output(request, 0, &to)?;
    let n = request.required_output(0)?.n_elements() as i64;
    let mut build = Build::new(request);
    if n > 0 {
        if tuples.names_all() {
            return Err(Error::unsupported("tuples without indices"));
        }
        tuples.expect(&mut build, request, "GatherND")?;
    }
    if n > 0 && tuples.names_something() {
        let (unit, ratio) = Unit::of(data.dtype())?.widened(&[tuples.slice]);
        let code = format!(
            "let tuple = e / p.size;\n{}let at = slice * p.size + e % p.size;\nv = {};",
            tuples.code(),
            unit.load("x", "at")
        );
        let mut params = tuples.params()?;
        params.push(param("size", tuples.slice / ratio)?);
        let made = Made {
            name: "GatherND",
            buffers: vec![("x", unit.storage(), Slot::Input(0)), ("ids", "vec2<u32>", Slot::Input(1))],
            params,
            functions: &place(I64),
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    }
    build.finish()
}

fn one_hot(request: &Request<'_>) -> Result<Prepared> {
    let (indices, values) = (request.required_input(0)?, request.required_input(2)?);
    extents(indices)?;
    extents(request.required_output(0)?)?;
    let OneHot { depth, inner, .. } = OneHot::of(request)?;
    let n = request.required_output(0)?.n_elements() as i64;
    let mut build = Build::new(request);
    if n > 0 {
        let unit = Unit::of(values.dtype())?;
        let storage = index_storage(indices.dtype());
        let is_float = matches!(indices.dtype(), F32);
        let functions = wgsl!("index/hot.wgsl", is_pair = indices.dtype() == I64, is_float);
        let off = unit.load("values", "0u");
        let on = unit.load("values", "1u");
        let code = format!(
            "let row = e / p.inner;\nlet k = row / p.depth * p.inner + e % p.inner;\n\
             if (hot(k, p.depth) == row % p.depth) {{ v = {on}; }} else {{ v = {off}; }}"
        );
        expect_places(&[depth])?;
        let made = Made {
            name: "OneHot",
            buffers: vec![("ids", storage, Slot::Input(0)), ("values", unit.storage(), Slot::Input(2))],
            params: vec![param("inner", inner)?, param("depth", depth)?],
            functions: &functions,
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n, made)?;
    }
    build.finish()
}
