//! StableHLO's own ops as functions: each writes one op and knows the type of its result.

use super::builder::{Builder, Type, Value, array, list, padding, put};
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// A window that moves over an array, one entry of each list for each axis that it has.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) extents: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    /// Elements added in front of and behind each axis.
    pub(super) pads: Vec<(i64, i64)>,
}

impl Window {
    /// Places of the window along an axis of `extent` elements.
    pub(super) fn n_places(&self, axis: usize, extent: i64) -> i64 {
        let reach = (self.extents[axis] - 1) * self.dilations[axis] + 1;
        let (low, high) = self.pads[axis];
        let room = extent + low + high - reach;
        if room < 0 { 0 } else { room / self.strides[axis] + 1 }
    }
}

/// Pairing of a product's axes.
pub(super) struct DotDims<'a> {
    pub(super) lhs_batch: &'a [usize],
    pub(super) rhs_batch: &'a [usize],
    pub(super) lhs_contract: &'a [usize],
    pub(super) rhs_contract: &'a [usize],
}

/// Operation of a reduction on two elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fold {
    Add,
    Multiply,
    Maximum,
    Minimum,
    And,
    Or,
}

impl Fold {
    pub(super) fn op(self) -> &'static str {
        match self {
            Self::Add => "stablehlo.add",
            Self::Multiply => "stablehlo.multiply",
            Self::Maximum => "stablehlo.maximum",
            Self::Minimum => "stablehlo.minimum",
            Self::And => "stablehlo.and",
            Self::Or => "stablehlo.or",
        }
    }

    /// Returns the neutral element, as bytes.
    fn neutral(self, element: ElementType) -> Vec<u8> {
        use ElementType as E;
        let size = element.size_bytes().unwrap_or(1);
        let is_float = matches!(element, E::F16 | E::BF16 | E::F32 | E::F64);
        let is_unsigned = matches!(element, E::U8 | E::U16 | E::U32 | E::U64);
        // The upper two bytes of one and of infinity; the lower ones are zero.
        let top = |two: u16| [vec![0; size - 2], two.to_le_bytes().to_vec()].concat();
        let (one, infinity) = match element {
            E::F16 => (0x3c00, 0x7c00),
            E::F64 => (0x3ff0, 0x7ff0),
            _ => (0x3f80, 0x7f80),
        };
        match self {
            Self::Add | Self::Or => vec![0; size],
            Self::And if element == E::PRED => vec![1],
            Self::And => vec![0xff; size],
            Self::Multiply if is_float => top(one),
            Self::Multiply => [vec![1], vec![0; size - 1]].concat(),
            Self::Maximum if is_float => top(infinity | 0x8000),
            Self::Minimum if is_float => top(infinity),
            Self::Maximum if is_unsigned => vec![0; size],
            Self::Minimum if is_unsigned => vec![0xff; size],
            Self::Maximum => [vec![0; size - 1], vec![0x80]].concat(),
            Self::Minimum => [vec![0xff; size - 1], vec![0x7f]].concat(),
        }
    }
}

fn signed(positions: &[usize]) -> Vec<i64> {
    positions.iter().map(|&position| position as i64).collect()
}

/// Attributes of a comparison. Its type is said although it follows from the operands: StableHLO 1.13 folds comparisons
/// of negative constants wrongly without it.
pub(super) fn comparison(direction: &str, ty: &Type) -> String {
    let kind = match (ty.is_float(), ty.is_unsigned() || ty.is_bool()) {
        (true, _) => "FLOAT",
        (_, true) => "UNSIGNED",
        _ => "SIGNED",
    };
    format!(
        "comparison_direction = #stablehlo<comparison_direction {direction}>, \
         compare_type = #stablehlo<comparison_type {kind}>"
    )
}

/// The region of a reduction or scatter: two scalars of a type and what is returned of them.
pub(super) fn region(ty: &Type, fold: Option<Fold>) -> String {
    let scalar = Type::new(ty.element, &[]);
    let mut text = format!("    ^bb0(%x: {scalar}, %y: {scalar}):\n");
    match fold {
        Some(fold) => {
            let op = fold.op();
            put(&mut text, format_args!("      %z = \"{op}\"(%x, %y) : ({scalar}, {scalar}) -> {scalar}\n"));
            put(&mut text, format_args!("      \"stablehlo.return\"(%z) : ({scalar}) -> ()\n"));
        }
        None => put(&mut text, format_args!("      \"stablehlo.return\"(%y) : ({scalar}) -> ()\n")),
    }
    text
}

impl Builder<'_> {
    /// An op of one operand with a result of the same type.
    pub(super) fn unary(&mut self, op: &str, x: &Value) -> Value {
        self.flops += x.ty.n_elements() as u64;
        self.op(op, &[x], "", x.ty.clone())
    }

    /// An op of two operands of one type, which is also the result's.
    pub(super) fn binary(&mut self, op: &str, x: &Value, y: &Value) -> Value {
        self.expect(x.ty == y.ty, op, &[x, y]);
        self.flops += x.ty.n_elements() as u64;
        self.op(op, &[x, y], "", x.ty.clone())
    }

    pub(super) fn add(&mut self, x: &Value, y: &Value) -> Value {
        self.binary("stablehlo.add", x, y)
    }

    pub(super) fn subtract(&mut self, x: &Value, y: &Value) -> Value {
        self.binary("stablehlo.subtract", x, y)
    }

    pub(super) fn multiply(&mut self, x: &Value, y: &Value) -> Value {
        self.binary("stablehlo.multiply", x, y)
    }

    pub(super) fn divide(&mut self, x: &Value, y: &Value) -> Value {
        self.binary("stablehlo.divide", x, y)
    }

    /// An op of a value and a number in every element.
    ///
    /// # Errors
    /// Unsupported if the element type does not hold the number.
    pub(super) fn with_number(&mut self, op: &str, x: &Value, number: f64) -> Result<Value> {
        let number = self.splat(number, &x.ty)?;
        Ok(self.binary(op, x, &number))
    }

    /// Truth values; `direction` is EQ, NE, GE, GT, LE or LT.
    pub(super) fn compare(&mut self, direction: &str, x: &Value, y: &Value) -> Value {
        self.expect(x.ty == y.ty, "a comparison", &[x, y]);
        self.flops += x.ty.n_elements() as u64;
        let attributes = comparison(direction, &x.ty);
        self.op("stablehlo.compare", &[x, y], &attributes, Type::new(ElementType::PRED, x.dims()))
    }

    /// A comparison with a number.
    ///
    /// # Errors
    /// Unsupported if the element type does not hold the number.
    pub(super) fn compare_number(&mut self, direction: &str, x: &Value, number: f64) -> Result<Value> {
        let number = self.splat(number, &x.ty)?;
        Ok(self.compare(direction, x, &number))
    }

    pub(super) fn select(&mut self, condition: &Value, yes: &Value, no: &Value) -> Value {
        self.expect(yes.ty == no.ty && condition.ty.is_bool(), "a selection", &[condition, yes, no]);
        self.flops += yes.ty.n_elements() as u64;
        self.op("stablehlo.select", &[condition, yes, no], "", yes.ty.clone())
    }

    /// The same numbers in another element type, as ONNX's Cast has it: rounded to nearest between floating-point types,
    /// toward zero to integers, and unequal to zero as a truth value.
    pub(super) fn convert(&mut self, x: &Value, element: ElementType) -> Value {
        if x.element() == element {
            return x.clone();
        }
        self.op("stablehlo.convert", &[x], "", Type::new(element, x.dims()))
    }

    pub(super) fn reshape(&mut self, x: &Value, dims: &[i64]) -> Value {
        if x.dims() == dims {
            return x.clone();
        }
        self.expect(x.ty.n_elements() == dims.iter().product::<i64>(), "a reshape", &[x]);
        self.op("stablehlo.reshape", &[x], "", Type::new(x.element(), dims))
    }

    /// `axes` says which axis of the result each axis of `x` is.
    pub(super) fn broadcast_in_dim(&mut self, x: &Value, axes: &[usize], dims: &[i64]) -> Value {
        if x.dims() == dims {
            return x.clone();
        }
        let fits = |(&from, &to): (&i64, &usize)| from == 1 || dims.get(to) == Some(&from);
        let is_right = axes.len() == x.rank() && x.dims().iter().zip(axes).all(fits);
        self.expect(is_right, "a broadcast", &[x]);
        let attributes = format!("broadcast_dimensions = {}", array(&signed(axes)));
        self.op("stablehlo.broadcast_in_dim", &[x], &attributes, Type::new(x.element(), dims))
    }

    /// Broadcast as ONNX does it: axes counted from the back, extents of 1 repeated.
    ///
    /// # Errors
    /// Invalid if the extents do not go together.
    pub(super) fn broadcast(&mut self, x: &Value, dims: &[i64]) -> Result<Value> {
        let wrong = || Error::invalid(format!("{:?} broadcast to {dims:?}", x.dims()));
        let ahead = dims.len().checked_sub(x.rank()).ok_or_else(wrong)?;
        if x.dims().iter().zip(&dims[ahead..]).any(|(&from, &to)| from != to && from != 1) {
            return Err(wrong());
        }
        Ok(self.broadcast_in_dim(x, &(ahead..dims.len()).collect::<Vec<_>>(), dims))
    }

    pub(super) fn transpose(&mut self, x: &Value, permutation: &[usize]) -> Value {
        if permutation.iter().enumerate().all(|(to, &from)| to == from) {
            return x.clone();
        }
        let dims: Vec<i64> = permutation.iter().map(|&from| x.dims()[from]).collect();
        let attributes = format!("permutation = {}", array(&signed(permutation)));
        self.op("stablehlo.transpose", &[x], &attributes, Type::new(x.element(), &dims))
    }

    /// Elements from `starts` up to, not including, `limits`.
    pub(super) fn slice(&mut self, x: &Value, starts: &[i64], limits: &[i64], strides: &[i64]) -> Value {
        let ends = starts.iter().zip(limits).zip(strides);
        let dims: Vec<i64> =
            ends.map(|((start, limit), stride)| (limit - start + stride - 1) / stride).collect();
        if dims == x.dims() {
            return x.clone();
        }
        let (starts, limits, strides) = (array(starts), array(limits), array(strides));
        let attributes = format!("start_indices = {starts}, limit_indices = {limits}, strides = {strides}");
        self.op("stablehlo.slice", &[x], &attributes, Type::new(x.element(), &dims))
    }

    /// A slice along one axis.
    pub(super) fn slice_axis(&mut self, x: &Value, axis: usize, start: i64, limit: i64) -> Value {
        let mut starts = vec![0; x.rank()];
        let mut limits = x.dims().to_vec();
        (starts[axis], limits[axis]) = (start, limit);
        self.slice(x, &starts, &limits, &vec![1; x.rank()])
    }

    pub(super) fn reverse(&mut self, x: &Value, axes: &[usize]) -> Value {
        if axes.is_empty() {
            return x.clone();
        }
        let attributes = format!("dimensions = {}", array(&signed(axes)));
        self.op("stablehlo.reverse", &[x], &attributes, x.ty.clone())
    }

    /// The scalar `value` at the ends; negative numbers take elements away.
    pub(super) fn pad(&mut self, x: &Value, value: &Value, ends: &[(i64, i64)]) -> Value {
        if ends.iter().all(|&end| end == (0, 0)) {
            return x.clone();
        }
        let dims: Vec<i64> = x.dims().iter().zip(ends).map(|(dim, (low, high))| dim + low + high).collect();
        let is_right = value.element() == x.element() && dims.iter().all(|&dim| dim >= 0);
        self.expect(is_right, "a pad", &[x, value]);
        let (low, high): (Vec<i64>, Vec<i64>) = ends.iter().copied().unzip();
        let (low, high, interior) = (array(&low), array(&high), array(&vec![0; x.rank()]));
        let attributes =
            format!("edge_padding_low = {low}, edge_padding_high = {high}, interior_padding = {interior}");
        self.op("stablehlo.pad", &[x, value], &attributes, Type::new(x.element(), &dims))
    }

    pub(super) fn concatenate(&mut self, parts: &[&Value], axis: usize) -> Value {
        if let [one] = parts {
            return (*one).clone();
        }
        let mut ty = parts[0].ty.clone();
        let alike = |part: &&Value| {
            let mut other = part.ty.clone();
            other.dims.get_mut(axis).map(|dim| *dim = ty.dims[axis]).is_some() && other == ty
        };
        let is_right = parts.iter().all(alike);
        self.expect(is_right, "a concatenation", parts);
        ty.dims[axis] = parts.iter().map(|part| part.dims()[axis]).sum();
        self.op("stablehlo.concatenate", parts, &format!("dimension = {axis} : i64"), ty)
    }

    /// 0, 1, 2, ... along an axis.
    pub(super) fn iota(&mut self, ty: &Type, axis: usize) -> Value {
        self.op("stablehlo.iota", &[], &format!("iota_dimension = {axis} : i64"), ty.clone())
    }

    /// The scalar that a reduction starts with.
    ///
    /// # Errors
    /// None in fact: the bytes are those of one element.
    fn neutral(&mut self, fold: Fold, element: ElementType) -> Result<Value> {
        self.literal(&fold.neutral(element), &Type::new(element, &[]))
    }

    /// Reduces over axes, which are not in the result.
    ///
    /// # Errors
    /// As [`literal`](Self::literal).
    pub(super) fn reduce(&mut self, fold: Fold, x: &Value, axes: &[usize]) -> Result<Value> {
        if axes.is_empty() {
            return Ok(x.clone());
        }
        let start = self.neutral(fold, x.element())?;
        let dims = x.dims().iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        let ty = Type::new(x.element(), &dims.map(|(_, &dim)| dim).collect::<Vec<_>>());
        self.flops += x.ty.n_elements() as u64;
        let attributes = format!("dimensions = {}", array(&signed(axes)));
        Ok(self.op_with_region("stablehlo.reduce", &[x, &start], &region(&x.ty, Some(fold)), &attributes, ty))
    }

    /// Reduces over axes, which are in the result with an extent of 1.
    ///
    /// # Errors
    /// As [`literal`](Self::literal).
    pub(super) fn reduce_keeping(&mut self, fold: Fold, x: &Value, axes: &[usize]) -> Result<Value> {
        let mut dims = x.dims().to_vec();
        for &axis in axes {
            dims[axis] = 1;
        }
        let reduced = self.reduce(fold, x, axes)?;
        Ok(self.reshape(&reduced, &dims))
    }

    /// Reduces within a window, which has an entry for every axis.
    ///
    /// # Errors
    /// As [`literal`](Self::literal).
    pub(super) fn reduce_window(&mut self, fold: Fold, x: &Value, window: &Window) -> Result<Value> {
        let start = self.neutral(fold, x.element())?;
        let dims: Vec<i64> =
            x.dims().iter().enumerate().map(|(axis, &dim)| window.n_places(axis, dim)).collect();
        let ty = Type::new(x.element(), &dims);
        self.flops += (ty.n_elements() * window.extents.iter().product::<i64>()) as u64;
        let attributes = format!(
            "window_dimensions = {}, window_strides = {}, base_dilations = {}, window_dilations = {}, padding = {}",
            array(&window.extents),
            array(&window.strides),
            array(&vec![1; x.rank()]),
            array(&window.dilations),
            padding(&window.pads),
        );
        let region = region(&x.ty, Some(fold));
        Ok(self.op_with_region("stablehlo.reduce_window", &[x, &start], &region, &attributes, ty))
    }

    /// `precision_config` for a product of two operands.
    pub(super) fn precision(&self) -> String {
        let word = if self.is_strict { "HIGHEST" } else { "DEFAULT" };
        format!("precision_config = [#stablehlo<precision {word}>, #stablehlo<precision {word}>]")
    }

    /// A product summed over axes. The result has the batch axes, then what is left of the first operand, then what is
    /// left of the second.
    pub(super) fn dot_general(&mut self, x: &Value, y: &Value, axes: &DotDims<'_>) -> Value {
        let free = |value: &Value, batch: &[usize], contract: &[usize]| -> Vec<i64> {
            let free = (0..value.rank()).filter(|axis| !batch.contains(axis) && !contract.contains(axis));
            free.map(|axis| value.dims()[axis]).collect()
        };
        let mut dims: Vec<i64> = axes.lhs_batch.iter().map(|&axis| x.dims()[axis]).collect();
        dims.extend(free(x, axes.lhs_batch, axes.lhs_contract));
        dims.extend(free(y, axes.rhs_batch, axes.rhs_contract));
        let ty = Type::new(x.element(), &dims);
        self.expect(x.element() == y.element(), "a product", &[x, y]);
        let depth: i64 = axes.lhs_contract.iter().map(|&axis| x.dims()[axis]).product();
        self.flops += 2 * (ty.n_elements() * depth) as u64;
        let attributes = format!(
            "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {}, rhs_batching_dimensions = {}, \
             lhs_contracting_dimensions = {}, rhs_contracting_dimensions = {}>, {}",
            list(&signed(axes.lhs_batch)),
            list(&signed(axes.rhs_batch)),
            list(&signed(axes.lhs_contract)),
            list(&signed(axes.rhs_contract)),
            self.precision(),
        );
        self.op("stablehlo.dot_general", &[x, y], &attributes, ty)
    }
}
