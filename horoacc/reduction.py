"""The gradient policy, written once for all frameworks.

It says how a gradient's average is split, which gradients travel together, on which backward pass
they travel, and what is an error. It holds no tensors: a parameter is whatever the framework
identifies it by.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from horoacc import dtypes

Param = TypeVar("Param", bound=Hashable)

BACKWARD_TOO_OFTEN = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
ZERO_GRAD_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)
STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code."
)


@dataclass(frozen=True)
class Scaling:
    """How one gradient is reduced."""

    op: int
    prescale: float = 1.0
    postscale: float = 1.0


def scaling(op: int, gradient_predivide_factor: float = 1.0) -> Scaling:
    """Splits an average into a division before the sum and one after it.

    Args:
        op: The reduction.
        gradient_predivide_factor: The part of the division by `size` to do before the sum, so
            that narrow types do not overflow: the sum is divided by the factor before and by
            `size / factor` after.

    Returns:
        The reduction with its factors; the core's Average divides by `size` itself.

    Raises:
        ValueError: A factor was given with a reduction other than Average, or is not positive.
    """
    if gradient_predivide_factor == 1.0:
        return Scaling(op)
    if op != dtypes.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not gradient_predivide_factor > 0.0:
        raise ValueError(
            f"gradient_predivide_factor must be positive, but is {gradient_predivide_factor}."
        )
    return Scaling(op, 1.0 / gradient_predivide_factor, gradient_predivide_factor)


def check_passes(passes: Any) -> int:
    """Checks `backward_passes_per_step`.

    Args:
        passes: The number of backward passes that one step accumulates.

    Returns:
        The number.

    Raises:
        ValueError: It is not a positive integer.
    """
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a positive integer, not {passes!r}.")
    return passes


def find_duplicates(names: Iterable[Hashable]) -> set[Hashable]:
    """Finds what occurs more than once.

    Args:
        names: Names.

    Returns:
        Those that occur at least twice.
    """
    return {name for name, count in Counter(names).items() if count > 1}


def check_names(names: Sequence[str]) -> None:
    """Checks that parameter names identify parameters.

    Args:
        names: The names.

    Raises:
        ValueError: Some occur twice.
    """
    duplicates = find_duplicates(names)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(sorted(str(name) for name in duplicates))
        )


def chosen_groups(num_groups: int, groups: Any) -> Any:
    """Gives what groups were asked for, by the newer or the older name.

    Args:
        num_groups: The older name's value; 0 if it was not used.
        groups: The newer one's; None if it was not used.

    Returns:
        A number, or lists of parameters.
    """
    if num_groups:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed.",
            DeprecationWarning,
            stacklevel=3,
        )
    return groups if groups is not None else num_groups


def partition(params: Sequence[Param], groups: int | Sequence[Any]) -> list[list[Param]]:
    """Says which gradients travel as one unit.

    Args:
        params: The parameters, in the order in which their gradients are expected.
        groups: A number of groups of about equal length (0: no groups), or lists of parameters.
            A parameter that is in no list travels alone.

    Returns:
        The groups. Every parameter is in exactly one; those of length 1 travel alone.

    Raises:
        ValueError: The groups make no sense.
    """
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(
                "groups should be a non-negative integer or a list of lists of parameters, "
                f"not {groups}."
            )
        return _equal_parts(params, groups) if groups else [[param] for param in params]
    if not isinstance(groups, (list, tuple)):
        raise ValueError(
            "groups should be a non-negative integer or a list of lists of parameters, "
            f"not {groups!r}."
        )
    return _given_parts(params, groups)


def _equal_parts(params: Sequence[Param], count: int) -> list[list[Param]]:
    count = min(count, len(params))
    if count == 0:
        return []
    length, longer = divmod(len(params), count)
    parts, begin = [], 0
    for index in range(count):
        end = begin + length + (1 if index < longer else 0)
        parts.append(list(params[begin:end]))
        begin = end
    return parts


def _given_parts(params: Sequence[Param], groups: Sequence[Any]) -> list[list[Param]]:
    known = set(params)
    seen: set[Param] = set()
    parts: list[list[Param]] = []
    for group in groups:
        if not isinstance(group, (list, tuple)):
            raise ValueError(
                "groups should be a list of lists of parameters, but it holds "
                f"a {type(group).__name__}."
            )
        # A parameter that the optimizer does not have, or that is frozen, sends no gradient.
        members = [param for param in group if param in known]
        for param in members:
            if param in seen:
                raise ValueError("groups must be disjoint, but a parameter is in two of them.")
            seen.add(param)
        if members:
            parts.append(members)
    parts.extend([param] for param in params if param not in seen)
    return parts


class Schedule(Generic[Param]):
    """Counts backward passes and says which groups of gradients are to be submitted now.

    A gradient is due on its `passes`-th backward pass. A group is due when its last member is.
    """

    def __init__(self, parts: Sequence[Sequence[Param]], passes: int) -> None:
        self.passes = check_passes(passes)
        self._parts = [list(part) for part in parts]
        self._part_of = {param: index for index, part in enumerate(parts) for param in part}
        self._left: dict[Param, int] = {}
        self._waiting: list[int] = []
        self._submitted: set[int] = set()
        self._touched = False
        self.restart()

    @property
    def touched(self) -> bool:
        """Whether a backward pass began since the last step."""
        return self._touched

    @property
    def immediate(self) -> bool:
        """Whether every gradient is due, alone, as soon as it is computed."""
        return self.passes == 1 and all(len(part) == 1 for part in self._parts)

    @property
    def params(self) -> Iterable[Param]:
        """All parameters, group by group."""
        return self._part_of

    def set_passes(self, passes: int) -> None:
        """Changes the number of backward passes of a step, from the next step on.

        Args:
            passes: The number.
        """
        self.passes = check_passes(passes)
        self.restart()

    def restart(self) -> None:
        """Begins a step: nothing has been accumulated."""
        self._left = dict.fromkeys(self._part_of, self.passes)
        self._waiting = [len(part) for part in self._parts]
        self._submitted.clear()
        self._touched = False

    def ready(self, param: Param) -> Sequence[Param]:
        """Notes that a gradient was computed.

        Args:
            param: Whose gradient.

        Returns:
            The parameters to submit now, as one unit; none if it is not time yet.

        Raises:
            AssertionError: It was computed too often since the last step.
        """
        left = self._left[param] - 1
        if left < 0:
            raise AssertionError(BACKWARD_TOO_OFTEN)
        self._left[param] = left
        self._touched = True
        if left:
            return ()
        index = self._part_of[param]
        self._waiting[index] -= 1
        if self._waiting[index]:
            return ()
        self._submitted.add(index)
        return self._parts[index]

    def missing(self) -> list[list[Param]]:
        """Ends the step: what other ranks may have submitted and this one has not.

        Returns:
            The groups that are still to be submitted, in order.
        """
        rest = [part for index, part in enumerate(self._parts) if index not in self._submitted]
        self._submitted.update(range(len(self._parts)))
        return rest
