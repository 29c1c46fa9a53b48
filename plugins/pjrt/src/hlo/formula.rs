//! Elementwise ops by their formulas ([`devbay_ops::formula`]), as StableHLO and CHLO, which every compiler of StableHLO expands.

use super::builder::{Builder, Type, Value};
use super::elementwise::operands;
use super::node::Node;
use crate::element::ElementType;
use devbay_ops::formula::{self, Emit, Formula, Function};
use devbay_ops::node::choose;
use devbay_ops::{OpKind, Takes};
use devbay_plugin_api::sdk::{Error, Result};

/// Defaults that former versions of ops had: op, attribute, the version that changed it, and what it was.
const FORMER_DEFAULTS: &[(&str, &str, u32, f32)] =
    &[("Selu", "alpha", 6, 1.6732), ("Selu", "gamma", 6, 1.0507)];

/// Returns whether an op is emitted by its formula: of operands of one type that are all there.
pub(super) fn is_formula(domain: &str, op: &str) -> bool {
    let emitted = |formula: &Formula| {
        let form = formula.form;
        formula.row.kind == OpKind::Kernel
            && !form.is_fold
            && form.absent.is_empty()
            && !formula.row.has_mixed_types()
    };
    formula::of_op(domain, op).next().is_some_and(emitted)
}

/// The op of a node with its operands, which are broadcast, and attributes.
pub(super) fn by_formula<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let choice = choose(node.domain(), node.op(), node.attrs())?;
    let formula = choice.formula;
    let mut params = choice.params;
    for (number, param) in params.iter_mut().zip(&formula.params) {
        let former = FORMER_DEFAULTS
            .iter()
            .find(|(op, name, before, _)| *op == node.op() && *name == param.name && node.since() < *before);
        if let Some((.., default)) = former.filter(|_| node.attrs().get(param.name).is_none()) {
            *number = *default;
        }
    }
    let operands = match formula.n_operands {
        1 => vec![node.input(b, 0)?],
        _ => {
            let (x, y) = operands(node, b)?;
            vec![x, y]
        }
    };
    let ty = operands[0].ty.clone();
    let is_taken = match formula.form.takes {
        Takes::Floats => ty.is_float(),
        Takes::Integers => !ty.is_float() && !ty.is_bool(),
        Takes::Truths => ty.is_bool(),
        Takes::Signed | Takes::Numbers => !ty.is_bool(),
        Takes::Anything => true,
    };
    if !is_taken {
        return Err(Error::unsupported(format!("{} of {ty}", node.op())));
    }
    let mut emitter = Emitter { b, operands: &operands, params, ty };
    let result = formula.expr.emit(&mut emitter)?;
    emitter.tensor(result)
}

/// A part of a formula.
#[derive(Clone)]
enum Part {
    Tensor(Value),
    /// The same for all elements.
    Number(f64),
}

struct Emitter<'a, 'g> {
    b: &'a mut Builder<'g>,
    operands: &'a [Value],
    params: [f32; 2],
    /// That of the operands.
    ty: Type,
}

impl Emitter<'_, '_> {
    fn tensor(&mut self, part: Part) -> Result<Value> {
        match part {
            Part::Tensor(value) => Ok(value),
            Part::Number(number) => self.b.splat(number, &self.ty),
        }
    }

    /// `log(1 + exp(x))` as `max(x, 0) + log1p(exp(-|x|))`, which does not overflow.
    fn softplus(&mut self, x: &Value) -> Result<Value> {
        let b = &mut *self.b;
        let size = b.unary("stablehlo.abs", x);
        let negative = b.unary("stablehlo.negate", &size);
        let exponential = b.unary("stablehlo.exponential", &negative);
        let rest = b.unary("stablehlo.log_plus_one", &exponential);
        let above = b.with_number("stablehlo.maximum", x, 0.0)?;
        Ok(b.add(&above, &rest))
    }

    /// Compilers expand it to what stays a little below 1, and an infinity times that little is infinite. From here on no number of
    /// the type is nearer than 1.
    fn erf(&mut self, x: &Value) -> Result<Value> {
        let b = &mut *self.b;
        let erf = b.unary("chlo.erf", x);
        let one = b.unary("stablehlo.sign", x);
        let size = b.unary("stablehlo.abs", x);
        let from = if x.element() == ElementType::F64 { 6.0 } else { 4.0 };
        let is_one = b.compare_number("GE", &size, from)?;
        Ok(b.select(&is_one, &one, &erf))
    }

    fn unary(&mut self, function: Function, x: &Value) -> Result<Value> {
        let op = match function {
            Function::Softplus => return self.softplus(x),
            Function::Erf => return self.erf(x),
            Function::Abs if x.ty.is_unsigned() => return Ok(x.clone()),
            Function::Sign if x.ty.is_unsigned() => return self.b.with_number("stablehlo.minimum", x, 1.0),
            Function::IsNan => return Ok(self.b.compare("NE", x, x)),
            Function::IsInf => {
                let size = self.b.unary("stablehlo.abs", x);
                return self.b.compare_number("EQ", &size, f64::INFINITY);
            }
            Function::Abs => "stablehlo.abs",
            Function::Sign => "stablehlo.sign",
            Function::Neg => "stablehlo.negate",
            Function::Not | Function::BitNot => "stablehlo.not",
            Function::Sqrt => "stablehlo.sqrt",
            Function::Floor => "stablehlo.floor",
            Function::Ceil => "stablehlo.ceil",
            Function::Round => "stablehlo.round_nearest_even",
            Function::Exp => "stablehlo.exponential",
            Function::ExpM1 => "stablehlo.exponential_minus_one",
            Function::Log => "stablehlo.log",
            Function::Sigmoid => "stablehlo.logistic",
            Function::Sin => "stablehlo.sine",
            Function::Cos => "stablehlo.cosine",
            Function::Tan => "stablehlo.tan",
            Function::Asin => "chlo.asin",
            Function::Acos => "chlo.acos",
            Function::Atan => "chlo.atan",
            Function::Sinh => "chlo.sinh",
            Function::Cosh => "chlo.cosh",
            Function::Tanh => "stablehlo.tanh",
            Function::Asinh => "chlo.asinh",
            Function::Acosh => "chlo.acosh",
            Function::Atanh => "chlo.atanh",
            other => return Err(Error::unsupported(format!("{} of a formula", other.name()))),
        };
        Ok(self.b.unary(op, x))
    }

    fn binary(&mut self, function: Function, x: &Value, y: &Value) -> Result<Value> {
        let op = match function {
            Function::Equal => return Ok(self.b.compare("EQ", x, y)),
            Function::NotEqual => return Ok(self.b.compare("NE", x, y)),
            Function::Less => return Ok(self.b.compare("LT", x, y)),
            Function::LessOrEqual => return Ok(self.b.compare("LE", x, y)),
            Function::Greater => return Ok(self.b.compare("GT", x, y)),
            Function::GreaterOrEqual => return Ok(self.b.compare("GE", x, y)),
            Function::Add => "stablehlo.add",
            Function::Sub => "stablehlo.subtract",
            Function::Mul => "stablehlo.multiply",
            // Those of StableHLO divide integers towards zero, as ONNX does.
            Function::Div => "stablehlo.divide",
            Function::And | Function::BitAnd => "stablehlo.and",
            Function::Or | Function::BitOr => "stablehlo.or",
            Function::BitXor => "stablehlo.xor",
            // The limit is a number, so that NaN stays in every compiler.
            Function::AtLeast => "stablehlo.maximum",
            Function::AtMost => "stablehlo.minimum",
            other => return Err(Error::unsupported(format!("{} of a formula", other.name()))),
        };
        Ok(self.b.binary(op, x, y))
    }
}

impl Emit for Emitter<'_, '_> {
    type Value = Part;
    type Error = Error;

    fn operand(&mut self, idx: usize) -> Result<Part> {
        Ok(Part::Tensor(self.operands[idx].clone()))
    }

    fn param(&mut self, idx: usize) -> Result<Part> {
        Ok(Part::Number(self.params[idx].into()))
    }

    fn number(&mut self, number: f64) -> Result<Part> {
        Ok(Part::Number(number))
    }

    fn call(&mut self, function: Function, args: Vec<Part>) -> Result<Part> {
        // The negative of a number is a number, too.
        if let (Function::Neg, [Part::Number(number)]) = (function, args.as_slice()) {
            return Ok(Part::Number(-number));
        }
        let mut tensors = Vec::with_capacity(args.len());
        for arg in args {
            tensors.push(self.tensor(arg)?);
        }
        let value = match (function, tensors.as_slice()) {
            (Function::Select, [condition, yes, no]) => self.b.select(condition, yes, no),
            (Function::Clip, [x, low, high]) => {
                let limited = self.binary(Function::AtLeast, x, low)?;
                self.binary(Function::AtMost, &limited, high)?
            }
            (_, [x, y]) => self.binary(function, x, y)?,
            (_, [x]) => self.unary(function, x)?,
            _ => return Err(Error::internal(format!("{} of {} parts", function.name(), tensors.len()))),
        };
        Ok(Part::Tensor(value))
    }
}
