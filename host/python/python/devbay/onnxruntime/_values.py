"""Values and descriptions: OrtValue, NodeArg, ModelMetadata, OrtDevice."""

import ctypes

import numpy

import devbay
from devbay.onnxruntime import _types
from devbay.onnxruntime._errors import InvalidArgument, error, translated, unsupported


class NodeArg:
    """An input or output of a model."""

    __slots__ = ("name", "shape", "type")

    def __init__(self, port, overrides):
        self.name = port.name
        # The numbers of few bits have names in onnxruntime that the table knows.
        is_number = port.dtype not in (None, "string") or port.type == "tensor"
        self.type = _types.type_name(port.dtype) if is_number else port.type
        self.shape = [overrides.get(extent, extent) for extent in port.shape or ()]

    @classmethod
    def of_tensor(cls, name, tensor):
        """Describes a tensor."""
        arg = cls.__new__(cls)
        arg.name, arg.type, arg.shape = name, _types.type_name(tensor.dtype), list(tensor.shape)
        return arg

    def __repr__(self):
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class ModelMetadata:
    """What a model's file says about itself."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(self, metadata):
        self.custom_metadata_map = dict(metadata["properties"])
        self.description = metadata["description"]
        self.domain = metadata["domain"]
        self.graph_description = metadata["graph_description"]
        self.graph_name = metadata["graph_name"]
        self.producer_name = metadata["producer_name"]
        # onnxruntime's number of a model without a version.
        self.version = 2**63 - 1 if metadata["version"] is None else metadata["version"]


class OrtDevice:
    """A kind of device and its number."""

    _KINDS = {"cpu": 0, "cuda": 1, "gpu": 1, "npu": 2}

    def __init__(self, name, device_id):
        self._name = name
        self._id = device_id

    @staticmethod
    def make(name, device_id, vendor_id=-1):
        """Makes a device of its kind: cpu, cuda, gpu or npu."""
        if name not in OrtDevice._KINDS:
            raise unsupported(f"there is no device of the kind {name!r}; kinds are {', '.join(OrtDevice._KINDS)}")
        return OrtDevice(name, int(device_id))

    @staticmethod
    def cpu():
        """Returns the number of the kind cpu."""
        return 0

    @staticmethod
    def cuda():
        """Returns the number of the kind cuda."""
        return 1

    def device_id(self):
        """Returns the device's number."""
        return self._id

    def device_type(self):
        """Returns the number of the kind."""
        return self._KINDS[self._name]

    def device_name(self):
        """Returns the kind."""
        return self._name


class OrtValue:
    """A value: an array in host memory, a `devbay.Tensor` on a device, a list, a dictionary, or None."""

    def __init__(self, value, dtype=None):
        self._value = value
        self._dtype = dtype or _dtype_of(value)

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj, /, device_type="cpu", device_id=0, vendor_id=-1):
        """Makes a tensor of an array. In host memory it shares the array if that is dense, else it has a copy."""
        OrtDevice.make(device_type, device_id, vendor_id)
        if device_type != "cpu":
            raise unsupported(
                f"an OrtValue on {device_type}:{device_id} cannot be made from an array: give the array to the run, or "
                "an OrtValue.from_dlpack of a tensor that is there"
            )
        array = numpy.asarray(numpy_obj)
        return cls(array if array.flags.c_contiguous else numpy.ascontiguousarray(array))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data, /, onnx_element_type):
        """Makes a tensor of an array whose bytes are elements of another type, given as ONNX's number."""
        dtype = _types.numpy_type(_types.devbay_name(onnx_element_type))
        array = numpy.asarray(data)
        if array.dtype.itemsize != dtype.itemsize:
            text = f"elements of {array.dtype.itemsize} bytes cannot be read as {dtype}, which has {dtype.itemsize}"
            raise error(InvalidArgument, text)
        return cls(array.view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape, element_type, device_type="cpu", device_id=0, vendor_id=-1, memory_info=None
    ):
        """Makes a tensor of zeroes, to be filled or bound to an output."""
        if memory_info is not None:
            raise unsupported("an OrtValue in the memory of an OrtMemoryInfo is not supported: name a device_type")
        OrtDevice.make(device_type, device_id, vendor_id)
        if device_type != "cpu":
            raise unsupported(
                f"an OrtValue cannot be allocated on {device_type}:{device_id}: bind the output to the device by its "
                "name, and devbay allocates it there"
            )
        dtype = _types.numpy_type(_types.devbay_name(element_type))
        return cls(numpy.zeros(tuple(shape), dtype))

    @classmethod
    def from_dlpack(cls, data, /):
        """Makes a tensor that shares the memory of an object with `__dlpack__`."""
        if not hasattr(data, "__dlpack__"):
            raise unsupported("a bare DLPack capsule is not supported: give the object that has `__dlpack__`")
        with translated():
            return cls(devbay.Tensor.from_dlpack(data))

    def numpy(self):
        """Returns the content as an array; it shares host memory. A sequence or a map is returned as it is."""
        with translated():
            return self._value.numpy() if isinstance(self._value, devbay.Tensor) else self._value

    def __array__(self, dtype=None, copy=None):
        return numpy.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options):
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._value.__dlpack_device__()

    def shape(self):
        """Returns the extents."""
        return list(self._value.shape)

    def data_type(self):
        """Returns the type's name, such as `tensor(float)`."""
        if isinstance(self._value, list):
            first = OrtValue(self._value[0]).data_type() if self._value else "tensor(undefined)"
            return f"seq({first})"
        return _types.type_name(self._dtype)

    def element_type(self):
        """Returns the element type's number in ONNX."""
        return _types.onnx_number(self._dtype)

    def device_name(self):
        """Returns the kind of the device that holds it: cpu, cuda and so on."""
        device = None if isinstance(self._value, numpy.ndarray) else self._value.device
        return device.split(":")[0] if device else "cpu"

    def data_ptr(self):
        """Returns the address of its first element."""
        if isinstance(self._value, numpy.ndarray):
            return self._value.ctypes.data
        if self._value.device is None:
            return self._value.numpy().ctypes.data
        raise unsupported(f"the address of a tensor on {self._value.device} is not handed out: use `__dlpack__`")

    def tensor_size_in_bytes(self):
        """Returns the number of bytes of its elements."""
        return self.numpy().nbytes if self.device_name() == "cpu" else self._value.nbytes

    def has_value(self):
        """Returns False for an optional without a value."""
        return self._value is not None

    def is_tensor(self):
        """Returns whether it is a tensor, also of strings."""
        return isinstance(self._value, (numpy.ndarray, devbay.Tensor))

    def is_sparse_tensor(self):
        """Returns False: only dense tensors are supported."""
        return False

    def is_tensor_sequence(self):
        """Returns whether it is a sequence of tensors."""
        return isinstance(self._value, list) and not any(isinstance(item, dict) for item in self._value)

    def as_sparse_tensor(self):
        """Raises an exception: only dense tensors are supported."""
        raise unsupported("sparse tensors are not supported")

    def update_inplace(self, data):
        """Copies an array, or another value's content, into this value's memory."""
        if not isinstance(self._value, numpy.ndarray):
            raise unsupported("only a value that was made from an array, or from a shape and a type, can be updated")
        source = data.numpy() if isinstance(data, OrtValue) else data
        if not isinstance(source, numpy.ndarray):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        if source.nbytes != self._value.nbytes or source.dtype != self._value.dtype:
            text = f"{source.dtype}{list(source.shape)} does not fit {self._value.dtype}{self.shape()}"
            raise error(InvalidArgument, text)
        self._value[...] = source.reshape(self._value.shape)


def copy_tensors(src, dst, stream=None):
    """Copies each value's content into the memory of its counterpart."""
    for source, to in zip(src, dst, strict=True):
        to.update_inplace(source)


def _dtype_of(value):
    if isinstance(value, devbay.Tensor):
        return value.dtype
    if not isinstance(value, numpy.ndarray):
        return None
    if value.dtype.kind in "OUST":
        return "string"
    return _types.devbay_name(value.dtype)


def array_at(address, element_type, shape):
    """Returns an array on host memory at an address, which the caller keeps alive."""
    dtype = _types.numpy_type(_types.devbay_name(element_type))
    n = int(numpy.prod(tuple(shape), dtype=numpy.int64))
    if n == 0:
        return numpy.zeros(tuple(shape), dtype)
    if not address:
        raise error(InvalidArgument, "expected the address of a buffer, found 0")
    memory = (ctypes.c_uint8 * (n * dtype.itemsize)).from_address(address)
    return numpy.frombuffer(memory, dtype).reshape(tuple(shape))
