"""Arrays of NumPy, for inputs that have to be copied or converted first, and for element types that NumPy lacks.

The package ml_dtypes has bfloat16, the small floats and the small integers. It is optional: without it, such
results are `devbay.Tensor`s.
"""

import functools

import numpy

# NumPy's own element types, by the engine's names.
_DTYPES = {
    "f16": numpy.float16,
    "f32": numpy.float32,
    "f64": numpy.float64,
    "i8": numpy.int8,
    "i16": numpy.int16,
    "i32": numpy.int32,
    "i64": numpy.int64,
    "u8": numpy.uint8,
    "u16": numpy.uint16,
    "u32": numpy.uint32,
    "u64": numpy.uint64,
    "bool": numpy.bool_,
}

# Types of ml_dtypes, by the engine's names, and their bits. Those below 8 bits take a byte each in an array, and are
# packed in the engine, the first element in the lowest bits.
_SMALL = {
    "bf16": ("bfloat16", 16),
    "f8e4m3fn": ("float8_e4m3fn", 8),
    "f8e4m3fnuz": ("float8_e4m3fnuz", 8),
    "f8e5m2": ("float8_e5m2", 8),
    "f8e5m2fnuz": ("float8_e5m2fnuz", 8),
    "f8e8m0": ("float8_e8m0fnu", 8),
    "f4e2m1": ("float4_e2m1fn", 4),
    "i4": ("int4", 4),
    "u4": ("uint4", 4),
    "i2": ("int2", 2),
    "u2": ("uint2", 2),
}


@functools.cache
def numpy_type(name):
    """Returns the NumPy type of one of the engine's names; None if neither NumPy nor ml_dtypes has it."""
    if name in _DTYPES:
        return numpy.dtype(_DTYPES[name])
    if name not in _SMALL:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    found = getattr(ml_dtypes, _SMALL[name][0], None)
    return None if found is None else numpy.dtype(found)


@functools.cache
def dtype_name(dtype):
    """Returns the engine's name of a NumPy type; None if it has none."""
    names = (name for name in (*_DTYPES, *_SMALL) if numpy_type(name) == dtype)
    return next(names, None)


def dense(value, name=None):
    """Returns a dense array in native byte order, and the name and shape of an element type that NumPy lacks, or None.

    The array then has the elements' bytes. `name` is the wanted type of values that are no arrays.
    """
    if value is None:
        raise TypeError("None is not a tensor")
    dtype = None
    if isinstance(value, numpy.ndarray):
        dtype = value.dtype.newbyteorder("=")
    elif name is not None:
        dtype = numpy_type(name)
    # NumPy orders memory by itself, and gives a number one extent.
    array = numpy.ascontiguousarray(value, dtype=dtype).reshape(numpy.shape(value))
    if array.dtype == object:
        raise TypeError("an array of objects is not a tensor")
    known = dtype_name(array.dtype)
    if known in _SMALL:
        return _bytes_of(array, _SMALL[known][1]), (known, array.shape)
    return array, None


def _bytes_of(array, bits):
    """Returns the bytes of an array, packed if its elements have fewer bits than a byte."""
    codes = array.reshape(-1).view(numpy.uint8)
    if bits >= 8:
        return codes
    per_byte = 8 // bits
    padded = numpy.zeros(-(-codes.size // per_byte) * per_byte, numpy.uint8)
    padded[: codes.size] = codes & (2**bits - 1)
    shifts = numpy.arange(per_byte, dtype=numpy.uint8) * bits
    return numpy.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(numpy.uint8)


def of_bytes(data, name, shape):
    """Returns the array of a small type whose bytes are given, as the engine has them."""
    bits = _SMALL[name][1]
    dtype = numpy_type(name)
    if bits >= 8:
        return data.view(dtype).reshape(shape)
    per_byte = 8 // bits
    shifts = numpy.arange(per_byte, dtype=numpy.uint8) * bits
    codes = ((data[:, None] >> shifts) & (2**bits - 1)).reshape(-1)[: numpy.prod(shape, dtype=numpy.int64)]
    if name.startswith("i"):
        # A byte of a signed type repeats the sign above its bits.
        codes = ((codes ^ (1 << (bits - 1))).astype(numpy.int8) - (1 << (bits - 1))).astype(numpy.int8)
    return codes.astype(codes.dtype).view(dtype).reshape(shape)


def is_text(value):
    """Returns whether a value is a text, or an array or a list of texts."""
    return isinstance(value, (str, bytes)) or numpy.asarray(value).dtype.kind in "UST"


def texts(value):
    """Returns the texts of an array, a list or a single text, row-major, and their shape. Bytes are read as UTF-8."""
    array = value if isinstance(value, numpy.ndarray) else numpy.asarray(value, dtype=object)
    if array.dtype.kind not in "USTO":
        raise TypeError(f"expected texts, found an array of {array.dtype}")
    return [_text(item) for item in array.reshape(-1).tolist()], array.shape


def _text(item):
    if isinstance(item, bytes):
        return item.decode("utf-8")
    if not isinstance(item, str):
        raise TypeError(f"expected texts, found {type(item).__name__}")
    return item


def of_texts(texts, shape):
    """Returns an array of `str` objects, as onnxruntime returns strings."""
    array = numpy.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)
