//! Networks of images: convolutions with others between them, some with their channels last as TensorFlow has them.

use super::{Choices, FACTORS, Made, Maker, SPECIALS, UNARY};
use devbay_host::internals::core::program::{AttrValue, ValueId};
use devbay_host::internals::core::tensor::F32;

impl Maker {
    /// Two convolutions, and what is done to an image between them. The order of channels is worth a thought.
    pub(super) fn network(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let is_image = |made: &&Made| {
            made.dtype == F32 && (3..=5).contains(&made.shape.len()) && made.n() > 0 && made.most < 20.0
        };
        let images: Vec<&Made> = self.pool.iter().filter(is_image).collect();
        let choice = choices.byte();
        let at = if choice < 128 { images.len() - 1 } else { choice % images.len() };
        let x = images[at].clone();
        let (n_pool, is_last) = (self.pool.len(), choices.of(3) == 0);
        // As it comes, its channels are last.
        let x = if is_last { self.reordered_image(&x, false)? } else { x };
        let mut last = self.convolution(&x, 4 + choices.of(3), choices.of(8))?;
        let mut before = last.clone();
        for _ in 0..1 + choices.of(3) {
            let (kind, choice) = (choices.of(16), choices.byte());
            let done = self.done_to_image(&last, &before, kind, choice);
            before = std::mem::replace(&mut last, done?);
        }
        last = self.convolution(&last, 4, choices.of(8))?;
        if is_last {
            last = self.reordered_image(&last, true)?;
        }
        if choices.of(4) > 0 {
            // Values without further use inside are not seen outside.
            self.pool.truncate(n_pool);
            self.pool.push(last);
        }
        Some(())
    }

    /// A convolution that keeps the other extents, with weights whose sum is at most 1: over all channels, of each by itself, or
    /// in two groups.
    fn convolution(&mut self, x: &Made, n_out: usize, form: usize) -> Option<Made> {
        let (c, rank) = (x.shape[1], x.shape.len() - 2);
        let (groups, n_out) = match form % 4 {
            2 => (c, c),
            3 if c.is_multiple_of(2) => (2, n_out.next_multiple_of(2)),
            _ => (1, n_out),
        };
        let taps = vec![if form < 4 { 1 } else { 3 }; rank];
        let weights = [&[n_out, c / groups][..], &taps].concat();
        let fan_in: usize = weights[1..].iter().product();
        let mut inputs = vec![x.id, self.numbers_and(FACTORS, &weights, form, 0.5 / fan_in as f32)];
        if form % 2 == 1 {
            inputs.push(self.numbers_and(SPECIALS, &[n_out], form, 0.5));
        }
        let pads = AttrValue::Ints(vec![taps[0] as i64 / 2; 2 * rank]);
        let attrs = [("group", AttrValue::Int(groups as i64)), ("pads", pads)];
        let mut shape = x.shape.clone();
        shape[1] = n_out;
        self.add("Conv", &inputs, &attrs, Made { shape, most: x.most + 1.0, ..x.clone() })
    }

    fn reordered_image(&mut self, x: &Made, to_last: bool) -> Option<Made> {
        let mut perm: Vec<usize> = (0..x.shape.len()).collect();
        match to_last {
            true => perm[1..].rotate_left(1),
            false => perm[1..].rotate_right(1),
        }
        let shape = perm.iter().map(|&axis| x.shape[axis]).collect();
        let perm = AttrValue::Ints(perm.iter().map(|&axis| axis as i64).collect());
        self.add("Transpose", &[x.id], &[("perm", perm)], Made { shape, ..x.clone() })
    }

    /// An op that leaves an image, or makes another one.
    fn done_to_image(&mut self, x: &Made, before: &Made, kind: usize, choice: usize) -> Option<Made> {
        let (c, rank) = (x.shape[1], x.shape.len());
        let like = || x.clone();
        let per_channel = [&[c][..], &vec![1; rank - 2]].concat();
        let axis = choice % rank;
        let signed = axis as i64 - (choice / 16 % 2 * rank) as i64;
        match kind {
            0 => self.apply_with(
                ["Add", "Mul", "Max"][choice % 3],
                x,
                &per_channel,
                choice % 4,
                choice.is_multiple_of(2),
            ),
            1 => self.apply_with("Add", x, &x.shape[choice % rank..], choice % 4, false),
            2 if before.shape == x.shape => {
                self.add("Add", &[x.id, before.id], &[], Made { most: x.most + before.most, ..like() })
            }
            3 => {
                let made = Made { most: x.most.max(before.most), ..like() };
                self.joined(&[x.clone(), before.clone()], made, 1)
            }
            4 | 5 if rank < 5 => {
                let op = if kind == 4 { "MaxPool" } else { "AveragePool" };
                let attrs = [
                    ("kernel_shape", AttrValue::Ints(vec![2; rank - 2])),
                    ("pads", AttrValue::Ints([vec![0; rank - 2], vec![1; rank - 2]].concat())),
                ];
                self.add(op, &[x.id], &attrs, like())
            }
            6 => {
                // A gate for each channel, from the mean or the largest of all pixels.
                let mut one = like();
                one.shape[2..].fill(1);
                let op = if choice.is_multiple_of(2) { "GlobalAveragePool" } else { "GlobalMaxPool" };
                let pooled = self.add(op, &[x.id], &[], one)?;
                let narrow = self.convolution(&pooled, c, choice % 3)?;
                let gate = self.apply("Sigmoid", &narrow)?;
                self.add("Mul", &[x.id, gate.id], &[], like())
            }
            7 => {
                let axes: Vec<i64> =
                    if choice.is_multiple_of(2) { (2..rank as i64).collect() } else { vec![signed] };
                let mut one = like();
                axes.iter().for_each(|axis| one.shape[axis.rem_euclid(rank as i64) as usize] = 1);
                let axes = self.list(&axes);
                let op = ["ReduceMean", "ReduceMax"][choice / 2 % 2];
                let mean = self.add(op, &[x.id, axes], &[], one)?;
                self.add("Sub", &[x.id, mean.id], &[], Made { most: x.most + mean.most, ..like() })
            }
            8 => {
                let scales: Vec<f32> = (0..rank).map(|axis| if axis < 2 { 1.0 } else { 2.0 }).collect();
                let scales =
                    self.program.add_constant("", devbay_host::Tensor::from_elements(&[rank], &scales).ok()?);
                let mut wide = like();
                wide.shape[2..].iter_mut().for_each(|extent| *extent *= 2);
                let none = self.list_of_no_floats();
                let smooth = self.dose == 0 && choice % 2 == 1;
                let mode = AttrValue::String(if smooth { "linear" } else { "nearest" }.to_owned());
                self.add("Resize", &[x.id, none, scales], &[("mode", mode)], wide)
            }
            9 => {
                let mut pads = vec![0; 2 * rank];
                (pads[axis], pads[rank + (choice / 4) % rank]) = (1, 1);
                let mut wide = like();
                (0..rank).for_each(|axis| wide.shape[axis] += (pads[axis] + pads[rank + axis]) as usize);
                let pads = self.list(&pads);
                self.add("Pad", &[x.id, pads], &[], wide)
            }
            10 if x.shape[axis] > 1 => {
                let mut part = like();
                part.shape[axis] -= 1;
                let (starts, ends) = (self.list(&[1]), self.list(&[i64::MAX]));
                let axes = self.list(&[signed]);
                self.add("Slice", &[x.id, starts, ends, axes], &[], part)
            }
            11 if c.is_multiple_of(2) => {
                let mut half = like();
                half.shape[1] = c / 2;
                let halves = [self.value(), self.value()];
                let two = [("axis", AttrValue::Int(1)), ("num_outputs", AttrValue::Int(2))];
                let node = self.node("Split", &[x.id], &halves, &two);
                self.program.main.nodes.push(node);
                let [a, b] = halves.map(|id| Made { id, ..half.clone() });
                let a = self.apply(UNARY[choice % 4], &a)?;
                let most = a.most.max(x.most);
                self.joined(&[b, a], Made { most, ..like() }, signed.rem_euclid(rank as i64) as usize)
            }
            12 => self.add(
                "Softmax",
                &[x.id],
                &[("axis", AttrValue::Int(signed))],
                Made { most: 1.0, ..like() },
            ),
            13 => {
                // Channels last, and back again.
                let turned = self.reordered_image(x, true)?;
                let number = choice % 4;
                let done = match choice % 3 {
                    0 => self.apply_with("Mul", &turned, &[c], number, false)?,
                    1 => self.apply("Relu", &turned)?,
                    _ => turned,
                };
                self.reordered_image(&done, false)
            }
            14 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(axis, (axis + 1) % rank);
                let shape = perm.iter().map(|&axis| x.shape[axis]).collect();
                let perm = AttrValue::Ints(perm.iter().map(|&axis| axis as i64).collect());
                self.add("Transpose", &[x.id], &[("perm", perm)], Made { shape, ..like() })
            }
            _ => self.apply(UNARY[choice % UNARY.len()], x),
        }
    }

    /// A Concat; None unless all other extents are equal.
    fn joined(&mut self, parts: &[Made], mut made: Made, axis: usize) -> Option<Made> {
        let others = |made: &Made| {
            made.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, n)| *n).collect()
        };
        let first: Vec<usize> = others(&parts[0]);
        if parts.iter().any(|part| others(part) != first) {
            return None;
        }
        made.shape = parts[0].shape.clone();
        made.shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let ids: Vec<ValueId> = parts.iter().map(|part| part.id).collect();
        self.add("Concat", &ids, &[("axis", AttrValue::Int(axis as i64))], made)
    }

    /// An empty list of f32, which is an absent operand.
    fn list_of_no_floats(&mut self) -> ValueId {
        self.program.add_constant("", devbay_host::Tensor::from_elements::<f32>(&[0], &[]).expect("a tensor"))
    }
}
