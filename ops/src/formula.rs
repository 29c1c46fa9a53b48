//! Elementwise ops' computations, in a small language of expressions.
//!
//! ```text
//! X > 0 ? X : alpha * expm1(X / alpha)
//! ```
//!
//! A name is one of the op's operands or attributes, or a [`Function`] with its arguments in parentheses. Operators and
//! their precedence are those of C; `c ? x : y` chooses element by element. All other numbers have the type of the element's
//! computation, and truth values come only from comparisons.
//!
//! NaN propagates through every function, as in IEEE 754; only `a ? b : c` may drop it, with the operand that is not chosen.
//! Zeros keep their signs. So a formula also defines the results for special numbers, literally:
//! `X * clip(X / 6 + 0.5, 0, 1)` of minus infinity is `-inf * 0`, which is NaN.
//!
//! Each consumer of formulas implements [`Emit`]: the interpreter of the CPU plugin, and the writers of WGSL, OpenCL C and
//! StableHLO.

use crate::attributes::{Attribute, AttributeDefault};
use crate::row::{Form, OpRow};
use std::fmt;
use std::sync::LazyLock;

/// Defines the functions, with their names in the language and the number of their arguments.
macro_rules! functions {
    ($($(#[$doc:meta])* $variant:ident $name:literal $arity:literal,)*) => {
        /// An operation of the language.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Function {
            $($(#[$doc])* $variant,)*
        }

        impl Function {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns its name, or its operator.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the number of arguments that it takes.
            pub const fn arity(self) -> usize {
                match self {
                    $(Self::$variant => $arity,)*
                }
            }
        }
    };
}

functions! {
    /// `a + b`.
    Add "+" 2,
    /// `a - b`.
    Sub "-" 2,
    /// `a * b`.
    Mul "*" 2,
    /// `a / b`; integers round towards zero.
    Div "/" 2,
    /// `-a`.
    Neg "neg" 1,
    /// `a == b`.
    Equal "==" 2,
    /// `a != b`.
    NotEqual "!=" 2,
    /// `a < b`.
    Less "<" 2,
    /// `a <= b`.
    LessOrEqual "<=" 2,
    /// `a > b`.
    Greater ">" 2,
    /// `a >= b`.
    GreaterOrEqual ">=" 2,
    /// `a && b` of truth values.
    And "&&" 2,
    /// `a || b` of truth values.
    Or "||" 2,
    /// `!a` of a truth value.
    Not "!" 1,
    /// `a & b` of integers.
    BitAnd "&" 2,
    /// `a | b` of integers.
    BitOr "|" 2,
    /// `a ^ b` of integers.
    BitXor "^" 2,
    /// `~a` of an integer.
    BitNot "~" 1,
    /// `a ? b : c`.
    Select "?" 3,
    /// The larger argument; NaN if either is NaN.
    Larger "larger" 2,
    /// The smaller argument; NaN if either is NaN.
    Smaller "smaller" 2,
    /// `b` where `a < b`, else `a`: keeps NaN and a zero's sign.
    AtLeast "at_least" 2,
    /// `b` where `a > b`, else `a`.
    AtMost "at_most" 2,
    /// `at_most(at_least(a, b), c)`.
    Clip "clip" 3,
    /// The remainder with the divisor's sign.
    Mod "mod" 2,
    /// The remainder with the dividend's sign.
    Rem "rem" 2,
    /// Power.
    Pow "pow" 2,
    /// Absolute value.
    Abs "abs" 1,
    /// -1, 0 or 1.
    Sign "sign" 1,
    /// Square root.
    Sqrt "sqrt" 1,
    /// The largest integer not above the argument.
    Floor "floor" 1,
    /// The smallest integer not below the argument.
    Ceil "ceil" 1,
    /// The nearest integer, ties to even.
    Round "round" 1,
    /// e to a power.
    Exp "exp" 1,
    /// `exp(a) - 1`, exact near zero.
    ExpM1 "expm1" 1,
    /// Natural logarithm.
    Log "log" 1,
    /// `1 / (1 + exp(-a))`.
    Sigmoid "sigmoid" 1,
    /// `log(1 + exp(a))`, without overflow.
    Softplus "softplus" 1,
    /// Error function.
    Erf "erf" 1,
    /// Sine.
    Sin "sin" 1,
    /// Cosine.
    Cos "cos" 1,
    /// Tangent.
    Tan "tan" 1,
    /// Arc sine.
    Asin "asin" 1,
    /// Arc cosine.
    Acos "acos" 1,
    /// Arc tangent.
    Atan "atan" 1,
    /// Hyperbolic sine.
    Sinh "sinh" 1,
    /// Hyperbolic cosine.
    Cosh "cosh" 1,
    /// Hyperbolic tangent.
    Tanh "tanh" 1,
    /// Inverse hyperbolic sine.
    Asinh "asinh" 1,
    /// Inverse hyperbolic cosine.
    Acosh "acosh" 1,
    /// Inverse hyperbolic tangent.
    Atanh "atanh" 1,
    /// True if the argument is NaN.
    IsNan "isnan" 1,
    /// True if the argument is infinite.
    IsInf "isinf" 1,
}

impl Function {
    /// Returns whether it is written between its arguments.
    pub fn is_infix(self) -> bool {
        self.arity() == 2 && !self.name().starts_with(|c: char| c.is_ascii_alphabetic())
    }

    /// Returns whether its result is a truth value.
    pub fn gives_truth(self) -> bool {
        use Function::{
            And, Equal, Greater, GreaterOrEqual, IsInf, IsNan, Less, LessOrEqual, Not, NotEqual, Or,
        };
        matches!(
            self,
            And | Equal | Greater | GreaterOrEqual | IsInf | IsNan | Less | LessOrEqual | Not | NotEqual | Or
        )
    }
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// An operand, by its position.
    Operand(usize),
    /// A parameter of the formula, by its position in [`Formula::params`].
    Param(usize),
    /// A number.
    Number(f64),
    /// A function of other expressions.
    Call(Function, Vec<Expr>),
}

/// A target that computes formulas, or writes them in another language.
pub trait Emit {
    /// The target's form of an expression.
    type Value;
    /// The target's reason for rejecting an expression.
    type Error;

    /// Emits the operand at a position.
    ///
    /// # Errors
    /// The target's own, as for the other methods.
    fn operand(&mut self, idx: usize) -> Result<Self::Value, Self::Error>;

    /// Emits the parameter at a position.
    ///
    /// # Errors
    /// The target's own.
    fn param(&mut self, idx: usize) -> Result<Self::Value, Self::Error>;

    /// Emits a number.
    ///
    /// # Errors
    /// The target's own.
    fn number(&mut self, number: f64) -> Result<Self::Value, Self::Error>;

    /// Emits a function of as many values as it takes arguments.
    ///
    /// # Errors
    /// The target's own.
    fn call(&mut self, function: Function, args: Vec<Self::Value>) -> Result<Self::Value, Self::Error>;
}

impl Expr {
    /// Emits the expression, arguments before their functions.
    ///
    /// # Errors
    /// The emitter's first error.
    pub fn emit<E: Emit>(&self, emitter: &mut E) -> Result<E::Value, E::Error> {
        match self {
            Self::Operand(idx) => emitter.operand(*idx),
            Self::Param(idx) => emitter.param(*idx),
            Self::Number(number) => emitter.number(*number),
            Self::Call(function, args) => {
                let args = args.iter().map(|arg| arg.emit(emitter)).collect::<Result<_, _>>()?;
                emitter.call(*function, args)
            }
        }
    }

    /// Returns its functions, including repeated ones.
    pub fn functions(&self) -> Vec<Function> {
        match self {
            Self::Call(function, args) => {
                std::iter::once(*function).chain(args.iter().flat_map(Self::functions)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A number that a node passes to a formula.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Param {
    /// The attribute, or an operand that is one number.
    pub name: &'static str,
    /// Its default value.
    pub default: f32,
}

/// A parsed elementwise op, or one of its forms.
#[derive(Debug)]
pub struct Formula {
    /// The op.
    pub row: &'static OpRow,
    /// The form.
    pub form: &'static Form,
    /// Number of tensor operands.
    pub n_operands: usize,
    /// Its other numbers, at most two, sorted by name.
    pub params: Vec<Param>,
    /// The expression that is computed.
    pub expr: Expr,
}

impl Formula {
    /// Returns its name in fused ops (`docs/fused-ops.md`): the op's, except for other forms.
    pub fn name(&self) -> &'static str {
        self.form.name
    }

    /// Returns whether its elements are truth values instead of the operands' type.
    pub fn gives_truth(&self) -> bool {
        self.form.gives_truth
    }

    /// Parses a form of an op.
    ///
    /// # Errors
    /// The fault in its text.
    fn of(row: &'static OpRow, form: &'static Form) -> Result<Self, String> {
        let mut operands: Vec<&'static str> = row.inputs.names().collect();
        if form.is_fold {
            operands.insert(0, "acc");
        }
        let mut params: Vec<Param> = Vec::new();
        for attribute in
            row.attributes.iter().filter(|attribute| words(form.text).any(|w| w == attribute.name))
        {
            params.push(Param { name: attribute.name, default: number_of(&attribute)? });
        }
        params.extend(form.absent.iter().map(|&(name, default)| Param { name, default }));
        operands.retain(|name| params.iter().all(|param| param.name != *name));
        let mut parser = Parser { rest: form.text, operands: &operands, params: &params };
        let expr = parser.choice()?;
        if !parser.rest.is_empty() {
            return Err(format!("{} is left over", parser.rest));
        }
        Ok(Self { row, form, n_operands: operands.len(), params, expr })
    }
}

/// Returns an attribute's default as a number.
fn number_of(attribute: &Attribute) -> Result<f32, String> {
    match attribute.default {
        Some(AttributeDefault::Int(int)) => Ok(int as f32),
        Some(AttributeDefault::Float(float)) => Ok(float),
        _ => Err(format!("the attribute {} is no number with a default", attribute.name)),
    }
}

/// Returns the names in a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

static ALL: LazyLock<Vec<Formula>> = LazyLock::new(|| {
    let rows = crate::all().flat_map(|row| row.forms.iter().flatten().map(move |form| (row, form)));
    // The rows are constants, and a test parses them all.
    rows.filter_map(|(row, form)| Formula::of(row, form).ok()).collect()
});

/// Returns all formulas, in the order of the rows.
pub fn all() -> &'static [Formula] {
    &ALL
}

/// Returns the formula with a name: an op's, or a form's.
pub fn find(name: &str) -> Option<&'static Formula> {
    ALL.iter().find(|formula| formula.name() == name)
}

/// Returns the formulas of an op: one, or one for each of its forms, the usual one first.
pub fn of_op(domain: &str, op: &str) -> impl Iterator<Item = &'static Formula> {
    ALL.iter().filter(move |formula| formula.row.name == op && formula.row.domain == domain)
}

/// The unparsed rest of a formula.
struct Parser<'a> {
    rest: &'a str,
    operands: &'a [&'static str],
    params: &'a [Param],
}

/// Infix operators by precedence, lowest first.
const LEVELS: &[&[Function]] = &[
    &[Function::Or],
    &[Function::And],
    &[Function::BitOr],
    &[Function::BitXor],
    &[Function::BitAnd],
    &[Function::Equal, Function::NotEqual],
    &[Function::LessOrEqual, Function::GreaterOrEqual, Function::Less, Function::Greater],
    &[Function::Add, Function::Sub],
    &[Function::Mul, Function::Div],
];

impl Parser<'_> {
    /// Consumes a sign if it comes next and does not begin a longer one.
    fn takes(&mut self, sign: &str) -> bool {
        self.rest = self.rest.trim_start();
        let Some(behind) = self.rest.strip_prefix(sign) else { return false };
        let longer = matches!((sign, behind.as_bytes().first()), ("&", Some(b'&')) | ("|", Some(b'|')));
        if !longer {
            self.rest = behind.trim_start();
        }
        !longer
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) { Ok(()) } else { Err(format!("expected {sign} before {:?}", self.rest)) }
    }

    fn choice(&mut self) -> Result<Expr, String> {
        let condition = self.level(0)?;
        if !self.takes("?") {
            return Ok(condition);
        }
        let yes = self.choice()?;
        self.expect(":")?;
        let no = self.choice()?;
        Ok(Expr::Call(Function::Select, vec![condition, yes, no]))
    }

    fn level(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = LEVELS.get(level) else { return self.sign() };
        let mut left = self.level(level + 1)?;
        while let Some(&operator) = operators.iter().find(|operator| self.takes(operator.name())) {
            let right = self.level(level + 1)?;
            left = Expr::Call(operator, vec![left, right]);
        }
        Ok(left)
    }

    fn sign(&mut self) -> Result<Expr, String> {
        for (sign, function) in [("-", Function::Neg), ("!", Function::Not), ("~", Function::BitNot)] {
            if self.takes(sign) {
                return Ok(Expr::Call(function, vec![self.sign()?]));
            }
        }
        if self.takes("(") {
            let inner = self.choice()?;
            self.expect(")")?;
            return Ok(inner);
        }
        self.word()
    }

    /// Parses a number, an operand, an attribute, or a function with its arguments.
    fn word(&mut self) -> Result<Expr, String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let (word, rest) = self.rest.split_at(self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.parse().map(Expr::Number).map_err(|_| format!("{word} is no number"));
        }
        if let Some(idx) = self.operands.iter().position(|name| *name == word) {
            return Ok(Expr::Operand(idx));
        }
        if let Some(idx) = self.params.iter().position(|param| param.name == word) {
            return Ok(Expr::Param(idx));
        }
        let known = Function::ALL.iter().find(|function| function.name() == word);
        let &function = known.ok_or_else(|| format!("{word:?} is no operand, attribute or function"))?;
        self.expect("(")?;
        let mut args = vec![self.choice()?];
        while self.takes(",") {
            args.push(self.choice()?);
        }
        self.expect(")")?;
        if args.len() != function.arity() {
            return Err(format!("{word} of {} arguments", args.len()));
        }
        Ok(Expr::Call(function, args))
    }
}

/// Writes its text, with parentheses around every operator's expression.
impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Text<'a>(&'a Formula);
        impl Emit for Text<'_> {
            type Value = String;
            type Error = std::convert::Infallible;

            fn operand(&mut self, idx: usize) -> Result<String, Self::Error> {
                let names = self.0.row.inputs.names().filter(|_| !self.0.form.is_fold);
                Ok(names.chain(["a", "b"]).nth(idx).unwrap_or_default().to_owned())
            }

            fn param(&mut self, idx: usize) -> Result<String, Self::Error> {
                Ok(self.0.params[idx].name.to_owned())
            }

            fn number(&mut self, number: f64) -> Result<String, Self::Error> {
                Ok(number.to_string())
            }

            fn call(&mut self, function: Function, args: Vec<String>) -> Result<String, Self::Error> {
                Ok(match (function, args.as_slice()) {
                    (Function::Select, [condition, yes, no]) => format!("({condition} ? {yes} : {no})"),
                    (_, [a, b]) if function.is_infix() => format!("({a} {} {b})", function.name()),
                    _ => format!("{}({})", function.name(), args.join(", ")),
                })
            }
        }
        let Ok(text) = self.expr.emit(&mut Text(self));
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let mut n_forms = 0;
        for row in crate::all() {
            for form in row.forms.iter().flatten() {
                let formula = Formula::of(row, form).unwrap_or_else(|e| panic!("{}: {e}", row.name));
                assert!(formula.params.len() <= 2, "{}: {:?}", form.name, formula.params);
                assert!((1..=2).contains(&formula.n_operands), "{}", form.name);
                assert_eq!(find(form.name).map(Formula::name), Some(form.name));
                let gives_truth = match &formula.expr {
                    Expr::Call(function, _) => function.gives_truth() || form.takes == crate::Takes::Truths,
                    _ => false,
                };
                assert_eq!(
                    gives_truth,
                    form.gives_truth || form.takes == crate::Takes::Truths,
                    "{}",
                    form.name
                );
                n_forms += 1;
            }
        }
        assert_eq!(all().len(), n_forms);
        assert!(n_forms > 60, "{n_forms}");
    }

    #[test]
    fn operators_bind_as_in_c() {
        let check = |name: &str, expected: &str| {
            assert_eq!(find(name).expect("a formula").to_string(), expected, "{name}");
        };
        check("Selu", "(gamma * ((X > 0) ? X : (alpha * expm1(X))))");
        check("Shrink", "((input > lambd) ? (input - bias) : ((input < neg(lambd)) ? (input + bias) : 0))");
        check("IsInf", "(isinf(X) && (((X < 0) ? detect_negative : detect_positive) != 0))");
        check("BitwiseAnd", "(A & B)");
        check("Max", "larger(a, b)");
        check("Clip", "clip(input, min, max)");
        check("Not", "!(X)");
        check("Softsign", "(input / (1 + abs(input)))");
    }

    #[test]
    fn what_is_no_formula_is_said() {
        let check = |text: &'static str, expected: &str| {
            let row = crate::find("", "Elu").expect("a row");
            let form: &'static Form = Box::leak(Box::new(Form { text, ..row.forms[0].expect("a form") }));
            assert_eq!(Formula::of(row, form).err().unwrap_or_default(), expected, "{text}");
        };
        check("X", "");
        check("X +", "\"\" is no operand, attribute or function");
        check("X Y", "Y is left over");
        check("exp(X", "expected ) before \"\"");
        check("exp(X, X)", "exp of 2 arguments");
        check("beta * X", "\"beta\" is no operand, attribute or function");
        check("X ? 1", "expected : before \"\"");
        check("1.2.3", "1.2.3 is no number");
    }
}
