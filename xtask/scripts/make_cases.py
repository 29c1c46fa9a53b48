"""Makes the cases of models that have none: `make_cases.py FOLDER TABLE`.

A case is an archive of inputs, `caseN.inputs.npz`, and one of the outputs that onnxruntime gives for them,
`caseN.outputs.npz`, without optimisations and on one thread, so that each operation is computed as the model has it.
TABLE, `xtask/models.toml`, says what inputs are filled with. Inputs that are there are used, outputs that are there are
kept; a model that is not in FOLDER is passed over.

Numbers come from a seed of their own for each input, and so are the same at every call. Inputs on which onnxruntime
with its optimisations differs from itself without them are not used: they magnify rounding, and whoever rounds
otherwise would look wrong. Then the next seed has its turn.
"""

import sys
import tomllib
import zlib
from pathlib import Path

import numpy as np
import onnxruntime

# Tests allow |a - b| <= 1e-4 * max|out| + 1e-5; onnxruntime itself may use this share of it.
SHARE = 0.3
SEEDS_MAX = 50

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
    """Tones that swell and fade in noise; samples are the longest axis. The noise is loud enough that no frequency is so
    weak beside the others that it is mostly rounding, which differs between implementations and which logarithms show."""
    n = max(shape)
    time = np.linspace(0, n / 16000, n)
    total = 0.3 * random.randn(n)
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
    """One input, its seed made of `name`; `before` are the outputs of the case before."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    shape = spec["shape"]
    match spec["fill"]:
        case "zeros":
            values = np.zeros(shape)
        case "constant":
            values = np.full(shape, spec["value"])
        case "values":
            values = np.reshape(spec["values"], shape)
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


class Reference:
    """A model in onnxruntime, without optimisations and with them."""

    def __init__(self, model):
        levels = onnxruntime.GraphOptimizationLevel
        self.plain, self.optimised = (
            self.open(model, level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL)
        )
        self.names = [output.name for output in self.plain.get_outputs()]

    @staticmethod
    def open(model, level):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # Errors only: exporters leave much that it warns of.
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def outputs(self, inputs):
        return dict(zip(self.names, self.plain.run(self.names, inputs)))

    def agrees(self, inputs, outputs):
        """Whether the optimised model gives the same within a share of what tests allow."""
        others = self.optimised.run(self.names, inputs)
        return all(near(outputs[name], other) for name, other in zip(self.names, others))


def near(a, b):
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    if a.shape != b.shape or not np.isfinite(a).all():
        return False
    return np.abs(a - b).max(initial=0) <= SHARE * (1e-4 * np.abs(a).max(initial=0) + 1e-5)


def read(path):
    with np.load(path) as arrays:
        return dict(arrays)


def write(path, arrays):
    """Under another name first, so that a file that is there is whole."""
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
    part.rename(path)


def fill_case(name, specs, before, reference, first_seed):
    """Inputs and outputs of a case."""
    for seed in range(first_seed, first_seed + SEEDS_MAX):
        inputs = {key: fill(f"{name}/{key}/{seed}", spec, before) for key, spec in specs.items()}
        outputs = reference.outputs(inputs)
        if reference.agrees(inputs, outputs):
            return inputs, outputs
    raise ValueError(f"{name}: onnxruntime does not agree with itself on {SEEDS_MAX} inputs")


def make(name, folder, model):
    """Makes what is missing; gives how many cases that were."""
    cases = model.get("cases", [])
    reference, before, n_made = None, None, 0
    for i, specs in enumerate(cases):
        inputs, outputs = folder / f"case{i}.inputs.npz", folder / f"case{i}.outputs.npz"
        if inputs.exists() and outputs.exists():
            before = read(outputs)
            continue
        reference = reference or Reference(folder / "model.onnx")
        if inputs.exists():
            before = reference.outputs(read(inputs))
        else:
            filled, before = fill_case(f"{name}/{i}", specs, before, reference, model.get("seed", 0))
            # Outputs of other inputs would be wrong ones.
            outputs.unlink(missing_ok=True)
            write(inputs, filled)
        write(outputs, before)
        n_made += 1
    return n_made


def main():
    folder, table = map(Path, sys.argv[1:])
    models = tomllib.loads(table.read_text())["models"]
    n_made = sum(
        make(name, folder / name, model)
        for name, model in models.items()
        if (folder / name / "model.onnx").exists()
    )
    print(f"{n_made} cases made with onnxruntime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
