"""Runs a user's script in the place of the module that was started with `python -m`."""

from __future__ import annotations

import os
import sys
from typing import Any

_SCRIPT = "_HOROACC_SCRIPT"


def take_over(module: dict[str, Any]) -> None:
    """Runs the script that the command line names as if Python had been given it.

    A process that multiprocessing spawned inherits the script's path from the one before. The
    variables of the main module become the script's; what tells multiprocessing which module to
    import in its children stays. SystemExit if there is no script.
    """
    if module["__name__"] == "__main__":
        if len(sys.argv) < 2:
            sys.exit(f"usage: python -m {module['__spec__'].name} script.py [arguments]")
        del sys.argv[0]
        os.environ[_SCRIPT] = os.path.abspath(sys.argv[0])
        sys.path[0] = os.path.dirname(os.environ[_SCRIPT])
    else:
        sys.argv[0] = os.environ[_SCRIPT]
    path = sys.argv[0]
    try:
        with open(path, "rb") as source:
            code = compile(source.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        sys.exit(f"cannot open '{path}': {error.strerror}")
    kept = {name: value for name, value in module.items() if name.startswith("__")}
    module.clear()
    module.update(kept | {"__file__": path, "__doc__": None})
    exec(code, module)
