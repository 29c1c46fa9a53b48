//! Functions of one number: what an elementwise op is by ONNX's specification, in f64, with the numbers that it is tried with.
//!
//! These are the suite's own words, and not the formulas of `devbay-ops`, since they judge what is made of those. A row says which ops
//! have a kernel, by what names, and which attributes its numbers are.

use crate::ops::Rounding;
use Rounding::{Division, Exact};
use devbay_ops::Formula;
use devbay_ops::formula;

/// A function.
#[derive(Debug)]
pub(crate) struct Function {
    /// The op, or the form of it ([`Formula::name`]).
    pub name: &'static str,
    /// Its two numbers, in the order of the formula's; zeros where it has none.
    pub params: [f32; 2],
    /// Between what its operands lie.
    pub from: (f64, f64),
    /// Required exactness.
    pub rounding: Rounding,
    /// True if the results for infinities and NaN are promised: trigonometry's are not.
    pub has_edges: bool,
    /// The function.
    pub f: fn(f64, [f64; 2]) -> f64,
}

const fn of(name: &'static str, from: (f64, f64), f: fn(f64, [f64; 2]) -> f64) -> Function {
    Function { name, params: [0.0; 2], from, rounding: Rounding::Function, has_edges: true, f }
}

impl Function {
    /// Sets its numbers.
    const fn with(self, params: [f32; 2]) -> Self {
        Self { params, ..self }
    }

    /// Demands this exactness: an approximation is not good enough.
    const fn to(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    const fn without_edges(self) -> Self {
        Self { has_edges: false, ..self }
    }

    /// Returns the function's value for a number.
    pub(crate) fn of(&self, x: f64) -> f64 {
        (self.f)(x, self.params.map(f64::from))
    }

    /// Returns the formula that kernels are made from; every function has one, which a test holds.
    pub(crate) fn formula(&self) -> Option<&'static Formula> {
        formula::find(self.name)
    }

    /// Returns the op that a node of it has.
    pub(crate) fn op(&self) -> (&'static str, &'static str) {
        self.formula().map_or(("", self.name), |formula| (formula.row.domain, formula.row.name))
    }
}

/// All of them.
#[rustfmt::skip]
pub(crate) const FUNCTIONS: &[Function] = &[
    of("Abs", (-50.0, 50.0), |x, _| x.abs()).to(Exact),
    of("Acos", (-1.0, 1.0), |x, _| x.acos()),
    of("Acosh", (1.0, 50.0), |x, _| x.acosh()),
    of("Asin", (-1.0, 1.0), |x, _| x.asin()),
    of("Asinh", (-50.0, 50.0), |x, _| libm::asinh(x)),
    of("Atan", (-50.0, 50.0), |x, _| x.atan()),
    of("Atanh", (-0.9, 0.9), |x, _| x.atanh()),
    // The result for NaN is not promised: onnxruntime refuses it.
    of("Binarizer", (-5.0, 5.0), |x, [t, _]| if x > t { 1.0 } else { 0.0 }).with([0.5, 0.0]).to(Exact).without_edges(),
    of("Ceil", (-50.0, 50.0), |x, _| x.ceil()).to(Exact),
    of("Celu", (-5.0, 5.0), |x, [a, _]| if x > 0.0 { x } else { a * (x / a).exp_m1() }).with([1.5, 0.0]),
    of("Clip", (-5.0, 5.0), |x, [low, high]| clip(x, low, high)).with([-0.5, 0.75]).to(Exact),
    of("Cos", (-9.0, 9.0), |x, _| x.cos()).without_edges(),
    of("Cosh", (-6.0, 6.0), |x, _| x.cosh()),
    of("Elu", (-5.0, 5.0), |x, [a, _]| if x > 0.0 { x } else { a * x.exp_m1() }).with([1.5, 0.0]),
    of("Erf", (-4.0, 4.0), |x, _| libm::erf(x)),
    of("Exp", (-10.0, 5.0), |x, _| x.exp()),
    of("Floor", (-50.0, 50.0), |x, _| x.floor()).to(Exact),
    of("Gelu", (-5.0, 5.0), |x, _| 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))),
    of("GeluTanh", (-5.0, 5.0), |x, _| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())),
    of("HardSigmoid", (-3.0, 3.0), |x, [a, b]| clip(a * x + b, 0.0, 1.0)).with([0.3, 0.4]),
    of("HardSwish", (-6.0, 6.0), |x, _| x * clip(x / 6.0 + 0.5, 0.0, 1.0)),
    of("LeakyRelu", (-5.0, 5.0), |x, [a, _]| if x < 0.0 { a * x } else { x }).with([0.2, 0.0]).to(Division),
    of("Log", (0.01, 100.0), |x, _| x.ln()),
    of("Mish", (-10.0, 10.0), |x, _| x * softplus(x).tanh()),
    of("Neg", (-50.0, 50.0), |x, _| -x).to(Exact),
    of("QuickGelu", (-8.0, 8.0), |x, [a, _]| x * (1.0 / (1.0 + (-a * x).exp()))).with([1.5, 0.0]),
    of("Reciprocal", (0.1, 50.0), |x, _| 1.0 / x).to(Division),
    of("Relu", (-5.0, 5.0), |x, _| if x < 0.0 { 0.0 } else { x }).to(Exact),
    of("Round", (-50.0, 50.0), |x, _| x.round_ties_even()).to(Exact),
    of("Selu", (-5.0, 5.0), |x, [a, g]| g * if x > 0.0 { x } else { a * x.exp_m1() }).with([1.5, 1.25]),
    // Whole numbers, which integers have as well: bias and limit.
    of("Shrink", (-9.0, 9.0), |x, [b, l]| if x < -l { x + b } else if x > l { x - b } else { 0.0 }).with([1.0, 2.0]).to(Exact),
    of("Sigmoid", (-10.0, 10.0), |x, _| 1.0 / (1.0 + (-x).exp())),
    of("Sign", (-3.0, 3.0), |x, _| if x == 0.0 { 0.0 } else { x.signum() }).to(Exact),
    of("Sin", (-9.0, 9.0), |x, _| x.sin()).without_edges(),
    of("Sinh", (-6.0, 6.0), |x, _| x.sinh()),
    of("Softplus", (-10.0, 10.0), |x, _| softplus(x)),
    of("Softsign", (-10.0, 10.0), |x, _| x / (1.0 + x.abs())),
    of("Sqrt", (0.0, 100.0), |x, _| x.sqrt()).to(Division),
    of("Swish", (-8.0, 8.0), |x, [a, _]| x * (1.0 / (1.0 + (-a * x).exp()))).with([1.25, 0.0]),
    of("Tan", (-1.4, 1.4), |x, _| x.tan()).without_edges(),
    of("Tanh", (-6.0, 6.0), |x, _| x.tanh()),
    // NaN is not above.
    of("ThresholdedRelu", (-5.0, 5.0), |x, [a, _]| if x > a { x } else { 0.0 }).with([1.5, 0.0]).to(Exact),
];

/// Not `clamp`, whose limits may not cross.
fn clip(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `ln(1 + e^x)`, also where `e^x` is beyond f64.
fn softplus(x: f64) -> f64 {
    (if x < 0.0 { 0.0 } else { x }) + (-x.abs()).exp().ln_1p()
}

/// Returns the function of a name, for constants.
///
/// # Panics
/// If there is none.
pub(crate) const fn get(name: &str) -> &'static Function {
    let mut i = 0;
    while i < FUNCTIONS.len() {
        if is_equal(FUNCTIONS[i].name.as_bytes(), name.as_bytes()) {
            return &FUNCTIONS[i];
        }
        i += 1;
    }
    panic!("no function of that name")
}

const fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Returns the functions of an op, one for each form.
pub(crate) fn of_op(domain: &str, op: &str) -> impl Iterator<Item = &'static Function> {
    FUNCTIONS.iter().filter(move |function| function.op() == (domain, op))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a reference, no case would judge the kernels of a formula.
    #[test]
    fn every_formula_of_one_float_has_a_reference() {
        for formula in formula::all() {
            let is_one = formula.n_operands == 1 && !formula.gives_truth();
            let is_float =
                !matches!(formula.form.takes, devbay_ops::Takes::Integers | devbay_ops::Takes::Truths);
            let found = FUNCTIONS.iter().find(|function| function.name == formula.name());
            assert_eq!(found.is_some(), is_one && is_float, "{}", formula.name());
            if let Some(function) = found {
                let n = function.params.iter().filter(|param| **param != 0.0).count();
                assert_eq!(n, formula.params.len(), "the numbers of {}", function.name);
            }
        }
        assert!(FUNCTIONS.iter().all(|function| function.formula().is_some()));
    }
}
