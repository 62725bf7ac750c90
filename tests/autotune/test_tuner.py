"""The tuner: its trials on made-up jobs whose steps take known times, and what a job may lose."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from horoacc.autotune.tuner import SETTLE, Limits, Trial, Tuner, Values
from horoacc.trials import interval

START = Values(64 << 20, 256 << 10)
BYTES = 32 << 20
LIMITS = Limits(BYTES, 2 << 20)
Job = Callable[[Values, int], float]
"""From the values and the number of the step to the seconds that it takes."""


def noise(seed: int, part: float = 0.03) -> Callable[[], float]:
    drawn = random.Random(seed)
    return lambda: drawn.lognormvariate(0, part)


class Run:
    """A job of some steps under the tuner; a step after a change is slower, as in real jobs."""

    def __init__(
        self, job: Job, steps: int, known: Values | None = None, most: int = 20,
        limits: Limits = LIMITS,
    ) -> None:  # fmt: skip
        self.ended: list[Trial] = []
        self.found: list[Values] = []
        self.tuner = Tuner(
            START, limits, known, warmup=36, steps=12, most=most,
            ended=self.ended.append, found=self.found.append,
        )  # fmt: skip
        self.used: list[Values] = []
        self.seconds = 0.0
        done, times = 0, []
        before = START
        while done < steps:
            order = self.tuner.next(times)
            times = []
            assert order.steps >= 1
            for step in range(order.settle + order.steps):
                slower = 1.2 if order.values != before and step < SETTLE else 1.0
                times.append(slower * job(order.values, done))
                self.used.append(order.values)
                self.seconds += times[-1]
                done += 1
            before = order.values
        self.steps = done


ACROSS = Limits(BYTES, 0, 4 << 20, ("ring", "trees"))
WINNER = {"fusion_threshold": 1 << 20, "last_arriver_bytes": 4096, "window_bytes": 0,
          "algorithm": ""}  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "changed", "usable"),
    [
        (LIMITS, {}, True),
        (LIMITS, {"topology": {}}, True),
        (LIMITS, {"fusion_threshold": 65 << 20}, False),
        (LIMITS, {"fusion_threshold": -1}, False),
        (LIMITS, {"last_arriver_bytes": 3 << 20}, False),
        (LIMITS, {"last_arriver_bytes": "4096"}, False),
        (LIMITS, {"fusion_threshold": True}, False),
        (LIMITS, {"algorithm": "ring"}, False),
        (LIMITS, {"window_bytes": 1 << 20}, False),
        (LIMITS, dict.fromkeys(WINNER), False),
        (ACROSS, {"algorithm": "ring", "window_bytes": 1 << 20}, True),
        (ACROSS, {"algorithm": "canonical"}, False),
        (ACROSS, {"algorithm": 3}, False),
        (ACROSS, {"window_bytes": 16}, False),
        (ACROSS, {"window_bytes": 64 << 20}, False),
    ],
)
def test_what_was_remembered_is_used_if_it_is_possible(
    limits: Limits, changed: dict[str, object], usable: bool
) -> None:
    assert (limits.winner(START, WINNER | changed) is not None) == usable
    assert limits.winner(START, {}) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "best", [("", 0), ("trees", 0), ("", 1 << 20), ("ring", 256 << 10), ("trees", 8 << 20)]
)
def test_it_finds_algorithm_and_windows_between_hosts(best: tuple[str, int], seed: int) -> None:
    def job(values: Values, step: int) -> float:
        algorithm, window = (values.algorithm, values.window_bytes or 4 << 20)
        factor = max(window, best[1] or 4 << 20) / min(window, best[1] or 4 << 20)
        return 0.01 * (1.0 if algorithm == best[0] else 1.1) * (1 + 0.02 * math.log2(factor))

    shake = noise(seed)
    run = Run(lambda values, step: job(values, step) * shake(), 6000, limits=ACROSS)
    assert len(run.ended) <= 30
    assert job(run.tuner.best, 0) <= 1.05 * job(Values(*START[:2], best[1], best[0]), 0), run.ended
    assert {trial.values.algorithm for trial in run.ended} >= {"ring", "trees"}
    assert all(trial.values.last_arriver_bytes == START[1] for trial in run.ended)


def test_an_order_that_was_cut_off_is_given_again() -> None:
    tuner = Tuner(
        START, LIMITS, None, warmup=36, steps=12, most=20, ended=lambda _: None,
        found=lambda _: None,
    )  # fmt: skip
    order = tuner.next([])
    assert tuner.next([0.01] * (order.steps + order.settle - 1)) == order
    assert tuner.next([0.01] * (order.steps + order.settle)) != order


def best_threshold(bytes_: int) -> Job:
    """A step is quickest with buckets of so many bytes: a tenth slower for each factor of four."""

    def seconds(values: Values, step: int) -> float:
        at = min(values.fusion_threshold, BYTES)
        factor = max(at, bytes_) / min(at, bytes_)
        return 0.01 * (1.0 + 0.05 * (factor.bit_length() - 1 if isinstance(factor, int) else
                                     round(factor).bit_length() - 1))  # fmt: skip

    return seconds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("best", [BYTES, BYTES // 4, BYTES // 16])
def test_it_finds_what_a_sweep_finds(best: int, seed: int) -> None:
    job, shake = best_threshold(best), noise(seed)
    run = Run(lambda values, step: job(values, step) * shake(), 6000)
    assert len(run.ended) <= 30
    quickest = min(job(Values(BYTES // 4**k, START[1]), 0) for k in range(4))
    assert job(run.tuner.best, 0) <= 1.05 * quickest, run.ended
    assert run.found[-1] == run.tuner.best


WORSE: dict[str, Job] = {
    "equal": lambda values, step: 0.01,
    "worse": lambda values, step: 0.01 if values == START else 0.0115,
    "much worse": lambda values, step: 0.01 if values == START else 0.05,
    "changes phase": lambda values, step: (
        0.01 if values == START else (0.009 if step < 700 else 0.012)
    ),
    "grows": lambda values, step: 0.01 * (1 + step / 1000),
    "pauses": lambda values, step: 2.0 if step % 250 == 249 else 0.01,
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("job", WORSE.values(), ids=WORSE)
def test_a_job_never_loses_more_than_a_little(job: Job, seed: int) -> None:
    shakes = [noise(seed), noise(seed)]
    run = Run(lambda values, step: job(values, step) * shakes[0](), 2000)
    plain = sum(job(START, step) * shakes[1]() for step in range(run.steps))
    assert run.seconds <= 1.02 * plain, (run.seconds / plain, run.ended)


def test_a_change_of_phase_takes_the_winner_back() -> None:
    shake = noise(1)

    def job(values: Values, step: int) -> float:
        better, worse = (0.008, 0.013) if step < 1500 else (0.013, 0.01)
        return (worse if values == START else better) * shake()

    run = Run(job, 6000)
    assert any(trial.kept and trial.against == START for trial in run.ended)
    assert run.tuner.best == START


def test_a_late_change_of_phase_is_searched_like_the_beginning() -> None:
    """Comparisons with the job's own settings until then are no trials of that search."""
    shake, best = noise(4), Values(BYTES // 16, START[1])

    def job(values: Values, step: int) -> float:
        early = {START: 0.01, Values(BYTES // 4, START[1]): 0.008}
        late = {START: 0.01, best: 0.008}
        return (early if step < 12_000 else late).get(values, 0.013) * shake()

    run = Run(job, 16_000)
    assert len(run.ended) > 20 and run.tuner.story()["count"] == len(run.ended)
    assert run.tuner.best == best, run.ended


def test_the_winner_of_an_earlier_job_is_used_at_once_and_checked() -> None:
    known = Values(BYTES // 16, START[1])
    shake = noise(2)
    run = Run(lambda values, step: (0.01 if values == known else 0.011) * shake(), 500, known)
    assert run.used[0] == known and run.tuner.best == known
    assert [trial.values for trial in run.ended][:1] == [START]
    bad = Run(lambda values, step: (0.011 if values == known else 0.01) * shake(), 1000, known)
    assert bad.ended[0].kept and bad.ended[0].values == START
    assert bad.found[0] == START


@pytest.mark.parametrize("known", [START, Values(BYTES // 4, START[1])], ids=["own", "loses"])
def test_what_an_earlier_job_found_does_not_end_the_search(known: Values) -> None:
    shake, best = noise(3), Values(BYTES // 16, START[1])
    took = {best: 0.008, START: 0.01}
    run = Run(lambda values, step: took.get(values, 0.012) * shake(), 6000, known)
    assert run.tuner.best == best


def test_a_trial_that_is_much_slower_is_broken_off() -> None:
    run = Run(WORSE["much worse"], 1000)
    assert run.ended and all(trial.ratio is None and not trial.kept for trial in run.ended)
    longest = max(sum(1 for _ in group) for group in runs(run.used) if group and group[0] != START)
    assert longest == 3


def runs(values: list[Values]) -> list[list[Values]]:
    found: list[list[Values]] = []
    for value in values:
        if not found or found[-1][0] != value:
            found.append([])
        found[-1].append(value)
    return found


def test_trials_have_at_least_twelve_steps_and_are_told() -> None:
    shake = noise(3)
    run = Run(lambda values, step: 0.01 * shake(), 3000, most=3)
    assert len(run.ended) == 3
    told = run.tuner.story()
    assert [trial["why"] for trial in told["trials"]] == [trial.why for trial in run.ended]
    lengths = [len(group) for group in runs(run.used) if group[0] != START]
    assert lengths and min(lengths) >= SETTLE + 12


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (-float("inf"), float("inf"))),
        ([1, 2, 3, 4, 5], (-float("inf"), float("inf"))),
        ([6, 5, 4, 3, 2, 1], (1, 6)),
        (list(range(12)), (2, 9)),
    ],
)
def test_intervals_are_order_statistics(values: list[float], expected: tuple[float, float]) -> None:
    found = interval(values)
    assert (found.low, found.high) == expected


def test_intervals_cover_the_median() -> None:
    drawn = random.Random(7)
    inside = 0
    for _ in range(2000):
        found = interval([drawn.expovariate(1.0) for _ in range(12)])
        inside += found.low <= 0.6931 <= found.high
    assert inside >= 0.94 * 2000
