"""Builds framework ops before any rank starts, so that sixteen ranks don't wait for one of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from horoacc import ops_build

_BUILD_SECONDS = 600
_BUILD = "import horoacc.torch._ops as ops; ops.build_if_needed()"


def prepare(command: list[str], environ: Mapping[str, str]) -> str:
    """Builds the torch ops if torch is here, they are not built, and a Python program is started.

    Args:
        command: What the ranks will run.
        environ: The variables that they get.

    Returns:
        What to tell the user if it failed (the ranks will say why if they need the ops), or "".
    """
    program = Path(command[0]).name
    if not program.startswith("python") and not program.endswith(".py"):
        return ""
    if importlib.util.find_spec("torch") is None:
        return ""
    try:
        if ops_build.is_built("torch", ops_build.sources_of("torch_ops")):
            return ""
        # A process of its own: torch would double this one's size and slow its start.
        done = subprocess.run(
            [sys.executable, "-c", _BUILD],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (ops_build.OpsBuildError, subprocess.TimeoutExpired, OSError) as error:
        return f"the torch ops could not be built: {error}"
    return "" if done.returncode == 0 else "the torch ops could not be built; see above"
