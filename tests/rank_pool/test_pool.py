"""The pool itself: failures, hangs and deaths are reported with rank and reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pool import BodyFailed, Pools

HERE = Path(__file__)


def give_rank(offset: int) -> int:
    import horoacc as hvd

    return hvd.rank() + offset


def fail_on_one() -> None:
    import horoacc as hvd

    if hvd.rank() == 1:
        raise RuntimeError("only here")
    hvd.barrier()


def hang_in_sleep() -> None:
    time.sleep(600)


def die() -> None:
    import horoacc as hvd

    if hvd.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def negotiate_by_another_controller() -> None:
    import horoacc as hvd

    os.environ["HOROACC_SIMULATED_HOSTS"] = "each"
    hvd.barrier()


@pytest.mark.ranks(1, 2, 3)
def test_body_runs_in_every_rank(ranks: int) -> None:
    import horoacc as hvd

    assert hvd.size() == ranks
    assert hvd.allgather_object(hvd.rank()) == list(range(ranks))


def test_values_come_back_and_pool_is_reused(pools: Pools) -> None:
    pool = pools.get(2, "horoacc", {})
    assert pool.run(HERE, "give_rank", {"offset": 5}, 30) == [5, 6]
    assert pools.get(2, "horoacc", {}) is pool


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("fail_on_one", ["rank 1 failed", "only here"]),
        ("hang_in_sleep", ["rank 0 hung", "rank 1 hung", "in hang_in_sleep"]),
        ("die", ["rank 0 died"]),
        ("negotiate_by_another_controller", ["sent 0 messages on the hosts 'each'"]),
    ],
)
def test_failures_name_rank_and_reason(pools: Pools, body: str, words: list[str]) -> None:
    pool = pools.get(2, "horoacc", {})
    with pytest.raises(BodyFailed) as failure:
        pool.run(HERE, body, {}, 3 if body == "hang_in_sleep" else 30)
    for word in words:
        assert word in str(failure.value)
    assert pools.get(2, "horoacc", {}) is not pool


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pool import Pools
pools = Pools()
pools.get(2, "horoacc", {})
print(os.listdir(os.environ["TMPDIR"]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_tests_that_are_killed(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(HERE.parent)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=60, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert "horoacc-ranks-" in killed.stdout
    deadline = time.monotonic() + 20
    while list(tmp_path.iterdir()) or marked(str(tmp_path)):
        assert time.monotonic() < deadline, (list(tmp_path.iterdir()), marked(str(tmp_path)))
        time.sleep(0.05)


def marked(word: str) -> list[int]:
    """Processes that have a word among the variables they were started with."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
