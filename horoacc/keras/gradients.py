"""The gradients of one Keras optimizer: named, accumulated, reduced.

What to do with a gradient is decided in `horoacc.reduction`, and how it travels in the module of
the backend; here is what an optimizer of Keras knows of its variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from horoacc import reduction
from horoacc.compression import Compressor
from horoacc.keras import backend
from horoacc.keras.backend import Member, Travel
from horoacc.process_sets import ProcessSet

_serials = itertools.count()


@dataclass(frozen=True)
class Wishes:
    """What a caller of `DistributedOptimizer` has asked for."""

    name: str | None
    compression: type[Compressor]
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: int
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    groups: Any
    process_set: ProcessSet
    local_layers: Sequence[Any]
    scale_local_gradients: bool


class GradientReduction:
    """Reduces the gradients of one optimizer."""

    def __init__(self, wishes: Wishes, key: Callable[[Any], Hashable]) -> None:
        """Checks what was asked for.

        Args:
            wishes: What was asked for.
            key: Tells variables apart.

        Raises:
            ValueError: It makes no sense.
        """
        self._wishes = wishes
        self._key = key
        self._scaling = reduction.scaling(wishes.op, wishes.gradient_predivide_factor)
        self.passes = reduction.check_passes(wishes.backward_passes_per_step)
        self._groups = self._keyed(wishes.groups)
        reduction.partition([], self._groups)  # refuses what makes no sense
        self._local: set[Hashable] = set()
        self._names: dict[Hashable, str] = {}
        self._travel: Travel | None = None
        self._ahead = False
        self._done = False
        self._sums: dict[Hashable, Any] = {}
        self._seen: set[Hashable] = set()
        self.counter: Any = 0
        """The number of passes that are accumulated: a variable, if there can be any."""

    def _keyed(self, groups: Any) -> Any:
        if not isinstance(groups, (list, tuple)):
            return groups
        return [
            [self._key(variable) for variable in group] if isinstance(group, (list, tuple))
            else group for group in groups
        ]  # fmt: skip

    def add_local(self, variable: Any) -> None:
        """Leaves a variable's gradient to this rank.

        Args:
            variable: The variable.
        """
        self._local.add(self._key(variable))

    def build(self, variables: Iterable[Any]) -> None:
        """Prepares for variables: where to accumulate, and what to expect.

        Args:
            variables: All that the optimizer trains.
        """
        variables = list(variables)
        if self.passes > 1 and not self._sums:
            self.counter = keras.Variable(0, dtype="int32", trainable=False, name="passes")
            self._sums = {
                self._key(variable): keras.Variable(
                    keras.ops.zeros(variable.shape, dtype=variable.dtype), trainable=False,
                    dtype=variable.dtype, name="aggregated",
                )
                for variable in variables
            }  # fmt: skip
        if self.reduces():
            backend.current().register(variables, self._wishes.compression)

    def reduces(self) -> bool:
        """Whether there are other ranks to reduce with."""
        process_set = self._wishes.process_set
        return bool(process_set.included()) and (process_set.size() or 1) > 1

    def apply(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        step: Callable[[Sequence[Any]], Any],
    ) -> None:
        """Reduces gradients and steps with them, if this pass is the last of a step.

        Args:
            gradients: One for each variable; None where there is none.
            variables: The variables.
            step: Steps with reduced gradients; if it comes back here, they are not reduced again.
        """
        if self._done or self._ahead:
            self._ahead = False
            step(gradients)
        elif self.passes == 1:
            self._step(step, self.reduce(gradients, variables))
        else:
            self._accumulate(gradients, variables)
            seen = frozenset(self._seen)

            def due() -> None:
                self._step(step, self.reduce(self._taken(variables, seen), variables))
                self._clear()

            keras.ops.cond(keras.ops.equal(self.counter, self.passes), due, lambda: None)

    def _step(self, step: Callable[[Sequence[Any]], Any], gradients: Sequence[Any]) -> None:
        self._done = True
        try:
            step(gradients)
        finally:
            self._done = False

    def reduced_ahead(self) -> None:
        """Notes that the next gradients to be applied are reduced already."""
        self._ahead = True

    def _accumulate(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        self.build(variables)
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is None:
                continue
            key = self._key(variable)
            if key not in self._sums:
                raise ValueError(
                    f"The optimizer was not built for {variable.name!r}, so its gradients cannot "
                    "be accumulated."
                )
            self._sums[key].assign_add(backend.current().dense(gradient))
            self._seen.add(key)
        self.counter.assign_add(1)

    def _taken(self, variables: Sequence[Any], seen: frozenset[Hashable]) -> list[Any]:
        factor = 1.0 / self.passes if self._wishes.average_aggregated_gradients else 1.0
        taken = []
        for variable in variables:
            key = self._key(variable)
            total = self._sums[key].value if key in seen else None
            taken.append(total if total is None or factor == 1.0 else total * factor)
        return taken

    def _clear(self) -> None:
        for total in self._sums.values():
            total.assign(keras.ops.zeros_like(total))
        self.counter.assign(0)
        self._seen.clear()

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients.

        Args:
            gradients: One for each variable; None where there is none.
            variables: The variables.

        Returns:
            The reduced gradients; those of local variables are this rank's own.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        reduced = list(gradients)
        if not self.reduces():
            return reduced
        place = backend.current()
        keys = [self._key(variable) for variable in variables]
        local = self._local | {
            self._key(variable) for layer in self._wishes.local_layers
            for variable in layer.trainable_weights
        }  # fmt: skip
        wanted: dict[Hashable, int] = {}
        for index, (key, gradient) in enumerate(zip(keys, gradients, strict=True)):
            if key in local:
                if gradient is not None and self._wishes.scale_local_gradients:
                    ranks = self._wishes.process_set.size() or 1
                    reduced[index] = place.scaled(gradient, 1.0 / ranks)
            elif gradient is not None or place.sends_absent:
                wanted[key] = index
        if not wanted:
            return reduced
        travel = self._prepared(keys, variables)
        parts = reduction.partition(list(wanted), self._groups)
        members = [
            [Member(self._names[key], gradients[wanted[key]], variables[wanted[key]])
             for key in part]
            for part in parts
        ]  # fmt: skip
        order = [wanted[key] for part in parts for key in part]
        for index, gradient in zip(order, place.reduce_gradients(members, travel), strict=True):
            reduced[index] = gradient
        return reduced

    def _prepared(self, keys: Sequence[Hashable], variables: Sequence[Any]) -> Travel:
        """Names what is reduced for the first time, alike on all ranks."""
        wishes = self._wishes
        if self._travel is None:
            # By the order of first use: a rank may have made some that it does not train with.
            name = wishes.name or f"gradients{next(_serials)}"
            self._travel = Travel(
                name, self._scaling, wishes.compression, wishes.sparse_as_dense, wishes.process_set
            )
        for key, variable in zip(keys, variables, strict=True):
            # Not by its path: a model that was loaded has others than one that was made.
            if key not in self._names:
                title = variable.name.partition(":")[0].rpartition("/")[2]
                self._names[key] = f"{self._travel.name}.{len(self._names)}.{title}"
        return self._travel
