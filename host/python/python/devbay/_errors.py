"""The exceptions of devbay: one class for each kind of cause, all of them `Error`s."""


class Error(Exception):
    """An error of devbay.

    `kind` names it exactly. `plugin`, `device`, `node` and `file` say where it happened, or are empty.
    """

    kind: str = ""
    plugin: str = ""
    device: str = ""
    node: str = ""
    file: str = ""


class InvalidArgument(Error, ValueError):
    """An option or argument that cannot be."""


class InvalidInput(Error, ValueError):
    """An input that is missing or unknown, or of another type than the model takes."""


class InvalidModel(Error, ValueError):
    """A model that is damaged or breaks the rules of its format."""


class UnsupportedModel(Error, NotImplementedError):
    """A model, op or type that devbay or the device does not support."""


class NotFound(Error, LookupError):
    """A plugin, device or file that is not there, or was refused."""


class FileError(Error, OSError):
    """A file that cannot be read or written."""


class NoMemory(Error, MemoryError):
    """Too little memory on the host or a device."""


class DeadlineExceeded(Error, TimeoutError):
    """A run that did not end before its deadline."""


class Cancelled(Error):
    """A run that was cancelled."""


class DeviceError(Error, RuntimeError):
    """A device that failed or was lost."""


class PluginError(Error, RuntimeError):
    """A plugin that failed or broke a rule."""


# By kind, as the engine names it. Every other kind is an `Error`.
BY_KIND = {
    "io": FileError,
    "invalid-argument": InvalidArgument,
    "invalid-input": InvalidInput,
    "invalid-model": InvalidModel,
    "unsupported-model": UnsupportedModel,
    "unsupported-op": UnsupportedModel,
    "not-found": NotFound,
    "refused": NotFound,
    "unavailable": NotFound,
    "out-of-memory": NoMemory,
    "deadline-exceeded": DeadlineExceeded,
    "cancelled": Cancelled,
    "device-lost": DeviceError,
    "plugin-failed": PluginError,
    "plugin-poisoned": PluginError,
    "plugin-broken": PluginError,
}
