//! Inputs and outputs of a model, and their checks: inputs are put into the model's order, then checked.

use crate::values::graph::GraphPort;
use crate::values::{Element, Value, ValueType};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::program::{Program, ValueId};
use devbay_core::tensor::{DType, TensorType};
use std::sync::Arc;

/// One input or output of a model.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: Arc<str>,
    /// Its type, if the model declares it; None for strings, sequences, optionals and maps.
    pub ty: Option<TensorType>,
    /// Its type as a value, also of strings, sequences, optionals and maps.
    pub value: ValueType,
}

impl Port {
    /// Lists values of a program as ports.
    pub(super) fn list(program: &Program, ids: &[ValueId]) -> Vec<Self> {
        ids.iter()
            .map(|&id| {
                let value = program.value(id);
                Self::of_tensor(value.name.clone(), value.ty.clone())
            })
            .collect()
    }

    /// Makes the port of a tensor.
    pub(crate) fn of_tensor(name: Arc<str>, ty: Option<TensorType>) -> Self {
        let (element, shape) = ty.clone().map(|ty| (Element::Number(ty.dtype), ty.shape)).unzip();
        Self { name, ty, value: ValueType::Tensor { element, shape: shape.flatten() } }
    }

    /// Makes the port of a graph of the host.
    pub(super) fn of_graph(port: &GraphPort) -> Self {
        Self { name: Arc::clone(&port.name), ty: port.ty.as_tensor(), value: port.ty.clone() }
    }

    /// Describes it by name and type, for messages.
    fn describe(&self) -> String {
        match &self.ty {
            Some(ty) => format!("`{}` {ty}", self.name),
            None if self.value == ValueType::tensor(None) => format!("`{}`", self.name),
            None => format!("`{}` {}", self.name, self.value.with_extents()),
        }
    }
}

/// Puts named inputs into the model's order.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for inputs that are missing, unknown or duplicated.
pub fn in_order<'a, T>(ports: &[Port], given: &[(&str, &'a T)]) -> Result<Vec<&'a T>> {
    let invalid = |text| Error::new(ErrorKind::InvalidInput, text);
    if let Some((name, _)) = given.iter().find(|(name, _)| !ports.iter().any(|port| &*port.name == *name)) {
        let expected: Vec<String> = ports.iter().map(Port::describe).collect();
        return Err(invalid(format!("the model has no input `{name}`; it takes {}", expected.join(", "))));
    }
    ports
        .iter()
        .map(|port| {
            let mut matching = given.iter().filter(|(name, _)| **name == *port.name);
            let Some((_, tensor)) = matching.next() else {
                return Err(invalid(format!("input {} is missing", port.describe())));
            };
            match matching.next() {
                Some(_) => Err(invalid(format!("input `{}` is given twice", port.name))),
                None => Ok(*tensor),
            }
        })
        .collect()
}

/// Checks the types of inputs in the model's order.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a wrong number of inputs, and for a type that the model does not take.
pub fn check<'a>(ports: &[Port], types: impl ExactSizeIterator<Item = (DType, &'a [usize])>) -> Result<()> {
    if types.len() != ports.len() {
        let text = format!("{} inputs are given, the model takes {}", types.len(), ports.len());
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    for (port, (dtype, shape)) in ports.iter().zip(types) {
        if !port.ty.as_ref().is_none_or(|ty| ty.takes(dtype, shape)) {
            let given = TensorType::new(dtype, shape);
            let text = format!("input {} is given as {given}", port.describe());
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
    }
    Ok(())
}

/// Checks the types of values in the model's order.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a type that the model does not take.
pub fn check_values(ports: &[Port], values: &[Value]) -> Result<()> {
    if values.len() != ports.len() {
        let text = format!("{} inputs are given, the model takes {}", values.len(), ports.len());
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    for (port, value) in ports.iter().zip(values) {
        if !port.value.is_of(value) {
            let found = match value {
                Value::Tensor(tensor) => tensor.tensor_type().to_string(),
                other => other.ty().with_extents(),
            };
            let text = format!("input {} is given as {found}", port.describe());
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
    }
    Ok(())
}
