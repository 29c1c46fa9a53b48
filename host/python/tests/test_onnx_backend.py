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

    tests = BackendTest(backend, __name__).include("^test_(softmax_axis_0|cast_FLOAT_to_BFLOAT16|top_k)_cpu$")
    result = Result()
    tests.test_suite.run(result)
    assert not result.failures and not result.errors and result.passed == 3
