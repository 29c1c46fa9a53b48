"""The module in which onnxruntime defines its session; type annotations name it."""

from devbay.onnxruntime._session import InferenceSession, IOBinding
from devbay.onnxruntime._values import OrtDevice, OrtValue, copy_tensors

# The class that both inference and training extend in onnxruntime.
Session = InferenceSession

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "Session", "copy_tensors"]
