//! Graphs, names, constants, regions and functions as programs.

use super::*;

#[test]
fn constants_in_all_forms() {
    let constant = |attribute: AttributeProto| vec![node("Constant", &[], &["c"]).with(attribute)];
    let cases = [
        (constant(tensor_attribute("value", int64s("ignored", &[7]))), "i64[1] [7]"),
        (constant(int("value_int", -3)), "i64[] [-3]"),
        (constant(ints("value_ints", &[1, 2])), "i64[2] [1, 2]"),
        (constant(ints("value_ints", &[])), "i64[0] []"),
        (constant(float("value_float", 0.5)), "f32[] [0.5]"),
        (constant(floats("value_floats", &[1.0, 2.0])), "f32[2] [1.0, 2.0]"),
        // Some writers leave out fields that are zero.
        (constant(attribute("value_int", AttributeType::Int)), "i64[] [0]"),
    ];
    for (nodes, expected) in cases {
        check("constant", &model(12, graph(nodes, &["c"])), &format!("%c = const {expected}\nreturn %c"));
    }
}

#[test]
fn inputs_outputs_and_initializers() {
    let mut listed = graph(vec![node("Add", &["x", "w"], &["y"])], &["y", "x", "w"]);
    listed.input.push(value("w", DataType::Float, Some(&[1])));
    listed.initializer.push(float32s("w", &[1.5]));
    check(
        "an initializer among the inputs is constant",
        &model(7, listed),
        "%w = const f32[1] [1.5]
         %y = Add@14(%x, %w)
         return %y, %x, %w",
    );

    let mut typed = graph(vec![node("Relu", &["x"], &["y"])], &[]);
    typed.output = vec![value("y", DataType::Float, Some(&[2, -1, 4]))];
    typed.value_info = vec![value("y", DataType::Float, None), value("nobody", DataType::String, None)];
    check("types", &model(14, typed), "%y: f32[2,?,4] = Relu@14(%x)\nreturn %y");

    let unused = vec![node("Neg", &["x"], &["n"]), node("Relu", &["x"], &["y"])];
    check(
        "unused nodes stay",
        &model(14, graph(unused, &["y"])),
        "%n = Neg@13(%x)\n%y = Relu@14(%x)\nreturn %y",
    );

    let absent = vec![node("Clip", &["x", "", ""], &["y"])];
    check("absent operands at the end", &model(14, graph(absent, &["y"])), "%y = Clip@13(%x)\nreturn %y");
}

#[test]
fn names_of_extents() {
    let mut graph = graph(vec![], &[]);
    let dims = ["batch", "a + 1", "", "7"].map(|name| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimParam(name.to_owned())),
        ..tensor_shape_proto::Dimension::default()
    });
    // -1 is not valid ONNX, but common.
    let minus_one = tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(-1)),
        ..tensor_shape_proto::Dimension::default()
    };
    let shape = TensorShapeProto { dim: dims.into_iter().chain([minus_one]).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(DataType::Bfloat16 as i32), shape: Some(shape) };
    graph.input = vec![typed("x", type_proto::Value::TensorType(tensor))];
    check("extents", &model(7, graph), "program \"g\"(%x: bf16[batch,\"a + 1\",?,\"7\",?]) {\nreturn");
}

#[test]
fn dropout_in_inference_is_its_input() {
    let falsehood = TensorProto { int32_data: vec![0], ..tensor("t", DataType::Bool, &[]) };
    let truth = TensorProto { int32_data: vec![1], ..tensor("t", DataType::Bool, &[]) };
    let ratio = float32s("r", &[0.5]);
    let after = |inputs: &[&str], outputs: &[&str]| {
        graph(vec![node("Dropout", inputs, outputs), node("Relu", &["d"], &["y"])], &["y"])
    };
    let with = |graph: GraphProto, initializer: Vec<TensorProto>| GraphProto { initializer, ..graph };
    let gone = "%y = Relu@14(%x)\nreturn %y";
    check("old", &model(7, after(&["x"], &["d", "unused"])), gone);
    check("without a mode", &model(13, with(after(&["x", "r"], &["d"]), vec![ratio.clone()])), gone);
    check("off", &model(22, with(after(&["x", "r", "t"], &["d"]), vec![ratio.clone(), falsehood])), gone);
    let mut on = with(after(&["x", "r", "t"], &["d"]), vec![ratio, truth]);
    on.node[0].attribute.push(int("seed", 3));
    check(
        "on, with a seed of its own",
        &model(13, on),
        "%r = const f32[1] [0.5]
         %t = const bool[] [true]
         %d = Dropout@22(%x, %r, %t) {seed = 3}
         %y = Relu@14(%d)
         return %y",
    );
    check(
        "a mask that is used",
        &model(10, graph(vec![node("Dropout", &["x"], &["y", "mask"])], &["y", "mask"])),
        "%1 = Shape@25(%x)
         %mask = ConstantOfShape@25(%1) {value = bool[1] [true]}
         %y = Identity@25(%x)
         return %y, %mask",
    );
    let output = graph(vec![node("Dropout", &["x"], &["y"])], &["y"]);
    check("as the output, which keeps its name", &model(7, output), "%y = Identity@25(%x)\nreturn %y");
}

#[test]
fn nodes_are_sorted() {
    let nodes = vec![
        node("Add", &["b", "a"], &["y"]),
        node("Neg", &["a"], &["b"]),
        node("Relu", &["x"], &["a"]),
        node("Abs", &["x"], &["unused"]),
    ];
    check(
        "sorted",
        &model(14, graph(nodes, &["y"])),
        "%a = Relu@14(%x)
         %b = Neg@13(%a)
         %y = Add@14(%b, %a)
         %unused = Abs@13(%x)
         return %y",
    );
}

#[test]
fn regions_capture_and_shadow() {
    let mut body = graph(
        vec![
            node("Add", &["w", "late"], &["t"]),
            // Shadows a value of the outer graph.
            node("Neg", &["t"], &["y"]),
        ],
        &["go", "y"],
    );
    body.input = vec![untyped("i"), untyped("go"), untyped("x")];
    body.initializer = vec![float32s("w", &[1.0])];
    let nodes = vec![
        node("Loop", &["n", "", "x"], &["final"]).with(graph_attribute("body", body)),
        node("Relu", &["x"], &["late"]),
        node("Add", &["final", "w"], &["y"]),
    ];
    let mut outer = graph(nodes, &["y"]);
    outer.initializer = vec![int64s("n", &[3]), float32s("w", &[2.0])];
    check(
        "captures of what stands behind, and shadowed names",
        &model(16, outer),
        "%late = Relu@14(%x#0)
         %n = const i64[1] [3]
         %w#3 = const f32[1] [1.0]
         %final = Loop@25(%n, _, %x#0) body(%i, %go, %x#7) {
         %t = Add@14(%w#3, %late)
         %y#9 = Neg@13(%t)
         return %go, %y#9
         }
         %w#10 = const f32[1] [2.0]
         %y#11 = Add@14(%final, %w#10)
         return %y#11",
    );

    let inner = |op: &str| branch(vec![node(op, &["x"], &["t"])], &["t"]);
    let condition = node("If", &["c"], &[]).with(graph_attribute("then_branch", inner("Relu")));
    let condition = condition.with(graph_attribute("else_branch", branch(vec![], &["x"])));
    let mut outer = graph(vec![condition, node("Neg", &["x"], &["y"])], &["y"]);
    outer.initializer =
        vec![TensorProto { raw_data: Some(vec![1].into()), ..tensor("c", DataType::Bool, &[]) }];
    check(
        "a branch that gives a captured value, and a result that nobody names",
        &model(11, outer),
        "%c = const bool[] [true]
         _ = If@25(%c) then_branch() {
         %t = Relu@14(%x)
         return %t
         } else_branch() {
         return %x
         }
         %y = Neg@13(%x)
         return %y",
    );
}

#[test]
fn domains() {
    let nodes = vec![
        node("ai.onnx.Relu", &["x"], &["r"]),
        node("com.acme.Soften", &["r", "", "x"], &["y"]).with(string("how", "a bit")),
    ];
    let mut custom = model(14, graph(nodes, &["y"]));
    custom.opset_import.push(import_of("com.acme", 4));
    custom.opset_import.push(import_of("unused", 9));
    check(
        "a vendor's op, and a domain that nobody uses",
        &custom,
        "%r = Relu@14(%x)
         %y = com.acme.Soften@4(%r, _, %x) {how = \"a bit\"}
         return %y",
    );
    let mut renamed = model(14, graph(vec![node("Relu", &["x"], &["y"])], &["y"]));
    renamed.opset_import = vec![import_of("ai.onnx", 14), import_of("", 14)];
    check("both names of ONNX's own domain", &renamed, "%y = Relu@14(%x)\nreturn %y");
}

#[test]
fn functions_are_inlined() {
    let scale = FunctionProto {
        attribute: strings(&["factor"]),
        attribute_proto: vec![int("axis", -1)],
        ..function(
            "Scale",
            &["a", "extra"],
            &["out"],
            vec![
                node("Constant", &[], &["c"]).with(reference("value_float", AttributeType::Float, "factor")),
                node("Mul", &["a", "c"], &["m"]).named("mul"),
                node("Softmax", &["m"], &["s"]).with(reference("axis", AttributeType::Int, "axis")),
                node("Clip", &["s", "extra"], &["out"]).with(reference(
                    "nothing",
                    AttributeType::Int,
                    "none",
                )),
            ],
        )
    };
    let twice = function(
        "Twice",
        &["x"],
        &["y", "x"],
        vec![
            node("f.Scale", &["x"], &["t"])
                .with(reference("factor", AttributeType::Float, "by"))
                .named("first"),
            node("f.Scale", &["t", "t"], &["y"]).with(float("factor", 3.0)).with(int("axis", 0)),
        ],
    );
    let nodes = vec![node("f.Twice", &["x"], &["p", "q"]).with(float("by", 2.0)).named("call")];
    let mut outer = graph(nodes, &["p", "q"]);
    outer.value_info = vec![value("p", DataType::Float, Some(&[2, 3, 4]))];
    let mut model = model(17, outer);
    model.functions = vec![twice, scale];
    check(
        "functions that call functions",
        &model,
        "%c#1 = const f32[] [2.0]
         %m#2 = Mul@14(%x, %c#1) as \"call/first/mul\"
         %s#3 = Softmax@13(%m#2) {axis = -1}
         %t = Clip@13(%s#3)
         %c#5 = const f32[] [3.0]
         %m#6 = Mul@14(%t, %c#5) as \"call/Scale/mul\"
         %s#7 = Softmax@13(%m#6) {axis = 0}
         %p: f32[2,3,4] = Clip@13(%s#7, %t)
         %q = Identity@25(%x)
         return %p, %q",
    );
}

#[test]
fn a_function_has_its_own_opset_and_names() {
    let old = FunctionProto {
        opset_import: vec![import_of("", 11)],
        ..function("Old", &["x"], &["y"], vec![node("Squeeze", &["x"], &["y"]).with(ints("axes", &[0]))])
    };
    let mut model = model(13, graph(vec![node("f.Old", &["x"], &["y"])], &["y"]));
    model.functions = vec![old];
    check("opset", &model, "%1 = const i64[1] [0]\n%y = Squeeze@25(%x, %1)\nreturn %y");

    model.functions = vec![function("Old", &["a"], &["y"], vec![node("Add", &["a", "x"], &["y"])])];
    check_refused(
        "a caller's name",
        &model,
        ErrorKind::InvalidModel,
        "the value \"x\" is used and not defined",
    );
}

#[test]
fn text_is_read_as_well() {
    let program =
        crate::import::from_bytes("devbay-program 1 program \"p\"(%x) { return %x }", None).unwrap();
    assert_eq!(program.name, "p");
    let error =
        crate::import::from_bytes("devbay-program 1 program \"p\"() { return %x }", None).unwrap_err();
    assert!(error.to_string().contains("line 1, column 41"), "{error}");
    assert!(crate::import::from_bytes(&b"devbay-program \xff"[..], None).is_err());
}

#[test]
fn an_initializer_that_is_also_an_input_is_a_constant_or_an_input() {
    let mut both = graph(vec![node("Add", &["x", "w"], &["y"])], &["y"]);
    both.input.push(value("w", DataType::Float, Some(&[1])));
    both.initializer.push(TensorProto { float_data: vec![2.0], ..tensor("w", DataType::Float, &[1]) });
    let mut model = model(17, both);
    let read = |model: &ModelProto, defaults| {
        let imported = all_from_bytes(model.encode_to_vec().into(), None, defaults).unwrap();
        let inputs = imported.program.main.inputs.iter();
        let inputs: Vec<String> = inputs.map(|&id| imported.program.value(id).name.to_string()).collect();
        let defaults: Vec<String> = imported.defaults.into_iter().map(|(name, _)| name).collect();
        (inputs, defaults)
    };
    let (x, w) = (vec!["x".to_owned()], vec!["w".to_owned()]);
    assert_eq!(read(&model, Defaults::Constants), (x.clone(), w.clone()));
    assert_eq!(read(&model, Defaults::Inputs), (vec!["x".to_owned(), "w".to_owned()], w));
    // A file of version 3 lists all initializers as inputs. So the list does not say which of them may be changed.
    model.ir_version = Some(3);
    assert_eq!(read(&model, Defaults::Inputs), (x, vec![]));
}
