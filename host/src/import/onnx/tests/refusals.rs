//! Refused models, with the kind and words of each error.

use super::*;

fn of_nodes(nodes: Vec<NodeProto>) -> ModelProto {
    model(17, graph(nodes, &["y"]))
}

fn relu() -> NodeProto {
    node("Relu", &["x"], &["y"])
}

#[test]
fn opsets() {
    for opset in [7, 28] {
        check("the range", &model(opset, graph(vec![relu()], &["y"])), "%y = Relu@14(%x)\nreturn %y");
    }
    for opset in [6, 29, 0, -1, i64::MAX] {
        let expected = format!("expected an opset of ai.onnx from 7 to 28, found {opset}");
        let model = model(opset, graph(vec![relu()], &["y"]));
        check_refused("outside", &model, ErrorKind::UnsupportedModel, &expected);
    }
    let mut twice = of_nodes(vec![relu()]);
    twice.opset_import.push(import_of("ai.onnx", 16));
    check_refused(
        "twice",
        &twice,
        ErrorKind::InvalidModel,
        "expected one opset of domain \"\", found several",
    );
    let mut none = of_nodes(vec![relu()]);
    none.opset_import.clear();
    check_refused("none", &none, ErrorKind::InvalidModel, "an imported opset of the domain \"ai.onnx\"");
    let vendor = of_nodes(vec![node("v.Op", &["x"], &["y"]).named("n")]);
    let words = "node n (Op): expected an imported opset of the domain \"v\", found none";
    check_refused("a vendor's", &vendor, ErrorKind::InvalidModel, words);
}

#[test]
fn graphs_that_break_the_rules() {
    let with = |change: &dyn Fn(&mut GraphProto)| {
        let mut graph = graph(vec![relu()], &["y"]);
        change(&mut graph);
        model(17, graph)
    };
    let cases: Vec<(&str, ModelProto, &str)> = vec![
        (
            "no graph",
            ModelProto { graph: None, ..of_nodes(vec![]) },
            "expected a graph in the model, found none",
        ),
        (
            "no op",
            of_nodes(vec![node("", &[], &["y"])]),
            "node making \"y\" (): expected the node's op, found none",
        ),
        (
            "an unknown operand",
            of_nodes(vec![node("Add", &["x", "z"], &["y"]).named("sum")]),
            "node sum (Add): the value \"z\" is used and not defined",
        ),
        (
            "made twice",
            of_nodes(vec![relu(), node("Neg", &["x"], &["y"])]),
            "node making \"y\" (Neg): the value \"y\" is defined twice",
        ),
        (
            "an input made again",
            of_nodes(vec![node("Neg", &["x"], &["x"])]),
            "the value \"x\" is defined twice",
        ),
        (
            "an input twice",
            with(&|graph| graph.input.push(untyped("x"))),
            "\"x\" is defined twice among inputs and initializers",
        ),
        (
            "an initializer twice",
            with(&|graph| graph.initializer = vec![int64s("w", &[1]), int64s("w", &[1])]),
            "\"w\" is defined twice among inputs and initializers",
        ),
        (
            "an initializer without a name",
            with(&|graph| graph.initializer = vec![int64s("", &[1])]),
            "expected names of inputs and initializers",
        ),
        (
            "an unknown output",
            with(&|graph| graph.output.push(untyped("z"))),
            "the output \"z\" is not defined",
        ),
        (
            "an input without a type",
            with(&|graph| graph.input[0] = untyped("x")),
            "expected a type of the input \"x\", found none",
        ),
        (
            "a negative extent",
            with(&|graph| {
                let extent = tensor_shape_proto::Dimension {
                    value: Some(tensor_shape_proto::dimension::Value::DimValue(-5)),
                    ..tensor_shape_proto::Dimension::default()
                };
                let shape = Some(TensorShapeProto { dim: vec![extent] });
                let tensor = type_proto::Tensor { elem_type: Some(1), shape };
                graph.input[0] = typed("x", type_proto::Value::TensorType(tensor));
            }),
            "the value \"x\": expected an extent, found -5",
        ),
        (
            "a cycle",
            of_nodes(vec![
                node("Relu", &["x"], &["a"]),
                node("Add", &["a", "c"], &["b"]).named("first"),
                node("Neg", &["b"], &["c"]),
                node("Neg", &["b"], &["y"]),
            ]),
            "node first (Add): the node depends on its own result",
        ),
        ("its own operand", of_nodes(vec![node("Neg", &["y"], &["y"])]), "depends on its own result"),
        (
            "an attribute twice",
            of_nodes(vec![relu().with(int("a", 1)).with(int("a", 2))]),
            "the attribute \"a\" is there twice",
        ),
        (
            "an attribute without a type or value",
            of_nodes(vec![relu().with(attribute("a", AttributeType::Undefined))]),
            "the attribute \"a\": expected an attribute with a type, or with one value",
        ),
        (
            "a reference outside of functions",
            of_nodes(vec![relu().with(reference("a", AttributeType::Int, "b"))]),
            "expected such a reference in a function only",
        ),
        (
            "If without branches",
            of_nodes(vec![node("If", &["x"], &["y"]).named("if")]),
            "node if (If@25): expected the attribute else_branch of type graph, found none",
        ),
        (
            "branches with unequal results",
            of_nodes(vec![
                node("If", &["x"], &["y"])
                    .with(graph_attribute("then_branch", branch(vec![], &["x"])))
                    .with(graph_attribute("else_branch", branch(vec![], &["x", "x"]))),
            ]),
            "expected a else_branch with 0 inputs and 1 outputs, found 0 and 2",
        ),
        (
            "a constant without a value",
            of_nodes(vec![node("Constant", &[], &["y"])]),
            "expected one attribute with the value, found 0",
        ),
        (
            "a constant with a value of another type",
            of_nodes(vec![node("Constant", &[], &["y"]).with(float("value_int", 1.0))]),
            "expected a constant's value, found the attribute \"value_int\"",
        ),
        (
            "an attribute of another type than lifting needs",
            model(7, graph(vec![node("Squeeze", &["x"], &["y"]).with(float("axes", 1.0))], &["y"])),
            "expected integers as the attribute \"axes\"",
        ),
    ];
    for (case, model, expected) in cases {
        check_refused(case, &model, ErrorKind::InvalidModel, expected);
    }
}

#[test]
fn what_devbay_does_not_do() {
    let with_input = |value: type_proto::Value| {
        let mut graph = graph(vec![], &[]);
        graph.input = vec![typed("x", value)];
        model(17, graph)
    };
    let with_attribute = |attribute: AttributeProto| of_nodes(vec![relu().with(attribute)]);
    let constant = |attribute: AttributeProto| of_nodes(vec![node("Constant", &[], &["y"]).with(attribute)]);
    let of_type = |number: i32| {
        let tensor = type_proto::Tensor { elem_type: Some(number), shape: None };
        with_input(type_proto::Value::TensorType(tensor))
    };
    let many_extents =
        GraphProto { input: vec![value("x", DataType::Float, Some(&[1; 65]))], ..graph(vec![], &[]) };
    let many_extents = model(17, many_extents);
    let mut sparse = of_nodes(vec![relu()]);
    sparse.graph.as_mut().unwrap().sparse_initializer = vec![Default::default()];
    let cases: Vec<(&str, ModelProto, &str)> = vec![
        (
            "a sequence",
            with_input(type_proto::Value::SequenceType(Default::default())),
            "it is no program: run it in a session",
        ),
        ("an optional", with_input(type_proto::Value::OptionalType(Default::default())), "it is no program"),
        ("text", of_type(8), "it is no program: run it in a session"),
        ("a tiny float", of_type(27), "found ONNX's FLOAT6E2M3"),
        ("a complex number", of_type(14), "expected an element type that programs have, found COMPLEX64"),
        ("many extents", many_extents, "the value \"x\": expected at most 64 extents, found 65"),
        ("sparse initializers", sparse, "sparse initializers are not supported"),
        (
            "a constant of text",
            constant(string("value_string", "a")),
            "it is no program: run it in a session",
        ),
        (
            "a sparse constant",
            constant(attribute("sparse_value", AttributeType::SparseTensor)),
            "constants with a sparse_value are not supported",
        ),
        (
            "graphs in a list",
            with_attribute(attribute("a", AttributeType::Graphs)),
            "the attribute \"a\": attributes of type GRAPHS are not supported",
        ),
        (
            "an attribute type of tomorrow",
            with_attribute(AttributeProto { r#type: Some(77), ..int("a", 1) }),
            "the attribute type 77 is not known",
        ),
        (
            "bytes that are no text",
            with_attribute(AttributeProto { s: Some(vec![0xff]), ..attribute("a", AttributeType::String) }),
            "the attribute \"a\": expected text in UTF-8",
        ),
    ];
    for (case, model, expected) in cases {
        check_refused(case, &model, ErrorKind::UnsupportedModel, expected);
    }
}

#[test]
fn functions_that_do_not_end() {
    let mut calls_itself = of_nodes(vec![node("f.A", &["x"], &["y"])]);
    calls_itself.functions = vec![
        function("A", &["x"], &["y"], vec![node("f.B", &["x"], &["y"])]),
        function("B", &["x"], &["y"], vec![node("f.A", &["x"], &["y"])]),
    ];
    check_refused("recursion", &calls_itself, ErrorKind::InvalidModel, "the function \"A\" calls itself");

    let chain = |n: usize, calls: usize| {
        let mut model = of_nodes(vec![node("f.F0", &["x"], &["y"])]);
        for i in 0..n {
            let op = if i + 1 == n { "Relu".to_owned() } else { format!("f.F{}", i + 1) };
            let mut nodes: Vec<NodeProto> =
                (1..calls).map(|k| node(&op, &["x"], &[&format!("t{k}")])).collect();
            nodes.push(node(&op, &["x"], &["y"]));
            model.functions.push(function(&format!("F{i}"), &["x"], &["y"], nodes));
        }
        model
    };
    assert_eq!(import(&chain(64, 1)).unwrap().n_nodes(), 1);
    // The deepest function is called again at the same depth.
    let mut twice = chain(64, 1);
    twice.functions[62].node.insert(0, node("f.F63", &["x"], &["t"]));
    assert_eq!(import(&twice).unwrap().n_nodes(), 2);
    let mut deeper = chain(65, 1);
    deeper.functions[0].node.insert(0, node("f.F64", &["x"], &["t"]));
    check_refused("met before", &deeper, ErrorKind::UnsupportedModel, "call each other more than 64 deep");
    check_refused(
        "too deep",
        &chain(65, 1),
        ErrorKind::UnsupportedModel,
        "call each other more than 64 deep",
    );
    let words = "expected at most 4000000 nodes with functions inlined, found more";
    check_refused("too many nodes", &chain(40, 2), ErrorKind::UnsupportedModel, words);

    // Empty bodies cost time as well.
    let mut empty = chain(40, 2);
    empty.functions[39].node.clear();
    empty.functions[39].output = strings(&["x"]);
    check_refused("empty functions", &empty, ErrorKind::UnsupportedModel, words);

    // A few nodes with large arguments or long names.
    let mut given = chain(20, 2);
    for function in &mut given.functions {
        for node in &mut function.node {
            node.attribute.push(reference("s", AttributeType::String, "s"));
        }
    }
    let call = &mut given.graph.as_mut().unwrap().node[0];
    call.attribute.push(string("s", &"a".repeat(1 << 12)));
    let bytes = "bytes of inlined functions, found more";
    check_refused("arguments", &given, ErrorKind::UnsupportedModel, bytes);
    let mut named = chain(20, 2);
    named.functions[19].node[1].name = Some("n".to_owned());
    named.graph.as_mut().unwrap().node[0].name = Some("a".repeat(1 << 12));
    check_refused("names", &named, ErrorKind::UnsupportedModel, bytes);

    // A few nodes with large content.
    let mut heavy = chain(12, 2);
    let large = node("Relu", &["x"], &["y"]).with(string("s", &"a".repeat(1 << 20)));
    heavy.functions[11].node = vec![large];
    check_refused(
        "heavy functions",
        &heavy,
        ErrorKind::UnsupportedModel,
        "bytes of inlined functions, found more",
    );
}

#[test]
fn calls_that_do_not_fit() {
    let mut model = of_nodes(vec![node("f.A", &["x", "x"], &["y"]).named("call")]);
    model.functions = vec![function("A", &["x"], &["y"], vec![relu()])];
    let words = "node call (A): expected at most 1 inputs and 1 outputs of the function \"A\", found 2 and 1";
    check_refused("operands", &model, ErrorKind::InvalidModel, words);

    let mut given =
        of_nodes(vec![node("f.A", &["x"], &["y"]).with(graph_attribute("g", branch(vec![], &[])))]);
    given.functions = vec![function("A", &["x"], &["y"], vec![relu()])];
    check_refused(
        "a graph",
        &given,
        ErrorKind::UnsupportedModel,
        "graphs as attributes of a function's call",
    );

    let mut twice = of_nodes(vec![relu()]);
    twice.functions = vec![function("A", &[], &[], vec![]), function("A", &[], &[], vec![])];
    check_refused("a function twice", &twice, ErrorKind::InvalidModel, "the function \"A\" is defined twice");

    let mut missing = of_nodes(vec![node("f.A", &["x"], &["y"])]);
    missing.functions = vec![function("A", &["x"], &["z"], vec![])];
    check_refused("no result", &missing, ErrorKind::InvalidModel, "the value \"z\" is used and not defined");
}

#[test]
fn graphs_in_each_other() {
    let nested = |depth: usize| {
        let mut inner = branch(vec![node("Relu", &["x"], &["t"])], &["t"]);
        for _ in 0..depth {
            let other = branch(vec![], &["x"]);
            let condition = node("If", &["x"], &["t"])
                .with(graph_attribute("then_branch", inner))
                .with(graph_attribute("else_branch", other));
            inner = branch(vec![condition], &["t"]);
        }
        inner
    };
    // Protobuf's own limit of 100 nested messages applies first: three per graph.
    let mut deep = model(17, nested(30));
    deep.graph.as_mut().unwrap().input = graph(vec![], &[]).input;
    assert_eq!(import(&deep).unwrap().n_nodes(), 31);
    for depth in [40, 1000] {
        let words = "nests graphs or types too deeply";
        check_refused("file", &model(17, nested(depth)), ErrorKind::UnsupportedModel, words);
    }

    // Functions can nest deeper than a file may.
    let mut model = of_nodes(vec![node("f.F0", &["x"], &["t"])]);
    model.graph.as_mut().unwrap().output = vec![untyped("t")];
    for i in 0..5 {
        let mut body = nested(15);
        // The innermost node calls the next function.
        let mut inner = &mut body;
        while inner.node[0].op_type() == "If" {
            inner = inner.node[0].attribute[0].g.as_mut().unwrap();
        }
        if i < 4 {
            inner.node[0] = node(&format!("f.F{}", i + 1), &["x"], &["t"]);
        }
        model.functions.push(function(&format!("F{i}"), &["x"], &["t"], body.node));
    }
    check_refused("functions", &model, ErrorKind::UnsupportedModel, "at most 64 graphs in each other");
}

#[test]
fn files_that_are_no_models() {
    let check = |bytes: &[u8], expected: &str| {
        let error = crate::import::from_bytes(bytes.to_vec(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidModel, "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(b"", "expected a graph in the model, found none");
    check(b"hello, world", "expected a program's text or an ONNX model, found neither");
    check(&[0xff; 64], "expected a program's text or an ONNX model, found neither");
    // A graph that claims 2^63 bytes.
    check(&[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "or a damaged one");
}
