//! Ops between DequantizeLinear and QuantizeLinear, as a quantiser writes them.
//!
//! Scales are powers of two and sums are small, so that f32 rounds nothing: sums of integers are the same numbers, and no
//! byte lies between two steps.

use super::{Choices, Made, Maker, ONNX_I8, SPECIALS};
use devbay_host::Tensor;
use devbay_host::internals::core::program::{AttrValue, ValueId};
use devbay_host::internals::core::tensor::{F32, I8, I32, I64};

/// Scale of operands, and of results: 255 steps of it are not too large.
const STEP: f32 = 0.0625;

impl Maker {
    /// Bytes that are dequantised, one or two ops on them, and their quantised result.
    pub(super) fn quantised(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let fits = |made: &&Made| made.dtype == I64 && made.most <= 127.0 && made.n() > 0 && made.n() <= 64;
        let x = self.pool.iter().filter(fits).nth(choices.of(3))?.clone();
        let n_pool = self.pool.len();
        let found = self.quantised_ops(&x, choices);
        // Values without further use inside are not seen outside.
        self.pool.truncate(n_pool);
        self.pool.push(found?);
        Some(())
    }

    fn quantised_ops(&mut self, x: &Made, choices: &mut Choices<'_>) -> Option<Made> {
        let n = x.n();
        let columns = if n.is_multiple_of(2) { 2 } else { 1 };
        let bytes = Made { dtype: I8, ..x.clone() };
        let bytes = self.add("Cast", &[x.id], &[("to", AttrValue::Int(ONNX_I8))], bytes)?;
        let kind = choices.of(8);
        let shape = match kind {
            0..=2 => vec![1, columns, n / columns],
            _ => vec![n / columns, columns],
        };
        let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let extents = self.list(&extents);
        let bytes = self.add("Reshape", &[bytes.id, extents], &[], Made { shape, ..bytes })?;
        let zero = choices.one_of(&[0, -3]);
        // A scale that is no usual number now and then.
        let is_special = self.dose > 0 && choices.of(6) == 0;
        let scale = if is_special { choices.one_of(SPECIALS) } else { STEP };
        let value = self.dequantise(&bytes, &[scale], &[zero], None)?;
        let last = match kind {
            0..=4 => self.quantised_product(&value, kind, choices)?,
            _ => self.quantised_move(&value, choices)?,
        };
        let last = match choices.of(4) {
            0 => self.apply("Relu", &last)?,
            1 => self.apply("Clip", &last)?,
            _ => last,
        };
        // Only a move has the same scale and zero point again.
        let zero = if kind > 4 { zero } else { choices.one_of(&[zero, -128]) };
        let bytes = self.quantise(&last, STEP, zero)?;
        self.dequantise(&bytes, &[STEP], &[zero], None)
    }

    fn dequantise(&mut self, x: &Made, scales: &[f32], zeros: &[i8], axis: Option<i64>) -> Option<Made> {
        let shape = if scales.len() == 1 { vec![] } else { vec![scales.len()] };
        let scale = self.program.add_constant("", Tensor::from_elements(&shape, scales).expect("a tensor"));
        let mut inputs = vec![x.id, scale];
        if x.dtype == I8 {
            let zeros: Vec<i8> = (0..scales.len()).map(|i| zeros[i % zeros.len()]).collect();
            let zeros = Tensor::from_elements(&shape, &zeros).expect("a tensor");
            inputs.push(self.program.add_constant("", zeros));
        }
        let attrs: Vec<_> = axis.map(|axis| ("axis", AttrValue::Int(axis))).into_iter().collect();
        self.add("DequantizeLinear", &inputs, &attrs, Made { dtype: F32, most: 17.0, ..x.clone() })
    }

    fn quantise(&mut self, x: &Made, scale: f32, zero: i8) -> Option<Made> {
        let (scale, zero) = (self.number(scale), Tensor::from_elements(&[], &[zero]).expect("a tensor"));
        let zero = self.program.add_constant("", zero);
        self.add("QuantizeLinear", &[x.id, scale, zero], &[], Made { dtype: I8, ..x.clone() })
    }

    /// Bytes as a constant, which a node dequantises.
    fn weights(
        &mut self,
        shape: &[usize],
        axis: usize,
        choices: &mut Choices<'_>,
    ) -> Option<(ValueId, Vec<f32>)> {
        let n: usize = shape.iter().product();
        let weights: Vec<i8> = (0..n).map(|i| (i * 5 % 17) as i8 - 8).collect();
        let id = self.program.add_constant("", Tensor::from_elements(shape, &weights).expect("a tensor"));
        let bytes = Made { id, dtype: I8, shape: shape.to_vec(), most: 8.0 };
        let scales = match choices.of(2) {
            0 => vec![STEP],
            _ => (0..shape[axis]).map(|i| if i % 2 == 0 { STEP } else { 0.5 * STEP }).collect(),
        };
        let zero = choices.one_of(&[0, 1]);
        let made = self.dequantise(&bytes, &scales, &[zero], Some(axis as i64))?;
        Some((made.id, scales))
    }

    fn quantised_product(&mut self, x: &Made, kind: usize, choices: &mut Choices<'_>) -> Option<Made> {
        let (columns, n_out) = (x.shape[1], 2 + choices.of(3));
        let is_turned = kind == 3 && choices.of(2) == 1;
        let (shape, axis, op) = match kind {
            0..=2 => (vec![n_out, columns, 1], 0, "Conv"),
            3 if is_turned => (vec![n_out, columns], 0, "Gemm"),
            3 => (vec![columns, n_out], 1, "Gemm"),
            _ => (vec![columns, n_out], 1, "MatMul"),
        };
        let (weights, scales) = self.weights(&shape, axis, choices)?;
        let mut inputs = vec![x.id, weights];
        match choices.of(3) {
            _ if op == "MatMul" => {}
            0 => {}
            1 => {
                let bias: Vec<f32> = (0..n_out).map(|i| (i as f32 - 1.0) * STEP * STEP).collect();
                let bias = Tensor::from_elements(&[n_out], &bias).expect("a tensor");
                inputs.push(self.program.add_constant("", bias));
            }
            _ => {
                let bias: Vec<i32> = (0..n_out as i32).map(|i| 40 * (i - 1)).collect();
                let id =
                    self.program.add_constant("", Tensor::from_elements(&[n_out], &bias).expect("a tensor"));
                let scales: Vec<f32> = scales.iter().map(|scale| scale * STEP).collect();
                let bias = Made { id, dtype: I32, shape: vec![n_out], most: 80.0 };
                inputs.push(self.dequantise(&bias, &scales, &[], Some(0))?.id);
            }
        }
        let mut made = Made { most: 20.0, ..x.clone() };
        match op {
            "Conv" => made.shape[1] = n_out,
            _ => *made.shape.last_mut()? = n_out,
        }
        let attrs = [("transB", AttrValue::Int(1))];
        self.add(op, &inputs, if is_turned { &attrs } else { &[] }, made)
    }

    fn quantised_move(&mut self, x: &Made, choices: &mut Choices<'_>) -> Option<Made> {
        let (rows, columns) = (x.shape[0], x.shape[1]);
        let turned = Made { shape: vec![columns, rows], ..x.clone() };
        let perm = [("perm", AttrValue::Ints(vec![1, 0]))];
        match choices.of(7) {
            0 => self.add("Transpose", &[x.id], &perm, turned),
            1 => {
                let made = self.add("Transpose", &[x.id], &perm, turned)?;
                let axes = self.list(&[0]);
                let shape = [&[1][..], &made.shape].concat();
                self.add("Unsqueeze", &[made.id, axes], &[], Made { shape, ..made })
            }
            2 => {
                let shape = vec![2 * rows, columns];
                self.add("Concat", &[x.id, x.id], &[("axis", AttrValue::Int(0))], Made { shape, ..x.clone() })
            }
            3 => {
                let pads = self.list(&[1, 0, 0, 1]);
                let value = self.number(0.3);
                let shape = vec![rows + 1, columns + 1];
                self.add("Pad", &[x.id, pads, value], &[], Made { shape, ..x.clone() })
            }
            4 => {
                let axes = self.list(&[0]);
                let shape = vec![1, rows, columns];
                let image = self.add("Unsqueeze", &[x.id, axes], &[], Made { shape, ..x.clone() })?;
                let attrs =
                    [("kernel_shape", AttrValue::Ints(vec![2])), ("pads", AttrValue::Ints(vec![1, 0]))];
                self.add("MaxPool", &[image.id], &attrs, image)
            }
            5 => self.apply_with("Max", x, &[], 0, false),
            _ => self.apply("Relu", x),
        }
    }
}
