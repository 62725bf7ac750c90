"""Runs the Python tests in lanes, side by side: python tests/lanes.py [pytest's arguments].

Tests with real jobs wait for processes, time-outs and each other most of the time; so five pytests
keep two cores busy. What the last lane says is shown at once, what the others say when all have
ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from horoacc.launcher import ops

TESTS = Path(__file__).resolve().parent
# By folder or module; everything else is in the last lane. Each takes about as long as the others.
LANES = (
    ("launcher", "faults/test_strangers.py", "ranks/test_adasum.py"),
    (
        *("examples", "install", "lab", "torch_api", "torch_distributed"),
        *("ranks/test_arena.py", "ranks/test_small_shm.py"),
    ),
    (
        *("fake_gpu", "faults", "launcher/test_horovod_scripts.py"),
        *("ranks/test_compile.py", "ranks/test_hosts.py"),
    ),
    (
        *("keras_api", "tensorflow_api"),
        *(f"ranks/{path.name}" for path in sorted((TESTS / "ranks").glob("test_tensorflow_*.py"))),
    ),
)
NO_TESTS = 5  # pytest's exit code where none is chosen, as by -k


def without(number: int) -> list[str]:
    """The arguments that keep a lane off what the others run."""
    others = [name for other, names in enumerate(LANES) if other != number for name in names]
    return [f"--ignore={TESTS / name}" for name in others]


def start(command: list[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts one of the first lanes, which writes to a file."""
    return subprocess.Popen(command, cwd=TESTS.parent, stdout=said, stderr=said)


def main() -> int:
    """Gives the exit code of a lane that failed, or 0."""
    pytest = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    commands = []
    for number, names in enumerate(LANES):
        paths = [str(TESTS / name) for name in names]
        # What failed last is remembered by lane.
        kept = ("-o", f"cache_dir=.pytest_cache/{number}")
        commands.append([*pytest, *paths, *without(number), *kept])
    # No lane is to wait for the compiler in a test.
    print(ops.prepare(["python"], os.environ), end="", flush=True)
    began = time.monotonic()
    with contextlib.ExitStack() as ends:
        outputs = [ends.enter_context(tempfile.TemporaryFile()) for _ in commands]
        lanes = []
        for command, said in zip(commands, outputs, strict=True):
            lanes.append(start(command, said))
            ends.callback(lanes[-1].wait)
            ends.callback(lanes[-1].kill)
        last = subprocess.run(
            [*pytest, str(TESTS), *without(len(LANES))], cwd=TESTS.parent, check=False
        )
        codes = [one.wait() for one in lanes]
        sys.stdout.flush()
        for said in outputs:
            said.seek(0)
            sys.stdout.buffer.write(said.read())
        print(f"all lanes: {time.monotonic() - began:.0f} s", flush=True)
    return max({*codes, last.returncode} - {0, NO_TESTS}, default=0)


if __name__ == "__main__":
    sys.exit(main())
