"""Writes the quantised forms of a model that onnxruntime's own quantiser makes, to be measured and compared.

    python bench/python/quantised.py MODEL INPUTS FOLDER [FORM ...]

INPUTS is an .npz with the model's inputs by name, which calibrate the static forms. Each form gets a folder with
`model.onnx` and `inputs.npz`, which `devbay bench` and `devbay run` take:

- `dynamic`: weights are i8, activations are quantised in each run (DynamicQuantizeLinear, MatMulInteger, ConvInteger)
- `dynamic_channels`: the same with a scale for each column of weights
- `qdq`: QuantizeLinear and DequantizeLinear around f32 ops
- `qoperator`: QLinearConv, QLinearMatMul and onnxruntime's own QLinear ops

Needs the packages onnx and onnxruntime.
"""

import pathlib
import shutil
import sys

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

FORMS = ("dynamic", "dynamic_channels", "qdq", "qoperator")


class Once(CalibrationDataReader):
    """One set of inputs."""

    def __init__(self, inputs):
        self.left = [inputs]

    def get_next(self):
        return self.left.pop() if self.left else None


def write(form, source, inputs, target):
    """Writes one form of a model."""
    if form.startswith("dynamic"):
        channels = form == "dynamic_channels"
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=channels)
        return
    quant_format = QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator
    quantize_static(
        source,
        target,
        Once(inputs),
        quant_format=quant_format,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    model, inputs, folder, *forms = sys.argv[1:]
    unknown = set(forms) - set(FORMS)
    if unknown:
        sys.exit(f"unknown forms {sorted(unknown)}, expected some of {FORMS}")
    numbers = dict(np.load(inputs))
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    prepared = folder / "prepared.onnx"
    # The quantiser wants the shapes of all values.
    quant_pre_process(model, str(prepared), skip_symbolic_shape=True)
    for form in forms or FORMS:
        target = folder / form
        target.mkdir(exist_ok=True)
        write(form, str(prepared), numbers, str(target / "model.onnx"))
        shutil.copyfile(inputs, target / "inputs.npz")
        print(target)
    prepared.unlink()


if __name__ == "__main__":
    main()
