//! Shape inference of ops without regions: a node's result types from those of its operands.
//!
//! A function takes the known types, and the content of constant operands, and returns the result types. Unknown extents are
//! not errors: they make the results' extents unknown. Invalid nodes are errors that name the expected and found types.
//! There is one file per kind of op; the row of an op names its function, and [`of`] returns it.
//!
//! Absent on purpose: control flow, whose regions core infers. Values, too: folding computes an integer tensor's content by
//! running kernels; only [`answer`] derives it from a type alone.

mod attention;
mod conv_pool;
mod einsum;
mod elementwise;
mod extent;
mod gather;
mod generate;
mod loss;
mod matrix;
mod ml;
mod movement;
mod normalize;
mod quantised;
mod query;
mod reduce;
mod resize;
mod rnn;
mod signal;
#[cfg(test)]
mod testing;
mod view;
mod vision;

pub(crate) use elementwise::of_formula;
pub use extent::{agree, either};
pub use query::answer;

use crate::types::{DType, Dim, TensorType, bytes_of, dtype_name, n_elements};
use crate::{AttrRef, Constant, NodeAttrs, OpRow};
use devbay_plugin_api::sdk::{Error, Result};
use extent::Shape;

/// A node with the known facts of its operands.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    /// Its attributes. An attribute of the wrong type, which the verifier refuses, is an error or counts as absent.
    pub attrs: &'a dyn NodeAttrs,
    /// Number of its outputs, including unused ones.
    pub n_outputs: usize,
    /// Types of its operands; None if an optional one is absent.
    pub types: &'a [Option<TensorType>],
    /// The content of an operand, by its position; None if it is not constant.
    pub constant: &'a dyn Fn(usize) -> Option<Constant<'a>>,
}

/// Infers the types of the results, as many as the node has outputs.
///
/// # Errors
/// Invalid for operands or attributes that cannot be right; unsupported for element types that devbay lacks; out of memory.
pub type InferFn = fn(&Node<'_>) -> Result<Vec<TensorType>>;

/// Returns the inference of an op; None for control flow.
pub fn of(row: &OpRow) -> Option<InferFn> {
    crate::table::INFERENCE[row.at]
}

/// The functions named by the table's lines, one per op or group of ops with equal inference.
pub(crate) mod functions {
    pub use super::attention::*;
    pub use super::conv_pool::*;
    pub use super::einsum::*;
    pub use super::elementwise::*;
    pub use super::gather::*;
    pub use super::generate::*;
    pub use super::loss::*;
    pub use super::matrix::*;
    pub use super::ml::*;
    pub use super::movement::*;
    pub use super::normalize::*;
    pub use super::quantised::*;
    pub use super::query::*;
    pub use super::reduce::*;
    pub use super::resize::*;
    pub use super::rnn::*;
    pub use super::signal::*;
    pub use super::view::*;
    pub use super::vision::*;
}

/// Returns the error for an invalid node.
fn invalid(text: impl Into<String>) -> Error {
    Error::invalid(text)
}

impl<'a> Node<'a> {
    /// Returns the attribute called `name`.
    fn attr(&self, name: &str) -> Option<AttrRef<'a>> {
        self.attrs.get(name)
    }

    /// Returns an integer attribute, or `default`.
    fn int(&self, name: &str, default: i64) -> i64 {
        match self.attr(name) {
            Some(AttrRef::Int(value)) => value,
            _ => default,
        }
    }

    /// Returns a text attribute, or `default`.
    fn string(&self, name: &str, default: &'a str) -> &'a str {
        match self.attr(name) {
            Some(AttrRef::String(value)) => value,
            _ => default,
        }
    }

    /// Returns integers, if the attribute is present.
    fn ints(&self, name: &str) -> Option<&'a [i64]> {
        match self.attr(name) {
            Some(AttrRef::Ints(values)) => Some(values),
            _ => None,
        }
    }

    /// Returns the type of a required operand.
    fn required(&self, i: usize) -> Result<&TensorType> {
        self.optional(i).ok_or_else(|| {
            let found = self.types.iter().flatten().count();
            invalid(format!("expected an input {i}, found {found} inputs"))
        })
    }

    /// Returns the type of an operand; None if it is absent.
    fn optional(&self, i: usize) -> Option<&TensorType> {
        self.types.get(i)?.as_ref()
    }

    /// Returns the shape of an operand; None if it is absent or unknown.
    fn shape(&self, i: usize) -> Option<&[Dim]> {
        self.optional(i)?.shape.as_deref()
    }

    /// Returns the content of an operand, if it is constant.
    fn constant(&self, i: usize) -> Option<Constant<'a>> {
        (self.constant)(i)
    }

    /// Returns the content of a constant operand of integers.
    fn constant_ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        let Some(constant) = self.constant(i) else {
            return Ok(None);
        };
        match constant.to_ints()? {
            Some(values) => Ok(Some(values)),
            None => Err(invalid(format!("expected integers as input {i}, found {}", constant.tensor_type()))),
        }
    }

    /// Returns the single integer of a constant operand.
    fn constant_int(&self, i: usize) -> Result<Option<i64>> {
        match self.constant_ints(i)?.as_deref() {
            None => Ok(None),
            Some([value]) => Ok(Some(*value)),
            Some(values) => Err(invalid(format!("expected one number as input {i}, found {}", values.len()))),
        }
    }

    /// Returns the number of integers in a one-dimensional operand, constant or not.
    fn n_ints(&self, i: usize) -> Result<Option<usize>> {
        match self.shape(i) {
            None => Ok(None),
            Some([n]) => Ok(n.known()),
            // Exporters write a scalar for a list of one, and onnxruntime accepts it.
            Some([]) => Ok(Some(1)),
            Some(shape) => Err(invalid(format!(
                "expected a list as input {i}, found a tensor of {} dimensions",
                shape.len()
            ))),
        }
    }

    /// Returns the element type that these operands share, ignoring absent ones.
    fn shared_dtype(&self, inputs: &[usize]) -> Result<DType> {
        let mut shared: Option<(usize, DType)> = None;
        for &i in inputs {
            let Some(ty) = self.optional(i) else { continue };
            match shared {
                None => shared = Some((i, ty.dtype)),
                Some((first, dtype)) if dtype != ty.dtype => {
                    return Err(invalid(format!(
                        "expected one element type, found {} as input {first} and {} as input {i}",
                        dtype_name(dtype),
                        dtype_name(ty.dtype)
                    )));
                }
                Some(_) => {}
            }
        }
        match shared {
            Some((_, dtype)) => Ok(dtype),
            None => Err(invalid("expected an input, found none")),
        }
    }

    /// Checks the rank of an operand, if it is present with a known rank.
    fn expect_rank(&self, i: usize, rank: usize) -> Result<()> {
        match self.shape(i) {
            Some(shape) if shape.len() != rank => Err(invalid(format!(
                "expected {rank} dimensions as input {i}, found {}",
                extent::show(shape)
            ))),
            _ => Ok(()),
        }
    }

    /// Returns an attribute that is 0 or 1.
    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.int(name, i64::from(default)) {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(invalid(format!("expected 0 or 1 as attribute {name}, found {other}"))),
        }
    }

    /// Returns the results, as many as the node has outputs.
    fn results(&self, mut types: Vec<TensorType>) -> Result<Vec<TensorType>> {
        let n = self.n_outputs;
        if n > types.len() {
            return Err(invalid(format!("expected at most {} results, found {n}", types.len())));
        }
        types.truncate(n);
        for ty in &types {
            if let Some(rank) = ty.rank().filter(|&rank| rank > extent::RANK_MAX) {
                extent::unknown_of(rank)?;
            }
            fits_memory(ty)?;
        }
        Ok(types)
    }

    /// Returns the only result.
    fn result(&self, dtype: DType, shape: Shape) -> Result<Vec<TensorType>> {
        self.results(vec![TensorType { dtype, shape }])
    }
}

/// Refuses types whose known extents, except those of 0, need more bytes than the address space has, so that later stages
/// may multiply extents in any order.
///
/// # Errors
/// Invalid.
pub fn fits_memory(ty: &TensorType) -> Result<()> {
    let extents = ty.shape.iter().flatten().filter_map(Dim::known);
    let extents: Vec<usize> = extents.filter(|&extent| extent > 0).collect();
    n_elements(&extents)
        .and_then(|n| bytes_of(ty.dtype, n))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .map(drop)
        .ok_or_else(|| invalid(format!("a result {ty} would be larger than memory")))
}

#[cfg(test)]
mod tests {
    use super::testing::{Attr, Content, infer};
    use super::*;
    use crate::types::{BOOL, F32, I64, U8};

    /// A reproducible random generator.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }

        fn of<T: Clone>(&mut self, list: &[T]) -> T {
            list[self.below(list.len())].clone()
        }

        fn int(&mut self) -> i64 {
            let edges = [i64::MIN, i64::MIN + 1, -1 << 32, -2, -1, 0, 0, 1, 1, 1, 2, 3, 1 << 62, i64::MAX];
            self.of(&edges)
        }

        fn ints(&mut self) -> Vec<i64> {
            (0..self.below(5)).map(|_| self.int()).collect()
        }

        fn ty(&mut self) -> TensorType {
            let extents = [0, 1, 1, 2, 3, 4, 1 << 31, 1 << 62, usize::MAX];
            let dim = |numbers: &mut Self| match numbers.below(4) {
                0 => Dim::unknown(),
                1 => Dim::Unknown("n".into()),
                _ => Dim::Known(numbers.of(&extents)),
            };
            let rank = self.below(6);
            TensorType {
                dtype: self.of(&[F32, F32, F32, I64, U8, BOOL]),
                shape: (self.below(6) > 0).then(|| (0..rank).map(|_| dim(self)).collect()),
            }
        }

        fn constant(&mut self) -> Content {
            let ints = self.ints();
            let shape: &[usize] = if ints.len() == 1 && self.below(2) == 0 { &[] } else { &[ints.len()] };
            let floats: Vec<f32> =
                ints.iter().map(|_| self.of(&[f32::NAN, f32::INFINITY, -1.0, 0.0, 0.5, 1.0, 1e38])).collect();
            match self.below(4) {
                0 => Content::new(F32, shape, floats.into_iter().flat_map(f32::to_le_bytes)),
                _ => Content::new(I64, shape, ints.into_iter().flat_map(i64::to_le_bytes)),
            }
        }
    }

    const ATTRIBUTES: &[&str] = &[
        "allowzero",
        "auto_pad",
        "axes",
        "axis",
        "batch_dims",
        "blocksize",
        "ceil_mode",
        "equation",
        "dilations",
        "direction",
        "end",
        "group",
        "hidden_size",
        "inverse",
        "keepdims",
        "kernel_shape",
        "kv_num_heads",
        "layout",
        "ngram_indexes",
        "num_groups",
        "num_outputs",
        "onesided",
        "output_padding",
        "output_shape",
        "pads",
        "perm",
        "q_num_heads",
        "start",
        "strides",
        "to",
        "training_mode",
        "transA",
        "value",
    ];

    /// Models are untrusted: for any content, inference returns types or an error.
    #[test]
    fn hostile_nodes_never_panic() {
        let mut numbers = Numbers(1);
        let (mut n_ok, mut n_errors) = (0, 0);
        for row in crate::all().filter(|row| of(row).is_some()) {
            for _ in 0..1000 {
                let n_outputs = numbers.below(4);
                let mut attrs = Vec::new();
                for _ in 0..numbers.below(4) {
                    let text = numbers.of(&[
                        "SAME_UPPER",
                        "VALID",
                        "bidirectional",
                        "not_larger",
                        "a...,b...->",
                        "",
                    ]);
                    let value = match numbers.below(4) {
                        0 => Attr::Int(numbers.int()),
                        1 => Attr::String(text.to_owned()),
                        _ => Attr::Ints(numbers.ints()),
                    };
                    attrs.push((numbers.of(ATTRIBUTES).to_owned(), value));
                }
                let (mut types, mut contents) = (Vec::new(), Vec::new());
                for _ in 0..numbers.below(6) {
                    let content = (numbers.below(3) == 0).then(|| numbers.constant());
                    types.push(match &content {
                        Some(content) => Some(content.ty()),
                        None => (numbers.below(8) > 0).then(|| numbers.ty()),
                    });
                    contents.push(content);
                }
                match infer(row, &attrs, n_outputs, &types, &contents) {
                    Ok(types) => {
                        assert_eq!(types.len(), n_outputs, "{}", row.name);
                        n_ok += 1;
                    }
                    Err(_) => n_errors += 1,
                }
            }
        }
        assert!(n_ok > 10_000 && n_errors > 10_000, "{n_ok} types, {n_errors} errors");
    }
}
