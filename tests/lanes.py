"""Runs the Python tests in lanes, side by side: python tests/lanes.py [pytest's arguments].

Tests with real jobs wait for processes, time-outs and each other most of the time; so five pytests
at a time keep two cores busy. Each takes the next of the parts below when it has ended one; what a
part has said is shown at its end.

Few tests that fail are then run once more, with nothing beside them. One that passes alone does not
fail the run, but is named at its end: it, or the code that it tests, is flaky under parallel load
and is to be mended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from horoacc.launcher import ops

TESTS = Path(__file__).resolve().parent
LANES = 5
# By folder or module, the longest first; the first is everything else. What is in one part shares
# the processes that ranks are forked from.
PARTS: tuple[tuple[str, ...], ...] = (
    (),
    ("torch_distributed",),
    ("keras_api", "tensorflow_api", "fake_gpu/test_tensorflow_gpu.py"),
    ("faults",),
    ("elastic/test_elastic_examples.py", "elastic/test_elastic_scenarios.py"),
    ("elastic", "lab/test_lab_elastic.py"),
    ("examples", "torch_api"),
    ("launcher/test_horovod_scripts.py",),
    ("launcher",),
    ("lab",),
    ("ranks/test_hosts.py", "ranks/test_compile.py", "ranks/test_adasum.py", "fake_gpu"),
    ("install", "ranks/test_arena.py", "ranks/test_small_shm.py"),
    (
        *("launcher/test_engine_end.py", "launcher/test_engine_start.py"),
        "faults/test_unauthenticated_peers.py",
    ),
)
FAILED, NO_TESTS = 1, 5  # pytest's exit codes, the second where none is chosen, as by -k
ONCE_MORE = 3  # more failures than these are no accident


def without(part: tuple[str, ...]) -> list[str]:
    """The arguments that keep a part off what the others run."""
    others = [name for other in PARTS if other != part for name in other]
    return [f"--ignore={TESTS / name}" for name in others if name not in part]


def kept(part: tuple[str, ...]) -> Path:
    """Where pytest remembers what failed last."""
    return TESTS.parent / ".pytest_cache" / str(PARTS.index(part))


def failed(part: tuple[str, ...], *, forget: bool = False) -> set[str]:
    """The tests of which it remembers that: in its last run, or before and not run since."""
    remembered = kept(part) / "v" / "cache" / "lastfailed"
    if not remembered.exists():
        return set()
    tests = set(json.loads(remembered.read_text()))
    if forget:
        remembered.unlink()
    return tests


class Lanes:
    """Takes parts until there are none left."""

    def __init__(self, pytest: list[str]) -> None:
        self._pytest = pytest
        self._parts: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._shows = threading.Lock()
        self.codes: set[int] = set()
        for part in PARTS:
            self._parts.put(part)
        self._threads = [threading.Thread(target=self._take, daemon=True) for _ in range(LANES)]

    def run(self) -> None:
        """Returns when all parts have ended; ends them when it is interrupted."""
        try:
            for thread in self._threads:
                thread.start()
            for thread in self._threads:
                thread.join()
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._parts.get_nowait()
            for process in list(self._running):
                process.kill()
                process.wait()

    def _take(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._run(self._parts.get_nowait())

    def _run(self, part: tuple[str, ...]) -> None:
        paths = [str(TESTS / name) for name in part or ("",)]
        command = [*self._pytest, *paths, *without(part), "-o", f"cache_dir={kept(part)}"]
        began = time.monotonic()
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, cwd=TESTS.parent, stdout=said, stderr=said)
            self._running.add(process)
            code = process.wait()
            self._running.discard(process)
            self.codes.add(code)
            said.seek(0)
            with self._shows:
                seconds = f"{time.monotonic() - began:.0f} s"
                print(f"\n{', '.join(part) or 'everything else'}: {seconds}", flush=True)
                sys.stdout.buffer.write(said.read())
                sys.stdout.flush()


def pass_alone(pytest: list[str], tests: set[str]) -> bool:
    """Whether tests that failed beside others pass now; says so."""
    if not 0 < len(tests) <= ONCE_MORE:
        return False
    print("once more, alone:", *sorted(tests), sep="\n  ", flush=True)
    again = subprocess.run([*pytest, *sorted(tests)], cwd=TESTS.parent, check=False)
    if again.returncode == 0:
        print("UNSTEADY, failed beside others:", *sorted(tests), sep="\n  ", flush=True)
    return again.returncode == 0


def main() -> int:
    """Gives the exit code of a part that failed, or 0."""
    pytest = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    # A whole run forgets it, so that a test that is gone does not count as one that fails again.
    before = set().union(*(failed(part, forget=not sys.argv[1:]) for part in PARTS))
    # No part is to wait for the compiler in a test.
    with ThreadPoolExecutor() as compilers:
        told = [compilers.submit(ops.prepare_one, name, os.environ) for name in ops.FRAMEWORKS]
    print(*(one.result() for one in told), flush=True)
    began = time.monotonic()
    lanes = Lanes(pytest)
    lanes.run()
    print(f"all lanes: {time.monotonic() - began:.0f} s", flush=True)
    codes = lanes.codes - {0, NO_TESTS}
    after = set().union(*map(failed, PARTS))
    # What failed the last time as well gets no other chance.
    if codes == {FAILED} and not before & after and pass_alone(pytest, after):
        return 0
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
