"""The exceptions of onnxruntime, and which of them each error of devbay becomes."""

import contextlib

from devbay import _errors

# Status codes of onnxruntime's C API, which its messages begin with.
_CODES: dict[type[Exception], str] = {}


def _status(name, code, words):
    # Programs catch them by these names, which onnxruntime's own classes have too.
    error = type(name, (Exception,), {"__module__": "onnxruntime.capi.onnxruntime_pybind11_state"})
    _CODES[error] = f"[ONNXRuntimeError] : {code} : {words} : "
    return error


Fail = _status("Fail", 1, "FAIL")
InvalidArgument = _status("InvalidArgument", 2, "INVALID_ARGUMENT")
NoSuchFile = _status("NoSuchFile", 3, "NO_SUCHFILE")
NoModel = _status("NoModel", 4, "NO_MODEL")
EngineError = _status("EngineError", 5, "ENGINE_ERROR")
RuntimeException = _status("RuntimeException", 6, "RUNTIME_EXCEPTION")
InvalidProtobuf = _status("InvalidProtobuf", 7, "INVALID_PROTOBUF")
ModelLoaded = _status("ModelLoaded", 8, "MODEL_LOADED")
NotImplemented = _status("NotImplemented", 9, "NOT_IMPLEMENTED")  # noqa: A001
InvalidGraph = _status("InvalidGraph", 10, "INVALID_GRAPH")
EPFail = _status("EPFail", 11, "EP_FAIL")

# By the kind of devbay's error. Every other kind is a `Fail`.
_BY_KIND = {
    "io": Fail,
    "invalid-argument": InvalidArgument,
    "invalid-input": InvalidArgument,
    "invalid-model": InvalidGraph,
    "unsupported-model": NotImplemented,
    "unsupported-op": NotImplemented,
    "out-of-memory": RuntimeException,
    "device-lost": EPFail,
    "plugin-failed": RuntimeException,
    "plugin-poisoned": EPFail,
    "plugin-broken": EPFail,
}


def error(kind, text):
    """Makes an exception of a class above, with the words that onnxruntime's messages begin with."""
    return kind(_CODES[kind] + text)


def unsupported(text):
    """Makes the exception for a part of onnxruntime that devbay does not have."""
    return error(NotImplemented, f"devbay.onnxruntime: {text}")


@contextlib.contextmanager
def translated():
    """Turns the errors of devbay into those of onnxruntime; the original is the cause."""
    try:
        yield
    except _errors.Error as found:
        raise error(_BY_KIND.get(found.kind, Fail), str(found)) from found


def of_run(found):
    """Makes onnxruntime's exception for an error of devbay in a run."""
    if isinstance(found, _errors.Cancelled):
        return error(Fail, "Exiting due to terminate flag being set to true.")
    # In a run, onnxruntime reports a fault of a node as a failed run, not as an invalid graph.
    kind = _BY_KIND.get(found.kind, Fail)
    return error(Fail if kind is InvalidGraph else kind, str(found))
