//! Values, and places in memory.

use super::types::{Field, field_name, scalar_name, vector_name};
use super::{Scope, Writer, unsupported};
use devbay_plugin_api::sdk::{Error, Result};
use naga::proc::TypeResolution;
use naga::{
    AddressSpace, BinaryOperator, Expression, Handle, Literal, MathFunction, RelationalFunction, Scalar,
    ScalarKind, Type, TypeInner, UnaryOperator,
};

impl Writer<'_> {
    pub(super) fn inner<'b>(&'b self, scope: &'b Scope<'_>, expression: Handle<Expression>) -> &'b TypeInner {
        scope.info[expression].ty.inner_with(&self.module.types)
    }

    /// The C type of an expression.
    pub(super) fn type_of(&self, scope: &Scope<'_>, expression: Handle<Expression>) -> Result<String> {
        match scope.info[expression].ty {
            TypeResolution::Handle(handle) => self.type_name(handle),
            TypeResolution::Value(ref inner) => self.inner_name(inner),
        }
    }

    /// A value, as an expression of C without side effects.
    pub(super) fn value(&self, scope: &Scope<'_>, handle: Handle<Expression>) -> Result<String> {
        if let Some(name) = scope.named.get(&handle) {
            return Ok(name.clone());
        }
        if matches!(self.inner(scope, handle), TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }) {
            return self.place(scope, handle);
        }
        let value = |handle| self.value(scope, handle);
        match scope.function.expressions[handle] {
            Expression::Literal(literal) => literal_text(literal),
            Expression::Constant(constant) => self.constant(constant),
            Expression::ZeroValue(ty) => Ok(format!("{}{{}}", self.type_name(ty)?)),
            Expression::Compose { ty, ref components } => {
                let mut parts = Vec::new();
                for &component in components {
                    parts.push((value(component)?, self.inner(scope, component)));
                }
                self.compose(ty, parts)
            }
            Expression::Splat { size, value: of } => Ok(format!("w_splat<{}>({})", size as u8, value(of)?)),
            Expression::Swizzle { size, vector, pattern } => {
                let TypeInner::Vector { scalar, .. } = *self.inner(scope, vector) else {
                    return Err(unsupported("a swizzle of what is no vector"));
                };
                let of = value(vector)?;
                let parts = pattern[..size as usize].iter().map(|&at| format!("{of}.v[{}]", at as u8));
                Ok(format!("{}{{{{{}}}}}", vector_name(size, scalar)?, parts.collect::<Vec<_>>().join(", ")))
            }
            Expression::Access { base, index } => Ok(format!("{}.v[{}]", value(base)?, value(index)?)),
            Expression::AccessIndex { base, index } => {
                let of = value(base)?;
                self.part(self.inner(scope, base), &of, index)
            }
            Expression::FunctionArgument(index) => Ok(argument_name(scope, index)),
            Expression::Load { pointer } => {
                let place = self.place(scope, pointer)?;
                match self.pointee(scope, pointer) {
                    Some(TypeInner::Atomic(scalar)) => {
                        Ok(format!("*(volatile {}*)&{place}", scalar_name(scalar)?))
                    }
                    _ => Ok(place),
                }
            }
            Expression::Unary { op, expr } => {
                let name = match op {
                    UnaryOperator::Negate => "w_neg",
                    UnaryOperator::LogicalNot | UnaryOperator::BitwiseNot => "w_not",
                };
                Ok(format!("{name}({})", value(expr)?))
            }
            Expression::Binary { op, left, right } => {
                let is_plain = matches!(self.inner(scope, left), TypeInner::Scalar(_))
                    && matches!(self.inner(scope, right), TypeInner::Scalar(_));
                let scalar = self.inner(scope, left).scalar();
                Ok(binary(op, scalar.filter(|_| is_plain), &value(left)?, &value(right)?))
            }
            Expression::Select { condition, accept, reject } => {
                Ok(format!("w_select({}, {}, {})", value(condition)?, value(accept)?, value(reject)?))
            }
            Expression::Relational { fun, argument } => {
                let name = match fun {
                    RelationalFunction::All => "w_all",
                    RelationalFunction::Any => "w_any",
                    other => return Err(unsupported(format!("{other:?}"))),
                };
                Ok(format!("{name}({})", value(argument)?))
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let mut arguments = Vec::new();
                for argument in [Some(arg), arg1, arg2, arg3].into_iter().flatten() {
                    arguments.push(value(argument)?);
                }
                math(fun, &arguments)
            }
            Expression::As { expr, kind, convert } => {
                let from = self.inner(scope, expr);
                let old = from.scalar().ok_or_else(|| unsupported("a conversion of what is no number"))?;
                let scalar = Scalar { kind, width: convert.unwrap_or(old.width) };
                let to = match *from {
                    TypeInner::Vector { size, .. } => vector_name(size, scalar)?,
                    _ => scalar_name(scalar)?.to_owned(),
                };
                Ok(match convert {
                    Some(_) => format!("Cast<{to}>::of({})", value(expr)?),
                    None => format!("w_bits<{to}>({})", value(expr)?),
                })
            }
            Expression::ArrayLength(array) => match scope.function.expressions[array] {
                Expression::GlobalVariable(global) => Ok(self.length_name(global)),
                _ => Err(unsupported("the length of an array that is not a whole buffer")),
            },
            ref other => Err(unsupported(variant(other))),
        }
    }

    /// A place in memory that a pointer names, as C can read and write it.
    pub(super) fn place(&self, scope: &Scope<'_>, pointer: Handle<Expression>) -> Result<String> {
        match scope.function.expressions[pointer] {
            Expression::GlobalVariable(handle) => {
                let global = &self.module.global_variables[handle];
                let name = self.global_name(handle);
                let is_address =
                    matches!(global.space, AddressSpace::Storage { .. }) && self.element(global.ty).is_none();
                Ok(if is_address { format!("(*{name})") } else { name })
            }
            Expression::LocalVariable(handle) => Ok(super::numbered(
                'v',
                handle.index(),
                scope.function.local_variables[handle].name.as_deref(),
            )),
            Expression::FunctionArgument(index) => Ok(argument_name(scope, index)),
            Expression::Access { base, index } => {
                let (of, index) = (self.place(scope, base)?, self.value(scope, index)?);
                match self.pointee(scope, base) {
                    Some(TypeInner::Array { size: naga::ArraySize::Dynamic, .. }) => {
                        Ok(format!("{of}[{index}]"))
                    }
                    _ => Ok(format!("{of}.v[{index}]")),
                }
            }
            Expression::AccessIndex { base, index } => {
                let of = self.place(scope, base)?;
                let pointee = self.pointee(scope, base).ok_or_else(|| unsupported("a part of a scalar"))?;
                self.part(&pointee, &of, index)
            }
            ref other => Err(unsupported(format!("a pointer that is {}", variant(other)))),
        }
    }

    /// Returns the type that a pointer points to; a vector's component is a scalar.
    pub(super) fn pointee(&self, scope: &Scope<'_>, pointer: Handle<Expression>) -> Option<TypeInner> {
        match *self.inner(scope, pointer) {
            TypeInner::Pointer { base, .. } => Some(self.module.types[base].inner.clone()),
            TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                Some(TypeInner::Vector { size, scalar })
            }
            TypeInner::ValuePointer { size: None, scalar, .. } => Some(TypeInner::Scalar(scalar)),
            _ => None,
        }
    }

    /// A part whose position is known.
    fn part(&self, whole: &TypeInner, of: &str, index: u32) -> Result<String> {
        match *whole {
            TypeInner::Struct { ref members, .. } => {
                Ok(format!("{of}.{}", field_name(index as usize, members[index as usize].name.as_deref())))
            }
            TypeInner::Array { size: naga::ArraySize::Dynamic, .. } => Ok(format!("{of}[{index}]")),
            TypeInner::Vector { .. } | TypeInner::Array { .. } => Ok(format!("{of}.v[{index}]")),
            ref other => Err(unsupported(format!("a part of {other:?}"))),
        }
    }

    fn compose(&self, ty: Handle<Type>, parts: Vec<(String, &TypeInner)>) -> Result<String> {
        let name = self.type_name(ty)?;
        let texts = || parts.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>();
        match self.module.types[ty].inner {
            TypeInner::Vector { .. } => {
                let mut flat = Vec::new();
                for (text, inner) in &parts {
                    match **inner {
                        TypeInner::Vector { size, .. } => {
                            flat.extend((0..size as u8).map(|i| format!("{text}.v[{i}]")));
                        }
                        _ => flat.push(text.clone()),
                    }
                }
                Ok(format!("{name}{{{{{}}}}}", flat.join(", ")))
            }
            TypeInner::Array { .. } => Ok(format!("{name}{{{{{}}}}}", texts().join(", "))),
            TypeInner::Struct { .. } => {
                let fields = self.fields(ty)?.into_iter().map(|field| match field {
                    Field::Gap(_) => "{}".to_owned(),
                    Field::Member(i) => parts[i].0.clone(),
                });
                Ok(format!("{name}{{{}}}", fields.collect::<Vec<_>>().join(", ")))
            }
            ref other => Err(unsupported(format!("a value of the type {other:?}"))),
        }
    }

    fn constant(&self, handle: Handle<naga::Constant>) -> Result<String> {
        let constant = &self.module.constants[handle];
        match self.module.types[constant.ty].inner {
            TypeInner::Array { .. } => Ok(format!("c{}", handle.index())),
            _ => self.constant_value(constant.init),
        }
    }

    /// A value at module scope.
    pub(super) fn constant_value(&self, handle: Handle<Expression>) -> Result<String> {
        match self.module.global_expressions[handle] {
            Expression::Literal(literal) => literal_text(literal),
            Expression::Constant(constant) => self.constant(constant),
            Expression::ZeroValue(ty) => Ok(format!("{}{{}}", self.type_name(ty)?)),
            Expression::Compose { ty, ref components } => {
                let mut parts = Vec::new();
                for &component in components {
                    let inner = self.info[component].inner_with(&self.module.types);
                    parts.push((self.constant_value(component)?, inner));
                }
                self.compose(ty, parts)
            }
            Expression::Splat { size, value } => {
                let (n, value) = (size as usize, self.constant_value(value)?);
                let TypeInner::Vector { scalar, .. } = *self.info[handle].inner_with(&self.module.types)
                else {
                    return Err(unsupported("a splat that is no vector"));
                };
                Ok(format!("{}{{{{{}}}}}", vector_name(size, scalar)?, vec![value; n].join(", ")))
            }
            ref other => Err(unsupported(format!("a constant that is {}", variant(other)))),
        }
    }
}

fn argument_name(scope: &Scope<'_>, index: u32) -> String {
    super::numbered('a', index as usize, scope.function.arguments[index as usize].name.as_deref())
}

/// The kind of an expression, for a person.
fn variant(expression: &Expression) -> String {
    let text = format!("{expression:?}");
    text.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned()
}

pub(super) fn literal_text(literal: Literal) -> Result<String> {
    Ok(match literal {
        Literal::F32(value) if value.is_finite() => format!("{value:?}f"),
        Literal::F16(value) => format!("f16{{{:#06x}}}", value.to_bits()),
        Literal::I32(i32::MIN) => "(-2147483647 - 1)".to_owned(),
        Literal::I64(i64::MIN) => "(-9223372036854775807ll - 1)".to_owned(),
        Literal::I32(value) => value.to_string(),
        Literal::U32(value) => format!("{value}u"),
        Literal::I64(value) => format!("{value}ll"),
        Literal::U64(value) => format!("{value}ull"),
        Literal::Bool(value) => value.to_string(),
        other => return Err(unsupported(format!("the literal {other:?}"))),
    })
}

/// An operator: C's own where it means the same, which is told by the scalar type of both operands.
fn binary(op: BinaryOperator, scalar: Option<Scalar>, left: &str, right: &str) -> String {
    use BinaryOperator as Op;
    let kind = scalar.filter(|scalar| scalar.width != 2).map(|scalar| scalar.kind);
    let (name, sign, is_plain) = match op {
        Op::Add => ("w_add", "+", matches!(kind, Some(ScalarKind::Float | ScalarKind::Uint))),
        Op::Subtract => ("w_sub", "-", matches!(kind, Some(ScalarKind::Float | ScalarKind::Uint))),
        Op::Multiply => ("w_mul", "*", matches!(kind, Some(ScalarKind::Float | ScalarKind::Uint))),
        Op::Divide => ("w_div", "/", kind == Some(ScalarKind::Float)),
        Op::Modulo => ("w_mod", "%", false),
        Op::Equal => ("w_eq", "==", kind.is_some()),
        Op::NotEqual => ("w_ne", "!=", kind.is_some()),
        Op::Less => ("w_lt", "<", kind.is_some()),
        Op::LessEqual => ("w_le", "<=", kind.is_some()),
        Op::Greater => ("w_gt", ">", kind.is_some()),
        Op::GreaterEqual => ("w_ge", ">=", kind.is_some()),
        Op::And => ("w_and", "&", kind.is_some()),
        Op::ExclusiveOr => ("w_xor", "^", kind.is_some()),
        Op::InclusiveOr => ("w_or", "|", kind.is_some()),
        Op::LogicalAnd => ("w_and", "&&", kind.is_some()),
        Op::LogicalOr => ("w_or", "||", kind.is_some()),
        Op::ShiftLeft => ("w_shl", "<<", false),
        Op::ShiftRight => ("w_shr", ">>", false),
    };
    match is_plain {
        true => format!("({left} {sign} {right})"),
        false => format!("{name}({left}, {right})"),
    }
}

fn math(fun: MathFunction, arguments: &[String]) -> Result<String> {
    use MathFunction as F;
    let name = match fun {
        F::Abs => "w_abs",
        F::Min => "w_min",
        F::Max => "w_max",
        F::Clamp => "w_clamp",
        F::Saturate => "w_saturate",
        F::Cos => "w_cos",
        F::Cosh => "w_cosh",
        F::Sin => "w_sin",
        F::Sinh => "w_sinh",
        F::Tan => "w_tan",
        F::Tanh => "w_tanh",
        F::Acos => "w_acos",
        F::Asin => "w_asin",
        F::Atan => "w_atan",
        F::Atan2 => "w_atan2",
        F::Asinh => "w_asinh",
        F::Acosh => "w_acosh",
        F::Atanh => "w_atanh",
        F::Radians => "w_radians",
        F::Degrees => "w_degrees",
        F::Ceil => "w_ceil",
        F::Floor => "w_floor",
        F::Round => "w_round",
        F::Fract => "w_fract",
        F::Trunc => "w_trunc",
        F::Exp => "w_exp",
        F::Exp2 => "w_exp2",
        F::Log => "w_log",
        F::Log2 => "w_log2",
        F::Pow => "w_pow",
        F::Dot => "w_dot",
        F::Length => "w_length",
        F::Dot4I8Packed => "w_dot4_i8",
        F::Dot4U8Packed => "w_dot4_u8",
        F::Sign => "w_sign",
        F::Fma => "w_fma",
        F::Mix => "w_mix",
        F::Step => "w_step",
        F::Sqrt => "w_sqrt",
        F::InverseSqrt => "w_inverse_sqrt",
        F::QuantizeToF16 => "w_quantize_to_f16",
        F::CountTrailingZeros => "w_count_trailing_zeros",
        F::CountLeadingZeros => "w_count_leading_zeros",
        F::CountOneBits => "w_count_one_bits",
        F::ReverseBits => "w_reverse_bits",
        F::ExtractBits => "w_extract_bits",
        F::InsertBits => "w_insert_bits",
        F::FirstTrailingBit => "w_first_trailing_bit",
        F::FirstLeadingBit => "w_first_leading_bit",
        F::Pack2x16float => "w_pack2x16float",
        F::Unpack2x16float => "w_unpack2x16float",
        F::Pack4xI8 | F::Pack4xU8 => "w_pack4x8",
        F::Pack4xI8Clamp => return Ok(format!("w_pack4x8_clamp({}, -128, 127)", arguments[0])),
        F::Pack4xU8Clamp => return Ok(format!("w_pack4x8_clamp({}, 0u, 255u)", arguments[0])),
        F::Unpack4xI8 => "w_unpack4xi8",
        F::Unpack4xU8 => "w_unpack4xu8",
        other => return Err(unsupported(format!("the function {other:?}"))),
    };
    Ok(format!("{name}({})", arguments.join(", ")))
}

/// A handle that has no variable although something uses it: a bug here.
pub(super) fn unnamed(what: &str) -> Error {
    Error::internal(format!("{what} without a variable"))
}
