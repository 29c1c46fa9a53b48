//! The region with its images in the chosen orders.

use super::super::renames::Renames;
use super::super::reshape;
use super::axes::Turned;
use super::images::{Images, Role, read_by};
use super::orders::Order;
use super::turn::{Operand, Turn};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{Node, Op, Program, Region, Value, ValueId, catalogue};
use crate::tensor::{Tensor, TensorType, n_elements};
use devbay_plugin_api::reserve;
use std::collections::{HashMap, HashSet};

/// Turns the free nodes whose order is not the one in which they stand, and reorders images between them and the others, each
/// once. Returns the number of nodes that were turned.
///
/// # Errors
/// Out of memory for constants; cancelled, or past the deadline.
pub fn rewrite(
    program: &mut Program,
    region: &mut Region,
    images: &Images,
    orders: &[Order],
) -> Result<usize> {
    let turns = |role: &&Role| matches!(role, Role::Follows(free, turn) if orders[*free] != turn.stands);
    let turned = images.roles.iter().filter(turns).count();
    if turned == 0 {
        return Ok(0);
    }
    let mut rewrite = Rewrite {
        goes_out: region.outputs.iter().copied().collect(),
        made: region.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied()).collect(),
        program,
        images,
        values: vec![[None; 2]; images.values.len()],
        constants: HashMap::new(),
        nodes: Vec::with_capacity(region.nodes.len()),
    };
    for (node, role) in std::mem::take(&mut region.nodes).into_iter().zip(&images.roles) {
        look()?;
        match role {
            Role::Reorders => {}
            Role::Follows(free, turn) if orders[*free] != turn.stands => rewrite.turn(node, turn)?,
            Role::Follows(..) | Role::Stays => rewrite.keep(node)?,
        }
    }
    for id in &mut region.outputs {
        *id = rewrite.as_it_stood(*id)?;
    }
    region.nodes = rewrite.nodes;
    Ok(turned)
}

struct Rewrite<'a> {
    program: &'a mut Program,
    images: &'a Images,
    /// Results of the region.
    goes_out: HashSet<ValueId>,
    /// Values that nodes of the region made.
    made: HashSet<ValueId>,
    /// For each image, the values that it is by now, by order.
    values: Vec<[Option<ValueId>; 2]>,
    /// Constants in the other order.
    constants: HashMap<(ValueId, Vec<usize>), ValueId>,
    nodes: Vec<Node>,
}

impl Rewrite<'_> {
    /// Adds a node with its images as they stood.
    fn keep(&mut self, mut node: Node) -> Result<()> {
        if !node.regions.is_empty() {
            let mut renames = Renames::default();
            for id in read_by(&node) {
                let now = self.as_it_stood(id)?;
                if now != id {
                    renames.add(id, now);
                }
            }
            node.regions.iter_mut().for_each(|(_, nested)| renames.region(nested));
        }
        for id in node.inputs.iter_mut().flatten() {
            *id = self.as_it_stood(*id)?;
        }
        for id in node.outputs.iter_mut().flatten() {
            if let Some((image, order)) = self.images.get(*id) {
                *id = self.make(image, order);
            }
        }
        self.nodes.push(node);
        Ok(())
    }

    /// Adds a node with its images in the other order.
    fn turn(&mut self, node: Node, turn: &Turn) -> Result<()> {
        let mut turned = turn.node();
        for (i, operand) in turn.operands.iter().enumerate() {
            let id = node.input(i);
            turned.inputs[i] = match (operand, id) {
                (Operand::Numbers(tensor), _) => Some(self.program.add_constant("", tensor.clone())),
                (_, None) => None,
                (Operand::Image, Some(id)) => Some(match self.images.get(id) {
                    Some((image, _)) => self.read(image, turn.stands.other())?,
                    None => id,
                }),
                (Operand::Same, Some(id)) => Some(self.as_it_stood(id)?),
                (Operand::Constant(shape), Some(id)) => Some(self.constant(id, shape, &turn.axes)?),
                (Operand::View(shape), Some(id)) => Some(self.view(id, shape)?),
            };
        }
        for id in turned.outputs.iter_mut().flatten() {
            if let Some((image, stands)) = self.images.get(*id) {
                *id = self.make(image, if turn.makes { stands.other() } else { stands });
            }
        }
        self.nodes.push(turned);
        Ok(())
    }

    /// Returns the value that stands for one that was there before.
    fn as_it_stood(&mut self, id: ValueId) -> Result<ValueId> {
        match self.images.get(id) {
            Some((image, order)) => self.read(image, order),
            None => Ok(id),
        }
    }

    /// Returns an image in an order. The first time that it has the other one, it is reordered.
    fn read(&mut self, image: usize, order: Order) -> Result<ValueId> {
        if let Some(id) = self.values[image][order as usize] {
            return Ok(id);
        }
        let first = self.images.values[image][0];
        let source = match self.values[image][order.other() as usize] {
            Some(source) => source,
            None => {
                // Nothing has made it: it comes from outside.
                let stands = self.images.get(first).map_or(order, |(_, stands)| stands);
                self.values[image][stands as usize] = Some(first);
                return self.read(image, order);
            }
        };
        let id = self.make(image, order);
        let node = reordering(self.program, source, order, id)?;
        self.nodes.push(node);
        Ok(id)
    }

    /// Returns a value that is an image in an order, from now on: one that was that before, if there is one, rather a result of
    /// the region.
    fn make(&mut self, image: usize, order: Order) -> ValueId {
        let known = &self.images.values[image];
        let is_it = |id: &&ValueId| {
            self.made.contains(id) && self.images.get(**id).is_some_and(|(_, stands)| stands == order)
        };
        let goes_out = known.iter().filter(is_it).find(|id| self.goes_out.contains(id));
        let id = match goes_out.or_else(|| known.iter().find(is_it)) {
            Some(id) => *id,
            None => {
                let ty = self.program.value(known[0]).ty.clone();
                let rank = ty.as_ref().and_then(TensorType::known_shape).map_or(0, |shape| shape.len());
                let ty = ty.and_then(|ty| Turned::from(order.other(), rank).ty(&ty));
                // Without a name: those are of what a model says of a value, its order among it.
                self.program.add_value(Value { ty, ..Value::default() })
            }
        };
        self.values[image][order as usize] = Some(id);
        id
    }

    /// Returns a computed operand of lower rank with axes of its own for the others.
    fn view(&mut self, id: ValueId, shape: &[usize]) -> Result<ValueId> {
        let id = self.as_it_stood(id)?;
        let ty = self.program.value(id).ty.as_ref().map(|ty| TensorType::new(ty.dtype, shape));
        let view = self.program.add_value(Value { ty, ..Value::default() });
        let node = reshape(self.program, id, shape, view)?;
        self.nodes.push(node);
        Ok(view)
    }

    /// Returns a constant image of a shape in the other order.
    fn constant(&mut self, id: ValueId, shape: &[usize], axes: &Turned) -> Result<ValueId> {
        let key = (id, axes.of(shape));
        if let Some(known) = self.constants.get(&key) {
            return Ok(*known);
        }
        let value = self.program.value(id);
        let name = value.name.clone();
        let Some(tensor) = value.constant.as_ref() else { return Ok(id) };
        let turned = match axes.is_view(shape) {
            true => tensor.reshaped(&key.1)?,
            false => transposed(&tensor.reshaped(shape)?, axes)?,
        };
        let new = self.program.add_constant(&name, turned);
        self.constants.insert(key, new);
        Ok(new)
    }
}

/// Returns the node that makes an image of another order of itself: a view, if only extents of 1 move.
fn reordering(program: &mut Program, source: ValueId, to: Order, result: ValueId) -> Result<Node> {
    let shape = program.value(source).ty.as_ref().and_then(TensorType::known_shape).unwrap_or_default();
    let axes = Turned::from(to.other(), shape.len());
    if axes.is_view(&shape) {
        return reshape(program, source, &axes.of(&shape), result);
    }
    let def = catalogue::find("", "Transpose").expect("the catalogue has ONNX's ops");
    let mut node = Node::new(Op::of(def), vec![Some(source)], vec![Some(result)]);
    node.set_attr("perm", axes.attr());
    Ok(node)
}

/// Returns a constant in another order of its axes. Its elements are whole bytes.
fn transposed(tensor: &Tensor, axes: &Turned) -> Result<Tensor> {
    const WHAT: &str = "a constant with its channels in the other place";
    let (from, size) = (tensor.shape(), usize::from(tensor.dtype().bits) / 8);
    let strides: Vec<usize> =
        (0..from.len()).map(|axis| n_elements(&from[axis + 1..]).unwrap_or(0) * size).collect();
    let (to, strides) = (axes.of(from), axes.of(&strides));
    let mut bytes = reserve::with_capacity(tensor.bytes().len(), WHAT)?;
    let mut at = vec![0; to.len()];
    for _ in 0..tensor.n_elements() {
        let start: usize = at.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        bytes.extend_from_slice(&tensor.bytes()[start..start + size]);
        for axis in (0..to.len()).rev() {
            at[axis] += 1;
            if at[axis] < to[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
    Tensor::from_bytes(tensor.dtype(), &to, &bytes)
}
