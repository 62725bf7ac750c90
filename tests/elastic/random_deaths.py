"""Jobs whose ranks die wherever they are: importing, meeting, sharing the state, in a step."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from typing import Any

from elastic_jobs import WORKER, Elastic


def killed(
    elastic: Elastic, worker: str, ranks: int, kills: int, pauses: list[float], options: Any,
    **environ: str,
) -> None:  # fmt: skip
    """Trains without a commit while ranks are killed; the job ends once that is over.

    Args:
        elastic: The job; its number of batches becomes that of those that it did.
        worker: Its program.
        ranks: How many ranks it has, of which half are enough.
        kills: How often one or two are killed.
        pauses: Of which one, times a random number below 1, is waited before each, in seconds.
        options: Of the worker; those that end it are added.
        environ: Variables of the job.

    Raises:
        AssertionError: It failed, or went back without having just committed.
    """
    elastic.batches, elastic.seconds = 100_000, 0.002
    (elastic.folder / "options").write_text(json.dumps({**options, "ends": True}))
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    draw = random.Random(seed)
    arguments = elastic.arguments(
        "-np", str(ranks), "--min-np", str(ranks // 2), "--failures-per-host", "10000",
        program=str(WORKER.with_name(worker)),
    )  # fmt: skip
    job = elastic.job.start(*arguments, **environ)
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    # Rank 0 of the first epochs is killed as any other; one must live, or the state is gone.
    (spared,) = (line["pid"] for line in elastic.lines_of("begin") if line["rank"] == 1)
    for _ in range(kills):
        time.sleep(draw.choice(pauses) * draw.random())
        workers = [pid for pid in elastic.workers() if pid != spared]
        for pid in draw.sample(workers, min(len(workers), draw.choice([1, 1, 2]))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    (elastic.folder / "end").touch()
    _, err = job.communicate(timeout=300)
    assert job.returncode == 0, err.decode()
    elastic.batches = max(line["batch"] for line in elastic.steps())
    elastic.job.expect_nothing_left()
    told = err.decode()
    # A death may be met where the end is agreed on, which is no gradient, but follows a commit.
    assert "and lose no step" in told or "the error left allreduce.ends" in told, told
