"""ONNX files with Python's standard library alone: the machine that has a GPU may have no package besides.

`read` gives a model's nodes and constants. `chain` and `resnet50` write models for benchmarks; weights are made up, from
a generator with a fixed seed, so that no number is denormal.
"""

import random
import struct
from array import array
from pathlib import Path

FLOAT, INT64 = 1, 7


def _varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _number(field, n):
    return _varint(field << 3) + _varint(n)


def _bytes(field, data):
    data = data.encode() if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _attribute(name, value):
    head = _bytes(1, name)
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return head + _number(3, value) + _number(20, 2)
    return head + b"".join(_number(8, n) for n in value) + _number(20, 7)


def _value_info(name, shape):
    dims = b"".join(_bytes(1, _bytes(2, d) if isinstance(d, str) else _number(1, d)) for d in shape)
    tensor = _number(1, FLOAT) + _bytes(2, dims)
    return _bytes(1, name) + _bytes(2, _bytes(1, tensor))


class _Writer:
    """A graph as it grows."""

    def __init__(self, name):
        self.name, self.parts = name, []

    def node(self, op, inputs, output, **attributes):
        names = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output)
        attributes = b"".join(_bytes(5, _attribute(*each)) for each in attributes.items())
        self.parts.append(_bytes(1, names + _bytes(3, output) + _bytes(4, op) + attributes))
        return output

    def weight(self, name, shape, floats):
        dims = b"".join(_number(1, d) for d in shape)
        self.parts.append(_bytes(5, dims + _number(2, FLOAT) + _bytes(8, name) + _bytes(9, floats)))
        return name

    def write(self, path, inputs, outputs):
        ends = [_bytes(11, _value_info(*each)) for each in inputs] + [_bytes(12, _value_info(*each)) for each in outputs]
        graph = b"".join(self.parts) + _bytes(2, self.name) + b"".join(ends)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13)))
        return path


def chain(path, n, size):
    """n additions, each of the one before and a constant, of `size` elements."""
    graph = _Writer("chain")
    one = graph.weight("one", [size], struct.pack("<f", 1.0) * size)
    value = "x"
    for i in range(n):
        value = graph.node("Add", [value, one], "y" if i + 1 == n else f"v{i}")
    return graph.write(path, [("x", [size])], [("y", [size])])


# Width and number of blocks of each stage.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))

# Numbers that all weights are made of, over and over. Their count is a prime, so that no two filters are the same:
# equal ones would add up, layer by layer, beyond what f32 holds.
_RANDOM = random.Random(0)
NORMAL = [_RANDOM.gauss(0.0, 1.0) for _ in range(16381)]


def floats(n, mean, scale):
    """n numbers around a mean, as bytes, which begin elsewhere each time."""
    part = array("f", (mean + scale * value for value in NORMAL)).tobytes()
    begin = 4 * _RANDOM.randrange(len(NORMAL))
    return (part * (n // len(NORMAL) + 2))[begin : begin + 4 * n]


def resnet50(path, batch):
    """ResNet-50 v1.5 (the 3x3 convolution strides), as `make_resnet50.py` has it, with a batch of its own.

    The last norm of a block has a fifth of the usual scale, so that f16 holds the sums of all blocks.
    """
    graph = _Writer("resnet50")
    n_convs = 0

    def conv(x, n_in, n_out, kernel, stride, relu=True, scale=1.0):
        nonlocal n_convs
        i = n_convs
        n_convs += 1
        fan_in = n_in * kernel * kernel
        w = graph.weight(f"w{i}", [n_out, n_in, kernel, kernel], floats(n_out * fan_in, 0.0, (2 / fan_in) ** 0.5))
        parameters = [
            graph.weight(f"{name}{i}", [n_out], floats(n_out, mean, spread))
            for name, mean, spread in (("scale", scale, 0.1 * scale), ("bias", 0.0, 0.1), ("mean", 0.0, 0.1), ("var", 1.0, 0.05))
        ]
        pads = [(kernel - 1) // 2] * 4
        x = graph.node("Conv", [x, w], f"conv{i}", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
        x = graph.node("BatchNormalization", [x, *parameters], f"norm{i}", epsilon=1e-5)
        return graph.node("Relu", [x], f"relu{i}") if relu else x

    x = conv("data", 3, 64, 7, 2)
    x = graph.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    n_in = 64
    for stage, (width, n_blocks) in enumerate(STAGES):
        for block in range(n_blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            y = conv(x, n_in, width, 1, 1)
            y = conv(y, width, width, 3, stride)
            y = conv(y, width, 4 * width, 1, 1, relu=False, scale=0.2)
            if block == 0:
                x = conv(x, n_in, 4 * width, 1, stride, relu=False)
            added = graph.node("Add", [y, x], f"add{stage}_{block}")
            x = graph.node("Relu", [added], f"out{stage}_{block}")
            n_in = 4 * width
    x = graph.node("GlobalAveragePool", [x], "average")
    x = graph.node("Flatten", [x], "flat", axis=1)
    w = graph.weight("fc_w", [1000, 2048], floats(1000 * 2048, 0.0, 0.02))
    b = graph.weight("fc_b", [1000], bytes(4000))
    graph.node("Gemm", [x, w, b], "logits", transB=1)
    return graph.write(path, [("data", [batch, 3, 224, 224])], [("logits", [batch, 1000])])


class Tensor:
    """A constant: ONNX's number of its element type, its extents, its bytes."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data


class Node:
    """One node."""

    def __init__(self, op, inputs, outputs, attributes):
        self.op, self.inputs, self.outputs, self.attributes = op, inputs, outputs, attributes


class Graph:
    """A model's main graph; names of inputs and outputs in its order."""

    def __init__(self, nodes, constants, inputs, outputs):
        self.nodes, self.constants, self.inputs, self.outputs = nodes, constants, inputs, outputs


def _fields(data):
    """Each field of a message: its number and its value, an integer or bytes."""
    at, end, view = 0, len(data), memoryview(data)

    def varint():
        nonlocal at
        n = shift = 0
        while True:
            byte = view[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n

    while at < end:
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(kind)
            size = varint() if kind == 2 else size
            yield tag >> 3, view[at : at + size]
            at += size


def _signed(n):
    return n - (1 << 64) if n >> 63 else n


def _packed(value):
    """Integers of a repeated field, packed or one by one."""
    if isinstance(value, int):
        return [_signed(value)]
    out, n, shift = [], 0, 0
    for byte in value:
        n |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            out.append(_signed(n))
            n = shift = 0
    return out


def _tensor(data):
    dims, dtype, name, raw = [], 0, "", None
    ints, floats = [], b""
    for field, value in _fields(data):
        if field == 1:
            dims += _packed(value)
        elif field == 2:
            dtype = value
        elif field == 4:
            floats += bytes(value)
        elif field in (5, 7):
            ints += _packed(value)
        elif field == 8:
            name = bytes(value).decode()
        elif field == 9:
            raw = bytes(value)
        elif field in (13, 14):
            raise ValueError(f"constant {name} lies in another file")
    if raw is None:
        raw = struct.pack(f"<{len(ints)}{'q' if dtype == INT64 else 'i'}", *ints) if ints else floats
    return name, Tensor(dtype, dims, raw)


def _read_attribute(data):
    name, value, ints, floats = "", None, [], []
    for field, part in _fields(data):
        if field == 1:
            name = bytes(part).decode()
        elif field == 2:
            value = struct.unpack("<f", part)[0]
        elif field == 3:
            value = _signed(part)
        elif field == 4:
            value = bytes(part).decode()
        elif field == 5:
            value = _tensor(part)[1]
        elif field == 7:
            floats += struct.unpack(f"<{len(part) // 4}f", part)
        elif field == 8:
            ints += _packed(part)
    return name, value if value is not None else ints or floats


def read(path):
    """A model's main graph.

    Raises ValueError for a constant that lies in another file.
    """
    graph = next(value for field, value in _fields(Path(path).read_bytes()) if field == 7)
    nodes, constants, inputs, outputs = [], {}, [], []
    for field, value in _fields(graph):
        if field == 1:
            names, results, op, attributes = [], [], "", {}
            for part, content in _fields(value):
                if part == 1:
                    names.append(bytes(content).decode())
                elif part == 2:
                    results.append(bytes(content).decode())
                elif part == 4:
                    op = bytes(content).decode()
                elif part == 5:
                    key, attribute = _read_attribute(content)
                    attributes[key] = attribute
            nodes.append(Node(op, names, results, attributes))
        elif field == 5:
            name, tensor = _tensor(value)
            constants[name] = tensor
        elif field in (11, 12):
            name = next(bytes(part).decode() for number, part in _fields(value) if number == 1)
            (inputs if field == 11 else outputs).append(name)
    return Graph(nodes, constants, [name for name in inputs if name not in constants], outputs)
