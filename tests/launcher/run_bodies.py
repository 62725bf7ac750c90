"""Functions that `horoacc.run` calls in tests. Ranks import them from here by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

import horoacc as hvd


def summed(first: float, second: float = 0.0) -> tuple[int, int, float]:
    hvd.init()
    total = hvd.allreduce(np.full(3, first + second), op=hvd.Sum)
    return hvd.rank(), hvd.size(), float(total[0])


class Refusal(Exception):
    """An exception with more than a text."""

    def __init__(self, reason: str, amount: int) -> None:
        super().__init__(f"{reason} {amount}")
        self.reason = reason
        self.amount = amount

    def __reduce__(self) -> Any:
        return Refusal, (self.reason, self.amount)


class Stubborn(Exception):
    """An exception that its class cannot make again from `args`."""

    def __init__(self, reason: str, amount: int, cause: Exception | None = None) -> None:
        super().__init__(f"{reason} {amount}")
        self.amount = amount
        self.cause = cause


class Undecoded(UnicodeDecodeError):
    """One of Python's own that has more than `args` behind it."""

    def __init__(self, data: bytes) -> None:
        super().__init__("ascii", data, 1, 2, "not of ours")
        self.length = len(data)


class Clutching(Exception):
    """An exception that pickles, but whose attribute does not."""

    def __init__(self) -> None:
        super().__init__("mine")
        self.lock = returns_a_lock()


class Gone(Exception):
    """An exception that pickles, but that nobody can make again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def refuses_on_1() -> None:
    hvd.init()
    if hvd.rank() == 1:
        raise Refusal("no more than", 7)
    hvd.allreduce(np.ones(2), name="never complete")


def raises_on_0(kind: str) -> None:
    hvd.init()
    if hvd.rank() == 0:
        if kind == "stubborn":
            raise Stubborn("not again", 3, Stubborn("inside", 4))
        raise {"undecoded": lambda: Undecoded(b"a\xff"), "clutching": Clutching,
               "gone": lambda: Gone("gone")}[kind]()  # fmt: skip
    hvd.allreduce(np.ones(2), name="never complete")


def leaves(code: int) -> None:
    sys.exit(code)


def dies_on_1(folder: str) -> None:
    hvd.init()
    with open(os.path.join(folder, f"pid.{hvd.rank()}"), "w") as file:
        file.write(str(os.getpid()))
    if hvd.rank() == 1:
        print("these are my last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(2), name="never complete")


def vanishes() -> None:
    os._exit(0)


def returns_a_lock() -> Any:
    import threading

    return threading.Lock()


def large(count: int) -> Any:
    return np.arange(count, dtype=np.int64)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def prints() -> None:
    hvd.init()
    print(f"from rank {hvd.rank()}", flush=True)
    print(f"error of {hvd.rank()}", file=sys.stderr, flush=True)


def sleeps(folder: str) -> None:
    hvd.init()
    open(os.path.join(folder, f"there.{hvd.rank()}"), "w").close()
    time.sleep(60)


def imports_horovod() -> bool:
    import horovod.torch as found

    import horoacc.torch as own

    return found is own
