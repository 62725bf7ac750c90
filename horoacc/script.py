"""Runs a user's program in the place of the module that was started with `python -m`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from types import CodeType
from typing import Any

# The program of this process or of its parent, as JSON: what the command line named ("train.py", or
# "-m package.module").
_PROGRAM = "_HOROACC_PROGRAM"


def take_over(module: dict[str, Any], again: bool = False) -> None:
    """Runs a program as if Python had been given it: a script, or a module behind `-m`.

    The variables of the main module become the program's, but for its `__spec__`, which names
    `horoacc.restarted`: multiprocessing imports the module that `__spec__` names in the processes
    that it spawns, and libraries start themselves again as `python -m` with that name.

    Args:
        module: The variables of the main module.
        again: Whether the program is the one that the parent process ran; otherwise the command
            line names it.

    Raises:
        SystemExit: There is no program.
    """
    code, variables = _find(module, again)
    kept = {name: value for name, value in module.items() if name.startswith("__")}
    module.clear()
    spec = importlib.util.find_spec("horoacc.restarted")
    module.update(kept | {"__doc__": None, "__spec__": spec} | variables)
    exec(code, module)


def _find(module: dict[str, Any], again: bool) -> tuple[CodeType, dict[str, Any]]:
    """Gives the program's code and variables; sets `sys.argv` and `sys.path` for it."""
    if again:
        if _PROGRAM not in os.environ:
            sys.exit(f"{module['__spec__'].name} is for programs that start themselves again")
        words = json.loads(os.environ[_PROGRAM])
        shown = words[0]
    else:
        # Launchers that start a module (DeepSpeed's, torch.distributed.launch) put this in front.
        first = 2 if sys.argv[1:2] and re.match("--local[-_]rank=", sys.argv[1]) else 1
        count = 2 if sys.argv[first : first + 1] == ["-m"] else 1
        words = sys.argv[first : first + count]
        del sys.argv[first : first + count]
        if len(words) < count:
            sys.exit(f"usage: python -m {module['__spec__'].name} script.py|-m module [arguments]")
        shown = words[0]
        if count == 1:
            words = [os.path.abspath(shown)]
        os.environ[_PROGRAM] = json.dumps(words)
    if len(words) > 1:
        return _module(words[1])
    if module["__name__"] == "__main__":
        sys.path[0] = os.path.dirname(words[0])
    return _script(words[0], shown)


def _script(path: str, shown: str) -> tuple[CodeType, dict[str, Any]]:
    sys.argv[0] = shown
    try:
        with open(path, "rb") as source:
            code = compile(source.read(), shown, "exec", dont_inherit=True)
    except OSError as error:
        sys.exit(f"cannot open '{shown}': {error.strerror}")
    return code, {"__file__": shown}


def _module(name: str) -> tuple[CodeType, dict[str, Any]]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError:
        spec = None
    code = spec.loader.get_code(spec.name) if spec is not None and spec.loader else None  # type: ignore[attr-defined]
    if spec is None or code is None:
        sys.exit(f"there is no module '{name}' to run")
    sys.argv[0] = str(spec.origin)
    return code, {"__file__": spec.origin, "__package__": spec.parent}
