//! Claims for a graph, its text and arguments, and the agreement between claims and texts.

use crate::support::graph::{Attr, Graph, NONE, check, counted, f32s, i64s, irregular};
use devbay_plugin_api::sdk::{Claim, F32, I64};
use devbay_plugin_pjrt::hlo::{EmitOptions, claim, emit};

/// `relu(x [2, 3] * weights [3, 600] + 1)`; the weights are larger than what is written into the text.
fn layer() -> Graph {
    let mut graph = Graph::default();
    let x = graph.input(F32, &[2, 3]);
    let weights = graph.constant(counted(&[3, 600]));
    let one = graph.constant(f32s(&[1], &[1.0]));
    let (product, sum, result) =
        (graph.result(F32, &[2, 600]), graph.result(F32, &[2, 600]), graph.result(F32, &[2, 600]));
    graph.node("MatMul", 13, &[x, weights], &[product], &[]);
    graph.node("Add", 14, &[product, one], &[sum], &[]);
    graph.node("Relu", 14, &[sum], &[result], &[]);
    graph.output(result);
    graph
}

#[test]
fn a_claim_counts_a_multiply_add_as_two_and_each_operand_once() {
    let claims = layer().show(claim);
    let elements = 2 * 600;
    assert_eq!(
        claims[0],
        Some(Claim { flops: 2 * 3 * elements, bytes: 4 * (6 + 3 * 600 + elements), group: 0 })
    );
    assert_eq!(claims[1], Some(Claim { flops: elements, bytes: 4 * (elements + 1 + elements), group: 0 }));
    assert_eq!(claims[2], Some(Claim { flops: elements, bytes: 4 * 2 * elements, group: 0 }));

    let mut square = Graph::default();
    let x = square.input(F32, &[5]);
    let result = square.result(F32, &[5]);
    square.node("Mul", 14, &[x, x], &[result], &[]);
    assert_eq!(square.show(claim), [Some(Claim { flops: 5, bytes: 4 * 10, group: 0 })]);

    let mut conv = Graph::default();
    let x = conv.input(F32, &[1, 4, 8, 8]);
    let kernel = conv.input(F32, &[6, 2, 3, 3]);
    let result = conv.result(F32, &[1, 6, 6, 6]);
    conv.node("Conv", 11, &[x, kernel], &[result], &[("group", Attr::Int(2))]);
    let flops = 2 * 6 * 6 * 6 * 2 * 3 * 3;
    assert_eq!(conv.show(claim), [Some(Claim { flops, bytes: 4 * (256 + 108 + 216), group: 0 })]);
}

#[test]
fn large_constants_are_arguments_and_small_ones_literals() {
    let emitted = layer().emitted().unwrap();
    assert_eq!(emitted.inputs, [0, 1]);
    assert!(
        emitted.text.contains("main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x600xf32>)"),
        "{}",
        emitted.text
    );
    let all = EmitOptions { max_inline_bytes: u64::MAX, numerics: 0, donors: &[] };
    assert_eq!(layer().show(|graph| emit(graph, &all)).unwrap().inputs, [0]);
    let none = EmitOptions { max_inline_bytes: 0, numerics: 0, donors: &[] };
    assert_eq!(layer().show(|graph| emit(graph, &none)).unwrap().inputs, [0, 1, 2]);

    let x = [0.5, -1.0, 0.25, -2.0, 0.0, 1.0];
    let expected = (0..2).flat_map(|row| {
        (0..600).map(move |column| {
            let sum: f32 = (0..3).map(|i| x[row * 3 + i] * (i * 600 + column) as f32).sum();
            (sum + 1.0).max(0.0)
        })
    });
    let expected: Vec<f32> = expected.collect();
    check(&layer(), &[f32s(&[2, 3], &x)], &[f32s(&[2, 600], &expected)]);
}

#[test]
fn inputs_that_are_given_up_are_marked() {
    let options = EmitOptions { max_inline_bytes: 1024, numerics: 0, donors: &[0] };
    let text = layer().show(|graph| emit(graph, &options)).unwrap().text;
    assert!(
        text.contains("%arg0: tensor<2x3xf32> {jax.buffer_donor = true}, %arg1: tensor<3x600xf32>)"),
        "{text}"
    );
}

#[test]
fn the_same_graph_gives_the_same_text() {
    assert_eq!(layer().emitted().unwrap(), layer().emitted().unwrap());
}

#[test]
fn numerics_say_how_precise_products_are() {
    let text = |numerics| {
        let options = EmitOptions { max_inline_bytes: 0, numerics, donors: &[] };
        layer().show(|graph| emit(graph, &options)).unwrap().text
    };
    assert!(text(0).contains("precision HIGHEST") && !text(0).contains("precision DEFAULT"));
    assert!(text(1).contains("precision DEFAULT") && !text(1).contains("precision HIGHEST"));
    // An unknown bit allows nothing.
    assert!(text(0x80).contains("precision HIGHEST"));
}

#[test]
fn inputs_constants_and_values_from_around_may_go_out_as_they_are() {
    let mut graph = Graph::default();
    let x = graph.input(F32, &[2]);
    let unused = graph.input(F32, &[3]);
    let around = graph.result(F32, &[2]);
    let constant = graph.constant(f32s(&[2], &[3.0, 4.0]));
    let sum = graph.result(F32, &[2]);
    graph.node("Add", 14, &[x, around], &[sum], &[]);
    for value in [constant, sum, x] {
        graph.output(value);
    }
    let emitted = graph.emitted().unwrap();
    assert_eq!(emitted.inputs, [x, unused, around]);
    assert!(emitted.text.contains("%arg2: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)"));

    let mut graph = Graph::default();
    let x = graph.input(F32, &[2]);
    let constant = graph.constant(f32s(&[2], &[3.0, 4.0]));
    graph.output(constant);
    graph.output(x);
    let given = f32s(&[2], &[1.0, 2.0]);
    check(&graph, std::slice::from_ref(&given), &[f32s(&[2], &[3.0, 4.0]), given.clone()]);
}

/// One node that must not be claimed, of which the emission says why.
fn refused(op: &str, since: u32, inputs: &[&[i64]], result: &[i64], attrs: &[(&str, Attr)]) -> String {
    let mut graph = Graph::default();
    let inputs: Vec<u32> = inputs.iter().map(|dims| graph.input(F32, dims)).collect();
    let result = graph.result(F32, result);
    graph.node(op, since, &inputs, &[result], attrs);
    graph.output(result);
    assert_eq!(graph.claimed(), (0, 1), "{op}");
    graph.emitted().unwrap_err().text().to_owned()
}

#[test]
fn what_cannot_be_expressed_is_not_claimed_and_says_why() {
    assert!(refused("Loop", 16, &[&[1]], &[1], &[]).contains("Loop"));
    assert!(refused("Add", 14, &[&[2], &[3]], &[3], &[]).contains("extents"));
    // The types of the graph hold, not those of the result.
    assert!(refused("Relu", 14, &[&[2]], &[3], &[]).contains("expected tensor<3xf32>"));
    assert!(refused("Relu", 14, &[&[-1]], &[-1], &[]).contains("not known"));
    let training = [("training_mode", Attr::Int(1))];
    assert!(refused("BatchNormalization", 15, &[&[1, 2, 3]], &[1, 2, 3], &training).contains("training"));
    // Bounds that are not constant.
    let mut graph = Graph::default();
    let (x, starts, ends) = (graph.input(F32, &[4]), graph.input(I64, &[1]), graph.input(I64, &[1]));
    let result = graph.result(F32, &[2]);
    graph.node("Slice", 13, &[x, starts, ends], &[result], &[]);
    assert_eq!(graph.claimed(), (0, 1));
    // The positions of a pool's maxima.
    let mut graph = Graph::default();
    let x = graph.input(F32, &[1, 1, 4]);
    let (result, positions) = (graph.result(F32, &[1, 1, 3]), graph.result(I64, &[1, 1, 3]));
    graph.node("MaxPool", 12, &[x], &[result, positions], &[("kernel_shape", Attr::Ints(vec![2]))]);
    assert_eq!(graph.claimed(), (0, 1));
}

#[test]
fn optional_operands_may_be_absent_in_the_middle() {
    let mut graph = Graph::default();
    let x = graph.input(F32, &[4]);
    let most = graph.constant(f32s(&[], &[2.0]));
    let result = graph.result(F32, &[4]);
    graph.node("Clip", 13, &[x, NONE, most], &[result], &[]);
    graph.output(result);
    check(&graph, &[f32s(&[4], &[-9.0, 1.0, 2.5, f32::NAN])], &[f32s(&[4], &[-9.0, 1.0, 2.0, f32::NAN])]);
}

#[test]
fn arrays_without_elements_are_arrays() {
    let mut graph = Graph::default();
    let x = graph.input(F32, &[0, 3]);
    let more = graph.constant(f32s(&[0, 3], &[]));
    let rest = graph.constant(irregular(&[2, 3], 1));
    let (sum, joined, total) =
        (graph.result(F32, &[0, 3]), graph.result(F32, &[2, 3]), graph.result(F32, &[3]));
    graph.node("Add", 14, &[x, more], &[sum], &[]);
    graph.node("Concat", 13, &[sum, rest], &[joined], &[("axis", Attr::Int(0))]);
    let axes = graph.constant(i64s(&[1], &[0]));
    graph.node("ReduceSum", 13, &[sum, axes], &[total], &[("keepdims", Attr::Int(0))]);
    graph.output(joined);
    graph.output(total);
    check(&graph, &[f32s(&[0, 3], &[])], &[irregular(&[2, 3], 1), f32s(&[3], &[0.0; 3])]);
}
