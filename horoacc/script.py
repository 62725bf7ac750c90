"""Runs a user's program in the place of the module that was started with `python -m`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from types import CodeType
from typing import Any

# The program of this process's parent, as JSON: what its command line named ("train.py", or
# "-m package.module"), and the arguments behind that.
_PROGRAM = "_HOROACC_PROGRAM"


def take_over(module: dict[str, Any]) -> None:
    """Runs the program that the command line names as if Python had been given it.

    It is a script, or a module behind `-m`. A process that multiprocessing spawned inherits it from
    the one before, and so does one that the program starts as `python -m` with the name of this
    module and the program's own arguments: libraries start themselves again so. The variables of
    the main module become the program's; its `__spec__` stays, which tells both what to start.
    SystemExit if there is no program.
    """
    code, variables = _find(module)
    kept = {name: value for name, value in module.items() if name.startswith("__")}
    module.clear()
    module.update(kept | {"__doc__": None} | variables)
    exec(code, module)


def _find(module: dict[str, Any]) -> tuple[CodeType, dict[str, Any]]:
    """Gives the program's code and variables; sets `sys.argv` and `sys.path` for it."""
    inherited = json.loads(os.environ.get(_PROGRAM, "null"))
    if module["__name__"] != "__main__" or (inherited and _are_own(sys.argv[1:], inherited[1])):
        words = inherited[0]
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
        os.environ[_PROGRAM] = json.dumps([words, sys.argv[1:]])
    if len(words) > 1:
        return _module(words[1])
    if module["__name__"] == "__main__":
        sys.path[0] = os.path.dirname(words[0])
    return _script(words[0], shown)


def _are_own(arguments: list[str], given: list[str]) -> bool:
    """Whether arguments are those that a program was given, and maybe more."""
    return arguments[: len(given)] == given and bool(given or not arguments)


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
