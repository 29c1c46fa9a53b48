"""Plans, explanations, profiles and tables."""

import json

import numpy as np
import pytest
from test_devbay import ABS, MNIST, program

import devbay

CHAIN = program("  %t: f32[4] = Abs@13(%x)\n  %y: f32[4] = Softmax@13(%t)", "%x: f32[4]")


def test_a_plan_is_text_data_and_a_table():
    session = devbay.Session(CHAIN, device="cpu:0")
    plan = session.plan()
    data = plan.json()
    assert data["device"] == "cpu:0" and data["inputs"] == [{"name": "x", "type": "f32[4]"}]
    assert str(plan).startswith('plan of "p" on cpu:0') and "Softmax" in str(plan)
    assert "2 launches" in repr(plan) or f"{data['launches']} launches" in repr(plan)
    html = session._repr_html_()
    assert html == plan._repr_html_() and "Softmax" in html


def test_open_extents_are_given():
    session = devbay.Session(ABS, device="cpu:0")
    assert session.plan({"x": (3,)}).json()["inputs"] == [{"name": "x", "type": "f32[3]"}]
    assert session.plan({"x": np.zeros(5, np.float32)}).json()["inputs"] == [{"name": "x", "type": "f32[5]"}]
    with pytest.raises(devbay.InvalidInput, match=r"input `x` f32\[n\] has open extents"):
        session.plan()
    with pytest.raises(devbay.InvalidInput, match="no input `w`"):
        session.plan({"w": (3,)})
    assert "f32" in session._repr_html_() and "[n]" in session._repr_html_()


def test_names_of_models_are_escaped_in_tables():
    session = devbay.Session(program("  %y: f32[n] = Abs@13(%x)").replace(b'"p"', b'"<b>"'), device="cpu:0")
    assert "<b>" not in session.plan({"x": (2,)})._repr_html_()


def test_an_explanation_names_devices_and_passes():
    explanation = devbay.Session(MNIST).explain({"input": (1, 1, 28, 28)})
    data = explanation.json()
    [chosen] = [device for device in data["devices"] if device["chosen"]]
    assert chosen["reason"] and chosen["device"] in str(explanation)
    assert {"pass", "changes", "nodes_before", "nodes_after"} == set(data["passes"][0])
    assert json.loads(json.dumps(data)) == data and "<table>" in explanation._repr_html_()


def test_a_profile_counts_runs_and_ops(tmp_path):
    session = devbay.Session(CHAIN, device="cpu:0", profile=True)
    for _ in range(3):
        session.run({"x": np.ones(4, np.float32)})
    profile = session.profile()
    data = profile.json()
    assert data["runs"] == 3 and sum(op["launches"] for op in data["ops"]) >= 3
    assert "3 runs" in str(profile) and "<table>" in profile._repr_html_()
    profile.write(tmp_path / "times.json")
    assert json.loads((tmp_path / "times.json").read_text())["traceEvents"]
    assert [path.name for path in tmp_path.iterdir()] == ["times.json"]
    assert session.profile().json()["runs"] == 0, "taken"
    with pytest.raises(devbay.InvalidArgument, match="profile=True"):
        devbay.Session(CHAIN).profile()


def test_devices_are_a_table():
    devices = devbay.devices()
    assert isinstance(devices, list) and "cpu:0" in str(devices)
    assert "<td>cpu:0</td>" in devices._repr_html_()
    runtime = devbay.Runtime(search=False)
    assert "<td>cpu:0</td>" in runtime._repr_html_() and [d.name for d in runtime.devices] == ["cpu:0"]
