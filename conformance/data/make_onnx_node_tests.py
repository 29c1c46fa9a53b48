#!/usr/bin/env python3
"""Packs ONNX's own node tests for the conformance suite: onnx_node_tests.tar.xz beside this file.

    pip install onnx==1.23.2 numpy==2.4.6
    python conformance/data/make_onnx_node_tests.py

Every test of `onnx.backend.test.case.node` becomes a folder with `model.onnx` and, for each data set, its inputs
and outputs as serialised protobufs; `index.json`, the first file, has the tolerance of each and its op (the ops, if
it is a function's body). Same versions, same bytes: names are
sorted, times are 0, and NumPy's generator is seeded, as some cases draw their inputs from it.
"""

import io
import json
import lzma
import pathlib
import tarfile

import numpy as np

np.random.seed(0)

import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests


def serialised(value, type_proto):
    """One input or output as the standard's test data has it: by the kind of the model's value."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto, onnx.MapProto)):
        return value.SerializeToString(deterministic=True)
    if type_proto.HasField("map_type"):
        return numpy_helper.from_dict(value, type_proto.denotation).SerializeToString(deterministic=True)
    if type_proto.HasField("sequence_type"):
        return numpy_helper.from_list(value).SerializeToString(deterministic=True)
    if type_proto.HasField("optional_type"):
        return numpy_helper.from_optional(value).SerializeToString(deterministic=True)
    return numpy_helper.from_array(np.asarray(value)).SerializeToString(deterministic=True)


def main():
    here = pathlib.Path(__file__).parent
    index, files = {}, {}
    for case in sorted(load_node_model_tests(), key=lambda case: case.name):
        model = case.model
        ops = sorted({".".join(filter(None, (node.domain, node.op_type))) for node in model.graph.node})
        index[case.name] = {"rtol": case.rtol, "atol": case.atol, "ops": ops, "expanded": "_expanded" in case.name}
        files[f"{case.name}/model.onnx"] = model.SerializeToString(deterministic=True)
        for i, (inputs, outputs) in enumerate(case.data_sets):
            for kind, values, ports in (("input", inputs, model.graph.input), ("output", outputs, model.graph.output)):
                for j, (value, port) in enumerate(zip(values, ports)):
                    files[f"{case.name}/{i}/{kind}_{j}.pb"] = serialised(value, port.type)
    files["index.json"] = json.dumps(index, sort_keys=True).encode()

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            tar.addfile(entry, io.BytesIO(files[name]))
    target = here / "onnx_node_tests.tar.xz"
    target.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{target}: {len(index)} tests, {len(packed.getvalue())} bytes, {target.stat().st_size} packed")


if __name__ == "__main__":
    main()
