//! Round trips, errors with their places, and garbage.

use super::{parse, print, print_elided};
use crate::error::ErrorKind;
use crate::program::verify::verify;
use crate::program::{AttrValue, Node, Op, Program, Region};
use crate::tensor::{
    BF16, BOOL, DType, Dim, F8E5M2, F16, F32, F64, I4, I8, I64, Tensor, TensorType, U8, U64,
};
use proptest::prelude::*;
use std::sync::Arc;

/// A program whose node has these attributes and whose constants are these.
fn with(constants: Vec<Tensor>, attrs: Vec<(&str, AttrValue)>) -> Program {
    let mut program = Program::default();
    let inputs = constants.into_iter().map(|tensor| Some(program.add_constant("", tensor))).collect();
    let mut node = Node::new(Op::devbay("Test", 1), inputs, vec![]);
    for (name, value) in attrs {
        node.set_attr(name, value);
    }
    program.main.nodes.push(node);
    program
}

/// Expects that the text of a program gives the same program: the same text, and bit for bit the same
/// constants.
fn check_round_trip(program: &Program) -> String {
    verify(program).unwrap();
    let text = print(program);
    let parsed = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&parsed).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(print(&parsed), text);
    assert_eq!(parsed.n_nodes(), program.n_nodes());
    let bytes = |program: &Program| -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        program.main.visit(&mut |node| {
            for &id in node.inputs.iter().flatten() {
                if let Some(tensor) = program.constant(id) {
                    all.push(tensor.bytes().to_vec());
                }
            }
            for (_, value) in &node.attrs {
                if let AttrValue::Tensor(tensor) = value {
                    all.push(tensor.bytes().to_vec());
                }
            }
        });
        all
    };
    assert_eq!(bytes(&parsed), bytes(program));
    text
}

#[test]
fn content_of_constants() {
    let f32s = |values: &[f32]| Tensor::from_elements(&[values.len()], values).unwrap();
    let of_bytes = |dtype, bytes: &[u8], n| Tensor::from_bytes(dtype, &[n], bytes).unwrap();
    let cases: Vec<(Tensor, &str)> = vec![
        (
            f32s(&[1.0, -0.0, 0.1, 1e20, 1e-45, f32::MAX, f32::MIN_POSITIVE]),
            "f32[7] [1.0, -0.0, 0.1, 1e20, 1e-45, 3.4028235e38, 1.1754944e-38]",
        ),
        (
            f32s(&[
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::from_bits(0x7fc0_0000),
                f32::from_bits(0xffc0_0001),
            ]),
            "f32[4] [inf, -inf, nan, nan(0xffc00001)]",
        ),
        (
            Tensor::from_elements(&[2], &[0.1f64, f64::from_bits(0x7ff0_0000_0000_0001)]).unwrap(),
            "f64[2] [0.1, nan(0x7ff0000000000001)]",
        ),
        (
            // 1, the largest, the smallest, infinity, two NaNs.
            of_bytes(F16, &[0, 0x3c, 0xff, 0x7b, 1, 0, 0, 0x7c, 0, 0x7e, 1, 0xfc], 6),
            "f16[6] [1.0, 65504.0, 5.9604645e-8, inf, nan, nan(0xfc01)]",
        ),
        (of_bytes(BF16, &[0x80, 0x3f, 0xcd, 0x3d, 0x81, 0x7f], 3), "bf16[3] [1.0, 0.100097656, nan(0x7f81)]"),
        (
            Tensor::from_elements(&[2], &[i64::MIN, i64::MAX]).unwrap(),
            "i64[2] [-9223372036854775808, 9223372036854775807]",
        ),
        (Tensor::from_elements(&[1], &[u64::MAX]).unwrap(), "u64[1] [18446744073709551615]"),
        (of_bytes(I8, &[0x80, 0x7f], 2), "i8[2] [-128, 127]"),
        (of_bytes(BOOL, &[0, 1], 2), "bool[2] [false, true]"),
        (of_bytes(BOOL, &[0, 2], 2), "bool[2] hex{0002}"),
        (Tensor::from_elements(&[], &[7i64]).unwrap(), "i64[] [7]"),
        (Tensor::zeros(F32, &[0, 3]).unwrap(), "f32[0,3] []"),
        (Tensor::zeros(U8, &[33]).unwrap(), "u8[33] hex{00"),
        (Tensor::zeros(F64, &[33]).unwrap(), "f64[33] hex{\n00"),
        (Tensor::from_bytes(I4, &[3], &[0x21, 0x0f]).unwrap(), "i4[3] hex{210f}"),
        (Tensor::from_bytes(F8E5M2, &[1], &[0x7c]).unwrap(), "f8e5m2[1] hex{7c}"),
        (
            Tensor::from_bytes(DType { code: 2, bits: 8, lanes: 1 }, &[2], &[0xab, 0xcd]).unwrap(),
            "dtype(2,8,1)[2] hex{abcd}",
        ),
    ];
    for (tensor, expected) in cases {
        let text = check_round_trip(&with(vec![tensor.clone()], vec![]));
        assert!(text.contains(&format!("const {expected}")), "{text}");
        check_round_trip(&with(vec![], vec![("value", AttrValue::Tensor(tensor))]));
    }
}

#[test]
fn attributes() {
    let cases = vec![
        (AttrValue::Int(-3), "a = -3"),
        (AttrValue::Float(1.0), "a = 1.0"),
        (AttrValue::Float(f32::NAN), "a = nan"),
        (AttrValue::Float(f32::NEG_INFINITY), "a = -inf"),
        (AttrValue::String(String::new()), "a = \"\""),
        (
            AttrValue::String("a \"b\"\\\n\t\r\0\u{7f}é".to_owned()),
            "a = \"a \\\"b\\\"\\\\\\n\\t\\r\\u{0}\\u{7f}é\"",
        ),
        (AttrValue::Ints(vec![]), "a = ints []"),
        (AttrValue::Ints(vec![1, -2]), "a = [1, -2]"),
        (AttrValue::Floats(vec![]), "a = floats []"),
        (AttrValue::Floats(vec![f32::INFINITY]), "a = [inf]"),
        (AttrValue::Floats(vec![1e16, 2.0]), "a = [1e16, 2.0]"),
        (AttrValue::Strings(vec![]), "a = strings []"),
        (AttrValue::Strings(vec!["x".to_owned()]), "a = [\"x\"]"),
    ];
    for (value, expected) in cases {
        let text = check_round_trip(&with(vec![], vec![("a", value.clone())]));
        assert!(text.contains(&format!("{{{expected}}}")), "{text}");
        check_round_trip(&with(vec![], vec![("a", value), ("b c", AttrValue::Int(1))]));
    }
}

#[test]
fn names_of_any_kind() {
    let names = [
        "",
        "x",
        "x",
        "5",
        "a b",
        "\"",
        "a:b",
        "/conv/Conv_output_0",
        "x#3",
        "é",
        "return",
        "_",
        "//",
        "%",
        "-1",
        "\n",
        "const",
    ];
    let mut program = Program { name: "a \"name\"".to_owned(), ..Program::default() };
    for name in names {
        let ty = TensorType {
            dtype: F32,
            shape: Some(vec![Dim::Known(3), Dim::unknown(), Dim::Unknown(Arc::from(name))]),
        };
        let id = program.add_typed(name, ty);
        program.main.inputs.push(id);
        let op = Op { domain: Arc::from(name), name: Arc::from(name), version: 3 };
        let mut node = Node::new(op, vec![Some(id), None], vec![]);
        node.name = Arc::from(name);
        node.set_attr(name, AttrValue::String(name.to_owned()));
        node.regions.push((Arc::from(name), Region::default()));
        program.main.nodes.push(node);
    }
    program.main.outputs = program.main.inputs.clone();
    let text = check_round_trip(&program);
    for expected in [
        "%0: f32[3,?,?]",
        "%x#1: f32[3,?,x]",
        "%\"5\": f32[3,?,\"5\"]",
        "%/conv/Conv_output_0: ",
        "%\"x#3\": ",
        "x.x@3(%x#2, _) as \"x\" {x = \"x\"} x() {",
    ] {
        assert!(text.contains(expected), "expected {expected} in\n{text}");
    }
}

#[test]
fn parsing_numbers_values_in_the_order_of_the_text() {
    let mut program = Program::default();
    let tensor = |value: i64| Tensor::from_elements(&[], &[value]).unwrap();
    let unused = program.add_constant("unused", tensor(0));
    let late = program.add_constant("late", tensor(1));
    let x = program.add_typed("x", TensorType::unranked(I64));
    let y = program.add_value(crate::program::Value::default());
    program.main.inputs.push(x);
    let add = Node::new(Op::onnx("Add", 14), vec![Some(x), Some(late)], vec![Some(y)]);
    program.main.nodes.push(add);
    program.main.outputs = vec![y, late];
    assert_eq!(unused.0, 0);
    let text = check_round_trip(&program);
    assert_eq!(
        text,
        "devbay-program 1\n\nprogram \"\"(%x: i64[..]) {\n  %late = const i64[] [1]\n  \
         %2 = Add@14(%x, %late)\n  return %2, %late\n}\n"
    );
    let parsed = parse(&text).unwrap();
    assert_eq!(parsed.values.len(), 3);
    assert_eq!(&*parsed.values[1].name, "late");
}

#[test]
fn a_constant_of_an_inner_region_stands_outside() {
    let mut program = Program::default();
    let condition = program.add_typed("c", TensorType::new(BOOL, &[]));
    let inner = program.add_constant("inner", Tensor::zeros(U64, &[]).unwrap());
    let out = program.add_value(crate::program::Value::default());
    program.main.inputs.push(condition);
    let mut node = Node::new(Op::onnx("If", 25), vec![Some(condition)], vec![Some(out)]);
    for name in ["then_branch", "else_branch"] {
        let region = Region { outputs: vec![inner], ..Region::default() };
        node.regions.push((Arc::from(name), region));
    }
    program.main.nodes.push(node);
    program.main.outputs.push(inner);
    let text = check_round_trip(&program);
    let constant = text.find("  %inner = const u64[] [0]\n").unwrap();
    assert!(constant < text.find("If@25").unwrap(), "{text}");
}

#[test]
fn elided_constants_are_for_reading_only() {
    let program = with(
        vec![Tensor::zeros(F32, &[33]).unwrap(), Tensor::zeros(F32, &[2]).unwrap()],
        vec![("value", AttrValue::Tensor(Tensor::zeros(U8, &[100]).unwrap()))],
    );
    let text = print_elided(&program);
    assert!(text.contains("const f32[33] ...\n"), "{text}");
    assert!(text.contains("const f32[2] [0.0, 0.0]\n"), "{text}");
    assert!(text.contains("{value = u8[100] ...}"), "{text}");
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.contains("line 4, column 22: expected content"), "{error}");
}

#[test]
fn broken_programs_print() {
    let mut program = with(vec![], vec![]);
    program.main.outputs = vec![crate::program::ValueId(9)];
    assert!(print(&program).contains("return %missing#9"));
    program.values.push(crate::program::Value::default());
    program.main.outputs = vec![crate::program::ValueId(0)];
    assert!(print(&program).contains("return %undefined#0"));
}

#[test]
fn errors_have_a_place() {
    let in_program = |body: &str| format!("devbay-program 1\nprogram \"\"(%x: f32[2]) {{\n{body}\n}}\n");
    let deep = format!("{}return{}", "x.Nest@1() body() {\n".repeat(65), " } return".repeat(65));
    let cases = [
        (String::new(), "line 1, column 1: expected devbay-program, found the end"),
        ("devbay-program x".to_owned(), "line 1, column 16: expected the version of the form, found \"x\""),
        ("devbay-program 0\n".to_owned(), "column 16: expected version 1 of the text form, found 0"),
        (
            "devbay-program 1\nprogram x".to_owned(),
            "line 2, column 9: expected the program's name in quotes, found \"x\"",
        ),
        (in_program("return %x } x"), "expected the end behind the program, found \"x\""),
        (in_program("return %y"), "line 3, column 8: expected a value that is defined before, found %y"),
        (in_program("é"), "line 3, column 1: expected an op, a value or return, found \"é\""),
        (in_program("%y = Relu(%x)\nreturn"), "line 3, column 10: expected \"@\", found \"(%x)\""),
        (in_program("%y = Relu@x(%x)\nreturn"), "expected the op's version, found \"x\""),
        (in_program("%y = Relu@99999999999(%x)\nreturn"), "expected the op's version"),
        (
            in_program("%y = Relu@14(%x\nreturn"),
            "line 4, column 1: expected \",\" or \")\", found \"return\"",
        ),
        (in_program("%x = Relu@14(%x)\nreturn"), "expected one definition of %x"),
        (in_program("%x, %x = Relu@14()\nreturn"), "expected one definition of %x"),
        (
            in_program("%5a = Relu@14(%x)\nreturn"),
            "expected a name that begins with a digit in quotes, found %5a",
        ),
        (
            in_program("%y: f99[2] = Relu@14(%x)\nreturn"),
            "line 3, column 5: expected an element type, found \"f99\"",
        ),
        (in_program("%y: f32[-1] = Relu@14(%x)\nreturn"), "expected an extent"),
        (in_program("%y: f32[99999999999999999999] = Relu@14(%x)\nreturn"), "expected an extent"),
        (in_program("_ = const f32[1] [1.0]\nreturn"), "line 3, column 1: expected one value for a constant"),
        (
            in_program("%y = const f32[n] [1.0]\nreturn"),
            "expected known extents that fit in memory, found f32[n]",
        ),
        (
            in_program("%y = const f32[4294967296,4294967296] [1.0]\nreturn"),
            "expected known extents that fit in memory",
        ),
        (
            in_program("%y = const f32[1000000000000000] hex{00}\nreturn"),
            "expected 4000000000000000 bytes, found 1",
        ),
        (in_program("%y = const f32[1000000000] [1.0]\nreturn"), "expected 1000000000 elements, found 1"),
        (in_program("%y = const f32[1] [1.0, 2.0]\nreturn"), "expected 1 elements, found 2"),
        (
            in_program("%y = const f32[1] [1e40]\nreturn"),
            "expected a number of the element type, found \"1e40\"",
        ),
        (in_program("%y = const f16[1] [70000.0]\nreturn"), "expected a number of the element type"),
        (in_program("%y = const f32[1] [infinity]\nreturn"), "expected a number of the element type"),
        (
            in_program("%y = const f32[1] [nan(0x0)]\nreturn"),
            "expected a number of the element type, found \"nan(0x0)\"",
        ),
        (
            in_program("%y = const u8[1] [256]\nreturn"),
            "expected an integer of the element type, found \"256\"",
        ),
        (in_program("%y = const bool[1] [1]\nreturn"), "expected true or false, found \"1]\""),
        (
            in_program("%y = const u8[1] hex{0}\nreturn"),
            "line 3, column 22: expected pairs of hexadecimal digits",
        ),
        (in_program("%y = const u8[1] hex{zz}\nreturn"), "expected pairs of hexadecimal digits"),
        (in_program("x.Y@1() {a = []}\nreturn"), "expected ints, floats or strings before an empty list"),
        (in_program("x.Y@1() {a = [1, 2.0]}\nreturn"), "expected an integer, found \"2.0\""),
        (in_program("x.Y@1() {a = \"\\q\"}\nreturn"), "column 15: expected \\n, \\r"),
        (in_program("x.Y@1() {a = \"\\u{d800}\"}\nreturn"), "expected \\n, \\r"),
        (in_program("x.Y@1() {a = \"open}\nreturn"), "line 3, column 14: expected a quote at the end"),
        (
            in_program("x.Y@1() body() { %z = Relu@14(%x) return %z }\nreturn %z"),
            "line 4, column 8: expected a value that is defined before, found %z",
        ),
        (in_program(&deep), "regions nest deeper than 64"),
        (in_program("x.Y@1() // comment"), "line 4, column 1: expected an op"),
    ];
    for (text, expected) in cases {
        let error = parse(&text).expect_err(&text);
        assert_eq!(error.kind(), ErrorKind::InvalidModel, "{error}");
        assert!(error.to_string().contains(expected), "{error}\n expected {expected}");
    }
    let newer = parse("devbay-program 2\n").unwrap_err();
    assert_eq!(newer.kind(), ErrorKind::UnsupportedModel);
}

const SAMPLE: &str = r##"devbay-program 1
// A comment.
program "s"(%x: f32[2,?,n,"a + 1"], %c: bool[]) {
  %w = const f32[2] [0.5, nan(0x7fc00001)]
  %h = const u8[3] hex{00 01
    02}
  %y: f32[..], _, %2 = x.y.Op@3(%x, _, %w) as "n" {a = [1, -2], b = 1e-3, s = "\u{e9}\n", t = i64[] [4]}
  %"q q"#7 = If@25(%c) then_branch() { return %y } else_branch() { return %2 }
  Sink@1(%h)
  return %"q q"#7, %x
}
"##;

#[test]
fn the_sample_is_valid() {
    let program = parse(SAMPLE).unwrap();
    verify(&program).unwrap();
    check_round_trip(&program);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Text of any kind gives a program or an error; a program round-trips.
    #[test]
    fn garbage_never_panics(text in "(devbay-program 1 program \"\"\\(\\) \\{)?\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn damage_never_panics(
        at in 0..SAMPLE.len(),
        len in 0usize..12,
        with in "[%_=(){}\\[\\],.:@#\"a-f0-9 \n]{0,6}",
    ) {
        let end = (at + len).min(SAMPLE.len());
        if let (Some(before), Some(after)) = (SAMPLE.get(..at), SAMPLE.get(end..))
            && let Ok(program) = parse(&format!("{before}{with}{after}"))
            && verify(&program).is_ok()
        {
            let text = print(&program);
            prop_assert_eq!(print(&parse(&text).unwrap()), text);
        }
    }

    /// Every bit pattern of every floating-point type survives.
    #[test]
    fn floats_are_exact(bits in any::<u64>(), exponent in 0u32..4) {
        // All-ones exponents, where the NaNs are, are rare by chance.
        let bits = if exponent == 0 { bits | 0x7ff0_7f80_7c00_7f80 } else { bits };
        let tensors = [(F64, 1), (F32, 2), (F16, 4), (BF16, 4)]
            .map(|(dtype, n)| Tensor::from_bytes(dtype, &[n], bytemuck::bytes_of(&bits)).unwrap());
        check_round_trip(&with(tensors.to_vec(), vec![]));
    }
}
