"""Finds plugins in installed packages, when a runtime is made.

A package offers plugins through entry points of the group `devbay.plugins`. Only metadata is read, by `importlib.metadata`:
nothing of a package is imported. The part in Rust reads the entries, finds their files and reports what is wrong with them.
"""

import re
import sys
from importlib import metadata

GROUP = "devbay.plugins"


def packages() -> list[tuple[str, str, list[str]]]:
    """Returns the packages with such entry points: name and version, the entry points, and the folders that its modules may be in."""
    names = {}
    for distribution in metadata.distributions():
        # Other packages' broken metadata is not devbay's concern.
        try:
            if GROUP in (distribution.read_text("entry_points.txt") or ""):
                name = distribution.metadata["Name"]
                names[re.sub(r"[-_.]+", "-", name).lower()] = name
        except Exception:
            continue
    found = []
    for key in sorted(names):
        # Of two copies of a package, Python takes the first.
        try:
            distribution = metadata.distribution(names[key])
            entry_points = distribution.read_text("entry_points.txt") or ""
            title = f"{names[key]} {distribution.version}"
            # The modules of an editable package are in another folder of the path.
            folders = [str(distribution.locate_file("")), *sys.path]
        except Exception:
            continue
        found.append((title, entry_points, folders))
    return found
