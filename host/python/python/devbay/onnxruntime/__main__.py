"""`python -m devbay.onnxruntime program.py [ARGUMENTS]` or `-m module [ARGUMENTS]`: runs a program on devbay.

The program is unchanged: its `import onnxruntime` finds devbay.onnxruntime.
"""

import runpy
import sys
from pathlib import Path

from devbay import onnxruntime

_USAGE = "usage: python -m devbay.onnxruntime (program.py | -m module) [ARGUMENTS]"


def main(arguments):
    """Runs the program that the arguments name."""
    match arguments:
        case ["-h" | "--help", *_]:
            print(f"{_USAGE}\n\n{__doc__.strip()}")
            return
        case ["-m", module, *rest]:
            onnxruntime.install()
            # As with `python -m`: modules are found from the current folder, and the program sees its own arguments.
            sys.path[0] = str(Path.cwd())
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *rest] if not program.startswith("-"):
            if not Path(program).exists():
                sys.exit(f"devbay.onnxruntime: there is no program {program}")
            onnxruntime.install()
            # As with `python program.py`: modules beside the program are found.
            sys.path[0] = str(Path(program).resolve().parent)
            sys.argv = [program, *rest]
            runpy.run_path(program, run_name="__main__")
        case _:
            sys.exit(_USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
