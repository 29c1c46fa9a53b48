"""Many sessions and many runs, flat in memory and references: `python host/python/tests/soak.py [FRACTION]`.

It takes a minute, so the test command does not run it. FRACTION, 1 by default, scales the numbers. The last line is
`flat`, or the exit code is 1.
"""

import gc
import resource
import sys
import time

import numpy as np
from test_devbay import ABS, MNIST, program

import devbay

# Growth that allocators may keep between rounds, in bytes a session and a run. A leak of one object is larger.
SESSION_BYTES = 64
RUN_BYTES = 2


def resident():
    """Returns the bytes of memory that the process has in use now."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measure(what, n, per_item, work):
    """Does the work in rounds, after a round to warm up, and compares memory before and after."""
    rounds = 10
    for _ in range(max(1, n // rounds)):
        work()
    before, begin = resident(), time.monotonic()
    for _ in range(n):
        work()
    seconds, grown = time.monotonic() - begin, resident() - before
    is_flat = grown <= max(n * per_item, 1 << 20)
    print(f"{n} {what}: {seconds:.1f} s, memory {grown / n:+.3f} bytes each{'' if is_flat else ', which is too much'}")
    return is_flat


def main(fraction):
    """Runs all parts, and returns whether memory and reference counts were flat."""
    x = np.full(16, -1, np.float32)
    image = np.full((1, 1, 28, 28), 0.5, np.float32)
    absolute = devbay.Session(ABS)
    names = iter(range(1 << 62))

    def own_session():
        # A model of its own each time, so that nothing is shared.
        body = f"  %y{next(names)}: f32[n] = Abs@13(%x)"
        result = body.split(":")[0].strip()
        devbay.Session(program(body, result=result)).run({"x": x})

    def shared_session():
        devbay.Session(MNIST).run({"input": image})

    def counts():
        gc.collect()
        return [sys.getrefcount(thing) for thing in (x, image, None, np.float32, devbay.Session)]

    before = counts()
    flat = [
        measure("sessions of models in memory", int(10_000 * fraction), SESSION_BYTES, own_session),
        measure("sessions of a file", int(2_000 * fraction), SESSION_BYTES, shared_session),
        measure("runs", int(1_000_000 * fraction), RUN_BYTES, lambda: absolute.run({"x": x})),
        measure("runs on the device", int(100_000 * fraction), RUN_BYTES, lambda: absolute.run_on_device({"x": x})),
        measure("ops", int(100_000 * fraction), RUN_BYTES, lambda: devbay.op("Abs", x)),
        measure("refused runs", int(100_000 * fraction), RUN_BYTES, lambda: refused(absolute)),
    ]
    grown = [after - first for first, after in zip(before, counts(), strict=True)]
    print("reference counts:", grown)
    return all(flat) and max(grown) < 100


def refused(session):
    try:
        session.run({"x": np.array([None])})
    except devbay.InvalidInput:
        return
    raise AssertionError("an array of objects was taken")


if __name__ == "__main__":
    if not main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        sys.exit(1)
    print("flat")
