"""ONNX's own backend interface. It needs the package onnx, which the rest of devbay does not."""

import unittest

import numpy as np
import pytest

import devbay

onnx = pytest.importorskip("onnx")

from devbay import onnx_backend as backend  # noqa: E402

X = np.array([-1, 2], np.float32)


def model(op="Abs", domain=""):
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"]
    node = onnx.helper.make_node(op, ["x"], ["y"], domain=domain)
    graph = onnx.helper.make_graph([node], "graph", ports[:1], ports[1:])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("org.example", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets)


def test_a_model_is_prepared_once_and_run_often():
    rep = backend.prepare(model(), "CPU")
    outputs = rep.run([X])
    assert outputs[0].tolist() == [1, 2] and outputs.y.tolist() == [1, 2]
    assert rep.run(X)["y"].tolist() == [1, 2] and rep.run({"x": X}).y.tolist() == [1, 2]
    assert backend.run_model(model().SerializeToString(), [X]).y.tolist() == [1, 2]
    with pytest.raises(devbay.InvalidInput, match="2 inputs are given, the model takes 1: x"):
        rep.run([X, X])


def test_a_node_runs_alone():
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    [result] = backend.run_node(node, [X, np.float32(1)], opset_version=13)
    assert result.tolist() == [-1, 1]
    node = onnx.helper.make_node("Add", ["x", "x"], ["y"])
    assert backend.run_node(node, [X, X])[0].tolist() == [-2, 4]
    with pytest.raises(devbay.InvalidInput, match="1 inputs are given, the node takes 2"):
        backend.run_node(node, [X])


def test_devices_have_onnx_names():
    assert backend.supports_device("CPU") and backend.supports_device("cpu:0")
    assert not backend.supports_device("CUDA:99") and not backend.supports_device("TPU")
    assert backend.is_compatible(model()) and not backend.is_compatible(model("Nothing", "org.example"))


class Result(unittest.TestResult):
    passed = 0

    def addSuccess(self, test):
        self.passed += 1


def test_the_runner_of_onnx_runs_its_tests():
    from onnx.backend.test import BackendTest

    numbers = "softmax_axis_0|cast_FLOAT_to_BFLOAT16|top_k"
    values = "string_split_basic|sequence_insert_at_back|identity_opt|loop13_seq|image_decoder_decode_png_rgb"
    tests = BackendTest(backend, __name__).include(f"^test_({numbers}|{values})_cpu$")
    result = Result()
    tests.test_suite.run(result)
    assert not result.failures and not result.errors and result.passed == 8


def session_of(nodes, inputs, outputs):
    graph = onnx.helper.make_graph(nodes, "graph", inputs, outputs)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in (("", 21), ("ai.onnx.ml", 4))]
    return devbay.Session(onnx.helper.make_model(graph, opset_imports=opsets).SerializeToString())


def text_port(name):
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["n"])


def test_strings_are_arrays_of_str():
    nodes = [
        onnx.helper.make_node("StringConcat", ["x", "x"], ["y"]),
        onnx.helper.make_node("StringSplit", ["x"], ["", "n"]),
        onnx.helper.make_node("Neg", ["n"], ["m"]),
    ]
    counts = onnx.helper.make_tensor_value_info("m", onnx.TensorProto.INT64, ["n"])
    session = session_of(nodes, [text_port("x")], [text_port("y"), counts])
    [port] = session.inputs
    assert (port.type, port.dtype, port.shape) == ("tensor(string)", "string", ("n",))
    for given in (["ä b", ""], np.array(["ä b", ""]), np.array(["ä b".encode(), b""]), np.array(["ä b", ""], object)):
        outputs = session.run({"x": given})
        assert outputs["y"].dtype == object and outputs["y"].tolist() == ["ä bä b", ""]
        assert outputs["m"].tolist() == [-2, 0]
    for wrong, words in ((np.array([1.0]), "expected texts"), ([1], "expected texts, found int"), ([b"\xff"], "utf-8")):
        with pytest.raises(devbay.InvalidInput, match=words):
            session.run({"x": wrong})
    with pytest.raises(devbay.UnsupportedModel, match="there is no plan of the whole"):
        session.plan({"x": np.zeros(1, np.float32)})


def test_sequences_are_lists_maps_dictionaries_and_optionals_none_or_a_value():
    numbers = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])
    maps = onnx.ValueInfoProto(name="y")
    node = onnx.helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[7, 8])
    session = session_of([node], [numbers], [maps])
    assert session.outputs[0].type == "seq(map(int64,tensor(float)))" and session.outputs[0].dtype is None
    assert session.run({"x": np.array([[1, 2], [3, 4]], np.float32)})["y"] == [{7: 1.0, 8: 2.0}, {7: 3.0, 8: 4.0}]

    of_float = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    optional = onnx.helper.make_optional_type_proto(onnx.helper.make_sequence_type_proto(of_float))
    port = onnx.helper.make_value_info("o", optional)
    has = onnx.helper.make_node("OptionalHasElement", ["o"], ["h"])
    same = onnx.helper.make_node("Identity", ["o"], ["p"])
    results = [onnx.helper.make_tensor_value_info("h", onnx.TensorProto.BOOL, []), onnx.helper.make_value_info("p", optional)]
    session = session_of([has, same], [port], results)
    assert session.run({"o": None}) == {"h": np.array(False), "p": None}
    outputs = session.run({"o": [X, X]})
    assert outputs["h"] and [value.tolist() for value in outputs["p"]] == [[-1, 2], [-1, 2]]
    with pytest.raises(devbay.InvalidInput, match="give a list"):
        session.run({"o": 1.0})
