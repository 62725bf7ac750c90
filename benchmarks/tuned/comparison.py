"""Autotune against an exhaustive sweep and optuna's TPE, and what it costs a whole job.

On one host, and on two hosts of the laboratory with and without caps on flows, a job looks for the
best values in each way (`benchmarks.tuned.rank`). Then two jobs train the same network in blocks
that take turns, one of them under `--autotune`; of one pair the batch grows after half of the
steps.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import algorithms
from benchmarks.group import GroupFailed, groups
from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MPIRUN, SECONDS
from benchmarks.lockstep import RANKS, TOGETHER, train
from benchmarks.observed import build
from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.systems import environ
from horoacc import cache
from horoacc.trials import interval, ratios

_WITHIN, _SLOWER = 5.0, 2.0
_CAP = algorithms.RATE / 4
_STEPS, _BLOCK = 2000, 100
_ONE_HOST = {"100 x Linear(64,64)": "deep", "2000 tensors of 64 numbers": "tiny"}
_TWO_HOSTS = {
    "8 x Linear(256,256), two hosts at 1 Gbit/s": None,
    "8 x Linear(256,256), two hosts at 1 Gbit/s, 250 Mbit/s a flow": _CAP,
}


def run(records: Records, quick: bool) -> None:
    """Measures what is found; what needs the laboratory only where that is possible."""
    for what, net in _ONE_HOST.items():
        _compare(records, what, net, None)
        if quick:
            break
    if reason := missing():
        records.write({"skipped": f"two hosts: {reason}"})
    else:
        for what, cap in _TWO_HOSTS.items():
            _compare(records, what, "square", Network(hosts=2, rate=algorithms.RATE, flow_cap=cap))
            if quick:
                break


def _compare(records: Records, what: str, net: str, network: Network | None) -> None:
    try:
        found = _found(net, network)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", RANKS, f"{what}: {error}")
        return
    best = found["sweep"]["times"]
    for who, told in found.items():
        ratio = ratios(told["times"], best)
        values = ", ".join(f"{name} {value}" for name, value in told["values"].items() if value)
        took = 1e3 * interval(told["times"]).median
        print(f"  {what}: {who}, {told['trials']} trials: {took:.2f} ms, {ratio} of the sweep's; "
              f"{values}", flush=True)  # fmt: skip
        records.write({"figure": f"{what}: {who}", "trials": told["trials"],
                       "milliseconds": took,
                       "of_the_sweep": ratio.median, "values": told["values"]})  # fmt: skip
        if who in ("autotune", "optuna"):
            low, median, high = (100 * (part - 1) for part in ratio)
            records.target(
                f"{what}: {who} beside an exhaustive sweep", median, _WITHIN, "%", True,
                interval=(low, high), note=f"{told['trials']} trials; {values}",
            )  # fmt: skip


def _found(net: str, network: Network | None) -> dict[str, Any]:
    program = ["--tcp", "--mpirun", str(MPIRUN), "-np", "2"]
    ranks = [sys.executable, "-m", "benchmarks.tuned.rank", net]
    words = [sys.executable, "-m", "horoacc.launcher.main", *program]
    said = {"stdout": subprocess.PIPE, "text": True, "check": True, "timeout": 2 * SECONDS}
    variables = environ() | {"HOROACC_SELECTION_TABLE": "off"}
    if network is None:
        done = subprocess.run([*words, *ranks], env=variables, **said)  # type: ignore[call-overload]
    else:
        with Laboratory(network) as lab:
            done = lab.hosts["h1"].run([*words, "-H", "h1:1,h2:1", *ranks], env=variables, **said)
    line = next(line for line in done.stdout.splitlines() if '{"found"' in line)
    return dict(json.loads(line.partition("] ")[2])["found"])


def new_cache(folder: Path) -> str:
    """Without winners; torch's ops take long to compile."""
    for file in cache.folder(os.environ).glob("torch-*"):
        shutil.copy2(file, folder)
    return str(folder)


def grow(rank: Rank) -> None:
    """Twice the batch, from now on."""
    x, y = rank.kept[TOGETHER].data
    rank.kept[TOGETHER].data = (torch.cat([x, x]), torch.cat([y, y]))


def run_whole_jobs(records: Records, quick: bool) -> None:
    """Measures what autotune adds to all steps of a job."""
    steps = 400 if quick else _STEPS
    report_failure = records.reporter_of_failures(RANKS)
    for phases in (1, 2):
        with (
            tempfile.TemporaryDirectory() as folder,
            groups(["horoacc"], RANKS, report_failure, False) as one,
            groups(["horoacc"], RANKS, report_failure, False,
                   HOROACC_AUTOTUNE="1", HOROACC_CACHE_DIR=new_cache(Path(folder))) as other,
        ):  # fmt: skip
            up = [*one.values(), *other.values()]
            if len(up) < 2:
                return
            plain, tuned = up
            try:
                for group in up:
                    group.run(build, "deep")
                seconds: dict[int, list[float]] = {0: [], 1: []}
                for turn in range(steps // _BLOCK):
                    if phases > 1 and turn == steps // _BLOCK // 2:
                        for group in up:
                            group.run(grow)
                    for number in (0, 1) if turn % 2 else (1, 0):
                        of_ranks = (plain, tuned)[number].run(train, TOGETHER, _BLOCK - 1)
                        seconds[number].append(sum(of_ranks) / RANKS)
            except GroupFailed as error:
                report_failure("horoacc", str(error))
                return
        low, _, high = (100 * (part - 1) for part in ratios(seconds[1], seconds[0]))
        changes = ", whose batch grows" if phases > 1 else ""
        records.target(
            f"100 x Linear(64,64), {steps} steps{changes}: what autotune adds",
            100 * (sum(seconds[1]) / sum(seconds[0]) - 1), _SLOWER, "%", True,
            interval=(low, high), note=f"{1e3 * interval(seconds[0]).median:.3g} ms without",
        )  # fmt: skip
