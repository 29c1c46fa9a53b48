//! Storage of tensors' elements, and tensors that claim more than they hold.

use super::*;
use devbay_core::tensor::dtype_name;

fn of_constant(tensor: TensorProto) -> ModelProto {
    model(17, graph(vec![node("Constant", &[], &["y"]).with(tensor_attribute("value", tensor))], &["y"]))
}

#[test]
fn every_type_in_every_field() {
    let raw = |data_type: DataType, dims: &[i64], bytes: &[u8]| TensorProto {
        raw_data: Some(bytes.to_vec().into()),
        ..tensor("t", data_type, dims)
    };
    let in_int32 = |data_type: DataType, values: &[i32]| TensorProto {
        int32_data: values.to_vec(),
        ..tensor("t", data_type, &[i64::try_from(values.len()).unwrap()])
    };
    let in_uint64 = |data_type: DataType, values: &[u64]| TensorProto {
        uint64_data: values.to_vec(),
        ..tensor("t", data_type, &[i64::try_from(values.len()).unwrap()])
    };
    let doubles = TensorProto { double_data: vec![0.1], ..tensor("t", DataType::Double, &[1]) };
    let cases = vec![
        (float32s("t", &[0.5, -0.0]), "f32[2] [0.5, -0.0]"),
        (doubles, "f64[1] [0.1]"),
        (int64s("t", &[i64::MIN]), "i64[1] [-9223372036854775808]"),
        (in_uint64(DataType::Uint64, &[u64::MAX]), "u64[1] [18446744073709551615]"),
        (in_uint64(DataType::Uint32, &[u64::from(u32::MAX)]), "u32[1] [4294967295]"),
        (in_int32(DataType::Int32, &[i32::MIN]), "i32[1] [-2147483648]"),
        (in_int32(DataType::Int16, &[-32768]), "i16[1] [-32768]"),
        (in_int32(DataType::Uint16, &[65535]), "u16[1] [65535]"),
        (in_int32(DataType::Int8, &[-128, 127]), "i8[2] [-128, 127]"),
        (in_int32(DataType::Uint8, &[255]), "u8[1] [255]"),
        (in_int32(DataType::Bool, &[0, 1, 7]), "bool[3] [false, true, true]"),
        (in_int32(DataType::Float16, &[0x3c00, 0xfc00]), "f16[2] [1.0, -inf]"),
        (in_int32(DataType::Bfloat16, &[0x3f80]), "bf16[1] [1.0]"),
        (in_int32(DataType::Float8e4m3fn, &[0x38, 0xff]), "f8e4m3fn[2] hex{38ff}"),
        // Elements of fewer than 8 bits share the stored integers as they share bytes.
        (
            TensorProto { int32_data: vec![0x21, 0x0f], ..tensor("t", DataType::Int4, &[3]) },
            "i4[3] hex{210f}",
        ),
        (raw(DataType::Uint2, &[5], &[0b11_10_01_00, 1]), "u2[5] hex{e401}"),
        (raw(DataType::Float, &[1], &[0, 0, 0x80, 0x3f]), "f32[1] [1.0]"),
        (raw(DataType::Int64, &[], &[5, 0, 0, 0, 0, 0, 0, 0]), "i64[] [5]"),
        (raw(DataType::Float16, &[1, 2], &[0, 0x3c, 0, 0x40]), "f16[1,2] [1.0, 2.0]"),
        (raw(DataType::Bool, &[3], &[0, 1, 2]), "bool[3] [false, true, true]"),
        (raw(DataType::Float, &[0, 3], &[]), "f32[0,3] []"),
        (float32s("t", &[]), "f32[0] []"),
        // A tensor without dims has one element.
        (TensorProto { float_data: vec![2.0], ..tensor("t", DataType::Float, &[]) }, "f32[] [2.0]"),
    ];
    for (tensor, expected) in cases {
        check(expected, &of_constant(tensor), &format!("%y = const {expected}\nreturn %y"));
    }
}

#[test]
fn tensors_that_lie() {
    let large = 1 << 40;
    let raw = |dims: &[i64], n_bytes: usize| TensorProto {
        raw_data: Some(vec![0; n_bytes].into()),
        ..tensor("t", DataType::Float, dims)
    };
    let cases: Vec<(TensorProto, &str)> = vec![
        (raw(&[2], 7), "expected 8 bytes for a tensor f32[2], found 7"),
        (raw(&[2], 9), "expected 8 bytes for a tensor f32[2], found 9"),
        (raw(&[large], 8), "expected 4398046511104 bytes for a tensor f32[1099511627776], found 8"),
        (
            raw(&[large, large], 8),
            "expected a tensor that fits in memory, found extents [1099511627776, 1099511627776]",
        ),
        (raw(&[i64::MAX, i64::MAX, 0], 0), "expected a tensor that fits in memory"),
        (raw(&[i64::MAX], 0), "expected a tensor that fits in memory"),
        (raw(&[-1], 4), "expected extents, found [-1]"),
        (raw(&[i64::MIN, i64::MIN], 4), "expected extents"),
        (
            tensor("t", DataType::Float, &[large]),
            "expected 1099511627776 elements in float_data of a tensor of 1099511627776 f32, found 0",
        ),
        (TensorProto { dims: vec![3], ..float32s("t", &[1.0]) }, "expected 3 elements in float_data"),
        (TensorProto { dims: vec![], ..float32s("t", &[1.0, 2.0]) }, "expected 1 elements in float_data"),
        (
            TensorProto { data_type: Some(DataType::Int64 as i32), ..float32s("t", &[1.0]) },
            "expected 0 elements in float_data of a tensor of 1 i64, found 1",
        ),
        (TensorProto { float_data: vec![1.0], ..raw(&[1], 4) }, "expected 0 elements in float_data"),
        (TensorProto { string_data: vec![vec![]], ..raw(&[1], 4) }, "expected 0 elements in string_data"),
        (
            TensorProto { int32_data: vec![256], ..tensor("t", DataType::Uint8, &[1]) },
            "expected elements of type u8, found 256",
        ),
        (
            TensorProto { int32_data: vec![-1], ..tensor("t", DataType::Float16, &[1]) },
            "expected elements of type f16, found -1",
        ),
        (
            TensorProto { uint64_data: vec![1 << 32], ..tensor("t", DataType::Uint32, &[1]) },
            "expected elements of type u32, found 4294967296",
        ),
        (
            TensorProto { data_type: None, ..raw(&[1], 4) },
            "expected ONNX's number of an element type, found 0",
        ),
    ];
    for (tensor, expected) in cases {
        let mut initialized = model(17, graph(vec![], &[]));
        initialized.graph.as_mut().unwrap().initializer = vec![tensor.clone()];
        let words = format!("the initializer \"t\": {expected}");
        check_refused(expected, &initialized, ErrorKind::InvalidModel, &words);
        check_refused(
            expected,
            &of_constant(tensor),
            ErrorKind::InvalidModel,
            "node making \"y\" (Constant)",
        );
    }
    let segment = TensorProto { segment: Some(Default::default()), ..raw(&[1], 4) };
    check_refused("segments", &of_constant(segment), ErrorKind::UnsupportedModel, "tensors in segments");
}

#[test]
fn raw_data_is_a_view_of_the_model() {
    let content: Vec<u8> = (0..=255).collect();
    let weights =
        TensorProto { raw_data: Some(content.clone().into()), ..tensor("w", DataType::Uint8, &[256]) };
    let mut graph = graph(vec![], &["w"]);
    graph.initializer = vec![weights];
    let bytes = bytes::Bytes::from(model(17, graph).encode_to_vec());
    let program = crate::import::from_bytes(bytes.clone(), None).unwrap();
    let tensor = program.constant(program.main.outputs[0]).unwrap();
    assert_eq!(dtype_name(tensor.dtype()), "u8");
    assert_eq!(tensor.bytes(), content);
    let range = bytes.as_ptr_range();
    assert!(range.contains(&tensor.bytes().as_ptr()), "expected a view of the model's bytes, found a copy");
}
