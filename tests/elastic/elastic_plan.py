"""What is to happen to a worker of an elastic job, and what it notes: FOLDER is its argument."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
PLAN = json.loads((FOLDER / "plan").read_text())
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}


def note(what: str, **fields: Any) -> None:
    line = json.dumps({"time": time.time(), "what": what, "pid": os.getpid(), **fields}) + "\n"
    with open(FOLDER / "log", "a") as log:
        log.write(line)


def happens(**where: Any) -> None:
    """Does what the plan has for here, once in the whole job."""
    for number, step in enumerate(PLAN):
        if any(step.get(name) != value for name, value in where.items()):
            continue
        try:
            (FOLDER / f"happened.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        note(step["do"], **where)
        if step.get("together"):  # else one would be out of the way before the other has come
            _await([n for n, other in enumerate(PLAN) if other.get("batch") == step.get("batch")])
        if step["do"] in SIGNALS:
            os.kill(os.getpid(), SIGNALS[step["do"]])
            time.sleep(0.5)
        elif step["do"] == "raise":
            raise RuntimeError(f"the plan's error at {where}")
        elif step["do"] == "sleep":
            time.sleep(step["seconds"])
        else:
            os._exit(int(step["do"]))


def _await(numbers: list[int]) -> None:
    until = time.monotonic() + 5
    while not all((FOLDER / f"happened.{n}").exists() for n in numbers):
        assert time.monotonic() < until, "the others do not come to the same place"
        time.sleep(0.002)
