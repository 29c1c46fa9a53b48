"""Makes the models in this folder: estimators of scikit-learn, converted by skl2onnx, with the outputs that onnxruntime gives.

    pip install scikit-learn==1.9.1 skl2onnx==1.20.0 onnxruntime==1.32.0 && python models/sklearn/make_models.py

Each has a folder with `model.onnx` and `case0.inputs.npz`, `case0.outputs.npz`. Labels are integers, and there is no ZipMap.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR

FOLDER = Path(__file__).parent


def with_gaps(x):
    """Returns features with one in ten missing."""
    x = x.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    return x


def models():
    """Returns names, estimators, features and targets."""
    flowers, kinds = load_iris(return_X_y=True)
    patients, progress = load_diabetes(return_X_y=True)
    categories = np.floor(flowers).astype(np.int64)
    is_first = (kinds == 0).astype(np.int64)
    seed = {"random_state": 0}
    return [
        ("forest", RandomForestClassifier(20, max_depth=6, **seed), flowers, kinds),
        ("boosted_binary", GradientBoostingClassifier(n_estimators=20, **seed), flowers, is_first),
        ("boosted", GradientBoostingRegressor(n_estimators=20, **seed), patients, progress),
        ("logistic", make_pipeline(StandardScaler(), LogisticRegression()), flowers, kinds),
        ("logistic_gaps", make_pipeline(SimpleImputer(), Normalizer(), LogisticRegression()), with_gaps(flowers), is_first),
        ("one_hot", make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()), categories, kinds),
        ("svc", make_pipeline(StandardScaler(), SVC(probability=True, **seed)), flowers, kinds),
        ("svr", make_pipeline(StandardScaler(), SVR()), patients, progress),
    ]


def main():
    for name, estimator, x, y in models():
        x = x if x.dtype == np.int64 else x.astype(np.float32)
        estimator.fit(x, y)
        is_classifier = hasattr(estimator, "classes_")
        options = {"zipmap": False} if is_classifier else {}
        content = to_onnx(estimator, x[:1], options={id(estimator): options}, target_opset={"": 18, "ai.onnx.ml": 3})
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        (folder / "model.onnx").write_bytes(content.SerializeToString())
        session = onnxruntime.InferenceSession(content.SerializeToString(), providers=["CPUExecutionProvider"])
        [port] = session.get_inputs()
        rows = x[np.random.default_rng(1).permutation(len(x))[:20]]
        results = session.run(None, {port.name: rows})
        names = [output.name for output in session.get_outputs()]
        np.savez_compressed(folder / "case0.inputs.npz", **{port.name: rows})
        np.savez_compressed(folder / "case0.outputs.npz", **dict(zip(names, results, strict=True)))
        ops = sorted({node.op_type for node in content.graph.node})
        print(f"{name}: {(folder / 'model.onnx').stat().st_size} bytes, {', '.join(ops)}")


if __name__ == "__main__":
    main()
