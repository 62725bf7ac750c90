"""Why processes that work do not run, by the kernel's record of switches. Needs `perf`, as root."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterable, Sequence

from benchmarks.shares.samples import Spans, common, recorded

STATES = SLEEPS, WOKEN, ENGINE, OTHER = (
    "asleep, until another thread wakes it", "woken, until it runs",
    "ready, while a thread of an engine has the core", "ready, while another thread has the core",
)  # fmt: skip
_SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+)")
_WAKING = re.compile(r"sched_waking:.* pid=(\d+) ")


def switched(pids: Sequence[int], work: Callable[[], Spans]) -> tuple[Spans, dict[str, float]]:
    """Has processes work, and records the switches of their first threads.

    Args:
        pids: The processes, which sleep now.
        work: Has them work.

    Returns:
        What `work` gives, and the share of the time in each state, a mean of the processes, while
        all of them worked.
    """
    spans, lines = recorded(
        ["-a", "-e", "sched:sched_switch", "-e", "sched:sched_waking"],
        ["script", "--ns", "-F", "time,event,trace"], work,
    )  # fmt: skip
    first, last = common(spans)
    seconds = _seconds(lines, set(pids))
    return spans, {state: seconds[state] / (last - first) / len(pids) for state in STATES}


def _seconds(lines: Iterable[str], pids: set[int]) -> collections.Counter[str]:
    seconds: collections.Counter[str] = collections.Counter()
    # Of each process that does not run: its state, and since when.
    since: dict[int, tuple[str, float]] = {}
    for line in lines:
        now = float(line.split(maxsplit=1)[0].rstrip(":"))
        if (waking := _WAKING.search(line)) and since.get(pid := int(waking[1]), ("",))[
            0
        ] == SLEEPS:
            seconds[SLEEPS] += now - since[pid][1]
            since[pid] = (WOKEN, now)
        elif switch := _SWITCH.search(line):
            before, after = int(switch[1]), int(switch[4])
            if before in pids:
                ready = ENGINE if switch[3].startswith("horoacc") else OTHER
                since[before] = (ready if switch[2].startswith("R") else SLEEPS, now)
            if after in since:
                state, began = since.pop(after)
                seconds[state] += now - began
    return seconds
