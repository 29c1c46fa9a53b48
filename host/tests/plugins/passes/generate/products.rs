//! Convolutions and products with constant weights, and what is done to each of their channels.

use super::{BINARY, Choices, FACTORS, Made, Maker, ONNX_F32, ONNX_I8, SPECIALS, amount};
use devbay_host::Tensor;
use devbay_host::internals::core::program::{AttrValue, ValueId};
use devbay_host::internals::core::tensor::{F32, I8, I32, I64};

impl Maker {
    /// A convolution or a product with constant weights, whose sum is at most 1, with scales behind it or without.
    pub(super) fn product(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let mut last = self.plain_product(&x, choices)?;
        if choices.of(4) == 3 {
            let other = self.pick_fitting(&last, choices);
            last = self.of_two("Add", &last, &other)?;
            self.pool.remove(self.pool.len() - 2);
        }
        for _ in 0..choices.of(3) {
            let number = choices.of(4);
            let op = BINARY[number];
            let channels: Vec<usize> = match last.shape.as_slice() {
                [_, c, taps @ ..] if !taps.is_empty() => [&[*c][..], &vec![1; taps.len()]].concat(),
                shape => shape.last().copied().into_iter().collect(),
            };
            let shape = if choices.of(3) == 0 { vec![] } else { channels };
            last = self.apply_with(op, &last, &shape, number, number == 2 && shape.is_empty())?;
            // A value without further use inside is not seen outside.
            self.pool.remove(self.pool.len() - 2);
        }
        Some(())
    }

    fn plain_product(&mut self, x: &Made, choices: &mut Choices<'_>) -> Option<Made> {
        let (form, number, n_out, has_bias) =
            (choices.of(4), choices.of(3), 2 + choices.of(3), choices.of(2));
        let int = AttrValue::Int;
        let mut shape = x.shape.clone();
        let (op, weights, fan_in, attrs) = match (x.shape.as_slice(), form) {
            ([] | [0, ..], _) => return None,
            ([_, c, taps @ ..], 0 | 1) if !taps.is_empty() && taps.iter().all(|&extent| extent >= 1) => {
                let mut pads = vec![0; 2 * taps.len()];
                pads[0] = form as i64;
                let taps = vec![1 + form; taps.len()];
                if x.shape[2..].iter().skip(1).any(|&extent| extent < taps[0]) {
                    return None;
                }
                for (i, extent) in shape[2..].iter_mut().enumerate() {
                    *extent = *extent + usize::from(i == 0) * form + 1 - taps[0];
                }
                let depthwise = number == 2;
                shape[1] = if depthwise { *c } else { n_out };
                let per_group = if depthwise { 1 } else { *c };
                let weights = [&[shape[1], per_group][..], &taps].concat();
                let fan_in = per_group * taps.iter().product::<usize>();
                let groups = if depthwise { *c as i64 } else { 1 };
                ("Conv", weights, fan_in, vec![("pads", AttrValue::Ints(pads)), ("group", int(groups))])
            }
            ([_, c, taps @ ..], 2) if !taps.is_empty() => {
                shape[1] = n_out;
                let weights = [&[*c, n_out][..], &vec![1; taps.len()]].concat();
                ("ConvTranspose", weights, *c, vec![])
            }
            ([_, c], 0 | 1) => {
                shape[1] = n_out;
                let weights = if form == 0 { vec![*c, n_out] } else { vec![n_out, *c] };
                let alpha = ("alpha", AttrValue::Float(0.5));
                let beta = ("beta", AttrValue::Float(if number == 1 { 2.0 } else { 1.0 }));
                ("Gemm", weights, *c, vec![("transB", int(form as i64)), alpha, beta])
            }
            ([.., c], _) => {
                *shape.last_mut()? = n_out;
                ("MatMul", vec![*c, n_out], *c, vec![])
            }
        };
        let mut inputs = vec![x.id, self.numbers_and(FACTORS, &weights, number, 0.5 / fan_in as f32)];
        if has_bias == 1 && op != "MatMul" {
            inputs.push(self.numbers_and(SPECIALS, &[shape[1]], number + 1, 0.5));
        }
        let most = x.most + 2.0;
        self.add(op, &inputs, &attrs, Made { shape, most, ..x.clone() })
    }

    /// A product of integers of 8 bits, and its scale.
    pub(super) fn int_product(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let fits = |made: &&Made| {
            made.dtype == I64 && made.most <= 127.0 && made.shape.last().is_some_and(|&n| n > 0)
        };
        let x = self.pool.iter().filter(fits).nth(choices.of(4))?.clone();
        let n_pool = self.pool.len();
        let (n, n_out, number) = (*x.shape.last()?, 2 + choices.of(3), choices.of(3));
        let a =
            self.add("Cast", &[x.id], &[("to", AttrValue::Int(ONNX_I8))], Made { dtype: I8, ..x.clone() })?;
        let weights: Vec<i8> = (0..n * n_out).map(|i| (i * 5 % 17) as i8 - 8).collect();
        let weights = Tensor::from_elements(&[n, n_out], &weights).expect("a tensor");
        let weights = self.program.add_constant("", weights);
        let mut made = Made { dtype: I32, most: 1.0, ..x.clone() };
        *made.shape.last_mut()? = n_out;
        let sum = self.add("MatMulInteger", &[a.id, weights], &[], made.clone())?;
        let made = Made { dtype: F32, ..made };
        let sum = self.add("Cast", &[sum.id], &[("to", AttrValue::Int(ONNX_F32))], made.clone())?;
        let extents = if choices.of(2) == 0 { vec![] } else { vec![n_out] };
        let scale = self.numbers_and(SPECIALS, &extents, number, 0.5 / (8.0 * n as f32 * x.most.max(1.0)));
        let factors = if choices.of(2) == 0 { [sum.id, scale] } else { [scale, sum.id] };
        let last = self.add("Mul", &factors, &[], Made { most: 2.0, ..made });
        // Values without further use inside are not seen outside.
        self.pool.truncate(n_pool);
        self.pool.push(last?);
        Some(())
    }

    /// A product by quantised weights, or a Gather of their rows: with scales for all, for columns or rows, or for blocks.
    pub(super) fn quantised_weights(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let n_pool = self.pool.len();
        let (form, number, is_gather) = (choices.of(5), choices.of(3), choices.of(3) == 2);
        // More than may decide over shapes, so that they are not folded for those.
        let (k, n) = if is_gather { (5, 60) } else { (*x.shape.last().filter(|&&k| k > 0)?, 260) };
        let is_turned = !is_gather && choices.of(2) == 1;
        let shape = |rows: usize| if is_turned { vec![n, rows] } else { vec![rows, n] };
        let numbers: Vec<i8> = (0..k * n).map(|i| (i * 5 % 17) as i8 - 8).collect();
        let weights = Tensor::from_elements(&shape(k), &numbers).expect("a tensor");
        let weights = self.program.add_constant("", weights);
        // Weights are 16 at most with their zero points.
        let size = 0.5 / (16.0 * k as f32);
        let mut wide = Made { shape: shape(k), most: 1.0, ..x.clone() };
        let terms = i64::from(is_turned);
        wide = if form == 0 {
            let zero = self.number(-2.0);
            let scale = self.numbers_and(FACTORS, &[], number, size);
            wide = self.widened_by("Cast", &[weights], &[("to", AttrValue::Int(ONNX_F32))], wide)?;
            wide = self.widened_by("Sub", &[wide.id, zero], &[], wide)?;
            self.widened_by("Mul", &[scale, wide.id], &[], wide)?
        } else {
            let (extents, attrs) = match form {
                1 => (vec![], vec![]),
                2 => (vec![n], vec![("axis", AttrValue::Int(1 - terms))]),
                // Of a product they are for terms, which stay as they are.
                3 => (vec![k], vec![("axis", AttrValue::Int(terms))]),
                _ if is_gather => (
                    vec![k, n.div_ceil(16)],
                    vec![("axis", AttrValue::Int(1)), ("block_size", AttrValue::Int(16))],
                ),
                _ => (
                    shape(k.div_ceil(2)),
                    vec![("axis", AttrValue::Int(terms)), ("block_size", AttrValue::Int(2))],
                ),
            };
            let scale = self.numbers_and(FACTORS, &extents, number, size);
            let n_zeros: usize = extents.iter().product();
            let zeros: Vec<i8> = (0..n_zeros).map(|i| (i % 5) as i8 - 2).collect();
            let zeros = Tensor::from_elements(&extents, &zeros).expect("a tensor");
            let zeros = self.program.add_constant("", zeros);
            let inputs = if choices.of(2) == 0 { vec![weights, scale] } else { vec![weights, scale, zeros] };
            self.widened_by("DequantizeLinear", &inputs, &attrs, wide)?
        };
        if is_gather {
            let rows = self.list(&[3, -1, 0]);
            let made = Made { shape: vec![3, n], ..wide.clone() };
            return self.add("Gather", &[wide.id, rows], &[], made).map(drop);
        }
        if is_turned {
            let perm = [("perm", AttrValue::Ints(vec![1, 0]))];
            wide = self.widened_by("Transpose", &[wide.id], &perm, Made { shape: vec![k, n], ..wide })?;
        }
        let mut made = Made { most: x.most + 2.0, ..x.clone() };
        *made.shape.last_mut()? = n;
        let product = self.add("MatMul", &[x.id, wide.id], &[], made)?;
        let axes = self.list(&[-1]);
        let mut made = product.clone();
        *made.shape.last_mut()? = 1;
        let last = self.add("ReduceMean", &[product.id, axes], &[], made);
        // Values without further use inside are not seen outside.
        self.pool.truncate(n_pool);
        self.pool.push(last?);
        Some(())
    }

    /// A node between weights and their product, whose result no other step uses.
    fn widened_by(
        &mut self,
        op: &str,
        inputs: &[ValueId],
        attrs: &[(&str, AttrValue)],
        made: Made,
    ) -> Option<Made> {
        let made = self.add(op, inputs, attrs, made)?;
        self.pool.pop();
        Some(made)
    }

    /// A transposed convolution of any step, window, padding and groups.
    pub(super) fn conv_transpose(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let [n, c, image @ ..] = &x.shape[..] else { return None };
        if image.is_empty() || image.len() > 3 || x.n() == 0 {
            return None;
        }
        let (number, n_out) = (choices.of(3), 1 + choices.of(3));
        let groups = if c % 2 == 0 && choices.of(3) == 0 { 2 } else { 1 };
        let (mut shape, mut kernel) = (vec![*n, groups * n_out], Vec::new());
        let (mut strides, mut more) = (Vec::new(), Vec::new());
        let mut pads = [vec![], vec![]];
        for &extent in image {
            let (stride, taps) = (1 + choices.of(3), 1 + choices.of(4));
            let behind = choices.of(stride);
            let of = [choices.of(taps), choices.of(taps)];
            let whole = (extent - 1) * stride + taps + behind;
            shape.push(whole.checked_sub(of[0] + of[1]).filter(|&extent| extent > 0)?);
            kernel.push(taps);
            strides.push(stride as i64);
            more.push(behind as i64);
            pads.iter_mut().zip(of).for_each(|(pads, pad)| pads.push(pad as i64));
        }
        let weights = [&[*c, n_out][..], &kernel].concat();
        let fan_in = c / groups * kernel.iter().product::<usize>();
        let mut inputs = vec![x.id, self.numbers_and(FACTORS, &weights, number, 0.5 / fan_in as f32)];
        if choices.of(2) == 0 {
            inputs.push(self.numbers_and(SPECIALS, &[groups * n_out], number + 1, 0.5));
        }
        let attrs = [
            ("strides", AttrValue::Ints(strides)),
            ("pads", AttrValue::Ints(pads.concat())),
            ("output_padding", AttrValue::Ints(more)),
            ("group", AttrValue::Int(groups as i64)),
        ];
        let most = x.most + 2.0;
        self.add("ConvTranspose", &inputs, &attrs, Made { shape, most, ..x }).map(drop)
    }

    /// A sum over one name of a value and of constant weights, whose other name is anywhere in the result.
    pub(super) fn einsum(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let rank = x.shape.len();
        if !(1..=4).contains(&rank) {
            return None;
        }
        let (number, n_out) = (choices.of(3), 2 + choices.of(3));
        let (summed, is_first, place) = (choices.of(rank), choices.of(2) == 0, choices.of(rank));
        let mut names: Vec<char> = ('a'..'e').take(rank).collect();
        let term: String = names.iter().collect();
        let (name, n) = (names.remove(summed), x.shape[summed]);
        let mut shape = x.shape.clone();
        shape.remove(summed);
        names.insert(place, 'z');
        shape.insert(place, n_out);
        let (weights, extents) = match is_first {
            true => (format!("{name}z"), [n, n_out]),
            false => (format!("z{name}"), [n_out, n]),
        };
        let equation = format!("{term},{weights}->{}", names.iter().collect::<String>());
        let weights = self.numbers_and(FACTORS, &extents, number, 0.5 / n.max(1) as f32);
        let attrs = [("equation", AttrValue::String(equation))];
        let most = x.most + 2.0;
        self.add("Einsum", &[x.id, weights], &attrs, Made { shape, most, ..x }).map(drop)
    }

    /// A convolution of an image with numbers around it, zeros or others.
    pub(super) fn padded(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let images: Vec<&Made> =
            self.pool.iter().filter(|made| made.dtype == F32 && made.shape.len() > 2).collect();
        let x = images[choices.of(images.len())].clone();
        let rank = x.shape.len();
        let (mut shape, mut pads) = (x.shape.clone(), vec![0; 2 * rank]);
        for axis in 2..rank {
            (pads[axis], pads[rank + axis]) = (choices.of(3) as i64, choices.of(2) as i64);
            shape[axis] += (pads[axis] + pads[rank + axis]) as usize;
        }
        let value = if choices.of(4) == 0 { 0.5 } else { 0.0 };
        let (pads, value) = (self.list(&pads), self.number(value));
        let wide = self.add("Pad", &[x.id, pads, value], &[], Made { shape, ..x })?;
        self.plain_product(&wide, choices)?;
        if choices.of(3) > 0 {
            // A value without further use inside is not seen outside.
            self.pool.retain(|made| made.id != wide.id);
        }
        Some(())
    }

    /// A BatchNormalization, of the result of a product or of another value.
    pub(super) fn normalisation(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let mut x = self.pick(choices);
        if choices.of(4) > 0 {
            x = self.plain_product(&x, choices)?;
            self.pool.pop();
        }
        let channels = *x.shape.get(1)?;
        let lists: Vec<ValueId> = (0..3).map(|i| self.numbers(&[channels], i + choices.of(2), 0.5)).collect();
        let variance: Vec<f32> = (0..channels).map(|c| 1.0 + c as f32 / 4.0).collect();
        let variance = Tensor::from_elements(&[channels], &variance).expect("a tensor");
        let variance = self.program.add_constant("", variance);
        let most = x.most + 3.0;
        let inputs = [x.id, lists[0], lists[1], lists[2], variance];
        self.add("BatchNormalization", &inputs, &[], Made { most, ..x }).map(drop)
    }

    /// Two products with weights of the same bytes, or of nearly the same, which are large enough to be shared.
    pub(super) fn twins(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let c = *x.shape.last()?;
        let n_out = 256usize.div_ceil(c.max(1));
        let mut made = Made { most: x.most * 2.0, ..x.clone() };
        *made.shape.last_mut()? = n_out;
        let mut sides = Vec::new();
        for n_off in [0, choices.of(2)] {
            let mut numbers: Vec<f32> = (0..c * n_out).map(|i| amount(i, 1) / c.max(1) as f32).collect();
            numbers.iter_mut().take(n_off).for_each(|number| *number = -*number);
            let weights = Tensor::from_elements(&[c, n_out], &numbers).expect("a tensor");
            let weights = self.program.add_constant("", weights);
            sides.push(self.add("MatMul", &[x.id, weights], &[], made.clone())?);
        }
        let other = self.apply("Tanh", &sides[1])?;
        let most = sides[0].most + 1.0;
        let sum = self.add("Add", &[sides[0].id, other.id], &[], Made { most, ..made })?;
        let axes = self.list(&[-1]);
        let mut made = sum.clone();
        *made.shape.last_mut()? = 1;
        self.add("ReduceMean", &[sum.id, axes], &[], made).map(drop)
    }
}
