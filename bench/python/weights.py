"""Products by quantised weights beside onnxruntime and OpenVINO, as one table.

    weights.py [FILTER ...] [--threads N] [--seconds S] [--turns N] [--devbay PROGRAM] [--plugin LIBRARY]

Rows are named FORM TERMSxCOLUMNS ROWS. Forms are `f32`; `nbits4` and `nbits8`, onnxruntime's MatMulNBits with blocks of 32 and
accuracy level 0; `level4`, nbits4 at level 4, at which onnxruntime rounds activations to 8 bits; `dequant` and `cast`, weights
of 8 bits with a scale for each column behind DequantizeLinear, or behind Cast and Mul. `layer` rows are a layer of a small text
model (384 wide, heads of 32) with its weights in these forms. `deep` rows are eight products one after the other, whose
weights no cache holds.
"""

import beside
import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Model:
    """A model as it grows."""

    def __init__(self, form):
        self.form, self.rng = form, np.random.default_rng(5)
        self.nodes, self.constants, self.n = [], [], 0

    def name(self):
        self.n += 1
        return f"v{self.n}"

    def constant(self, value):
        name = self.name()
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def op(self, kind, *inputs, domain="", **attributes):
        name = self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def product(self, x, k, n):
        """A product by weights of unit gain."""
        weights = (self.rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
        if self.form == "f32":
            return self.op("MatMul", x, self.constant(weights))
        if self.form in ("nbits4", "nbits8", "level4"):
            bits = 8 if self.form == "nbits8" else 4
            half, block = 2 ** (bits - 1), 32
            blocks = weights.T.reshape(n, k // block, block)
            scales = np.abs(blocks).max(axis=2) / (half - 1)
            q = (np.round(blocks / scales[:, :, None]) + half).astype(np.uint8)
            if bits == 4:
                q = q[:, :, ::2] | q[:, :, 1::2] << 4
            attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
            attributes["accuracy_level"] = 4 if self.form == "level4" else 0
            inputs = [x, self.constant(q), self.constant(scales.astype(np.float32).reshape(-1))]
            return self.op("MatMulNBits", *inputs, domain="com.microsoft", **attributes)
        scales = np.abs(weights).max(axis=0) / 127
        q = self.constant(np.round(weights / scales).astype(np.int8))
        scales = self.constant(scales.astype(np.float32))
        if self.form == "dequant":
            return self.op("MatMul", x, self.op("DequantizeLinear", q, scales, axis=1))
        return self.op("MatMul", x, self.op("Mul", self.op("Cast", q, to=TensorProto.FLOAT), scales))

    def dense(self, x, k, n):
        bias = self.rng.standard_normal(n).astype(np.float32) / 10
        return self.op("Add", self.product(x, k, n), self.constant(bias))

    def norm(self, x, n):
        ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
        return self.op("LayerNormalization", x, self.constant(ones), self.constant(zeros), axis=-1)

    def layer(self, x, rows):
        """Attention and what follows it, each with a residual."""
        width, heads = 384, 12
        extents = self.constant(np.array([1, rows, heads, width // heads], np.int64))
        back = self.constant(np.array([1, rows, width], np.int64))
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            part = self.op("Reshape", self.dense(x, width, width), extents)
            parts.append(self.op("Transpose", part, perm=perm))
        scores = self.op("MatMul", parts[0], parts[1])
        scores = self.op("Mul", scores, self.constant(np.float32((width // heads) ** -0.5)))
        seen = self.op("MatMul", self.op("Softmax", scores, axis=-1), parts[2])
        seen = self.op("Reshape", self.op("Transpose", seen, perm=[0, 2, 1, 3]), back)
        x = self.norm(self.op("Add", x, self.dense(seen, width, width)), width)
        wide = self.op("Gelu", self.dense(x, width, 4 * width))
        return self.norm(self.op("Add", x, self.dense(wide, 4 * width, width)), width)

    def finish(self, shape):
        """The model, whose last node gives the result, and its input."""
        self.nodes[-1].output[0] = "y"
        inputs = {"x": self.rng.standard_normal(shape).astype(np.float32)}
        infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "weights", infos, outputs, self.constants)
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9), inputs


def one(form, k, n, rows):
    def make():
        model = Model(form)
        model.product("x", k, n)
        return model.finish((rows, k))

    return f"{form} {k}x{n} {rows}", make


def deep(form, k, rows):
    def make():
        model, x = Model(form), "x"
        for _ in range(8):
            x = model.product(x, k, k)
        return model.finish((rows, k))

    return f"{form} deep {k}x{k} {rows}", make


def layer(form, rows, n_layers):
    def make():
        model, x = Model(form), "x"
        for _ in range(n_layers):
            x = model.layer(x, rows)
        return model.finish((1, rows, 384))

    return f"{form} layer x {n_layers} {rows}", make


FORMS = ("f32", "nbits4", "nbits8", "level4", "dequant", "cast")
ROWS = (1, 4, 8, 32, 128, 512)
EXTENTS = ((384, 384), (384, 1536), (1536, 384), (1024, 4096), (4096, 4096))

CASES = [one(form, k, n, rows) for k, n in EXTENTS for rows in ROWS for form in FORMS]
CASES += [deep(form, 4096, rows) for rows in (1, 4) for form in FORMS]
CASES += [layer(form, rows, n) for n, rows in ((1, 128), (6, 1), (6, 16), (6, 128)) for form in FORMS]


def main():
    beside.table(CASES, beside.parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
