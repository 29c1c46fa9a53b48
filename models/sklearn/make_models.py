"""Makes the models in this folder: estimators of scikit-learn, converted by skl2onnx, with the outputs that onnxruntime gives.

    pip install scikit-learn==1.9.1 skl2onnx==1.20.0 onnxruntime==1.32.0 && python models/sklearn/make_models.py

onnxruntime normalises strings by the locale en_US.UTF-8, which must be there.

Each has a folder with `model.onnx` and `case0.inputs.npz`, `case0.outputs.npz`. There is no ZipMap. Labels are integers, except in
`text`, which takes and gives strings.
"""

from pathlib import Path

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
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


# Sentences with what they are about.
SENTENCES = [
    ("The bakery sells fresh bread and warm rolls.", "food"),
    ("She salted the soup, then added cream.", "food"),
    ("Ripe mangoes are sweeter than green ones.", "food"),
    ("Stir the rice until the water is gone!", "food"),
    ("Pepper, salt and lemon are on the table.", "food"),
    ("The train to the coast leaves at noon.", "travel"),
    ("We walked along the coast for two days.", "travel"),
    ("His ticket was valid for one way only.", "travel"),
    ("The ferry was late, and the harbour was full.", "travel"),
    ("Take the second train, then the ferry.", "travel"),
    ("Rain will reach the coast tonight.", "weather"),
    ("Strong wind and rain are expected.", "weather"),
    ("A cold night, with snow above 900 metres.", "weather"),
    ("The wind drops, and the sun comes out.", "weather"),
    ("Snow fell all night; the roads are white.", "weather"),
]


def models():
    """Returns names, estimators, features and targets."""
    flowers, kinds = load_iris(return_X_y=True)
    patients, progress = load_diabetes(return_X_y=True)
    categories = np.floor(flowers).astype(np.int64)
    is_first = (kinds == 0).astype(np.int64)
    texts, topics = np.array(SENTENCES).T
    words = TfidfVectorizer(ngram_range=(1, 2), stop_words=["the", "and", "are"])
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
        ("text", make_pipeline(words, LogisticRegression()), texts, topics),
    ]


def main():
    for name, estimator, x, y in models():
        is_text = x.dtype.kind == "U"
        x = x.astype(np.float32) if x.dtype.kind == "f" else x
        estimator.fit(x, y)
        is_classifier = hasattr(estimator, "classes_")
        options = {"zipmap": False} if is_classifier else {}
        content = to_onnx(
            estimator,
            None if is_text else x[:1],
            initial_types=[("X", StringTensorType([None, 1]))] if is_text else None,
            options={id(estimator): options},
            target_opset={"": 18, "ai.onnx.ml": 3},
        )
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        (folder / "model.onnx").write_bytes(content.SerializeToString())
        session = onnxruntime.InferenceSession(content.SerializeToString(), providers=["CPUExecutionProvider"])
        [port] = session.get_inputs()
        rows = x[np.random.default_rng(1).permutation(len(x))[:20]]
        rows = rows[:, None] if is_text else rows
        results = session.run(None, {port.name: rows.astype(object) if is_text else rows})
        # Arrays of objects would be pickles.
        results = [result.astype(str) if result.dtype == object else result for result in results]
        names = [output.name for output in session.get_outputs()]
        np.savez_compressed(folder / "case0.inputs.npz", **{port.name: rows})
        np.savez_compressed(folder / "case0.outputs.npz", **dict(zip(names, results, strict=True)))
        ops = sorted({node.op_type for node in content.graph.node})
        print(f"{name}: {(folder / 'model.onnx').stat().st_size} bytes, {', '.join(ops)}")


if __name__ == "__main__":
    main()
