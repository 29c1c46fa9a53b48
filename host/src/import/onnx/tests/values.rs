//! Models with strings, sequences, optionals and maps, run in sessions.

use super::*;
use crate::values::{Element, Map, Optional, Sequence, Strings, Value, ValueType};
use crate::{Model, RunOptions, Runtime, Session, Tensor};
use devbay_core::Error;
use std::time::Duration;

const ML: &str = "ai.onnx.ml";

fn texts_attribute(name: &str, texts: &[&str]) -> AttributeProto {
    let strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    AttributeProto { strings, ..attribute(name, AttributeType::Strings) }
}

/// Returns a model of nodes, from inputs of these types to outputs without types.
fn of_values(nodes: Vec<NodeProto>, inputs: Vec<ValueInfoProto>, outputs: &[&str]) -> ModelProto {
    let graph = GraphProto { input: inputs, ..graph(nodes, outputs) };
    let mut model = model(21, graph);
    model.opset_import.push(import_of(ML, 4));
    model.opset_import.push(import_of("com.microsoft", 1));
    model
}

fn text_input(name: &str) -> ValueInfoProto {
    value(name, DataType::String, None)
}

fn session(model: &ModelProto) -> Result<Session> {
    let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
    let model = Model::from_bytes(model.encode_to_vec())?;
    Session::new(&model, &runtime.device_for(&model)?)
}

fn run(model: &ModelProto, inputs: &[(&str, Value)]) -> Result<Vec<Value>> {
    let inputs: Vec<(&str, &Value)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
    session(model)?.run_values(&inputs, &RunOptions::default())
}

fn texts(shape: &[usize], texts: &[&str]) -> Value {
    Strings::from_texts(shape, texts).unwrap().into()
}

fn numbers(values: &[f32]) -> Value {
    Tensor::from_elements(&[values.len()], values).unwrap().into()
}

fn int64(value: i64) -> Value {
    Tensor::from_elements(&[], &[value]).unwrap().into()
}

/// Returns a value as text, to compare.
fn shown(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => {
            let numbers = tensor.elements::<f32>().map(|values| format!("{values:?}"));
            let all =
                numbers.unwrap_or_else(|| format!("{:?}", tensor.to_ints().unwrap().unwrap_or_default()));
            format!("{:?}{all}", tensor.shape())
        }
        Value::Strings(strings) => format!("{:?}{:?}", strings.shape(), strings.elements()),
        Value::Sequence(sequence) => {
            format!("({})", sequence.values().iter().map(shown).collect::<Vec<_>>().join(" "))
        }
        Value::Optional(optional) => format!("?{}", optional.value().map(shown).unwrap_or_default()),
        Value::Map(map) => format!("{{{} {}}}", shown(map.keys()), shown(map.values())),
    }
}

fn check_run(case: &str, model: &ModelProto, inputs: &[(&str, Value)], expected: &str) {
    let found = run(model, inputs).unwrap_or_else(|error| panic!("{case}: {error:?}"));
    let found: Vec<String> = found.iter().map(shown).collect();
    assert_eq!(found.join("; "), expected, "{case}");
}

fn refused(case: &str, outcome: Result<Vec<Value>>, kind: ErrorKind, words: &str) -> Error {
    let error = outcome.map(|values| values.iter().map(shown).collect::<Vec<_>>()).expect_err(case);
    assert_eq!(error.kind(), kind, "{case}: {error:?}");
    assert!(error.to_string().contains(words), "{case}: {error}\n expected {words}");
    error
}

#[test]
fn strings_between_segments() {
    // Splits, gathers and compares texts; a device counts.
    let nodes = vec![
        node("StringSplit", &["x"], &["parts", "counts"]).with(string("delimiter", " ")),
        node("Add", &["counts", "counts"], &["doubled"]),
        node("Gather", &["parts", "i"], &["firsts"]).with(int("axis", 1)),
        node("Concat", &["firsts", "firsts"], &["both"]).with(int("axis", 0)),
        node("Equal", &["firsts", "word"], &["is_word"]),
    ];
    let mut model = of_values(nodes, vec![text_input("x")], &["doubled", "both", "is_word"]);
    let graph = model.graph.as_mut().unwrap();
    let word = TensorProto { string_data: vec![b"b".to_vec()], ..tensor("word", DataType::String, &[1]) };
    graph.initializer = vec![TensorProto { dims: vec![], ..int64s("i", &[0]) }, word];
    let expected = "[2][4, 2]; [4][\"b\", \"ä\", \"b\", \"ä\"]; [2][1, 0]";
    check_run("strings", &model, &[("x", texts(&[2], &["b c", "ä"]))], expected);
    let session = session(&model).unwrap();
    assert_eq!(session.inputs()[0].value.to_string(), "tensor(string)");
    assert!(session.inputs()[0].ty.is_none() && session.has_values());
    // Many threads share the session.
    let input = texts(&[1], &["b"]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| session.run_values(&[("x", &input)], &RunOptions::default()).unwrap());
        }
    });
}

#[test]
fn ops_of_texts_and_labels() {
    let x = || vec![text_input("x")];
    let one = |node: NodeProto| of_values(vec![node], x(), &["y"]);
    let encoder = || node("ai.onnx.ml.LabelEncoder", &["x"], &["y"]);
    let tf_idf = || {
        let node = node("TfIdfVectorizer", &["x"], &["y"])
            .with(texts_attribute("pool_strings", &["a", "b", "a", "b"]));
        let node = node
            .with(string("mode", "TF"))
            .with(ints("ngram_counts", &[0, 2]))
            .with(ints("ngram_indexes", &[0, 1, 2]));
        node.with(int("max_gram_length", 2)).with(int("min_gram_length", 1)).with(int("max_skip_count", 0))
    };
    let stop = texts_attribute("stopwords", &["A"]);
    let cases = [
        ("stop words", one(node("StringNormalizer", &["x"], &["y"]).with(stop)), "[2][\"b\", \"a\"]"),
        (
            "labels",
            one(encoder()
                .with(texts_attribute("keys_strings", &["a", "b"]))
                .with(floats("values_floats", &[1.0, 2.0]))),
            "[4][1.0, 2.0, 1.0, -0.0]",
        ),
        (
            "default",
            one(encoder()
                .with(texts_attribute("keys_strings", &["a"]))
                .with(texts_attribute("values_strings", &["z"]))),
            "[4][\"z\", \"_Unused\", \"z\", \"_Unused\"]",
        ),
        ("classes", one(encoder().with(texts_attribute("classes_strings", &["b", "a"]))), "[4][1, 0, 1, -1]"),
        ("TF", one(tf_idf()), "[3][2.0, 1.0, 1.0]"),
        (
            "tokens",
            one(node("com.microsoft.Tokenizer", &["x"], &["y"])
                .with(texts_attribute("separators", &[""]))
                .with(int("mark", 1))
                .with(int("mincharnum", 1))
                .with(string("pad_value", "-"))),
            "[4, 3][\"\\u{2}\", \"a\", \"\\u{3}\", \"\\u{2}\", \"b\", \"\\u{3}\", \"\\u{2}\", \"a\", \"\\u{3}\", \"\\u{2}\", \"A\", \"\\u{3}\"]",
        ),
    ];
    for (case, mut model, expected) in cases {
        if case == "stop words" {
            let lower = string("case_change_action", "LOWER");
            let node = &mut model.graph.as_mut().unwrap().node[0];
            node.attribute.push(lower);
            node.attribute.push(int("is_case_sensitive", 1));
            // The stop word is `A` alone.
            check_run(case, &model, &[("x", texts(&[3], &["b", "a", "A"]))], expected);
            continue;
        }
        check_run(case, &model, &[("x", texts(&[4], &["a", "b", "a", "A"]))], expected);
    }
    let cast = of_values(
        vec![
            node("Cast", &["x"], &["n"]).with(int("to", 1)),
            node("Mul", &["n", "n"], &["m"]),
            node("Cast", &["m"], &["y"]).with(int("to", 8)),
        ],
        x(),
        &["y"],
    );
    check_run(
        "casts",
        &cast,
        &[("x", texts(&[4], &["1.5", "-3", "NaN", "1e10"]))],
        "[4][\"2.25\", \"9\", \"NaN\", \"1e+20\"]",
    );
}

#[test]
fn maps_and_sequences() {
    let zip =
        node("ai.onnx.ml.ZipMap", &["x"], &["y"]).with(texts_attribute("classlabels_strings", &["a", "b"]));
    let at = node("SequenceAt", &["y", "i"], &["m"]);
    let dict = node("ai.onnx.ml.DictVectorizer", &["m"], &["v"])
        .with(texts_attribute("string_vocabulary", &["b", "c", "a"]));
    let mut model =
        of_values(vec![zip, at, dict], vec![value("x", DataType::Float, Some(&[-1, 2]))], &["y", "v"]);
    model.graph.as_mut().unwrap().initializer = vec![TensorProto { dims: vec![], ..int64s("i", &[1]) }];
    let x = Tensor::from_elements(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let expected =
        "({[2][\"a\", \"b\"] [2][1.0, 2.0]} {[2][\"a\", \"b\"] [2][3.0, 4.0]}); [1, 3][4.0, 0.0, 3.0]";
    check_run("maps", &model, &[("x", x.into())], expected);
    assert_eq!(session(&model).unwrap().outputs()[0].value.to_string(), "seq(map(string,tensor(float)))");

    let map_type = type_proto::Map {
        key_type: Some(DataType::Int64 as i32),
        value_type: value("", DataType::Float, None).r#type.map(Box::new),
    };
    let cast = node("ai.onnx.ml.CastMap", &["x"], &["y"])
        .with(string("cast_to", "TO_INT64"))
        .with(string("map_form", "SPARSE"))
        .with(int("max_map", 4));
    let cast =
        of_values(vec![cast], vec![typed("x", type_proto::Value::MapType(Box::new(map_type)))], &["y"]);
    let map = |keys: &[i64]| {
        Value::from(
            Map::new(Tensor::from_elements(&[keys.len()], keys).unwrap().into(), numbers(&[5.0, 6.0]))
                .unwrap(),
        )
    };
    check_run("a sparse map", &cast, &[("x", map(&[3, 1]))], "[1, 4][0, 6, 0, 5]");
    refused(
        "a key beyond",
        run(&cast, &[("x", map(&[4, 1]))]),
        ErrorKind::InvalidInput,
        "expected keys from 0 to 3, found 4",
    );
}

/// A classifier's labels go through devices as positions.
#[test]
fn labels_of_classifiers_become_positions() {
    let node = node("ai.onnx.ml.LinearClassifier", &["x"], &["label", "scores"])
        .with(texts_attribute("classlabels_strings", &["no", "yes"]))
        .with(floats("coefficients", &[1.0, -1.0]));
    let model = of_values(vec![node], vec![value("x", DataType::Float, Some(&[-1, 1]))], &["label"]);
    let imported = all_from_bytes(model.encode_to_vec().into(), None, Defaults::Constants).unwrap();
    let host = imported.values.unwrap();
    assert_eq!((host.segments.len(), host.main.steps.len()), (1, 2));
    let segment = text::print(&host.segments[0]);
    assert!(segment.contains("const i64[2] [0, 1]") && !segment.contains("yes"), "{segment}");
    assert_eq!(host.main.outputs[0].0.ty, ValueType::strings());
}

#[test]
fn control_flow_over_sequences() {
    // The body appends the counter to a sequence, and a branch chooses what is returned.
    let body = GraphProto {
        input: vec![
            value("i", DataType::Int64, Some(&[])),
            value("c", DataType::Bool, Some(&[])),
            untyped("s"),
        ],
        ..branch(
            vec![
                node("Identity", &["c"], &["c2"]),
                node("Cast", &["i"], &["f"]).with(int("to", 1)),
                node("Add", &["f", "x"], &["g"]),
                node("SequenceInsert", &["s", "g"], &["s2"]),
            ],
            &["c2", "s2", "g"],
        )
    };
    let nodes = vec![
        node("SequenceEmpty", &[], &["empty"]),
        node("Loop", &["n", "", "empty"], &["s", "all"]).with(graph_attribute("body", body)),
        node("SequenceLength", &["s"], &["count"]),
    ];
    let mut looped = of_values(
        nodes,
        vec![value("x", DataType::Float, Some(&[])), value("n", DataType::Int64, Some(&[]))],
        &["s", "all", "count"],
    );
    let x = Value::from(Tensor::from_elements(&[], &[0.5f32]).unwrap());
    check_run(
        "a loop",
        &looped,
        &[("x", x.clone()), ("n", int64(2))],
        "([][0.5] [][1.5]); [2][0.5, 1.5]; [][2]",
    );
    check_run("no turn", &looped, &[("x", x.clone()), ("n", int64(0))], "(); [0][]; [][0]");

    looped.graph.as_mut().unwrap().input[1].r#type = value("", DataType::Int64, None).r#type;
    let session = session(&looped).unwrap();
    let late = RunOptions { deadline: Some(Duration::ZERO), ..RunOptions::default() };
    refused(
        "a deadline",
        session.run_values(&[("x", &x), ("n", &int64(i64::MAX))], &late),
        ErrorKind::DeadlineExceeded,
        "deadline",
    );
    let cancel = crate::Cancel::new();
    let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
    std::thread::scope(|scope| {
        let endless = scope.spawn(|| session.run_values(&[("x", &x), ("n", &int64(i64::MAX))], &options));
        std::thread::sleep(Duration::from_millis(50));
        cancel.cancel();
        refused("an endless loop", endless.join().unwrap(), ErrorKind::Cancelled, "");
    });
}

/// Functions of the model with such values are inlined before the graph is divided.
#[test]
fn functions_with_strings() {
    let function = FunctionProto {
        opset_import: vec![import_of("", 21)],
        ..function(
            "Twice",
            &["a"],
            &["b"],
            vec![node("StringConcat", &["a", "a"], &["t"]), node("Identity", &["t"], &["b"])],
        )
    };
    let mut model = of_values(
        vec![node("f.Twice", &["x"], &["m"]), node("f.Twice", &["m"], &["y"])],
        vec![text_input("x")],
        &["y"],
    );
    model.functions = vec![function];
    model.opset_import.push(import_of("f", 1));
    check_run("a function", &model, &[("x", texts(&[1], &["a"]))], "[1][\"aaaa\"]");
}

#[test]
fn wrong_models_and_values() {
    let text = |node: NodeProto| of_values(vec![node], vec![text_input("x")], &["y"]);
    let x = || [("x", texts(&[2], &["a", "b"]))];
    let encoder =
        || node("ai.onnx.ml.LabelEncoder", &["x"], &["y"]).with(texts_attribute("keys_strings", &["a", "b"]));
    let bad_bytes = AttributeProto { s: Some(vec![0xff]), ..attribute("pattern", AttributeType::String) };
    let no_default = TensorProto { int32_data: vec![1, 2], ..tensor("", DataType::Uint8, &[2]) };
    let invalid = [
        (
            "lists of other lengths",
            text(encoder().with(ints("values_int64s", &[1]))),
            "found 2 keys and 1 values",
        ),
        ("no values", text(encoder()), "expected one of the attributes values_*"),
        ("no default", text(encoder().with(tensor_attribute("values_tensor", no_default))), "default_tensor"),
        (
            "a default of another type",
            text(
                encoder()
                    .with(ints("values_int64s", &[1, 2]))
                    .with(tensor_attribute("default_tensor", float32s("", &[1.0]))),
            ),
            "expected a default of the values' type int64",
        ),
        (
            "a pattern",
            text(node("RegexFullMatch", &["x"], &["y"]).with(string("pattern", "("))),
            "the pattern \"(\" cannot be used",
        ),
        ("no pattern", text(node("RegexFullMatch", &["x"], &["y"])), "expected the attribute \"pattern\""),
        ("no UTF-8", text(node("RegexFullMatch", &["x"], &["y"]).with(bad_bytes)), "UTF-8"),
        (
            "an operand too few",
            text(node("StringConcat", &["x"], &["y"])),
            "expected the operand \"Y\", found none",
        ),
        (
            "an undefined name",
            text(node("StringConcat", &["x", "z"], &["y"])),
            "the value \"z\" is used and not defined",
        ),
        ("a cycle", text(node("StringConcat", &["x", "y"], &["y"])), "depends on its own result"),
    ];
    for (case, model, words) in invalid {
        refused(case, run(&model, &x()), ErrorKind::InvalidModel, words);
    }
    let large = text(node("RegexFullMatch", &["x"], &["y"]).with(string("pattern", "(\\w{1000}){1000}")));
    refused("a large pattern", run(&large, &x()), ErrorKind::UnsupportedModel, "cannot be used");
    let relu = text(node("Relu", &["x"], &["y"]));
    let error = refused(
        "an op of numbers",
        run(&relu, &x()),
        ErrorKind::UnsupportedModel,
        "the op Relu does not take tensor(string)",
    );
    assert!(error.place().node.contains("Relu"), "{error}");

    let concat = text(node("StringConcat", &["x", "x"], &["y"]));
    refused(
        "numbers for texts",
        run(&concat, &[("x", numbers(&[1.0]))]),
        ErrorKind::InvalidInput,
        "input `x` tensor(string) is given as f32[1]",
    );
    refused("no input", run(&concat, &[]), ErrorKind::InvalidInput, "input `x` tensor(string) is missing");
    let session = session(&concat).unwrap();
    let tensor = Tensor::from_elements(&[1], &[1.0f32]).unwrap();
    let error = session.run(&[("x", &tensor)]).unwrap_err();
    assert!(error.text().contains("run the model with `Session::run_values`"), "{error}");
    let error = session.plan_for(&[]).err().unwrap();
    assert!(
        error.kind() == ErrorKind::UnsupportedModel && error.text().contains("there is no plan of the whole"),
        "{error}"
    );
    assert!(
        session.compile_to("x.dbx".as_ref()).is_err_and(|error| error.text().contains("cannot be compiled"))
    );

    let bytes = of_values(
        vec![node("ImageDecoder", &["x"], &["y"])],
        vec![value("x", DataType::Uint8, None)],
        &["y"],
    );
    let stream = Tensor::from_elements(&[3], &[1u8, 2, 3]).unwrap();
    refused("no image", run(&bytes, &[("x", stream.into())]), ErrorKind::InvalidInput, "expected an image");
}

#[test]
fn wrong_sequences_and_optionals() {
    let float = || value("", DataType::Float, None).r#type.map(Box::new);
    let sequence_type =
        || type_proto::Value::SequenceType(Box::new(type_proto::Sequence { elem_type: float() }));
    let optional_type =
        || type_proto::Value::OptionalType(Box::new(type_proto::Optional { elem_type: float() }));
    let at = of_values(
        vec![node("SequenceAt", &["s", "i"], &["y"])],
        vec![typed("s", sequence_type()), value("i", DataType::Int64, Some(&[]))],
        &["y"],
    );
    let sequence = || Value::from(Sequence::of(vec![numbers(&[1.0]), numbers(&[2.0, 3.0])]).unwrap());
    check_run("the last", &at, &[("s", sequence()), ("i", int64(-1))], "[2][2.0, 3.0]");
    for i in [2, -3] {
        let words = format!("expected a position in a sequence of 2 elements, found {i}");
        refused(
            "a position",
            run(&at, &[("s", sequence()), ("i", int64(i))]),
            ErrorKind::InvalidInput,
            &words,
        );
    }
    let texts = Sequence::of(vec![texts(&[1], &["a"])]).unwrap();
    refused(
        "texts",
        run(&at, &[("s", texts.into()), ("i", int64(0))]),
        ErrorKind::InvalidInput,
        "is given as seq(tensor(string))",
    );
    let mixed = Sequence::of(vec![numbers(&[1.0]), int64(1)]).unwrap_err();
    assert_eq!(
        (mixed.kind(), mixed.text()),
        (ErrorKind::InvalidInput, "expected elements of type tensor(float), found tensor(int64) at 1")
    );
    let mixed = of_values(
        vec![node("SequenceConstruct", &["a", "b"], &["y"])],
        vec![value("a", DataType::Float, None), value("b", DataType::Int64, None)],
        &["y"],
    );
    refused("mixed", run(&mixed, &[]), ErrorKind::InvalidModel, "expected elements of one type");

    let get = of_values(
        vec![node("OptionalGetElement", &["o"], &["y"])],
        vec![typed("o", optional_type())],
        &["y"],
    );
    let none = || Value::from(Optional::none(ValueType::number(devbay_core::tensor::F32)));
    check_run("a value", &get, &[("o", Optional::some(numbers(&[1.0])).into())], "[1][1.0]");
    check_run("not wrapped", &get, &[("o", numbers(&[1.0]))], "[1][1.0]");
    refused("none", run(&get, &[("o", none())]), ErrorKind::InvalidInput, "the optional has no value");
    assert_eq!(none().ty().to_string(), "optional(tensor(float))");
    assert!(
        Map::new(texts_of(&["a", "a"]), numbers(&[1.0, 2.0]))
            .is_err_and(|error| error.text().contains("twice"))
    );
    assert_eq!(Map::new(texts_of(&["a"]), numbers(&[1.0])).unwrap().key_type(), Element::String);
}

fn texts_of(list: &[&str]) -> Value {
    texts(&[list.len()], list)
}

/// What is written in ONNX's form is read again.
#[test]
fn values_in_files() {
    let map = || Value::from(Map::new(texts_of(&["a", "b"]), numbers(&[1.0, 2.0])).unwrap());
    let values = [
        texts(&[2, 1], &["ä", ""]),
        numbers(&[1.0]),
        Sequence::of(vec![numbers(&[1.0]), numbers(&[])]).unwrap().into(),
        Sequence::of(vec![map(), map()]).unwrap().into(),
        Optional::some(Sequence::of(vec![texts_of(&["a"])]).unwrap().into()).into(),
        Optional::none(ValueType::strings()).into(),
        map(),
    ];
    for value in values {
        let bytes = crate::import::write_value(&value).unwrap();
        let again = crate::import::read_value(bytes, &value.ty().without_shape()).unwrap();
        assert_eq!(shown(&again), shown(&value));
    }
    let error = crate::import::read_value(vec![0xff; 8], &ValueType::strings()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidModel);
    let broken = TensorProto { string_data: vec![vec![0xff]], ..tensor("t", DataType::String, &[1]) };
    let error = crate::import::read_value(broken.encode_to_vec(), &ValueType::strings()).unwrap_err();
    assert!(error.text().contains("UTF-8"), "{error}");
}
