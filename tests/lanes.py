"""Runs the Python tests in lanes, side by side: python tests/lanes.py [pytest's arguments].

Tests with real jobs wait for processes, time-outs and each other most of the time; so five pytests
keep two cores busy. What the last lane says is shown at once, what the others say when all have
ended.

Few tests that fail are then run once more, with nothing beside them. One that passes alone does not
fail the run, but is named at its end: it, or what it tests, bears no company, and is to be mended.
"""

from __future__ import annotations

import contextlib
import json
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
        *("keras_api", "tensorflow_api", "fake_gpu/test_tensorflow_gpu.py"),
        *(f"ranks/{path.name}" for path in sorted((TESTS / "ranks").glob("test_tensorflow_*.py"))),
    ),
)
FAILED, NO_TESTS = 1, 5  # pytest's exit codes, the second where none is chosen, as by -k
ONCE_MORE = 3  # more failures than these are no accident


def without(number: int) -> list[str]:
    """The arguments that keep a lane off what the others run."""
    others = [name for other, names in enumerate(LANES) if other != number for name in names]
    return [f"--ignore={TESTS / name}" for name in others]


def failed(kept: Path) -> set[str]:
    """The tests that a lane remembers as failed: in its last run, or before and not run since."""
    remembered = kept / "v" / "cache" / "lastfailed"
    return set(json.loads(remembered.read_text())) if remembered.exists() else set()


def pass_alone(pytest: list[str], tests: set[str]) -> bool:
    """Whether tests that failed beside others pass now; says so."""
    if not 0 < len(tests) <= ONCE_MORE:
        return False
    print("once more, alone:", *sorted(tests), sep="\n  ", flush=True)
    again = subprocess.run([*pytest, *sorted(tests)], cwd=TESTS.parent, check=False)
    if again.returncode == 0:
        print("UNSTEADY, failed beside others:", *sorted(tests), sep="\n  ", flush=True)
    return again.returncode == 0


def start(command: list[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts one of the first lanes, which writes to a file."""
    return subprocess.Popen(command, cwd=TESTS.parent, stdout=said, stderr=said)


def main() -> int:
    """Gives the exit code of a lane that failed, or 0."""
    pytest = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    commands, kept = [], []
    for number in range(len(LANES) + 1):
        names = LANES[number] if number < len(LANES) else ("",)
        # What failed last is remembered by lane.
        kept.append(TESTS.parent / ".pytest_cache" / str(number))
        options = (*without(number), "-o", f"cache_dir={kept[-1]}")
        commands.append([*pytest, *(str(TESTS / name) for name in names), *options])
    before = set().union(*map(failed, kept))
    # No lane is to wait for the compiler in a test.
    print(ops.prepare(["python"], os.environ), end="", flush=True)
    began = time.monotonic()
    with contextlib.ExitStack() as ends:
        outputs = [ends.enter_context(tempfile.TemporaryFile()) for _ in LANES]
        lanes = []
        for command, said in zip(commands, outputs, strict=False):
            lanes.append(start(command, said))
            ends.callback(lanes[-1].wait)
            ends.callback(lanes[-1].kill)
        last = subprocess.run(commands[-1], cwd=TESTS.parent, check=False)
        codes = {one.wait() for one in lanes} | {last.returncode}
        sys.stdout.flush()
        for said in outputs:
            said.seek(0)
            sys.stdout.buffer.write(said.read())
        print(f"all lanes: {time.monotonic() - began:.0f} s", flush=True)
    codes -= {0, NO_TESTS}
    after = set().union(*map(failed, kept))
    # What failed the last time as well gets no other chance.
    if codes == {FAILED} and not before & after and pass_alone(pytest, after):
        return 0
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
