//! Selects the formula of a kernel's node, with its numbers, for plugins that compute or write formulas.

use crate::attributes::{Attribute, AttributeDefault, AttributeType};
use crate::formula::{self, Formula};
use devbay_plugin_api::sdk::{Attrs, Error, Result};

/// A node's formula with its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The formula of its op, or of the form that its attributes select.
    pub formula: &'static Formula,
    /// The numbers of [`Formula::params`], then zeros.
    pub params: [f32; 2],
}

/// Returns the formula of an op with these attributes.
///
/// # Errors
/// Unsupported for an op without a formula; invalid for attributes of another type, and for a word that selects no form.
pub fn choose(domain: &str, op: &str, attrs: &Attrs<'_>) -> Result<Choice> {
    let mut forms = formula::of_op(domain, op);
    let usual = forms.next().ok_or_else(|| Error::unsupported(format!("{op}, which has no formula")))?;
    let mut chosen = usual;
    if let Some(other) = forms.next()
        && let Some((name, value)) = other.form.when
        && let Some(attribute) = usual.row.attributes.iter().find(|attribute| attribute.name == name)
    {
        let (found, default) = (word(&attribute, attrs)?, default_word(&attribute));
        if found == value {
            chosen = other;
        } else if attribute.ty == AttributeType::String && found != default {
            return Err(Error::invalid(format!("{name} is {default} or {value}, found {found}")));
        }
    }
    let mut params = [0.0; 2];
    for (number, param) in params.iter_mut().zip(&chosen.params) {
        let of_param = |attribute: &Attribute| attribute.name == param.name;
        *number = match chosen.row.attributes.iter().find(of_param).map(|attribute| attribute.ty) {
            Some(AttributeType::Int) => attrs.int(param.name, param.default as i64)? as f32,
            Some(AttributeType::Float) => attrs.float(param.name, param.default)?,
            // The kernel reads this operand.
            _ => param.default,
        };
    }
    Ok(Choice { formula: chosen, params })
}

/// Returns an attribute's value as a word; a nonzero integer counts as 1, since it is a flag.
fn word(attribute: &Attribute, attrs: &Attrs<'_>) -> Result<String> {
    match attribute.default {
        Some(AttributeDefault::Int(default)) => {
            Ok(i64::from(attrs.int(attribute.name, default)? != 0).to_string())
        }
        Some(AttributeDefault::Text(default)) => Ok(attrs.string(attribute.name, default)?.to_owned()),
        _ => Ok(String::new()),
    }
}

fn default_word(attribute: &Attribute) -> String {
    match attribute.default {
        Some(AttributeDefault::Text(default)) => default.to_owned(),
        _ => "0".to_owned(),
    }
}
