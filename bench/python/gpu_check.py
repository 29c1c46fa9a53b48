"""Judges and measures a plugin on the GPU of this machine: one table, and a JSON file. See docs/benchmarks.md.

Every row that there could be is there: measured, failed, or not measured with the reason. Needs Python 3's standard
library; PyTorch and JAX are measured beside devbay where they are installed. Subjects take turns, so that a machine that
slows down slows all; ratios are taken pass by pass.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx_file

MEASURED, FAILED, NOT_MEASURED = "measured", "failed", "not measured"

# Bytes that a process may grow by while 10,000 sessions come and go: a session that stays has more than a kilobyte.
GROWTH_MAX = 8 << 20

PEERS = ("torch", "torch-compile", "jax")

# What inputs of products are rounded to, and how far outputs may then be from devbay's, as a part of the largest.
NUMERICS = {"strict": 1e-3, "tf32": 1e-2, "f16": 3e-2}


class Refused(Exception):
    """Why something cannot be measured here."""


class Broken(Exception):
    """What failed."""


class Rows:
    """Rows as they come: each is printed, and kept for the file."""

    def __init__(self, wanted=None):
        self.rows, self.wanted = [], wanted

    def add(self, name, subject, status, *, required=False, reason=None, figures=None, unit=None, ratios=None, **detail):
        """`figures` are one a pass, `ratios` what part of the subject's time devbay takes, one a pass."""
        row = {"name": name, "subject": subject, "status": status, "required": required, "reason": reason, "unit": unit}
        row.update(dict.fromkeys(("median", "min", "max", "runs", "ratio")))
        if figures:
            row.update(median=statistics.median(figures), min=min(figures), max=max(figures), runs=len(figures))
        if ratios:
            row["ratio"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        row["detail"] = detail
        self.rows.append(row)
        print(self.line(row), flush=True)

    @staticmethod
    def line(row):
        text = f"{row['name']:<34} {row['subject']:<24} {row['status']:<12}"
        if row["median"] is not None:
            text += f" {row['median']:>10.4g} ({row['min']:.4g} to {row['max']:.4g}) {row['unit'] or ''}"
        if row["ratio"]:
            text += f", devbay / this {{median:.3f}} ({{min:.3f}} to {{max:.3f}})".format(**row["ratio"])
        detail = ", ".join(f"{key} {value}" for key, value in row["detail"].items() if not isinstance(value, (dict, list)))
        return " ".join(filter(None, [text, detail, row["reason"]]))

    def attempt(self, name, subject, body, required=False):
        """Calls `body`, which adds rows. If it fails, the failure is a row. Does nothing if `--rows` leaves this one out."""
        if self.wanted and not self.wanted.search(name):
            return
        try:
            body()
        except Refused as why:
            self.add(name, subject, NOT_MEASURED, reason=str(why), required=required)
        except Exception as why:
            # Also a mistake of this script's: the other rows are worth having.
            self.add(name, subject, FAILED, reason=f"{type(why).__name__}: {why}"[:500], required=required)


class Check:
    """What is checked, with what."""

    def __init__(self, arguments, folder):
        self.a, self.folder, self.rows = arguments, Path(folder), Rows(arguments.rows)
        self.device = None
        self.plugin_name = None
        self.profiles = []
        self.peers = {}

    def call(self, *words, timeout=3600, codes=(0,)):
        """The command's answer as JSON, its messages and its exit code.

        Raises Broken for another exit code, with what was said.
        """
        command = [str(self.a.devbay), *map(str, words)]
        environment = {**os.environ, "NODEVICE_SELECT": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
        if ended.returncode not in codes:
            said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
            raise Broken(f"exit code {ended.returncode}: {' '.join(said[-3:])}")
        try:
            return json.loads(ended.stdout), ended.stderr, ended.returncode
        except json.JSONDecodeError:
            raise Broken(f"no JSON: {ended.stdout[:200]}") from None

    def bench(self, model, *words):
        on = ["--plugin", self.a.plugin, "--device", self.device, "--json"]
        return self.call("bench", model, *on, *words)[0]

    def passes(self):
        return self.a.passes or (3 if self.a.quick else 7)

    # Rows, in the order of the table.

    def find_device(self):
        found, said, _ = self.call("devices", "--plugin", self.a.plugin, "--json")
        plugin = Path(self.a.plugin).name
        named = [p for p in found["plugins"] if p["library"] and Path(p["library"]).name == plugin]
        name = named[0]["name"] if named else None
        devices = [d for d in found["devices"] if d["device"].startswith(f"{name}:")]
        if not devices:
            reasons = [str(p["reason"]) for p in named if p["reason"]] or [said.strip()[-300:]]
            raise Broken(f"{plugin} has no device here: {'; '.join(reasons)}")
        self.device, self.plugin_name = devices[0]["device"], name
        self.profiles = self.call("inspect", self.a.plugin, "--json")[0].get("profiles", [])
        self.rows.add("device", "devbay", MEASURED, required=True, device=self.device, product=devices[0]["name"],
                      driver=devices[0]["driver"], kernels=devices[0]["kernels"])

    def conformance(self, profile, only):
        patterns = [word for pattern in only for word in ("--only", pattern)]
        report = self.call("conformance", self.a.plugin, "--json", "--profile", profile, *patterns, codes=(0, 3))[0]
        summary = report["summary"]
        failures = [f"{test['id']}: {test['reason']}" for test in report["tests"] if test["outcome"] == "failed"]
        status = FAILED if failures or not summary["passed"] else MEASURED
        counts = {key.replace("-", "_"): value for key, value in summary.items()}
        self.rows.add(f"conformance {profile}", "devbay", status, required=True,
                      reason="; ".join(failures)[:500] or None, part=" ".join(only) or "all", **counts)

    def models(self):
        folder = self.a.models
        cases = sorted(folder.glob("*/case*.inputs.npz")) if folder else []
        if self.a.only_model:
            cases = [case for case in cases if case.parent.name in self.a.only_model]
        if not cases:
            raise Refused(f"no model with recorded inputs in {folder}" if folder else "--models names no folder")
        for inputs in cases:
            outputs = inputs.with_name(inputs.name.replace("inputs", "outputs"))
            name = f"model {inputs.parent.name}/{inputs.name.split('.')[0]}"
            self.rows.attempt(name, "devbay", lambda: self.model(name, inputs, outputs), required=True)

    def model(self, name, inputs, outputs):
        report, said, code = self.call(
            "run", inputs.parent / "model.onnx", "--input", inputs, "--compare", outputs, "--plugin", self.a.plugin,
            "--device", self.device, "--json", "--explain", codes=(0, 3))
        flops = report["work"]["flops"]
        share = flops.get(self.device, 0) / max(sum(flops.values()), 1)
        elsewhere = [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("placed ")]
        wrong = [v["name"] for v in report["compare"] if not v["matches"]]
        self.rows.add(name, "devbay", FAILED if code else MEASURED, required=True, share_of_flops=round(share, 4),
                      reason=f"outputs differ: {', '.join(wrong)}" if wrong else None,
                      nodes_elsewhere=len(elsewhere), elsewhere=elsewhere, copies=report["work"]["copies"])

    def launches(self):
        lengths = (1, 100, 400)
        chains = [onnx_file.chain(self.folder / f"chain{n}.onnx", n, 64) for n in lengths]
        # What is counted is launches, each of which is one op.
        option, single = self.replays(), ["--no-pass", "fuse-elementwise"]
        words = lambda value: [*single, "--plugin-option", f"{option}={value}"]
        forms = [("launches", words("no")), ("replayed launches", words("yes"))] if option else [("launches", single)]
        taken = {name: {n: [] for n in lengths} for name, _ in forms}
        for _ in range(self.passes()):
            for name, words in forms:
                for n, chain in zip(lengths, chains):
                    seconds = 0.1 if self.a.quick else 0.5
                    taken[name][n].append(self.bench(chain, "--seconds", seconds, *words)["median"])
        for name, _ in forms:
            for n in lengths:
                self.rows.add(f"{name}, a run of {n}", "devbay", MEASURED, figures=[t / 1e3 for t in taken[name][n]], unit="us")
            slopes = [(long - one) / (lengths[-1] - 1) for long, one in zip(taken[name][400], taken[name][1])]
            self.rows.add(f"{name}, each one more", "devbay", MEASURED, figures=slopes, unit="ns")
        if not option:
            raise Refused(f"the plugin {self.plugin_name} has no option for replaying what was recorded")

    def replays(self):
        """The plugin's option that has it record a task once and replay it, if there is one."""
        options = self.call("inspect", self.a.plugin, "--json")[0].get("options", [])
        found = [o["key"] for o in options if re.search("replay|graph", o["key"])]
        return f"{self.plugin_name}.{found[0]}" if found else None

    def bare(self):
        program = Path(self.a.devbay).with_name("devbay-bench")
        if self.a.quick:
            raise Refused("--quick")
        if self.plugin_name != "wgpu":
            raise Refused("wgpu itself is the peer of the wgpu plugin alone")
        if not program.exists():
            raise Refused(f"{program} is not there")
        ended = subprocess.run([program, "gpu-launch", "--json", "--passes", str(self.passes())],
                               capture_output=True, text=True, timeout=1200)
        rows = [json.loads(line) for line in ended.stdout.splitlines()]
        if ended.returncode or not rows:
            raise Broken(ended.stderr.strip()[-300:])
        for row in rows:
            figures = [row["min"], row["median"], row["max"]]
            ratio = row["ratio"] and [row["ratio"][key] for key in ("min", "median", "max")]
            self.rows.add(f"gpu-launch {row['case']}", row["subject"], MEASURED, figures=figures, unit=row["unit"], ratios=ratio)

    def copies(self):
        report = self.call("conformance", self.a.plugin, "--json", "--only", "figure.copy", "--only", "figure.launch",
                           codes=(0, 3))[0]
        for test in report["tests"]:
            note = test.get("note") or ""
            found = re.search(r"([\d.]+) GB/s to the device, ([\d.]+) GB/s back, of (\d+) bytes", note)
            if found:
                for name, rate in zip(("host to device", "device to host"), found.groups()):
                    self.rows.add(name, "devbay", MEASURED, figures=[float(rate)], unit="GB/s", bytes=int(found[3]))
            elif launch := re.search(r"(\d+) ns a launch", note):
                self.rows.add("launch through the ABI", "devbay", MEASURED, figures=[float(launch[1])], unit="ns")
            else:
                self.rows.add(test["id"], "devbay", FAILED, reason=test["reason"] or f"no figure in: {note}")

    def pinned_copies(self):
        size, n = 16 << 20, 10
        peer = self.peer("torch")
        times = [[float(t) for t in peer.say("copy", size, n)] for _ in range(self.passes())]
        for name, at in (("host to device", 0), ("device to host", 1)):
            self.rows.add(name, f"{peer.name}, page-locked", MEASURED, figures=[size / t[at] for t in times], unit="GB/s", bytes=size)

    def overlap(self):
        # Copies in and out take about as long as the additions between them: what overlaps is seen.
        model = onnx_file.chain(self.folder / "overlap.onnx", 4, (1 << 16) if self.a.quick else (1 << 22))
        seconds = 0.2 if self.a.quick else 1.0
        figures = {n: [] for n in (1, 2, 4)}
        for _ in range(self.passes()):
            for n in figures:
                figures[n].append(self.bench(model, "--seconds", seconds, "--at-once", n)["median"])
        timeline = self.a.out.with_suffix(".overlap.json")
        self.bench(model, "--runs", 5, "--at-once", 2, "--profile", timeline)
        for n, times in figures.items():
            ratios = [ours / one for ours, one in zip(times, figures[1])] if n > 1 else None
            self.rows.add(f"copies and launches, {n} at once", "devbay", MEASURED, figures=[t / 1e6 for t in times],
                          unit="ms/run", timeline=str(timeline), of_one_at_once=ratios and round(statistics.median(ratios), 3))

    def sessions(self):
        model = onnx_file.chain(self.folder / "sessions.onnx", 4, 1024)
        n = 300 if self.a.quick else 10_000
        left = self.bench(model, "--runs", 1, "--sessions", n)["sessions"]
        grown = (left["resident_after_bytes"] or 0) - (left["resident_before_bytes"] or 0)
        kept = left["device_after_bytes"] - left["device_before_bytes"]
        leaks = [f"{grown} bytes of the process"] if grown > GROWTH_MAX else []
        leaks += [f"{kept} bytes of the device"] if kept else []
        self.rows.add(f"sessions, {n}", "devbay", FAILED if leaks else MEASURED, required=True,
                      figures=[left["session_ns"] / 1e3], unit="us", grown_bytes=grown, device_bytes=kept,
                      reason=f"left behind: {', '.join(leaks)}" if leaks else None)

    def speed(self):
        cases = [(f"ResNet-50, batch {n}", self.resnet50(n)) for n in (1, 8, 64)]
        bert = self.a.models and self.a.models / "bert_rxnfp/model.onnx"
        cases += [(f"BERT, {n} tokens", lambda: bert) for n in (51, 512)]
        for name, model in cases:
            for numerics in NUMERICS:
                row = name if numerics == "strict" else f"{name}, {numerics}"
                self.rows.attempt(row, "devbay", lambda: self.beside(row, model, numerics))

    def resnet50(self, batch):
        return lambda: onnx_file.resnet50(self.folder / f"resnet50-{batch}.onnx", batch)

    def beside(self, name, made, numerics):
        """One model by devbay and by the peers, in turns, with these numerics."""
        if self.a.quick:
            for peer in PEERS:
                self.rows.add(name, peer, NOT_MEASURED, reason="--quick")
            raise Refused("--quick")
        model = made()
        if not model or not model.exists():
            raise Refused(f"{model or 'its model, in the folder that --models names,'} is not there")
        inputs, outputs = self.folder / "speed.in.npz", self.folder / "speed.out.npz"
        self.make_inputs(name, inputs)
        given = ["--input", inputs, "--numerics", numerics]
        report = self.call("run", model, *given, "--plugin", self.a.plugin, "--device", self.device, "--json",
                           "--output", outputs)[0]
        flops = report["work"]["flops"]
        share = flops.get(self.device, 0) / max(sum(flops.values()), 1)
        peers = []
        for peer in self.a.peer or PEERS:
            try:
                process = self.peer(peer, numerics)
                process.load(model, inputs, outputs, NUMERICS[numerics])
                peers.append(process)
            except Refused as why:
                self.rows.add(name, peer, NOT_MEASURED, reason=str(why))
            except Broken as why:
                self.rows.add(name, peer, FAILED, reason=str(why))
        ours, theirs = [], {peer.name: [] for peer in peers}
        for _ in range(self.passes()):
            ours.append(self.bench(model, *given, "--seconds", 1.0)["median"])
            for peer in peers:
                theirs[peer.name].append(peer.time())
        self.rows.add(name, "devbay", MEASURED, figures=[t / 1e6 for t in ours], unit="ms", share_of_flops=round(share, 4))
        for peer, times in theirs.items():
            ratios = [a / b for a, b in zip(ours, times)]
            self.rows.add(name, peer, MEASURED, figures=[t / 1e6 for t in times], unit="ms", ratios=ratios)
        for peer in peers:
            peer.end()

    def make_inputs(self, name, path):
        """The inputs of a model, the same for all: an archive without NumPy."""
        n = int(re.search(r"\d+(?= tokens)|(?<=batch )\d+", name)[0])
        if name.startswith("ResNet"):
            values = onnx_file.floats(n * 3 * 224 * 224, 0.0, 1.0)
            write_npz(path, {"data": ("<f4", (n, 3, 224, 224), values)})
        else:
            tokens = [5 + (i * 7919) % 500 for i in range(n)]
            arrays = {"input_ids": tokens, "attention_mask": [1] * n, "token_type_ids": [0] * n}
            as_bytes = {key: b"".join(v.to_bytes(8, "little") for v in values) for key, values in arrays.items()}
            write_npz(path, {key: ("<i8", (1, n), values) for key, values in as_bytes.items()})

    def peer(self, name, numerics="strict"):
        """A peer that runs; where it cannot be had, why is remembered."""
        known = self.peers.get((name, numerics))
        if isinstance(known, Refused):
            raise known
        if known is None or known.process.poll() is not None:
            try:
                self.peers[name, numerics] = Peer(name, numerics, self.a.python)
            except Refused as why:
                self.peers[name, numerics] = why
                raise
        return self.peers[name, numerics]

    def run(self):
        a, rows = self.a, self.rows
        # Whatever rows are asked for, it says on which device.
        wanted, rows.wanted = rows.wanted, None
        rows.attempt("device", "devbay", self.find_device, required=True)
        rows.wanted = wanted
        if self.device is None:
            return
        base = ["load", "devices", "memory"] if a.quick else []
        kernels = ["numerics.add"] if a.quick else []
        profiles = [("base", base), ("kernels", kernels)] + [("interop", [])] * ("interop" in self.profiles)
        for profile, only in profiles:
            rows.attempt(f"conformance {profile}", "devbay", lambda: self.conformance(profile, only), required=True)
        rows.attempt("models", "devbay", self.models, required=bool(a.models))
        rows.attempt("replayed launches", "devbay", self.launches)
        rows.attempt("gpu-launch", "wgpu", self.bare)
        rows.attempt("copies", "devbay", self.copies)
        rows.attempt("copies", "torch, page-locked", self.pinned_copies)
        rows.attempt("copies and launches at once", "devbay", self.overlap)
        rows.attempt("sessions", "devbay", self.sessions, required=True)
        self.speed()


class Peer:
    """A peer's process: bench/python/gpu_peer.py."""

    def __init__(self, name, numerics, python):
        script = Path(__file__).with_name("gpu_peer.py")
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([python, script, name, numerics], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)
        try:
            self.name = " ".join(self.answer("subject"))
        except Broken:
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines()
            missing = said and said[-1].startswith("ModuleNotFoundError")
            why = f"not installed ({said[-1].split(': ', 1)[1]})" if missing else " ".join(said[-2:]) or "it ended"
            raise Refused(why) from None

    def answer(self, word):
        line = self.process.stdout.readline().split()
        if not line or line[0] != word:
            raise Broken(" ".join(line[1:]) or "it ended without an answer")
        return line[1:]

    def say(self, *words, answer="ns"):
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.answer(answer)

    def load(self, model, inputs, expected, tolerance):
        """Loads a model, and refuses one that gives other numbers than devbay."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "outputs.npz"
            self.say("load", 1, model, inputs, path, answer="loaded")
            # NumPy, which compares, is in the peer's Python.
            verdict = subprocess.run([self.process.args[0], "-c", COMPARE, path, expected, str(tolerance)], capture_output=True, text=True)
            if verdict.returncode:
                raise Broken(f"other numbers than devbay's: {(verdict.stdout + verdict.stderr).strip()[-200:]}")

    def time(self):
        """Nanoseconds of a run, of as many as fit half a second."""
        once = float(self.say("run", 1)[0])
        return float(self.say("run", max(1, int(5e8 / max(once, 1.0))))[0])

    def end(self):
        self.process.stdin.close()
        self.process.wait()


COMPARE = """
import sys, numpy as np
a, b = np.load(sys.argv[1]), np.load(sys.argv[2])
for name in b.files:
    worst, allowed = np.max(np.abs(a[name] - b[name])), float(sys.argv[3]) * np.max(np.abs(b[name])) + 1e-5
    if not worst <= allowed < np.inf:
        sys.exit(f"{name} by {worst}, allowed is {allowed}")
"""


def write_npz(path, arrays):
    """An archive of arrays: NumPy's format, version 1."""
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:
        for name, (dtype, shape, data) in arrays.items():
            head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
            head += " " * (-(len(head) + 11) % 64) + "\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data)


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu-check", description=__doc__.split("\n")[0])
    parser.add_argument("--devbay", type=Path, required=True, help="the command")
    parser.add_argument("--plugin", type=Path, required=True, help="the plugin's library; the CUDA plugin if not said")
    parser.add_argument("--models", type=Path, help="a folder of trained models (docs/models.md)")
    parser.add_argument("--only-model", action="append", help="only this model of the folder; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="the file; gpu-check.json if not said")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch or JAX; this one if not said")
    parser.add_argument("--rows", type=re.compile, help="only rows whose name has this regular expression, and `device`")
    parser.add_argument("--peer", action="append", choices=PEERS, help="only this peer for models; may be given several times")
    parser.add_argument("--passes", type=int, help="passes of a measurement; 7 if not said")
    parser.add_argument("--quick", action="store_true", help="a part of everything, in a minute: for trying this out")
    arguments = parser.parse_args()
    arguments.models = arguments.models or (Path(os.environ["DEVBAY_MODELS"]) if "DEVBAY_MODELS" in os.environ else None)
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(arguments, folder)
        check.run()
    failed = [row["name"] for row in check.rows.rows if row["required"] and row["status"] != MEASURED]
    processors = os.cpu_count()
    result = {"version": 1, "plugin": str(arguments.plugin), "device": check.device, "quick": arguments.quick, "rows_asked_for": arguments.rows.pattern if arguments.rows else None,
              "processors": processors, "seconds": round(time.time() - begin, 1), "failed": failed, "rows": check.rows.rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    counts = {status: sum(row["status"] == status for row in check.rows.rows) for status in (MEASURED, FAILED, NOT_MEASURED)}
    print(f"\n{', '.join(f'{n} {status}' for status, n in counts.items())}; written to {arguments.out}")
    if failed:
        print(f"required and not there: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
