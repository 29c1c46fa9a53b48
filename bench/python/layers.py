"""The layers of a model beside those of onnxruntime and OpenVINO, as one table.

    layers.py MODEL.onnx INPUTS.npz [--threads N] [--runs N] [--devbay PROGRAM | --roofline FILE.json]

A row is a launch of devbay, from `devbay bench MODEL.onnx --input INPUTS.npz --roofline --json`. Beside it are the
layers of the others that compute the same nodes of the model, each with the median of its time over the runs: from
onnxruntime's profile, and from OpenVINO's `get_profiling_info`, whose types of execution name oneDNN's primitives.

Runtimes fuse nodes differently. The nodes between a launch's result and the results of other launches are the launch's.
A layer is beside the launch that has the last of the layer's nodes. Layers that name no node of the model, such as
changes of layout, come after the launches.
"""

import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import numpy as np
import onnx

# Endings that runtimes add to a node's name.
ENDINGS = re.compile(r"(_nchwc|/WithoutBiases|/\w+Fusion/?|_token_\d+)$")
# Their time is that of the layers in them, which are listed too.
CONTROL = ("If", "Loop", "Scan")
WARMUP = 3
CELL_MAX = 44

Layer = collections.namedtuple("Layer", "names kind us")


def nodes_of(graph):
    """The nodes of a graph, each after those of its own graphs."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)
        if node.op_type != "Constant":
            yield node


class Nodes:
    """The nodes of the model, those of branches and bodies too, by number: a node comes after what it reads."""

    def __init__(self, model):
        self.nodes = list(nodes_of(onnx.load(model, load_external_data=False).graph))
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.named = {node.name: i for i, node in enumerate(self.nodes) if node.name}

    def find(self, name):
        """The node of that name, or with that result; None for a name that is a runtime's own."""
        for table in (self.named, self.maker):
            if name in table:
                return table[name]
        shorter = ENDINGS.sub("", name)
        return self.find(shorter) if shorter != name else None

    def find_all(self, names):
        return [i for i in map(self.find, names) if i is not None]

    def owners(self, launches):
        """For each node, the launch that computes it."""
        ends = {}
        for at, launch in enumerate(launches):
            found = self.find_all([launch["output"]] if launch["output"] in self.maker else [launch["name"]])
            ends |= {i: at for i in found}
        owner = {}
        for end, at in ends.items():
            waiting = [end]
            while waiting:
                i = waiting.pop()
                if i in owner or (i in ends and ends[i] != at):
                    continue
                owner[i] = at
                waiting += [self.maker[name] for name in self.nodes[i].input if name in self.maker]
        return owner


def roofline(arguments):
    """devbay's launches."""
    if arguments.roofline:
        return json.loads(pathlib.Path(arguments.roofline).read_text())
    command = [arguments.devbay, "bench", arguments.model, "--input", arguments.inputs, "--roofline", "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def of_onnxruntime(arguments, inputs):
    """onnxruntime's layers, in the order of a run."""
    import onnxruntime_peer as peer

    with tempfile.TemporaryDirectory() as folder:
        prefix = str(pathlib.Path(folder) / "profile")
        session = peer.open_session(arguments.model, arguments.threads, profile=prefix)
        loaded = peer.Loaded(session, inputs)
        for _ in range(WARMUP + arguments.runs):
            loaded.run()
        events = json.loads(pathlib.Path(session.end_profiling()).read_text())
    ending = "_kernel_time"
    # The first run is of `Loaded`. A run begins where its event of the session says; events are sorted by their ends.
    begins = sorted(event["ts"] for event in events if event["name"] == "model_run")[1 + WARMUP :]
    times = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        if event.get("cat") != "Node" or not event["name"].endswith(ending) or event["ts"] < begins[0]:
            continue
        name, op = event["name"].removesuffix(ending), event["args"]["op_name"]
        if op not in CONTROL:
            # Fused nodes may have no name.
            times.setdefault((name, op, event["args"]["node_index"]), []).append(event["dur"])
    # A layer in a loop has several times in a run.
    return [
        Layer([name], op, statistics.median(us) * len(us) / arguments.runs) for (name, op, _), us in times.items()
    ]


def of_openvino(arguments, inputs):
    """OpenVINO's layers, in the order of a run."""
    import openvino_peer as peer

    loaded = peer.Loaded(arguments.model, arguments.threads, inputs, {"PERF_COUNT": True})
    fused = {}
    for node in loaded.compiled.get_runtime_model().get_ops():
        about = node.get_rt_info()
        if "originalLayersNames" in about:
            fused[node.get_friendly_name()] = about["originalLayersNames"].value.split(",")
    times = {}
    for run in range(WARMUP + arguments.runs):
        loaded.run()
        for layer in loaded.request.get_profiling_info() if run >= WARMUP else []:
            if layer.status == layer.Status.EXECUTED:
                key = layer.node_name, f"{layer.node_type} {layer.exec_type}"
                times.setdefault(key, []).append(layer.real_time.total_seconds() * 1e6)
    return [
        Layer([name, *fused.get(name, [])], kind, statistics.median(us)) for (name, kind), us in times.items()
    ]


def beside(layers, nodes, owner):
    """The layers of each launch, and those of none under None."""
    found = collections.defaultdict(list)
    for layer in layers:
        # The last of its nodes that a launch computes: constants and what devbay folds have none.
        last = max((i for i in nodes.find_all(layer.names) if i in owner), default=None)
        found[owner.get(last)].append(layer)
    return found


def microseconds(us):
    return f"{us:.2f}" if us < 10 else f"{us:.1f}"


def cells(layers):
    """Time and kinds of several layers, as two cells."""
    if not layers:
        return ["-", "-"]
    kinds = collections.Counter(layer.kind for layer in layers)
    text = ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in kinds.items())
    return [microseconds(sum(layer.us for layer in layers)), text]


def short(cell, keeps_end):
    """A cell cut to the length that a column may have."""
    if len(cell) <= CELL_MAX:
        return cell
    return "…" + cell[1 - CELL_MAX :] if keeps_end else cell[: CELL_MAX - 1] + "…"


def table(head, rows):
    """Prints aligned columns; those whose head begins with `>` are right-aligned. Long names keep their ends, and long
    lists their beginnings."""
    right = [title.startswith(">") for title in head]
    rows = [[short(cell, i == 0) for i, cell in enumerate(row)] for row in rows]
    rows.insert(0, [title.lstrip(">") for title in head])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        aligned = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right)]
        print("  ".join(aligned).rstrip())


def rows(launches, joined):
    """A row for each launch, then one for each kind of the layers that are beside none."""
    for at, launch in enumerate(launches):
        rate = launch["gflop_per_s"]
        own = [launch["name"] or launch["output"], launch["op"], microseconds(in_run(launch))]
        own.append("-" if rate is None else f"{rate:.1f}")
        yield own + [cell for found in joined for cell in cells(found[at])]
    rest = [collections.defaultdict(list) for _ in joined]
    for found, kinds in zip(joined, rest):
        for layer in found[None]:
            kinds[layer.kind.split(" ")[0]].append(layer)
    for kind in dict.fromkeys(kind for kinds in rest for kind in kinds):
        yield [f"beside none: {kind}", "", "-", "-"] + [cell for kinds in rest for cell in cells(kinds[kind])]


def total(launches, others):
    """The row of sums."""
    row = ["all", f"{len(launches)} launches", microseconds(sum(map(in_run, launches))), ""]
    for layers in others:
        row += [microseconds(sum(layer.us for layer in layers)), f"{len(layers)} layers"] if layers else ["-", "-"]
    return row


def in_run(launch):
    """Microseconds of a launch in a run, all repetitions together."""
    return launch["measured_ns"] * launch["per_run"] / 1e3


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("inputs")
    parser.add_argument("--threads", type=int, default=1, help="threads of the others; devbay's times are of one")
    parser.add_argument("--runs", type=int, default=50, help="measured runs of the others")
    program = pathlib.Path(__file__).resolve().parents[2] / "target/release/devbay"
    parser.add_argument("--devbay", default=str(program), help="the program devbay")
    parser.add_argument("--roofline", help="a file with its output, instead of running it")
    return parser.parse_args()


def main():
    arguments = parse()
    with np.load(arguments.inputs) as arrays:
        inputs = dict(arrays)
    launches = roofline(arguments)["launches"]
    nodes = Nodes(arguments.model)
    owner = nodes.owners(launches)
    others, missing = [], []
    for name, measure in (("onnxruntime", of_onnxruntime), ("OpenVINO", of_openvino)):
        try:
            others.append(measure(arguments, inputs))
        except Exception as error:
            missing.append(f"{name} is missing: {' '.join(str(error).split())}")
            others.append([])
    joined = [beside(layers, nodes, owner) for layers in others]
    head = ["NODE", "OP", ">DEVBAY US", ">GFLOP/S", ">ORT US", "ORT OPS", ">OPENVINO US", "OPENVINO TYPES"]
    table(head, [*rows(launches, joined), total(launches, others)])
    for text in missing:
        print(text)
    if arguments.threads > 1:
        print(f"devbay's times are of one thread, the others' of {arguments.threads}")


if __name__ == "__main__":
    main()
