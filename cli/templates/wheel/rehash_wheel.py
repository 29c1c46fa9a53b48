"""Writes the SHA-256 of a wheel's libraries into its manifests again: `python rehash_wheel.py WHEEL...`.

`auditwheel repair` and signing change a library after its manifest was written, and devbay refuses a library that is not the
manifest's. Run this last, on the wheel that is published.
"""

import base64
import hashlib
import json
import os
import posixpath
import sys
import zipfile


def rehash(wheel):
    """Corrects a wheel's manifests and its list of files; returns the manifests with their new SHA-256."""
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: (info, archive.read(info)) for info in archive.infolist()}
    changed = {}
    for path, (info, content) in list(files.items()):
        if not path.endswith(".json"):
            continue
        try:
            manifest = json.loads(content)
        except ValueError:
            continue
        if not isinstance(manifest, dict) or "devbay_manifest" not in manifest:
            continue
        library = posixpath.normpath(posixpath.join(posixpath.dirname(path), manifest["library"]))
        if library not in files:
            sys.exit(f"{wheel}: {path} names the library {library}, which is not in the wheel")
        found = hashlib.sha256(files[library][1]).hexdigest()
        if manifest.get("sha256") != found:
            manifest["sha256"] = changed[path] = found
            files[path] = (info, (json.dumps(manifest, indent=2) + "\n").encode())
    if changed:
        [record] = [path for path in files if path.endswith(".dist-info/RECORD")]
        lines = files[record][1].decode().splitlines()
        files[record] = (files[record][0], "".join(line_of(line, changed, files) + "\n" for line in lines).encode())
        with zipfile.ZipFile(f"{wheel}.part", "w") as archive:
            for info, content in files.values():
                archive.writestr(info, content)
        os.replace(f"{wheel}.part", wheel)
    return changed


def line_of(line, changed, files):
    """Returns a line of RECORD, corrected if its file was changed: path, SHA-256 and size."""
    path = line.rsplit(",", 2)[0]
    if path not in changed:
        return line
    content = files[path][1]
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(content)}"


if __name__ == "__main__":
    for wheel in sys.argv[1:]:
        for path, sha256 in rehash(wheel).items():
            print(f"{wheel}: {path} has sha256 {sha256}")
