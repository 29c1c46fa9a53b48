"""Exceptions and classes that programs take from onnxruntime's compiled module."""

from devbay.onnxruntime._absent import absent as _absent
from devbay.onnxruntime._errors import (
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoaded,
    NoModel,
    NoSuchFile,
    NotImplemented,  # noqa: A004
    RuntimeException,
)
from devbay.onnxruntime._options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
    RunOptions,
    SessionOptions,
)
from devbay.onnxruntime._providers import get_all_providers, get_available_providers, get_device
from devbay.onnxruntime._session import InferenceSession, SessionIOBinding
from devbay.onnxruntime._values import ModelMetadata, NodeArg, OrtDevice, OrtValue

__all__ = [
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "ModelMetadata",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
]


def __getattr__(name):
    raise _absent(name)
