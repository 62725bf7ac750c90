"""The gradients of one Keras optimizer: named, accumulated, reduced.

`horoacc.reduction` and `horoacc.backward_passes` decide what to reduce and when, the module of the
backend how it travels; this module knows the variables of an optimizer of Keras.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from horoacc import reduction
from horoacc.backward_passes import Passes
from horoacc.compression import Compressor
from horoacc.gradient_calls import obstacle_of
from horoacc.keras import backend
from horoacc.keras.backend import Member, Travel
from horoacc.keras.reduced_ahead import ReducedAhead
from horoacc.process_sets import ProcessSet, number_of


@dataclass(frozen=True)
class Options:
    """The arguments of a `DistributedOptimizer`."""

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

    def __init__(self, options: Options, key: Callable[[Any], Hashable]) -> None:
        """Checks the options; `key` gives each variable a key of its own."""
        self.options = options
        self._key = key
        backend.current().teach_optimizers()
        self._scaling = reduction.scaling(options.op, options.gradient_predivide_factor)
        self._step_of = Passes(
            options.backward_passes_per_step, options.average_aggregated_gradients
        )
        self._groups = reduction.keyed(options.groups, key)
        reduction.partition([], self._groups)  # refuses arguments that make no sense
        self._local: set[Hashable] = set()
        self._names: dict[Hashable, str] = {}
        self._travel: Travel | None = None
        self.ahead = ReducedAhead(options.op)
        """The gradients that were reduced before they are applied."""
        self._done = False
        self._overflow_counts = False
        self._sums: dict[Hashable, Any] = {}
        self._seen: set[Hashable] = set()
        self.counter: Any = 0
        """The number of passes that are accumulated: a variable, if there can be any."""

    @property
    def obstacle(self) -> str:
        """Why an elastic job must not go forward after an error of a gradient; "" if it may."""
        return obstacle_of(self.options.op, self.passes, self.options.process_set)

    @property
    def passes(self) -> int:
        """The number of backward passes of a step."""
        return self._step_of.count

    def add_local(self, variable: Any) -> None:
        """Leaves a variable's gradient to this rank."""
        self._local.add(self._key(variable))

    def build(self, variables: Iterable[Any]) -> None:
        """Prepares for all trained variables: makes the sums, and registers the gradients."""
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
            backend.current().register(variables, self.options.compression)

    def reduces(self) -> bool:
        """Whether there are other ranks to reduce with."""
        return reduction.has_peers(self.options.process_set)

    def trains_everywhere(self) -> bool:
        """Whether all ranks make the same steps."""
        return self.reduces() and number_of(self.options.process_set) == 0

    def apply(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        step: Callable[[Sequence[Any]], Any],
    ) -> None:
        """Reduces gradients and steps with them, if this pass is the last of a step.

        If `step` comes back here, they are not reduced again.
        """
        if self._done or self.ahead.covers(gradients):
            self._step(step, gradients)
        elif self.passes == 1:
            self._step(step, self.reduce(gradients, variables))
        else:
            due = self._accumulate(gradients, variables)

            def end() -> None:
                self._step(step, self.reduce(self._totals(variables), variables))
                self._seen.clear()

            keras.ops.cond(due, end, lambda: None)

    def _step(self, step: Callable[[Sequence[Any]], Any], gradients: Sequence[Any]) -> None:
        with self.leaving_as_they_are():
            step(gradients)

    @property
    def steps(self) -> bool:
        """Whether the optimizer steps just now, with gradients that it is to leave as they are."""
        return self._done

    @contextlib.contextmanager
    def leaving_as_they_are(self) -> Iterator[None]:
        """Has `apply` step with the gradients that it gets."""
        before, self._done = self._done, True
        try:
            yield
        finally:
            self._done = before

    def agree_on_overflow(self) -> None:
        """From now on gradients that are not finite are so on all ranks, local ones as well.

        The loss scaler looks at them, and may skip the step.
        """
        self._overflow_counts = True

    def restart(self) -> None:
        """Begins a step: no pass of it has been accumulated."""
        if self._sums:
            self.counter.assign(0)
        self._seen.clear()
        self.ahead.forget()

    def _accumulate(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Adds a pass to the sums of its step; says whether it is the last."""
        self.build(variables)
        before = self.counter + 0
        for gradient, variable in zip(gradients, variables, strict=True):
            key = self._key(variable)
            if key not in self._sums:
                raise ValueError(
                    f"The optimizer was not built for {variable.name!r}, so its gradients cannot "
                    "be accumulated."
                )
            total = self._sums[key]
            if gradient is None:  # another pass of the step may have one
                gradient = keras.ops.zeros_like(total)
            else:
                self._seen.add(key)
            dense = backend.current().dense(gradient)
            total.assign(self._step_of.added(before, total, dense, keras.ops.where))
        self.counter.assign(self._step_of.after(before))
        return self._step_of.due(before)

    def _totals(self, variables: Sequence[Any]) -> list[Any]:
        """The gradients to reduce if the step ends; None for a variable without a gradient."""
        keys = [self._key(variable) for variable in variables]
        return [
            self._step_of.result(self._sums[key].value) if key in self._seen else None
            for key in keys
        ]

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients, of which some may be None; local variables keep this rank's."""
        reduced = list(gradients)
        if not self.reduces():
            return reduced
        place = backend.current()
        keys = [self._key(variable) for variable in variables]
        local = self._local | {
            self._key(variable) for layer in self.options.local_layers
            for variable in layer.trainable_weights
        }  # fmt: skip
        divisor = place.local_divisor(self.options.process_set, self.options.scale_local_gradients)
        wanted: dict[Hashable, int] = {}
        for index, (key, gradient) in enumerate(zip(keys, gradients, strict=True)):
            if key in local:
                if gradient is not None and not (isinstance(divisor, int) and divisor == 1):
                    reduced[index] = place.scaled(gradient, 1 / divisor)
                    self.ahead.twice_is_once = False
            elif gradient is not None or place.sends_absent:
                wanted[key] = index
        if not wanted:
            return reduced
        travel = self._prepared(keys, variables)
        place.note(self, travel.name, self.obstacle)
        parts = reduction.partition(list(wanted), self._groups)
        members = [
            [Member(self._names[key], gradients[wanted[key]], variables[wanted[key]])
             for key in part]
            for part in parts
        ]  # fmt: skip
        order = [wanted[key] for part in parts for key in part]
        for index, gradient in zip(order, place.reduce_gradients(members, travel), strict=True):
            reduced[index] = gradient
        if self._overflow_counts and not local.isdisjoint(keys):
            mine = [gradients[index] for index, key in enumerate(keys) if key in local]
            finite = place.all_finite([one for one in mine if one is not None], travel)
            first = next(index for index, one in enumerate(reduced) if one is not None)
            reduced[first] = place.spoiled_unless(finite, reduced[first])
        return place.tied(reduced)

    def _prepared(self, keys: Sequence[Hashable], variables: Sequence[Any]) -> Travel:
        """Names gradients that are reduced for the first time, alike on all ranks."""
        options = self.options
        if self._travel is None:
            # No counter: this rank may have used more optimizers than the others. Optimizers of as
            # many variables share names, and use them in turn.
            name = options.name or f"gradients.of{len(keys)}"
            self._travel = Travel(
                name,
                self._scaling,
                options.compression,
                options.sparse_as_dense,
                options.process_set,
            )
        for key, variable in zip(keys, variables, strict=True):
            # Not by its path: the paths of a loaded model differ from those of a new one.
            if key not in self._names:
                title = variable.name.partition(":")[0].rpartition("/")[2]
                self._names[key] = f"{self._travel.name}.{len(self._names)}.{title}"
        return self._travel


class _FromConfig:
    """`from_config` of an optimizer makes one that is distributed like it, as in Horovod.

    That of the class makes one which gets its `GradientReduction` afterwards.
    """

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is not None:
            return instance._like_it
        above: Any = super(owner, owner)
        return above.from_config


class ReducesGradients:
    """Mixed in before an optimizer's class: the base of all distributed optimizers."""

    _reduction: GradientReduction

    @property
    def _accumulation(self) -> Any:
        """What adds up several passes."""
        return self._reduction

    def _begin_step(self) -> None:
        """Forgets the passes of a step, and gradients that are not applied."""
        self._reduction.restart()

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable to this rank: its gradient is not reduced.

        Args:
            var: The variable.
        """
        self._reduction.add_local(var)


@functools.cache
def derived_class(mixed_in: type[ReducesGradients], base: type) -> Any:
    """Derives a class of distributed optimizers; to serialization they are of the class `base`."""
    names = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__class__": property(lambda self: base),
        "from_config": _FromConfig(),
        # Horovod's name.
        "_agg_helper": property(lambda self: self._accumulation),
    }
    return type(base)(base.__name__, (mixed_in, base), names)


def is_distributed(optimizer: Any) -> bool:
    """Says whether an object is a result of `DistributedOptimizer`."""
    return issubclass(type(optimizer), ReducesGradients)
