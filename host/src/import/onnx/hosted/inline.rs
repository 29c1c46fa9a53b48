//! Calls of functions with values of the host, replaced by the functions' bodies.
//!
//! Other calls stay: the importer of segments inlines them.

use super::super::attributes::{Arguments, resolved};
use super::super::order::{definitions, sorted};
use super::super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use super::super::{domain, invalid, unsupported};
use super::Importer;
use devbay_core::Result;
use std::collections::HashMap;

impl Importer<'_> {
    /// Returns a function's nodes in place of a call, with names of their own.
    pub fn inlined(&mut self, call: &NodeProto, function: &FunctionProto) -> Result<Vec<NodeProto>> {
        if call.input.len() > function.input.len() || call.output.len() > function.output.len() {
            let (n, m) = (function.input.len(), function.output.len());
            return Err(invalid(format!(
                "expected at most {n} inputs and {m} outputs of the function {:?}",
                function.name()
            )));
        }
        for import in &function.opset_import {
            let own = i64::from(self.opsets.get(domain(import.domain())).copied().unwrap_or(0));
            let is_used = function.node.iter().any(|node| domain(node.domain()) == domain(import.domain()));
            if is_used && own != import.version() {
                return Err(unsupported(format!(
                    "the function {:?} has strings, sequences, optionals or maps and another opset of {:?} than the model: {} and {own}",
                    function.name(),
                    import.domain(),
                    import.version()
                )));
            }
        }
        let prefix = self.fresh(if call.name().is_empty() { call.op_type() } else { call.name() });
        let mut names: HashMap<&str, String> = HashMap::new();
        for (i, name) in function.input.iter().enumerate() {
            names.insert(name, call.input.get(i).cloned().unwrap_or_default());
        }
        for (name, actual) in
            function.output.iter().zip(&call.output).filter(|(_, actual)| !actual.is_empty())
        {
            if names.contains_key(name.as_str()) {
                return Err(unsupported(format!(
                    "the function {:?} returns an input, which is not supported here",
                    function.name()
                )));
            }
            names.insert(name, actual.clone());
        }
        let mut arguments: Arguments<'_> =
            function.attribute_proto.iter().map(|attribute| (attribute.name(), attribute)).collect();
        arguments.extend(call.attribute.iter().map(|attribute| (attribute.name(), attribute)));
        let definitions = definitions(function.input.iter().map(String::as_str), &function.node)?;
        let renaming = Renaming { names, arguments, prefix };
        sorted(&function.node, &definitions)?.into_iter().map(|i| renaming.node(&function.node[i])).collect()
    }
}

/// The names of a function's values where it is called.
struct Renaming<'f> {
    names: HashMap<&'f str, String>,
    arguments: Arguments<'f>,
    prefix: String,
}

impl Renaming<'_> {
    fn name(&self, name: &str) -> String {
        match self.names.get(name) {
            Some(actual) => actual.clone(),
            None if name.is_empty() => String::new(),
            None => format!("{}/{name}", self.prefix),
        }
    }

    fn node(&self, node: &NodeProto) -> Result<NodeProto> {
        let mut node = node.clone();
        node.input.iter_mut().chain(&mut node.output).for_each(|name| *name = self.name(name));
        let attributes = std::mem::take(&mut node.attribute);
        for attribute in &attributes {
            let Some(value) = resolved(attribute, Some(&self.arguments))? else { continue };
            let mut value = AttributeProto { name: attribute.name.clone(), ..value.clone() };
            if let Some(graph) = value.g.as_deref_mut() {
                self.graph(graph)?;
            }
            node.attribute.push(value);
        }
        Ok(node)
    }

    /// Renames all values of a graph, also its own, which then differ from those of the model.
    fn graph(&self, graph: &mut GraphProto) -> Result<()> {
        for info in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
            info.name = Some(self.name(info.name()));
        }
        for tensor in &mut graph.initializer {
            tensor.name = Some(self.name(tensor.name()));
        }
        graph.node = graph.node.iter().map(|node| self.node(node)).collect::<Result<_>>()?;
        Ok(())
    }
}
