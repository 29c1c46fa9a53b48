//! A first walk over a graph: which nodes the host runs, and the types of all names as far as they follow from the graph.
//!
//! Element types of what segments make are not known yet: any tensor of numbers is as good as another here.

use super::super::order::{definitions, sorted, uses};
use super::super::proto::{GraphProto, NodeProto, TensorProto};
use super::super::{domain, invalid, label, unsupported};
use super::{Importer, body, graph_touches, values};
use crate::values::ops::{self, Row, Site, When};
use crate::values::{Element, ValueType};
use devbay_core::Result;
use devbay_core::cancel::look;
use devbay_core::program::verify::REGION_DEPTH_MAX;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A constant of the model.
#[derive(Clone)]
pub enum Constant {
    /// An initializer.
    Initializer(Arc<TensorProto>),
    /// A Constant node.
    Node(Arc<NodeProto>),
}

/// What is known of a name.
pub struct Known {
    /// Its type.
    pub ty: ValueType,
    /// Its value, if it is constant.
    pub constant: Option<Constant>,
}

/// The names of a graph, and those of the graphs around it.
pub struct Names<'o> {
    /// The graph's own.
    pub own: HashMap<String, Known>,
    /// The graph around it.
    pub outer: Option<&'o Names<'o>>,
}

impl Names<'_> {
    /// Looks a name up.
    pub fn get(&self, name: &str) -> Option<&Known> {
        self.own.get(name).or_else(|| self.outer?.get(name))
    }

    /// Returns the type of a name.
    pub fn ty(&self, name: &str) -> Result<&ValueType> {
        let known =
            self.get(name).ok_or_else(|| invalid(format!("the value {name:?} is used and not defined")))?;
        Ok(&known.ty)
    }

    /// Returns the element type of a tensor.
    pub fn element(&self, name: &str) -> Option<Element> {
        self.get(name)?.ty.element()
    }

    /// Returns the types of a node's operands; None for an absent one.
    pub fn operands(&self, node: &NodeProto) -> Result<Vec<Option<ValueType>>> {
        let operand = |name: &String| (!name.is_empty()).then(|| self.ty(name).cloned()).transpose();
        let mut types = node.input.iter().map(operand).collect::<Result<Vec<_>>>()?;
        while types.last().is_some_and(Option::is_none) {
            types.pop();
        }
        Ok(types)
    }

    /// Returns the number of graphs around.
    fn depth(&self) -> usize {
        self.outer.map_or(0, |outer| 1 + outer.depth())
    }

    fn define(&mut self, name: &str, ty: ValueType) {
        self.own.insert(name.to_owned(), Known { ty, constant: None });
    }
}

/// Who runs a node.
#[derive(Clone, Copy)]
pub enum Place {
    /// A session, with its neighbours.
    Segment,
    /// A function of the host.
    Host(&'static Row),
    /// The host, by its bodies: If, Loop or SequenceMap.
    Control,
}

/// A node of a graph, after rewriting.
pub struct Surveyed {
    /// The node.
    pub node: NodeProto,
    /// Who runs it.
    pub place: Place,
}

/// A graph after the walk: nodes are in topological order.
pub struct Survey<'o> {
    /// Names and types.
    pub names: Names<'o>,
    /// Inputs in order; initializers that are inputs too are left out.
    pub inputs: Vec<String>,
    /// Nodes.
    pub nodes: Vec<Surveyed>,
}

impl<'m> Importer<'m> {
    /// Walks a graph. `given` are the types of its inputs, where the graph around it knows them. `free` are initializers that
    /// are inputs.
    pub fn survey<'o>(
        &mut self,
        graph: &GraphProto,
        outer: Option<&'o Names<'o>>,
        given: &[Option<ValueType>],
        free: &HashSet<&str>,
    ) -> Result<Survey<'o>> {
        let mut names = Names { own: HashMap::new(), outer };
        if names.depth() > REGION_DEPTH_MAX {
            return Err(super::super::too_deep_error());
        }
        if !graph.sparse_initializer.is_empty() {
            return Err(unsupported("sparse initializers are not supported"));
        }
        for tensor in graph.initializer.iter().filter(|tensor| !free.contains(tensor.name())) {
            let constant = Some(Constant::Initializer(Arc::new(tensor.clone())));
            names.own.insert(tensor.name().to_owned(), Known { ty: values::tensor_type(tensor), constant });
        }
        let mut inputs = Vec::new();
        for info in graph.input.iter().filter(|info| !names.own.contains_key(info.name())).collect::<Vec<_>>()
        {
            let declared = info.r#type.as_ref().map(values::value_type).transpose()?.flatten();
            let from_outer = given.get(inputs.len()).cloned().flatten();
            let ty = refined(declared, from_outer);
            names.define(info.name(), ty.unwrap_or(ValueType::tensor(None)));
            inputs.push(info.name().to_owned());
        }
        let constants = graph.initializer.iter().map(TensorProto::name).filter(|name| !free.contains(name));
        let definitions = definitions(inputs.iter().map(String::as_str).chain(constants), &graph.node)?;
        let order = sorted(&graph.node, &definitions)?;
        let declared = declared_types(graph)?;
        let mut survey = Survey { names, inputs, nodes: Vec::new() };
        for i in order {
            self.node(&graph.node[i], &mut survey, &declared)
                .map_err(|error| error.at_node(label(&graph.node[i])))?;
        }
        Ok(survey)
    }

    fn node(
        &mut self,
        node: &NodeProto,
        survey: &mut Survey<'_>,
        declared: &HashMap<&str, ValueType>,
    ) -> Result<()> {
        look()?;
        if let Some(function) = self.functions.called(node) {
            let operands = survey.names.operands(node)?;
            let hosts = |ty: &ValueType| !ty.is_numeric();
            if super::function_touches(function) || operands.iter().flatten().any(hosts) {
                for node in self.inlined(node, function)? {
                    self.node(&node, survey, declared)?;
                }
                return Ok(());
            }
        }
        if node.op_type() == "Constant" && domain(node.domain()).is_empty() {
            let name = node.output.first().map(String::as_str).unwrap_or_default();
            let constant = Some(Constant::Node(Arc::new(node.clone())));
            survey.names.own.insert(name.to_owned(), Known { ty: values::constant_type(node), constant });
            return Ok(());
        }
        for node in self.rewritten(node, &survey.names)? {
            let (place, types) = self.placed(&node, &survey.names)?;
            for (i, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                let ty = types.get(i).cloned().unwrap_or(ValueType::tensor(None));
                let ty = refined(Some(ty), declared.get(name.as_str()).cloned());
                survey.names.define(name, ty.unwrap_or(ValueType::tensor(None)));
            }
            survey.nodes.push(Surveyed { node, place });
        }
        Ok(())
    }

    /// Returns who runs a node, and the types of its results as far as they are known.
    fn placed(&mut self, node: &NodeProto, names: &Names<'_>) -> Result<(Place, Vec<ValueType>)> {
        let operands = names.operands(node)?;
        let hosts = |ty: &ValueType| !ty.is_numeric();
        let mut is_hosted = operands.iter().flatten().any(hosts);
        let is_own_domain = domain(node.domain()).is_empty();
        if is_own_domain && matches!(node.op_type(), "If" | "Loop" | "Scan" | "SequenceMap") {
            let captures = uses(node);
            is_hosted |= captures.iter().any(|name| names.get(name).is_some_and(|known| hosts(&known.ty)));
            is_hosted |=
                node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()).any(graph_touches);
            if !is_hosted {
                return Ok((Place::Segment, Vec::new()));
            }
            if node.op_type() == "Scan" {
                return Err(unsupported(
                    "Scan over strings, sequences, optionals or maps is not supported; Loop and SequenceMap are",
                ));
            }
            return Ok((Place::Control, self.control_types(node, &operands, names)?));
        }
        let Some(row) = ops::find(domain(node.domain()), node.op_type()) else {
            let found = operands.iter().flatten().find(|ty| hosts(ty));
            return match found {
                None => Ok((Place::Segment, Vec::new())),
                Some(ty) => Err(unsupported(format!(
                    "the op {} does not take {ty}, only tensors of numbers",
                    node.op_type()
                ))),
            };
        };
        // An op of numbers too: only strings among its operands or results make it the host's.
        if row.when == When::ForValues && !is_hosted && !self.makes_values(row, node, &operands)? {
            return Ok((Place::Segment, Vec::new()));
        }
        Ok((Place::Host(row), self.types(row, node, &operands)?))
    }

    fn makes_values(&mut self, row: &Row, node: &NodeProto, operands: &[Option<ValueType>]) -> Result<bool> {
        match (row.name, row.domain) {
            ("Identity", _) => Ok(false),
            _ => Ok(self.types(row, node, operands)?.iter().any(|ty| !ty.is_numeric())),
        }
    }

    /// Returns the types of a host's node.
    pub fn types(
        &self,
        row: &Row,
        node: &NodeProto,
        operands: &[Option<ValueType>],
    ) -> Result<Vec<ValueType>> {
        row.check(operands)?;
        let attrs = self.attrs(node)?;
        let version = self.version(node)?;
        if version < row.since {
            return Err(unsupported(format!(
                "expected {} of version {} or newer, found {version}",
                row.name, row.since
            )));
        }
        (row.infer)(&Site { version, attrs: &attrs, inputs: operands, n_outputs: node.output.len() })
    }

    /// Returns the types of the results of If, Loop or SequenceMap, from their bodies.
    fn control_types(
        &mut self,
        node: &NodeProto,
        operands: &[Option<ValueType>],
        names: &Names<'_>,
    ) -> Result<Vec<ValueType>> {
        let given = control_inputs(node.op_type(), operands);
        let name = if node.op_type() == "If" { "then_branch" } else { "body" };
        let graph = body(node, name)?;
        let inner = self.survey(graph, Some(names), &given, &HashSet::new())?;
        let output = |info: &super::super::proto::ValueInfoProto| inner.names.ty(info.name()).cloned();
        let types = graph.output.iter().map(output).collect::<Result<Vec<_>>>()?;
        Ok(control_results(node.op_type(), operands, types))
    }
}

/// Returns the types of the inputs of a body.
pub fn control_inputs(op: &str, operands: &[Option<ValueType>]) -> Vec<Option<ValueType>> {
    match op {
        "Loop" => {
            let fixed =
                [ValueType::number(devbay_core::tensor::I64), ValueType::number(devbay_core::tensor::BOOL)];
            // Carried tensors may change their extents.
            let carried = operands.iter().skip(2).map(|ty| ty.as_ref().map(ValueType::without_shape));
            fixed.into_iter().map(Some).chain(carried).collect()
        }
        "SequenceMap" => operands
            .iter()
            .map(|ty| match ty {
                Some(ValueType::Sequence(of)) => Some((**of).clone()),
                other => other.clone(),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns the types of the results of a node, from those of its body.
pub fn control_results(op: &str, operands: &[Option<ValueType>], body: Vec<ValueType>) -> Vec<ValueType> {
    match op {
        "Loop" => {
            let n_carried = operands.len().saturating_sub(2);
            let result = |(i, ty): (usize, ValueType)| if i < n_carried { ty } else { ty.without_shape() };
            body.into_iter().skip(1).enumerate().map(result).collect()
        }
        "SequenceMap" => body.into_iter().map(|ty| ValueType::sequence(ty.without_shape())).collect(),
        _ => body,
    }
}

/// Returns the more exact one of two types of a value; the first one if they differ in kind.
pub fn refined(first: Option<ValueType>, second: Option<ValueType>) -> Option<ValueType> {
    match (first, second) {
        (
            Some(ValueType::Tensor { element: None, shape }),
            Some(ValueType::Tensor { element, shape: other }),
        ) => Some(ValueType::Tensor { element, shape: shape.or(other) }),
        (Some(ValueType::Sequence(of)), Some(ValueType::Sequence(other))) => {
            refined(Some((*of).clone()), Some((*other).clone())).map(ValueType::sequence)
        }
        (first, second) => first.or(second),
    }
}

/// Returns the types that a graph declares for its values.
fn declared_types(graph: &GraphProto) -> Result<HashMap<&str, ValueType>> {
    let infos = graph.value_info.iter().chain(&graph.output);
    let mut types = HashMap::new();
    for info in infos {
        if let Some(ty) = info.r#type.as_ref().map(values::value_type).transpose()?.flatten() {
            types.insert(info.name(), ty);
        }
    }
    Ok(types)
}
