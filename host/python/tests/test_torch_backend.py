"""devbay under `torch.compile`, beside PyTorch itself.

It needs the packages torch and onnxscript, which are large, so that the repository's test command skips it. docs/python.md says how
to run it.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tomllib
import warnings

import pytest

import devbay

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs onnxscript")

import devbay.torch_backend  # noqa: E402

STRICT = {"strict": True, "device": "cpu:0"}


@pytest.fixture(autouse=True)
def forget():
    """Graphs of one test are not those of another."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    # A graph that falls back fails the test, unless it expects that.
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PyTorch runs a part")
        yield


def compiled(model, options=STRICT, **keywords):
    return torch.compile(model, backend="devbay", options=options, **keywords)


def check(model, *inputs, run=None, tolerance=1e-5):
    """Compares a compiled model with the model, and returns its results."""
    run = compiled(model) if run is None else run
    with torch.no_grad():
        found, expected = run(*inputs), model(*inputs)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return found


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x).softmax(-1)


class Conv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        return self.head(x.mean((2, 3)))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.project = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 16)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.project(self.norm(x)).view(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, 16))


class Broken(torch.nn.Module):
    """A graph break, and a branch by the data: three graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        if x.sum() > 0:
            return self.second(x)
        return self.second(-x) * 2


@pytest.mark.parametrize(
    ("model", "shape"),
    [(Mlp, (3, 8)), (Conv, (2, 3, 8, 8)), (Attention, (2, 6, 16)), (Broken, (2, 4))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_modules_compute_what_pytorch_computes(model, shape):
    check(model().eval(), torch.randn(shape))


def test_one_session_takes_all_batches_and_lengths():
    model = Attention().eval()
    counter = torch._dynamo.testing.CompileCounterWithBackend("devbay")
    run = torch.compile(model, backend=counter, dynamic=True)
    check(model, torch.randn(2, 6, 16), run=run)
    n_graphs = counter.frame_count
    for shape in ((3, 6, 16), (5, 11, 16)):
        check(model, torch.randn(shape), run=run)
    assert counter.frame_count == n_graphs


def test_an_extent_becomes_open_when_it_first_differs():
    model = Mlp().eval()
    run = compiled(model)
    for batch in (2, 3, 7, 1):
        check(model, torch.randn(batch, 8), run=run)


def test_extents_are_numbers_of_the_graph_too():
    def scaled(x):
        return x.reshape(-1) * x.shape[0], x.shape[0] + 1

    run = compiled(scaled, dynamic=True)
    for n in (2, 5):
        x = torch.randn(n, 3)
        found, number = run(x)
        torch.testing.assert_close(found, x.reshape(-1) * n)
        assert number == n + 1


def test_inputs_are_changed_in_place_as_the_program_says():
    def accumulate(x, y):
        x.add_(y)
        y[0] = 7
        return x * 2

    x, y = torch.ones(3), torch.arange(3.0)
    found = compiled(accumulate)(x, y)
    assert found.tolist() == [2, 4, 6] and x.tolist() == [1, 2, 3] and y.tolist() == [7, 1, 2]


def test_results_may_be_views_of_inputs():
    x = torch.arange(6.0).reshape(2, 3)
    view, product = compiled(lambda x: (x.T, (x * 2).T))(x)
    assert view.data_ptr() == x.data_ptr() and product.stride() == (1, 3)
    torch.testing.assert_close(product, (x * 2).T)


def test_a_changed_weight_is_seen():
    model = Mlp().eval()
    run = compiled(model)
    x = torch.randn(3, 8)
    first = check(model, x, run=run)
    for _ in range(2):
        with torch.no_grad():
            model.layers[0].weight.add_(0.5)
        assert not torch.equal(check(model, x, run=run), first)
    model.load_state_dict(Mlp().state_dict())
    check(model, x, run=run)
    check(model, x, run=compiled(model, {**STRICT, "freeze": False}))


def test_training_has_pytorchs_gradients():
    losses = []
    for compile in (lambda model: model, compiled):
        torch.manual_seed(1)
        model = Conv().train()
        run, optimizer = compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 3, 8, 8)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        losses.append((loss.detach(), state))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


def test_element_types():
    check(lambda x: (x > 0, x.to(torch.int64) * 3, x.double()), torch.randn(5))
    check(lambda x: x * 2 + 1, torch.randn(5, dtype=torch.bfloat16), tolerance=1e-2)
    check(lambda x: x * 2 + 1, torch.randn(5, dtype=torch.float16), tolerance=1e-2)
    check(lambda x: x.sum(), torch.randn(5))


def test_results_have_memory_of_their_own():
    run = compiled(lambda x: (x + 1, torch.ones(2) * 3))
    x = torch.zeros(2)
    first, constant = run(x)
    first.add_(5)
    constant.add_(5)
    again, constant = run(x)
    assert first.tolist() == [6, 6] and again.tolist() == [1, 1] and constant.tolist() == [3, 3]


def decompose(x):
    return torch.linalg.svdvals(x)


def fall_out(x):
    return torch.nn.functional.dropout(x, 0.5)


def test_a_graph_that_devbay_cannot_run_stays_with_pytorch():
    x = torch.randn(4, 4)
    with pytest.warns(RuntimeWarning, match="PyTorch runs a part of the model in devbay's place: PyTorch cannot export"):
        found = compiled(decompose, {"device": "cpu:0"})(x)
    torch.testing.assert_close(found, decompose(x))
    torch._dynamo.reset()
    with pytest.raises(devbay.UnsupportedModel, match="PyTorch cannot export it to ONNX"):
        compiled(decompose)(x)


def test_random_numbers_stay_with_pytorch():
    x, outcomes = torch.ones(64), []
    with pytest.warns(RuntimeWarning, match="takes random numbers, which are PyTorch's own"):
        for run in (fall_out, compiled(fall_out, {"device": "cpu:0"})):
            torch.manual_seed(3)
            outcomes.append(run(x))
    assert torch.equal(*outcomes)


def test_options_are_those_of_sessions():
    check(Mlp().eval(), torch.randn(3, 8), run=compiled(Mlp().eval(), {**STRICT, "no-pass": ["all"]}), tolerance=1)
    for options, kind in (({"nothing": 1}, devbay.InvalidArgument), ({"device": "none:7"}, devbay.NotFound)):
        with pytest.raises(kind):
            compiled(Mlp().eval(), options)(torch.randn(3, 8))
        torch._dynamo.reset()


def test_threads_share_a_compiled_model():
    model = Mlp().eval()
    run = compiled(model)
    inputs = [torch.randn(3, 8) for _ in range(16)]
    with torch.no_grad(), concurrent.futures.ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(torch.no_grad()(run), inputs), strict=True):
            torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_the_name_is_known_without_an_import(tmp_path):
    # Metadata with the entry point of pyproject.toml, as pip installs it.
    project = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    [(name, place)] = project["entry-points"]["torch_dynamo_backends"].items()
    about = tmp_path / "devbay-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: devbay\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {place}\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program = "import torch; print(torch.compile(lambda x: x + 1, backend='devbay', options={'strict': True})(torch.ones(2)))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert shown.stdout.strip() == "tensor([2., 2.])", shown.stderr
