//! Reductions and normalisations on real libraries, against sums in float64.

use crate::support::graph::{Attr, Graph, Tensor, bools, check, check_node, f32s, i64s, irregular};
use devbay_plugin_api::sdk::F32;

fn ints(list: &[i64]) -> Attr {
    Attr::Ints(list.to_vec())
}

/// Three rows of four.
fn rows() -> Tensor {
    f32s(&[3, 4], &[1.0, -2.0, 3.0, 0.5, 4.0, 4.0, -1.0, 2.0, -3.0, -0.5, -2.0, -8.0])
}

/// A number of each row.
fn of_rows(x: &Tensor, number: impl Fn(&[f64]) -> f64) -> Vec<f32> {
    let values: Vec<f64> = x.numbers().into_iter().map(f64::from).collect();
    values.chunks(x.dims[x.dims.len() - 1] as usize).map(|row| number(row) as f32).collect()
}

#[test]
fn rows_are_reduced() {
    let sum = |row: &[f64], of: fn(f64) -> f64| row.iter().map(|&x| of(x)).sum::<f64>();
    type Number = Box<dyn Fn(&[f64]) -> f64>;
    let cases: [(&str, Number); 8] = [
        ("ReduceSum", Box::new(move |row| sum(row, |x| x))),
        ("ReduceMean", Box::new(move |row| sum(row, |x| x) / row.len() as f64)),
        ("ReduceMax", Box::new(|row| row.iter().copied().fold(f64::MIN, f64::max))),
        ("ReduceMin", Box::new(|row| row.iter().copied().fold(f64::MAX, f64::min))),
        ("ReduceProd", Box::new(|row| row.iter().product())),
        ("ReduceL1", Box::new(move |row| sum(row, f64::abs))),
        ("ReduceL2", Box::new(move |row| sum(row, |x| x * x).sqrt())),
        ("ReduceLogSumExp", Box::new(move |row| sum(row, f64::exp).ln())),
    ];
    let x = rows();
    for (op, number) in cases {
        let expected = of_rows(&x, number);
        // The axes as an attribute, and as an input.
        let attrs = [("axes", ints(&[1]))];
        check_node(op, 11, std::slice::from_ref(&x), &[], &attrs, &[f32s(&[3, 1], &expected)]);
        let axes = [i64s(&[1], &[-1])];
        let attrs = [("keepdims", Attr::Int(0))];
        check_node(op, 18, std::slice::from_ref(&x), &axes, &attrs, &[f32s(&[3], &expected)]);
    }
    let squares = of_rows(&x, |row| row.iter().map(|x| x * x).sum());
    let attrs = [("axes", ints(&[1]))];
    check_node("ReduceSumSquare", 13, std::slice::from_ref(&x), &[], &attrs, &[f32s(&[3, 1], &squares)]);
}

#[test]
fn reductions_without_axes_take_all_or_none() {
    let x = rows();
    let one = std::slice::from_ref(&x);
    let total: f32 = x.numbers().iter().sum();
    check_node("ReduceSum", 13, one, &[], &[], &[f32s(&[1, 1], &[total])]);
    let none = [("noop_with_empty_axes", Attr::Int(1))];
    check_node("ReduceSum", 13, one, &[], &none, one);
    let all = [("keepdims", Attr::Int(0))];
    check_node("ReduceMax", 13, one, &[], &all, &[f32s(&[], &[4.0])]);
    let large = f32s(&[2], &[1000.0, 1000.0]);
    let expected = f32s(&[], &[1000.0 + 2f32.ln()]);
    check_node("ReduceLogSumExp", 18, &[large], &[], &all, &[expected]);
    let infinite = f32s(&[2], &[f32::NEG_INFINITY; 2]);
    check_node("ReduceLogSumExp", 18, &[infinite], &[], &all, &[f32s(&[], &[f32::NEG_INFINITY])]);
    check_node("ReduceMax", 20, &[bools(&[2], &[false, true])], &[], &all, &[bools(&[], &[true])]);
    check_node("ReduceMin", 20, &[bools(&[2], &[false, true])], &[], &all, &[bools(&[], &[false])]);
    check_node("ReduceMean", 18, &[i64s(&[3], &[1, 2, 5])], &[], &all, &[i64s(&[], &[2])]);
    check_node("ReduceMin", 18, &[i64s(&[3], &[3, -2, 5])], &[], &all, &[i64s(&[], &[-2])]);
}

#[test]
fn the_place_of_the_largest_is_found() {
    let x = f32s(&[2, 4], &[1.0, 7.0, 7.0, 2.0, 5.0, 3.0, 3.0, 6.0]);
    let run = |op: &str, attrs: &[(&str, Attr)], expected: Tensor| {
        check_node(op, 13, std::slice::from_ref(&x), &[], attrs, &[expected]);
    };
    let last = ("select_last_index", Attr::Int(1));
    let axis = ("axis", Attr::Int(-1));
    run("ArgMax", std::slice::from_ref(&axis), i64s(&[2, 1], &[1, 3]));
    run("ArgMax", &[axis.clone(), last.clone(), ("keepdims", Attr::Int(0))], i64s(&[2], &[2, 3]));
    run("ArgMin", &[], i64s(&[1, 4], &[0, 1, 1, 0]));
    let none = f32s(&[2], &[f32::NAN; 2]);
    check_node("ArgMax", 13, &[none], &[], &[], &[i64s(&[1], &[0])]);
    let x = i64s(&[3], &[4, -9, -9]);
    check_node("ArgMin", 13, std::slice::from_ref(&x), &[], &[], &[i64s(&[1], &[1])]);
    check_node("ArgMin", 13, &[x], &[], &[last], &[i64s(&[1], &[2])]);
}

#[test]
fn sums_run_along_an_axis() {
    let x = f32s(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let run = |attrs: &[(&str, Attr)], expected: &[f32]| {
        check_node(
            "CumSum",
            14,
            std::slice::from_ref(&x),
            &[i64s(&[], &[0])],
            attrs,
            &[f32s(&[5], expected)],
        );
    };
    let (exclusive, reverse) = (("exclusive", Attr::Int(1)), ("reverse", Attr::Int(1)));
    run(&[], &[1.0, 3.0, 6.0, 10.0, 15.0]);
    run(std::slice::from_ref(&exclusive), &[0.0, 1.0, 3.0, 6.0, 10.0]);
    run(std::slice::from_ref(&reverse), &[15.0, 14.0, 12.0, 9.0, 5.0]);
    run(&[exclusive, reverse], &[14.0, 12.0, 9.0, 5.0, 0.0]);
    let x = i64s(&[2, 2], &[1, 2, 3, 4]);
    check_node("CumSum", 14, &[x], &[i64s(&[], &[-2])], &[], &[i64s(&[2, 2], &[1, 2, 4, 6])]);
}

#[test]
fn the_first_few_are_found() {
    let x = f32s(&[2, 4], &[3.0, 9.0, 9.0, 1.0, -1.0, -2.0, -3.0, 0.0]);
    let k = [i64s(&[1], &[2])];
    let largest = [f32s(&[2, 2], &[9.0, 9.0, 0.0, -1.0]), i64s(&[2, 2], &[1, 2, 3, 0])];
    check_node("TopK", 11, std::slice::from_ref(&x), &k, &[], &largest);
    let smallest = [f32s(&[2, 2], &[1.0, 3.0, -3.0, -2.0]), i64s(&[2, 2], &[3, 0, 2, 1])];
    check_node("TopK", 11, &[x], &k, &[("largest", Attr::Int(0))], &smallest);
    let x = i64s(&[3, 1], &[5, 7, 6]);
    let expected = [i64s(&[2, 1], &[7, 6]), i64s(&[2, 1], &[1, 2])];
    check_node("TopK", 11, &[x], &k, &[("axis", Attr::Int(0))], &expected);
}

#[test]
fn softmax_took_several_axes_before_opset_13() {
    let x = irregular(&[2, 3, 4], 8);
    let values: Vec<f64> = x.numbers().into_iter().map(f64::from).collect();
    // Chances within groups of so many elements that lie side by side.
    let chances = |n: usize| -> Vec<f32> {
        let group = |group: &[f64]| {
            let sum: f64 = group.iter().map(|x| x.exp()).sum();
            group.iter().map(|x| (x.exp() / sum) as f32).collect::<Vec<_>>()
        };
        values.chunks(n).flat_map(group).collect()
    };
    let one = std::slice::from_ref(&x);
    let (last, many) = (f32s(&[2, 3, 4], &chances(4)), f32s(&[2, 3, 4], &chances(12)));
    check_node("Softmax", 13, one, &[], &[], std::slice::from_ref(&last));
    check_node("Softmax", 11, one, &[], &[], &[many]);
    check_node("Softmax", 11, one, &[], &[("axis", Attr::Int(2))], std::slice::from_ref(&last));
    let logs: Vec<f32> = chances(4).iter().map(|x| x.ln()).collect();
    check_node("LogSoftmax", 13, one, &[], &[], &[f32s(&[2, 3, 4], &logs)]);
    let large = f32s(&[1, 2], &[1e4, 1e4]);
    check_node("Softmax", 13, &[large], &[], &[], &[f32s(&[1, 2], &[0.5, 0.5])]);
    let x = f32s(&[2, 3], &[1.0, 4.0, 4.0, 0.0, -1.0, -2.0]);
    check_node("Hardmax", 13, &[x], &[], &[], &[f32s(&[2, 3], &[0.0, 1.0, 0.0, 1.0, 0.0, 0.0])]);
}

/// Numbers of groups that lie side by side, less the mean, over the deviation.
fn standardised(x: &Tensor, n: usize, epsilon: f64) -> Vec<f64> {
    let values: Vec<f64> = x.numbers().into_iter().map(f64::from).collect();
    let group = |group: &[f64]| {
        let mean = group.iter().sum::<f64>() / n as f64;
        let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        group.iter().map(|x| (x - mean) / (variance + epsilon).sqrt()).collect::<Vec<_>>()
    };
    values.chunks(n).flat_map(group).collect()
}

#[test]
fn groups_are_normalised() {
    let x = irregular(&[2, 4, 3], 9);
    let (scale, bias) = (irregular(&[4], 10), irregular(&[4], 11));
    let (a, b) = (scale.numbers(), bias.numbers());
    let per_channel = |values: Vec<f64>, of: &dyn Fn(usize) -> usize| {
        let value = |(at, x): (usize, &f64)| *x as f32 * a[of(at / 3 % 4)] + b[of(at / 3 % 4)];
        f32s(&[2, 4, 3], &values.iter().enumerate().map(value).collect::<Vec<_>>())
    };
    let inputs = [x.clone(), scale.clone(), bias.clone()];
    let expected = per_channel(standardised(&x, 3, 1e-5), &|channel| channel);
    check_node("InstanceNormalization", 6, &inputs, &[], &[], &[expected]);

    let groups = [("num_groups", Attr::Int(2)), ("epsilon", Attr::Float(0.01))];
    let expected = per_channel(standardised(&x, 6, 0.01), &|channel| channel);
    check_node("GroupNormalization", 21, &inputs, &[], &groups, &[expected]);
    let first = |tensor: &Tensor| f32s(&[2], &tensor.numbers()[..2]);
    let expected = per_channel(standardised(&x, 6, 0.01), &|channel| channel / 2);
    check_node("GroupNormalization", 18, &[x, first(&scale), first(&bias)], &[], &groups, &[expected]);
}

#[test]
fn layers_are_normalised() {
    let x = irregular(&[2, 3, 4], 12);
    let (scale, bias) = (irregular(&[4], 13), irregular(&[4], 14));
    let (a, b) = (scale.numbers(), bias.numbers());
    let value = |(at, x): (usize, &f64)| *x as f32 * a[at % 4] + b[at % 4];
    let expected: Vec<f32> = standardised(&x, 4, 1e-5).iter().enumerate().map(value).collect();
    let means = of_rows(&x, |row| row.iter().sum::<f64>() / 4.0);
    let inverse = of_rows(&x, |row| {
        let mean = row.iter().sum::<f64>() / 4.0;
        1.0 / (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0 + 1e-5).sqrt()
    });
    let results = [f32s(&[2, 3, 4], &expected), f32s(&[2, 3, 1], &means), f32s(&[2, 3, 1], &inverse)];
    check_node("LayerNormalization", 17, &[x.clone(), scale.clone(), bias], &[], &[], &results);

    let square = of_rows(&x, |row| (row.iter().map(|x| x * x).sum::<f64>() / 4.0 + 1e-5).sqrt());
    let value = |(at, x): (usize, &f32)| x / square[at / 4] * a[at % 4];
    let expected: Vec<f32> = x.numbers().iter().enumerate().map(value).collect();
    check_node("RMSNormalization", 23, &[x, scale], &[], &[], &[f32s(&[2, 3, 4], &expected)]);
}

#[test]
fn batches_are_normalised_by_what_was_learned() {
    let x = f32s(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let pair = |a, b| f32s(&[2], &[a, b]);
    // Deviations 2 and 0.5: (x - 1) / 2 * 3 + 1, and (x - 2) / 0.5 * 1 - 1.
    let learned = [pair(3.0, 1.0), pair(1.0, -1.0), pair(1.0, 2.0), pair(4.0, 0.25)];
    let attrs = [("epsilon", Attr::Float(0.0))];
    let expected = [f32s(&[1, 2, 2], &[1.0, 2.5, 1.0, 3.0])];
    for since in [7, 9, 14, 15] {
        check_node("BatchNormalization", since, std::slice::from_ref(&x), &learned, &attrs, &expected);
    }
    let two = f32s(&[2, 2], &[1.0, 3.0, 2.0, 4.0]);
    check_node("BatchNormalization", 15, &[two], &learned, &attrs, &[f32s(&[2, 2], &[1.0, 1.0, 2.5, 3.0])]);
}

#[test]
fn lines_have_length_one_and_neighbours_dampen() {
    let x = f32s(&[2, 2], &[3.0, 4.0, 0.0, 0.0]);
    let one = std::slice::from_ref(&x);
    check_node("LpNormalization", 1, one, &[], &[], &[f32s(&[2, 2], &[0.6, 0.8, 0.0, 0.0])]);
    let sums = f32s(&[2, 2], &[3.0 / 7.0, 4.0 / 7.0, 0.0, 0.0]);
    check_node("LpNormalization", 1, one, &[], &[("p", Attr::Int(1))], &[sums]);
    // Squares of channels 1 2 3 within three: 5, 14, 13; each over (1 + 3 * sum / 3) ** 0.5.
    let x = f32s(&[1, 3, 1], &[1.0, 2.0, 3.0]);
    let attrs = [("size", Attr::Int(3)), ("alpha", Attr::Float(3.0)), ("beta", Attr::Float(0.5))];
    let expected = f32s(&[1, 3, 1], &[1.0 / 6f32.sqrt(), 2.0 / 15f32.sqrt(), 3.0 / 14f32.sqrt()]);
    check_node("LRN", 13, &[x], &[], &attrs, &[expected]);
    let x = f32s(&[2, 1, 1, 1], &[1.0, 3.0]);
    check_node("MeanVarianceNormalization", 13, &[x], &[], &[], &[f32s(&[2, 1, 1, 1], &[-1.0, 1.0])]);
}

#[test]
fn a_normalisation_written_out_gives_the_same_as_the_op() {
    let mut graph = Graph::default();
    let x = graph.input(F32, &[2, 8]);
    let two = graph.constant(f32s(&[], &[2.0]));
    let epsilon = graph.constant(f32s(&[], &[1e-5]));
    let (mean, less) = (graph.result(F32, &[2, 1]), graph.result(F32, &[2, 8]));
    let (square, variance) = (graph.result(F32, &[2, 8]), graph.result(F32, &[2, 1]));
    let (sum, root) = (graph.result(F32, &[2, 1]), graph.result(F32, &[2, 1]));
    let result = graph.result(F32, &[2, 8]);
    let last = [("axes", ints(&[-1]))];
    graph.node("ReduceMean", 13, &[x], &[mean], &last);
    graph.node("Sub", 14, &[x, mean], &[less], &[]);
    graph.node("Pow", 15, &[less, two], &[square], &[]);
    graph.node("ReduceMean", 13, &[square], &[variance], &last);
    graph.node("Add", 14, &[variance, epsilon], &[sum], &[]);
    graph.node("Sqrt", 13, &[sum], &[root], &[]);
    graph.node("Div", 14, &[less, root], &[result], &[]);
    graph.output(result);
    let x = irregular(&[2, 8], 15);
    let expected: Vec<f32> = standardised(&x, 8, 1e-5).iter().map(|&x| x as f32).collect();
    check(&graph, &[x], &[f32s(&[2, 8], &expected)]);
}
