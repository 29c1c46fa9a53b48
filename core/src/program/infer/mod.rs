//! Shape inference: the types of a node's results from those of its operands.
//!
//! A function takes what is known (types, and the content of constant operands) and gives what follows.
//! Unknown extents are no error: they make the results' extents unknown. What cannot be right is an error
//! that names expected and found. One file for each kind of op.
//!
//! Absent on purpose: values. What an integer tensor holds is found by folding, which runs kernels; only
//! [`query()`] answers from a type alone.

mod attention;
mod control;
mod conv_pool;
mod einsum;
mod elementwise;
mod extent;
mod gather;
mod generate;
mod loss;
mod matrix;
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

pub use control::{infer_program, infer_region, whole_bytes};
pub use query::query;

use super::{Node, catalogue};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{DType, Dim, Tensor, TensorType, bytes_of, dtype_name};
use extent::Shape;

/// What is known of a node's operands.
pub struct Operands<'a> {
    /// The node.
    pub node: &'a Node,
    /// Types, None where an optional operand is absent.
    pub types: &'a [Option<TensorType>],
    /// Contents of those that are constant.
    pub constants: &'a [Option<Tensor>],
}

/// Gives the types of the results, as many as the node has outputs.
pub type InferFn = fn(&Operands<'_>) -> Result<Vec<TensorType>>;

/// The functions that the catalogue names, one for each op or group of ops that infers alike.
pub(super) mod functions {
    pub use super::attention::{attention, causal_conv, linear_attention};
    pub use super::control::needs_regions;
    pub use super::conv_pool::{
        conv, conv_integer, conv_transpose, fused_conv, global_pool, grid_sample, max_pool, max_roi_pool, pool,
        roi_align,
    };
    pub use super::einsum::{det, einsum};
    pub use super::elementwise::{
        arithmetic, binary_of_first, bool_of, cast, cast_like, clip, compare, dropout, fused_elementwise,
        logical, not, prelu, same, variadic, where_,
    };
    pub use super::gather::{
        compress, gather, gather_elements, gather_nd, non_max_suppression, scatter_elements, scatter_nd,
        tensor_scatter, unique,
    };
    pub use super::generate::{
        constant_of_shape, eye_like, mel_weight_matrix, non_zero, one_hot, range, tf_idf_vectorizer, window,
    };
    pub use super::loss::{negative_log_likelihood_loss, softmax_cross_entropy_loss};
    pub use super::matrix::{fused_gemm, fused_matmul, gemm, matmul, matmul_integer};
    pub use super::movement::{
        concat, depth_to_space, expand, pad, slice, space_to_depth, split, tile, transpose, trilu,
    };
    pub use super::normalize::{
        along_axis, batch_normalization, cumulative, group_normalization, instance_normalization,
        layer_normalization, mean_variance, rms_normalization,
    };
    pub use super::quantised::{dequantize, dynamic_quantize, qlinear_conv, qlinear_matmul, quantize};
    pub use super::query::{shape, size};
    pub use super::reduce::{arg, reduce, top_k};
    pub use super::resize::resize;
    pub use super::rnn::{gru, lstm, rnn};
    pub use super::signal::{dft, stft};
    pub use super::view::{bit_cast, flatten, reshape, squeeze, unsqueeze};
    pub use super::vision::{affine_grid, center_crop_pad, col2im, deform_conv, max_unpool};
}

/// The types of a node's results, as many as it has outputs. `types` and `constants` have an entry for each
/// input. Control flow needs the types of its regions: that is [`infer_region`]'s.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] if the op is not in the catalogue, [`ErrorKind::InvalidModel`] if the
/// operands or attributes cannot be right; the place is the node.
pub fn infer(
    node: &Node,
    types: &[Option<TensorType>],
    constants: &[Option<Tensor>],
) -> Result<Vec<TensorType>> {
    let operands = Operands { node, types, constants };
    let Some(def) = catalogue::find(&node.op.domain, &node.op.name) else {
        let error = Error::new(
            ErrorKind::UnsupportedOp,
            format!("expected an op of the catalogue, found {}", node.op),
        );
        return Err(error.at_node(node.label()));
    };
    (def.infer)(&operands).map_err(|error| error.at_node(node.label()))
}

/// A model that cannot be right.
fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}

impl Operands<'_> {
    /// The type of an operand that the op cannot do without.
    fn required(&self, i: usize) -> Result<&TensorType> {
        self.optional(i).ok_or_else(|| {
            let found = self.types.iter().flatten().count();
            invalid(format!("expected an input {i}, found {found} inputs"))
        })
    }

    /// The type of an operand, None if it is absent.
    fn optional(&self, i: usize) -> Option<&TensorType> {
        self.types.get(i)?.as_ref()
    }

    /// The shape of an operand, None if it is absent or unknown.
    fn shape(&self, i: usize) -> Option<&[Dim]> {
        self.optional(i)?.shape.as_deref()
    }

    /// The content of an operand, if it is constant.
    fn constant(&self, i: usize) -> Option<&Tensor> {
        self.constants.get(i)?.as_ref()
    }

    /// The content of a constant operand of integers.
    fn ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        let Some(constant) = self.constant(i) else {
            return Ok(None);
        };
        match constant.to_ints()? {
            Some(values) => Ok(Some(values)),
            None => Err(invalid(format!("expected integers as input {i}, found {}", constant.tensor_type()))),
        }
    }

    /// The one integer that a constant operand holds.
    fn int(&self, i: usize) -> Result<Option<i64>> {
        match self.ints(i)?.as_deref() {
            None => Ok(None),
            Some([value]) => Ok(Some(*value)),
            Some(values) => Err(invalid(format!("expected one number as input {i}, found {}", values.len()))),
        }
    }

    /// How many integers an operand of one dimension holds, whether or not it is constant.
    fn n_ints(&self, i: usize) -> Result<Option<usize>> {
        match self.shape(i) {
            None => Ok(None),
            Some([n]) => Ok(n.known()),
            // A scalar in the place of a list of one: exporters write it, and onnxruntime takes it.
            Some([]) => Ok(Some(1)),
            Some(shape) => Err(invalid(format!(
                "expected a list as input {i}, found a tensor of {} dimensions",
                shape.len()
            ))),
        }
    }

    /// The element type that these operands share; absent ones do not count.
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

    /// Checks the rank of an operand, if it is there and its rank is known.
    fn expect_rank(&self, i: usize, rank: usize) -> Result<()> {
        match self.shape(i) {
            Some(shape) if shape.len() != rank => Err(invalid(format!(
                "expected {rank} dimensions as input {i}, found {}",
                extent::show(shape)
            ))),
            _ => Ok(()),
        }
    }

    /// An attribute that is 0 or 1.
    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.node.int(name, i64::from(default)) {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(invalid(format!("expected 0 or 1 as attribute {name}, found {other}"))),
        }
    }

    /// The results, as many as the node has outputs.
    fn results(&self, mut types: Vec<TensorType>) -> Result<Vec<TensorType>> {
        let n = self.node.outputs.len();
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

    /// The one result.
    fn result(&self, dtype: DType, shape: Shape) -> Result<Vec<TensorType>> {
        self.results(vec![TensorType { dtype, shape }])
    }
}

/// Refuses types whose known extents alone, those of 0 left out, ask for more bytes than an address space
/// has, so that later stages may multiply extents in any order.
fn fits_memory(ty: &TensorType) -> Result<()> {
    let extents = ty.shape.iter().flatten().filter_map(Dim::known);
    let extents: Vec<usize> = extents.filter(|&extent| extent > 0).collect();
    crate::tensor::n_elements(&extents)
        .and_then(|n| bytes_of(ty.dtype, n))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .map(drop)
        .ok_or_else(|| invalid(format!("a result {ty} would be larger than memory")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AttrValue, Node, ValueId};
    use crate::tensor::{BOOL, F32, I64, U8};

    /// Numbers that repeat from run to run.
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

        fn constant(&mut self) -> Tensor {
            let ints = self.ints();
            let shape: &[usize] = if ints.len() == 1 && self.below(2) == 0 { &[] } else { &[ints.len()] };
            let floats: Vec<f32> =
                ints.iter().map(|_| self.of(&[f32::NAN, f32::INFINITY, -1.0, 0.0, 0.5, 1.0, 1e38])).collect();
            match self.below(4) {
                0 => Tensor::from_elements(shape, &floats),
                _ => Tensor::from_elements(shape, &ints),
            }
            .expect("the elements fit the shape")
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

    /// Models come from anywhere: whatever they hold, inference gives types or an error.
    #[test]
    fn hostile_nodes_never_panic() {
        let mut numbers = Numbers(1);
        let (mut n_ok, mut n_errors) = (0, 0);
        for def in catalogue::all() {
            for _ in 0..1000 {
                let outputs = (0..numbers.below(4) as u32).map(|i| Some(ValueId(i))).collect();
                let mut node = Node::new(def.op(), Vec::new(), outputs);
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
                        0 => AttrValue::Int(numbers.int()),
                        1 => AttrValue::String(text.to_owned()),
                        _ => AttrValue::Ints(numbers.ints()),
                    };
                    let name = numbers.of(ATTRIBUTES);
                    node.set_attr(name, value);
                }
                let (mut types, mut constants) = (Vec::new(), Vec::new());
                for _ in 0..numbers.below(6) {
                    let constant = (numbers.below(3) == 0).then(|| numbers.constant());
                    types.push(match &constant {
                        Some(constant) => Some(constant.tensor_type()),
                        None => (numbers.below(8) > 0).then(|| numbers.ty()),
                    });
                    constants.push(constant);
                }
                match infer(&node, &types, &constants) {
                    Ok(types) => {
                        assert_eq!(types.len(), node.outputs.len(), "{}", def.name);
                        n_ok += 1;
                    }
                    Err(_) => n_errors += 1,
                }
            }
        }
        assert!(n_ok > 10_000 && n_errors > 10_000, "{n_ok} types, {n_errors} errors");
    }
}
