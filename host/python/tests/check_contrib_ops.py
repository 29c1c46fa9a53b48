"""Ops of onnxruntime's domain `com.microsoft`, compared with onnxruntime: `python host/python/tests/check_contrib_ops.py`.

Each op has random cases: shapes, attributes, optional operands and element types. A case is a model of one node, which
onnxruntime runs on the processor with its optimiser off, and devbay on its CPU plugin. Ops that onnxruntime runs only on
GPUs are compared with their formula in NumPy. The table says for each op how many cases passed, and the largest difference:
of real numbers relative to the larger of 1 and the number, of integers in steps. The last line is `passed`, or the exit code
is 1. It needs the packages onnx and onnxruntime, so the test command does not run it.

    check_contrib_ops.py [--cases N] [--seed N] [--markdown] [OP ...]
"""

import sys
from math import erf

import numpy as np
import onnxruntime
from beside_onnxruntime import Case, main, maybe, model, pick, reals, shape_of
from onnx import TensorProto

# Quantised results may be rounded to the other side of a tie.
STEPS = 1

DTYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
}


def weights(rng, *shape, dtype=np.float32):
    return rng.uniform(0.5, 1.5, shape).astype(dtype)


def bytes_of(rng, dtype, *shape):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(rng, low=0.005, high=0.05):
    return np.array(rng.uniform(low, high), np.float32)


def byte_type(rng):
    return pick(rng, np.uint8, np.int8)


def window(rng, rank, channels_last=False):
    """Returns attributes of pooling, and a shape that is large enough."""
    kernel = [int(n) for n in rng.integers(1, 4, rank)]
    attrs = {"kernel_shape": kernel}
    if rng.random() < 0.6:
        attrs["strides"] = [int(n) for n in rng.integers(1, 3, rank)]
    if rng.random() < 0.5:
        pads = [int(rng.integers(0, k)) for k in kernel]
        attrs["pads"] = pads + [int(rng.integers(0, k)) for k in kernel]
    elif rng.random() < 0.3:
        attrs["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    spatial = [int(n) for n in rng.integers(4, 9, rank)]
    n, c = (int(n) for n in rng.integers(1, 4, 2))
    return attrs, (n, *spatial, c) if channels_last else (n, c, *spatial)


F = TensorProto.FLOAT


def gelu(rng):
    return Case([reals(rng, *shape_of(rng, rng.integers(0, 4)), scale=3)], [F])


def fast_gelu(rng):
    shape = shape_of(rng, rng.integers(1, 4))
    return Case([reals(rng, *shape, scale=2), maybe(rng, lambda: reals(rng, shape[-1]))], [F], tolerance=1e-3)


def bias_gelu(rng):
    shape = shape_of(rng, rng.integers(1, 4))
    return Case([reals(rng, *shape, scale=2), reals(rng, shape[-1])], [F])


def bias_add(rng):
    n, s, c = shape_of(rng, 3)
    return Case(
        [reals(rng, n, s, c), reals(rng, c), reals(rng, n, s, c)], [F], formula=lambda x, bias, skip: [x + bias + skip]
    )


def bias_split_gelu(rng):
    n, s, c = shape_of(rng, 3)

    def formula(x, bias):
        left, right = np.split(x + bias, 2, axis=-1)
        return [(left * 0.5 * right * (1 + np.vectorize(erf)(right / np.sqrt(2)))).astype(np.float32)]

    return Case([reals(rng, n, s, 2 * c), reals(rng, 2 * c)], [F], formula=formula)


def matrices(rng):
    """Returns A and B of a product, as they are before a transposition."""
    m, k, n = shape_of(rng, 3)
    batch = shape_of(rng, rng.integers(0, 3))
    return (*batch, m, k), (*(batch if rng.random() < 0.7 else ()), k, n)


def fused_matmul(rng, batches=True):
    a, b = matrices(rng)
    attrs = {}
    for name, shape in (("A", a), ("B", b)):
        perm = list(range(len(shape)))
        if rng.random() < 0.5:
            attrs[f"trans{name}"] = 1
            perm[-1], perm[-2] = perm[-2], perm[-1]
        if batches and len(a) == len(b) > 2 and rng.random() < 0.4:
            attrs[f"transBatch{name}"] = 1
            perm = [perm[-2], *perm[:-2], perm[-1]]
        if name == "A":
            a = tuple(np.array(a)[perm].tolist())
        else:
            b = tuple(np.array(b)[perm].tolist())
    if rng.random() < 0.6:
        attrs["alpha"] = float(rng.normal())
    if rng.random() < 0.1:
        a, b = (a[-1],), (a[-1], 3)
        attrs = {"transA": 1}
    dtype, ty = pick(rng, (np.float32, F), (np.float64, TensorProto.DOUBLE)) if batches else (np.float32, F)
    return Case([reals(rng, *a, dtype=dtype), reals(rng, *b, dtype=dtype)], [ty], attrs)


def activation(rng):
    name = pick(rng, "", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid")
    params = {"LeakyRelu": [0.2], "Clip": [-0.3, 0.8], "HardSigmoid": [0.3, 0.4]}.get(name)
    attrs = {"activation": name} if name else {}
    if params:
        attrs["activation_params"] = params
    return attrs


def fused_conv(rng):
    rank = int(rng.integers(1, 3))
    group, per_group, out = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 3))
    kernel = [int(n) for n in rng.integers(1, 4, rank)]
    spatial = [int(n) for n in rng.integers(5, 9, rank)]
    n = int(rng.integers(1, 3))
    attrs = activation(rng) | {"group": group}
    if rng.random() < 0.5:
        attrs["kernel_shape"] = kernel
    if rng.random() < 0.5:
        attrs["strides"] = [int(s) for s in rng.integers(1, 3, rank)]
    if rng.random() < 0.3:
        attrs["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
    if rng.random() < 0.5:
        attrs["pads"] = [int(p) for p in rng.integers(0, 2, 2 * rank)]
    elif "dilations" not in attrs and rng.random() < 0.3:
        attrs["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    x = reals(rng, n, group * per_group, *spatial)
    w = reals(rng, group * out, per_group, *kernel, scale=0.5)
    bias = maybe(rng, lambda: reals(rng, group * out))
    case = Case([x, w, bias, None], [F], attrs, constants=(1, 2) if rng.random() < 0.5 else ())
    if rng.random() < 0.4:
        # Z has the result's shape: that of the same convolution.
        plain = Case(
            [x, w], [F], {k: v for k, v in attrs.items() if not k.startswith("activation")}, domain=""
        )
        data, feeds = model("Conv", plain)
        case.inputs[3] = reals(rng, *onnxruntime.InferenceSession(data).run(None, feeds)[0].shape)
    return case


def fused_gemm(rng):
    m, k, n = shape_of(rng, 3)
    attrs = {}
    a, b = (m, k), (k, n)
    if rng.random() < 0.5:
        attrs["transA"], a = 1, (k, m)
    if rng.random() < 0.5:
        attrs["transB"], b = 1, (n, k)
    if rng.random() < 0.5:
        attrs["alpha"] = float(rng.normal())
    if rng.random() < 0.5:
        attrs["beta"] = float(rng.normal())
    name, params = pick(
        rng,
        ("", {}),
        ("Relu", {}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("Elu", {"alpha": 0.7}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("Selu", {"alpha": 1.5, "gamma": 1.1}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("ThresholdedRelu", {"alpha": 0.4}),
    )
    if name:
        attrs["activation"] = name
    attrs |= {f"activation_{key}": value for key, value in params.items()}
    c = maybe(rng, lambda: reals(rng, *pick(rng, (n,), (m, n), (1, n), (m, 1), (1,))))
    return Case([reals(rng, *a), reals(rng, *b), c], [F], attrs)


def normalised_type(rng):
    return pick(rng, (np.float32, F), (np.float32, F), (np.float16, TensorProto.FLOAT16))


def simplified_layer_normalization(rng):
    dtype, ty = normalised_type(rng)
    rank = int(rng.integers(1, 4))
    shape = shape_of(rng, rank, 1, 8)
    axis = int(rng.integers(-rank, rank))
    attrs = {} if rng.random() < 0.3 else {"axis": axis}
    if rng.random() < 0.5:
        attrs["epsilon"] = 1e-3
    over = shape[attrs.get("axis", -1) % rank :]
    outputs = [ty, F] if rng.random() < 0.5 else [ty]
    return Case([reals(rng, *shape, dtype=dtype), weights(rng, *over, dtype=dtype)], outputs, attrs, domain="")


def skip_operands(rng):
    dtype, ty = normalised_type(rng)
    b, s, h = shape_of(rng, 3, 2, 8)
    shape = pick(rng, (b, s, h), (b, s, h), (s, h))
    attrs = {"epsilon": float(pick(rng, 1e-5, 1e-3))}
    x = reals(rng, *shape, dtype=dtype)
    skip = reals(rng, *(pick(rng, shape, (1, s, h), (s, h)) if len(shape) == 3 else shape), dtype=dtype)
    gamma, beta = weights(rng, h, dtype=dtype), maybe(rng, lambda: reals(rng, h, dtype=dtype))
    bias = maybe(rng, lambda: reals(rng, h, dtype=dtype))
    outputs = [ty, None, None, ty] if rng.random() < 0.6 else [ty]
    return x, skip, gamma, beta, bias, outputs, attrs


def skip_layer_normalization(rng):
    x, skip, gamma, beta, bias, outputs, attrs = skip_operands(rng)
    # The sum is rounded to f16 before the normalisation, which magnifies that where the deviation is small.
    tolerance = 3e-2 if x.dtype == np.float16 else None
    return Case([x, skip, gamma, beta, bias], outputs, attrs, tolerance=tolerance)


def skip_simplified_layer_normalization(rng):
    x, skip, gamma, _, bias, outputs, attrs = skip_operands(rng)
    return Case([x, skip, gamma, bias], outputs, attrs)


def embed_layer_normalization(rng):
    b, s, h = shape_of(rng, 3, 2, 7)
    words, places = 11, 9
    ids = rng.integers(0, words, (b, s)).astype(np.int32)
    has_segments = rng.random() < 0.6
    segment_ids = rng.integers(0, 2, (b, s)).astype(np.int32) if has_segments else None
    segments = reals(rng, 2, h) if has_segments else None
    mask = maybe(rng, lambda: rng.integers(0, 2, (b, s)).astype(np.int32))
    positions = maybe(rng, lambda: rng.integers(0, places, (pick(rng, 1, b), s)).astype(np.int32))
    outputs = [F, TensorProto.INT32]
    if rng.random() < 0.5:
        outputs.append(F)
    inputs = [ids, segment_ids, reals(rng, words, h), reals(rng, places, h), segments]
    inputs += [weights(rng, h), reals(rng, h), mask, positions]
    return Case(inputs, outputs, {"epsilon": 1e-5})


def integer_product(rng):
    m, k, n = shape_of(rng, 3)
    batch = shape_of(rng, rng.integers(0, 2))
    of_b = byte_type(rng)
    columns = (n,) if rng.random() < 0.5 else ()
    b = bytes_of(rng, of_b, k, n)
    b_scale = rng.uniform(0.01, 0.1, columns).astype(np.float32)
    b_zero = maybe(rng, lambda: bytes_of(rng, of_b, *columns))
    bias = maybe(rng, lambda: reals(rng, n))
    return (*batch, m, k), b, b_scale, b_zero, bias


def matmul_integer_to_float(rng):
    a, b, b_scale, b_zero, bias = integer_product(rng)
    of_a = np.uint8 if b.dtype == np.uint8 else byte_type(rng)
    a_zero = maybe(rng, lambda: bytes_of(rng, of_a))
    return Case([bytes_of(rng, of_a, *a), b, scale(rng), b_scale, a_zero, b_zero, bias], [F])


def dynamic_quantize_matmul(rng):
    a, b, b_scale, b_zero, bias = integer_product(rng)
    # An element of A may be rounded to the other side of a tie.
    return Case([reals(rng, *a), b, b_scale, b_zero, bias], [F], tolerance=2e-2)


def quantised(rng, dtype, *shape):
    return [bytes_of(rng, dtype, *shape), scale(rng), maybe(rng, lambda: bytes_of(rng, dtype))]


def of_bytes(dtype):
    return TensorProto.UINT8 if dtype == np.uint8 else TensorProto.INT8


def qlinear_binary(rng):
    dtype = byte_type(rng)
    shape = shape_of(rng, rng.integers(1, 4))
    other = tuple(1 if rng.random() < 0.3 else n for n in shape[rng.integers(0, len(shape)) :])
    inputs = quantised(rng, dtype, *shape) + quantised(rng, dtype, *other)
    if rng.random() < 0.5:
        inputs = inputs[3:] + inputs[:3]
    result = [scale(rng, 0.02, 0.1), maybe(rng, lambda: bytes_of(rng, dtype))]
    return Case(inputs + result, [of_bytes(dtype)], steps=STEPS)


def qlinear_where(rng):
    dtype = byte_type(rng)
    shape = shape_of(rng, rng.integers(1, 4))
    condition = rng.integers(0, 2, shape).astype(bool)
    x = [bytes_of(rng, dtype, *shape), scale(rng), bytes_of(rng, dtype)]
    y = [bytes_of(rng, dtype, *shape[1:]), scale(rng), bytes_of(rng, dtype)]
    z = [scale(rng, 0.02, 0.1), bytes_of(rng, dtype)]
    return Case([condition, *x, *y, *z], [of_bytes(dtype)], steps=STEPS)


def qlinear_unary(rng, low=0.003, high=0.02):
    dtype = byte_type(rng)
    inputs = quantised(rng, dtype, *shape_of(rng, rng.integers(1, 4)))
    result = [scale(rng, low, high), maybe(rng, lambda: bytes_of(rng, dtype))]
    return Case(inputs + result, [of_bytes(dtype)], steps=STEPS)


def qlinear_leaky_relu(rng):
    case = qlinear_unary(rng)
    if rng.random() < 0.6:
        case.attrs["alpha"] = float(rng.uniform(0, 1))
    return case


def qlinear_softmax(rng):
    dtype = byte_type(rng)
    rank = int(rng.integers(1, 4))
    data = bytes_of(rng, dtype, *shape_of(rng, rank, 2, 7))
    x = [data, scale(rng, 0.01, 0.1), maybe(rng, lambda: bytes_of(rng, dtype))]
    attrs = {"opset": pick(rng, 12, 13)}
    if rng.random() < 0.6:
        attrs["axis"] = int(rng.integers(-rank, rank))
    result = [np.array(1 / 256, np.float32), np.array(0 if dtype == np.uint8 else -128, dtype)]
    return Case([*x, *result], [of_bytes(dtype)], attrs, steps=STEPS)


def qlinear_concat(rng):
    dtype = byte_type(rng)
    rank = int(rng.integers(1, 4))
    shape, axis = list(shape_of(rng, rank)), int(rng.integers(-rank, rank))
    inputs = [scale(rng, 0.02, 0.1), bytes_of(rng, dtype)]
    for _ in range(int(rng.integers(1, 4))):
        shape[axis] = int(rng.integers(1, 5))
        inputs += [bytes_of(rng, dtype, *shape), scale(rng), bytes_of(rng, dtype)]
    constants = [i for i in range(len(inputs)) if i < 2 or i % 3 != 2]
    return Case(inputs, [of_bytes(dtype)], {"axis": axis}, constants=tuple(constants), steps=STEPS)


def qlinear_average_pool(rng):
    dtype = byte_type(rng)
    last = rng.random() < 0.5
    attrs, shape = window(rng, int(rng.integers(1, 4)), last)
    if last:
        attrs["channels_last"] = 1
    if rng.random() < 0.5:
        attrs["count_include_pad"] = 1
    if rng.random() < 0.3:
        attrs["ceil_mode"] = 1
    result = [scale(rng), maybe(rng, lambda: bytes_of(rng, dtype))]
    return Case(quantised(rng, dtype, *shape) + result, [of_bytes(dtype)], attrs, steps=STEPS)


def qlinear_global_average_pool(rng):
    dtype = byte_type(rng)
    shape = shape_of(rng, int(rng.integers(3, 6)))
    attrs = {"channels_last": 1} if rng.random() < 0.5 else {}
    inputs = [bytes_of(rng, dtype, *shape), scale(rng), bytes_of(rng, dtype), scale(rng), bytes_of(rng, dtype)]
    return Case(inputs, [of_bytes(dtype)], attrs, steps=STEPS)


def q_gemm(rng):
    m, k, n = shape_of(rng, 3)
    of_a = byte_type(rng)
    of_b = byte_type(rng) if of_a == np.uint8 else np.int8
    attrs, a, b = {}, (m, k), (k, n)
    if rng.random() < 0.5:
        attrs["transA"], a = 1, (k, m)
    if rng.random() < 0.5:
        attrs["transB"], b = 1, (n, k)
    if rng.random() < 0.5:
        attrs["alpha"] = float(rng.uniform(0.5, 2))
    columns = (n,) if rng.random() < 0.5 else ()
    inputs = [bytes_of(rng, of_a, *a), scale(rng), bytes_of(rng, of_a), bytes_of(rng, of_b, *b)]
    inputs += [rng.uniform(0.01, 0.1, columns).astype(np.float32), bytes_of(rng, of_b, *columns)]
    c = maybe(rng, lambda: rng.integers(-5000, 5000, pick(rng, (n,), (m, n), (1, n), (m, 1))).astype(np.int32))
    if rng.random() < 0.5:
        return Case([*inputs, c, scale(rng, 0.5, 2), bytes_of(rng, of_a)], [of_bytes(of_a)], attrs, steps=STEPS)
    return Case([*inputs, c], [F], attrs)


QUANTISED = [(np.uint8, TensorProto.UINT8), (np.int8, TensorProto.INT8)]
QUANTISED += [(np.uint16, TensorProto.UINT16), (np.int16, TensorProto.INT16)]


def scales_along(rng, shape):
    """Returns a shape of scales, and the axis."""
    axis = int(rng.integers(-len(shape), len(shape)))
    return pick(rng, ((), None), ((shape[axis],), axis))


def quantize_linear(rng):
    dtype, ty = pick(rng, *QUANTISED)
    shape = shape_of(rng, rng.integers(1, 4))
    along, axis = scales_along(rng, shape)
    zero = bytes_of(rng, dtype, *along)
    if dtype == np.uint8 and rng.random() < 0.4:
        zero = None
    attrs = {} if axis is None else {"axis": axis}
    return Case([reals(rng, *shape), rng.uniform(0.01, 0.1, along).astype(np.float32), zero], [ty], attrs, steps=STEPS)


def dequantize_linear(rng):
    dtype, _ = pick(rng, *QUANTISED, (np.int32, None))
    shape = shape_of(rng, rng.integers(1, 4))
    along, axis = scales_along(rng, shape)
    zero = None if dtype == np.int32 or rng.random() < 0.4 else bytes_of(rng, dtype, *along)
    attrs = {} if axis is None else {"axis": axis}
    scales = rng.uniform(0.01, 0.1, along).astype(np.float32)
    return Case([bytes_of(rng, dtype, *shape), scales, zero], [F], attrs)


def nhwc_max_pool(rng):
    dtype = byte_type(rng)
    attrs, shape = window(rng, int(rng.integers(1, 4)), True)
    if rng.random() < 0.3:
        attrs["ceil_mode"] = 1
    return Case([bytes_of(rng, dtype, *shape)], [of_bytes(dtype)], attrs)


def pad(rng):
    rank = int(rng.integers(1, 4))
    shape = shape_of(rng, rank, 3, 7)
    mode = pick(rng, "constant", "reflect", "edge", None)
    low = -1 if mode in ("constant", None) else 0
    pads = rng.integers(low, 3, 2 * rank).astype(np.int64)
    if rng.random() < 0.5:
        pads = pads[None]
    value = maybe(rng, lambda: reals(rng, *pick(rng, (), (1,)))) if low < 0 else None
    return Case([reals(rng, *shape), pads, value], [F], {"mode": mode} if mode else {}, constants=pick(rng, (), (1,)))


def unique(rng):
    x = rng.integers(-3, 4, rng.integers(1, 12)).astype(np.float32)
    return Case([x], [F, TensorProto.INT64, TensorProto.INT64])


def range_(rng):
    dtype, ty = pick(
        rng,
        (np.float32, F),
        (np.float64, TensorProto.DOUBLE),
        (np.int64, TensorProto.INT64),
        (np.int32, TensorProto.INT32),
        (np.int16, TensorProto.INT16),
    )
    shape = pick(rng, (), (1,))
    delta = maybe(rng, lambda: np.full(shape, pick(rng, 1, 2, 3), dtype))
    inputs = [np.full(shape, rng.integers(-3, 3), dtype), np.full(shape, rng.integers(3, 9), dtype), delta]
    return Case(inputs, [ty])


def trilu(rng):
    dtype, ty = pick(rng, (np.float32, F), (np.float64, TensorProto.DOUBLE), (np.int64, TensorProto.INT64))
    x = reals(rng, *shape_of(rng, rng.integers(2, 4), 2), scale=9).astype(dtype)
    k = maybe(rng, lambda: np.array(rng.integers(-3, 4), np.int64))
    return Case([x, k], [ty], {} if rng.random() < 0.4 else {"upper": int(rng.integers(0, 2))})


def expand_dims(rng):
    rank = int(rng.integers(1, 4))
    axis = np.array(rng.integers(-rank - 1, rank + 1), np.int32)
    return Case([reals(rng, *shape_of(rng, rank)), axis], [F], constants=pick(rng, (), (1,)))


def rotary_embedding(rng):
    dtype, ty = normalised_type(rng)
    b, s, n = shape_of(rng, 3)
    size, longest = int(rng.choice([4, 8, 16])), 12
    attrs, half = {}, size // 2
    if rng.random() < 0.4:
        half = size // 4
        attrs |= {"rotary_embedding_dim": 2 * half, "num_heads": n}
    elif rng.random() < 0.3:
        attrs["num_heads"] = n
    if rng.random() < 0.5:
        attrs["interleaved"] = int(rng.integers(0, 2))
    x = reals(rng, *pick(rng, (b, s, n * size), (b, n, s, size)), dtype=dtype)
    positions = rng.integers(0, longest, (b, s)) if rng.random() < 0.5 else rng.integers(0, longest - s, 1)
    caches = [reals(rng, longest, half, dtype=dtype) for _ in range(2)]
    return Case([x, positions.astype(np.int64), *caches], [ty], attrs)


def matmul_n_bits(rng):
    dtype, ty = normalised_type(rng)
    bits, block = pick(rng, 4, 4, 8, 2), pick(rng, 16, 32, 64)
    n, k = int(rng.integers(1, 9)), int(rng.integers(1, 100))
    blocks = -(-k // block)
    b = bytes_of(rng, np.uint8, n, blocks, block * bits // 8)
    scales = rng.uniform(0.01, 0.1, (n, blocks)).astype(dtype)
    zeros = None
    if rng.random() < 0.6:
        zeros = bytes_of(rng, np.uint8, n, -(-blocks * bits // 8))
        if rng.random() < 0.3:
            zeros = rng.uniform(0, 2**bits, (n, blocks)).astype(dtype)
    a = reals(rng, *shape_of(rng, rng.integers(1, 3)), k, dtype=dtype)
    bias = maybe(rng, lambda: reals(rng, n, dtype=dtype))
    attrs = {"K": k, "N": n, "block_size": block, "bits": bits}
    # Sums of up to 100 products in another order, in f16 of numbers up to 100.
    tolerance = (1e-1 if bits == 8 else 3e-2) if dtype == np.float16 else None
    return Case([a, b, scales, zeros, None, bias], [ty], attrs, constants=(1, 2, 3, 5), tolerance=tolerance)


def gather_block_quantized(rng):
    dtype, ty = normalised_type(rng)
    kind = pick(rng, "u4", "i4", "bytes of 4", "bytes of 8")
    block = pick(rng, 16, 32)
    rank = int(rng.integers(2, 4))
    indices = rng.integers(0, 3, shape_of(rng, rng.integers(0, 3))).astype(pick(rng, np.int32, np.int64))
    attrs, packed = {"block_size": block}, {}
    shape = list(shape_of(rng, rank, 3, 6))
    if kind in ("u4", "i4"):
        quantize, gather = int(rng.integers(-rank, rank)), int(rng.integers(-rank, rank))
        shape[quantize] = int(rng.choice([16, 32, 48]))
        attrs |= {"quantize_axis": quantize, "gather_axis": gather}
        n_bytes = -(-int(np.prod(shape)) // 2)
        data = bytes_of(rng, np.uint8, n_bytes)
        four = TensorProto.UINT4 if kind == "u4" else TensorProto.INT4
        packed[0] = (four, shape)
        of_blocks = list(shape)
        of_blocks[quantize] = -(-shape[quantize] // block)
        zeros = maybe(rng, lambda: bytes_of(rng, np.uint8, -(-int(np.prod(of_blocks)) // 2)))
        packed[3] = (four, of_blocks)
    else:
        bits = int(kind[-1])
        shape[-1] = int(rng.choice([16, 32, 48]))
        attrs |= {"quantize_axis": pick(rng, -1, rank - 1), "gather_axis": 0, "bits": bits}
        data = bytes_of(rng, np.uint8, *shape[:-1], shape[-1] * bits // 8)
        of_blocks = [*shape[:-1], -(-shape[-1] // block)]
        zeros = maybe(rng, lambda: bytes_of(rng, np.uint8, *of_blocks[:-1], -(-of_blocks[-1] * bits // 8)))
    scales = rng.uniform(0.01, 0.1, of_blocks).astype(dtype)
    return Case([data, indices, scales, zeros], [ty], attrs, constants=(0, 2, 3), packed=packed)


def attention_mask(rng, b, s, total, ranks=(1, 2, 3)):
    rank = pick(rng, None, *ranks)
    if rank is None:
        return None
    if rank == 1:
        return rng.integers(1, total + 1, b).astype(np.int32)
    shape = (b, total) if rank == 2 else (b, s, total)
    mask = rng.integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask


def attention_attrs(rng, heads):
    attrs = {"num_heads": heads}
    if rng.random() < 0.4:
        attrs["scale"] = float(rng.uniform(0.1, 1))
    if rng.random() < 0.4:
        attrs["mask_filter_value"] = float(pick(rng, -10000.0, -3.0e38, -2.0))
    if rng.random() < 0.4:
        attrs["unidirectional"] = 1
    return attrs


def masked_tolerance(mask, attrs):
    """Where the keys before a query are all masked, their scores are near -10000, in steps of 1e-3."""
    return 5e-3 if mask is not None and "unidirectional" in attrs else None


def multi_head_attention(rng):
    b, s, n = shape_of(rng, 3, 1, 5)
    size, v_size = int(rng.choice([4, 8])), int(rng.choice([4, 8]))
    keys = s if rng.random() < 0.5 else int(rng.integers(1, 7))
    attrs = attention_attrs(rng, n)
    q = reals(rng, b, s, n * size)
    k, v = reals(rng, b, keys, n * size), reals(rng, b, keys, n * v_size)
    past, bias, outputs = [None, None], maybe(rng, lambda: reals(rng, n * (2 * size + v_size))), [F]
    total = keys
    kind = pick(rng, "plain", "plain", "past", "by heads")
    if kind == "by heads":
        k, v, bias = reals(rng, b, n, keys, size), reals(rng, b, n, keys, v_size), None
    elif kind == "past":
        before = int(rng.integers(1, 5))
        past = [reals(rng, b, n, before, size), reals(rng, b, n, before, v_size)]
        total, outputs = before + keys, [F, F, F]
    elif rng.random() < 0.4:
        outputs = [F, F, F]
    mask = attention_mask(rng, b, s, total, (2, 3) if kind == "past" else (1, 2, 3))
    extra = maybe(rng, lambda: reals(rng, pick(rng, 1, b), pick(rng, 1, n), s, total))
    return Case([q, k, v, bias, mask, extra, *past], outputs, attrs, tolerance=masked_tolerance(mask, attrs))


def attention(rng):
    b, s, n = shape_of(rng, 3, 1, 5)
    size, hidden = int(rng.choice([4, 8])), int(rng.integers(3, 9))
    attrs = attention_attrs(rng, n)
    v_size, past, outputs, total = size, None, [F], s
    if rng.random() < 0.4:
        before = int(rng.integers(1, 5))
        past, outputs, total = reals(rng, 2, b, n, before, size), [F, F], s + before
    elif rng.random() < 0.5:
        v_size = int(rng.choice([4, 8]))
        attrs["qkv_hidden_sizes"] = [n * size, n * size, n * v_size]
    elif rng.random() < 0.5:
        outputs = [F, F]
    width = n * (2 * size + v_size)
    mask = attention_mask(rng, b, s, total)
    if mask is not None and mask.ndim == 1 and rng.random() < 0.5:
        mask = np.concatenate([mask, np.minimum(mask - 1, rng.integers(0, total, b))]).astype(np.int32)
    extra = maybe(rng, lambda: reals(rng, pick(rng, 1, b), pick(rng, 1, n), s, total))
    x, w = reals(rng, b, s, hidden), reals(rng, hidden, width, scale=0.5)
    bias = reals(rng, width) if rng.random() < 0.8 else None
    constants = (1, 2) if rng.random() < 0.5 else ()
    tolerance = masked_tolerance(mask, attrs)
    return Case([x, w, bias, mask, past, extra], outputs, attrs, constants=constants, tolerance=tolerance)


def group_query_attention(rng):
    dtype, ty = normalised_type(rng)
    b, shared = (int(n) for n in rng.integers(1, 4, 2))
    n, size = shared * int(rng.integers(1, 4)), int(rng.choice([16, 32]))
    attrs = {"num_heads": n, "kv_num_heads": shared}
    if rng.random() < 0.4:
        attrs["scale"] = float(rng.uniform(0.1, 1))
    kind = pick(rng, "prompt", "prompt", "decode", "decode", "ragged", "chunk")
    s = 1 if kind in ("decode", "ragged") else int(rng.integers(2, 6))
    b = 1 if kind == "chunk" else b
    before = 0 if kind == "prompt" else int(rng.integers(1, 6))
    past, outputs = [None, None], [ty, ty, ty]
    if before or rng.random() < 0.5:
        past = [reals(rng, b, shared, before, size, dtype=dtype) for _ in range(2)]
    last = np.full(b, before + s - 1, np.int32)
    if kind == "ragged":
        last[1:] = rng.integers(0, before + 1, b - 1)
    q = reals(rng, b, s, n * size, dtype=dtype)
    k, v = (reals(rng, b, s, shared * size, dtype=dtype) for _ in range(2))
    if rng.random() < 0.4:
        q, k, v = np.concatenate([q, k, v], axis=2), None, None
    caches = [None, None]
    if rng.random() < 0.6:
        half = pick(rng, size // 2, 8)
        attrs |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(0, 2))}
        caches = [reals(rng, 12, half, dtype=dtype) for _ in range(2)]
    total = np.array(before + s, np.int32)
    inputs = [q, k, v, *past, last, total, *caches]
    if "do_rotary" in attrs and rng.random() < 0.3:
        inputs.append(rng.integers(0, 12, (b, s)).astype(np.int64))
    # Behind the end of shorter batches, the caches have elements that mean nothing.
    return Case(inputs, outputs, attrs, n_compared=1 if kind == "ragged" else 3)


OPS = {
    "Attention": attention,
    "BiasAdd": bias_add,
    "BiasGelu": bias_gelu,
    "BiasSplitGelu": bias_split_gelu,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "EmbedLayerNormalization": embed_layer_normalization,
    "ExpandDims": expand_dims,
    "FastGelu": fast_gelu,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "GatherBlockQuantized": gather_block_quantized,
    "Gelu": gelu,
    "GroupQueryAttention": group_query_attention,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_n_bits,
    "MultiHeadAttention": multi_head_attention,
    "NhwcMaxPool": nhwc_max_pool,
    "Pad": pad,
    "QGemm": q_gemm,
    "QLinearAdd": qlinear_binary,
    "QLinearAveragePool": qlinear_average_pool,
    "QLinearConcat": qlinear_concat,
    "QLinearGlobalAveragePool": qlinear_global_average_pool,
    "QLinearLeakyRelu": qlinear_leaky_relu,
    "QLinearMul": qlinear_binary,
    "QLinearSigmoid": qlinear_unary,
    "QLinearSoftmax": qlinear_softmax,
    "QLinearWhere": qlinear_where,
    "QuantizeLinear": quantize_linear,
    "Range": range_,
    "RotaryEmbedding": rotary_embedding,
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
    "TransposeMatMul": lambda rng: fused_matmul(rng, batches=False),
    "Trilu": trilu,
    "Unique": unique,
}


if __name__ == "__main__":
    sys.exit(0 if main(OPS, __doc__.splitlines()[0]) else 1)
