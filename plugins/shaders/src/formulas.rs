//! Formulas ([`devbay_ops::formula`]) as WGSL.
//!
//! An expression has operators where WGSL's are exact, and else calls `NAME_T`, a function of the prelude (`kernels/math.rs`) for
//! the type in which the element is calculated, T being the type's letter ([`Class::letter`]).
//!
//! The layout of elements in memory, and their reads and writes, are the kernels' (`kernels/elementwise.rs`).

use devbay_ops::Formula;
use devbay_ops::formula::{Emit, Function};
use std::convert::Infallible;

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
    /// The letter that ends the names of the prelude's functions.
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

    /// The WGSL type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "f32",
            Self::Int => "i32",
            Self::Uint => "u32",
            Self::Long => "i64",
            Self::Ulong => "u64",
            Self::Truth => "bool",
        }
    }

    /// Returns whether it is some integer.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Long | Self::Ulong)
    }
}

/// A formula as an expression.
pub struct Written {
    /// The expression.
    pub text: String,
    /// The functions of the prelude that it calls.
    pub functions: Vec<String>,
}

/// Writes a formula for operands and parameters by the names that the caller gives them.
pub fn write(
    formula: &Formula,
    class: Class,
    operands: &[impl AsRef<str>],
    params: &[impl AsRef<str>],
) -> Written {
    let operands: Vec<&str> = operands.iter().map(AsRef::as_ref).collect();
    let params: Vec<&str> = params.iter().map(AsRef::as_ref).collect();
    let mut writer = Writer { class, operands: &operands, params: &params, functions: Vec::new() };
    let Ok(text) = formula.expr.emit(&mut writer);
    Written { text, functions: writer.functions }
}

struct Writer<'a> {
    class: Class,
    operands: &'a [&'a str],
    params: &'a [&'a str],
    functions: Vec<String>,
}

impl Writer<'_> {
    fn function(&mut self, name: &str, args: &[String]) -> String {
        let name = format!("{name}_{}", self.class.letter());
        let call = format!("{name}({})", args.join(", "));
        self.functions.push(name);
        call
    }
}

impl Emit for Writer<'_> {
    type Value = String;
    type Error = Infallible;

    fn operand(&mut self, idx: usize) -> Result<String, Infallible> {
        Ok(self.operands[idx].to_owned())
    }

    fn param(&mut self, idx: usize) -> Result<String, Infallible> {
        Ok(self.params[idx].to_owned())
    }

    fn number(&mut self, number: f64) -> Result<String, Infallible> {
        Ok(match self.class {
            Class::Float => format!("f32({:?})", number as f32),
            class => format!("{}({number:.0})", class.name()),
        })
    }

    fn call(&mut self, function: Function, args: Vec<String>) -> Result<String, Infallible> {
        use Function::{BitNot, Clip, Div, IsInf, IsNan, Neg, Not, Select};
        Ok(match (function, args.as_slice()) {
            (Select, _) => self.function("pick", &args),
            (Div, _) => self.function("div", &args),
            (Neg, _) => self.function("neg", &args),
            (IsNan, _) => self.function("isnan", &args),
            (IsInf, _) => self.function("isinf", &args),
            (Not | BitNot, [a]) => format!("{}{a}", function.name()),
            (Clip, [a, low, high]) => {
                let limited = self.function("at_least", &[a.clone(), low.clone()]);
                self.function("at_most", &[limited, high.clone()])
            }
            (_, [a, b]) if function.is_infix() => format!("({a} {} {b})", function.name()),
            _ => self.function(function.name(), &args),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math;
    use devbay_ops::{Takes, formula};

    #[test]
    fn formulas_are_written_for_a_type() {
        let check = |name: &str, class: Class, text: &str, functions: &[&str]| {
            let formula = formula::find(name).expect("a formula");
            let written = write(formula, class, &["x[i]", "y"], &["p.k0", "p.k1"]);
            assert_eq!(written.text, text, "{name}");
            assert_eq!(written.functions, functions, "{name}");
        };
        check(
            "Selu",
            Class::Float,
            "(p.k1 * pick_f((x[i] > f32(0.0)), x[i], (p.k0 * expm1_f(x[i]))))",
            &["expm1_f", "pick_f"],
        );
        check("Add", Class::Long, "(x[i] + y)", &[]);
        check("PRelu", Class::Ulong, "pick_m((x[i] < u64(0)), (x[i] * y), x[i])", &["pick_m"]);
        check("Not", Class::Truth, "!x[i]", &[]);
    }

    #[test]
    fn every_function_of_a_formula_is_in_the_prelude() {
        let integers = [Class::Int, Class::Uint, Class::Long, Class::Ulong];
        for formula in formula::all() {
            let classes = match formula.form.takes {
                Takes::Floats => vec![Class::Float],
                Takes::Truths => vec![Class::Truth],
                Takes::Integers => integers.to_vec(),
                Takes::Signed => vec![Class::Float, Class::Int, Class::Long],
                Takes::Numbers | Takes::Anything => [&[Class::Float], &integers[..]].concat(),
            };
            for class in classes {
                for function in write(formula, class, &["a", "b"], &["k0", "k1"]).functions {
                    assert!(math::has(&function), "{} calls {function}", formula.name());
                }
            }
        }
    }
}
