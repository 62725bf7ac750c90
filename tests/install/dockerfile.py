"""Carries out a Dockerfile without Docker: each stage in a root file system of its own, by chroot.

    debootstrap --variant=minbase bookworm /tmp/bookworm
    python tests/install/dockerfile.py examples/docker/cpu/Dockerfile --base /tmp/bookworm \\
        --into /tmp/stages --then 'horoaccrun -np 2 python examples/torch_digits.py'

It needs root. Every FROM that is no earlier stage gets a copy of --base, whatever image it names;
what that image has beyond it, --mount brings (a CUDA toolkit). It knows the instructions that the
Dockerfiles of this tree use, and refuses others. --arg NAME=VALUE replaces the default of an ARG.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# As Docker has them; and variables that a stage may need to reach a package index, or a cache.
MOUNTS = ("/proc", "/sys", "/dev")
KEPT = re.compile(r"PIP_|CCACHE_|CMAKE_|\w+_proxy$|SSL_CERT_FILE$", re.IGNORECASE)


@dataclass
class Stage:
    """A file system, and what holds for the next instruction."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"
    command: list[str] = field(default_factory=list)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction and its arguments, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


class Build:
    """Carries out the instructions of one file."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._arguments = dict(part.split("=", 1) for part in given.arg)
        self._stages: dict[str, Stage] = {}
        self._stage = Stage(Path())

    def run(self) -> None:
        """Raises SystemExit with the instruction that failed."""
        for word, rest in instructions(self._given.file.read_text()):
            began = time.monotonic()
            if not (carry_out := getattr(self, f"_{word.lower()}", None)):
                raise SystemExit(f"{word} is not known here")
            carry_out(rest)
            print(f"{time.monotonic() - began:6.1f} s  {word} {rest}"[:110], flush=True)
        self._inside(self._given.then or shlex.join(self._stage.command))

    def _from(self, rest: str) -> None:
        image, _, name = re.sub(r"\s+AS\s+", " AS ", rest, flags=re.IGNORECASE).partition(" AS ")
        root = self._given.into / (name or "last")
        source = self._stages[image].root if image in self._stages else self._given.base
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(root)], check=True)
        # A chroot has the host's network, but not its names.
        shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
        self._stage = Stage(root, {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
        self._stages[name or "last"] = self._stage

    def _arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self._stage.environ[name] = self._arguments.get(name, default)

    def _env(self, rest: str) -> None:
        for part in shlex.split(rest):
            name, _, value = part.partition("=")
            for known, its in self._stage.environ.items():
                value = value.replace(f"${known}", its)
            self._stage.environ[name] = value

    def _workdir(self, rest: str) -> None:
        self._stage.folder = rest
        (self._stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _user(self, rest: str) -> None:
        self._stage.user = rest

    def _cmd(self, rest: str) -> None:
        self._stage.command = json.loads(rest)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        place, ignored = ROOT, read_ignored()
        if sources[0].startswith("--from="):
            place, ignored = self._stages[sources.pop(0).partition("=")[2]].root, []
        into = self._stage.root / os.path.join(self._stage.folder, target).lstrip("/")
        for source in sources:
            found = place / source.lstrip("/")
            if found.is_file():
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, into)
                continue

            def left_out(folder: str, names: list[str]) -> set[str]:
                inside = Path(folder).relative_to(place)
                return {name for name in names if is_ignored(str(inside / name), ignored)}

            shutil.copytree(found, into, symlinks=True, ignore=left_out, dirs_exist_ok=True)

    def _run(self, rest: str) -> None:
        self._inside(rest)

    def _inside(self, command: str) -> None:
        """Runs a command in the stage, in a mount namespace of its own."""
        stage, mounts = self._stage, [*MOUNTS, *self._given.mount]
        lines = []
        for mount in mounts:
            target = stage.root / mount.lstrip("/")
            if not target.exists():
                (target if Path(mount).is_dir() else target.parent).mkdir(
                    parents=True, exist_ok=True
                )
                if Path(mount).is_file():
                    target.touch()
            place = shlex.quote(str(target))
            lines.append(f"mount --rbind {shlex.quote(mount)} {place}")
            # What a package's installation writes is to stay in the stage.
            if mount != "/dev":
                lines.append(f"mount -o remount,bind,ro {place}")
        inner = f"cd {shlex.quote(stage.folder)} && {command}"
        variables = {name: value for name, value in os.environ.items() if KEPT.match(name)}
        variables |= stage.environ | {"HOME": "/root" if stage.user == "root" else stage.folder}
        lines.append(
            shlex.join(
                [
                    "exec",
                    "chroot",
                    f"--userspec={stage.user}",
                    str(stage.root),
                    "/usr/bin/env",
                    "-i",
                ]
                + [f"{name}={value}" for name, value in variables.items()]
                + ["/bin/sh", "-c", inner]
            )
        )
        script = "set -e\nmount --make-rprivate /\n" + "\n".join(lines)
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], check=False)
        if done.returncode != 0:
            raise SystemExit(f"exit code {done.returncode} of: {command}")


def read_ignored() -> list[str]:
    """The patterns of .dockerignore."""
    return (ROOT / ".dockerignore").read_text().split()


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Whether Docker would leave this path out; `**/` stands for any folders, or none."""
    return any(
        fnmatch.fnmatchcase(path, pattern.replace("**/", prefix))
        for pattern in patterns
        for prefix in ("", "*/")
    )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--base", type=Path, required=True, help="root of the base image")
    parser.add_argument("--into", type=Path, required=True, help="folder for the stages")
    parser.add_argument(
        "--mount", action="append", default=[], help="path of this machine, read-only"
    )
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--then", default="", help="command to run at last, in place of CMD")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    Build(given).run()


if __name__ == "__main__":
    sys.exit(main())
