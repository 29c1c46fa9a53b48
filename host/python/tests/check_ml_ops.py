"""Ops of ONNX's domain `ai.onnx.ml`, compared with onnxruntime: `python host/python/tests/check_ml_ops.py`.

Each op has random cases: shapes, attributes and element types, with labels, keys and categories that are numbers. The table says
for each op how many cases passed, and the largest difference (`beside_onnxruntime.py`). The last line is `passed`, or the exit
code is 1. It needs the packages onnx and onnxruntime, so the test command does not run it.

    check_ml_ops.py [--cases N] [--seed N] [--markdown] [OP ...]
"""

import sys

import numpy as np
from beside_onnxruntime import Case, main, pick, reals
from onnx import TensorProto, numpy_helper

F, D, I = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def case(inputs, outputs, attrs, **more):
    return Case(inputs, outputs, attrs, domain=ML, **more)


def features(rng, types=(np.float32, np.float32, np.float64, np.int64, np.int32), rank=None):
    """Returns rows of features, or a single row."""
    rows, width = (int(n) for n in rng.integers(1, 40, 2))
    shape = (width,) if (rank or pick(rng, 1, 2, 2, 2)) == 1 else (rows, width)
    dtype = pick(rng, *types)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-4, 5, shape).astype(dtype)
    return np.round(reals(rng, *shape, dtype=dtype), 1 if rng.random() < 0.5 else 8)


def floats(rng, n, scale=1.0):
    return [float(x) for x in reals(rng, n, scale=scale)]


def labels(rng, n):
    return [int(x) for x in rng.choice(100, n, replace=False)]


# Transformations.


def scaler(rng):
    x = features(rng)
    n = pick(rng, 1, x.shape[-1])
    return case([x], [F], {"offset": floats(rng, n), "scale": floats(rng, n)})


def normalizer(rng):
    x = features(rng)
    if x.dtype.kind == "f" and x.ndim == 2:
        x[0] *= rng.integers(0, 2)
    return case([x], [F], {"norm": pick(rng, "MAX", "L1", "L2")})


def imputer(rng):
    x = features(rng, (np.float32, np.int64))
    n = pick(rng, 1, x.shape[-1])
    if x.dtype == np.int64:
        attrs = {"imputed_value_int64s": labels(rng, n), "replaced_value_int64": int(rng.integers(-1, 2))}
        return case([x], [I], attrs)
    replaced = float("nan") if rng.random() < 0.6 else float(x.flat[0])
    x[rng.random(x.shape) < 0.3] = replaced
    return case([x], [F], {"imputed_value_floats": floats(rng, n), "replaced_value_float": replaced})


def binarizer(rng):
    return case([features(rng, (np.float32,))], [F], {"threshold": float(rng.normal())})


def one_hot_encoder(rng):
    cats = [int(x) for x in rng.choice(np.arange(-3, 12), int(rng.integers(1, 9)))]
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 3)))
    dtype = pick(rng, np.int64, np.float32, np.float64)
    if rng.random() < 0.4:
        return case([rng.choice(cats, shape).astype(dtype)], [F], {"cats_int64s": cats, "zeros": 0})
    x = rng.integers(-4, 12, shape).astype(dtype)
    if dtype != np.int64:
        x += pick(rng, 0, 0.25)
    return case([x], [F], {"cats_int64s": cats})


def array_feature_extractor(rng):
    shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(1, 5)))
    dtype, ty = pick(rng, (np.float32, F), (np.float64, D), (np.int64, I), (np.int32, TensorProto.INT32))
    x = (reals(rng, *shape) * 9).astype(dtype)
    indices = rng.integers(0, shape[-1], rng.integers(1, 9)).astype(np.int64)
    return case([x, indices if rng.random() < 0.5 else indices[None]], [ty], {}, constants=pick(rng, (), (1,)))


def feature_vectorizer(rng):
    rows = int(rng.integers(1, 9))
    inputs, sizes = [], []
    dtype = pick(rng, np.float32, np.float64, np.int64, np.int32)
    for _ in range(rng.integers(1, 5)):
        inputs.append((reals(rng, rows, int(rng.integers(1, 6))) * 9).astype(dtype))
        sizes.append(max(1, inputs[-1].shape[1] + int(pick(rng, 0, 0, 0, 1, -1))))
    return case(inputs, [F], {"inputdimensions": sizes})


def label_encoder(rng):
    n = int(rng.integers(1, 20))
    kinds = {
        np.int64: (I, lambda: rng.integers(-9, 9, n)),
        np.float32: (F, lambda: np.round(reals(rng, n), 1)),
        np.float64: (D, lambda: np.round(reals(rng, n, dtype=np.float64), 1)),
    }
    # Pairs of types that onnxruntime has.
    pairs = [(np.int64, np.float32), (np.float32, np.int64), (np.int64, np.int64), (np.float32, np.float32)]
    key_type, value_type = pick(rng, *pairs, (np.float64, np.float64))
    keys = kinds[key_type][1]().astype(key_type)
    values = kinds[value_type][1]().astype(value_type)
    if key_type != np.int64 and rng.random() < 0.3:
        keys[0] = np.nan
    x = rng.choice(np.concatenate([keys, kinds[key_type][1]().astype(key_type)]), tuple(rng.integers(1, 9, 2)))
    attrs = {}
    words = {np.int64: "int64s", np.float32: "floats"}
    as_tensors = np.float64 in (key_type, value_type) or rng.random() < 0.4
    for side, list in (("keys", keys), ("values", values)):
        if as_tensors:
            attrs[f"{side}_tensor"] = numpy_helper.from_array(list, side)
        else:
            attrs[f"{side}_{words[list.dtype.type]}"] = list.tolist()
    if as_tensors:
        attrs["default_tensor"] = numpy_helper.from_array(np.array([7], value_type), "default")
    elif rng.random() < 0.5:
        attrs["default_int64" if value_type == np.int64 else "default_float"] = value_type(-5).item()
    return case([x], [kinds[value_type][0]], attrs, ml_version=4)


# Linear models and support vectors.


def linear_regressor(rng):
    x = features(rng, (np.float32,))
    n = int(rng.integers(1, 5))
    attrs = {"targets": n, "coefficients": floats(rng, n * x.shape[-1], 0.3), "post_transform": pick(rng, *TRANSFORMS)}
    if rng.random() < 0.7:
        attrs["intercepts"] = floats(rng, n)
    return case([x], [F], attrs, tolerance=1e-3)


def linear_classifier(rng):
    x = features(rng)
    n = int(rng.integers(1, 6))
    attrs = {
        "classlabels_ints": labels(rng, 2 if n == 1 else n),
        "coefficients": floats(rng, n * x.shape[-1], 0.3),
        "intercepts": floats(rng, n),
        "post_transform": pick(rng, *TRANSFORMS),
        "multi_class": int(rng.integers(0, 2)),
    }
    return case([x], [I, F], attrs, tolerance=1e-3)


def kernel(rng):
    params = [float(rng.uniform(0.01, 0.2)), float(rng.uniform(0, 1)), float(rng.integers(2, 4))]
    return {"kernel_type": pick(rng, "LINEAR", "POLY", "RBF", "SIGMOID"), "kernel_params": params}


def svm_regressor(rng):
    x = features(rng, (np.float32,))
    width, n = x.shape[-1], int(rng.integers(0, 9))
    attrs = kernel(rng) | {"rho": floats(rng, 1), "one_class": int(rng.random() < 0.3)}
    if n:
        attrs |= {"n_supports": n, "coefficients": floats(rng, n), "support_vectors": floats(rng, n * width)}
    else:
        attrs |= {"n_supports": 0, "coefficients": floats(rng, width), "kernel_type": "LINEAR"}
    return case([x], [F], attrs, tolerance=2e-3)


def svm_classifier(rng):
    x = features(rng)
    width, n = x.shape[-1], int(rng.integers(2, 6))
    attrs = kernel(rng) | {"classlabels_ints": labels(rng, n), "post_transform": pick(rng, *TRANSFORMS)}
    if rng.random() < 0.25:
        attrs |= {"kernel_type": "LINEAR", "coefficients": floats(rng, n * width, 0.3), "rho": floats(rng, 1)}
        return case([x], [I, F], attrs, tolerance=2e-3)
    counts = [int(k) for k in rng.integers(1, 6, n)]
    total, pairs = sum(counts), n * (n - 1) // 2
    attrs |= {
        "vectors_per_class": counts,
        "support_vectors": floats(rng, total * width),
        "coefficients": floats(rng, (n - 1) * total),
        "rho": floats(rng, pairs),
    }
    if rng.random() < 0.5:
        attrs |= {"prob_a": floats(rng, pairs), "prob_b": floats(rng, pairs)}
    # The probabilities of many classes are found by iteration, which ends early.
    return case([x], [I, F], attrs, tolerance=5e-3)


# Trees.

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


class Forest:
    """Random trees, node by node."""

    def __init__(self, rng, width, modes, member=False):
        self.rng, self.width, self.modes, self.member = rng, width, modes, member
        self.nodes = {name: [] for name in ("tree", "id", "feature", "mode", "value", "true", "false", "track")}
        self.leaves = []
        self.tracks = rng.random() < 0.4
        for tree in range(int(rng.integers(1, 12))):
            self.n = 0
            self.grow(tree, int(rng.integers(0, 7)))

    def grow(self, tree, depth):
        """Adds a node and those below it, and returns its id."""
        rng, at, id = self.rng, len(self.nodes["id"]), self.n
        self.n += 1
        is_leaf = depth == 0 or (id > 0 and rng.random() < 0.15)
        mode = "LEAF" if is_leaf else pick(rng, *self.modes)
        value = 0.0 if is_leaf else float(np.float32(np.round(rng.normal(), 1)))
        track = int(self.tracks and rng.random() < 0.5)
        feature = 0 if is_leaf else int(rng.integers(self.width))
        entry = (tree, id, feature, mode, value, 0, 0, track)
        for list, item in zip(self.nodes.values(), entry, strict=True):
            list.append(item)
        if is_leaf:
            self.leaves.append((tree, id))
        else:
            self.nodes["true"][at] = self.grow(tree, depth - 1)
            self.nodes["false"][at] = self.grow(tree, depth - 1)
        return id

    def attributes(self, wide):
        nodes = self.nodes
        attrs = {
            "nodes_treeids": nodes["tree"],
            "nodes_nodeids": nodes["id"],
            "nodes_featureids": nodes["feature"],
            "nodes_modes": nodes["mode"],
            "nodes_truenodeids": nodes["true"],
            "nodes_falsenodeids": nodes["false"],
        }
        attrs |= numbers("nodes_values", nodes["value"], wide)
        if self.tracks:
            attrs["nodes_missing_value_tracks_true"] = nodes["track"]
        return attrs


def numbers(name, values, wide):
    """Returns an attribute of numbers: a list, or a tensor of doubles."""
    if wide:
        return {f"{name}_as_tensor": numpy_helper.from_array(np.array(values, np.float64), name)}
    return {name: [float(x) for x in values]}


def tree_features(rng):
    x = features(rng)
    if x.dtype.kind == "f" and rng.random() < 0.4:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x


def modes(rng):
    return pick(rng, ("BRANCH_LEQ",), ("BRANCH_LEQ",), ("BRANCH_LT",), ("BRANCH_GTE", "BRANCH_GT"), MODES)


def weights(forest, rng, ids, prefix, wide, all_ids, positive=False):
    """Returns the weights of leaves: each leaf has one target, or all of them."""
    entries = []
    for tree, node in forest.leaves:
        for id in ids if all_ids else [pick(rng, *ids)]:
            weight = rng.normal()
            entries.append((tree, node, int(id), float(np.float32(abs(weight) if positive else weight))))
    trees, nodes, targets, values = (list(column) for column in zip(*entries, strict=True))
    attrs = {f"{prefix}_treeids": trees, f"{prefix}_nodeids": nodes, f"{prefix}_ids": targets}
    return attrs | numbers(f"{prefix}_weights", values, wide)


def tree_ensemble_regressor(rng):
    x = tree_features(rng)
    wide = x.dtype == np.float64 and rng.random() < 0.5
    forest, n = Forest(rng, x.shape[-1], modes(rng)), int(pick(rng, 1, 1, 2, 4))
    # ONNX adds the base of a target without weights, and onnxruntime does not: with a base, each leaf has all targets.
    has_base = rng.random() < 0.5
    attrs = forest.attributes(wide) | weights(forest, rng, range(n), "target", wide, has_base or rng.random() < 0.5)
    attrs |= {"n_targets": n, "aggregate_function": pick(rng, "SUM", "SUM", "AVERAGE", "MIN", "MAX")}
    attrs["post_transform"] = pick(rng, *TRANSFORMS)
    if has_base:
        attrs |= numbers("base_values", floats(rng, n), wide)
    return case([x], [F], attrs)


def tree_ensemble_classifier(rng):
    x = tree_features(rng)
    wide = x.dtype == np.float64 and rng.random() < 0.5
    n = int(pick(rng, 2, 2, 3, 5))
    ids = [int(rng.integers(2))] if n == 2 and rng.random() < 0.7 else range(n)
    forest = Forest(rng, x.shape[-1], modes(rng))
    attrs = forest.attributes(wide)
    attrs |= weights(forest, rng, ids, "class", wide, rng.random() < 0.7, rng.random() < 0.4)
    attrs |= {"classlabels_int64s": labels(rng, n), "post_transform": pick(rng, *TRANSFORMS)}
    if rng.random() < 0.4:
        attrs |= numbers("base_values", floats(rng, n), wide)
    return case([x], [I, F], attrs)


def tree_ensemble(rng):
    dtype, ty = pick(rng, (np.float32, F), (np.float64, D))
    x = tree_features(rng).astype(dtype)
    forest, n = Forest(rng, x.shape[-1], modes(rng)), int(pick(rng, 1, 1, 3))
    nodes, places, leaves = forest.nodes, {}, {}
    for tree, id, mode in zip(nodes["tree"], nodes["id"], nodes["mode"], strict=True):
        list = leaves if mode == "LEAF" else places
        list[tree, id] = len(list)
    kept = [i for i, mode in enumerate(nodes["mode"]) if mode != "LEAF"]
    columns = {name: [] for name in ("truenodeids", "trueleafs", "falsenodeids", "falseleafs")}
    for i in kept:
        for side in ("true", "false"):
            child = (nodes["tree"][i], nodes[side][i])
            columns[f"{side}leafs"].append(int(child in leaves))
            columns[f"{side}nodeids"].append(leaves.get(child, places.get(child)))
    roots = []
    for tree in sorted(set(nodes["tree"])):
        if (tree, 0) in places:
            roots.append(places[tree, 0])
            continue
        # A tree that is a leaf has a branch with two equal children.
        roots.append(len(kept))
        kept.append(None)
        for side in ("true", "false"):
            columns[f"{side}leafs"].append(1)
            columns[f"{side}nodeids"].append(leaves[tree, 0])
    of = {name: [nodes[name][i] if i is not None else 0 for i in kept] for name in ("feature", "value", "track")}
    codes = [MODES.index(nodes["mode"][i]) if i is not None else 0 for i in kept]
    members = []
    if rng.random() < 0.3:
        for i, _ in enumerate(codes):
            if rng.random() < 0.5 and kept[i] is not None:
                codes[i] = 6
                members += [*np.round(reals(rng, rng.integers(1, 5)), 1), np.nan]
    attrs = {f"nodes_{name}": list for name, list in columns.items()} | {
        "nodes_featureids": of["feature"],
        "nodes_splits": numpy_helper.from_array(np.array(of["value"], dtype), "splits"),
        "nodes_modes": numpy_helper.from_array(np.array(codes, np.uint8), "modes"),
        "tree_roots": roots,
        "n_targets": n,
        "leaf_targetids": [int(rng.integers(n)) for _ in leaves],
        "leaf_weights": numpy_helper.from_array(reals(rng, len(leaves), dtype=dtype), "weights"),
        "aggregate_function": int(pick(rng, 1, 1, 0, 2, 3)),
        # onnxruntime takes 1 for LOGISTIC and 2 for SOFTMAX, and ONNX the other way round.
        "post_transform": int(pick(rng, 0, 0, 3)),
    }
    if members:
        attrs["membership_values"] = numpy_helper.from_array(np.array(members, dtype), "members")
    if forest.tracks:
        attrs["nodes_missing_value_tracks_true"] = of["track"]
    # onnxruntime transforms scores in f32.
    return case([x], [ty], attrs, ml_version=5, tolerance=1e-6 if attrs["post_transform"] else None)


OPS = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "Scaler": scaler,
    "TreeEnsemble": tree_ensemble,
    "TreeEnsembleClassifier": tree_ensemble_classifier,
    "TreeEnsembleRegressor": tree_ensemble_regressor,
}

if __name__ == "__main__":
    sys.exit(0 if main(OPS, __doc__.splitlines()[0]) else 1)
