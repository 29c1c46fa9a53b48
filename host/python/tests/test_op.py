"""Single ops, small element types, and arrays that are odd."""

import numpy as np
import pytest
from test_devbay import ABS, LOOP, program

import devbay


def test_an_op_gives_an_array_or_a_tuple():
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    assert np.array_equal(devbay.op("MatMul", a, b), a @ b)
    values, places = devbay.op("TopK", np.array([3, 1, 2], np.float32), np.array([2]), outputs=2, axis=0)
    assert values.tolist() == [3, 2] and places.tolist() == [0, 2]
    assert devbay.op("MatMul", a, b, device="cpu:0").shape == (2, 2)
    assert devbay.op("com.microsoft.QuickGelu", a, alpha=1).dtype == np.float32


def test_attributes_are_python_values():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(devbay.op("Transpose", x, perm=[1, 0]), x.T)
    assert np.array_equal(devbay.op("Transpose", x, perm=np.array([1, 0])), x.T)
    assert np.array_equal(devbay.op("Cast", x, to=7), x.astype(np.int64))
    assert np.array_equal(devbay.op("Gelu", x, approximate="none").shape, x.shape)
    assert np.allclose(devbay.op("Elu", -x, alpha=2), 2 * np.expm1(-x))
    assert devbay.op("ConstantOfShape", np.array([2]), value=np.array([7], np.int32)).tolist() == [7, 7]
    parts = devbay.op("Split", x, np.array([1, 2]), outputs=2, axis=1)
    assert [part.shape for part in parts] == [(2, 1), (2, 2)]


def test_an_absent_operand_is_none():
    x = np.array([-2, 0.5, 3], np.float32)
    assert devbay.op("Clip", x, None, np.float32(1)).tolist() == [-2, 0.5, 1]


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (devbay.UnsupportedModel, "there is no op Nothing", lambda x: devbay.op("Nothing", x)),
        (devbay.InvalidArgument, "no attribute `foo`; it has", lambda x: devbay.op("Transpose", x, foo=1)),
        (
            devbay.InvalidArgument,
            "`perm` of Transpose is a list of integers",
            lambda x: devbay.op("Transpose", x, perm="a"),
        ),
        (devbay.InvalidArgument, "`perm` of Transpose is a list", lambda x: devbay.op("Transpose", x, perm=[0.5])),
        (devbay.InvalidArgument, "`alpha` of Elu is a number", lambda x: devbay.op("Elu", x, alpha=[1])),
        (devbay.InvalidArgument, "1 to 1024 outputs", lambda x: devbay.op("Abs", x, outputs=0)),
        (devbay.NotFound, "there is no plugin nobody", lambda x: devbay.op("Abs", x, device="nobody:0")),
        (devbay.InvalidInput, "operand 0 of Abs cannot be taken", lambda x: devbay.op("Abs", np.array([object()]))),
        (devbay.Error, "MatMul", lambda x: devbay.op("MatMul", x, np.zeros((5, 5), np.float32))),
        (devbay.Error, "Abs", lambda x: devbay.op("Abs")),
    ],
)
def test_calls_that_cannot_be(error, words, call):
    with pytest.raises(error, match=words):
        call(np.zeros((2, 3), np.float32))


def test_bfloat16_goes_in_and_out():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([-1.5, 2], ml_dtypes.bfloat16)
    result = devbay.Session(program("  %y: bf16[n] = Abs@13(%x)", "%x: bf16[n]"), device="cpu:0").run({"x": x})["y"]
    assert result.dtype == x.dtype and result.tolist() == [1.5, 2] and result.flags.writeable
    assert devbay.op("Abs", x[::-1], device="cpu:0").tolist() == [2, 1.5]
    session = devbay.Session(program("  %y: bf16[n] = Identity@25(%x)", "%x: bf16[n]"), device="cpu:0")
    assert session.run({"x": [0.5, 3]})["y"].dtype == x.dtype
    tensor = session.run_on_device({"x": x})["y"]
    assert tensor.numpy().tolist() == [-1.5, 2] and not tensor.numpy().flags.writeable


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("float8_e4m3fn", "f8e4m3fn"),
        ("float8_e4m3fnuz", "f8e4m3fnuz"),
        ("float8_e5m2", "f8e5m2"),
        ("float8_e5m2fnuz", "f8e5m2fnuz"),
        ("int4", "i4"),
        ("uint4", "u4"),
        ("float4_e2m1fn", "f4e2m1"),
        ("int2", "i2"),
        ("uint2", "u2"),
    ],
)
def test_small_types_go_in_and_out(name, ours):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]]).astype(dtype)
    if ours.startswith("i"):
        x[0, 0] = -2
    session = devbay.Session(program(f"  %y: {ours}[a,b] = Identity@25(%x)", f"%x: {ours}[a,b]"), device="cpu:0")
    for given in (x, x.T, x[:0], x[:, :1]):
        result = session.run({"x": given})["y"]
        assert result.dtype == dtype and result.shape == given.shape
        assert np.array_equal(result.astype(np.float32), given.astype(np.float32))


def test_without_ml_dtypes_a_result_is_a_tensor(monkeypatch):
    import sys

    from devbay import _arrays

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    _arrays.numpy_type.cache_clear()
    try:
        result = devbay.op("Cast", np.ones(2, np.float32), to=16, device="cpu:0")
        assert isinstance(result, devbay.Tensor) and result.dtype == "bf16" and result.nbytes == 4
        assert devbay.op("Cast", result, to=1, device="cpu:0").tolist() == [1, 1]
    finally:
        _arrays.numpy_type.cache_clear()


def test_read_only_and_odd_arrays():
    session = devbay.Session(ABS)
    x = np.array([-1, 2], np.float32)
    x.flags.writeable = False
    assert session.run({"x": x})["y"].tolist() == [1, 2]
    assert session.run({"x": np.broadcast_to(np.float32(-3), (3,))})["y"].tolist() == [3] * 3
    records = np.zeros(2, [("a", "f4"), ("b", "f4")])
    assert session.run({"x": records["a"]})["y"].tolist() == [0, 0]
    for wrong in (records, np.array(["a", "b"]), np.array([1, 2], "datetime64[s]")):
        with pytest.raises(devbay.InvalidInput, match="input `x` cannot be taken"):
            session.run({"x": wrong})


def test_a_flag_ends_runs():
    import threading

    session, flag = devbay.Session(LOOP), devbay.Cancel()
    threading.Timer(0.1, flag.cancel).start()
    with pytest.raises(devbay.Cancelled):
        session.run({"n": np.int64(2**62), "x": np.ones(4, np.float32)}, cancel=flag)
    with pytest.raises(devbay.Cancelled):
        session.run({"n": np.int64(1), "x": np.ones(4, np.float32)}, cancel=flag)
