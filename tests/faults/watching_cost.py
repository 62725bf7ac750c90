"""The cost of watching: python tests/faults/watching_cost.py [PAIRS] [--same]

Two ranks join, reduce for a short time, and leave, again and again: in turn with the defaults, and
without flight record, heartbeat monitor and stall check. They spin while they wait: then a call is
shortest, and a cost shows most. An engine's place in memory makes it faster or slower than the next
one, by more than that cost, so there are many engines. Prints, for each size, the median times, and
the median of the pairs' ratios with its range (95 of 100 drawings of as many pairs from these).
Ends with 0 only if all of each range is within 1.02, with 1 if all of one is beyond, and with 2 if
the pairs are too few to tell. With --same both of a pair run with the defaults: the output shows
chance alone.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

import shown
from launcher_jobs import Job

RANK = str(Path(__file__).with_name("watched_rank.py"))
SIZES = (1 << 10, 64 << 10, 1 << 20)
MOST = 1.02


def main() -> int:
    """Gives the verdict, `shown.KEPT` at best."""
    numbers = [int(word) for word in sys.argv[1:] if word != "--same"]
    pairs = (*numbers, 150)[0]
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "2", sys.executable, RANK, str(pairs),
            str(int("--same" in sys.argv)), *map(str, SIZES),
            seconds=60 + 3 * pairs, HOROACC_SPIN_MICROSECONDS="2000",
        )  # fmt: skip
    found = [json.loads(line) for line in result.of(0)]
    codes = set()
    for place, size in enumerate(SIZES):
        times = {how: [pair[how][place] for pair in found] for how in ("watched", "unwatched")}
        told = ", ".join(f"{how} {statistics.median(s) * 1e6:.2f} us" for how, s in times.items())
        ratios = [a / b for a, b in zip(times["watched"], times["unwatched"], strict=True)]
        code, words = shown.verdict(ratios, MOST)
        codes.add(code)
        print(f"{size} bytes: {told}; of {len(found)} pairs the ratio {words}", flush=True)
    return next(code for code in (shown.BROKEN, shown.NOT_SHOWN, shown.KEPT) if code in codes)


if __name__ == "__main__":
    sys.exit(main())
