"""Puts the finder in place, in this process and in those that it starts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from horoacc import cache
from horoacc.dropin.finder import HorovodFinder

STARTUP = Path(__file__).with_name("startup")


def install_as_horovod() -> None:
    """Makes `import horovod` give HoroACC, here and in processes that this one starts.

    `horovod.torch` is then the very module `horoacc.torch`, and the other modules of Horovod hold
    the same objects as HoroACC's. An installed Horovod is hidden. PYTHONPATH in `os.environ` gets a
    folder more, for child processes. A second call does nothing.

    Raises:
        ImportError: Another `horovod` has been imported already.
    """
    if not any(isinstance(finder, HorovodFinder) for finder in sys.meta_path):
        there = sys.modules.get("horovod")
        if there is not None:
            raise ImportError(
                "another horovod has been imported already, from "
                f"{getattr(there, '__file__', 'an unknown place')}: "
                "call horoacc.install_as_horovod() before anything imports horovod",
                name="horovod",
            )
        sys.meta_path.insert(0, HorovodFinder())
    for_children(os.environ)


def installed() -> bool:
    """Says whether `import horovod` gives HoroACC in this process.

    Returns:
        True if so.
    """
    # By its name: child processes first get a smaller finder, until they import horovod.
    return any(type(finder).__name__ in ("HorovodFinder", "HorovodStartup")
               for finder in sys.meta_path)  # fmt: skip


def for_children(environ: MutableMapping[str, str]) -> None:
    """Makes `import horovod` give HoroACC in processes that get these variables.

    Python runs the `sitecustomize` that it finds first; the folder has one, which runs the one
    that it hides. PATH gets a folder with a command `horovodrun`.

    Args:
        environ: The variables.
    """
    folder = str(STARTUP)
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ["PYTHONPATH"] = os.pathsep.join([folder, *(p for p in others if p != folder)])
    with contextlib.suppress(OSError):  # no folder to write to: there is no such command then
        commands = str(_commands(environ))
        paths = environ.get("PATH", os.defpath).split(os.pathsep)
        environ["PATH"] = os.pathsep.join([commands, *(p for p in paths if p != commands)])


def _commands(environ: Mapping[str, str]) -> Path:
    """Makes the folder of commands, one for each Python; it lies beside other kept files."""
    python = shlex.quote(sys.executable)
    text = f'#!/bin/sh\nexec {python} -m horoacc.launcher.main --as-horovod "$@"\n'
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    command = cache.folder(environ) / "as_horovod" / name / "horovodrun"
    if not command.exists():
        command.parent.mkdir(parents=True, exist_ok=True)
        made = command.with_name(f"horovodrun.{os.getpid()}")
        made.write_text(text)
        made.chmod(0o755)
        made.replace(command)  # other processes may make it, too
    return command.parent
