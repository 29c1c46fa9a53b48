"""A bar on standard error while a session is made: `devbay.Session(model, progress=True)`.

The package tqdm draws it if that is installed, otherwise it is one line of text. A thread of its own draws, so that the time
goes on while a compiler says nothing.
"""

import sys
import threading
import time

# A load that takes less seconds has no bar.
_PATIENCE = 1.0
_INTERVAL = 0.1


def bar():
    """Returns a bar; None if standard error is no terminal and this is no notebook."""
    return Bar() if _is_seen() else None


def _is_seen():
    if "ipykernel" in sys.modules:
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        # There is no standard error, or it is closed.
        return False


class Bar:
    """Takes the progress of a load from any thread. Nothing is drawn before it has taken a while, or after `close`."""

    def __init__(self, patience=_PATIENCE):
        self._at = ("load", 0, 0)
        self._ended = threading.Event()
        self._drawer = threading.Thread(target=self._draw, args=(patience,), name="devbay-progress", daemon=True)
        self._drawer.start()

    def __call__(self, phase, done, total):
        self._at = (phase, done, total)

    def close(self):
        """Ends the bar, and takes it from the screen."""
        self._ended.set()
        self._drawer.join()

    def _draw(self, patience):
        begin = time.monotonic()
        if self._ended.wait(patience):
            return
        drawing = _tqdm() or _Line()
        while not self._ended.wait(_INTERVAL):
            phase, done, total = self._at
            drawing.show(phase, done, total, time.monotonic() - begin)
        drawing.close()


class _Line:
    """A line of text, which each drawing overwrites."""

    def __init__(self):
        self._width = 0

    def show(self, phase, done, total, seconds):
        percent = f" {100 * done // total}%" if total else ""
        self._write(f"devbay: {phase}{percent}, {seconds:.0f} s")

    def close(self):
        self._write("")
        sys.stderr.write("\r")
        sys.stderr.flush()

    def _write(self, text):
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


def _tqdm():
    """Returns a bar of tqdm's; None if that is not installed."""
    try:
        import tqdm.auto
    except ImportError:
        return None
    return _Tqdm(tqdm.auto.tqdm(leave=False, file=sys.stderr, bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}"))


class _Tqdm:
    def __init__(self, bar):
        self._bar = bar

    def show(self, phase, done, total, seconds):
        self._bar.total = total or None
        self._bar.n = done
        self._bar.set_description(f"devbay {phase}")

    def close(self):
        self._bar.close()
