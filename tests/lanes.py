"""Runs the Python tests in three lanes, side by side: python tests/lanes.py [pytest's arguments].

Tests with real jobs wait for processes, time-outs and each other most of the time; so three pytests
keep two cores busy. What the first lanes say is shown when the last has ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from horoacc.launcher import ops

TESTS = Path(__file__).resolve().parent
# By folder or module; everything else is in the last lane. Each takes about as long as the others.
LANES = (
    ("install", "lab", "launcher"),
    (
        *("examples", "faults", "fake_gpu", "keras_api", "torch_api", "torch_distributed"),
        *("ranks/test_compile.py", "ranks/test_huge.py"),
    ),
)
NO_TESTS = 5  # pytest's exit code where none is chosen, as by -k


def pytest(*arguments: str) -> list[str]:
    """The command that runs some tests."""
    return [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]


def lane(number: int, said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts one of the first lanes, which writes to a file."""
    paths = [str(TESTS / name) for name in LANES[number]]
    # What failed last is remembered by lane.
    cache = ("-o", f"cache_dir=.pytest_cache/lane.{number}")
    return subprocess.Popen(pytest(*paths, *cache), cwd=TESTS.parent, stdout=said, stderr=said)


def main() -> int:
    """Gives the exit code of a lane that failed, or 0."""
    # No lane is to wait for the compiler in a test.
    print(ops.prepare(["python"], os.environ), end="", flush=True)
    with contextlib.ExitStack() as ends:
        outputs = [ends.enter_context(tempfile.TemporaryFile()) for _ in LANES]
        lanes = []
        for number, said in enumerate(outputs):
            lanes.append(lane(number, said))
            ends.callback(lanes[-1].wait)
            ends.callback(lanes[-1].kill)
        ignored = [f"--ignore={TESTS / name}" for names in LANES for name in names]
        last = subprocess.run(pytest(str(TESTS), *ignored), cwd=TESTS.parent, check=False)
        codes = [last.returncode, *(one.wait() for one in lanes)]
        sys.stdout.flush()
        for said in outputs:
            said.seek(0)
            sys.stdout.buffer.write(said.read())
        sys.stdout.flush()
    return max(set(codes) - {0, NO_TESTS}, default=0)


if __name__ == "__main__":
    sys.exit(main())
