"""Many threads at once, on objects that they share, make and drop. A free-threaded Python runs them truly side by side."""

import sys
import sysconfig
import threading

import numpy as np
import pytest

import devbay

N_THREADS = 8

ADD = b"""devbay-program 1
program "add"(%x: f32[n], %y: f32[n]) {
    %two = const f32[] [2]
    %z: f32[n] = Mul@14(%x, %two)
    %s: f32[n] = Add@14(%z, %y)
    return %s
}
"""


def side_by_side(work, n_rounds):
    """Calls `work` with the number of a thread and of a round, in all threads at once, and raises what one of them raised."""
    raised, start = [], threading.Barrier(N_THREADS)

    def loop(thread):
        try:
            start.wait()
            for i in range(n_rounds):
                work(thread, i)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=loop, args=(thread,)) for thread in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a free-threaded Python")
def test_the_module_leaves_the_lock_off():
    assert not sys._is_gil_enabled()


def test_a_session_is_shared():
    session = devbay.Session(ADD, device="cpu:0")

    def work(thread, i):
        # Lengths come and go, so that plans are made and evicted meanwhile.
        x = np.full(1 + (thread * 7 + i) % 24, thread, np.float32)
        found = session.run({"x": x, "y": x * i}) if i % 2 else session.run_on_device({"x": x, "y": x * i})
        assert np.array_equal(np.asarray(found["s"] if i % 2 else found["s"].numpy()), x * 2 + x * i)
        if i % 16 == 0:
            assert session.plan({"x": x.shape, "y": x.shape}).json() and session.explain({"x": x, "y": x})
            assert [port.name for port in session.inputs] == ["x", "y"] and "Session" in repr(session)

    side_by_side(work, 100)


def test_objects_are_made_and_dropped():
    shared = {"session": devbay.Session(ADD, device="cpu:0"), "tensor": None, "runtime": devbay.Runtime(search=False)}
    x = np.arange(4, dtype=np.float32)

    def work(thread, i):
        # Replaces what others are using: the last one to use it drops it.
        if thread % 4 == 0:
            shared["session"] = devbay.Session(ADD, device="cpu:0", profile=i % 8 == 0)
        elif thread % 4 == 1:
            shared["tensor"] = shared["session"].run_on_device({"x": x, "y": x})["s"]
        elif thread % 4 == 2:
            tensor = shared["tensor"]
            if tensor is not None:
                array = np.from_dlpack(tensor)
                del tensor
                assert array.tolist() == (x * 3).tolist()
                found = shared["session"].run({"x": shared["tensor"], "y": devbay.Tensor.from_dlpack(x)})
                assert found["s"].tolist() == (x * 7).tolist()
        else:
            runtime = shared["runtime"]
            if i % 4 == 0:
                shared["runtime"] = devbay.Runtime(search=False, threads=2)
            assert runtime.devices[0].name == "cpu:0" and runtime.devices[0].bytes_in_use >= 0
            assert devbay.Session(ADD, runtime=runtime).run({"x": x, "y": x})["s"].tolist() == (x * 3).tolist()

    side_by_side(work, 40)


def test_a_flag_is_set_while_others_run():
    session, flags = devbay.Session(ADD, device="cpu:0"), [devbay.Cancel() for _ in range(40)]
    x = np.ones(4, np.float32)

    def work(thread, i):
        if thread == 0:
            flags[i].cancel()
            return
        try:
            assert session.run({"x": x, "y": x}, cancel=flags[i])["s"].tolist() == [3] * 4
        except devbay.Cancelled:
            pass

    side_by_side(work, len(flags))


def test_errors_and_single_ops():
    def work(thread, i):
        x = np.full(3, i, np.float32)
        assert devbay.op("Add", x, x).tolist() == (x * 2).tolist()
        with pytest.raises(devbay.InvalidArgument, match="no attribute `nothing`"):
            devbay.op("Softmax", x, nothing=thread)
        with pytest.raises(devbay.InvalidModel):
            devbay.Session(b"no model")
        assert len(devbay.devices()) > 0

    side_by_side(work, 50)


def test_progress_is_told_to_the_thread_that_loads():
    def work(thread, _):
        told = []
        devbay.Session(ADD.replace(b"[n]", b"[%d]" % (thread + 2)), progress=lambda *step: told.append((threading.get_ident(), step)))
        assert told and {ident for ident, _ in told} == {threading.get_ident()}

    side_by_side(work, 10)
