//! Ops that move elements about, on real libraries.

use crate::support::graph::{Attr, Graph, NONE, Tensor, bools, check, check_node, counted, f32s, i32s, i64s};
use devbay_plugin_api::sdk::{F32, I64};

fn ints(list: &[i64]) -> Attr {
    Attr::Ints(list.to_vec())
}

/// One node on float32 numbers, whose other inputs are constant integers.
fn run(op: &str, since: u32, x: &Tensor, constants: &[&[i64]], attrs: &[(&str, Attr)], expected: &Tensor) {
    let constants: Vec<Tensor> = constants.iter().map(|list| i64s(&[list.len() as i64], list)).collect();
    check_node(op, since, std::slice::from_ref(x), &constants, attrs, std::slice::from_ref(expected));
}

#[test]
fn shapes_change_and_elements_stay() {
    let x = counted(&[2, 1, 3]);
    run("Reshape", 14, &x, &[&[3, -1]], &[], &counted(&[3, 2]));
    run("Flatten", 13, &x, &[], &[("axis", Attr::Int(2))], &counted(&[2, 3]));
    run("Squeeze", 13, &x, &[&[1]], &[], &counted(&[2, 3]));
    run("Squeeze", 11, &x, &[], &[("axes", ints(&[-2]))], &counted(&[2, 3]));
    run("Unsqueeze", 13, &x, &[&[0, 4]], &[], &counted(&[1, 2, 1, 3, 1]));
}

#[test]
fn axes_are_exchanged() {
    let x = counted(&[2, 3]);
    let turned = f32s(&[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    run("Transpose", 13, &x, &[], &[], &turned);
    run("Transpose", 13, &x, &[], &[("perm", ints(&[1, 0]))], &turned);
    let cube = counted(&[2, 1, 3]);
    run(
        "Transpose",
        13,
        &cube,
        &[],
        &[("perm", ints(&[1, 2, 0]))],
        &f32s(&[1, 3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
    );
}

#[test]
fn elements_are_repeated() {
    let column = f32s(&[2, 1], &[1.0, 2.0]);
    run("Expand", 13, &column, &[&[1, 2, 2]], &[], &f32s(&[1, 2, 2], &[1.0, 1.0, 2.0, 2.0]));
    let x = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let expected = [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0, 1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0];
    run("Tile", 13, &x, &[&[2, 2]], &[], &f32s(&[4, 4], &expected));
}

#[test]
fn parts_are_joined_and_split() {
    let (x, y) = (counted(&[2, 2]), f32s(&[2, 1], &[8.0, 9.0]));
    let joined = f32s(&[2, 3], &[0.0, 1.0, 8.0, 2.0, 3.0, 9.0]);
    check_node(
        "Concat",
        13,
        &[x.clone(), y.clone()],
        &[],
        &[("axis", Attr::Int(-1))],
        std::slice::from_ref(&joined),
    );
    let axis = ("axis", Attr::Int(1));
    let sizes = i64s(&[2], &[2, 1]);
    check_node(
        "Split",
        13,
        std::slice::from_ref(&joined),
        &[sizes],
        std::slice::from_ref(&axis),
        &[x.clone(), y.clone()],
    );
    let attrs = [axis.clone(), ("split", ints(&[2, 1]))];
    check_node("Split", 11, std::slice::from_ref(&joined), &[], &attrs, &[x, y]);
    // Equal parts, of which the last is smaller.
    let parts = [f32s(&[2], &[0.0, 1.0]), f32s(&[2], &[2.0, 3.0]), f32s(&[1], &[4.0])];
    check_node("Split", 18, &[counted(&[5])], &[], &[("num_outputs", Attr::Int(3))], &parts);
}

#[test]
fn slices_go_both_ways() {
    let x = counted(&[6]);
    let slice = |start: i64, end: i64, step: i64, expected: &[f32]| {
        run(
            "Slice",
            13,
            &x,
            &[&[start], &[end], &[0], &[step]],
            &[],
            &f32s(&[expected.len() as i64], expected),
        );
    };
    slice(1, 4, 1, &[1.0, 2.0, 3.0]);
    slice(0, i64::MAX, 4, &[0.0, 4.0]);
    slice(-2, i64::MAX, 1, &[4.0, 5.0]);
    slice(-100, -4, 1, &[0.0, 1.0]);
    slice(4, 1, -1, &[4.0, 3.0, 2.0]);
    slice(-1, i64::MIN, -2, &[5.0, 3.0, 1.0]);
    slice(100, -100, -4, &[5.0, 1.0]);
    slice(4, 2, 1, &[]);
    slice(1, 3, -1, &[]);
    let x = counted(&[3, 4]);
    // Axes in another order, with their own bounds.
    run("Slice", 13, &x, &[&[3, 1], &[0, 3], &[1, 0], &[-2, 1]], &[], &f32s(&[2, 2], &[7.0, 5.0, 11.0, 9.0]));
    run(
        "Slice",
        1,
        &x,
        &[],
        &[("starts", ints(&[1, -2])), ("ends", ints(&[2, 9]))],
        &f32s(&[1, 2], &[6.0, 7.0]),
    );
}

#[test]
fn pads_come_from_a_constant_or_from_the_array() {
    let x = f32s(&[4], &[1.0, 2.0, 3.0, 4.0]);
    let pad = |mode: &str, low: i64, high: i64, expected: &[f32]| {
        let attrs = [("mode", Attr::Text(mode.into()))];
        run("Pad", 19, &x, &[&[low, high]], &attrs, &f32s(&[expected.len() as i64], expected));
    };
    pad("constant", 1, 2, &[0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
    pad("constant", -1, 1, &[2.0, 3.0, 4.0, 0.0]);
    pad("reflect", 2, 3, &[3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]);
    pad("edge", 2, 1, &[1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
    pad("edge", -2, 1, &[3.0, 4.0, 4.0]);
    pad("wrap", 1, 2, &[4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
    let attrs = [("pads", ints(&[1, 0])), ("value", Attr::Float(9.0))];
    run("Pad", 2, &x, &[], &attrs, &f32s(&[5], &[9.0, 1.0, 2.0, 3.0, 4.0]));
    // A value that is known only when it runs, and axes.
    let mut graph = Graph::default();
    let (x, value) = (graph.input(F32, &[1, 2]), graph.input(F32, &[]));
    let (pads, axes) = (graph.constant(i64s(&[2], &[1, 0])), graph.constant(i64s(&[1], &[-2])));
    let result = graph.result(F32, &[2, 2]);
    graph.node("Pad", 18, &[x, pads, value, axes], &[result], &[]);
    graph.output(result);
    check(&graph, &[counted(&[1, 2]), f32s(&[], &[7.0])], &[f32s(&[2, 2], &[7.0, 7.0, 0.0, 1.0])]);
}

#[test]
fn elements_are_taken_from_places() {
    let x = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let one = std::slice::from_ref(&x);
    let places = i64s(&[2], &[-1, 0]);
    let both = [x.clone(), places.clone()];
    let rows = f32s(&[2, 2], &[5.0, 6.0, 1.0, 2.0]);
    check_node("Gather", 13, &both, &[], &[], std::slice::from_ref(&rows));
    check_node("Gather", 13, one, std::slice::from_ref(&places), &[], &[rows]);
    check_node("Gather", 13, one, &[i64s(&[], &[-2])], &[], &[f32s(&[2], &[3.0, 4.0])]);
    let axis = [("axis", Attr::Int(1))];
    let columns = f32s(&[3, 1, 2], &[2.0, 1.0, 4.0, 3.0, 6.0, 5.0]);
    check_node("Gather", 13, &[x.clone(), i32s(&[1, 2], &[1, -2])], &[], &axis, &[columns]);

    let places = i64s(&[3, 1], &[1, 0, -1]);
    check_node("GatherElements", 13, &[x.clone(), places], &[], &axis, &[f32s(&[3, 1], &[2.0, 3.0, 6.0])]);

    let places = i64s(&[2, 2], &[0, 1, -1, 0]);
    check_node("GatherND", 13, &[x.clone(), places], &[], &[], &[f32s(&[2], &[2.0, 5.0])]);
    check_node(
        "GatherND",
        13,
        &[x.clone(), i64s(&[2, 1], &[2, 0])],
        &[],
        &[],
        &[f32s(&[2, 2], &[5.0, 6.0, 1.0, 2.0])],
    );
    let batch = [("batch_dims", Attr::Int(1))];
    check_node(
        "GatherND",
        13,
        &[x, i64s(&[3, 1], &[1, 0, -1])],
        &[],
        &batch,
        &[f32s(&[3], &[2.0, 3.0, 6.0])],
    );
}

#[test]
fn elements_are_put_at_places() {
    let x = f32s(&[4], &[1.0, 2.0, 3.0, 4.0]);
    let run = |op: &str, places: Tensor, reduction: &str, expected: &[f32]| {
        let attrs = [("reduction", Attr::Text(reduction.into()))];
        let inputs = [x.clone(), places, f32s(&[3], &[10.0, 20.0, 0.5])];
        check_node(op, 18, &inputs, &[], &attrs, &[f32s(&[4], expected)]);
    };
    run("ScatterElements", i64s(&[3], &[2, -4, 1]), "none", &[20.0, 0.5, 10.0, 4.0]);
    run("ScatterElements", i64s(&[3], &[3, 3, 0]), "add", &[1.5, 2.0, 3.0, 34.0]);
    run("ScatterElements", i64s(&[3], &[3, 3, 0]), "mul", &[0.5, 2.0, 3.0, 800.0]);
    run("ScatterND", i64s(&[3, 1], &[3, 3, 0]), "max", &[1.0, 2.0, 3.0, 20.0]);
    run("ScatterND", i64s(&[3, 1], &[-1, -2, 0]), "min", &[0.5, 2.0, 3.0, 4.0]);
    // Whole rows.
    let inputs = [counted(&[3, 2]), i64s(&[1, 1], &[1]), f32s(&[1, 2], &[8.0, 9.0])];
    check_node("ScatterND", 13, &inputs, &[], &[], &[f32s(&[3, 2], &[0.0, 1.0, 8.0, 9.0, 4.0, 5.0])]);
}

#[test]
fn places_become_ones() {
    let inputs = [i64s(&[3], &[1, -1, 5])];
    let constants = [i64s(&[], &[3]), f32s(&[2], &[0.0, 2.0])];
    let rows = f32s(&[3, 3], &[0.0, 2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
    check_node("OneHot", 11, &inputs, &constants, &[], &[rows]);
    let columns = f32s(&[3, 3], &[0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
    check_node("OneHot", 11, &inputs, &constants, &[("axis", Attr::Int(0))], &[columns]);
}

#[test]
fn blocks_become_channels_and_back() {
    let size = ("blocksize", Attr::Int(2));
    // One pixel of 8 channels: the channels are 2 for each of 4 places, the place first or the channel first.
    let x = counted(&[1, 8, 1, 1]);
    let one = std::slice::from_ref(&size);
    let deep = f32s(&[1, 2, 2, 2], &[0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    run("DepthToSpace", 13, &x, &[], one, &deep);
    run(
        "DepthToSpace",
        13,
        &x,
        &[],
        &[size.clone(), ("mode", Attr::Text("CRD".into()))],
        &counted(&[1, 2, 2, 2]),
    );
    run("SpaceToDepth", 13, &deep, &[], one, &x);
}

#[test]
fn triangles_are_kept() {
    let x = f32s(&[3, 3], &[1.0; 9]);
    run("Trilu", 14, &x, &[], &[], &f32s(&[3, 3], &[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]));
    let lower = [("upper", Attr::Int(0))];
    let expected = f32s(&[3, 3], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    check_node("Trilu", 14, &[x], &[i64s(&[], &[-1])], &lower, &[expected]);
}

#[test]
fn constants_are_made() {
    let mut graph = Graph::default();
    let x = graph.input(F32, &[2, 3]);
    let mut expected = Vec::new();
    let mut made =
        |op: &str, since, inputs: &[u32], attrs: &[(&str, Attr)], tensor: Tensor, graph: &mut Graph| {
            let result = graph.result(tensor.dtype, &tensor.dims);
            graph.node(op, since, inputs, &[result], attrs);
            graph.output(result);
            expected.push(tensor);
        };
    made("Shape", 15, &[x], &[], i64s(&[2], &[2, 3]), &mut graph);
    made("Shape", 15, &[x], &[("start", Attr::Int(-1))], i64s(&[1], &[3]), &mut graph);
    made("Size", 13, &[x], &[], i64s(&[], &[6]), &mut graph);
    made("Constant", 13, &[], &[("value_float", Attr::Float(0.5))], f32s(&[], &[0.5]), &mut graph);
    made("Constant", 13, &[], &[("value_ints", ints(&[4, -5]))], i64s(&[2], &[4, -5]), &mut graph);
    let value = bools(&[2], &[true, false]);
    made("Constant", 13, &[], &[("value", Attr::Tensor(value.clone()))], value, &mut graph);
    let shape = graph.constant(i64s(&[2], &[1, 2]));
    made("ConstantOfShape", 9, &[shape], &[], f32s(&[1, 2], &[0.0; 2]), &mut graph);
    let value = Attr::Tensor(i64s(&[1], &[7]));
    made("ConstantOfShape", 9, &[shape], &[("value", value)], i64s(&[1, 2], &[7, 7]), &mut graph);
    let (start, limit, delta) =
        (graph.constant(i64s(&[], &[10])), graph.constant(i64s(&[], &[3])), graph.constant(i64s(&[], &[-3])));
    made("Range", 11, &[start, limit, delta], &[], i64s(&[3], &[10, 7, 4]), &mut graph);
    let eye = f32s(&[2, 3], &[0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    made("EyeLike", 9, &[x], &[("k", Attr::Int(1))], eye, &mut graph);
    check(&graph, &[counted(&[2, 3])], &expected);
}

#[test]
fn dropout_drops_nothing() {
    let x = counted(&[3]);
    check_node("Dropout", 13, std::slice::from_ref(&x), &[], &[], &[x.clone(), bools(&[3], &[true; 3])]);
    let mut graph = Graph::default();
    let input = graph.input(F32, &[3]);
    let training = graph.constant(bools(&[], &[true]));
    let result = graph.result(F32, &[3]);
    graph.node("Dropout", 13, &[input, NONE, training], &[result], &[]);
    assert_eq!(graph.claimed(), (0, 1));
}

#[test]
fn sequences_are_reversed_up_to_their_length() {
    let x = f32s(&[4, 2], &[0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    let expected = f32s(&[4, 2], &[1.0, 7.0, 0.0, 6.0, 2.0, 5.0, 3.0, 4.0]);
    check_node("ReverseSequence", 10, &[x, i64s(&[2], &[2, 4])], &[], &[], &[expected]);
}

#[test]
fn images_are_resized() {
    let resize = |attrs: &[(&str, &str)], x: &[f32], scales: f32, expected: &[f32]| {
        let mut graph = Graph::default();
        let input = graph.input(F32, &[1, 1, x.len() as i64]);
        let scales = graph.constant(f32s(&[3], &[1.0, 1.0, scales]));
        let result = graph.result(F32, &[1, 1, expected.len() as i64]);
        let attrs: Vec<_> = attrs.iter().map(|(name, text)| (*name, Attr::Text((*text).into()))).collect();
        graph.node("Resize", 13, &[input, NONE, scales], &[result], &attrs);
        graph.output(result);
        let dims = [1, 1, expected.len() as i64];
        check(&graph, &[f32s(&[1, 1, x.len() as i64], x)], &[f32s(&dims, expected)]);
    };
    let mode = |name| ("mode", name);
    let places = |name| ("coordinate_transformation_mode", name);
    // Places of the input: -0.25, 0.25, 0.75, 1.25.
    resize(&[], &[1.0, 3.0], 2.0, &[1.0, 1.0, 3.0, 3.0]);
    resize(&[mode("linear")], &[1.0, 3.0], 2.0, &[1.0, 1.5, 2.5, 3.0]);
    // 0, 0.5, 1, 1.5.
    let floor = ("nearest_mode", "floor");
    resize(&[places("asymmetric"), floor], &[1.0, 3.0], 2.0, &[1.0, 1.0, 3.0, 3.0]);
    resize(&[mode("linear"), places("asymmetric")], &[1.0, 3.0], 2.0, &[1.0, 2.0, 3.0, 3.0]);
    // 0, 1/3, 2/3, 1.
    resize(&[mode("linear"), places("align_corners")], &[1.0, 4.0], 2.0, &[1.0, 2.0, 3.0, 4.0]);
    // 0.5 and 2.5: rounded down and rounded up.
    resize(&[], &[1.0, 2.0, 3.0, 4.0], 0.5, &[1.0, 3.0]);
    resize(&[("nearest_mode", "round_prefer_ceil")], &[1.0, 2.0, 3.0, 4.0], 0.5, &[2.0, 4.0]);
    resize(&[mode("linear")], &[1.0, 2.0, 3.0, 4.0], 0.5, &[1.5, 3.5]);
    // 0 and 1.5, which is not every element so many times.
    resize(&[places("asymmetric"), floor], &[1.0, 2.0, 3.0], 0.67, &[1.0, 2.0]);
    // Keys' weights at a half with a = -0.75: -3/32, 19/32, 19/32, -3/32; the ends go on for ever.
    let half = (1.0 * 19.0 + 2.0 * 19.0 - 3.0 * 1.0 - 3.0 * 2.0) / 32.0;
    resize(&[mode("cubic")], &[1.0, 2.0], 0.5, &[half]);
    assert!((cubic_at(0.5, &[1.0, 2.0]) - half).abs() < 1e-6);
    let elements = [1.0, 2.0, 4.0];
    let expected: Vec<f32> =
        (0..6).map(|at| cubic_at((f64::from(at) + 0.5) / 2.0 - 0.5, &elements)).collect();
    resize(&[mode("cubic")], &elements, 2.0, &expected);
}

/// Cubic interpolation between elements, of which the first and the last go on for ever.
fn cubic_at(place: f64, elements: &[f32]) -> f32 {
    let (a, before) = (-0.75, place.floor());
    let weight = |x: f64| match x.abs() {
        x if x <= 1.0 => (a + 2.0) * x.powi(3) - (a + 3.0) * x.powi(2) + 1.0,
        x if x < 2.0 => a * x.powi(3) - 5.0 * a * x.powi(2) + 8.0 * a * x - 4.0 * a,
        _ => 0.0,
    };
    let element = |at: f64| f64::from(elements[at.clamp(0.0, elements.len() as f64 - 1.0) as usize]);
    let taps = (-1..3).map(|tap| before + f64::from(tap));
    taps.map(|at| weight(at - place) * element(at)).sum::<f64>() as f32
}

#[test]
fn upsample_repeats_elements() {
    let expected = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0, 3.0, 3.0];
    let x = counted(&[1, 1, 2, 2]);
    let scales = f32s(&[4], &[1.0, 1.0, 2.0, 2.0]);
    let expected = [f32s(&[1, 1, 4, 4], &expected)];
    check_node("Upsample", 9, std::slice::from_ref(&x), &[scales], &[], &expected);
    let attrs = [("scales", Attr::Floats(vec![1.0, 1.0, 2.0, 2.0]))];
    check_node("Upsample", 7, &[x], &[], &attrs, &expected);
}

#[test]
fn truth_values_and_integers_are_moved_too() {
    let mut graph = Graph::default();
    let x = graph.input(I64, &[2, 2]);
    let result = graph.result(I64, &[2, 2]);
    graph.node("Transpose", 13, &[x], &[result], &[]);
    graph.output(result);
    check(&graph, &[i64s(&[2, 2], &[1, 2, 3, 4])], &[i64s(&[2, 2], &[1, 3, 2, 4])]);
    let flags = [bools(&[2], &[true, false]), bools(&[1], &[true])];
    check_node("Concat", 13, &flags, &[], &[("axis", Attr::Int(0))], &[bools(&[3], &[true, false, true])]);
}
