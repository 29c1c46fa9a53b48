"""Plans, explanations, profiles and lists of devices: text for people, data for programs, tables for notebooks."""

import html
import json
import os
from pathlib import Path


def _duration(ns):
    """Returns a time in a unit that fits it."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def _text_table(head, rows):
    """Returns lines whose columns are aligned: numbers to the right."""
    table = [[str(cell) for cell in row] for row in (head, *rows)]
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_number = [len(column) > 1 and all(cell[:1].isdigit() for cell in column[1:]) for column in columns]
    lines = []
    for row in table:
        cells = zip(row, widths, is_number, strict=True)
        line = "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)
        lines.append(line.rstrip())
    return "\n".join(lines)


def _html_row(kind, cells):
    return "<tr>" + "".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"


def _html_table(head, rows, caption=""):
    """Returns a table as HTML. Texts come from models, and are escaped."""
    caption = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "".join(_html_row("td", cells) for cells in rows)
    return f"<table>{caption}<thead>{_html_row('th', head)}</thead><tbody>{body}</tbody></table>"


class Devices(list):
    """A list of devices that prints as a table."""

    _HEAD = ("device", "kind", "product", "bytes in use")

    def _rows(self):
        return [(device.name, device.kind, device.product, device.bytes_in_use) for device in self]

    def __str__(self):
        return _text_table(self._HEAD, self._rows())

    def _repr_html_(self):
        return _html_table(self._HEAD, self._rows())


class Plan:
    """How a session runs a model: its tasks, their estimated costs, and memory."""

    def __init__(self, text, data):
        self._text = text
        self._data = data

    def __str__(self):
        return self._text

    def __repr__(self):
        plan = self.json()
        return f"<devbay plan on {plan['device']}: {plan['launches']} launches, {_duration(plan['work_ns'])}>"

    def json(self):
        """Returns the plan as data, as `devbay inspect --plan --json` prints it."""
        return json.loads(self._data)

    def _repr_html_(self):
        plan = self.json()
        inputs = ", ".join(f"{port['name']}: {port['type']}" for port in plan["inputs"])
        caption = f"plan of {plan['name']!r} on {plan['device']} for {inputs}; {_duration(plan['work_ns'])} of work"
        head = ("stage", "task", "device", "node", "kernel", "estimate", "share")
        return _html_table(head, list(_steps(plan)), caption)


def _steps(plan):
    """Yields a row for each step of a plan, and for each stage that has none."""
    for i, stage in enumerate(plan["stages"]):
        match stage["kind"]:
            case "section":
                for j, task in enumerate(stage["tasks"]):
                    for step in task["steps"]:
                        device = step.get("device", stage["device"])
                        share = f"{100 * step['share']:.1f} %" if step["share"] is not None else ""
                        yield i, j, device, step["node"], step["kernel"], _duration(step["cost_ns"]), share
            case "compiled":
                nodes = f"{len(stage['nodes'])} nodes, compiled"
                yield i, "", stage["device"], nodes, "", _duration(stage["work_ns"]), ""
            case kind:
                yield i, "", plan["device"], stage["node"], kind, "", ""


class Explanation:
    """Why a session runs where it does, and what passes changed in the model."""

    def __init__(self, devices, passes, inputs):
        self._devices = devices
        self._passes = passes
        self._inputs = inputs

    def json(self):
        """Returns the explanation as data."""
        return {
            "devices": [{"device": name, "chosen": chosen, "reason": why} for name, chosen, why in self._devices],
            "inputs": [{"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in self._inputs],
            "passes": [
                {"pass": name, "changes": changes, "nodes_before": before, "nodes_after": after}
                for name, changes, before, after in self._passes
            ],
        }

    def _tables(self):
        devices = [("*" if chosen else "", name, why) for name, chosen, why in self._devices]
        passes = [row for row in self._passes if row[1]]
        return [
            (("", "device", "reason"), devices),
            (("pass", "changes", "nodes before", "nodes after"), passes),
        ]

    def __str__(self):
        return "\n\n".join(_text_table(head, rows) for head, rows in self._tables() if rows)

    __repr__ = __str__

    def _repr_html_(self):
        return "".join(_html_table(head, rows) for head, rows in self._tables() if rows)


class Profile:
    """Where the time of runs went."""

    _HEAD = ("op", "nodes", "launches", "time", "of kernels")

    def __init__(self, data, timeline):
        self._data = data
        self._timeline = timeline

    def json(self):
        """Returns the sums as data, as `devbay run --profile --json` prints them."""
        return json.loads(self._data)

    def write(self, path):
        """Writes the timeline for ui.perfetto.dev or chrome://tracing. An existing file is replaced atomically."""
        path = Path(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            beside.write_bytes(self._timeline)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def _rows(self):
        for op in self.json()["ops"]:
            yield op["op"], op["nodes"], op["launches"], _duration(op["total_ns"]), f"{100 * op['share']:.1f} %"

    def _summary(self):
        sums = self.json()
        runs = f"{sums['runs']} run{'' if sums['runs'] == 1 else 's'}, {_duration(sums['wall_ns'])}"
        outside = sums["not_in_kernels"]
        return runs if outside is None else f"{runs}, {100 * outside:.1f} % of it not in kernels"

    def __str__(self):
        return f"{_text_table(self._HEAD, list(self._rows()))}\n\n{self._summary()}"

    __repr__ = __str__

    def _repr_html_(self):
        return _html_table(self._HEAD, list(self._rows()), self._summary())


def session_html(session):
    """Returns a session as HTML: its plan if all extents are known, else its inputs and outputs."""
    ports = [("input", port) for port in session.inputs] + [("output", port) for port in session.outputs]
    is_open = any(
        port.shape is None or not all(isinstance(extent, int) for extent in port.shape) for port in session.inputs
    )
    if not is_open:
        return session.plan()._repr_html_()
    rows = []
    for kind, port in ports:
        extents = (
            "" if port.shape is None else ", ".join("?" if extent is None else str(extent) for extent in port.shape)
        )
        rows.append((kind, port.name, port.dtype or "", f"[{extents}]" if port.shape is not None else "any"))
    return _html_table(("", "name", "type", "shape"), rows, f"session on {session.device}")
