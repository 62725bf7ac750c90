"""Submits collectives whose outputs the engine allocates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horoacc import handles, process
from horoacc.collectives.tensors import Tensors, place_of_all, stream_of
from horoacc.collectives.validation_errors import validating
from horoacc.process_sets import ProcessSet
from horoacc.process_sets import number_of as set_number

if TYPE_CHECKING:
    from horoacc._core import Output


T = TypeVar("T")
"""A caller's tensor."""


class EngineOutputs(Generic[T]):
    """The part that all-gather, all-to-all and reduce-scatter share."""

    def __init__(self, choose: Callable[[Any], Tensors]) -> None:
        """Makes the functions.

        Args:
            choose: Finds how to treat a caller's tensor.
        """
        self._choose = choose

    def _only_values(self, tensors: Sequence[T]) -> bool:
        """Says whether neither autograd nor a compiler has to see a call with these tensors.

        A frontend with autograd overrides this method and the `_differentiable_...` methods, which
        run all calls that wait and return new tensors.
        """
        return True

    def _submit(
        self,
        collective: int,
        tensors: Sequence[Any],
        names: Sequence[str | None],
        process_set: ProcessSet,
        finish: Callable[[list[Any], list[Output]], Any],
        part: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> int:
        """Submits a call of which the engine allocates the outputs; with `each` it is a group's.

        If `part` gives a part of a tensor that is like this rank's output, a GPU's result has
        memory at once, and is not copied from the engine's.
        """
        grouped = finish is each
        with validating(collective, names[0], process_set, grouped=grouped):
            kind = self._choose(tensors[0])
            found = [kind.readable(tensor) for tensor in tensors]
            views = [kind.view(tensor) for tensor, _ in found]
            place = place_of_all(kind, [tensor for tensor, _ in found])
            number = set_number(process_set)
        made: list[Any] = [None] * len(found)
        if part is not None and place is not None:
            made = [kind.empty_like(part(tensor)) for tensor, _ in found]
        members = [
            (name, pointer, 0 if output is None else kind.address(output), shape, dtype)
            for name, (pointer, shape, dtype), output in zip(names, views, made, strict=True)
        ]
        engine = process.engine()
        handle = engine.submit(
            collective, members, process_set=number,
            keep=([tensor for tensor, _ in found], made), place=place, grouped=grouped,
            **arguments,
        )  # fmt: skip

        def give(outputs: list[Output]) -> Any:
            results = []
            left = iter(outputs)  # those of the engine's memory
            for (_, _, address, *_), own, (_, restore) in zip(members, made, found, strict=True):
                result = own if address else kind.owned(next(left), place)
                results.append(result if restore is None else restore(result))
            return finish(results, outputs)

        return handles.start(engine, handle, None, give, stream_of(kind, place))


def only(results: list[Any], _: list[Output]) -> Any:
    """Gives the one result of a call that is not grouped."""
    return results[0]


def each(results: list[Any], _: list[Output]) -> list[Any]:
    """Gives the results of a grouped call."""
    return results
