"""Times of forests of trees, beside onnxruntime in the same process.

`python bench_ml.py [PASSES]`, with scikit-learn, skl2onnx, onnx and onnxruntime installed. Estimators of 100 trees are fitted to random
features and converted by skl2onnx. Both libraries run in turns, on one thread and on all. A row has the median of the passes, the
fastest and slowest one, and the ratio of the medians. Results are compared first, labels exactly.
"""

import statistics
import sys
import time

import devbay
import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor

# Seconds of a pass of one library.
PASS_S = 0.3


def models():
    """Returns names, contents and widths."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4000, 25)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + random.standard_normal(4000) * 0.3
    kinds = np.digitize(y, [-0.7, 0.7])
    options = {"n_estimators": 100, "random_state": 0}
    estimators = [
        ("forest, 3 classes, depth 10", RandomForestClassifier(max_depth=10, **options).fit(x, kinds)),
        ("forest, 2 classes, depth 8", RandomForestClassifier(max_depth=8, **options).fit(x, y > 0)),
        ("forest, regression, depth 12", RandomForestRegressor(max_depth=12, **options).fit(x, y)),
        ("boosted, regression, depth 3", GradientBoostingRegressor(**options).fit(x, y)),
        ("boosted, regression, depth 6", GradientBoostingRegressor(max_depth=6, **options).fit(x, y)),
    ]
    for name, estimator in estimators:
        zipmap = {id(estimator): {"zipmap": False}} if hasattr(estimator, "classes_") else None
        content = to_onnx(estimator, x[:1], options=zipmap, target_opset={"": 18, "ai.onnx.ml": 3})
        yield name, content.SerializeToString(), x.shape[1]


def peers(content, width, rows, threads):
    """Returns a call of each library, and compares their results."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    theirs = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    ours = devbay.Session(content, runtime=devbay.Runtime(threads=threads) if threads else devbay.Runtime())
    x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
    inputs = {theirs.get_inputs()[0].name: x}
    for found, wanted in zip(ours.run(inputs).values(), theirs.run(None, inputs), strict=True):
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(found, wanted)
    return {"devbay": lambda: ours.run(inputs), "onnxruntime": lambda: theirs.run(None, inputs)}


def time_of(call, runs):
    begin = time.perf_counter()
    for _ in range(runs):
        call()
    return (time.perf_counter() - begin) / runs * 1e6


def main():
    passes = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"devbay {devbay.__version__}, onnxruntime {onnxruntime.__version__}, {passes} passes")
    print("| model | rows | threads | devbay, us | onnxruntime, us | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, content, width in models():
        for rows in (1, 1000):
            for threads in (1, None):
                calls = peers(content, width, rows, threads)
                runs = {peer: max(3, int(PASS_S * 1e6 / time_of(call, 5))) for peer, call in calls.items()}
                times = {peer: [] for peer in calls}
                for _ in range(passes):
                    for peer, call in calls.items():
                        times[peer].append(time_of(call, runs[peer]))
                medians = {peer: statistics.median(list) for peer, list in times.items()}
                cells = [f"{medians[peer]:.1f} ({min(t):.1f} to {max(t):.1f})" for peer, t in times.items()]
                ratio = f"{medians['devbay'] / medians['onnxruntime']:.2f}"
                print("|", " | ".join([name, str(rows), str(threads or "all"), *cells, ratio]), "|", flush=True)


if __name__ == "__main__":
    main()
