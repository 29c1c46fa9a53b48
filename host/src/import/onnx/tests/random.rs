//! Random ops: the nodes that they become, refusals, seeds of runs and iterations, and the distributions of numbers.

use super::*;
use crate::session::{RunOptions, SessionOptions};
use crate::{BucketOptions, InputView, Model, Runtime, Session, Tensor};
use devbay_core::plan::PlanOptions;

/// Returns a model with the input `x: f32[2,3,4]`.
fn of(nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    model(22, graph(nodes, outputs))
}

/// Returns a node that draws uniform numbers of a shape.
fn uniform(output: &str, shape: &[i64]) -> NodeProto {
    node("RandomUniform", &[], &[output]).with(ints("shape", shape))
}

#[test]
fn nodes_become_draws_and_their_formulas() {
    let cases = [
        (
            "uniform numbers, of which two nodes have two streams",
            of(
                vec![
                    uniform("a", &[2]).with(float("low", -1.0)).named("u"),
                    node("RandomUniformLike", &["x"], &["b"]).with(int("dtype", 11)),
                ],
                &["a", "b"],
            ),
            "program \"g\"(%x: f32[2,3,4], %devbay.seed: u32[4]) {
             %2 = const i64[1] [2]
             %3 = devbay.Philox@1(%devbay.seed, %2) as \"u/Philox\" {dtype = 1, stream = 0}
             %4 = const f32[] [2.0]
             %5 = Mul@14(%3, %4) as \"u/Mul\"
             %6 = const f32[] [-1.0]
             %a = Add@14(%5, %6) as \"u/Add\"
             %8 = Shape@25(%x)
             %b = devbay.Philox@1(%devbay.seed, %8) {dtype = 11, stream = 1}
             return %a, %b",
        ),
        (
            "normal numbers with a seed of the node's own",
            of(
                vec![
                    node("RandomNormalLike", &["x"], &["y"])
                        .with(float("seed", 1.0))
                        .with(float("mean", 3.0))
                        .with(int("dtype", 10)),
                ],
                &["y"],
            ),
            "program \"g\"(%x: f32[2,3,4], %devbay.seed: u32[4]) {
             %2 = Shape@25(%x)
             %3 = devbay.Philox@1(%devbay.seed, %2) {dtype = 1, key = [1065353216, 0], stream = 2147483648}
             %4 = devbay.Philox@1(%devbay.seed, %2) {dtype = 1, key = [1065353216, 0], stream = 2147483649}
             %5 = const f32[] [1.0]
             %6 = Sub@14(%5, %3)
             %7 = Log@13(%6)
             %8 = const f32[] [-2.0]
             %9 = Mul@14(%7, %8)
             %10 = Sqrt@13(%9)
             %11 = const f32[] [6.2831855]
             %12 = Mul@14(%4, %11)
             %13 = Cos@22(%12)
             %14 = Mul@14(%10, %13)
             %15 = const f32[] [3.0]
             %16 = Add@14(%14, %15)
             %y = Cast@28(%16) {to = 10}
             return %y",
        ),
        (
            "truths with a probability",
            of(vec![node("Bernoulli", &["x"], &["y"]).with(int("dtype", 9))], &["y"]),
            "program \"g\"(%x: f32[2,3,4], %devbay.seed: u32[4]) {
             %2 = Shape@25(%x)
             %3 = devbay.Philox@1(%devbay.seed, %2) {dtype = 1, stream = 0}
             %y = Less@13(%3, %x)
             return %y",
        ),
    ];
    for (case, model, expected) in cases {
        check(case, &model, expected);
    }
}

#[test]
fn wrong_attributes_are_refused() {
    let cases = [
        (node("RandomNormal", &[], &["y"]), "expected the attribute shape, found none"),
        (uniform("y", &[2, -1]), "expected extents of 0 or more as shape, found -1"),
        (uniform("y", &[2]).with(int("dtype", 7)), "expected a float as dtype, found i64"),
        (uniform("y", &[2]).with(float("low", 2.0)), "expected low below high, found 2 and 1"),
        (uniform("y", &[2]).with(float("high", f32::NAN)), "expected a finite high, found NaN"),
        (
            node("RandomNormalLike", &["x"], &["y"]).with(float("scale", -1.0)),
            "expected a scale of 0 or more",
        ),
        (
            node("RandomNormalLike", &["x"], &["y"]).with(float("mean", f32::INFINITY)),
            "expected a finite mean",
        ),
        (node("Multinomial", &["x"], &["y"]), "expected an input of two dimensions, found 3"),
        (
            node("Multinomial", &["m"], &["y"]).with(int("sample_size", 0)),
            "expected a sample_size of 1 or more",
        ),
        (
            node("Multinomial", &["m"], &["y"]).with(int("dtype", 1)),
            "expected i32 or i64 as dtype, found f32",
        ),
        (node("Bernoulli", &["n"], &["y"]), "expected a float as input 0, found i64"),
        (node("Dropout", &["x", "one", "on"], &["y"]), "expected a ratio from 0 to below 1, found 1"),
    ];
    for (node, expected) in cases {
        let mut graph = graph(vec![node.named("it")], &["y"]);
        graph.input.push(value("m", DataType::Float, Some(&[2, 3])));
        graph.input.push(value("n", DataType::Int64, Some(&[2, 3])));
        graph.initializer = vec![
            TensorProto { float_data: vec![1.0], ..tensor("one", DataType::Float, &[]) },
            TensorProto { int32_data: vec![1], ..tensor("on", DataType::Bool, &[]) },
        ];
        let model = model(22, graph);
        check_refused(expected, &model, ErrorKind::InvalidModel, expected);
        let error = import(&model).expect_err("as above");
        assert!(error.place().node.starts_with("it ("), "{error}");
    }
    let mut graph = graph(vec![], &["x"]);
    graph.input.push(value("devbay.seed", DataType::Uint32, Some(&[4])));
    check_refused(
        "an input",
        &model(22, graph),
        ErrorKind::InvalidModel,
        "a name that devbay keeps for itself",
    );
}

fn runtime(threads: usize) -> Runtime {
    Runtime::builder().threads(threads).link(devbay_plugin_cpu::PLUGIN).build().unwrap()
}

/// Makes a session on the processor.
fn session(model: &ModelProto, options: SessionOptions) -> Session {
    let model = Model::from_bytes(model.encode_to_vec()).unwrap();
    Session::with_options(&model, &runtime(1).devices()[0], options).unwrap()
}

fn seeded(seed: u64) -> SessionOptions {
    SessionOptions { seed: Some(seed), ..SessionOptions::default() }
}

fn x() -> Tensor {
    Tensor::from_elements(&[2, 3, 4], &[0.5f32; 24]).unwrap()
}

/// Returns the bytes of the outputs of the next run.
fn run(session: &Session) -> Vec<Vec<u8>> {
    run_with(session, None)
}

fn run_with(session: &Session, seed: Option<u64>) -> Vec<Vec<u8>> {
    let options = RunOptions { seed, ..RunOptions::default() };
    let outputs = session.run_with(&[("x", &x())], &options).unwrap();
    outputs.iter().map(|output| output.bytes().to_vec()).collect()
}

#[test]
fn runs_differ_and_a_seed_repeats_them() {
    let like = |output: &str| node("RandomNormalLike", &["x"], &[output]);
    let model = of(vec![like("a"), like("b"), like("c").with(float("seed", 7.0))], &["a", "b", "c"]);
    let (one, same, other) =
        (session(&model, seeded(1)), session(&model, seeded(1)), session(&model, seeded(2)));
    assert_eq!(one.inputs().len(), 1, "the seed is no input of the caller's");
    let first = run(&one);
    assert!(first[0] != first[1], "two nodes that are alike differ");
    assert_eq!(run(&same), first);
    let second = run(&one);
    assert!((0..3).all(|i| first[i] != second[i]), "runs differ, with a seed of the node's own as well");
    assert_eq!(run(&same), second);
    // A seed of the node's own is kept, whatever that of the session.
    let of_other = run(&other);
    assert!(of_other[0] != first[0] && of_other[2] == first[2]);
    // A fixed run is like the first one of its seed, and does not count.
    assert_eq!(run_with(&one, Some(2)), of_other);
    assert_eq!(run(&one), run(&same));
    // Without a seed, the operating system draws one.
    let drawn = [(); 2].map(|()| run(&session(&model, SessionOptions::default())));
    assert!(drawn[0] != drawn[1], "the chance of equal seeds is 2^-64");
}

#[test]
fn all_ways_to_run_take_the_next_seed() {
    let model = of(vec![node("RandomUniformLike", &["x"], &["y"])], &["y"]);
    let expected = session(&model, seeded(5));
    let expected: Vec<Vec<u8>> = (0..4).map(|_| run(&expected).remove(0)).collect();
    let (session, x) = (session(&model, seeded(5)), x());
    let (inputs, options) = ([InputView::of(&x)], RunOptions::default());
    let mut memory = vec![0u8; 96];
    session.run_into(&inputs, &mut [&mut memory], &options).unwrap();
    assert_eq!(memory, expected[0]);
    let run = session.run_async(&[("x", &x)], &options).unwrap();
    assert_eq!(run.wait().unwrap()[0].bytes(), expected[1]);
    let on_device = crate::DeviceTensor::on_host(&x).unwrap();
    let outputs = session.run_on_device(&[("x", &on_device)], None, &options).unwrap();
    assert_eq!(outputs[0].to_tensor().unwrap().bytes(), expected[2]);
    assert_eq!(session.run_in_order(&inputs, &options).unwrap()[0].bytes(), expected[3]);
    assert!(
        session.bind(&inputs, &mut [&mut memory]).unwrap().is_none(),
        "a bound run would repeat its seed"
    );
    let error = session.run(&[("x", &x), ("devbay.seed", &x)]).expect_err("not of the caller's");
    assert!(error.text().contains("the model has no input `devbay.seed`"), "{error}");
}

#[test]
fn compiled_models_and_buckets_keep_the_seed() {
    let mut proto = of(vec![node("RandomUniformLike", &["x"], &["y"])], &["y"]);
    let named = |name: &str| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimParam(name.to_owned())),
        ..tensor_shape_proto::Dimension::default()
    };
    if let Some(graph) = &mut proto.graph {
        let tensor = type_proto::Tensor {
            elem_type: Some(DataType::Float as i32),
            shape: Some(TensorShapeProto { dim: vec![named("n")] }),
        };
        graph.input = vec![typed("x", type_proto::Value::TensorType(tensor))];
    }
    let x = Tensor::from_elements(&[5], &[0f32; 5]).unwrap();
    let run = |session: &Session| {
        let outputs = session.run(&[("x", &x)]).unwrap();
        outputs[0].elements::<f32>().unwrap().to_vec()
    };
    let plain = session(&proto, seeded(3));
    let expected = [run(&plain), run(&plain)];

    let file = std::env::temp_dir().join(format!("devbay-random-{}.dbx", std::process::id()));
    plain.compile_to(&file).unwrap();
    let compiled = Model::load(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(compiled.compiled_for().unwrap()[0].len(), 1);
    let compiled = Session::with_options(&compiled, &runtime(1).devices()[0], seeded(3)).unwrap();
    assert_eq!([run(&compiled), run(&compiled)], expected);

    let buckets =
        BucketOptions { sizes: vec![("n".to_owned(), "8".parse().unwrap())], ..BucketOptions::default() };
    let padded = session(&proto, SessionOptions { buckets: Some(buckets), ..seeded(3) });
    // One axis: the first numbers of eight are those of five.
    assert_eq!([run(&padded), run(&padded)], expected);
}

#[test]
fn iterations_differ() {
    // Three iterations, each with a number of its own, and one from a branch.
    let mut branches = ["then", "else"].map(|name| branch(vec![uniform(name, &[1])], &[name]));
    for graph in &mut branches {
        graph.input.clear();
    }
    let [then, otherwise] = branches;
    let choice = node("If", &["go"], &["b"])
        .with(graph_attribute("then_branch", then))
        .with(graph_attribute("else_branch", otherwise));
    let mut body =
        graph(vec![uniform("a", &[1]), choice, node("Identity", &["go"], &["on"])], &["on", "a", "b"]);
    body.input = vec![value("i", DataType::Int64, Some(&[])), value("go", DataType::Bool, Some(&[]))];
    let repeated = node("Loop", &["n", ""], &["a", "b"]).with(graph_attribute("body", body));
    let with_count = |outer: Vec<NodeProto>, outputs: &[&str]| {
        let mut graph = graph(outer, outputs);
        graph.initializer = vec![TensorProto { dims: vec![], ..int64s("n", &[3]) }];
        model(22, graph)
    };
    let in_loop = with_count(vec![repeated], &["a", "b"]);

    // A row of the input each, with a state beside the seed.
    let mut body = graph(vec![uniform("a", &[1]), node("Identity", &["s"], &["t"])], &["t", "a"]);
    body.input = vec![value("s", DataType::Float, Some(&[1])), value("row", DataType::Float, Some(&[3, 4]))];
    let scanned = node("Scan", &["first", "x"], &["last", "a"])
        .with(graph_attribute("body", body))
        .with(int("num_scan_inputs", 1));
    let in_scan = with_count(vec![uniform("first", &[1]), scanned], &["a", "last", "first"]);

    for (case, model) in [("Loop", in_loop), ("Scan", in_scan)] {
        let session_of = |passes| session(&model, SessionOptions { plans: passes, ..seeded(1) });
        let (all, none) = (session_of(PlanOptions::default()), session_of(without_passes()));
        let first = run(&all);
        let mut words: Vec<[u8; 4]> = first[0].as_chunks().0.to_vec();
        if case == "Loop" {
            words.extend(first[1].as_chunks().0);
        } else {
            assert_eq!(first[1], first[2], "the state is untouched");
            words.extend(first[2].as_chunks().0);
        }
        let n = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), n, "{case}: each number is its own: {first:?}");
        assert_eq!(run(&none), first, "{case}: passes change no bit");
        assert!(run(&all)[0] != first[0], "{case}: the next run differs");
    }
}

fn without_passes() -> PlanOptions {
    PlanOptions { passes: devbay_core::passes::Switches::none(), ..PlanOptions::default() }
}

#[test]
fn numbers_do_not_depend_on_threads() {
    let model = of(
        vec![uniform("u", &[50_000]), node("RandomNormal", &[], &["n"]).with(ints("shape", &[50_000]))],
        &["u", "n"],
    );
    let model = Model::from_bytes(model.encode_to_vec()).unwrap();
    let run = |threads| {
        let session = Session::with_options(&model, &runtime(threads).devices()[0], seeded(9)).unwrap();
        run(&session)
    };
    assert!(run(1) == run(4));
}

/// Returns an output in f64.
fn numbers(output: &Tensor) -> Vec<f64> {
    match output.elements::<f32>() {
        Some(floats) => floats.iter().map(|&value| value.into()).collect(),
        None => output.elements::<f64>().unwrap().to_vec(),
    }
}

/// Expects numbers to have a cumulative distribution, by Kolmogorov and Smirnov's test at the level 0.001.
fn check_distribution(case: &str, mut found: Vec<f64>, cumulative: impl Fn(f64) -> f64) {
    found.sort_by(f64::total_cmp);
    let n = found.len() as f64;
    let distance = found.iter().enumerate().map(|(i, &value)| {
        let expected = cumulative(value);
        (expected - i as f64 / n).abs().max((expected - (i as f64 + 1.0) / n).abs())
    });
    let (distance, allowed) = (distance.fold(0.0, f64::max), 1.95 / n.sqrt());
    assert!(distance < allowed, "{case}: off by {distance}, allowed is {allowed}");
}

/// Returns the normal distribution's cumulative probability (Abramowitz and Stegun, 26.2.17; error below 1e-7).
fn normal_below(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let factors = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let tail = factors.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = tail * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[test]
fn numbers_have_their_distributions() {
    let of_type = |op: &str, output: &str, dtype: i64| {
        node(op, &[], &[output]).with(ints("shape", &[100, 200])).with(int("dtype", dtype))
    };
    let uniform = |output, dtype| {
        of_type("RandomUniform", output, dtype).with(float("low", -2.0)).with(float("high", 6.0))
    };
    let normal = |output, dtype| {
        of_type("RandomNormal", output, dtype).with(float("mean", 5.0)).with(float("scale", 2.0))
    };
    let nodes = vec![uniform("u", 1), uniform("v", 11), normal("n", 1), normal("m", 11)];
    let session = session(&of(nodes, &["u", "v", "n", "m"]), seeded(1));
    let outputs = session.run(&[("x", &x())]).unwrap();
    for (case, output) in ["uniform f32", "uniform f64"].iter().zip(&outputs) {
        check_distribution(case, numbers(output), |value| ((value + 2.0) / 8.0).clamp(0.0, 1.0));
    }
    for (case, output) in ["normal f32", "normal f64"].iter().zip(&outputs[2..]) {
        let found = numbers(output);
        let n = found.len() as f64;
        let mean = found.iter().sum::<f64>() / n;
        let variance = found.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        // Three standard errors of each.
        assert!((mean - 5.0).abs() < 3.0 * 2.0 / n.sqrt(), "{case}: mean {mean}");
        assert!((variance / 4.0 - 1.0).abs() < 3.0 * (2.0 / n).sqrt(), "{case}: variance {variance}");
        check_distribution(case, found, |value| normal_below((value - 5.0) / 2.0));
    }
    // Neighbours are not alike: their correlation is within three standard errors.
    let found = numbers(&outputs[2]);
    let products = found.windows(2).map(|pair| (pair[0] - 5.0) * (pair[1] - 5.0) / 4.0);
    assert!((products.sum::<f64>() / found.len() as f64).abs() < 3.0 / (found.len() as f64).sqrt());
}

#[test]
fn choices_have_their_probabilities() {
    let mut graph = graph(
        vec![
            node("Bernoulli", &["p"], &["b"]).with(int("dtype", 7)),
            node("Multinomial", &["l"], &["m"]).with(int("sample_size", 20_000)).with(int("dtype", 7)),
            node("Multinomial", &["l"], &["small"]).with(int("sample_size", 3)),
        ],
        &["b", "m", "small"],
    );
    // Three rows of probabilities; logarithms of them with another sum, one of which never is chosen.
    let p: Vec<f32> = [0.0, 0.25, 1.0].iter().flat_map(|&p| [p; 20_000]).collect();
    graph.initializer = vec![
        TensorProto { float_data: p, ..tensor("p", DataType::Float, &[3, 20_000]) },
        TensorProto {
            float_data: vec![3.0, 3.0 + 3f32.ln(), f32::NEG_INFINITY, 0.0, 0.0, 0.0],
            ..tensor("l", DataType::Float, &[2, 3])
        },
    ];
    let session = session(&model(22, graph), seeded(4));
    let outputs = session.run(&[("x", &x())]).unwrap();
    let share = |values: &[i64], class: i64| {
        values.iter().filter(|&&value| value == class).count() as f64 / values.len() as f64
    };
    let near = |found: f64, expected: f64| {
        // Four standard errors: there are a few of them.
        let allowed = 4.0 * (expected * (1.0 - expected) / 20_000.0).sqrt();
        assert!((found - expected).abs() <= allowed, "{found}, expected {expected} within {allowed}");
    };
    let rows = |i: usize| outputs[i].elements::<i64>().unwrap().chunks(20_000).collect::<Vec<_>>();
    for (row, expected) in rows(0).iter().zip([0.0, 0.25, 1.0]) {
        near(share(row, 1), expected);
        near(share(row, 0), 1.0 - expected);
    }
    for (row, expected) in rows(1).iter().zip([[0.25, 0.75, 0.0], [1.0 / 3.0; 3]]) {
        (0..).zip(expected).for_each(|(class, expected)| near(share(row, class), expected));
    }
    assert_eq!((outputs[2].shape(), outputs[2].elements::<i32>().unwrap().len()), (&[2usize, 3][..], 6));
}

#[test]
fn dropout_keeps_a_share_and_scales_it() {
    let n = 20_000;
    let mut graph = graph(vec![node("Dropout", &["d", "r", "on"], &["y", "mask"])], &["y", "mask"]);
    graph.input.push(value("d", DataType::Float, Some(&[n])));
    graph.input.push(value("r", DataType::Float, Some(&[])));
    graph.input.push(value("on", DataType::Bool, Some(&[])));
    let session = session(&model(22, graph), seeded(8));
    let data: Vec<f32> = (0..n).map(|i| i as f32 - 5.0).collect();
    let data = Tensor::from_elements(&[n as usize], &data).unwrap();
    let run = |ratio: f32, on: u8| {
        let ratio = Tensor::from_elements(&[], &[ratio]).unwrap();
        let on = Tensor::from_bytes(devbay_core::tensor::BOOL, &[], &[on]).unwrap();
        let outputs = session.run(&[("x", &x()), ("d", &data), ("r", &ratio), ("on", &on)]).unwrap();
        (outputs[0].elements::<f32>().unwrap().to_vec(), outputs[1].bytes().to_vec())
    };
    let given = data.elements::<f32>().unwrap();
    let (y, mask) = run(0.25, 1);
    let kept = mask.iter().filter(|&&kept| kept == 1).count() as f64 / n as f64;
    assert!((kept - 0.75).abs() < 4.0 * (0.75 * 0.25 / n as f64).sqrt(), "{kept}");
    for ((y, x), kept) in y.iter().zip(given).zip(&mask) {
        let expected = if *kept == 1 { x / 0.75 } else { 0.0 };
        assert!((y - expected).abs() <= expected.abs() * 1e-6, "{y}, expected {expected}");
    }
    assert!(run(0.25, 1).1 != mask, "the next run drops others");
    for (case, (y, mask)) in [("not training", run(0.25, 0)), ("a ratio of 0", run(0.0, 1))] {
        assert!(y == given && mask.iter().all(|&kept| kept == 1), "{case}");
    }
}
