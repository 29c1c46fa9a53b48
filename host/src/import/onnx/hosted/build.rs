//! A second walk over a graph: segments are imported, and everything becomes steps.
//!
//! Nodes of segments that need no value of the host between them are one segment: its number is the number of changes between
//! host and segments on the longest way to it. Segments are imported in that order, so that the element types of what they
//! take are known: the host's functions tell theirs, and inference those of programs.

use super::super::external::External;
use super::super::graph::Builder;
use super::super::order::uses;
use super::super::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};
use super::super::{Opsets, about, invalid, label};
use super::survey::{
    Constant, Known, Names, Place, Survey, Surveyed, control_inputs, control_results, refined,
};
use super::{Hosted, Importer, body, values};
use crate::import::{Defaults, Reading};
use crate::values::graph::{Body, Graph, GraphPort, HostGraph, Kind, Operand, Step};
use crate::values::ops::{Row, Site};
use crate::values::{Element, Value, ValueType};
use devbay_core::Result;
use devbay_core::program::Program;
use devbay_core::program::infer::infer_program;
use devbay_core::program::verify::verify;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// A graph with slots for its names, under construction.
struct Slots {
    by_name: HashMap<String, usize>,
    n: usize,
    constants: Vec<(usize, Value)>,
    /// Names of the graphs around, and their slots here.
    captures: Vec<(String, usize)>,
}

impl Slots {
    fn add(&mut self, name: &str) -> usize {
        self.by_name.insert(name.to_owned(), self.n);
        self.n += 1;
        self.n - 1
    }
}

/// A graph, and the names that it captures.
struct Built {
    graph: Graph,
    captures: Vec<String>,
}

impl<'m> Importer<'m> {
    /// Builds the model's graph.
    pub fn main(&mut self, graph: &'m GraphProto, defaults: Defaults) -> Result<Hosted> {
        let defaults = if self.model.ir_version() < 4 { Defaults::Ignored } else { defaults };
        let inputs: HashSet<&str> = graph.input.iter().map(|info| info.name()).collect();
        let both: Vec<&TensorProto> =
            graph.initializer.iter().filter(|tensor| inputs.contains(tensor.name())).collect();
        let free = match defaults {
            Defaults::Inputs => both.iter().map(|tensor| tensor.name()).collect(),
            _ => HashSet::new(),
        };
        let Built { graph: main, .. } = self.graph(graph, None, &[], &free)?;
        let mut values = Vec::new();
        for tensor in both.iter().filter(|tensor| defaults != Defaults::Ignored && !values::is_string(tensor))
        {
            let value = values::value(tensor, &mut External::new(self.folder, self.reading))?;
            values.push((tensor.name().to_owned(), value.into_tensor()?));
        }
        let segments = std::mem::take(&mut self.segments);
        Ok(Hosted { graph: HostGraph { main, segments }, defaults: values })
    }

    fn graph(
        &mut self,
        proto: &GraphProto,
        outer: Option<&Names<'_>>,
        given: &[Option<ValueType>],
        free: &HashSet<&str>,
    ) -> Result<Built> {
        let Survey { mut names, inputs, nodes } = self.survey(proto, outer, given, free)?;
        let mut slots = Slots { by_name: HashMap::new(), n: 0, constants: Vec::new(), captures: Vec::new() };
        let ports: Vec<GraphPort> = inputs.iter().map(|name| port(name, &names)).collect::<Result<_>>()?;
        for name in &inputs {
            slots.add(name);
        }
        let mut steps = Vec::new();
        let outputs: HashSet<&str> = proto.output.iter().map(|info| info.name()).collect();
        for stage in stages(&nodes) {
            let in_segment: HashSet<usize> =
                stage.iter().copied().filter(|&i| matches!(nodes[i].place, Place::Segment)).collect();
            if in_segment.is_empty() {
                for i in stage {
                    let step = self.host_step(&nodes[i], &mut names, &mut slots);
                    steps.push(step.map_err(|error| error.at_node(label(&nodes[i].node)))?);
                }
                continue;
            }
            let later = nodes.iter().enumerate().filter(|(i, _)| !in_segment.contains(i));
            let used: HashSet<&str> =
                later.flat_map(|(_, other)| uses(&other.node)).chain(outputs.iter().copied()).collect();
            let own: Vec<&NodeProto> = stage.iter().map(|&i| &nodes[i].node).collect();
            steps.extend(self.segment(&own, &used, &mut names, &mut slots)?);
        }
        let mut results = Vec::new();
        for info in &proto.output {
            let name = info.name();
            let slot = self
                .slot(name, &names, &mut slots)
                .map_err(|error| about(&format!("the output {name:?}"), error))?;
            let declared = info.r#type.as_ref().map(values::value_type).transpose()?.flatten();
            // What the graph says of its outputs, with extents that only it knows.
            let known = names.ty(name)?.clone();
            let ty = declared.filter(|declared| declared.takes(&known)).unwrap_or(known);
            results.push((GraphPort { name: Arc::from(name), ty }, slot));
        }
        let (captures, places) = slots.captures.into_iter().unzip();
        let mut graph = Graph {
            inputs: ports,
            captures: places,
            constants: slots.constants,
            steps,
            outputs: results,
            n_slots: slots.n,
        };
        graph.mark_last_uses();
        Ok(Built { graph, captures })
    }

    /// Returns the slot of a name: a value of this graph, a constant, or a capture.
    fn slot(&mut self, name: &str, names: &Names<'_>, slots: &mut Slots) -> Result<usize> {
        if let Some(&slot) = slots.by_name.get(name) {
            return Ok(slot);
        }
        let known =
            names.get(name).ok_or_else(|| invalid(format!("the value {name:?} is used and not defined")))?;
        let constant = known.constant.as_ref().map(|constant| self.constant(constant)).transpose();
        let constant = constant.map_err(|error| about(&format!("the constant {name:?}"), error))?;
        let slot = slots.add(name);
        match constant {
            Some(value) => slots.constants.push((slot, value)),
            None if names.own.contains_key(name) => {
                return Err(invalid(format!("the value {name:?} is used before it is defined")));
            }
            None => slots.captures.push((name.to_owned(), slot)),
        }
        Ok(slot)
    }

    fn constant(&self, constant: &Constant) -> Result<Value> {
        let mut external = External::new(self.folder, self.reading);
        match constant {
            Constant::Initializer(tensor) => values::value(tensor, &mut external),
            Constant::Node(node) => values::constant(node, &mut external),
        }
    }

    /// Makes the step of a node that the host runs.
    fn host_step(&mut self, surveyed: &Surveyed, names: &mut Names<'_>, slots: &mut Slots) -> Result<Step> {
        let node = &surveyed.node;
        let operands = names.operands(node)?;
        let mut inputs = Vec::new();
        for name in &node.input {
            let slot = if name.is_empty() { None } else { Some(self.slot(name, names, slots)?) };
            inputs.push(slot.map(|slot| Operand { slot, is_last: false }));
        }
        let (kind, types) = match surveyed.place {
            Place::Host(row) => {
                (Kind::Work(self.work(row, node, &operands)?), self.types(row, node, &operands)?)
            }
            _ => self.control(node, &operands, names, slots)?,
        };
        let mut outputs = Vec::new();
        for (i, name) in node.output.iter().enumerate() {
            if name.is_empty() {
                outputs.push(None);
                continue;
            }
            let known = names.own.remove(name).map(|known| known.ty);
            let ty = refined(types.get(i).cloned(), known).unwrap_or(ValueType::tensor(None));
            names.own.insert(name.clone(), Known { ty, constant: None });
            outputs.push(Some(slots.add(name)));
        }
        Ok(Step { label: label(node), inputs, outputs, kind })
    }

    fn work(
        &self,
        row: &Row,
        node: &NodeProto,
        operands: &[Option<ValueType>],
    ) -> Result<crate::values::ops::Work> {
        let (attrs, version) = (self.attrs(node)?, self.version(node)?);
        (row.make)(&Site { version, attrs: &attrs, inputs: operands, n_outputs: node.output.len() })
    }

    /// Builds the bodies of If, Loop or SequenceMap.
    fn control(
        &mut self,
        node: &NodeProto,
        operands: &[Option<ValueType>],
        names: &Names<'_>,
        slots: &mut Slots,
    ) -> Result<(Kind, Vec<ValueType>)> {
        let given = control_inputs(node.op_type(), operands);
        let mut nested = |name: &str, n_inputs: Option<usize>| -> Result<Body> {
            let Built { graph, captures } =
                self.graph(body(node, name)?, Some(names), &given, &HashSet::new())?;
            if let Some(n) = n_inputs.filter(|&n| n != graph.inputs.len()) {
                return Err(invalid(format!(
                    "expected {n} inputs of the graph {name:?}, found {}",
                    graph.inputs.len()
                )));
            }
            let captures = captures
                .iter()
                .map(|name| Ok(Operand { slot: self.slot(name, names, slots)?, is_last: false }));
            Ok(Body { graph, captures: captures.collect::<Result<_>>()? })
        };
        let types =
            |body: &Body| body.graph.outputs.iter().map(|(port, _)| port.ty.clone()).collect::<Vec<_>>();
        let (kind, results) = match node.op_type() {
            "If" => {
                let bodies = [nested("then_branch", Some(0))?, nested("else_branch", Some(0))?];
                let [n, m] = [bodies[0].graph.outputs.len(), bodies[1].graph.outputs.len()];
                if n != m || n < node.output.len() {
                    return Err(invalid(format!(
                        "expected both branches to give {} results, found {n} and {m}",
                        node.output.len()
                    )));
                }
                let results = types(&bodies[0]);
                (Kind::If(Box::new(bodies)), results)
            }
            "Loop" => {
                let body = nested("body", Some(node.input.len().max(2)))?;
                let n = body.graph.outputs.len();
                if n <= node.input.len().saturating_sub(2) || n - 1 < node.output.len() {
                    return Err(invalid(format!(
                        "expected a body that gives a condition and all results, found {n} outputs"
                    )));
                }
                let results = types(&body);
                (Kind::Loop(Box::new(body)), results)
            }
            _ => {
                let body = nested("body", Some(operands.len()))?;
                let results = types(&body);
                (Kind::Map(Box::new(body)), results)
            }
        };
        Ok((kind, control_results(node.op_type(), operands, results)))
    }

    /// Imports nodes as a segment. None if nothing uses their results.
    fn segment(
        &mut self,
        nodes: &[&NodeProto],
        used: &HashSet<&str>,
        names: &mut Names<'_>,
        slots: &mut Slots,
    ) -> Result<Option<Step>> {
        let made: Vec<&str> = nodes
            .iter()
            .flat_map(|node| &node.output)
            .map(String::as_str)
            .filter(|name| !name.is_empty())
            .collect();
        let own: HashSet<&str> = made.iter().copied().collect();
        let outputs: Vec<&str> = made.into_iter().filter(|name| used.contains(name)).collect();
        if outputs.is_empty() {
            return Ok(None);
        }
        let mut graph = GraphProto {
            name: self.model.graph.as_ref().and_then(|graph| graph.name.clone()),
            ..GraphProto::default()
        };
        let mut seen = HashSet::new();
        for name in nodes.iter().flat_map(|node| uses(node)).filter(|name| !own.contains(name)) {
            if !seen.insert(name) {
                continue;
            }
            let known = names
                .get(name)
                .ok_or_else(|| invalid(format!("the value {name:?} is used and not defined")))?;
            match &known.constant {
                Some(Constant::Initializer(tensor)) => {
                    let tensor = Arc::clone(tensor);
                    graph.initializer.push(self.stored(&tensor)?);
                }
                Some(Constant::Node(node)) => graph.node.push((**node).clone()),
                None => {
                    let r#type = values::tensor_type_proto(&known.ty).ok_or_else(|| {
                        invalid(format!(
                            "expected the element type of {name:?}, found {}: declare it in the model",
                            known.ty
                        ))
                    })?;
                    graph.input.push(ValueInfoProto {
                        name: Some(name.to_owned()),
                        r#type: Some(r#type),
                        ..ValueInfoProto::default()
                    });
                }
            }
        }
        graph.node.extend(nodes.iter().map(|node| (*node).clone()));
        let output =
            |name: &&str| ValueInfoProto { name: Some((*name).to_owned()), ..ValueInfoProto::default() };
        graph.output = outputs.iter().map(output).collect();
        let program = self.program(&graph)?;
        let mut typed = program.clone();
        infer_program(&mut typed)?;
        let mut inputs = Vec::new();
        for info in &graph.input {
            inputs.push(Some(Operand { slot: self.slot(info.name(), names, slots)?, is_last: false }));
        }
        let mut results = Vec::new();
        for (name, id) in outputs.iter().zip(&typed.main.outputs) {
            if let Some(ty) = &typed.value(*id).ty {
                let ty =
                    ValueType::Tensor { element: Some(Element::Number(ty.dtype)), shape: ty.shape.clone() };
                names.own.insert((*name).to_owned(), Known { ty, constant: None });
            }
            results.push(Some(slots.add(name)));
        }
        self.segments.push(program);
        let kind = Kind::Segment(self.segments.len() - 1);
        Ok(Some(Step { label: label(nodes[0]), inputs, outputs: results, kind }))
    }

    /// Returns a message of the same tensor whose copies share its content: many segments may use it.
    fn stored(&mut self, tensor: &Arc<TensorProto>) -> Result<TensorProto> {
        let is_shared = tensor.raw_data.is_some() || !tensor.external_data.is_empty();
        if is_shared || tensor.dims.is_empty() {
            return Ok((**tensor).clone());
        }
        let key = Arc::as_ptr(tensor);
        if let Some((_, stored)) = self.stored.get(&key) {
            return Ok(stored.clone());
        }
        let value = values::value(tensor, &mut External::new(self.folder, self.reading))
            .map_err(|error| about(&format!("the initializer {:?}", tensor.name()), error))?;
        let stored = TensorProto { name: tensor.name.clone(), ..values::tensor_proto(&value)? };
        // Kept with its message, so that no other one gets its address.
        self.stored.insert(key, (Arc::clone(tensor), stored.clone()));
        Ok(stored)
    }

    /// Imports a segment's graph.
    fn program(&self, graph: &GraphProto) -> Result<Program> {
        let opsets: Opsets<'_> =
            self.opsets.iter().map(|(domain, version)| (domain.as_str(), *version)).collect();
        built(graph, &self.model.functions, opsets, self.folder, self.reading)
    }
}

/// Imports a graph of tensors.
fn built(
    graph: &GraphProto,
    functions: &[super::FunctionProto],
    opsets: Opsets<'_>,
    folder: Option<&Path>,
    reading: Reading,
) -> Result<Program> {
    let mut builder = Builder::new(functions, folder, reading)?;
    builder.build_main(graph, opsets, Defaults::Constants)?;
    verify(&builder.program)?;
    Ok(builder.program)
}

fn port(name: &str, names: &Names<'_>) -> Result<GraphPort> {
    Ok(GraphPort { name: Arc::from(name), ty: names.ty(name)?.clone() })
}

/// Groups nodes by stage: nodes of segments in even ones, nodes of the host in odd ones.
fn stages(nodes: &[Surveyed]) -> Vec<Vec<usize>> {
    let mut stage_of: HashMap<&str, usize> = HashMap::new();
    let mut stages: Vec<Vec<usize>> = Vec::new();
    for (i, surveyed) in nodes.iter().enumerate() {
        let is_host = !matches!(surveyed.place, Place::Segment);
        let before = uses(&surveyed.node).iter().filter_map(|name| stage_of.get(name)).max().copied();
        let stage = match before {
            Some(before) if (before % 2 == 1) == is_host => before,
            Some(before) => before + 1,
            None => usize::from(is_host),
        };
        for name in surveyed.node.output.iter().filter(|name| !name.is_empty()) {
            stage_of.insert(name, stage);
        }
        if stages.len() <= stage {
            stages.resize(stage + 1, Vec::new());
        }
        stages[stage].push(i);
    }
    stages
}
