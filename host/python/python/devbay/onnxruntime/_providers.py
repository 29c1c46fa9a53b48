"""Providers: which of devbay's devices each name of onnxruntime stands for."""

import collections.abc
import os
import threading
import warnings

import devbay
from devbay.onnxruntime._errors import Fail, InvalidArgument, error, translated

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
# The device that devbay chooses, or the one that its option `device` names. `plugins` are paths of libraries to load.
DEVBAY = "DevbayExecutionProvider"

# Runtimes by number of threads, whether plugins are searched, and further plugins: sessions share threads.
_RUNTIMES: dict[tuple[int, bool, str], devbay.Runtime] = {}
_MADE = threading.Lock()


def _has_cuda():
    return any(device.name.startswith("cuda:") for device in devbay.devices())


def get_available_providers():
    """Returns the providers that sessions may use, in order of precedence."""
    with translated():
        return [DEVBAY, CUDA, CPU] if _has_cuda() else [DEVBAY, CPU]


def get_all_providers():
    """Returns all providers that this module knows, in order of precedence."""
    return [DEVBAY, CUDA, CPU]


def get_device():
    """Returns `GPU` if there is a CUDA device, else `CPU`."""
    with translated():
        return "GPU" if _has_cuda() else "CPU"


def chosen(providers, provider_options):
    """Returns the providers in use, and the options of each. Unknown ones are warned about and skipped."""
    available = get_available_providers()
    if not providers:
        return available, {name: {} for name in available}
    for what, values in (("providers", providers), ("provider_options", provider_options)):
        if values is not None and (not isinstance(values, collections.abc.Sequence) or isinstance(values, str)):
            raise ValueError(f"'{what}' should be a sequence.")
    if provider_options is not None:
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(name, str) for name in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(options, dict) for options in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        providers = list(zip(providers, provider_options, strict=True))
    names = {}
    for provider in providers:
        match provider:
            case str(name):
                options = {}
            case (str(name), dict(options)):
                pass
            case _:
                raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        if name not in available:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available)}'",
                stacklevel=5,
            )
        elif name in names:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
        else:
            names[name] = {str(key): str(value) for key, value in options.items()}
    # Nodes that the first one does not run are the processor's in any case.
    names.setdefault(CPU, {})
    return list(names), names


def place(providers, options, n_threads):
    """Returns the device of a session, and its runtime; no runtime for the one that all sessions share."""
    first = providers[0]
    if first == CPU:
        device = "cpu:0"
    elif first == CUDA:
        number = options[CUDA].get("device_id", "0")
        if not number.isdecimal():
            raise error(InvalidArgument, f"device_id is the number of a CUDA device, found {number!r}")
        device = f"cuda:{number}"
    else:
        for name in options[DEVBAY]:
            if name not in ("device", "plugins"):
                raise error(InvalidArgument, f"{DEVBAY} has the options device and plugins, found {name!r}")
        device = options[DEVBAY].get("device", "auto")
    needs_search = first != CPU
    plugins = options.get(DEVBAY, {}).get("plugins", "")
    if needs_search and not n_threads and not plugins:
        return device, None
    key = (n_threads, needs_search, plugins)
    with _MADE, translated():
        if key not in _RUNTIMES:
            paths = [path for path in plugins.split(os.pathsep) if path]
            _RUNTIMES[key] = devbay.Runtime(plugins=paths, threads=n_threads, search=needs_search)
        runtime = _RUNTIMES[key]
    if not runtime.devices:
        raise error(Fail, "there is no device")
    return device, runtime
