"""devbay.onnxruntime as programs that were written for onnxruntime meet it."""

import json
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from test_devbay import ABS, DRAW, LOOP, MNIST, program

import devbay
import devbay.onnxruntime as ort
from devbay.onnxruntime.capi import onnxruntime_pybind11_state as state

CPU = ["CPUExecutionProvider"]
TWO = program("  %y: f32[n] = Abs@13(%x)\n  %z: f32[n] = Neg@13(%x)", result="%y, %z")


def message(number, content):
    """Encodes a field of a protobuf message: text and bytes by their length, numbers as they are."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def port(name, extents):
    dims = b"".join(message(1, message(2 if isinstance(extent, str) else 1, extent)) for extent in extents)
    return message(1, name) + message(2, message(1, message(1, 1) + message(2, dims)))


# A model with everything that a file says about itself.
DESCRIBED = b"".join(
    [
        message(1, 8),
        message(2, "a tool"),
        message(4, "org.example"),
        message(5, 3),
        message(6, "about the model"),
        message(
            7,
            b"".join(
                [
                    message(1, message(1, "x") + message(2, "y") + message(4, "Abs")),
                    message(2, "a graph"),
                    message(10, "about the graph"),
                    message(11, port("x", ["batch", 2, ""])),
                    message(12, port("y", ["batch", 2, ""])),
                ]
            ),
        ),
        message(8, message(2, 13)),
        message(14, message(1, "labels") + message(2, "cat,dog")),
    ]
)


def test_a_seed_is_that_of_later_sessions(monkeypatch):
    monkeypatch.setattr(ort._session, "_seed", None)

    def draw():
        return ort.InferenceSession(DRAW, providers=CPU).run(None, {})[0].tolist()

    assert draw() != draw()
    ort.set_seed(-1)
    assert draw() == draw() == devbay.Session(DRAW, seed=2**64 - 1).run({})["y"].tolist()


def test_a_file_runs_as_with_onnxruntime():
    session = ort.InferenceSession(str(MNIST), providers=CPU)
    [port] = session.get_inputs()
    assert (port.name, port.type, port.shape[1:]) == ("input", "tensor(float)", [1, 28, 28])
    x = np.full((1, 1, 28, 28), 0.5, np.float32)
    [scores] = session.run(None, {"input": x})
    [expected] = devbay.Session(MNIST, device="cpu:0").run({"input": x}).values()
    assert np.array_equal(scores, expected)
    assert session.get_providers() == CPU and session.get_provider_options() == {CPU[0]: {}}


def test_outputs_are_named_or_all():
    session = ort.InferenceSession(TWO, providers=CPU)
    x = {"x": np.array([-1, 2], np.float32)}
    assert [y.tolist() for y in session.run(None, x)] == [[1, 2], [1, -2]]
    assert [y.tolist() for y in session.run([], x)] == [[1, 2], [1, -2]]
    assert [y.tolist() for y in session.run(["z", "y", "z"], x)] == [[1, -2], [1, 2], [1, -2]]
    with pytest.raises(state.InvalidArgument, match="Invalid output name: w"):
        session.run(["w"], x)


def test_a_model_tells_about_itself():
    session = ort.InferenceSession(DESCRIBED, providers=CPU)
    meta = session.get_modelmeta()
    assert meta.producer_name == "a tool" and meta.domain == "org.example" and meta.version == 3
    assert meta.graph_name == "a graph" and meta.graph_description == "about the graph"
    assert meta.description == "about the model" and meta.custom_metadata_map == {"labels": "cat,dog"}
    assert session.get_inputs()[0].shape == ["batch", 2, None]
    assert "tensor(float)" in repr(session.get_inputs()[0])
    metadata = devbay.Session(DESCRIBED).metadata
    assert metadata["opsets"] == {"": 13} and metadata["ir_version"] == 8
    nothing = devbay.Session(ABS).metadata
    assert nothing["producer_name"] == "" and nothing["version"] is None
    assert ort.InferenceSession(ABS, providers=CPU).get_modelmeta().version == 2**63 - 1


def tensor(name, numbers):
    return message(1, len(numbers)) + message(2, 1) + message(4, np.array(numbers, "<f4").tobytes()) + message(8, name)


ADD = message(1, 8) + message(8, message(2, 13))
ADD += message(
    7,
    b"".join(
        [
            message(1, message(1, "x") + message(1, "w") + message(2, "y") + message(4, "Add")),
            message(5, tensor("w", [1, 2])),
            message(11, port("x", [2])),
            message(11, port("w", [2])),
            message(12, port("y", [2])),
        ]
    ),
)


def test_initializers_that_are_also_inputs_are_overridden(tmp_path):
    (tmp_path / "add.onnx").write_bytes(ADD)
    for model in (ADD, tmp_path / "add.onnx"):
        session = ort.InferenceSession(model, providers=CPU)
        assert [port.name for port in session.get_inputs()] == ["x"]
        [port] = session.get_overridable_initializers()
        assert (port.name, port.type, port.shape) == ("w", "tensor(float)", [2])
        x, w = np.zeros(2, np.float32), np.array([5, 6], np.float32)
        assert session.run(None, {"x": x})[0].tolist() == [1, 2]
        assert session.run(None, {"x": x, "w": w})[0].tolist() == [5, 6]
        assert session.run(None, {"x": x})[0].tolist() == [1, 2]
    session = devbay.Session(ADD, overridable=True)
    assert [port.name for port in session.inputs] == ["x", "w"]
    assert session.run({"x": x})["y"].tolist() == [1, 2] and session.run({"x": x, "w": w})["y"].tolist() == [5, 6]
    assert session.defaults["w"].numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("error", "words", "feed"),
    [
        (ValueError, r"Required inputs \(\['x'\]\) are missing from input feed \(\[\]\)", {}),
        (state.InvalidArgument, "Invalid input name: w", {"x": np.zeros(1, np.float32), "w": 1}),
        (state.InvalidArgument, r"INVALID_ARGUMENT.*is given as f64\[1\]", {"x": np.zeros(1)}),
        (state.InvalidArgument, r"is given as f32\[1,1\]", {"x": np.zeros((1, 1), np.float32)}),
        (state.InvalidArgument, "an array of objects is not a tensor", {"x": np.array([object()])}),
    ],
)
def test_inputs_that_do_not_fit(error, words, feed):
    with pytest.raises(error, match=words):
        ort.InferenceSession(ABS, providers=CPU).run(None, feed)


def test_models_that_do_not_load():
    with pytest.raises(state.NoSuchFile, match="File doesn't exist"):
        ort.InferenceSession("nothere.onnx", providers=CPU)
    with pytest.raises(state.InvalidProtobuf, match="INVALID_PROTOBUF"):
        ort.InferenceSession(b"no model", providers=CPU)
    with pytest.raises(state.NotImplemented, match="nobody.Op"):
        ort.InferenceSession(program("  %y: f32[n] = nobody.Op@1(%x)"), providers=CPU)
    with pytest.raises(state.InvalidGraph, match="INVALID_GRAPH"):
        ort.InferenceSession(b"devbay-program 1 nonsense", providers=CPU)
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(3)


def test_unknown_providers_are_warned_about_and_skipped():
    with pytest.warns(UserWarning, match="'TensorrtExecutionProvider' is not in available"):
        session = ort.InferenceSession(ABS, providers=["TensorrtExecutionProvider", *CPU])
    assert session.get_providers() == CPU
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ort.InferenceSession(ABS, providers=[("CPUExecutionProvider", {"arena": 1})])
        assert session.get_provider_options() == {"CPUExecutionProvider": {"arena": "1"}}
        session = ort.InferenceSession(ABS, None, ["DevbayExecutionProvider"], [{"device": "cpu:0"}])
    assert session.get_providers() == ["DevbayExecutionProvider", *CPU]
    with pytest.raises(state.InvalidArgument, match="options device and plugins, found 'devise'"):
        ort.InferenceSession(ABS, providers=[("DevbayExecutionProvider", {"devise": "cpu:0"})])
    with pytest.raises(ValueError, match="should be the same length"):
        ort.InferenceSession(ABS, None, CPU, [{}, {}])
    with pytest.raises(ValueError, match="should be a sequence"):
        ort.InferenceSession(ABS, providers="CPUExecutionProvider")
    assert {"CPUExecutionProvider", "DevbayExecutionProvider"} <= set(ort.get_available_providers())
    assert ort.get_device() in ("CPU", "GPU")


def test_options_are_honoured_kept_or_refused():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    session = ort.InferenceSession(ABS, options, CPU)
    assert session.run(None, {"x": np.array([-1], np.float32)})[0].tolist() == [1]
    plan = session._session.plan({"x": (4,)}).json()
    assert plan["threads"] == 2, "intra_op_num_threads"
    assert session._session.explain({"x": (4,)}).json()["passes"] == [], "ORT_DISABLE_ALL"
    with pytest.raises(AttributeError, match="no attribute 'intra_op_threads'"):
        options.intra_op_threads = 2
    with pytest.raises(state.InvalidArgument, match="number of threads"):
        options.intra_op_num_threads = -1
    with pytest.raises(TypeError, match="GraphOptimizationLevel"):
        options.graph_optimization_level = 99
    with pytest.raises(state.NotImplemented, match="custom ops"):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(state.NotImplemented, match="does not write ONNX"):
        options.optimized_model_filepath = "out.onnx"
    with pytest.raises(state.NotImplemented, match="reads ONNX models"):
        options.add_session_config_entry("session.load_model_format", "ORT")
    assert repr(ort.GraphOptimizationLevel.ORT_ENABLE_ALL) == "<GraphOptimizationLevel.ORT_ENABLE_ALL: 99>"


def test_extents_are_overridden_by_name():
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session = ort.InferenceSession(ABS, options, CPU)
    assert session.get_inputs()[0].shape == [2]
    assert session.run(None, {"x": np.array([-1, 1], np.float32)})[0].tolist() == [1, 1]
    with pytest.raises(state.InvalidArgument, match="3 at 'n', which is overridden as 2"):
        session.run(None, {"x": np.zeros(3, np.float32)})


def test_what_is_absent_says_so():
    with pytest.raises(AttributeError, match="training is not supported: devbay runs models"):
        ort.training  # noqa: B018
    with pytest.raises(AttributeError, match="not part of devbay's interface; see docs/python.md"):
        ort.NoSuchThing  # noqa: B018
    with pytest.raises(AttributeError, match="get_tuning_results is not supported"):
        ort.InferenceSession(ABS, providers=CPU).get_tuning_results()
    with pytest.raises(AttributeError, match="SparseTensor: sparse tensors are not supported"):
        ort.SparseTensor  # noqa: B018


def test_terminate_ends_a_run_of_another_thread():
    session = ort.InferenceSession(LOOP, providers=CPU)
    options = ort.RunOptions()
    threading.Timer(0.1, lambda: setattr(options, "terminate", True)).start()
    begin = time.monotonic()
    with pytest.raises(state.Fail, match="terminate flag"):
        session.run(None, {"n": np.int64(2**62), "x": np.ones(4, np.float32)}, options)
    assert time.monotonic() - begin < 5 and options.terminate
    options.terminate = False
    assert session.run(None, {"n": np.int64(3), "x": np.ones(4, np.float32)}, options)[0].tolist() == [4] * 4


def test_bindings_fill_the_memory_that_is_bound():
    session = ort.InferenceSession(TWO, providers=CPU)
    binding = session.io_binding()
    x = np.array([-1, 2], np.float32)
    z = np.zeros(2, np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("z", "cpu", 0, np.float32, z.shape, z.ctypes.data)
    session.run_with_iobinding(binding)
    assert z.tolist() == [1, -2] and [y.tolist() for y in binding.copy_outputs_to_cpu()] == [[1, 2], [1, -2]]
    x[0] = 5
    session.run_with_iobinding(binding)
    assert z.tolist() == [-5, -2], "an input is read anew"
    value = ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32)
    binding.bind_ortvalue_output("y", value)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(np.array([-3, -4], np.float32)))
    session.run_with_iobinding(binding)
    assert value.numpy().tolist() == [3, 4]
    binding.bind_input("x", "cpu", 0, 1, [2], x.ctypes.data)
    session.run_with_iobinding(binding)
    assert value.numpy().tolist() == [5, 2]
    assert [output.data_ptr() for output in binding.get_outputs()] == [value.data_ptr(), z.ctypes.data]
    with pytest.raises(RuntimeError, match="name: w among the inputs"):
        binding.bind_cpu_input("w", x)
    binding.bind_output("z", "cpu", 0, np.float32, [1], z.ctypes.data)
    with pytest.raises(state.InvalidArgument, match=r"float32\[2\], bound to float32\[1\]"):
        session.run_with_iobinding(binding)
    with pytest.raises(state.InvalidArgument, match="left on cuda:0: the session runs on cpu:0"):
        binding.bind_output("y", "cuda", 0)
    other = ort.InferenceSession(TWO, providers=CPU)
    with pytest.raises(ValueError, match="session that created it"):
        other.run_with_iobinding(binding)


def test_values_share_their_array():
    x = np.array([1, 2], np.float32)
    value = ort.OrtValue.ortvalue_from_numpy(x)
    assert value.data_ptr() == x.ctypes.data and value.numpy() is x
    assert (value.shape(), value.data_type(), value.element_type()) == ([2], "tensor(float)", 1)
    assert value.is_tensor() and not value.is_sparse_tensor() and value.tensor_size_in_bytes() == 8
    value.update_inplace(np.array([3, 4], np.float32))
    assert x.tolist() == [3, 4] and np.from_dlpack(value).tolist() == [3, 4]
    with pytest.raises(state.InvalidArgument, match="does not fit"):
        value.update_inplace(np.zeros(3, np.float32))
    taken = ort.OrtValue.from_dlpack(x)
    assert taken.device_name() == "cpu" and np.array_equal(taken.numpy(), x)
    session = ort.InferenceSession(ABS, providers=CPU)
    [result] = session.run_with_ort_values(["y"], {"x": taken})
    assert np.asarray(result).tolist() == [3, 4]
    half = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), 10)
    assert half.data_type() == "tensor(float16)"
    with pytest.raises(state.NotImplemented, match="cannot be made from an array"):
        ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)


def test_a_node_that_fails_is_a_failed_run():
    session = ort.InferenceSession(
        program("  %y: f32[m] = Reshape@25(%x, %s)", "%x: f32[n], %s: i64[1]"), providers=CPU
    )
    with pytest.raises(state.Fail, match="as many elements as"):
        session.run(None, {"x": np.zeros(6, np.float32), "s": np.array([4])})


def test_float8_results_are_bytes():
    pytest.importorskip("ml_dtypes")
    session = ort.InferenceSession(program("  %y: f8e4m3fn[n] = Cast@28(%x){to = 17}"), providers=CPU)
    assert session.get_outputs()[0].type == "tensor(float8e4m3fn)"
    [result] = session.run(None, {"x": np.array([1, 2], np.float32)})
    assert result.dtype == np.uint8 and result.tolist() == [0x38, 0x40]


def test_runs_in_the_background_call_back():
    session = ort.InferenceSession(ABS, providers=CPU)
    ended, got = threading.Event(), []

    def callback(results, data, error):
        got.extend((results, data, error))
        ended.set()

    session.run_async(["y"], {"x": np.array([-1], np.float32)}, callback, "data")
    assert ended.wait(10) and got[0][0].tolist() == [1] and got[1:] == ["data", ""]
    ended.clear()
    got.clear()
    session.run_async(["y"], {"x": np.zeros(1)}, callback, None)
    assert ended.wait(10) and got[0] == [] and "INVALID_ARGUMENT" in got[2]


def test_profiles_are_written(tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "times_")
    session = ort.InferenceSession(ABS, options, CPU)
    session.run(None, {"x": np.zeros(4, np.float32)})
    with open(session.end_profiling()) as file:
        events = json.load(file)["traceEvents"]
    assert any("Abs" in event["name"] for event in events)
    assert session.get_profiling_start_time_ns() <= time.monotonic_ns()
    with pytest.raises(state.Fail, match="profiling is not enabled"):
        ort.InferenceSession(ABS, providers=CPU).end_profiling()


def test_a_forked_child_opens_its_own_sessions():
    code = f"""
import os
import numpy as np
import devbay.onnxruntime as ort
x = {{"x": np.array([-1], np.float32)}}
session = ort.InferenceSession({ABS!r}, providers=["CPUExecutionProvider"])
child = os.fork()
if child == 0:
    try:
        session.run(None, x)
    except Exception as error:
        print(type(error).__name__, "forked" in str(error))
    print(ort.InferenceSession({ABS!r}, providers=["CPUExecutionProvider"]).run(None, x)[0].tolist(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Fail True\n[1.0]\n0\n", done.stderr


PROGRAM = """
import sys
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile
import onnxruntime.capi._pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
assert C.NoSuchFile is NoSuchFile and InferenceSession is ort.InferenceSession
try:
    import onnxruntime.quantization
except ImportError as error:
    assert "quantize with onnxruntime" in str(error), error
try:
    ort.InferenceSession("nothere.onnx")
except NoSuchFile:
    print(sys.argv[1:], __name__, ort.__name__)
"""


def test_a_program_runs_unchanged(tmp_path):
    (tmp_path / "own.py").write_text(PROGRAM)
    for name in (["own.py"], ["-m", "own"]):
        command = [sys.executable, "-m", "devbay.onnxruntime", *name, "-x", "3"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.stdout == "['-x', '3'] __main__ devbay.onnxruntime\n", done.stderr
    command = [sys.executable, "-m", "devbay.onnxruntime", "nothere.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr == "devbay.onnxruntime: there is no program nothere.py\n"
