"""Runs ONNX models on whatever accelerator is plugged in.

>>> import devbay
>>> session = devbay.Session("model.onnx")
>>> outputs = session.run({"x": array})
"""

from devbay._devbay import Device, Port, Runtime, Session, Tensor, __version__, devices
from devbay._errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceError,
    Error,
    FileError,
    InvalidArgument,
    InvalidInput,
    InvalidModel,
    NoMemory,
    NotFound,
    PluginError,
    UnsupportedModel,
)

__all__ = [
    "Cancelled",
    "DeadlineExceeded",
    "Device",
    "DeviceError",
    "Error",
    "FileError",
    "InvalidArgument",
    "InvalidInput",
    "InvalidModel",
    "NoMemory",
    "NotFound",
    "PluginError",
    "Port",
    "Runtime",
    "Session",
    "Tensor",
    "UnsupportedModel",
    "__version__",
    "devices",
]
