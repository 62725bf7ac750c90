"""The gradient policy, which needs neither tensors nor ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horoacc import backward_passes, reduction
from horoacc.dtypes import Average, Min, Sum
from horoacc.process_sets import ProcessSet


@pytest.mark.parametrize(
    ("op", "factor", "wanted"),
    [
        (Average, 1.0, (Average, 1.0, 1.0)),
        (Sum, 1.0, (Sum, 1.0, 1.0)),
        (Average, 4.0, (Average, 0.25, 4.0)),
        (Average, 0.5, (Average, 2.0, 0.5)),
    ],
)
def test_scaling(op: int, factor: float, wanted: tuple[int, float, float]) -> None:
    found = reduction.scaling(op, factor)
    assert (found.op, found.prescale, found.postscale) == wanted


@pytest.mark.parametrize(
    ("op", "factor"), [(Sum, 2.0), (Min, 2.0), (Average, 0.0), (Average, -1.0)]
)
def test_scaling_that_makes_no_sense(op: int, factor: float) -> None:
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        reduction.scaling(op, factor)


@given(st.integers(0, 60), st.integers(0, 70))
def test_equal_groups(count: int, groups: int) -> None:
    params = list(range(count))
    parts = reduction.partition(params, groups=groups)
    assert [param for part in parts for param in part] == params
    lengths = [len(part) for part in parts]
    if groups and count:
        assert len(parts) == min(groups, count)
        assert max(lengths) - min(lengths) <= 1
    else:
        assert lengths == [1] * count


@given(st.integers(1, 30), st.data())
def test_given_groups(count: int, data: Any) -> None:
    params = list(range(count))
    labels = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    groups = [[p for p in params if labels[p] == label] for label in range(3)]
    parts = reduction.partition(params, groups=groups)
    assert sorted(param for part in parts for param in part) == params
    for group in groups:
        assert not group or group in parts
    for param in params:
        if labels[param] >= 3:
            assert [param] in parts


def test_group_of_unknown_parameters_is_left_out() -> None:
    assert reduction.partition([1, 2], groups=[[1, 7], [8]]) == [[1], [2]]


@pytest.mark.parametrize("groups", [-1, "two", 1.5, True, [1, 2], [[1], 2], [[1], [1]]])
def test_groups_that_make_no_sense(groups: Any) -> None:
    with pytest.raises(ValueError, match="groups"):
        reduction.partition([1, 2], groups=groups)


def test_schedule_counts_passes_and_groups() -> None:
    schedule = backward_passes.Schedule([["a", "b"], ["c"]], passes=2)
    assert not schedule.touched
    assert not schedule.immediate
    assert [list(schedule.ready(p)) for p in "cab"] == [[], [], []]
    assert schedule.touched
    assert list(schedule.ready("a")) == []
    assert list(schedule.ready("b")) == ["a", "b"]
    assert schedule.missing() == [["c"]]
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        schedule.ready("a")
    schedule.restart()
    assert not schedule.touched
    schedule.set_passes(1)
    assert list(schedule.ready("c")) == ["c"]
    assert schedule.missing() == [["a", "b"]]
    assert schedule.missing() == []


def test_schedule_of_the_usual_case_is_immediate() -> None:
    assert backward_passes.Schedule([["a"], ["b"]], passes=1).immediate
    assert not backward_passes.Schedule([["a", "b"]], passes=1).immediate


@pytest.mark.parametrize("passes", [0, -1, 1.0, "1"])
def test_passes_that_make_no_sense(passes: Any) -> None:
    for kind in (backward_passes.Passes, lambda count: backward_passes.Schedule([["a"]], count)):
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            kind(passes)


@given(st.integers(1, 5), st.booleans(), st.lists(st.integers(-9, 9), max_size=20))
def test_passes_add_up_to_steps(count: int, average: bool, gradients: list[int]) -> None:
    """What frontends do that keep a sum and a count, against slices of the list."""
    passes = backward_passes.Passes(count, average)
    before, total, steps = 0, 10**6, []
    for gradient in gradients:
        total = passes.added(before, total, gradient, lambda test, yes, no: yes if test else no)
        if passes.due(before):
            steps.append(passes.result(total))
        before = passes.after(before)
    whole = [gradients[i : i + count] for i in range(0, len(gradients) - count + 1, count)]
    assert steps == [sum(step) / (count if average else 1) for step in whole]
    assert before == len(gradients) % count


def test_gradients_that_stay_on_their_rank() -> None:
    """Without a job there is no policy that could be silently that of one rank."""
    unregistered = ProcessSet([0])
    with pytest.raises(ValueError, match="not registered"):
        reduction.has_peers(unregistered)
    assert reduction.local_divisor(unregistered, False) == 1
    with pytest.raises(ValueError, match="not registered"):
        reduction.local_divisor(unregistered, True)


def test_groups_by_what_identifies_their_members() -> None:
    assert reduction.keyed([["a", "bb"], ["ccc"]], len) == [[1, 2], [3]]
    assert reduction.keyed([["a"], 3], len) == [[1], 3]
    assert reduction.keyed(2, len) == 2


def test_duplicate_names() -> None:
    assert reduction.find_duplicates(["a", "b", "a", "c", "b"]) == {"a", "b"}
    reduction.check_names(["a", "b"])
    with pytest.raises(ValueError, match="Found duplicates: a, b"):
        reduction.check_names(["a", "b", "b", "a"])
