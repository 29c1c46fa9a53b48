from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Self, final

from numpy import ndarray

from devbay._reports import Devices, Explanation, Plan, Profile

__version__: str

def devices() -> Devices: ...
def op(name: str, /, *inputs: Any, device: str = "auto", outputs: int = 1, **attributes: Any) -> Any: ...

@final
class Cancel:
    def __new__(cls) -> Self: ...
    def cancel(self) -> None: ...

@final
class Device:
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def product(self) -> str: ...
    @property
    def bytes_in_use(self) -> int: ...

@final
class Runtime:
    def __new__(
        cls,
        *,
        plugins: Sequence[str | PathLike[str]] = ...,
        threads: int = 0,
        options: Mapping[str, Any] | None = None,
        search: bool = True,
        packages: bool = True,
    ) -> Self: ...
    @property
    def devices(self) -> Devices: ...
    @property
    def refused(self) -> list[tuple[str, str]]: ...
    @property
    def threads(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Port:
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str | None, ...] | None: ...

@final
class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str | None: ...
    @property
    def nbytes(self) -> int: ...
    def numpy(self) -> ndarray: ...
    @staticmethod
    def from_dlpack(object: Any) -> Tensor: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Session:
    def __new__(
        cls,
        model: str | PathLike[str] | bytes,
        *,
        device: str = "auto",
        plugins: Sequence[str | PathLike[str]] = ...,
        runtime: Runtime | None = None,
        profile: bool = False,
        options: Mapping[str, Any] | None = None,
        overridable: bool = False,
        progress: bool | Callable[[str, int, int], object] | None = None,
        seed: int | None = None,
    ) -> Self: ...
    @property
    def inputs(self) -> list[Port]: ...
    @property
    def outputs(self) -> list[Port]: ...
    @property
    def device(self) -> str: ...
    @property
    def defaults(self) -> dict[str, Tensor]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    def plan(self, inputs: Mapping[str, Any] | None = None) -> Plan: ...
    def explain(self, inputs: Mapping[str, Any] | None = None) -> Explanation: ...
    def profile(self) -> Profile: ...
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]: ...
    async def run_async(
        self,
        inputs: Mapping[str, Any],
        *,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]: ...
    def run_on_device(
        self,
        inputs: Mapping[str, Any],
        *,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        seed: int | None = None,
    ) -> dict[str, Tensor]: ...
    def _repr_html_(self) -> str: ...
