"""The gradient policy, written once for all frameworks.

It says how a gradient's average is split, which gradients travel together, how local gradients are
scaled, and which arguments are errors; `horoacc.backward_passes` says on which backward pass they
travel. It holds no tensors: a parameter is the key by which its framework identifies it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from horoacc import dtypes
from horoacc.process import is_elastic
from horoacc.process_sets import ProcessSet

Param = TypeVar("Param", bound=Hashable)

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

    The sum is divided by the factor before, so that narrow types do not overflow, and by
    `size/factor` after; the core's Average divides by `size` itself. ValueError if a factor was
    given with a reduction other than Average, or is not positive.
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


def has_peers(process_set: ProcessSet) -> bool:
    """Says whether gradients travel at all: this rank is in the set, with others now or later.

    ValueError if the set is not registered, or `init()` was not called.
    """
    included = process_set.included()
    if included is None:  # it would train alone, unnoticed
        raise ValueError(f"{process_set} is not registered; use hvd.add_process_set().")
    return included and ((process_set.size() or 1) > 1 or is_elastic())


def local_divisor(process_set: ProcessSet, scale_local_gradients: bool) -> int:
    """Gives the divisor of a gradient that stays on its rank.

    `scale_local_gradients` divides it as an average divides those that travel, so that the learning
    rate of the whole model suits both.
    """
    return (process_set.size() or 1) if scale_local_gradients and has_peers(process_set) else 1


def find_duplicates(lst: Iterable[Hashable]) -> set[Hashable]:
    """Finds values that occur more than once.

    Args:
        lst: Names.

    Returns:
        Those that occur at least twice.

    Raises:
        TypeError: It is no iterable, or has something in it that cannot be hashed.
    """
    return {name for name, count in Counter(lst).items() if count > 1}


def check_names(names: Sequence[str]) -> None:
    """Checks that parameter names identify parameters; ValueError if some occur twice."""
    duplicates = find_duplicates(names)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(sorted(str(name) for name in duplicates))
        )


def chosen_groups(num_groups: int, groups: Any) -> Any:
    """Gives the groups of a call, by the newer name or by the older one, which warns."""
    if num_groups:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed.",
            DeprecationWarning,
            stacklevel=3,
        )
    return groups if groups is not None else num_groups


def keyed(groups: Any, key: Callable[[Any], Hashable]) -> Any:
    """Gives groups by the keys of their members; frameworks' variables cannot be compared.

    Another value than a list stays as it is, for `partition` to judge.
    """
    if not isinstance(groups, (list, tuple)):
        return groups
    return [
        [key(variable) for variable in group] if isinstance(group, (list, tuple)) else group
        for group in groups
    ]


def partition(params: Sequence[Param], groups: int | Sequence[Any]) -> list[list[Param]]:
    """Says which gradients travel as one unit, in the order in which they are expected.

    `groups` is a number of groups of about equal length (0: no groups), or lists of parameters.
    Every parameter is in exactly one group of the result; one that is in no list travels alone.
    ValueError if the groups make no sense.
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
