"""One rank of a pool: joins the job, then runs the bodies that the pool sends."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from controller_watch import ControllerWatch

PR_SET_PDEATHSIG = 1
RANKS = Path(__file__).resolve().parents[1] / "ranks"


def load(path: str, name: str) -> Any:
    """Finds a body in its module."""
    # Tests of other folders import the modules beside those of ranks/ too.
    for folder in (str(RANKS), str(Path(path).parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    found: Any = importlib.import_module(Path(path).stem)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def outcome_of(path: str, name: str, arguments: bytes) -> tuple[str, Any, str]:
    """Runs a body; gives kind, value and text of the pool's Outcome."""
    from _pytest.monkeypatch import MonkeyPatch
    from _pytest.outcomes import Skipped

    given: dict[str, Any] = {}
    try:
        watch = ControllerWatch()
        body = load(path, name)
        # Not before: an argument may be a function of the body's module.
        given = pickle.loads(arguments)
        value = body(**given)
        watch.check()
        return "ok", value, ""
    except Skipped as skipped:
        return "skipped", str(skipped), ""
    except BaseException:
        return "failed", None, traceback.format_exc()
    finally:
        # The rank's copy, of which the tests' process knows nothing.
        for fixture in given.values():
            if isinstance(fixture, MonkeyPatch):
                fixture.undo()


def main(address: str, framework: str, folder: str) -> None:
    """Serves the pool that listens at `address` until it says that it is over."""
    # Nobody but the tests' process needs this one.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    link = Client(address, "AF_UNIX", authkey=bytes.fromhex(os.environ.pop("HOROACC_TEST_KEY")))
    rank = int(os.environ.get("HOROACC_RANK", os.environ.get("OMPI_COMM_WORLD_RANK",
               os.environ.get("PMI_RANK", "0"))))  # fmt: skip
    stacks = open(os.path.join(folder, f"stacks.{rank}"), "w")  # noqa: SIM115 - for faulthandler
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    try:
        hvd = importlib.import_module(framework)
        hvd.init()
    except BaseException:
        link.send((rank, os.getpid(), traceback.format_exc()))
        raise
    link.send((rank, os.getpid(), ""))
    while True:
        try:
            order = link.recv()
        except EOFError:
            os._exit(1)
        if order is None:
            break
        outcome = outcome_of(*order)
        try:
            link.send(outcome)
        except (TypeError, AttributeError, ValueError):
            link.send(("failed", None, f"the body returned what cannot be sent: {outcome[1]!r}"))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
