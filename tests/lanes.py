"""Runs the Python tests in two lanes, side by side: python tests/lanes.py [pytest's arguments].

Tests that start jobs of their own wait for one process after the other most of the time; so two
pytests keep two cores busy. What the first lane says is shown when the second has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from horoacc.launcher import ops

TESTS = Path(__file__).resolve().parent
# Folders of the first lane; everything else is in the second.
JOBS = ("examples", "faults", "install", "lab", "launcher")
NO_TESTS = 5  # pytest's exit code where none is chosen, as by -k


def pytest(*arguments: str) -> list[str]:
    """The command that runs some tests."""
    return [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]


def main() -> int:
    """Gives the exit code of a lane that failed, or 0."""
    # Neither lane is to wait for the compiler in a test.
    print(ops.prepare(["python"], os.environ), end="", flush=True)
    root = TESTS.parent
    folders = [str(TESTS / name) for name in JOBS]
    with tempfile.TemporaryFile() as said:
        cache = ("-o", "cache_dir=.pytest_cache/jobs")
        jobs = subprocess.Popen(pytest(*folders, *cache), cwd=root, stdout=said, stderr=said)
        try:
            ignored = [f"--ignore={folder}" for folder in folders]
            pools = subprocess.run(pytest(str(TESTS), *ignored), cwd=root, check=False)
            jobs.wait()
        finally:
            jobs.kill()
            jobs.wait()
        said.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(said.read())
        sys.stdout.flush()
    failed = {pools.returncode, jobs.returncode} - {0, NO_TESTS}
    return max(failed, default=0)


if __name__ == "__main__":
    sys.exit(main())
