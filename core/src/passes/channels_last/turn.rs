//! Nodes that can have their images in either order, and what they are in the other one.

use super::super::search::has_kernel;
use super::super::{has_constant_shape, is_elementwise, position};
use super::costs;
use super::orders::Order;
use crate::device::rates::Rates;
use crate::kernel::{KernelTable, implements};
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, Program, ValueId, catalogue};
use crate::tensor::{F32, I64, Tensor, TensorType, n_elements};
use std::ops::RangeInclusive;

/// Ranks of images: one to three axes along which windows slide, besides batch and channels.
pub const RANKS: RangeInclusive<usize> = 3..=5;

/// Ops with an axis, which moves with the others, and the axis if the attribute is absent.
const ALONG_AXIS: &[(&str, i64)] = &[
    ("Concat", 0),
    ("Hardmax", -1),
    ("LogSoftmax", -1),
    ("LpNormalization", -1),
    ("Softmax", -1),
    ("Split", 0),
];

/// Ops that reduce the axes of their second operand, all of them if it is absent.
const REDUCTIONS: &[&str] = &[
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

/// The axes of an image in the other order: for each, the axis that it was.
pub struct Turned {
    perm: Vec<usize>,
}

impl Turned {
    /// From an order to the other one.
    pub fn from(order: Order, rank: usize) -> Self {
        let mut perm: Vec<usize> = (0..rank).collect();
        match order {
            Order::Second => perm[1..].rotate_left(1),
            Order::Last => perm[1..].rotate_right(1),
        }
        Self { perm }
    }

    /// Returns the attribute of the Transpose.
    pub fn attr(&self) -> AttrValue {
        AttrValue::Ints(self.perm.iter().map(|&axis| axis as i64).collect())
    }

    /// Returns whether it is what a Transpose does.
    pub fn is(&self, perm: &[i64]) -> bool {
        self.perm.iter().map(|&axis| axis as i64).eq(perm.iter().copied())
    }

    /// Puts one item for each axis in the other order.
    pub fn of<T: Clone>(&self, items: &[T]) -> Vec<T> {
        self.perm.iter().map(|&axis| items[axis].clone()).collect()
    }

    /// Returns the place of an axis.
    fn axis(&self, axis: usize) -> usize {
        self.perm.iter().position(|&from| from == axis).unwrap_or(axis)
    }

    /// Returns the places of axes, of which some may count from the end; None if one does not exist.
    fn axes(&self, axes: &[i64]) -> Option<Vec<i64>> {
        let of = |&axis: &i64| position(axis, self.perm.len()).map(|axis| self.axis(axis) as i64);
        axes.iter().map(of).collect()
    }

    /// Returns whether elements of this shape stay where they are: only extents of 1 move.
    pub fn is_view(&self, shape: &[usize]) -> bool {
        self.perm.iter().filter(|&&axis| shape[axis] != 1).is_sorted()
    }

    /// Returns the type of a value in the other order.
    pub fn ty(&self, ty: &TensorType) -> Option<TensorType> {
        Some(TensorType::new(ty.dtype, &self.of(&ty.known_shape()?)))
    }
}

/// A node that can have its images in either order, as it stands.
pub struct Follower {
    /// Positions of the operands that are images in its order.
    pub reads: Vec<usize>,
    /// True if its results are, too.
    pub makes: bool,
    /// The rank of the images.
    pub rank: usize,
    /// The order that they have, if the op says so.
    pub stands: Option<Order>,
}

impl Follower {
    /// Returns how a node follows the order of its images; None for a node that has no images, or needs them as they are.
    pub fn of(program: &Program, node: &Node) -> Option<Self> {
        let shape = |id: ValueId| program.value(id).ty.as_ref()?.known_shape();
        let name = &*node.op.name;
        let of_first = |makes, stands| {
            let rank = shape(node.input(0)?)?.len();
            Some(Self { reads: vec![0], makes, rank, stands })
        };
        let follower = match (&*node.op.domain, name) {
            ("", "Conv") | (DEVBAY_DOMAIN, "FusedConv" | "NhwcFusedConv") => {
                let stands = if name == "NhwcFusedConv" { Order::Last } else { Order::Second };
                let reads = [0, 3].into_iter().filter(|&i| node.input(i).is_some()).collect();
                Self { reads, ..of_first(true, Some(stands))? }
            }
            ("", "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool") => {
                of_first(true, Some(Order::Second))?
            }
            (DEVBAY_DOMAIN, "NhwcMaxPool" | "NhwcAveragePool") => of_first(true, Some(Order::Last))?,
            ("", "Concat") => Self { reads: (0..node.inputs.len()).collect(), ..of_first(true, None)? },
            ("", "Slice" | "Pad" | "Resize") => of_first(true, None)?,
            ("", _) if ALONG_AXIS.iter().any(|(op, _)| *op == name) => of_first(true, None)?,
            ("", _) if REDUCTIONS.contains(&name) => of_first(node.int("keepdims", 1) != 0, None)?,
            _ if is_elementwise(&node.op) || is_like_elementwise(&node.op) => {
                let whole = shape(node.output(0)?)?.len();
                let is_image = |id: ValueId| {
                    shape(id).filter(|shape| shape.len() == whole && n_elements(shape) != Some(1))
                };
                let reads = (0..node.inputs.len()).filter(|&i| node.input(i).and_then(is_image).is_some());
                Self { reads: reads.collect(), makes: true, rank: whole, stands: None }
            }
            _ => return None,
        };
        let is_image = |id: ValueId| {
            let shape = shape(id).filter(|shape| shape.len() == follower.rank && !shape.contains(&0));
            shape.is_some()
        };
        let made = node.outputs.iter().flatten().filter(|_| follower.makes);
        let is_whole =
            RANKS.contains(&follower.rank) && follower.images(node).chain(made.copied()).all(is_image);
        is_whole.then_some(follower)
    }

    /// Returns the operands that are images in the node's order, constants included.
    pub fn images(&self, node: &Node) -> impl Iterator<Item = ValueId> {
        self.reads.iter().filter_map(|&i| node.input(i))
    }
}

/// Returns whether an op gives for each element of its operands, broadcast to each other, an element in the same place, though
/// it has no formula.
fn is_like_elementwise(op: &Op) -> bool {
    op.is("Identity") || *op == Op::devbay("FusedElementwise", 1)
}

/// A node with its images in the other order.
pub struct Turn {
    /// The order in which it stands.
    pub stands: Order,
    /// The axes of its images in the other one.
    pub axes: Turned,
    /// Cost of each order, beyond that of the change.
    pub costs: [u64; 2],
    /// True if its results are in its order.
    pub makes: bool,
    node: Node,
    /// What each operand becomes.
    pub operands: Vec<Operand>,
}

/// An operand of a node in the other order.
pub enum Operand {
    /// The image in the node's order.
    Image,
    /// What it was, or nothing.
    Same,
    /// A view of a computed operand.
    View(Vec<usize>),
    /// A constant image of this shape, in the other order.
    Constant(Vec<usize>),
    /// Other numbers: axes, pads, scales.
    Numbers(Tensor),
}

impl Operand {
    /// Returns a constant image of a shape; None for elements that are parts of bytes.
    fn constant(tensor: &Tensor, shape: Vec<usize>) -> Option<Self> {
        tensor.dtype().bits.is_multiple_of(8).then_some(Self::Constant(shape))
    }
}

impl Turn {
    /// Returns what a node becomes if its images have not the order that they have; None if it must stay.
    pub fn of(
        program: &Program,
        node: &Node,
        follower: &Follower,
        stands: Order,
        (kernels, rates): (&KernelTable, &Rates),
    ) -> Option<Self> {
        let axes = Turned::from(stands, follower.rank);
        let operand = |(i, id): (usize, &Option<ValueId>)| {
            let Some(id) = *id else { return Some(Operand::Same) };
            match program.constant(id) {
                _ if !follower.reads.contains(&i) => Some(Operand::Same),
                Some(tensor) => Operand::constant(tensor, tensor.shape().to_vec()),
                None => Some(Operand::Image),
            }
        };
        let operands: Vec<Operand> = node.inputs.iter().enumerate().map(operand).collect::<Option<_>>()?;
        let mut turn =
            Self { stands, axes, costs: [0; 2], makes: follower.makes, node: node.clone(), operands };
        match (&*node.op.domain, &*node.op.name) {
            ("", "Conv") | (DEVBAY_DOMAIN, "FusedConv") => turn.convolution(program, kernels, rates)?,
            ("", "MaxPool") => {
                turn.node.take_attr("storage_order");
                turn.pool("NhwcMaxPool", program, kernels)?;
            }
            ("", "AveragePool") => turn.pool("NhwcAveragePool", program, kernels)?,
            ("", "GlobalAveragePool") => turn.global_pool("ReduceMean", program, kernels)?,
            ("", "GlobalMaxPool") => turn.global_pool("ReduceMax", program, kernels)?,
            ("", "Slice") => turn.slice(program)?,
            ("", "Pad") => turn.pad(program)?,
            ("", "Resize") => turn.resize(program)?,
            ("", name) if REDUCTIONS.contains(&name) => turn.reduction(program, follower)?,
            ("", name) if ALONG_AXIS.iter().any(|(op, _)| *op == name) => turn.along_axis(program)?,
            _ if is_elementwise(&node.op) || is_like_elementwise(&node.op) => {
                turn.elementwise(program, follower)?;
            }
            _ => return None,
        }
        // What reads only constants is folded elsewhere.
        turn.operands.iter().any(|operand| matches!(operand, Operand::Image)).then_some(turn)
    }

    /// Returns the node, with its operands as they were.
    pub fn node(&self) -> Node {
        self.node.clone()
    }

    fn convolution(&mut self, program: &Program, kernels: &KernelTable, rates: &Rates) -> Option<()> {
        let is_f32 = |id: ValueId| program.value(id).ty.as_ref().is_some_and(|ty| ty.dtype == F32);
        if !is_f32(self.node.input(0)?) || program.constant(self.node.input(1)?).is_none() {
            return None;
        }
        self.costs = [costs::of_channels_second(rates, program, &self.node)?, 0];
        self.node.op = Op::devbay("NhwcFusedConv", 1);
        self.has_kernel(program, kernels)
    }

    fn pool(&mut self, op: &str, program: &Program, kernels: &KernelTable) -> Option<()> {
        if self.node.outputs.iter().skip(1).any(Option::is_some) {
            return None;
        }
        self.node.outputs.truncate(1);
        self.node.op = Op::devbay(op, 1);
        self.has_kernel(program, kernels)
    }

    /// Returns Some if a kernel of the device takes the node's own op, of devbay's domain, with images in the other order.
    fn has_kernel(&self, program: &Program, kernels: &KernelTable) -> Option<()> {
        let ty = |id: ValueId| program.value(id).ty.as_ref();
        let typed = |(operand, id): (&Operand, &Option<ValueId>)| match (operand, *id) {
            (_, None) => Some(None),
            (Operand::Image | Operand::Constant(_), Some(id)) => self.axes.ty(ty(id)?).map(Some),
            (_, Some(id)) => ty(id).cloned().map(Some),
        };
        let inputs: Vec<_> = self.operands.iter().zip(&self.node.inputs).map(typed).collect::<Option<_>>()?;
        let inputs: Vec<_> = inputs.iter().map(Option::as_ref).collect();
        let output = self.axes.ty(ty(self.node.output(0)?)?)?;
        let mut all = kernels.find(&self.node.op.domain, &self.node.op.name);
        let takes = all
            .any(|kernel| implements(kernel, &self.node) && kernel.takes(&inputs, &[Some(&output)]).is_ok());
        takes.then_some(())
    }

    /// The mean or the greatest of all pixels is a reduction over the axes between batch and channels.
    fn global_pool(&mut self, op: &str, program: &Program, kernels: &KernelTable) -> Option<()> {
        let ty = |id: Option<ValueId>| self.axes.ty(program.value(id?).ty.as_ref()?);
        let (image, result) = (ty(self.node.input(0))?, ty(self.node.output(0))?);
        let pixels: Vec<i64> = (1..self.axes.perm.len() as i64 - 1).collect();
        let pixels = numbers(&pixels)?;
        if !has_kernel(kernels, op, &[Some(&image), Some(&pixels.tensor_type())], &result) {
            return None;
        }
        self.node.op = Op::of(catalogue::find("", op)?);
        self.set_numbers(1, pixels);
        Some(())
    }

    fn along_axis(&mut self, program: &Program) -> Option<()> {
        let (_, default) = ALONG_AXIS.iter().find(|(op, _)| self.node.op.is(op))?;
        if !has_constant_shape(program, &self.node) {
            return None;
        }
        let axis = position(self.node.int("axis", *default), self.axes.perm.len())?;
        self.node.set_attr("axis", AttrValue::Int(self.axes.axis(axis) as i64));
        Some(())
    }

    fn slice(&mut self, program: &Program) -> Option<()> {
        let starts = program.constant(self.node.input(1)?)?;
        // Axes have the type of the starts.
        if starts.dtype() != I64 || !has_constant_shape(program, &self.node) {
            return None;
        }
        let axes = match self.node.input(3) {
            Some(axes) => ints(program, axes)?,
            None => (0..starts.n_elements() as i64).collect(),
        };
        let axes = numbers(&self.axes.axes(&axes)?)?;
        self.set_numbers(3, axes);
        Some(())
    }

    fn pad(&mut self, program: &Program) -> Option<()> {
        if let Some(axes) = self.node.input(3) {
            let axes = numbers(&self.axes.axes(&ints(program, axes)?)?)?;
            self.set_numbers(3, axes);
            return program.constant(self.node.input(1)?).map(|_| ());
        }
        let pads = ints(program, self.node.input(1)?)?;
        let rank = self.axes.perm.len();
        let (before, after) = (pads.get(..rank)?, pads.get(rank..2 * rank)?);
        let pads = numbers(&[self.axes.of(before), self.axes.of(after)].concat())?;
        self.set_numbers(1, pads);
        Some(())
    }

    fn resize(&mut self, program: &Program) -> Option<()> {
        let is_empty = |id: ValueId| program.constant(id).is_some_and(|tensor| tensor.n_elements() == 0);
        if self.node.input(1).is_some_and(|roi| !is_empty(roi)) || !has_constant_shape(program, &self.node) {
            return None;
        }
        if let Some(axes) = self.node.ints("axes") {
            let axes = self.axes.axes(axes)?;
            self.node.set_attr("axes", AttrValue::Ints(axes));
            return Some(());
        }
        for i in [2, 3] {
            let Some(id) = self.node.input(i).filter(|id| !is_empty(*id)) else { continue };
            let tensor = program.constant(id)?;
            let turned = match tensor.elements::<f32>() {
                Some(scales) if scales.len() == self.axes.perm.len() => {
                    Tensor::from_elements(tensor.shape(), &self.axes.of(scales)).ok()?
                }
                Some(_) => return None,
                None => {
                    let sizes = ints(program, id).filter(|sizes| sizes.len() == self.axes.perm.len())?;
                    numbers(&self.axes.of(&sizes))?
                }
            };
            self.operands[i] = Operand::Numbers(turned);
        }
        Some(())
    }

    /// A reduction takes its axes along. Without them in the result, those that are left must have the same order.
    fn reduction(&mut self, program: &Program, follower: &Follower) -> Option<()> {
        let rank = self.axes.perm.len();
        let listed = match self.node.input(1) {
            Some(axes) => Some(ints(program, axes)?).filter(|axes| !axes.is_empty()),
            None => None,
        };
        let Some(listed) = listed else {
            return (self.node.int("noop_with_empty_axes", 0) == 0).then_some(());
        };
        let mut axes = self.axes.axes(&listed)?;
        axes.sort_unstable();
        if !follower.makes {
            let here: Vec<usize> = listed.iter().map(|&axis| position(axis, rank)).collect::<Option<_>>()?;
            let left = (0..rank).filter(|axis| !here.contains(axis)).map(|axis| self.axes.axis(axis));
            if !left.is_sorted() {
                return None;
            }
        }
        let axes = numbers(&axes)?;
        self.set_numbers(1, axes);
        Some(())
    }

    /// Operands of lower rank are broadcast along the first axes. They follow as views, if they can.
    fn elementwise(&mut self, program: &Program, follower: &Follower) -> Option<()> {
        for (i, operand) in self.operands.iter_mut().enumerate() {
            let Some(id) = self.node.input(i).filter(|_| matches!(operand, Operand::Same)) else { continue };
            let shape = program.value(id).ty.as_ref()?.known_shape()?;
            if n_elements(&shape)? == 1 {
                continue;
            }
            let padded = [vec![1; follower.rank.checked_sub(shape.len())?], shape].concat();
            *operand = match program.constant(id) {
                Some(tensor) => Operand::constant(tensor, padded)?,
                None if self.axes.is_view(&padded) => Operand::View(self.axes.of(&padded)),
                None => return None,
            };
        }
        Some(())
    }

    fn set_numbers(&mut self, i: usize, tensor: Tensor) {
        while self.operands.len() <= i {
            self.operands.push(Operand::Same);
            self.node.inputs.push(None);
        }
        self.operands[i] = Operand::Numbers(tensor);
    }
}

/// Returns the integers of a constant.
fn ints(program: &Program, id: ValueId) -> Option<Vec<i64>> {
    program.constant(id)?.to_ints().ok()?
}

fn numbers(list: &[i64]) -> Option<Tensor> {
    Tensor::from_elements(&[list.len()], list).ok()
}
