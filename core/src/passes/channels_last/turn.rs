//! What nodes are with their images in the other order.

use super::super::search::has_kernel;
use super::super::{has_constant_shape, is_elementwise, position};
use super::axes::Turned;
use super::costs;
use super::follower::{ALONG_AXIS, Follower, REDUCTIONS, VIEWS, is_like_elementwise, keeps_channels};
use super::orders::Order;
use crate::device::rates::Rates;
use crate::kernel::{KernelTable, implements};
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, Program, ValueId, catalogue};
use crate::tensor::{F32, I64, Tensor, n_elements};

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
            ("", "Slice") => turn.slice(program, rates)?,
            ("", "Pad") => turn.pad(program)?,
            ("", "Resize") => turn.resize(program)?,
            ("", "QuantizeLinear" | "DequantizeLinear") => turn.quantization(program)?,
            ("", "ArgMax" | "ArgMin") => turn.place(follower)?,
            ("", name) if VIEWS.contains(&name) => turn.view(program)?,
            ("", name) if REDUCTIONS.contains(&name) => turn.reduction(program, follower)?,
            ("", name) if ALONG_AXIS.iter().any(|(op, _)| *op == name) => turn.along_axis(program, rates)?,
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
        let pixels: Vec<i64> = (1..self.axes.rank() as i64 - 1).collect();
        let pixels = numbers(&pixels)?;
        if !has_kernel(kernels, op, &[Some(&image), Some(&pixels.tensor_type())], &result) {
            return None;
        }
        self.node.op = Op::of(catalogue::find("", op)?);
        self.set_numbers(1, pixels);
        Some(())
    }

    fn along_axis(&mut self, program: &Program, rates: &Rates) -> Option<()> {
        let (_, default) = ALONG_AXIS.iter().find(|(op, _)| self.node.op.is(op))?;
        if !has_constant_shape(program, &self.node) {
            return None;
        }
        let axis = position(self.node.int("axis", *default), self.axes.rank())?;
        match &*self.node.op.name {
            "Concat" => self.parts(program, rates, self.node.output(0)?, axis)?,
            "Split" => self.parts(program, rates, self.node.input(0)?, axis)?,
            _ => {}
        }
        self.node.set_attr("axis", AttrValue::Int(self.axes.axis(axis) as i64));
        Some(())
    }

    /// Sets the costs of parts of an image along an axis.
    fn parts(&mut self, program: &Program, rates: &Rates, whole: ValueId, axis: usize) -> Option<()> {
        let ty = program.value(whole).ty.as_ref()?;
        let extents = ty.known_shape()?;
        self.costs[self.stands as usize] = costs::of_parts(rates, ty, &extents, axis);
        self.costs[self.stands.other() as usize] =
            costs::of_parts(rates, ty, &self.axes.of(&extents), self.axes.axis(axis));
        Some(())
    }

    fn slice(&mut self, program: &Program, rates: &Rates) -> Option<()> {
        let starts = program.constant(self.node.input(1)?)?;
        // Axes have the type of the starts.
        if starts.dtype() != I64 || !has_constant_shape(program, &self.node) {
            return None;
        }
        let axes = match self.node.input(3) {
            Some(axes) => ints(program, axes)?,
            None => (0..starts.n_elements() as i64).collect(),
        };
        // Along several axes, elements are copied in both orders.
        if let [axis] = axes[..] {
            let axis = position(axis, self.axes.rank())?;
            self.parts(program, rates, self.node.output(0)?, axis)?;
        }
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
        let rank = self.axes.rank();
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
                Some(scales) if scales.len() == self.axes.rank() => {
                    Tensor::from_elements(tensor.shape(), &self.axes.of(scales)).ok()?
                }
                Some(_) => return None,
                None => {
                    let sizes = ints(program, id).filter(|sizes| sizes.len() == self.axes.rank())?;
                    numbers(&self.axes.of(&sizes))?
                }
            };
            self.operands[i] = Operand::Numbers(turned);
        }
        Some(())
    }

    /// A reduction takes its axes along. Without them in the result, those that are left must have the same order.
    fn reduction(&mut self, program: &Program, follower: &Follower) -> Option<()> {
        let rank = self.axes.rank();
        let listed = match self.node.input(1) {
            Some(axes) => Some(ints(program, axes)?).filter(|axes| !axes.is_empty()),
            None => None,
        };
        let Some(listed) = listed else {
            return (self.node.int("noop_with_empty_axes", 0) == 0).then_some(());
        };
        let mut axes = self.axes.axes(&listed)?;
        axes.sort_unstable();
        let gone: Vec<usize> = listed.iter().map(|&axis| position(axis, rank)).collect::<Option<_>>()?;
        if !follower.makes && !self.leaves_in_order(&gone) {
            return None;
        }
        let axes = numbers(&axes)?;
        self.set_numbers(1, axes);
        Some(())
    }

    /// Returns whether the axes that are left without some have the same order among each other in both orders.
    fn leaves_in_order(&self, gone: &[usize]) -> bool {
        let left = (0..self.axes.rank()).filter(|axis| !gone.contains(axis));
        left.map(|axis| self.axes.axis(axis)).is_sorted()
    }

    /// The place of the greatest or the least element along an axis.
    fn place(&mut self, follower: &Follower) -> Option<()> {
        let axis = position(self.node.int("axis", 0), self.axes.rank())?;
        if !follower.makes && !self.leaves_in_order(&[axis]) {
            return None;
        }
        self.node.set_attr("axis", AttrValue::Int(self.axes.axis(axis) as i64));
        Some(())
    }

    /// A scale is one number for all, or one for each position along an axis.
    fn quantization(&mut self, program: &Program) -> Option<()> {
        let scale = program.value(self.node.input(1)?).ty.as_ref()?.known_shape()?;
        if self.node.int("block_size", 0) != 0 || scale.len() > 1 {
            return None;
        }
        if n_elements(&scale)? != 1 {
            let axis = position(self.node.int("axis", 1), self.axes.rank())?;
            self.node.set_attr("axis", AttrValue::Int(self.axes.axis(axis) as i64));
        }
        Some(())
    }

    /// The axes between batch and channels are put together or apart.
    fn view(&mut self, program: &Program) -> Option<()> {
        let shape = |id: ValueId| program.value(id).ty.as_ref()?.known_shape();
        let (from, to) = (shape(self.node.input(0)?)?, shape(self.node.output(0)?)?);
        if !has_constant_shape(program, &self.node) || !keeps_channels(self.stands, &from, &to) {
            return None;
        }
        let extents: Vec<i64> = to.iter().map(|&extent| extent as i64).collect();
        let extents = Turned::from(self.stands, to.len()).of(&extents);
        self.node.op = Op::of(catalogue::find("", "Reshape")?);
        self.node.attrs.clear();
        self.set_numbers(1, numbers(&extents)?);
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
