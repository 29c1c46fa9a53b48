"""Arrays of NumPy, for inputs that have to be copied or converted first."""

import numpy

# Element types that a list of numbers becomes, by the engine's names.
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


def dense(value, dtype=None):
    """Returns a dense array in native byte order; `dtype` is the wanted type of values that are no arrays."""
    if value is None:
        raise TypeError("None is not a tensor")
    if isinstance(value, numpy.ndarray):
        dtype = value.dtype.newbyteorder("=")
    elif dtype is not None:
        dtype = _DTYPES.get(dtype)
    array = numpy.ascontiguousarray(value, dtype=dtype)
    # `ascontiguousarray` gives a number one extent.
    array = array.reshape(numpy.shape(value))
    if array.dtype == object:
        raise TypeError("an array of objects is not a tensor")
    return array
