from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep

from devbay import Session

class DevbayBackendRep(BackendRep):
    session: Session
    def __init__(self, session: Session) -> None: ...
    def run(self, inputs: Sequence[Any] | Mapping[str, Any] | Any, **kwargs: Any) -> tuple[Any, ...]: ...

class DevbayBackend(Backend):
    @classmethod
    def is_compatible(cls, model: ModelProto | bytes | str, device: str = "CPU", **kwargs: Any) -> bool: ...
    @classmethod
    def prepare(cls, model: ModelProto | bytes | str, device: str = "CPU", **kwargs: Any) -> DevbayBackendRep: ...
    @classmethod
    def run_model(
        cls, model: ModelProto | bytes | str, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]: ...
    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]: ...
    @classmethod
    def supports_device(cls, device: str) -> bool: ...

is_compatible = DevbayBackend.is_compatible
prepare = DevbayBackend.prepare
run_model = DevbayBackend.run_model
run = DevbayBackend.run_model
run_node = DevbayBackend.run_node
supports_device = DevbayBackend.supports_device
