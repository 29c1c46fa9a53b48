//! Graphs as regions: names become numbers of values, nodes become nodes of the program.

use super::attributes::{self, Arguments, Attribute};
use super::external::External;
use super::functions::{Budget, Functions};
use super::lift::{Lifter, held};
use super::order::{definitions, sorted, uses};
use super::proto::attribute_proto::AttributeType;
use super::proto::{FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use super::{Opsets, about, domain, invalid, label, tensors, too_deep_error, unsupported};
use crate::import::{Defaults, Reading};
use devbay_core::cancel::look;
use devbay_core::program::onnx_versions::since_version;
use devbay_core::program::verify::REGION_DEPTH_MAX;
use devbay_core::program::{AttrValue, Node, Op, Program, Region, SEED_INPUT, Value, ValueId};
use devbay_core::progress::{Counter, Phase};
use devbay_core::tensor::BOOL;
use devbay_core::{Result, Tensor, TensorType};
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Attributes of Constant, each a different form of its value.
pub(super) const CONSTANT_FORMS: &[&str] = &[
    "value",
    "value_int",
    "value_ints",
    "value_float",
    "value_floats",
    "value_string",
    "value_strings",
    "sparse_value",
];

/// Builds a program from a model whose messages live for `'m`.
pub(super) struct Builder<'m> {
    pub(super) program: Program,
    pub(super) functions: Functions<'m>,
    pub(super) budget: Budget,
    external: External<'m>,
    /// Decoded tensors by message, so that repeated calls of a function share its constants.
    tensors: HashMap<*const TensorProto, Tensor>,
    lifter: Lifter,
    /// Number of enclosing graphs under construction.
    depth: usize,
    /// Names of the main graph's initializers that become inputs.
    free: HashSet<&'m str>,
    /// Values of the main graph's initializers that are also inputs, by name.
    pub(super) defaults: Vec<(String, Tensor)>,
}

/// Context shared by all nodes of the model, or of one function call.
pub(super) struct Frame<'m> {
    pub(super) opsets: Opsets<'m>,
    /// Attributes of the call; None outside of functions.
    pub(super) arguments: Option<Arguments<'m>>,
    /// Prefix of node names.
    pub(super) prefix: String,
}

/// Meaning of names in a graph.
pub(super) struct Scope<'s, 'm> {
    /// Values by name; None for a function input that the call omits.
    pub(super) names: HashMap<&'m str, Option<ValueId>>,
    /// Types that the graph declares.
    types: HashMap<&'m str, &'m ValueInfoProto>,
    /// Dropout masks that are used; others are not computed.
    masks: HashSet<&'m str>,
    outer: Option<&'s Scope<'s, 'm>>,
}

impl<'s, 'm> Scope<'s, 'm> {
    pub(super) fn new(
        outer: Option<&'s Scope<'s, 'm>>,
        declared: impl Iterator<Item = &'m ValueInfoProto>,
    ) -> Self {
        let types = declared.filter(|info| info.r#type.is_some()).map(|info| (info.name(), info)).collect();
        Self { names: HashMap::new(), types, masks: HashSet::new(), outer }
    }

    /// Looks up the value of a name.
    pub(super) fn lookup(&self, name: &str) -> Result<Option<ValueId>> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if let Some(id) = here.names.get(name) {
                return Ok(*id);
            }
            scope = here.outer;
        }
        Err(invalid(format!("the value {name:?} is used and not defined")))
    }

    /// Returns the type that the graph declares for a name.
    pub(super) fn declared(&self, name: &str) -> Result<Option<TensorType>> {
        let Some(ty) = self.types.get(name).and_then(|info| info.r#type.as_ref()) else {
            return Ok(None);
        };
        tensors::value_type(ty).map_err(|error| about(&format!("the value {name:?}"), error))
    }

    /// Notes which masks of Dropout nodes are used.
    pub(super) fn note_masks(&mut self, nodes: &'m [NodeProto], outputs: impl Iterator<Item = &'m str>) {
        let masks: HashSet<&str> = nodes.iter().filter_map(mask).collect();
        if !masks.is_empty() {
            let used = nodes.iter().flat_map(uses).chain(outputs);
            self.masks = used.filter(|name| masks.contains(name)).collect();
        }
    }
}

/// Returns the name of a Dropout node's mask, if it has one.
fn mask(node: &NodeProto) -> Option<&str> {
    let is_dropout = node.op_type() == "Dropout" && domain(node.domain()).is_empty();
    node.output.get(1).map(String::as_str).filter(|mask| is_dropout && !mask.is_empty())
}

impl<'m> Builder<'m> {
    pub(super) fn new(
        functions: &'m [FunctionProto],
        folder: Option<&'m Path>,
        reading: Reading,
    ) -> Result<Self> {
        Ok(Self {
            program: Program::default(),
            functions: Functions::new(functions)?,
            budget: Budget::new(),
            external: External::new(folder, reading),
            tensors: HashMap::new(),
            lifter: Lifter::default(),
            depth: 0,
            free: HashSet::new(),
            defaults: Vec::new(),
        })
    }

    /// Builds the model's graph. Initializers that are also inputs have default values: constants, or inputs.
    pub(super) fn build_main(
        &mut self,
        graph: &'m GraphProto,
        opsets: Opsets<'m>,
        defaults: Defaults,
    ) -> Result<()> {
        self.functions.check(graph)?;
        let inputs: HashSet<&str> = graph.input.iter().map(|info| info.name()).collect();
        let both = || graph.initializer.iter().filter(|initializer| inputs.contains(initializer.name()));
        if defaults == Defaults::Inputs {
            self.free = both().map(TensorProto::name).collect();
        }
        graph.name().clone_into(&mut self.program.name);
        let frame = Frame { opsets, arguments: None, prefix: String::new() };
        let mut region = self.build_region(graph, None, &frame)?;
        for &id in &region.inputs {
            let value = self.program.value(id);
            if value.ty.is_none() {
                return Err(invalid(format!("expected a type of the input {:?}, found none", &*value.name)));
            }
            if *value.name == *SEED_INPUT {
                return Err(invalid(format!(
                    "the input {SEED_INPUT:?} has a name that devbay keeps for itself; rename it"
                )));
            }
        }
        // Outputs are found by name. An output that duplicates another value, or renames an input, gets a value of its own.
        for (info, id) in graph.output.iter().zip(&mut region.outputs) {
            if *self.program.value(*id).name != *info.name() {
                let ty = info.r#type.as_ref().map(tensors::value_type).transpose()?.flatten();
                let named =
                    self.program.add_value(Value { name: Arc::from(info.name()), ty, constant: None });
                region.nodes.push(Node::new(held("Identity"), vec![Some(*id)], vec![Some(named)]));
                *id = named;
            }
        }
        region.inputs.extend(self.lifter.seed.leave());
        self.program.main = region;
        if defaults != Defaults::Ignored {
            for initializer in both() {
                let tensor = self.decoded(initializer)?;
                self.defaults.push((initializer.name().to_owned(), tensor));
            }
        }
        Ok(())
    }

    fn build_region(
        &mut self,
        graph: &'m GraphProto,
        outer: Option<&Scope<'_, 'm>>,
        frame: &Frame<'m>,
    ) -> Result<Region> {
        if self.depth > REGION_DEPTH_MAX {
            return Err(too_deep_error());
        }
        if !graph.sparse_initializer.is_empty() {
            return Err(unsupported("sparse initializers are not supported"));
        }
        // They are the main graph's, which is built first.
        let free = std::mem::take(&mut self.free);
        let initializers = || graph.initializer.iter().filter(|tensor| !free.contains(tensor.name()));
        let constants: HashSet<&str> = initializers().map(TensorProto::name).collect();
        // Older files list initializers among the inputs, as defaults.
        let inputs = || graph.input.iter().map(|info| info.name()).filter(|name| !constants.contains(name));
        let names = || inputs().chain(initializers().map(TensorProto::name));
        if names().any(str::is_empty) {
            return Err(invalid("expected names of inputs and initializers, found an empty one"));
        }
        let definitions = definitions(names(), &graph.node)?;

        // The last declaration wins: those of inputs and outputs override others.
        let declared = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
        let mut scope = Scope::new(outer, declared);
        let mut region = Region::default();
        for name in inputs() {
            let ty = scope.declared(name)?;
            let id = self.program.add_value(Value { name: Arc::from(name), ty, constant: None });
            scope.names.insert(name, Some(id));
            region.inputs.push(id);
        }
        for initializer in initializers() {
            let name = initializer.name();
            let id = self
                .build_constant(name, initializer)
                .map_err(|error| about(&format!("the initializer {name:?}"), error))?;
            scope.names.insert(name, Some(id));
        }
        scope.note_masks(&graph.node, graph.output.iter().map(|info| info.name()));
        let counter = Counter::begin(Phase::Read, graph.node.len());
        for (n_done, i) in sorted(&graph.node, &definitions)?.into_iter().enumerate() {
            self.build_node(&graph.node[i], &mut scope, frame, &mut region.nodes)?;
            counter.done(n_done + 1);
        }
        for info in &graph.output {
            let id = scope.lookup(info.name()).ok().flatten();
            let id = id.ok_or_else(|| invalid(format!("the output {:?} is not defined", info.name())))?;
            region.outputs.push(id);
        }
        Ok(region)
    }

    /// Builds a node, and the nodes that it needs before and after it.
    pub(super) fn build_node(
        &mut self,
        proto: &'m NodeProto,
        scope: &mut Scope<'_, 'm>,
        frame: &Frame<'m>,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        self.build_any(proto, scope, frame, nodes).map_err(|error| error.at_node(label(proto)))
    }

    fn build_any(
        &mut self,
        proto: &'m NodeProto,
        scope: &mut Scope<'_, 'm>,
        frame: &Frame<'m>,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        look()?;
        if proto.op_type().is_empty() {
            return Err(invalid("expected the node's op, found none"));
        }
        if let Some(function) = self.functions.called(proto) {
            return self.build_call(proto, function, scope, frame, nodes);
        }
        let op = op(proto, frame)?;
        if op.is("Constant") {
            return self.build_constant_node(proto, scope, frame);
        }
        if op.is("Dropout") && self.build_dropout(proto, &op, scope, nodes)? {
            return Ok(());
        }
        let node = self.translate(proto, op, scope, frame)?;
        self.lifter.lift(&mut self.program, node, nodes)
    }

    fn translate(
        &mut self,
        proto: &'m NodeProto,
        op: Op,
        scope: &mut Scope<'_, 'm>,
        frame: &Frame<'m>,
    ) -> Result<Node> {
        let mut inputs = Vec::with_capacity(proto.input.len());
        for name in &proto.input {
            inputs.push(if name.is_empty() { None } else { scope.lookup(name)? });
        }
        let mut node = Node::new(op, inputs, Vec::with_capacity(proto.output.len()));
        if !proto.name().is_empty() {
            self.budget.charge(frame.prefix.len())?;
            node.name = format!("{}{}", frame.prefix, proto.name()).into();
        }
        let mut names = HashSet::new();
        let is_repeated = node.op.is("Loop") || node.op.is("Scan");
        let mut seed = None;
        for attribute in &proto.attribute {
            let name = attribute.name();
            if !names.insert(name) {
                return Err(invalid(format!("the attribute {name:?} is there twice")));
            }
            let Some(value) = attributes::resolved(attribute, frame.arguments.as_ref())? else {
                continue;
            };
            if !std::ptr::eq(value, attribute) {
                self.budget.charge(value.encoded_len())?;
            }
            let value = attributes::value(value, &mut self.external)
                .map_err(|error| about(&format!("the attribute {name:?}"), error))?;
            match value {
                Attribute::Value(value) => node.attrs.push((Arc::from(name), value)),
                Attribute::Graph(graph) => {
                    self.depth += 1;
                    if is_repeated {
                        self.lifter.seed.enter();
                    }
                    let region = self.build_region(graph, Some(scope), frame)?;
                    if is_repeated {
                        seed = self.lifter.seed.leave();
                    }
                    self.depth -= 1;
                    node.regions.push((Arc::from(name), region));
                }
            }
        }
        for name in &proto.output {
            if name.is_empty() {
                node.outputs.push(None);
                continue;
            }
            let ty = scope.declared(name)?;
            let id = self.program.add_value(Value { name: Arc::from(&**name), ty, constant: None });
            scope.names.insert(name, Some(id));
            node.outputs.push(Some(id));
        }
        // A control-flow node returns all results of its region; unused ones at the end may be left out.
        if let Some(n) = n_results(&node) {
            node.outputs.resize(node.outputs.len().max(n), None);
            if let Some(seed) = seed {
                self.lifter.carry_seed(&mut self.program, &mut node, seed)?;
            }
        } else {
            // An op with any number of results, such as Split, also computes the unused ones.
            let repeats = devbay_ops::find(&node.op.domain, &node.op.name)
                .is_some_and(|row| row.outputs.n_max().is_none());
            for result in node.outputs.iter_mut().filter(|result| repeats && result.is_none()) {
                *result = Some(self.program.add_value(Value::default()));
            }
            // A trailing absent operand means the same as a missing one. Loop counts its operands, so they stay.
            for operands in [&mut node.inputs, &mut node.outputs] {
                while operands.last().is_some_and(Option::is_none) {
                    operands.pop();
                }
            }
        }
        Ok(node)
    }

    fn build_constant(&mut self, name: &str, proto: &'m TensorProto) -> Result<ValueId> {
        let tensor = self.decoded(proto)?;
        Ok(self.program.add_constant(name, tensor))
    }

    /// Decodes a tensor once.
    fn decoded(&mut self, proto: &'m TensorProto) -> Result<Tensor> {
        let key = std::ptr::from_ref(proto);
        if let Some(tensor) = self.tensors.get(&key) {
            return Ok(tensor.clone());
        }
        let tensor = tensors::tensor(proto, &mut self.external)?;
        self.tensors.insert(key, tensor.clone());
        Ok(tensor)
    }

    /// Turns a Constant node into a constant, so that later stages need not know its forms and versions.
    fn build_constant_node(
        &mut self,
        proto: &'m NodeProto,
        scope: &mut Scope<'_, 'm>,
        frame: &Frame<'m>,
    ) -> Result<()> {
        let [output] = &proto.output[..] else {
            return Err(invalid(format!("expected one output, found {}", proto.output.len())));
        };
        let forms = proto.attribute.iter().filter(|attribute| CONSTANT_FORMS.contains(&attribute.name()));
        let forms: Vec<_> = forms.collect();
        let [attribute] = forms[..] else {
            return Err(invalid(format!("expected one attribute with the value, found {}", forms.len())));
        };
        let name = attribute.name();
        if ["value_string", "value_strings", "sparse_value"].contains(&name) {
            return Err(unsupported(format!("constants with a {name} are not supported")));
        }
        let value = attributes::resolved(attribute, frame.arguments.as_ref())?
            .ok_or_else(|| invalid(format!("expected a value of {name:?}, which the call does not give")))?;
        let id = match (name, attributes::kind(value)?, value.t.as_deref()) {
            ("value", AttributeType::Tensor, Some(tensor)) => self.build_constant(output, tensor)?,
            _ => {
                let value = attributes::value(value, &mut self.external)?;
                let tensor = match (name, value) {
                    ("value_int", Attribute::Value(AttrValue::Int(x))) => Tensor::from_elements(&[], &[x])?,
                    ("value_float", Attribute::Value(AttrValue::Float(x))) => {
                        Tensor::from_elements(&[], &[x])?
                    }
                    ("value_ints", Attribute::Value(AttrValue::Ints(x))) => {
                        Tensor::from_elements(&[x.len()], &x)?
                    }
                    ("value_floats", Attribute::Value(AttrValue::Floats(x))) => {
                        Tensor::from_elements(&[x.len()], &x)?
                    }
                    _ => {
                        return Err(invalid(format!(
                            "expected a constant's value, found the attribute {name:?}"
                        )));
                    }
                };
                self.program.add_constant(output, tensor)
            }
        };
        if !output.is_empty() {
            scope.names.insert(output, Some(id));
        }
        Ok(())
    }

    /// Replaces a Dropout node in inference mode by its input and an all-true mask. Returns false in training mode, or if
    /// its mask is used and has the input's type, as before version 10.
    fn build_dropout(
        &mut self,
        proto: &'m NodeProto,
        op: &Op,
        scope: &mut Scope<'_, 'm>,
        nodes: &mut Vec<Node>,
    ) -> Result<bool> {
        let operand = |i: usize| proto.input.get(i).map(String::as_str).filter(|name| !name.is_empty());
        // Before version 12 there is no training mode.
        let training = match operand(2) {
            Some(name) if op.version >= 12 => scope.lookup(name)?,
            _ => None,
        };
        let is_off = |id| self.program.constant(id).and_then(Tensor::to_int) == Some(0);
        let mask = mask(proto).filter(|mask| scope.masks.contains(mask));
        if !training.is_none_or(is_off) || (mask.is_some() && op.version < 10) {
            return Ok(false);
        }
        let data = scope.lookup(operand(0).unwrap_or_default())?;
        if let Some(output) = proto.output.first().filter(|name| !name.is_empty()) {
            scope.names.insert(output, data);
        }
        if let Some(name) = mask {
            let shape = self.program.add_value(Value::default());
            let ty = scope.declared(name)?;
            let mask = self.program.add_value(Value { name: Arc::from(name), ty, constant: None });
            scope.names.insert(name, Some(mask));
            let mut fill = Node::new(held("ConstantOfShape"), vec![Some(shape)], vec![Some(mask)]);
            fill.set_attr("value", AttrValue::Tensor(Tensor::from_bytes(BOOL, &[1], &[1])?));
            for node in [Node::new(held("Shape"), vec![data], vec![Some(shape)]), fill] {
                self.lifter.lift(&mut self.program, node, nodes)?;
            }
        }
        Ok(true)
    }
}

/// Returns a node's op: for ONNX's own domain in the version in force, for others in the imported version.
fn op(proto: &NodeProto, frame: &Frame<'_>) -> Result<Op> {
    let domain = domain(proto.domain());
    let opset = *frame.opsets.get(domain).ok_or_else(|| {
        let named = if domain.is_empty() { "ai.onnx" } else { domain };
        invalid(format!("expected an imported opset of the domain {named:?}, found none"))
    })?;
    let version = match domain {
        "" => since_version(proto.op_type(), opset),
        // Ops of other domains have one version each.
        _ => devbay_ops::find(domain, proto.op_type()).map(|row| row.version).filter(|&since| since <= opset),
    };
    Ok(Op {
        domain: Arc::from(domain),
        name: Arc::from(proto.op_type()),
        // Placement reports unknown ops, with the devices that could run them.
        version: version.unwrap_or(opset),
    })
}

/// Returns the number of results of a control-flow node, from its regions; None for other nodes.
fn n_results(node: &Node) -> Option<usize> {
    let n_outputs = |name: &str| node.region(name).map(|region| region.outputs.len());
    match &*node.op.name {
        "If" if node.op.domain.is_empty() => n_outputs("then_branch"),
        "Loop" if node.op.domain.is_empty() => n_outputs("body").map(|n| n.saturating_sub(1)),
        "Scan" if node.op.domain.is_empty() => n_outputs("body"),
        _ => None,
    }
}
