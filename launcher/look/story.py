"""`horoaccrun explain JOB`: what a running job waits for, and why its steps are slow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from horoacc.launcher.explain import place_of
from horoacc.launcher.flight_records import Record
from horoacc.launcher.look.advice import findings
from horoacc.launcher.look.asking import Asker, Scope, View
from horoacc.launcher.look.jobs import find_job
from horoacc.launcher.look.shares import late, path, work
from horoacc.launcher.tuning import sentences
from horoacc.launcher.waits import Late

__all__ = ["look", "tell"]

_SCOPE = Scope(seconds=60, events=20_000)
_LATELY = 5.0  # seconds over which shares are told
_BETWEEN = 0.3  # seconds between the two looks that give rates


def tell(job: str | None, stacks: bool) -> list[str]:
    """Explains a running job: lines, the most important first.

    Args:
        job: Its name, or the number of a process of it; None: the only one.
        stacks: Whether the stacks of all ranks are told, too.

    Raises:
        LookError: There is no such job.
    """
    return look(job, stacks)[2]


def look(job: str | None, stacks: bool = False) -> tuple[View, View, list[str]]:
    """Gives two views of a running job, a while apart, and what `tell` says of them."""
    with contextlib.closing(Asker(find_job(job))) as asker:
        before = asker.look(_SCOPE._replace(stack=True))
        time.sleep(_BETWEEN)
        view = asker.look(_SCOPE)
    places = {rank: place_of(record.stack) for rank, record in before.records.items()}
    return before, view, list(_lines(before, view, places, stacks))


def _lines(before: View, view: View, places: Mapping[int, str], stacks: bool) -> Iterator[str]:
    if view.no_ranks:
        yield f"Job {view.job} has no rank to look at: {view.no_ranks}."
        return
    if view.failure:
        yield f"The job has failed: {view.failure}."
    for rank, why in view.silent.items():
        yield f"Rank {rank} {why}. Advice: {_advice_on_silent(why)}."
    waits = late(view)
    for one in waits:
        yield _sentence(one, view, places)
    if not waits and not view.failure:
        done = work(view, _LATELY)
        yield from findings(done, path(done), before, view, places)
    for record in view.records.values():
        if record.tuning:
            yield from sentences(record.tuning)
    if stacks:
        for rank, where in places.items():
            yield f"Rank {rank} is in {where or 'no Python code'}."


def _advice_on_silent(why: str) -> str:
    if "stopped" in why or "debugger" in why:
        return "let the process go on (`kill -CONT`), or end the job"
    if "gone" in why:
        return "read its last lines on stderr, and the kernel's log (out of memory?)"
    return "look at its host"


def _sentence(one: Late, view: View, places: Mapping[int, str]) -> str:
    text = one.sentence(time.time())
    computes = False
    for rank in one.missing:
        if rank not in view.records:
            continue
        cpu = view.cpu.get(rank, 0.0)
        computes = computes or rank in view.busy
        does = "computes" if rank in view.busy else "sleeps"
        text += f"; rank {rank} {does} ({cpu:.0%} of a processor)"
        text += f" in {places[rank]}" if places.get(rank) else ""
        text += _last(view.records[rank])
    if not any(rank in view.records for rank in one.missing):
        return f"{text}."
    advice = (
        "look why it has so much more to do than the others, or goes in circles"
        if computes
        else "look what it waits for there: input, a lock, another process, or a call that the "
        "others do not make"
    )
    return f"{text}. Advice: {advice}."


def _last(record: Record) -> str:
    for event in reversed(record.events):
        if event.what == "done":
            return f", {event.age:.1f} s after it completed '{event.tensor}'"
    return ""
