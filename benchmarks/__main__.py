"""Runs the benchmarks: `python -m benchmarks [--only NAME] [--quick]`.

Nothing fails because something is slow: the exit status says whether everything could be measured
and gave the right numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    algorithms,
    allreduce,
    ddp,
    elastic,
    gradients,
    hosts,
    idle,
    keras_fit,
    latency,
    lockstep,
    machine,
    memory_bound,
    neighbours,
    observed,
    pages,
    picture,
    rails,
    seals,
    small_calls,
    stages,
    streams,
    tensorflow_steps,
    training,
)
from benchmarks.elastic_peers import comparison
from benchmarks.records import FOLDER, Records
from benchmarks.replays import comparison as replays
from benchmarks.tuned import comparison as tuned
from benchmarks.tuned import compiled

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "allreduce.png"
BENCHMARKS: dict[str, Callable[[Records, bool], None]] = {
    "memory_bound": memory_bound.run,
    "allreduce": allreduce.run,
    "latency": latency.run,
    "gradients": gradients.run,
    "training": training.run,
    "lockstep": lockstep.run,
    "ddp": ddp.run,
    "tensorflow": tensorflow_steps.run,
    "keras": keras_fit.run,
    "elastic": elastic.run,
    "elastic_peers": comparison.run,
    "idle": idle.run,
    "hosts": hosts.run,
    "neighbours": neighbours.run,
    "small_calls": small_calls.run,
    "streams": streams.run,
    "rails": rails.run,
    "seals": seals.run,
    "algorithms": algorithms.run,
    "stages": stages.run,
    "replays": replays.run,
    "observed": observed.run,
    "autotune": tuned.run,
    "autotune_jobs": tuned.run_whole_jobs,
    "optimize": compiled.run,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="run this one; repeatable"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few sizes and short slices: does everything work?"
    )
    parser.add_argument(
        "--output", type=Path, default=FOLDER, help="folder for results.jsonl and table.txt"
    )
    return parser.parse_args()


def main() -> int:
    options = _options()
    wanted: list[str] = options.only or list(BENCHMARKS)
    left = set(BENCHMARKS).difference(wanted)
    records = Records(options.output / "results.jsonl", left.__contains__)
    here = records.write(machine.describe())
    if here["load_before"] > 0.5:
        print(f"The load is {here['load_before']}: other work makes these figures worthless.")
    try:
        for name in wanted:
            records.begin(name)
            BENCHMARKS[name](records, options.quick)
    finally:
        records.close()
    print(records.summary())
    (options.output / "table.txt").write_text(records.table())
    # A quick look must not replace what the pages say.
    target = options.output / "allreduce.png" if options.quick else PICTURE
    if picture.draw(records.all, target):
        print(f"\npicture: {target}")
    if not options.quick and (stay := pages.fill(records.all)):
        print(f"not run, so that these stay as they are: {', '.join(stay)}")
    print(f"figures: {options.output / 'results.jsonl'}")
    return 1 if records.failures else 0


if __name__ == "__main__":
    sys.exit(main())
