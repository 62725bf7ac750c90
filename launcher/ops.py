"""Builds framework ops once, before any rank starts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from horoacc import ops_build

FRAMEWORKS = ("torch", "tensorflow")
_BUILD_SECONDS = 600
_BUILD = "import horoacc.{0}._ops as ops; ops.build_if_needed()"


def prepare(command: list[str], environ: Mapping[str, str]) -> str:
    """Builds the missing ops of installed frameworks, if the ranks run a Python program.

    Those of TensorFlow only for a script that names it: building them takes longer than most jobs
    take to start.

    Returns:
        A notice if it failed (ranks that need the ops raise the reason), or "".
    """
    program = Path(command[0]).name
    if not program.startswith("python") and not program.endswith(".py"):
        return ""
    told = prepare_one("torch", environ)
    if _names_tensorflow(command):
        told = " ".join(filter(None, (told, prepare_one("tensorflow", environ))))
    return told


def _names_tensorflow(command: list[str]) -> bool:
    scripts = [Path(part) for part in command if part.endswith(".py")]
    try:
        text = scripts[0].read_text(errors="replace") if scripts else ""
    except OSError:
        return False
    return "tensorflow" in text or "keras" in text


def prepare_one(framework: str, environ: Mapping[str, str]) -> str:
    """Builds the ops of one of `FRAMEWORKS`, as `prepare` does."""
    if importlib.util.find_spec(framework) is None:
        return ""
    try:
        if ops_build.is_built(framework, ops_build.sources_of(f"{framework}_ops")):
            return ""
        # A process of its own: a framework would double this one's size and slow its start.
        done = subprocess.run(
            [sys.executable, "-c", _BUILD.format(framework)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (ops_build.OpsBuildError, subprocess.TimeoutExpired, OSError) as error:
        return f"the {framework} ops could not be built: {error}"
    return "" if done.returncode == 0 else f"the {framework} ops could not be built; see above"
