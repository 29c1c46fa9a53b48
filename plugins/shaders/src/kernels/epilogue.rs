//! Steps that follow a product while it is still in registers: a factor, an addend, an activation (docs/fused-ops.md).

use super::math;
use crate::step::{BiasRelu, Param, Slot};
use crate::template::wgsl;
use devbay_plugin_api::sdk::{Attrs, Error, Result};

/// Relu's WGSL.
const RELU: &str = "return at_least_f(v, 0.0);";

/// An activation: its WGSL over `v`, and its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Activation {
    code: &'static str,
    /// Functions of `math.rs` that the code calls.
    calls: &'static [&'static str],
    params: [f32; 2],
}

impl Activation {
    /// Nothing.
    pub const NONE: Self = Self { code: "", calls: &[], params: [0.0; 2] };

    /// From the attributes `activation` and `activation_params`.
    ///
    /// # Errors
    /// Unsupported for a name that is not known here, invalid for missing parameters.
    pub fn of(attrs: &Attrs<'_>) -> Result<Self> {
        let name = attrs.string("activation", "")?;
        let (n_params, calls, code): (usize, &[&str], _) = match name {
            "" => (0, &[], ""),
            // NaN stays NaN.
            "Relu" => (0, &["at_least_f"], RELU),
            "LeakyRelu" => (1, &[], "return select(v, v * p.act0, v < 0.0);"),
            "Clip" => (2, &["at_least_f", "at_most_f"], "return at_most_f(at_least_f(v, p.act0), p.act1);"),
            "HardSigmoid" => (2, &["unit_f"], "return unit_f(p.act0 * v + p.act1);"),
            "HardSwish" => (0, &["unit_f"], "return v * unit_f(v / 6.0 + 0.5);"),
            "Sigmoid" => (0, &["sigmoid_f"], "return sigmoid_f(v);"),
            "Tanh" => (0, &["tanh_f"], "return tanh_f(v);"),
            "Silu" => (0, &["sigmoid_f"], "return v * sigmoid_f(v);"),
            other => return Err(Error::unsupported(format!("activation {other}"))),
        };
        let given = attrs.floats("activation_params")?.unwrap_or_default();
        if given.len() < n_params {
            return Err(Error::invalid(format!("activation {name} has too few parameters")));
        }
        let param = |i: usize| given.get(i).copied().unwrap_or(0.0);
        Ok(Self { code, calls, params: [param(0), param(1)] })
    }
}

/// `y = act(alpha * product + beta * addend + residual)`.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// Factor of the product.
    pub alpha: f32,
    /// Addend, with its distances between rows and columns.
    pub addend: Option<(Slot, u32, u32)>,
    /// Its factor.
    pub beta: f32,
    /// Addend that has the result's shape.
    pub residual: Option<Slot>,
    /// Activation that is applied last.
    pub activation: Activation,
}

/// Addends that libraries add to a product themselves.
pub enum Added {
    /// Nothing.
    Nothing,
    /// One number for each column.
    Bias(Slot),
    /// A matrix as the result is, and its factor.
    Matrix(Slot, f32),
}

impl Epilogue {
    /// All of it but the product's factor as libraries do it; None if there is more. The result has `cols` columns, and is
    /// `n_batch` of them.
    pub fn in_gemm(&self, cols: u64, n_batch: u64) -> Option<Added> {
        if self.activation != Activation::NONE {
            return None;
        }
        match (&self.addend, &self.residual) {
            (None, None) => Some(Added::Nothing),
            (None, Some(residual)) => Some(Added::Matrix(residual.clone(), 1.0)),
            (Some((slot, 0, 1)), None) if self.beta == 1.0 => Some(Added::Bias(slot.clone())),
            (Some((slot, row, 1)), None) if u64::from(*row) == cols && n_batch == 1 => {
                Some(Added::Matrix(slot.clone(), self.beta))
            }
            _ => None,
        }
    }

    /// Returns whether the sums are the result.
    pub fn is_nothing(&self) -> bool {
        self.alpha == 1.0
            && self.addend.is_none()
            && self.residual.is_none()
            && self.activation == Activation::NONE
    }

    /// All of it as libraries do it behind a convolution, whose channels are rows; None if it is something else.
    pub fn in_convolution(&self) -> Option<BiasRelu> {
        let is_relu = self.activation.code == RELU && self.alpha == 1.0 && self.beta == 1.0;
        let residual = self.residual.clone();
        match &self.addend {
            Some((bias, 1, 0)) if is_relu => Some(BiasRelu { bias: bias.clone(), residual }),
            _ => None,
        }
    }

    /// Leaves the product as it is.
    pub const NONE: Self =
        Self { alpha: 1.0, addend: None, beta: 1.0, residual: None, activation: Activation::NONE };

    /// The buffers `addend` and `residual`, of elements of the type `element`.
    pub fn buffers(&self, element: &'static str) -> Vec<(&'static str, &'static str, Slot)> {
        let addend = self.addend.iter().map(|(slot, ..)| ("addend", element, slot.clone()));
        let residual = self.residual.iter().map(|slot| ("residual", element, slot.clone()));
        addend.chain(residual).collect()
    }

    /// Parameters that the code reads.
    pub fn params(&self) -> Vec<(String, Param)> {
        let mut params = Vec::new();
        let mut add = |name: &str, value| params.push((name.to_owned(), value));
        if self.alpha != 1.0 {
            add("alpha", Param::F32(self.alpha));
        }
        if let Some((_, row, col)) = &self.addend {
            add("addend_row", Param::U32(*row));
            add("addend_col", Param::U32(*col));
            if self.beta != 1.0 {
                add("beta", Param::F32(self.beta));
            }
        }
        if !self.activation.code.is_empty() {
            add("act0", Param::F32(self.activation.params[0]));
            add("act1", Param::F32(self.activation.params[1]));
        }
        params
    }

    /// WGSL: `fn finish(sum, addend_base: u32, row: u32, col: u32, at: u32)`, with `at` the place in the result, over
    /// numbers of the type `number`.
    pub fn functions(&self, number: &str) -> String {
        let Activation { code, calls, .. } = self.activation;
        let is_activated = !code.is_empty();
        let activate = match is_activated {
            true => math::functions(calls) + &format!("\nfn activate(v: f32) -> f32 {{ {code} }}"),
            false => String::new(),
        };
        wgsl!(
            "epilogue/finish.wgsl",
            activate,
            number,
            has_alpha = self.alpha != 1.0,
            has_addend = self.addend.is_some(),
            has_beta = self.beta != 1.0,
            has_residual = self.residual.is_some(),
            is_activated,
        )
    }
}
