"""An empty environment on a machine without a compiler, to try there what was installed.

It is a program's and a test's: `wheels.py` installs into it from the package index, the tests link
what their own environment has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "g++ gcc cc c++ cpp clang clang++ nvcc cmake ninja make ld as".split()  # noqa: SIM905
# The same with a target before them, or a version behind.
COMPILER = re.compile(
    rf"(.*-)?({'|'.join(map(re.escape, ABSENT))}|c[89]9|ccache)([-.][\w.]+)?", re.ASCII
)
REQUIREMENT = re.compile(r"\s*([\w.-]+)")


def run(*command: str, cwd: Path, **more: str) -> str:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("HOROACC_", "HOROVOD_"))}
    done = subprocess.run(
        command, cwd=cwd, env=kept | more, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Bare:
    """A virtual environment, and a PATH with every program of this machine but compilers."""

    def __init__(self, python: str, folder: Path) -> None:
        self.venv, self.tools = folder / "venv", folder / "tools"
        subprocess.run([python, "-m", "venv", "--without-pip", str(self.venv)], check=True)
        self.python = self.venv / "bin" / "python"
        self.tools.mkdir()
        for place in os.defpath.split(os.pathsep):
            for program in Path(place).iterdir():
                link = self.tools / program.name
                if not COMPILER.fullmatch(program.name) and not link.is_symlink():
                    link.symlink_to(program)
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not re.match(r"HORO(ACC|VOD)_|PYTHON|VIRTUAL_ENV|CXX$|CC$|CUDA|OMPI_|LD_", name)
        }
        self.environ["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{self.tools}"
        # What another run has compiled must not answer.
        self.environ["HOROACC_CACHE_DIR"] = str(folder / "cache")
        there = [name for name in ABSENT if shutil.which(name, path=self.environ["PATH"])]
        assert not there and shutil.which("sh", path=self.environ["PATH"]), there

    def install(self, pip: str, *what: str) -> None:
        """Installs as a user would, by the pip of another interpreter."""
        command = [pip, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*command, "--python", str(self.python), "install", "--only-binary=:all:", *what],
            check=True,
        )

    def link(self, *distributions: str) -> None:
        """Has distributions of this process's environment, with what they need."""
        (site,) = (self.venv / "lib").glob("python*/site-packages")
        for found in needed(distributions):
            for file in found.files or []:
                inside = file.parts[0] != ".."
                top = Path(file.parts[0]) if inside else Path(file)
                target = Path(os.path.normpath(site / top))
                # A script in bin/ would be of the other environment.
                wanted = inside or "bin" not in file.parts or is_program(Path(file.locate()))
                if wanted and not target.exists() and file.parts[0] != "__pycache__":
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(os.path.normpath(str(found.locate_file(top))))

    def run(self, *command: str, seconds: float = 300) -> str:
        """What a command prints; AssertionError with its output if it fails."""
        done = subprocess.run(
            command, env=self.environ, cwd=self.venv, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def horoaccrun(self, *flags: str, seconds: float = 300) -> str:
        """What `horoaccrun` prints."""
        return self.run(str(self.venv / "bin" / "horoaccrun"), *flags, seconds=seconds)


def is_program(path: Path) -> bool:
    """Whether it is an executable for this machine, and no script."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(distributions: tuple[str, ...]) -> Iterator[metadata.Distribution]:
    """These distributions and what they require, without extras."""
    waiting, seen = list(distributions), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another platform; an import tells if it is missed
        yield found
        for line in found.requires or []:
            if "extra ==" not in line and (match := REQUIREMENT.match(line)):
                waiting.append(match[1])
