"""The package as its users meet it: results, copies, errors, threads."""

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import devbay

MODELS = Path(__file__).parents[3] / "models"
MNIST = MODELS / "mnist_cnn" / "model.onnx"


def program(body, inputs="%x: f32[n]", result="%y"):
    return f'devbay-program 1\n\nprogram "p"({inputs}) {{\n{body}\n  return {result}\n}}\n'.encode()


ABS = program("  %y: f32[n] = Abs@13(%x)")


def test_a_model_of_a_file_gives_the_results_of_its_case():
    session = devbay.Session(MNIST)
    [(name, shape)] = [(port.name, port.shape) for port in session.inputs]
    assert (name, shape[1:]) == ("input", (1, 28, 28))
    outputs = session.run({"input": np.full((1, 1, 28, 28), 0.5, np.float32)})
    [scores] = outputs.values()
    assert scores.shape == (1, 10) and scores.dtype == np.float32
    assert list(outputs) == [port.name for port in session.outputs]
    again = session.run({"input": np.full((1, 1, 28, 28), 0.5, np.float32)})
    assert np.array_equal(scores, list(again.values())[0])


def test_results_can_be_written_and_outlive_the_session():
    session = devbay.Session(ABS)
    result = session.run({"x": np.array([-1, 2], np.float32)})["y"]
    del session
    gc.collect()
    result += 1
    assert result.tolist() == [2, 3] and result.flags.writeable


DRAW = program(
    "  %n = const i64[1] [3]\n  %y: f32[3] = devbay.Philox@1(%devbay.seed, %n) {stream = 0}",
    inputs="%devbay.seed: u32[4]",
)


def test_a_seed_repeats_random_numbers():
    one, same = (devbay.Session(DRAW, seed=2**64 - 1) for _ in range(2))
    assert one.inputs == []

    def draws(session, **options):
        return session.run({}, **options)["y"].tolist()

    first, second = draws(one), draws(one)
    assert first != second and [draws(same), draws(same)] == [first, second]
    assert draws(one, seed=2**64 - 1) == first
    assert asyncio.run(one.run_async({}, seed=2**64 - 1))["y"].tolist() == first
    assert one.run_on_device({}, seed=2**64 - 1)["y"].numpy().tolist() == first
    assert draws(one) == draws(same)
    assert draws(devbay.Session(DRAW)) != draws(devbay.Session(DRAW))
    with pytest.raises(devbay.InvalidInput, match="has no input `devbay.seed`"):
        one.run({"devbay.seed": np.zeros(4, np.uint32)})


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "i8", "i16", "i32", "i64"])
def test_element_types_go_in_and_out(dtype):
    session = devbay.Session(program(f"  %y: {dtype}[n] = Abs@13(%x)", f"%x: {dtype}[n]"))
    kind = {"f": "float", "i": "int"}[dtype[0]] + dtype[1:]
    result = session.run({"x": np.array([-3, 4], kind)})["y"]
    assert result.dtype == kind and result.tolist() == [3, 4]


def test_truth_values_go_in_and_out():
    session = devbay.Session(program("  %y: bool[n] = Not@1(%x)", "%x: bool[n]"))
    assert session.run({"x": np.array([True, False])})["y"].tolist() == [False, True]


def test_dense_inputs_are_not_copied_and_others_are():
    session = devbay.Session(program("  %y: f32[n] = Identity@25(%x)"))
    x = np.arange(6, dtype=np.float32)
    tensor = session.run_on_device({"x": x})["y"]
    assert tensor.device is None and tensor.numpy().ctypes.data == x.ctypes.data
    assert not tensor.numpy().flags.writeable, "it is the input's memory"
    for other in (x[::2], x[::-1], x.astype(">f4"), x.tolist()):
        assert session.run({"x": other})["y"].tolist() == list(other)


def test_inputs_may_be_changed_by_the_objects_in_them():
    inputs = {}

    class Growing:
        def __dlpack__(self, **options):
            inputs[f"more{len(inputs)}"] = 1
            return np.ones(2, np.float32).__dlpack__(**options)

        def __dlpack_device__(self):
            return (1, 0)

    inputs["x"] = Growing()
    assert devbay.Session(ABS).run(inputs)["y"].tolist() == [1, 1]


def test_references_are_given_back():
    session = devbay.Session(ABS)
    x = np.zeros(4, np.float32)
    before = sys.getrefcount(x)
    for _ in range(100):
        session.run({"x": x})
    gc.collect()
    assert sys.getrefcount(x) == before


def test_a_scalar_and_an_empty_array():
    session = devbay.Session(program("  %y: f32[] = Abs@13(%x)", "%x: f32[]"))
    assert session.run({"x": -2.5})["y"] == 2.5
    assert session.run({"x": np.float32(-2.5)})["y"].shape == ()
    assert devbay.Session(ABS).run({"x": np.zeros(0, np.float32)})["y"].shape == (0,)


def test_results_stay_on_the_device_and_go_in_again():
    session = devbay.Session(ABS)
    first = session.run_on_device({"x": np.array([-1, 2], np.float32)})["y"]
    assert first.shape == (2,) and first.dtype == "f32"
    assert session.run({"x": first})["y"].tolist() == [1, 2]
    assert np.from_dlpack(first).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "is missing"),
        ({"x": np.zeros(2, np.float64)}, "is given as f64[2]"),
        ({"x": np.zeros((2, 2), np.float32)}, "is given as f32[2,2]"),
        ({"x": np.zeros(2, np.float32), "y": np.zeros(2)}, "no input `y`"),
        ({"x": np.array([object()])}, "input `x` cannot be taken"),
        ({"x": "text"}, "input `x` cannot be taken"),
        ({"x": None}, "input `x` cannot be taken"),
    ],
)
def test_inputs_that_do_not_fit_are_invalid(inputs, words):
    with pytest.raises(devbay.InvalidInput, match=words.replace("[", r"\[")) as caught:
        devbay.Session(ABS).run(inputs)
    assert caught.value.kind == "invalid-input" and isinstance(caught.value, ValueError)


def test_models_that_are_wrong():
    with pytest.raises(devbay.FileError, match="nothere"):
        devbay.Session("nothere.onnx")
    with pytest.raises(devbay.InvalidModel):
        devbay.Session(b"no model")
    with pytest.raises(devbay.UnsupportedModel) as caught:
        devbay.Session(program("  %y: f32[n] = nobody.Op@1(%x)"))
    assert caught.value.kind == "unsupported-op"


def test_devices_that_are_not_there():
    with pytest.raises(devbay.NotFound, match="there is no plugin nobody"):
        devbay.Session(ABS, device="nobody:0")
    with pytest.raises(devbay.InvalidArgument, match="kinds are cpu"):
        devbay.Session(ABS, device="prefer:banana")
    with pytest.raises(devbay.InvalidArgument, match="PLUGIN.KEY"):
        devbay.Runtime(options={"thread": "3"})
    runtime = devbay.Runtime(plugins=["nothere.so"])
    assert any("nothere.so" in name for name, _ in runtime.refused)


LOOP = program(
    """  %y: f32[4] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %s: f32[4]) {
    %t: f32[4] = Add@14(%s, %x)
    return %go, %t
  }""",
    "%n: i64[], %x: f32[4]",
)


def test_a_deadline_ends_a_run():
    session = devbay.Session(LOOP)
    with pytest.raises(devbay.DeadlineExceeded) as caught:
        session.run({"n": np.int64(2**62), "x": np.ones(4, np.float32)}, deadline=0.05)
    assert isinstance(caught.value, TimeoutError)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(devbay.InvalidArgument, match="deadline"):
            session.run({}, deadline=wrong)


def test_ctrl_c_ends_a_run():
    code = f"""
import os, signal, threading, time
import numpy as np
import devbay
session = devbay.Session({LOOP!r})
begin = []
def interrupt():
    time.sleep(0.3)
    begin.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    session.run({{"n": np.int64(2**62), "x": np.ones(4, np.float32)}})
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "interrupted\n", done.stderr


def test_runs_can_be_awaited():
    session = devbay.Session(ABS)

    async def both():
        runs = [session.run_async({"x": np.array([-i], np.float32)}) for i in range(2)]
        return [outputs["y"].tolist() for outputs in await asyncio.gather(*runs)]

    assert asyncio.run(both()) == [[0], [1]]


def run_program(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_forked_child_has_errors_and_makes_its_own():
    code = f"""
import os, warnings
import numpy as np
import devbay
# Python 3.12 and later warn of forks of programs that have threads.
warnings.simplefilter("ignore")
session = devbay.Session({ABS!r})
runtime = devbay.Runtime(threads=2, search=False)
x = np.array([-1], np.float32)
tensor = session.run_on_device({{"x": x}})["y"]
def refused(call):
    try:
        call()
    except devbay.NotFound as error:
        return "forked" in str(error)
child = os.fork()
if child == 0:
    calls = [
        lambda: session.run({{"x": x}}),
        lambda: devbay.Session({ABS!r}, runtime=runtime),
        lambda: tensor.numpy(),
        lambda: session.plan({{"x": (1,)}}),
    ]
    own = devbay.Session({ABS!r})
    print([refused(call) for call in calls], repr(session), own.run({{"x": x}})["y"].tolist(), flush=True)
    del session, runtime, tensor
    own.run({{"x": x}})
    os._exit(0)
print(os.waitpid(child, 0)[1], session.run({{"x": x}})["y"].tolist())
"""
    expected = "[True, True, True, True] <devbay.Session on cpu:0> [1.0]\n0 [1.0]\n"
    assert run_program(code) == (0, expected, "")


def test_the_interpreter_ends_while_runs_are_in_flight():
    code = f"""
import threading, time
import numpy as np
import devbay
endless, short = devbay.Session({LOOP!r}), devbay.Session({ABS!r})
def forever():
    endless.run({{"n": np.int64(2**62), "x": np.ones(4, np.float32)}})
def often():
    while True:
        short.run({{"x": np.ones(4, np.float32)}})
for work in (forever, often, often):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("ended")
"""
    assert run_program(code) == (0, "ended\n", "")


def test_a_subinterpreter_is_refused():
    code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
interpreters.run_string(other, '''
try:
    import devbay
except ImportError as error:
    print("subinterpreters" in str(error), flush=True)
''')
interpreters.destroy(other)
import devbay
print(len(devbay.devices()) > 0)
"""
    assert run_program(code) == (0, "True\nTrue\n", "")


def test_many_threads_share_a_session():
    session = devbay.Session(MNIST)
    x = np.full((1, 1, 28, 28), 0.25, np.float32)
    [expected] = session.run({"input": x}).values()
    wrong = []

    def work():
        for _ in range(20):
            [found] = session.run({"input": x}).values()
            if not np.array_equal(found, expected):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_runtimes_are_shared_and_described():
    runtime = devbay.Runtime(threads=2, options={"cpu.streams": "inline,async"}, search=False)
    assert [device.name for device in runtime.devices] == ["cpu:0", "cpu:1"] and runtime.threads == 2
    session = devbay.Session(ABS, runtime=runtime, device="cpu:1")
    assert session.device == "cpu:1"
    assert session.run({"x": np.array([-1], np.float32)})["y"].tolist() == [1]
    assert runtime.devices[0].kind == "cpu" and "cpu:0" in repr(runtime)
    assert any(device.name == "cpu:0" for device in devbay.devices())


def test_options_have_the_names_of_the_commands_flags():
    session = devbay.Session(ABS, options={"device": "cpu:0", "bucket": ("n=*8",), "plans-max": 3, "flush": False})
    assert session.device == "cpu:0"
    assert session.plan({"x": (3,)}).json()["inputs"] == [{"name": "x", "type": "f32[8]"}]
    assert session.run({"x": np.array([-1], np.float32)})["y"].tolist() == [1]
    assert devbay.Runtime(search=False, options={"cpu.streams": "async"}).devices[0].name == "cpu:0"
    for wrong, words in (
        ({"numeric": "f16"}, "there is no option `numeric`"),
        ({"numerics": "f12"}, "option numerics is"),
        ({"threads": 3}, "option `threads` is for a runtime"),
        ({"failover": 1}, "option failover is true.false, found `1`"),
    ):
        with pytest.raises(devbay.InvalidArgument, match=words):
            devbay.Session(ABS, options=wrong)
    with pytest.raises(devbay.InvalidArgument, match="the device is given twice"):
        devbay.Session(ABS, device="cpu:0", options={"device": "cpu:0"})


def test_every_kind_of_error_has_a_class():
    from devbay import _errors

    assert all(issubclass(cls, devbay.Error) for cls in _errors.BY_KIND.values())
