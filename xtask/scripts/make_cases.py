"""Makes the cases of models that have none: `make_cases.py FOLDER TABLE`.

A case is an archive of inputs, `caseN.inputs.npz`, and one of the outputs that onnxruntime gives for them,
`caseN.outputs.npz`, without optimisations and on one thread, so that each operation is computed as the model has it.
TABLE, `xtask/models.toml`, says what inputs are filled with. Inputs that are there are used, outputs that are there are
kept; a model that is not in FOLDER is passed over.

Numbers come from a seed of their own for each input, and so are the same at every call.
"""

import sys
import tomllib
import zlib
from pathlib import Path

import numpy as np
import onnxruntime

TYPES = {"f32": np.float32, "i32": np.int32, "i64": np.int64}


def picture(random, shape, low, high):
    """Waves in all directions with edges where they cross, and a little noise: nearer to a photo than noise alone."""
    axes = np.ogrid[tuple(slice(0, 1, extent * 1j) if extent > 1 else slice(0, 1) for extent in shape)]
    total = np.zeros(shape)
    for frequency in (1, 2, 3, 5, 8, 13):
        phase = random.uniform(0, 2 * np.pi)
        slopes = random.uniform(-frequency, frequency, len(shape))
        total += np.cos(phase + 2 * np.pi * sum(slope * axis for slope, axis in zip(slopes, axes)))
    total = np.tanh(2 * total) + 0.05 * random.randn(*shape)
    return low + (high - low) * (total - total.min()) / (total.max() - total.min())


def audio(random, shape, scale):
    """Tones that swell and fade, and a little noise; samples are the longest axis."""
    n = max(shape)
    time = np.linspace(0, n / 16000, n)
    total = 0.02 * random.randn(n)
    for _ in range(6):
        tone, swell, phase = random.uniform(80, 4000), random.uniform(0.5, 4), random.uniform(0, 2 * np.pi)
        total += np.sin(2 * np.pi * tone * time + phase) * np.sin(np.pi * swell * time) ** 2
    return (scale * total / np.abs(total).max()).reshape(shape)


def prefix(random, shape):
    """Rows of ones, each but the first ending in zeros: which part of a row is not padding."""
    lengths = random.randint(1, shape[1] + 1, shape[0])
    lengths[0] = shape[1]
    return np.arange(shape[1]) < lengths[:, None]


def fill(name, spec, before):
    """One input; `before` are the outputs of the case before."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    shape = spec["shape"]
    match spec["fill"]:
        case "zeros":
            values = np.zeros(shape)
        case "constant":
            values = np.full(shape, spec["value"])
        case "normal":
            values = spec["scale"] * random.randn(*shape)
        case "integers":
            values = random.randint(spec.get("low", 0), spec["high"], shape)
        case "prefix":
            values = prefix(random, shape)
        case "picture":
            values = picture(random, shape, spec["low"], spec["high"])
        case "audio":
            values = audio(random, shape, spec["scale"])
        case "before":
            values = before[spec["output"]]
        case other:
            raise ValueError(f"{name}: nobody knows how to fill with `{other}`")
    return np.asarray(values, dtype=TYPES[spec["dtype"]])


def open_session(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Errors only: exporters leave much that it warns of.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def read(path):
    with np.load(path) as arrays:
        return dict(arrays)


def write(path, arrays):
    """Under another name first, so that a file that is there is whole."""
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
    part.rename(path)


def make(name, folder, cases):
    """Makes what is missing; gives how many cases that were."""
    session, before, n_made = None, None, 0
    for i, specs in enumerate(cases):
        inputs, outputs = folder / f"case{i}.inputs.npz", folder / f"case{i}.outputs.npz"
        if inputs.exists() and outputs.exists():
            before = read(outputs)
            continue
        if not inputs.exists():
            # Outputs of other inputs would be wrong ones.
            outputs.unlink(missing_ok=True)
            filled = {key: fill(f"{name}/{i}/{key}", spec, before) for key, spec in specs.items()}
            write(inputs, filled)
        session = session or open_session(folder / "model.onnx")
        names = [output.name for output in session.get_outputs()]
        before = dict(zip(names, session.run(names, read(inputs))))
        write(outputs, before)
        n_made += 1
    return n_made


def main():
    folder, table = map(Path, sys.argv[1:])
    models = tomllib.loads(table.read_text())["models"]
    n_made = sum(
        make(name, folder / name, model["cases"])
        for name, model in models.items()
        if (folder / name / "model.onnx").exists()
    )
    print(f"{n_made} cases made with onnxruntime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
