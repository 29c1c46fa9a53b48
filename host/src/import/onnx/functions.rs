//! Inlines the model's functions at their calls.
//!
//! A few functions that call each other twice each expand to a graph of any size, so the expansion is measured before it
//! starts.

use super::attributes::{Arguments, resolved};
use super::graph::{Builder, Frame, Scope};
use super::order::{definitions, sorted};
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use super::{domain, invalid, label, opsets, unsupported};
use devbay_core::Result;
use devbay_core::program::{Node, ValueId};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum depth of nested calls.
const CALL_DEPTH_MAX: usize = 64;
/// Maximum number of nodes after inlining.
const NODES_MAX: usize = 4_000_000;
/// Maximum number of file bytes that are reused, by function bodies and their arguments.
const INLINED_BYTES_MAX: usize = 256 << 20;

/// Identity of a function: domain, name and overload.
type Key<'m> = (&'m str, &'m str, &'m str);

/// The functions of a model.
pub(super) struct Functions<'m>(HashMap<Key<'m>, &'m FunctionProto>);

impl<'m> Functions<'m> {
    pub(super) fn new(functions: &'m [FunctionProto]) -> Result<Self> {
        let mut known = HashMap::new();
        for function in functions {
            let key = (domain(function.domain()), function.name(), function.overload());
            if known.insert(key, function).is_some() {
                return Err(invalid(format!("the function {:?} is defined twice", function.name())));
            }
        }
        Ok(Self(known))
    }

    /// Checks a graph's size after inlining: recursion, depth, nodes and bytes.
    ///
    /// # Errors
    /// If a function calls itself, calls are too deep, or there are too many nodes or bytes.
    pub(super) fn check(&self, graph: &'m GraphProto) -> Result<()> {
        let inlined = self.inlined(&graph.node, &mut Vec::new(), &mut HashMap::new())?;
        if inlined.nodes > NODES_MAX {
            return Err(unsupported(format!(
                "expected at most {NODES_MAX} nodes with functions inlined, found more"
            )));
        }
        if inlined.bytes > INLINED_BYTES_MAX {
            return Err(too_many_bytes());
        }
        Ok(())
    }

    /// Measures nodes with everything that they contain and call. Each function is visited once, however often it is called.
    fn inlined(
        &self,
        nodes: &'m [NodeProto],
        open: &mut Vec<*const FunctionProto>,
        known: &mut HashMap<*const FunctionProto, Inlined>,
    ) -> Result<Inlined> {
        let mut sum = Inlined { nodes: nodes.len(), ..Inlined::default() };
        for node in nodes {
            for graph in node
                .attribute
                .iter()
                .flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
            {
                sum.add(self.inlined(&graph.node, open, known)?);
            }
            let Some(function) = self.called(node) else { continue };
            let key = std::ptr::from_ref(function);
            if open.contains(&key) {
                return Err(invalid(format!("the function {:?} calls itself", function.name())));
            }
            let before = known.get(&key).copied();
            // A new function is at least one call itself.
            if open.len() + before.map_or(1, |inlined| inlined.depth) > CALL_DEPTH_MAX {
                return Err(unsupported(format!(
                    "functions call each other more than {CALL_DEPTH_MAX} deep"
                )));
            }
            let inner = match before {
                Some(inner) => inner,
                None => {
                    open.push(key);
                    let body = self.inlined(&function.node, open, known)?;
                    open.pop();
                    let bytes = body.bytes.saturating_add(function.encoded_len());
                    let inner = Inlined { bytes, depth: body.depth + 1, ..body };
                    known.insert(key, inner);
                    inner
                }
            };
            sum.add(inner);
        }
        Ok(sum)
    }

    /// Returns the function that a node calls. A function takes precedence over an op of the same name.
    pub(super) fn called(&self, node: &NodeProto) -> Option<&'m FunctionProto> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(domain(node.domain()), node.op_type(), node.overload())).copied()
    }
}

/// Size of nodes with their functions inlined.
#[derive(Clone, Copy, Default)]
struct Inlined {
    nodes: usize,
    /// Bytes of the functions' bodies.
    bytes: usize,
    /// Maximum depth of nested calls.
    depth: usize,
}

impl Inlined {
    fn add(&mut self, other: Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.depth = self.depth.max(other.depth);
    }
}

/// File bytes that may still be reused. Arguments of functions, and names, are only known during building.
pub(super) struct Budget(usize);

impl Budget {
    pub(super) fn new() -> Self {
        Self(INLINED_BYTES_MAX)
    }

    /// Charges file bytes that are about to be reused.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(too_many_bytes)?;
        Ok(())
    }
}

fn too_many_bytes() -> devbay_core::Error {
    unsupported(format!("expected at most {INLINED_BYTES_MAX} bytes of inlined functions, found more"))
}

impl<'m> Builder<'m> {
    /// Builds a function's body in place of the node that calls it.
    pub(super) fn build_call(
        &mut self,
        call: &'m NodeProto,
        function: &'m FunctionProto,
        scope: &mut Scope<'_, 'm>,
        frame: &Frame<'m>,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        check_call(call, function)?;
        let name =
            format!("{}{}", frame.prefix, if call.name().is_empty() { call.op_type() } else { call.name() });
        self.budget.charge(function.encoded_len())?;
        let inner_frame = Frame {
            opsets: opsets(&function.opset_import)?,
            arguments: Some(arguments(call, function, frame)?),
            prefix: format!("{name}/"),
        };

        // A function sees only its inputs.
        let mut inner = Scope::new(None, function.value_info.iter());
        for (i, input) in function.input.iter().enumerate() {
            let operand = match call.input.get(i).map(String::as_str) {
                None | Some("") => None,
                Some(name) => scope.lookup(name)?,
            };
            inner.names.insert(input, operand);
        }
        let inputs = function.input.iter().map(String::as_str);
        let definitions = definitions(inputs, &function.node)?;
        inner.note_masks(&function.node, function.output.iter().map(String::as_str));
        let first_new = self.program.values.len();
        for i in sorted(&function.node, &definitions)? {
            self.build_node(&function.node[i], &mut inner, &inner_frame, nodes)?;
        }
        for (formal, actual) in function.output.iter().zip(&call.output) {
            let result = inner.lookup(formal)?;
            if !actual.is_empty() {
                self.rename(result, first_new, actual, scope)?;
                scope.names.insert(actual, result);
            }
        }
        Ok(())
    }

    /// Gives a result of a call its outer name and type.
    fn rename(
        &mut self,
        result: Option<ValueId>,
        first_new: usize,
        name: &'m str,
        scope: &Scope<'_, 'm>,
    ) -> Result<()> {
        let Some(id) = result.filter(|id| id.idx() >= first_new) else {
            return Ok(());
        };
        let ty = scope.declared(name)?;
        let value = self.program.value_mut(id);
        value.name = Arc::from(name);
        value.ty = value.ty.take().or(ty);
        Ok(())
    }
}

fn check_call(call: &NodeProto, function: &FunctionProto) -> Result<()> {
    let found = (call.input.len(), call.output.len());
    let expected = (function.input.len(), function.output.len());
    if found.0 > expected.0 || found.1 > expected.1 {
        return Err(invalid(format!(
            "expected at most {} inputs and {} outputs of the function {:?}, found {} and {}",
            expected.0,
            expected.1,
            function.name(),
            found.0,
            found.1
        )));
    }
    Ok(())
}

/// Collects the attributes that a function's body refers to: those of the call, over the function's defaults.
fn arguments<'m>(
    call: &'m NodeProto,
    function: &'m FunctionProto,
    frame: &Frame<'m>,
) -> Result<Arguments<'m>> {
    let mut arguments = Arguments::new();
    for default in &function.attribute_proto {
        arguments.insert(default.name(), default);
    }
    for given in &call.attribute {
        let Some(value) = resolved(given, frame.arguments.as_ref())? else {
            continue;
        };
        check_argument(value).map_err(|error| error.at_node(label(call)))?;
        arguments.insert(given.name(), value);
    }
    Ok(arguments)
}

/// Refuses graphs: they would see the names around the call, not those of the function that they become a part of.
fn check_argument(value: &AttributeProto) -> Result<()> {
    if value.g.is_some() || !value.graphs.is_empty() {
        return Err(unsupported("graphs as attributes of a function's call are not supported"));
    }
    Ok(())
}
