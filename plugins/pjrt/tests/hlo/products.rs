//! Products, convolutions and pools on real libraries, against loops that follow the specification's formulas.

use crate::support::graph::{Attr, Graph, Tensor, check, check_node, counted, f32s, irregular};
use devbay_plugin_api::sdk::F32;

fn ints(list: &[i64]) -> Attr {
    Attr::Ints(list.to_vec())
}

/// `[batch, m, k] * [batch, k, n]`, where a batch of 1 is repeated.
fn matmul(x: &Tensor, y: &Tensor, [batch, m, k, n]: [usize; 4]) -> Vec<f32> {
    let (x, y) = (x.numbers(), y.numbers());
    let (x_step, y_step) = (if x.len() > m * k { m * k } else { 0 }, if y.len() > k * n { k * n } else { 0 });
    let mut result = Vec::new();
    for at in 0..batch * m * n {
        let (matrix, row, column) = (at / (m * n), at / n % m, at % n);
        let product = |i: usize| {
            f64::from(x[matrix * x_step + row * k + i]) * f64::from(y[matrix * y_step + i * n + column])
        };
        result.push((0..k).map(product).sum::<f64>() as f32);
    }
    result
}

#[test]
fn matrices_of_all_ranks_are_multiplied() {
    // Extents of both operands and of the result, then batches, rows, depth and columns.
    type Case = (&'static [i64], &'static [i64], &'static [i64], [usize; 4]);
    let cases: [Case; 8] = [
        (&[2, 3], &[3, 4], &[2, 4], [1, 2, 3, 4]),
        (&[3], &[3, 4], &[4], [1, 1, 3, 4]),
        (&[2, 3], &[3], &[2], [1, 2, 3, 1]),
        (&[3], &[3], &[], [1, 1, 3, 1]),
        (&[5, 2, 3], &[3, 4], &[5, 2, 4], [5, 2, 3, 4]),
        (&[2, 3], &[5, 3, 4], &[5, 2, 4], [5, 2, 3, 4]),
        (&[5, 2, 3], &[5, 3, 4], &[5, 2, 4], [5, 2, 3, 4]),
        (&[3], &[5, 3, 4], &[5, 4], [5, 1, 3, 4]),
    ];
    for (x, y, result, sizes) in cases {
        let (x, y) = (irregular(x, 1), irregular(y, 2));
        let expected = f32s(result, &matmul(&x, &y, sizes));
        check_node("MatMul", 13, &[x, y], &[], &[], &[expected]);
    }
    // Batches [2, 1] and [3] are [2, 3].
    let (x, y) = (counted(&[2, 1, 1, 2]), counted(&[3, 2, 1]));
    // Rows (0, 1) and (2, 3) with columns (0, 1), (2, 3) and (4, 5).
    check_node("MatMul", 13, &[x, y], &[], &[], &[f32s(&[2, 3, 1, 1], &[1.0, 3.0, 5.0, 3.0, 13.0, 23.0])]);
}

#[test]
fn gemm_turns_and_scales_its_operands() {
    // A' = [[0, 1, 2], [3, 4, 5]], B' = [[0, 3], [1, 4], [2, 5]]; A' * B' = [[5, 14], [14, 50]].
    let (a, b) = (f32s(&[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]), counted(&[2, 3]));
    let turned = [("transA", Attr::Int(1)), ("transB", Attr::Int(1))];
    let both = [a.clone(), b.clone()];
    check_node("Gemm", 13, &both, &[], &turned, &[f32s(&[2, 2], &[5.0, 14.0, 14.0, 50.0])]);
    let all = [&turned[..], &[("alpha", Attr::Float(0.5)), ("beta", Attr::Float(2.0))]].concat();
    let expected = [f32s(&[2, 2], &[4.5, 5.0, 9.0, 23.0])];
    check_node("Gemm", 13, &[a, b, f32s(&[2], &[1.0, -1.0])], &[], &all, &expected);
}

#[test]
fn equations_say_which_axes_are_multiplied_and_summed() {
    let equation = |text: &str| [("equation", Attr::Text(text.into()))];
    let (x, y) = (irregular(&[2, 3, 4], 1), irregular(&[2, 4, 5], 2));
    let product = matmul_of_batches(&x, &y);
    check_node(
        "Einsum",
        12,
        &[x.clone(), y.clone()],
        &[],
        &equation("bij, bjk -> bik"),
        std::slice::from_ref(&product),
    );
    // Without an arrow: the letters that stand once, in alphabetical order.
    let summed: Vec<f32> = (0..15).map(|at| product.numbers()[at] + product.numbers()[15 + at]).collect();
    check_node("Einsum", 12, &[x.clone(), y], &[], &equation("bij,bjk"), &[f32s(&[3, 5], &summed)]);
    let numbers = x.numbers();
    let turned: Vec<f32> = (0..24).map(|at| numbers[at % 2 * 12 + at / 2 % 3 * 4 + at / 6]).collect();
    check_node(
        "Einsum",
        12,
        std::slice::from_ref(&x),
        &[],
        &equation("abc->cba"),
        &[f32s(&[4, 3, 2], &turned)],
    );
    let total: f32 = numbers.iter().sum();
    check_node("Einsum", 12, &[x], &[], &equation("abc->"), &[f32s(&[], &[total])]);
}

fn matmul_of_batches(x: &Tensor, y: &Tensor) -> Tensor {
    f32s(&[2, 3, 5], &matmul(x, y, [2, 3, 4, 5]))
}

/// A convolution over two axes: strides, pads in front, dilations, groups; by the formula.
struct Plane {
    strides: [i64; 2],
    pads: [i64; 2],
    dilations: [i64; 2],
    groups: i64,
}

fn convolve(x: &Tensor, kernel: &Tensor, plane: &Plane, result: &[i64]) -> Vec<f32> {
    let (given, weights) = (x.numbers(), kernel.numbers());
    let (&[_, c, h, w], &[m, per_group, kh, kw]) = (x.dims.as_slice(), kernel.dims.as_slice()) else {
        panic!()
    };
    let mut values = Vec::new();
    for at in 0..result.iter().product::<i64>() {
        let (column, row) = (at % result[3], at / result[3] % result[2]);
        let (channel, n) = (at / result[3] / result[2] % result[1], at / result[3] / result[2] / result[1]);
        let group = channel / (m / plane.groups);
        let mut sum = 0.0;
        for step in 0..per_group * kh * kw {
            let (j, i, from) = (step % kw, step / kw % kh, step / kw / kh);
            let y = row * plane.strides[0] - plane.pads[0] + i * plane.dilations[0];
            let x = column * plane.strides[1] - plane.pads[1] + j * plane.dilations[1];
            if (0..h).contains(&y) && (0..w).contains(&x) {
                let value = given[(((n * c + group * per_group + from) * h + y) * w + x) as usize];
                sum += f64::from(value) * f64::from(weights[(channel * per_group * kh * kw + step) as usize]);
            }
        }
        values.push(sum as f32);
    }
    values
}

#[test]
fn convolutions_follow_their_formula() {
    // Input, kernel, plane, pads behind, result.
    type Case = (&'static [i64], &'static [i64], Plane, [i64; 2], &'static [i64]);
    let cases: [Case; 4] = [
        (
            &[2, 3, 7, 6],
            &[4, 3, 3, 2],
            Plane { strides: [1, 1], pads: [0, 0], dilations: [1, 1], groups: 1 },
            [0, 0],
            &[2, 4, 5, 5],
        ),
        (
            &[1, 4, 7, 8],
            &[6, 2, 3, 3],
            Plane { strides: [2, 3], pads: [1, 0], dilations: [1, 2], groups: 2 },
            [2, 1],
            &[1, 6, 4, 2],
        ),
        (
            &[1, 5, 6, 6],
            &[5, 1, 3, 3],
            Plane { strides: [1, 1], pads: [1, 1], dilations: [1, 1], groups: 5 },
            [1, 1],
            &[1, 5, 6, 6],
        ),
        (
            &[1, 2, 5, 5],
            &[3, 2, 1, 1],
            Plane { strides: [2, 2], pads: [0, 0], dilations: [1, 1], groups: 1 },
            [0, 0],
            &[1, 3, 3, 3],
        ),
    ];
    for (x, kernel, plane, behind, result) in cases {
        let (x, kernel, bias) = (irregular(x, 3), irregular(kernel, 4), irregular(&[result[1]], 5));
        let mut expected = convolve(&x, &kernel, &plane, result);
        let per_channel = (result[2] * result[3]) as usize;
        for (at, value) in expected.iter_mut().enumerate() {
            *value += bias.numbers()[at / per_channel % result[1] as usize];
        }
        let attrs = [
            ("strides", ints(&plane.strides)),
            ("pads", ints(&[plane.pads, behind].concat())),
            ("dilations", ints(&plane.dilations)),
            ("group", Attr::Int(plane.groups)),
        ];
        check_node("Conv", 11, &[x], &[kernel, bias], &attrs, &[f32s(result, &expected)]);
    }
}

#[test]
fn a_convolution_pads_by_itself() {
    // 1 2 3 4 with a kernel of ones: two places with strides of 2, so one element is added at one end.
    let (x, kernel) = (f32s(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]), f32s(&[1, 1, 3], &[1.0; 3]));
    let run = |mode: &str, expected: &[f32]| {
        let attrs = [("auto_pad", Attr::Text(mode.into())), ("strides", ints(&[2]))];
        let result = f32s(&[1, 1, expected.len() as i64], expected);
        check_node("Conv", 11, &[x.clone(), kernel.clone()], &[], &attrs, &[result]);
    };
    run("SAME_UPPER", &[6.0, 7.0]);
    run("SAME_LOWER", &[3.0, 9.0]);
    run("VALID", &[6.0]);
}

#[test]
fn a_convolution_over_three_axes() {
    // All of 2 x 2 x 2 ones at each of 1 x 1 x 2 places of 0, 1, 2, ... in 2 x 2 x 3.
    let kernel = f32s(&[1, 1, 2, 2, 2], &[1.0; 8]);
    let first = (1 + 3 + 4 + 6 + 7 + 9 + 10) as f32;
    check_node(
        "Conv",
        11,
        &[counted(&[1, 1, 2, 2, 3])],
        &[kernel],
        &[],
        &[f32s(&[1, 1, 1, 1, 2], &[first, first + 8.0])],
    );
}

/// Computes a transposed convolution by its definition: each element of the input is added to the result.
fn spread(x: &Tensor, kernel: &Tensor, plane: &Plane, result: &[i64]) -> Vec<f32> {
    let (given, weights) = (x.numbers(), kernel.numbers());
    let (&[_, c, h, w], &[_, per_group, kh, kw]) = (x.dims.as_slice(), kernel.dims.as_slice()) else {
        panic!()
    };
    let mut values = vec![0f32; result.iter().product::<i64>() as usize];
    for at in 0..given.len() as i64 {
        let (column, row, channel) = (at % w, at / w % h, at / w / h % c);
        let group = channel / (c / plane.groups);
        for step in 0..per_group * kh * kw {
            let (j, i, to) = (step % kw, step / kw % kh, step / kw / kh);
            let y = row * plane.strides[0] + i * plane.dilations[0] - plane.pads[0];
            let x = column * plane.strides[1] + j * plane.dilations[1] - plane.pads[1];
            if (0..result[2]).contains(&y) && (0..result[3]).contains(&x) {
                let place = ((group * per_group + to) * result[2] + y) * result[3] + x;
                let weight = weights[(channel * per_group * kh * kw + step) as usize];
                values[place as usize] += given[at as usize] * weight;
            }
        }
    }
    values
}

#[test]
fn transposed_convolutions_spread_their_input() {
    // Input, kernel, plane, pads behind, extents added, result.
    type Case = (&'static [i64], &'static [i64], Plane, [i64; 2], [i64; 2], &'static [i64]);
    let cases: [Case; 3] = [
        (
            &[1, 2, 3, 3],
            &[2, 3, 2, 2],
            Plane { strides: [2, 2], pads: [0, 0], dilations: [1, 1], groups: 1 },
            [0, 0],
            [0, 0],
            &[1, 3, 6, 6],
        ),
        (
            &[1, 4, 3, 4],
            &[4, 2, 3, 3],
            Plane { strides: [3, 2], pads: [1, 0], dilations: [1, 2], groups: 2 },
            [0, 2],
            [1, 0],
            &[1, 4, 9, 9],
        ),
        (
            &[1, 1, 3, 3],
            &[1, 1, 3, 3],
            Plane { strides: [1, 1], pads: [1, 1], dilations: [1, 1], groups: 1 },
            [1, 1],
            [0, 0],
            &[1, 1, 3, 3],
        ),
    ];
    for (x, kernel, plane, behind, more, result) in cases {
        let (x, kernel) = (irregular(x, 6), irregular(kernel, 7));
        let expected = spread(&x, &kernel, &plane, result);
        let attrs = [
            ("strides", ints(&plane.strides)),
            ("pads", ints(&[plane.pads, behind].concat())),
            ("dilations", ints(&plane.dilations)),
            ("output_padding", ints(&more)),
            ("group", Attr::Int(plane.groups)),
        ];
        check_node("ConvTranspose", 11, &[x, kernel], &[], &attrs, &[f32s(result, &expected)]);
    }
}

#[test]
fn pools_take_the_largest_or_the_mean() {
    // 1 2 3 4 5 with windows of 3 and strides of 2.
    let x = f32s(&[1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let run = |op: &str, attrs: &[(&str, Attr)], expected: &[f32]| {
        let attrs = [&[("kernel_shape", ints(&[3])), ("strides", ints(&[2]))], attrs].concat();
        let result = f32s(&[1, 1, expected.len() as i64], expected);
        check_node(op, 19, std::slice::from_ref(&x), &[], &attrs, &[result]);
    };
    run("MaxPool", &[], &[3.0, 5.0]);
    run("AveragePool", &[], &[2.0, 4.0]);
    let pads = ("pads", ints(&[1, 1]));
    run("MaxPool", std::slice::from_ref(&pads), &[2.0, 4.0, 5.0]);
    run("AveragePool", std::slice::from_ref(&pads), &[1.5, 3.0, 4.5]);
    run("AveragePool", &[pads.clone(), ("count_include_pad", Attr::Int(1))], &[1.0, 3.0, 3.0]);
    // One more place, whose window ends beyond the padding, which never counts.
    let ceil = ("ceil_mode", Attr::Int(1));
    let one = ("pads", ints(&[0, 1]));
    run("MaxPool", &[one.clone(), ceil.clone()], &[3.0, 5.0, 5.0]);
    run("AveragePool", &[one.clone(), ceil.clone()], &[2.0, 4.0, 5.0]);
    run("AveragePool", &[one, ceil, ("count_include_pad", Attr::Int(1))], &[2.0, 4.0, 2.5]);
    let apart = ("dilations", ints(&[2]));
    run("MaxPool", std::slice::from_ref(&apart), &[5.0]);
    run("LpPool", &[("p", Attr::Int(2))], &[14f32.sqrt(), 50f32.sqrt()]);
}

#[test]
fn a_pool_over_two_axes_pads_by_itself() {
    let attrs = [
        ("kernel_shape", ints(&[2, 2])),
        ("strides", ints(&[2, 2])),
        ("auto_pad", Attr::Text("SAME_UPPER".into())),
    ];
    let x = counted(&[1, 1, 3, 3]);
    check_node(
        "MaxPool",
        12,
        std::slice::from_ref(&x),
        &[],
        &attrs,
        &[f32s(&[1, 1, 2, 2], &[4.0, 5.0, 7.0, 8.0])],
    );
    check_node("AveragePool", 11, &[x], &[], &attrs, &[f32s(&[1, 1, 2, 2], &[2.0, 3.5, 6.5, 8.0])]);
}

#[test]
fn global_pools_leave_one_place() {
    let x = f32s(&[1, 2, 2, 2], &[1.0, 2.0, 3.0, 6.0, -4.0, -3.0, -2.0, -1.0]);
    let one = std::slice::from_ref(&x);
    check_node("GlobalAveragePool", 1, one, &[], &[], &[f32s(&[1, 2, 1, 1], &[3.0, -2.5])]);
    check_node("GlobalMaxPool", 1, one, &[], &[], &[f32s(&[1, 2, 1, 1], &[6.0, -1.0])]);
}

#[test]
fn a_network_of_several_nodes() {
    // Convolution, ReLU, pool, flattening and a layer, with numbers that can be followed by hand.
    let mut graph = Graph::default();
    let x = graph.input(F32, &[1, 1, 3, 3]);
    let kernel = graph.constant(f32s(&[2, 1, 2, 2], &[1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 0.0]));
    let bias = graph.constant(f32s(&[2], &[1.0, 3.0]));
    let weights = graph.constant(f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let shape: &[i64] = &[1, 2, 2, 2];
    let (convolved, bent) = (graph.result(F32, shape), graph.result(F32, shape));
    let (pooled, flat) = (graph.result(F32, &[1, 2, 1, 1]), graph.result(F32, &[1, 2]));
    let (product, chances) = (graph.result(F32, &[1, 2]), graph.result(F32, &[1, 2]));
    graph.node("Conv", 11, &[x, kernel, bias], &[convolved], &[]);
    graph.node("Relu", 14, &[convolved], &[bent], &[]);
    graph.node("MaxPool", 12, &[bent], &[pooled], &[("kernel_shape", ints(&[2, 2]))]);
    graph.node("Flatten", 13, &[pooled], &[flat], &[]);
    graph.node("Gemm", 13, &[flat, weights], &[product], &[]);
    graph.node("Softmax", 13, &[product], &[chances], &[]);
    graph.output(product);
    graph.output(chances);
    // Channels: 0+4+1, ..., 4+8+1 = 13; and 3-0 = 3, ..., all below it. [13, 3] * weights = [22, 38].
    let chance = 1.0 / (1.0 + (-16f32).exp());
    check(
        &graph,
        &[counted(&[1, 1, 3, 3])],
        &[f32s(&[1, 2], &[22.0, 38.0]), f32s(&[1, 2], &[1.0 - chance, chance])],
    );
}
