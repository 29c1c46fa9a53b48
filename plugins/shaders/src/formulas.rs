//! ONNX's elementwise ops as formulas, of which kernels are generated.
//!
//! A formula is an expression in what C and WGSL have in common: operators, calls, parentheses. Its words are
//! - `a`, `b`, `c`: operands; `k0`, `k1`: attributes, as floats;
//! - `T`: the type in which the element is calculated; a number is written `T(0.5)`;
//! - `NAME_$`: a function of the prelude for that type, the `$` being the type's letter ([`Class::letter`]).
//!
//! The prelude (`kernels/math.rs`) has for floats `exp_f`, `log_f`, `tanh_f`, `erf_f`, `sigmoid_f`, `expm1_f`,
//! `softplus_f`, `pow_f`, `round_f` and so on, for every type `pick_$(condition, yes, no)`, `at_least_$`, `at_most_$`,
//! `smaller_$`, `larger_$`, `div_$`, `mod_$`, `rem_$`, `abs_$`, `sign_$`.
//!
//! How elements lie in memory, and what reads and writes them, is the kernels' (`kernels/elementwise.rs`).

/// What elements an op takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Floating-point numbers.
    Floats,
    /// Integers.
    Integers,
    /// Truth values.
    Truths,
    /// Floats, integers of any kind.
    Numbers,
    /// Numbers and truth values.
    Anything,
}

/// What elements an op gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gives {
    /// What it takes.
    Same,
    /// Truth values.
    Truth,
}

/// In what type an element is calculated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// 32-bit float.
    Float,
    /// 32-bit signed integer.
    Int,
    /// 32-bit unsigned integer.
    Uint,
    /// 64-bit signed integer.
    Long,
    /// 64-bit unsigned integer.
    Ulong,
    /// Truth value.
    Truth,
}

impl Class {
    /// The letter that stands for `$` in the names of functions.
    pub fn letter(self) -> char {
        match self {
            Self::Float => 'f',
            Self::Int => 'i',
            Self::Uint => 'u',
            Self::Long => 'l',
            Self::Ulong => 'm',
            Self::Truth => 't',
        }
    }

    /// Whether it is some integer.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Long | Self::Ulong)
    }
}

/// An elementwise op of ONNX.
#[derive(Debug)]
pub struct Formula {
    /// The op's name.
    pub op: &'static str,
    /// Operands.
    pub n_operands: usize,
    /// What it takes.
    pub takes: Takes,
    /// What it gives.
    pub gives: Gives,
    /// The expression.
    pub text: &'static str,
    /// Attributes `k0`, `k1`, with their defaults.
    pub attrs: &'static [(&'static str, f32)],
    /// Arithmetic operations for an element, roughly.
    pub flops: u64,
}

const fn unary(op: &'static str, takes: Takes, flops: u64, text: &'static str) -> Formula {
    Formula { op, n_operands: 1, takes, gives: Gives::Same, text, attrs: &[], flops }
}

const fn binary(op: &'static str, takes: Takes, text: &'static str) -> Formula {
    Formula { op, n_operands: 2, takes, gives: Gives::Same, text, attrs: &[], flops: 1 }
}

const fn relation(op: &'static str, takes: Takes, text: &'static str) -> Formula {
    Formula { op, n_operands: 2, takes, gives: Gives::Truth, text, attrs: &[], flops: 1 }
}

impl Formula {
    const fn with(mut self, attrs: &'static [(&'static str, f32)]) -> Self {
        self.attrs = attrs;
        self
    }

    /// The expression for operands, attributes and a type by the names that the caller gives them.
    pub fn write(&self, class: Class, type_name: &str, operands: &[String], attrs: &[String]) -> String {
        let word = |word: &str| match word {
            "a" => operands.first().cloned(),
            "b" => operands.get(1).cloned(),
            "c" => operands.get(2).cloned(),
            "k0" => attrs.first().cloned(),
            "k1" => attrs.get(1).cloned(),
            "T" => Some(type_name.to_owned()),
            _ => word.strip_suffix('$').map(|function| format!("{function}{}", class.letter())),
        };
        replace_words(self.text, word)
    }

    /// The functions of the prelude that the expression calls, with their letters.
    pub fn functions(&self, class: Class) -> Vec<String> {
        let mut functions = Vec::new();
        replace_words(self.text, |word| {
            if let Some(function) = word.strip_suffix('$') {
                functions.push(format!("{function}{}", class.letter()));
            }
            None
        });
        functions
    }
}

/// A text with some of its words replaced; words are of letters, digits, `_` and `$`.
fn replace_words(text: &str, mut replacement: impl FnMut(&str) -> Option<String>) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let mut result = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match is_part(first) {
            true => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            false => rest.find(is_part).unwrap_or(rest.len()),
        };
        let (word, behind) = rest.split_at(length);
        match replacement(word) {
            Some(new) if is_part(first) => result.push_str(&new),
            _ => result.push_str(word),
        }
        rest = behind;
    }
    result
}

/// The formula of an op.
pub fn find(op: &str) -> Option<&'static Formula> {
    ALL.iter().find(|formula| formula.op == op)
}

/// All formulas. NaN passes wherever ONNX's reference lets it pass.
pub static ALL: &[Formula] = &[
    binary("Add", Takes::Numbers, "a + b"),
    binary("Sub", Takes::Numbers, "a - b"),
    binary("Mul", Takes::Numbers, "a * b"),
    binary("Div", Takes::Numbers, "div_$(a, b)"),
    binary("Min", Takes::Numbers, "smaller_$(a, b)"),
    binary("Max", Takes::Numbers, "larger_$(a, b)"),
    binary("PRelu", Takes::Numbers, "pick_$(a < T(0), a * b, a)"),
    binary("Pow", Takes::Floats, "pow_$(a, b)"),
    // Mod with and without the attribute `fmod`.
    binary("Mod", Takes::Integers, "mod_$(a, b)"),
    binary("Fmod", Takes::Numbers, "rem_$(a, b)"),
    binary("And", Takes::Truths, "a && b"),
    binary("Or", Takes::Truths, "a || b"),
    binary("Xor", Takes::Truths, "a != b"),
    binary("BitwiseAnd", Takes::Integers, "a & b"),
    binary("BitwiseOr", Takes::Integers, "a | b"),
    binary("BitwiseXor", Takes::Integers, "a ^ b"),
    relation("Equal", Takes::Anything, "a == b"),
    relation("Less", Takes::Numbers, "a < b"),
    relation("LessOrEqual", Takes::Numbers, "a <= b"),
    relation("Greater", Takes::Numbers, "a > b"),
    relation("GreaterOrEqual", Takes::Numbers, "a >= b"),
    unary("Identity", Takes::Anything, 0, "a"),
    unary("Not", Takes::Truths, 1, "!a"),
    unary("BitwiseNot", Takes::Integers, 1, "~a"),
    unary("Neg", Takes::Numbers, 1, "neg_$(a)"),
    unary("Abs", Takes::Numbers, 1, "abs_$(a)"),
    unary("Sign", Takes::Numbers, 2, "sign_$(a)"),
    unary("Relu", Takes::Numbers, 1, "at_least_$(a, T(0))"),
    // The limits are attributes where ops are fused. As Clip by itself has it, a zero keeps its sign between limits that
    // are zero.
    unary("Clip", Takes::Floats, 2, "at_most_$(at_least_$(a, k0), k1)")
        .with(&[("min", f32::NEG_INFINITY), ("max", f32::INFINITY)]),
    unary("Sqrt", Takes::Floats, 1, "sqrt_$(a)"),
    unary("Reciprocal", Takes::Floats, 1, "div_$(T(1), a)"),
    unary("Floor", Takes::Floats, 1, "floor_$(a)"),
    unary("Ceil", Takes::Floats, 1, "ceil_$(a)"),
    unary("Round", Takes::Floats, 1, "round_$(a)"),
    unary("Exp", Takes::Floats, 20, "exp_$(a)"),
    unary("Log", Takes::Floats, 30, "log_$(a)"),
    unary("Sigmoid", Takes::Floats, 25, "sigmoid_$(a)"),
    unary("Tanh", Takes::Floats, 35, "tanh_$(a)"),
    unary("Erf", Takes::Floats, 40, "erf_$(a)"),
    unary("Softplus", Takes::Floats, 50, "softplus_$(a)"),
    unary("Softsign", Takes::Floats, 3, "div_$(a, T(1) + abs_$(a))"),
    unary("Mish", Takes::Floats, 90, "a * tanh_$(softplus_$(a))"),
    unary("HardSwish", Takes::Floats, 5, "a * unit_$(a * T(0.16666667) + T(0.5))"),
    unary("HardSigmoid", Takes::Floats, 4, "unit_$(k0 * a + k1)").with(&[("alpha", 0.2), ("beta", 0.5)]),
    unary("LeakyRelu", Takes::Floats, 2, "pick_$(a < T(0), k0 * a, a)").with(&[("alpha", 0.01)]),
    unary("Elu", Takes::Floats, 25, "pick_$(a > T(0), a, k0 * expm1_$(a))").with(&[("alpha", 1.0)]),
    unary("Celu", Takes::Floats, 25, "pick_$(a > T(0), a, k0 * expm1_$(div_$(a, k0)))")
        .with(&[("alpha", 1.0)]),
    unary("Selu", Takes::Floats, 25, "k1 * pick_$(a > T(0), a, k0 * expm1_$(a))")
        .with(&[("alpha", 1.673_263_2), ("gamma", 1.050_701)]),
    unary("Swish", Takes::Floats, 30, "a * sigmoid_$(k0 * a)").with(&[("alpha", 1.0)]),
    unary("ThresholdedRelu", Takes::Floats, 1, "pick_$(a > k0, a, T(0))").with(&[("alpha", 1.0)]),
    unary("Shrink", Takes::Floats, 3, "pick_$(a > k0, a - k1, pick_$(a < -k0, a + k1, T(0)))")
        .with(&[("lambd", 0.5), ("bias", 0.0)]),
    // Gelu with and without `approximate="tanh"`: 1 / sqrt(2), and sqrt(2 / pi).
    unary("Gelu", Takes::Floats, 45, "T(0.5) * a * (T(1) + erf_$(a * T(0.70710678)))"),
    unary(
        "GeluTanh",
        Takes::Floats,
        45,
        "T(0.5) * a * (T(1) + tanh_$(T(0.7978846) * (a + T(0.044715) * a * a * a)))",
    ),
    unary("Sin", Takes::Floats, 40, "sin_$(a)"),
    unary("Cos", Takes::Floats, 40, "cos_$(a)"),
    unary("Tan", Takes::Floats, 40, "tan_$(a)"),
    unary("Asin", Takes::Floats, 40, "asin_$(a)"),
    unary("Acos", Takes::Floats, 40, "acos_$(a)"),
    unary("Atan", Takes::Floats, 40, "atan_$(a)"),
    unary("Sinh", Takes::Floats, 40, "sinh_$(a)"),
    unary("Cosh", Takes::Floats, 40, "cosh_$(a)"),
    unary("Asinh", Takes::Floats, 40, "asinh_$(a)"),
    unary("Acosh", Takes::Floats, 40, "acosh_$(a)"),
    unary("Atanh", Takes::Floats, 40, "atanh_$(a)"),
    Formula { gives: Gives::Truth, ..unary("IsNaN", Takes::Floats, 1, "isnan_$(a)") },
    // `k0` and `k1`: whether negative and positive infinities count.
    Formula {
        gives: Gives::Truth,
        ..unary("IsInf", Takes::Floats, 1, "(isinf_$(a) && pick_$(a < T(0), k0, k1) > T(0))")
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_and_nothing_else() {
        let formula = find("Selu").unwrap();
        let text =
            formula.write(Class::Float, "f32", &["x[i]".into()], &["p.alpha".into(), "p.gamma".into()]);
        assert_eq!(text, "p.gamma * pick_f(x[i] > f32(0), x[i], p.alpha * expm1_f(x[i]))");
        assert_eq!(formula.functions(Class::Float), ["pick_f", "expm1_f"]);
        assert_eq!(find("Add").unwrap().write(Class::Long, "i64", &["a1".into(), "b".into()], &[]), "a1 + b");
    }

    #[test]
    fn ops_are_there_once() {
        for (i, formula) in ALL.iter().enumerate() {
            assert!(ALL[..i].iter().all(|other| other.op != formula.op), "{} twice", formula.op);
            assert!(formula.attrs.len() <= 2 && (1..=3).contains(&formula.n_operands), "{}", formula.op);
        }
    }
}
