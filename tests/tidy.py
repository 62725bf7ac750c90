"""Runs clang-tidy on every source of the core that is not known to be clean.

A file is known to be clean if clang-tidy found nothing in just these bytes before: the file, what
it includes of this project, its compiler flags, the checks and the versions of the tools. Digests
of what was clean lie in the build folder; `make clean` forgets them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "csrc"
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@functools.cache
def content(path: Path) -> bytes:
    """The bytes of a file, read once."""
    return path.read_bytes()


def closure(source: Path) -> list[Path]:
    """A source and all headers of the project that it includes, directly or not."""
    found: set[Path] = set()
    left = [source]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        for name in INCLUDE.findall(content(path)):
            for folder in (CORE, path.parent):
                header = folder / name.decode()
                if header.exists():
                    left.append(header.resolve())
    return sorted(found)


def digest(source: Path, command: str, common: bytes) -> str:
    """What has to be the same for an earlier result to hold."""
    total = hashlib.sha256(common)
    total.update(command.encode())
    for path in closure(source):
        total.update(f"\0{path.relative_to(ROOT)}\0".encode())
        total.update(content(path))
    return total.hexdigest()


def main() -> int:
    """Checks; 0 if everything is clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="the folder of compile_commands.json")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    commands: dict[Path, str] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        # The MPI plug-in is compiled against two MPIs; clang-tidy takes the first, too. It does not
        # know nvcc's flags; what a .cu file does lies in headers that the host's tests compile.
        if path.is_relative_to(CORE) and path.suffix != ".cu":
            commands.setdefault(path, entry["command"])
    missing = sorted(set(CORE.rglob("*.cc")) - set(commands))
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = version + content(ROOT / ".clang-tidy") + content(ROOT / "requirements-dev.txt")
    clean = build / "tidy"
    clean.mkdir(exist_ok=True)
    wanted = {path: digest(path, command, common) for path, command in commands.items()}
    old = [path for path in wanted if not (clean / wanted[path]).exists()]

    def check(path: Path) -> bool:
        done = subprocess.run(
            ["clang-tidy", "-quiet", "-p", str(build), str(path)], capture_output=True, text=True
        )
        if done.returncode == 0:
            (clean / wanted[path]).touch()
        else:
            print(done.stdout, done.stderr, sep="", end="", flush=True)
        return done.returncode == 0

    print(f"clang-tidy: {len(old)} of {len(wanted)} sources", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(check, old))
    for known in clean.iterdir():
        if known.name not in wanted.values():
            known.unlink()
    for path in missing:
        print(f"{path.relative_to(ROOT)} is in no build: it was not checked")
    return 0 if all(results) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
