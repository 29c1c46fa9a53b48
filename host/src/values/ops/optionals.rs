//! Optional, OptionalGetElement, OptionalHasElement, and Identity of values.

use super::{Site, Work, invalid, take, truths, wrong};
use crate::values::{Element, Optional, Value, ValueType};
use devbay_core::Result;
use devbay_core::tensor::BOOL;

/// An optional of the operand's type, or of the attribute's.
pub fn wrapped(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let of = match (site.inputs.first().and_then(Option::as_ref), site.attrs.ty("type")?) {
        (Some(ty), _) | (None, Some(ty)) => ty.without_shape(),
        (None, None) => return Err(invalid("expected an operand, or the attribute \"type\", found neither")),
    };
    Ok(vec![ValueType::optional(of)])
}

/// Optional: wraps a value, or none.
pub fn optional(site: &Site<'_>) -> Result<Work> {
    let ValueType::Optional(of) = wrapped(site)?.remove(0) else {
        return Err(invalid("expected an optional"));
    };
    Ok(Box::new(move |mut operands| {
        let value = operands.first_mut().and_then(Option::take);
        let optional = value.map_or_else(|| Optional::none((*of).clone()), Optional::some);
        Ok(vec![optional.into()])
    }))
}

/// The type of the value within the operand.
pub fn element(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![match site.input(0)? {
        ValueType::Optional(of) => (**of).clone(),
        other => other.clone(),
    }])
}

/// OptionalGetElement: the value within an optional; any other value is returned as it is.
pub fn get(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| match take(&mut operands, 0)? {
        Value::Optional(optional) => match optional.value() {
            Some(value) => Ok(vec![value.clone()]),
            None => Err(wrong("the optional has no value to get; test it with OptionalHasElement before")),
        },
        other => Ok(vec![other]),
    }))
}

/// One truth value.
pub fn truth(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::of_shape(Some(Element::Number(BOOL)), &[])])
}

/// OptionalHasElement: false for an absent operand and an optional without a value.
pub fn has(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let has = match operands.first_mut().and_then(Option::take) {
            Some(Value::Optional(optional)) => optional.value().is_some(),
            other => other.is_some(),
        };
        Ok(vec![truths(&[], std::iter::once(has))?])
    }))
}

/// The operand's type.
pub fn same(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![site.input(0)?.clone()])
}

/// Identity.
pub fn identity(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| Ok(vec![take(&mut operands, 0)?])))
}
