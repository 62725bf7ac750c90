"""How several backward passes make one step: the policy of all frameworks, without any of them.

Where autograd adds up a parameter's gradients itself, as torch does, `Schedule` counts them
parameter by parameter. Other frontends keep a sum for each variable and one count, and `Passes`
computes the next ones; a count may be an integer, a tensor, or a tensor of a graph that is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

Param = TypeVar("Param", bound=Hashable)

BACKWARD_TOO_OFTEN = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


def check_passes(passes: Any) -> int:
    """Checks `backward_passes_per_step`; ValueError if it is no positive integer."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a positive integer, not {passes!r}.")
    return passes


class Passes:
    """The arithmetic of a step of several backward passes.

    `before` is the number of passes that the step has had. Nothing is ever cleared: the first pass
    of a step replaces the sums, so that a graph needs no order between taking and
    clearing.
    """

    def __init__(self, count: int, average: bool = False) -> None:
        """Has `count` passes make a step; `average` divides the sums by their number."""
        self.count = check_passes(count)
        self._average = average

    def due(self, before: Any) -> Any:
        """Says whether the next pass is the last of its step; `before` counts those before it."""
        return before >= self.count - 1

    def after(self, before: Any) -> Any:
        """Counts a pass; gives 0 if it was the last of its step."""
        return (before + 1) % self.count

    def added(self, before: Any, total: Any, gradient: Any, where: Callable[..., Any]) -> Any:
        """Adds a pass's gradient to its step's total; `where` is the framework's choice of two."""
        return where(before < 1, gradient, total + gradient)

    def result(self, total: Any) -> Any:
        """Gives the gradient to reduce after the last pass: the sum, or the average if wanted."""
        return total / self.count if self._average and self.count > 1 else total


def begin_step(optimizer: Any) -> None:
    """Has a distributed optimizer of Keras, also in a loss scaler, forget its passes."""
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        begin = getattr(one, "_begin_step", None)
        if begin is not None:
            begin()


class Schedule(Generic[Param]):
    """Counts backward passes and says which groups of gradients are to be submitted now.

    A gradient is due on its `passes`-th backward pass. A group is due when its last member is.
    """

    def __init__(self, parts: Sequence[Sequence[Param]], passes: int) -> None:
        self._step = Passes(passes)
        self._parts = [list(part) for part in parts]
        self._part_of = {param: index for index, part in enumerate(parts) for param in part}
        self._done: dict[Param, int] = {}
        self._waiting: list[int] = []
        self._submitted: set[int] = set()
        self._touched = False
        self._begin()

    @property
    def passes(self) -> int:
        """The number of backward passes of a step."""
        return self._step.count

    @property
    def touched(self) -> bool:
        """Whether a backward pass began since the last step."""
        return self._touched

    @property
    def immediate(self) -> bool:
        """Whether every gradient is due, alone, as soon as it is computed."""
        return self.passes == 1 and all(len(part) == 1 for part in self._parts)

    @property
    def params(self) -> Collection[Param]:
        """All parameters, group by group."""
        return self._part_of

    def add(self, params: Iterable[Param]) -> None:
        """Adds parameters that are due alone, from the next step on."""
        for param in params:
            self._part_of[param] = len(self._parts)
            self._parts.append([param])
        self._begin()

    def set_passes(self, passes: int) -> None:
        """Changes the number of backward passes of a step, from the next step on."""
        self._step = Passes(passes)
        self._begin()

    def restart(self) -> None:
        """Begins a step: nothing has been accumulated."""
        if self._touched or self._submitted:  # not where hooks in C++ count
            self._begin()

    def _begin(self) -> None:
        self._done = dict.fromkeys(self._part_of, 0)
        self._waiting = [len(part) for part in self._parts]
        self._submitted.clear()
        self._touched = False

    def ready(self, param: Param) -> Sequence[Param]:
        """Notes a computed gradient; gives the parameters to submit now as one unit, maybe none."""
        before = self._done[param]
        if before == self.passes:
            raise AssertionError(BACKWARD_TOO_OFTEN)
        self._done[param] = before + 1
        self._touched = True
        if not self._step.due(before):
            return ()
        index = self._part_of[param]
        self._waiting[index] -= 1
        if self._waiting[index]:
            return ()
        self._submitted.add(index)
        return self._parts[index]

    def missing(self) -> list[list[Param]]:
        """Ends the step; gives groups that other ranks may have submitted and this one has not."""
        rest = [part for index, part in enumerate(self._parts) if index not in self._submitted]
        self._submitted.update(range(len(self._parts)))
        return rest
