"""PyTorch's own cases of torch.distributed, on Gloo and on horoacc, compared.

    python tests/torch_distributed/c10d_cases.py                       # all, on 3 and on 4 ranks
    python tests/torch_distributed/c10d_cases.py --ranks 3 --only any_source
    python tests/torch_distributed/c10d_cases.py --on horoacc --ranks 3 --only any_source

The cases are in torch's wheel (`torch.testing._internal.distributed.distributed_test`) and run as
they are: this module has them take the backend's name for Gloo's where they ask for Gloo, and forks
the ranks of each case from one process instead of starting an interpreter for each. Every case has
ranks of its own and a time limit. With `--on` it shows what the cases print on one backend.

It fails if a case passes on Gloo and not on horoacc, unless docs/c10d_cases.md has a row that says
why, and if a row there is not needed. Torch's cases need the package expecttest, which
`make test-c10d` installs beside the project.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

MODULE = "torch.testing._internal.distributed.distributed_test"
PAGE = Path(__file__).parents[2] / "docs" / "c10d_cases.md"
LIMIT = 120
WHOLE = 3600  # of all cases of a backend
"""Seconds for a case; torch itself gives a few more."""
PASSES, FAILS, SKIPS = "passes", "fails", "skips"


class LikeGloo(str):
    """The name of a backend that is equal to Gloo's as well."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # sets of names have Gloo's


def module_for(backend: str) -> Any:
    """Torch's module of cases, which reads the backend when it is imported."""
    from torch.testing._internal.common_distributed import DistTestCases

    if backend == "gloo":
        return importlib.import_module(MODULE)
    import horoacc.torch  # registers the backend

    horoacc.torch._ops.python_library()  # once, not in each of the ranks
    DistTestCases.backend_feature["plugin"].add(backend)
    with mock.patch.object(os, "environ", {**os.environ, "BACKEND": LikeGloo(backend)}):
        module = importlib.import_module(MODULE)
    for kind in ("", "CUDA_", "SEND_RECV_"):
        getattr(module, f"{kind}PROFILING_SUPPORTED_BACKENDS").append(backend)
    return module


def cases_for(backend: str) -> type[unittest.TestCase]:
    """The class of all cases, each of which runs in ranks of its own."""
    import torch

    module: Any = module_for(backend)
    torch.set_num_threads(1)

    class Cases(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self) -> None:
            for process in self.processes:
                if process.exitcode is None:
                    process.kill()
                process.join()
            super().tearDown()

        def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
            super()._check_return_codes(fn, elapsed_time)
            # Torch looks at the first rank alone.
            codes = [process.exitcode for process in self.processes]
            if fn not in self.skip_return_code_checks and len(set(codes)) > 1:
                raise RuntimeError(f"the ranks ended with {codes}")

    return Cases


class Notes(unittest.TextTestResult):
    """Writes down each case when it has ended."""

    into: Path

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.began = time.monotonic()

    def _note(self, test: unittest.TestCase, how: str, why: str = "") -> None:
        seconds = round(time.monotonic() - self.began, 1)
        with self.into.open("a") as file:
            file.write(json.dumps([test.id().rpartition(".")[2], how, why, seconds]) + "\n")

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._note(test, PASSES)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, SKIPS, reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, FAILS, str(err[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._note(test, FAILS, str(err[1]))

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._note(test, PASSES)


def run(backend: str, only: str, into: Path) -> None:
    """Runs cases in ranks of this process."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{part}*" for part in only.split(",")]
    suite = loader.loadTestsFromTestCase(cases_for(backend))
    Notes.into = into
    unittest.TextTestRunner(resultclass=Notes, verbosity=2).run(suite)


def started(backend: str, ranks: int, only: str, into: Path, log: Any) -> subprocess.Popen[bytes]:
    """Starts the process that runs the cases of one backend on so many ranks."""
    names = {"HOROACC_NUM_PROC", "RANK", "LOCAL_RANK", "MASTER_PORT"}
    environ = {name: value for name, value in os.environ.items() if name not in names} | {
        "BACKEND": backend, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    command = [sys.executable, __file__, "--inside", backend, "--only", only, "--into", str(into)]
    return subprocess.Popen(command, env=environ, stdout=log, stderr=log)


def told(into: Path) -> dict[str, list[Any]]:
    """What a process wrote down: by case, the outcome, its text and its seconds."""
    lines = into.read_text().splitlines() if into.exists() else []
    return {case: rest for case, *rest in map(json.loads, lines)}


def reasons() -> dict[str, str]:
    """The rows of the page, by case."""
    rows = re.findall(r"^\| `(test_\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


def one_line(text: str) -> str:
    """What an error says, without tracebacks and addresses of C++'s frames."""
    lines = text.split("Exception raised from")[0].splitlines()
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)] or lines
    return said[0].strip()[:200] if said else ""


def compare(ranks: int, only: str) -> set[str]:
    """Runs the cases on both backends, side by side; gives those that pass on Gloo alone."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        notes = {backend: Path(folder) / backend for backend in ("gloo", "horoacc")}
        running = [started(one, ranks, only, path, log) for one, path in notes.items()]
        try:
            codes = [process.wait(timeout=WHOLE) for process in running]
        finally:
            for process in running:
                process.kill()
        gloo, ours = (told(path) for path in notes.values())
        if any(codes) or not gloo or gloo.keys() != ours.keys():
            log.seek(0)
            raise RuntimeError(log.read().decode(errors="replace")[-4000:])
    worse = {case for case, found in gloo.items()
             if found[0] == PASSES and ours[case][0] != PASSES}  # fmt: skip
    for name, found in (("gloo", gloo), ("horoacc", ours)):
        ends = [one[0] for one in found.values()]
        counts = ", ".join(f"{ends.count(how)} {how}" for how in (PASSES, FAILS, SKIPS))
        print(f"{ranks} ranks, {name}: {counts}, {sum(one[2] for one in found.values()):.0f} s")
    for case in sorted(gloo):
        here, there = gloo[case], ours[case]
        if here[0] != there[0] or here[0] == FAILS:
            why = " / ".join(filter(None, (one_line(here[1]), one_line(there[1]))))
            print(f"  {case}: gloo {here[0]}, horoacc {there[0]}: {why}")
    return worse


def main() -> int:
    """Gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[3, 4])
    parser.add_argument("--only", default="test_", help="parts of names, separated by commas")
    parser.add_argument("--on", help="the backend to show, instead of a comparison")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        sys.argv = sys.argv[:1]  # torch reads it, too
        run(chosen.inside, chosen.only, chosen.into)
        return 0
    if chosen.on:
        with tempfile.NamedTemporaryFile() as file:
            path = Path(file.name)
            for ranks in chosen.ranks:
                started(chosen.on, ranks, chosen.only, path, None).wait(timeout=WHOLE)
            return int(any(found[0] == FAILS for found in told(path).values()))
    known = reasons()
    worse = set().union(*(compare(ranks, chosen.only) for ranks in chosen.ranks))
    unexplained = sorted(worse - known.keys())
    idle = sorted(known.keys() - worse) if chosen.only == "test_" else []
    for case in unexplained:
        print(f"{case} passes on Gloo and not on horoacc, and {PAGE.name} has no reason")
    for case in idle:
        print(f"{PAGE.name} has a reason for {case}, which needs none")
    return int(bool(unexplained or idle))


if __name__ == "__main__":
    sys.exit(main())
