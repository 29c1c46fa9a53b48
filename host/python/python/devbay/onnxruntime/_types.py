"""Element types by their names in devbay, in onnxruntime, in ONNX and in NumPy."""

import numpy

from devbay import _arrays
from devbay.onnxruntime._errors import InvalidArgument, error, unsupported

# devbay's name, onnxruntime's name within `tensor(..)`, and the number in ONNX's TensorProto.DataType.
_TABLE = [
    ("f32", "float", 1),
    ("u8", "uint8", 2),
    ("i8", "int8", 3),
    ("u16", "uint16", 4),
    ("i16", "int16", 5),
    ("i32", "int32", 6),
    ("i64", "int64", 7),
    ("string", "string", 8),
    ("bool", "bool", 9),
    ("f16", "float16", 10),
    ("f64", "double", 11),
    ("u32", "uint32", 12),
    ("u64", "uint64", 13),
    ("bf16", "bfloat16", 16),
    ("f8e4m3fn", "float8e4m3fn", 17),
    ("f8e4m3fnuz", "float8e4m3fnuz", 18),
    ("f8e5m2", "float8e5m2", 19),
    ("f8e5m2fnuz", "float8e5m2fnuz", 20),
    ("u4", "uint4", 21),
    ("i4", "int4", 22),
    ("f4e2m1", "float4e2m1", 23),
    ("f8e8m0", "float8e8m0", 24),
    ("u2", "uint2", 25),
    ("i2", "int2", 26),
]
_BY_DEVBAY = {row[0]: row for row in _TABLE}
_BY_ONNX = {row[2]: row for row in _TABLE}


def type_name(dtype):
    """Returns onnxruntime's name of a tensor's type: `f32` becomes `tensor(float)`."""
    if dtype is None:
        return "tensor(undefined)"
    return f"tensor({_BY_DEVBAY[dtype][1]})" if dtype in _BY_DEVBAY else f"tensor({dtype})"


def onnx_number(dtype):
    """Returns the number of an element type in ONNX's TensorProto.DataType; 0 if it has none."""
    return _BY_DEVBAY[dtype][2] if dtype in _BY_DEVBAY else 0


def devbay_name(element_type):
    """Returns devbay's name of an element type that is given as a NumPy type or as ONNX's number."""
    if isinstance(element_type, int):
        if element_type not in _BY_ONNX:
            raise error(InvalidArgument, f"there is no tensor of the ONNX element type {element_type}")
        return _BY_ONNX[element_type][0]
    name = _arrays.dtype_name(numpy.dtype(element_type))
    if name is None:
        raise error(InvalidArgument, f"there is no tensor of the NumPy type {numpy.dtype(element_type)}")
    return name


def numpy_type(dtype):
    """Returns the NumPy type for one of devbay's names."""
    found = _arrays.numpy_type(dtype)
    if found is None:
        raise unsupported(f"NumPy has no type for {dtype}; install ml_dtypes")
    return found
