"""Why the steps of a running job take as long as they do: sentences, with an advice each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from horoacc.launcher.explain import UNLOCKS, unlocked
from horoacc.launcher.look.asking import View
from horoacc.launcher.look.shares import BYTES_NOTICED, PATHS, Path, Work

__all__ = ["findings"]

_NOTICED = 0.1  # of the time: less is not worth a sentence
_ONE_OF_ALL = 0.6  # of all straggling: more is one rank's
_HIDES = 0.1  # of the time of calls in flight: less is no overlap
_SMALL = 64 << 10  # bytes of a bucket
_MANY = 8  # buckets a step


def findings(
    done: Work, path: Path, before: View, view: View, places: Mapping[int, str]
) -> Iterator[str]:
    """Says what the time goes into.

    Args:
        done: What the job did lately.
        path: Its critical path.
        before: A look,
        view: and one a while later.
        places: By rank, where its script is.
    """
    if not done.seconds or not any(done.calls.spans.values()):
        yield "No rank has called lately: there is nothing to say of steps."
        return
    step = f" of each step of {_ms(done.step)}" if done.step else f" of {done.seconds:.1f} s"
    yield (
        f"The critical path{step}: {path.compute:.0%} compute, "
        f"{sum(path.straggle.values()):.0%} waits for late ranks, {path.negotiate:.0%} "
        f"negotiation, {path.reduce:.0%} reduction."
    )
    told = [
        *_straggler(done, path, view, places),
        *_link(done, path, before, view),
        *_small(done, path, before, view),
        *_unlocked(view),
        *_overlap(done, path),
    ]
    yield from told
    if not told:
        yield (
            "Nothing of it is slow: to be faster, make the script's own computation faster."
            if path.compute > 0.5
            else "No single cause takes a tenth of the time."
        )


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _of_step(done: Work, part: float) -> str:
    return f"{_ms(part * done.step)} of each step ({part:.0%})" if done.step else f"{part:.0%}"


def _straggler(done: Work, path: Path, view: View, places: Mapping[int, str]) -> Iterator[str]:
    whole = sum(path.straggle.values())
    if whole < _NOTICED:
        return
    rank = max(path.straggle, key=lambda one: path.straggle[one])
    if path.straggle[rank] < _ONE_OF_ALL * whole:
        yield (
            f"Straggler: {_of_step(done, whole)} some ranks wait for others, which take turns at "
            f"being late, rank {rank} most. Advice: look for what disturbs all hosts, such as more "
            "threads than cores (OMP_NUM_THREADS), or input of very different sizes."
        )
        return
    where = f", which is in {places[rank]}" if places.get(rank) else ""
    cpu = view.cpu.get(rank)
    if rank not in view.busy:
        advice = "it mostly sleeps: look at what it waits for, such as its input or its disk"
    else:
        advice = "it computes: give it the same work, and as fast a core, as the others"
    use = "" if cpu is None else f" and uses {cpu:.0%} of a processor"
    yield (
        f"Straggler: {_of_step(done, path.straggle[rank])} the others wait for rank {rank}"
        f"{where}{use}. Advice: {advice}."
    )


def _delta(before: View, view: View, name: str) -> float:
    """What a counter has grown by on the average rank."""
    grown = [
        record.counters.get(name, 0) - before.records[rank].counters.get(name, 0)
        for rank, record in view.records.items()
        if rank in before.records
    ]
    return sum(grown) / len(grown) if grown else 0.0


def _seconds(before: View, view: View) -> float:
    spans = [
        record.clock - before.records[rank].clock
        for rank, record in view.records.items()
        if rank in before.records
    ]
    return max(spans, default=0.0)


def _link(done: Work, path: Path, before: View, view: View) -> Iterator[str]:
    if path.reduce < BYTES_NOTICED:
        return
    seconds = _seconds(before, view)
    rate = sum(_delta(before, view, name) for name in PATHS) / seconds if seconds else 0.0
    pace = (
        f", {rate / path.reduce / 1e9:.2f} GB of each rank's tensors in a second of it"
        if rate
        else ""
    )
    if view.across_hosts:
        advice = (
            "compare the links by `horoaccrun doctor`, and send less, as by "
            "`compression=hvd.Compression.fp16`"
        )
        name = "Link"
    else:
        advice = "reduce less often (`backward_passes_per_step`), or send less (`compression`)"
        name = "Reduction"
    yield (
        f"{name}: {_of_step(done, path.reduce)} all ranks wait for reductions{pace}. "
        f"Advice: {advice}."
    )


def _small(done: Work, path: Path, before: View, view: View) -> Iterator[str]:
    buckets = _delta(before, view, "buckets")
    bytes_ = sum(_delta(before, view, name) for name in PATHS)
    seconds = _seconds(before, view)
    if not buckets or not done.step or path.negotiate + path.reduce < _NOTICED:
        return
    each, number = bytes_ / buckets, buckets / seconds * done.step
    if each < _SMALL and number >= _MANY:
        yield (
            f"Small tensors: {number:.0f} reductions a step of {each / 1024:.1f} KiB each, and "
            f"{_of_step(done, path.negotiate + path.reduce)} for them. Advice: submit them "
            "together, by `grouped_allreduce` or all before the first `synchronize()`."
        )


def _unlocked(view: View) -> Iterator[str]:
    told = {rank: line for rank, record in view.records.items() if (line := unlocked(rank, record))}
    if not told:
        return
    plans = [view.records[rank].plans.unlocks for rank in told]
    reason = max(UNLOCKS, key=lambda one: sum(unlocks.get(one, 0) for unlocks in plans))
    more = f" So did {len(told) - 1} more." if len(told) > 1 else ""
    yield f"Unlocked rounds: {next(iter(told.values()))}{more} Advice: {UNLOCKS[reason][1]}."


def _overlap(done: Work, path: Path) -> Iterator[str]:
    blocked = path.reduce + path.negotiate
    if blocked < 2 * _NOTICED or path.hidden > _HIDES * (blocked + path.hidden):
        return
    yield (
        f"No overlap: {_of_step(done, blocked)} the ranks wait for calls, and compute during "
        f"{path.hidden:.0%}. Advice: submit gradients while `backward()` goes on, as "
        "`DistributedOptimizer` does, or by `allreduce_async` and a late `synchronize()`."
    )
