"""Random nodes in onnxruntime and in devbay: shared by check_contrib_ops.py and check_ml_ops.py.

A case is a model of one node, which onnxruntime runs on the processor with its optimiser off, and devbay on its CPU plugin. Both
programs make the cases of each op and call `main`. Differences are, of real numbers, relative to the larger of 1 and the number;
of integers, in steps.
"""

import argparse
import sys
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import devbay

# Tolerances by the result's element type: relative for real numbers, steps for integers.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "float64": 1e-9}


@dataclass
class Case:
    """A node: operands by position (None is absent), results by position (None is absent, else the element type)."""

    inputs: list
    outputs: list
    attrs: dict = field(default_factory=dict)
    # Positions of operands that are initializers.
    constants: tuple = ()
    # Element types of packed operands, by position: `(type, shape)`, with the bytes as the operand.
    packed: dict = field(default_factory=dict)
    # Largest difference of integers.
    steps: int = 0
    # Computes the results, where onnxruntime has no kernel.
    formula: object = None
    tolerance: float = None
    domain: str = "com.microsoft"
    # Version of ai.onnx.ml.
    ml_version: int = 3
    # Number of results that have a meaning.
    n_compared: int = None
    # Threads of onnxruntime; 0 for as many as it likes.
    n_threads: int = 0


def onnx_type(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def model(op, case):
    """Returns a model of one node, and what to feed it."""
    names, inputs, initializers, feeds = [], [], [], {}
    for i, array in enumerate(case.inputs):
        name = "" if array is None else f"x{i}"
        names.append(name)
        if array is None:
            continue
        if i in case.packed:
            ty, shape = case.packed[i]
            tensor = TensorProto(name=name, data_type=ty, dims=shape, raw_data=array.tobytes())
            initializers.append(tensor)
        elif i in case.constants:
            initializers.append(numpy_helper.from_array(array, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, onnx_type(array), array.shape))
            feeds[name] = array
    # Trailing absent operands stay: onnxruntime reads past the end of the operands of some ops.
    results = [f"y{i}" if ty is not None else "" for i, ty in enumerate(case.outputs)]
    node = helper.make_node(op, names, results, name="node", domain=case.domain, **case.attrs)
    outputs = [
        helper.make_tensor_value_info(f"y{i}", ty, None) for i, ty in enumerate(case.outputs) if ty is not None
    ]
    graph = helper.make_graph([node], "case", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    if case.domain == "ai.onnx.ml":
        opsets.append(helper.make_opsetid(case.domain, case.ml_version))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), feeds


def difference(expected, found, case):
    """Returns the difference, as a fraction of the tolerance and as text."""
    expected, found = np.asarray(expected), np.asarray(found)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return np.inf, 0.0, f"{expected.dtype}{expected.shape} and {found.dtype}{found.shape}"
    if expected.size == 0:
        return 0.0, 0.0, ""
    is_real = expected.dtype.kind == "f"
    tolerance = (case.tolerance or TOLERANCE[expected.dtype.name]) if is_real else case.steps
    a, b = expected.astype(np.float64), found.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.where(same, 0, np.abs(a - b))
    if is_real:
        apart = apart / np.maximum(1, np.abs(a))
    worst = float(np.nan_to_num(apart, nan=np.inf).max())
    kind = expected.dtype.name if is_real else "steps"
    return (worst / tolerance if tolerance else (np.inf if worst else 0.0)), worst, kind


# Random operands.


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def maybe(rng, make):
    return make() if rng.random() < 0.5 else None


def shape_of(rng, rank, low=1, high=6):
    return tuple(int(n) for n in rng.integers(low, high, rank))


def reals(rng, *shape, dtype=np.float32, scale=1.0):
    return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)


def expected(op, case, data, feeds):
    if case.formula:
        return case.formula(*case.inputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = case.n_threads
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def compare(op, make, n_cases, seed):
    """Returns counts of the op's cases, and the largest differences."""
    rng = np.random.default_rng([seed, *op.encode()])
    counts = {"cases": 0, "passed": 0, "refused": 0, "peer": 0}
    worst = dict.fromkeys([*TOLERANCE, "steps"], 0.0)
    complaints = {}
    for i in range(20 * n_cases):
        if counts["cases"] == n_cases:
            break
        case = make(rng)
        data, feeds = model(op, case)
        try:
            wanted = expected(op, case, data, feeds)
        except Exception as error:
            # onnxruntime does not run the case: another one takes its place.
            counts["peer"] += 1
            complaints.setdefault(f"onnxruntime: {str(error).splitlines()[0][:300]}", i)
            continue
        counts["cases"] += 1
        try:
            found = list(devbay.Session(data).run(feeds).values())
        except devbay.UnsupportedModel as error:
            counts["refused"] += 1
            complaints.setdefault(f"refused: {error}", i)
            continue
        except devbay.Error as error:
            complaints.setdefault(f"failed: {error} {case.attrs}", i)
            continue
        is_right = len(wanted) == len(found)
        for a, b in list(zip(wanted, found, strict=False))[: case.n_compared]:
            fraction, apart, kind = difference(a, b, case)
            if kind in worst:
                worst[kind] = max(worst[kind], apart)
            if fraction > 1:
                is_right = False
                shapes = [None if x is None else (x.dtype.name, x.shape) for x in case.inputs]
                complaints.setdefault(f"case {i}: {apart} {kind}, {case.attrs} {shapes}", i)
        counts["passed"] += is_right
    return counts, worst, complaints


def main(ops, description):
    """Compares the ops of a table, name to a function that makes a case, and prints a line for each."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="prints the table of the document")
    settings = parser.parse_args()
    print(f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}")
    line = "| {} | {} | {} | {} | {} |" if settings.markdown else "{:34} {:>5} {:>6} {:>7}  {}"
    print(line.format("op", "cases", "passed", "refused", "largest difference"))
    if settings.markdown:
        print("| --- | --- | --- | --- | --- |")
    is_right, notes = True, []
    for op in settings.ops or ops:
        counts, worst, complaints = compare(op, ops[op], settings.cases, settings.seed)
        apart = [f"{worst[name]:.1e} in f{name[5:]}" for name in TOLERANCE if worst[name]]
        apart += [f"{worst['steps']:.0f} step"] if worst["steps"] else []
        figures = [counts[name] for name in ("cases", "passed", "refused")]
        print(line.format(op, *figures, ", ".join(apart) or "0"), flush=True)
        is_right &= counts["passed"] + counts["refused"] == counts["cases"] == settings.cases
        notes += [f"{op}: {text}" for text in list(complaints)[:6]]
    for note in notes:
        print(note, file=sys.stderr)
    print("passed" if is_right else "failed")
    return is_right
