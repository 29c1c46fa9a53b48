//! Quantised numbers and their products on real libraries.

use crate::support::graph::{Attr, Tensor, check_node, f32s, i32s};
use devbay_plugin_api::sdk::{I8, U8};

fn u8s(dims: &[i64], values: &[u8]) -> Tensor {
    Tensor { dtype: U8, dims: dims.to_vec(), bytes: values.to_vec() }
}

fn i8s(dims: &[i64], values: &[i8]) -> Tensor {
    Tensor { dtype: I8, dims: dims.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() }
}

#[test]
fn numbers_become_small_integers_and_come_back() {
    // Ties go to the even number; a number that does not fit becomes the limit.
    let x = f32s(&[6], &[0.0, 1.0, 3.0, 5.0, 1000.0, -1000.0]);
    let (scale, zero) = (f32s(&[], &[2.0]), u8s(&[], &[100]));
    let bytes = u8s(&[6], &[100, 100, 102, 102, 255, 0]);
    check_node("QuantizeLinear", 13, &[x], &[scale.clone(), zero.clone()], &[], std::slice::from_ref(&bytes));
    let back = f32s(&[6], &[0.0, 0.0, 4.0, 4.0, 310.0, -200.0]);
    check_node("DequantizeLinear", 13, &[bytes], &[scale, zero], &[], &[back]);
    // A scale for each row.
    let x = f32s(&[2, 2], &[2.0, 4.0, 2.0, 4.0]);
    let scales = [f32s(&[2], &[1.0, 0.5]), i8s(&[2], &[0, -10])];
    let axis = [("axis", Attr::Int(0))];
    check_node("QuantizeLinear", 13, &[x], &scales, &axis, &[i8s(&[2, 2], &[2, 4, -6, -2])]);
}

#[test]
fn a_range_gives_scale_and_zero_point() {
    // From -1 to 1.55: steps of 0.01, so that 0 is 100.
    let x = f32s(&[4], &[-1.0, 0.0, 1.55, 0.5]);
    let expected = [u8s(&[4], &[0, 100, 255, 150]), f32s(&[], &[0.01]), u8s(&[], &[100])];
    check_node("DynamicQuantizeLinear", 11, &[x], &[], &[], &expected);
    // Zero is within the range although no number is below it.
    let x = f32s(&[2], &[255.0, 51.0]);
    let expected = [u8s(&[2], &[255, 51]), f32s(&[], &[1.0]), u8s(&[], &[0])];
    check_node("DynamicQuantizeLinear", 11, &[x], &[], &[], &expected);
    let expected = [u8s(&[2], &[0, 0]), f32s(&[], &[1.0 / 255.0]), u8s(&[], &[0])];
    check_node("DynamicQuantizeLinear", 11, &[f32s(&[2], &[0.0; 2])], &[], &[], &expected);
}

#[test]
fn products_of_integers_are_wide() {
    let (x, y) = (u8s(&[2, 2], &[255, 1, 2, 3]), i8s(&[2, 2], &[-128, 127, 1, 0]));
    let plain = i32s(&[2, 2], &[255 * -128 + 1, 255 * 127, -256 + 3, 254]);
    check_node("MatMulInteger", 10, &[x.clone(), y.clone()], &[], &[], &[plain]);
    // Zero points 1, and 1 and -1 for the columns: [[254, 0], [1, 2]] * [[-129, 128], [0, 1]].
    let zeros = [u8s(&[], &[1]), i8s(&[2], &[1, -1])];
    let centred = i32s(&[2, 2], &[254 * -129, 254 * 128, -129, 130]);
    check_node("MatMulInteger", 10, &[x, y], &zeros, &[], &[centred]);
    // The border is the zero point: 5 6 7 less 5, with ones.
    let (x, kernel) = (u8s(&[1, 1, 3], &[5, 6, 7]), u8s(&[1, 1, 3], &[1; 3]));
    let pads = [("pads", Attr::Ints(vec![1, 1]))];
    check_node("ConvInteger", 10, &[x, kernel], &[u8s(&[], &[5])], &pads, &[i32s(&[1, 1, 3], &[1, 3, 3])]);
}
