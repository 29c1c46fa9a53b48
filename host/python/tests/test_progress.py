"""Progress of making a session, and Ctrl-C meanwhile."""

import io
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import devbay
from devbay import _progress


def chain(n):
    """A model of n nodes, in text form, with known extents: its plan is made with the session."""
    nodes = "".join(f"    %v{i}: f32[4] = Softsign@22(%v{i - 1})\n" for i in range(1, n + 1))
    return f'devbay-program 1\nprogram "chain"(%v0: f32[4]) {{\n{nodes}    return %v{n}\n}}\n'.encode()


def test_a_function_is_told_the_phases_and_their_steps():
    steps = []
    session = devbay.Session(chain(50), device="cpu:0", progress=lambda *step: steps.append(step))
    phases = list(dict.fromkeys(phase for phase, _, _ in steps))
    assert phases == ["optimise", "specialise", "place", "prepare"]
    assert ("specialise", 0, 50) in steps and ("specialise", 50, 50) in steps
    assert all(0 <= done <= total for _, done, total in steps)
    assert session.run({"v0": np.ones(4, np.float32)})["v50"].shape == (4,)


def test_reading_onnx_is_a_phase():
    onnx = pytest.importorskip("onnx")
    from onnx import parser

    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> agraph (float[4] x) => (float[4] y) { y = Neg(x) }')
    steps = []
    devbay.Session(model.SerializeToString(), progress=lambda *step: steps.append(step))
    assert steps[0] == ("read", 0, 1) and onnx is not None


def test_an_exception_of_the_function_ends_the_load_and_reaches_the_caller():
    class Enough(Exception):
        pass

    calls = []

    def stop(phase, done, total):
        calls.append(phase)
        if phase == "place":
            raise Enough

    with pytest.raises(Enough):
        devbay.Session(chain(50), device="cpu:0", progress=stop)
    # Nothing is told after that, and the next load is whole.
    assert calls.count("place") == 1 and calls[-1] == "place"
    devbay.Session(chain(50), device="cpu:0")


def test_what_is_no_function_is_refused():
    for wrong in (1, "yes", []):
        with pytest.raises(devbay.InvalidArgument, match="progress is True, False, or a function"):
            devbay.Session(chain(2), progress=wrong)
    devbay.Session(chain(2), progress=False)
    devbay.Session(chain(2), progress=None)


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
import devbay
from test_progress import chain

model = chain(200_000)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    devbay.Session(model, device="cpu:0", options={{"limit": ["nodes=1000000"]}})
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 20)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent to a process of its own")
def test_ctrl_c_ends_a_load():
    import pathlib

    program = INTERRUPTED.format(tests=str(pathlib.Path(__file__).parent))
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert found.stdout.strip() == "interrupted True", found.stderr[-2000:]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_drawn_and_taken_away(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(_progress, "_tqdm", lambda: None)
    bar = _progress.Bar(patience=0)
    bar("place", 1, 4)
    time.sleep(0.5)
    bar.close()
    assert "devbay: place 25%, 0 s" in screen.getvalue()
    # The last line is blank.
    assert screen.getvalue().endswith("\r") and not screen.getvalue().rsplit("\r", 2)[1].strip()
    assert not [thread for thread in threading.enumerate() if thread.name == "devbay-progress"]


def test_a_fast_load_and_a_file_show_nothing(monkeypatch):
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", screen)
        devbay.Session(chain(2), progress=True)
        assert screen.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    devbay.Session(chain(2), progress=True)
