//! Ops that change the shape, or nothing, or take parts of values and put them together.

use super::{BINARY, Choices, Made, Maker, ONNX_F32, UNARY, most_of};
use devbay_host::Tensor;
use devbay_host::internals::core::program::{AttrValue, ValueId};
use devbay_host::internals::core::tensor::{F32, F64};

impl Maker {
    /// The same elements in another shape.
    pub(super) fn view(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = choices.of(x.shape.len() + 1);
        let mut made = x.clone();
        match choices.of(5) {
            0 => {
                made.shape = vec![x.n()];
                let extents = self.list(&[-1]);
                self.add("Reshape", &[x.id, extents], &[], made)
            }
            1 => {
                let leading: usize = x.shape[..axis].iter().product();
                made.shape = vec![leading, x.n() / leading.max(1)];
                self.add("Flatten", &[x.id], &[("axis", AttrValue::Int(axis as i64))], made)
            }
            2 => {
                made.shape.insert(axis, 1);
                let axes = self.list(&[axis as i64]);
                self.add("Unsqueeze", &[x.id, axes], &[], made)
            }
            3 => {
                let axis = x.shape.iter().position(|&extent| extent == 1)?;
                made.shape.remove(axis);
                let axes = self.list(&[axis as i64]);
                self.add("Squeeze", &[x.id, axes], &[], made)
            }
            _ => self.add("Identity", &[x.id], &[], made),
        }
        .map(drop)
    }

    pub(super) fn transposition(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let rank = x.shape.len();
        let (i, j) = (choices.of(rank.max(1)), choices.of(rank.max(1)));
        let mut perm: Vec<i64> = (0..rank as i64).collect();
        if rank > 1 {
            perm.swap(i, j);
        }
        let shape = perm.iter().map(|&axis| x.shape[axis as usize]).collect();
        self.add("Transpose", &[x.id], &[("perm", AttrValue::Ints(perm))], Made { shape, ..x }).map(drop)
    }

    /// Adds ops between transpositions: they work on values with reordered axes, and the order is restored behind them
    /// or not.
    pub(super) fn reordered(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let (rank, n_pool) = (x.shape.len(), self.pool.len());
        if rank < 2 {
            return None;
        }
        let by = 1 + choices.of(rank - 1);
        let perm: Vec<usize> = (0..rank).map(|i| (i + by) % rank).collect();
        let back: Vec<usize> = (0..rank).map(|i| (i + rank - by) % rank).collect();
        let transposed = |maker: &mut Self, x: &Made, perm: &[usize]| {
            let shape = perm.iter().map(|&axis| x.shape[axis]).collect();
            let axes = AttrValue::Ints(perm.iter().map(|&axis| axis as i64).collect());
            maker.add("Transpose", &[x.id], &[("perm", axes)], Made { shape, ..x.clone() })
        };
        let mut last = transposed(self, &x, &perm)?;
        for _ in 0..1 + choices.of(3) {
            let (form, number) = (choices.of(6), choices.of(4));
            let is_whole = last.n() == x.n();
            last = match form {
                0 if is_whole => {
                    let other = self.pick_like(&x, choices);
                    let other = transposed(self, &other, &perm)?;
                    self.of_two("Add", &last, &other)?
                }
                1 => {
                    let gate = self.apply("Sigmoid", &last)?;
                    self.of_two("Mul", &last, &gate)?
                }
                2 => self.apply_with("Mul", &last, &[*last.shape.last()?], number, number == 1)?,
                3 => self.apply_with("Add", &last, &[], number, number == 1)?,
                4 if is_whole => {
                    let other = self.pick_like(&x, choices);
                    let other = transposed(self, &other, &perm)?;
                    let mut shape = last.shape.clone();
                    let axis = number % rank;
                    shape[axis] += other.shape[axis];
                    let made = Made { shape, most: last.most.max(other.most), ..last.clone() };
                    self.add("Concat", &[last.id, other.id], &[("axis", AttrValue::Int(axis as i64))], made)?
                }
                _ => self.apply(UNARY[number], &last)?,
            };
        }
        last = match choices.of(4) {
            0 => last,
            1 => {
                let (axis, keeps) = (choices.of(rank), choices.of(2));
                let axes = self.list(&[axis as i64]);
                let mut made = last.clone();
                match keeps {
                    0 => drop(made.shape.remove(axis)),
                    _ => made.shape[axis] = 1,
                }
                self.add("ReduceMean", &[last.id, axes], &[("keepdims", AttrValue::Int(keeps as i64))], made)?
            }
            _ => transposed(self, &last, &back)?,
        };
        if choices.of(4) > 0 {
            // Values without further use inside are not seen outside.
            self.pool.truncate(n_pool);
            self.pool.push(last);
        }
        Some(())
    }

    /// Ops on f64 between casts.
    pub(super) fn widened(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let (x, n_pool) = (self.pick(choices), self.pool.len());
        let cast = |maker: &mut Self, x: &Made, dtype, to| {
            maker.add("Cast", &[x.id], &[("to", AttrValue::Int(to))], Made { dtype, ..x.clone() })
        };
        let wide = cast(self, &x, F64, 11)?;
        let mut last = wide.clone();
        for _ in 0..1 + choices.of(3) {
            last = match choices.of(4) {
                0 => {
                    let number = 0.5 + choices.of(4) as f64;
                    let number = self.program.add_constant("", Tensor::from_elements(&[], &[number]).ok()?);
                    let made = Made { most: last.most + 4.0, ..last.clone() };
                    self.add("Add", &[last.id, number], &[], made)?
                }
                1 if last.shape == wide.shape => {
                    let made = Made { most: last.most + wide.most, ..last.clone() };
                    self.add("Add", &[last.id, wide.id], &[], made)?
                }
                2 => {
                    let shape = vec![last.n()];
                    let extents = self.list(&[last.n() as i64]);
                    self.add("Reshape", &[last.id, extents], &[], Made { shape, ..last.clone() })?
                }
                _ => {
                    let op = choices.one_of(&["Relu", "Sigmoid", "Tanh", "Abs"]);
                    let most = most_of(op, last.most);
                    self.add(op, &[last.id], &[], Made { most, ..last.clone() })?
                }
            };
        }
        let narrow = cast(self, &last, F32, ONNX_F32)?;
        // Other kinds look for f32 alone.
        self.pool.truncate(n_pool);
        self.pool.push(narrow);
        Some(())
    }

    /// Ops that give what they get.
    pub(super) fn neutral(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let rank = x.shape.len();
        let mut made = x.clone();
        match choices.of(10) {
            0 => {
                let zero = self.number(0.0);
                self.add("Add", &[zero, x.id], &[], made)
            }
            1 => {
                let one = self.number(1.0);
                self.add("Mul", &[x.id, one], &[], made)
            }
            2 => self.add("Cast", &[x.id], &[("to", AttrValue::Int(ONNX_F32))], made),
            3 => {
                let (starts, ends) = (self.list(&vec![0; rank]), self.list(&vec![i64::MAX; rank]));
                self.add("Slice", &[x.id, starts, ends], &[], made)
            }
            4 if rank > 0 => self.add("Concat", &[x.id], &[("axis", AttrValue::Int(0))], made),
            5 => {
                let pads = self.list(&vec![0; 2 * rank]);
                self.add("Pad", &[x.id, pads], &[], made)
            }
            6 => {
                let times = self.list(&vec![1; rank]);
                self.add("Tile", &[x.id, times], &[], made)
            }
            7 => {
                let extents: Vec<i64> = x.shape.iter().map(|&extent| extent as i64).collect();
                let extents = self.list(&extents);
                self.add("Expand", &[x.id, extents], &[], made)
            }
            8 => {
                let once = self.apply("Neg", &x)?;
                self.apply("Neg", &once)
            }
            _ => {
                let axis = x.shape.iter().position(|&extent| extent == 1)?;
                let axes = self.list(&[axis as i64]);
                made.shape[axis] = 1;
                self.add("ReduceSum", &[x.id, axes], &[], made)
            }
        }
        .map(drop)
    }

    /// The same done to values of one shape, which are then put together.
    pub(super) fn concat(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let first = self.pick(choices);
        let axis = choices.of(first.shape.len().max(1));
        let extent = *first.shape.get(axis)?;
        let (form, op) = (choices.of(6), choices.byte());
        let mut parts = Vec::new();
        let n_pool = self.pool.len();
        for i in 0..2 + choices.of(3) {
            let mut part = if i == 0 { first.clone() } else { self.pick_like(&first, choices) };
            let mut along = vec![1; first.shape.len()];
            along[axis] = extent;
            let binary = BINARY[op % BINARY.len()];
            part = match form {
                0 | 1 => self.apply_with(binary, &part, &[], i, form == 1 && binary != "Div")?,
                2 => self.apply_with(binary, &part, &along, i, false)?,
                3 => part,
                _ => self.apply(UNARY[op % UNARY.len()], &part)?,
            };
            if form == 5 {
                part = self.apply_with("Sub", &part, &[1], i, false)?;
            }
            parts.push(part);
        }
        let mut shape = first.shape.clone();
        shape[axis] *= parts.len();
        let most = parts.iter().fold(0.0, |most: f32, part| most.max(part.most));
        let ids: Vec<ValueId> = parts.iter().map(|part| part.id).collect();
        if op % 8 != 7 {
            // Otherwise others may use the parts too.
            self.pool.truncate(n_pool);
        }
        // The axis is also counted from the back.
        let axis = axis as i64 - (op % 2 * first.shape.len()) as i64;
        self.add("Concat", &ids, &[("axis", AttrValue::Int(axis))], Made { shape, most, ..first }).map(drop)
    }

    /// A part of a value, or two of them.
    pub(super) fn piece(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = x.shape.iter().position(|&extent| extent >= 2)?;
        let extent = x.shape[axis];
        let mut made = x.clone();
        if choices.of(2) == 0 {
            made.shape[axis] = extent - 1;
            let start = choices.of(2) as i64;
            let (starts, ends) = (self.list(&[start]), self.list(&[start + extent as i64 - 1]));
            let axes = self.list(&[axis as i64]);
            return self.add("Slice", &[x.id, starts, ends, axes], &[], made).map(drop);
        }
        let sizes = [1, extent - 1];
        let list = self.list(&sizes.map(|size| size as i64));
        let parts: Vec<Made> = sizes
            .iter()
            .map(|&size| {
                let mut part = Made { id: self.value(), ..x.clone() };
                part.shape[axis] = size;
                part
            })
            .collect();
        let ids: Vec<ValueId> = parts.iter().map(|part| part.id).collect();
        let node = self.node("Split", &[x.id, list], &ids, &[("axis", AttrValue::Int(axis as i64))]);
        self.repeatable.push((node.clone(), parts.clone()));
        self.program.main.nodes.push(node);
        self.pool.extend(parts);
        Some(())
    }

    pub(super) fn reduction(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let axis = choices.of(x.shape.len().max(1));
        let op = choices.one_of(&["ReduceMean", "ReduceMax", "ReduceMin"]);
        let keeps = choices.of(2);
        let mut made = x.clone();
        match keeps {
            0 => drop((x.shape.len() > axis).then(|| made.shape.remove(axis))?),
            _ => *made.shape.get_mut(axis)? = 1,
        }
        let axes = self.list(&[axis as i64]);
        self.add(op, &[x.id, axes], &[("keepdims", AttrValue::Int(keeps as i64))], made).map(drop)
    }
}
