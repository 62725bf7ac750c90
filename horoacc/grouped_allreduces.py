"""Allreduce of several tensors as one unit, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles, process
from horoacc.calls import ALLREDUCE, check_factors, member_names, resolve_op
from horoacc.coded_allreduce import allreduce_coded
from horoacc.complaints import check_group, complaining
from horoacc.compression import Compressor, NoneCompressor, decompress_all, is_codec
from horoacc.engine_outputs import EngineOutputs
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.tensors import Restore, place_of_all, stream_of

if TYPE_CHECKING:
    from horoacc._core import Output


class GroupedAllreduce(EngineOutputs):
    """Allreduce of several tensors."""

    def _reduce_group(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int | None,
        average: bool | None,
        scales: tuple[float, float],
        process_set: ProcessSet,
        in_place: bool,
    ) -> int:
        """Submits several tensors as one unit."""
        names = member_names("allreduce", name, len(tensors))
        restores: list[Restore | None] = [None] * len(tensors)
        with complaining(ALLREDUCE, names[0], process_set, grouped=True):
            op = resolve_op(op, average)
            kind = self._choose(tensors[0])
            if in_place:
                inputs = outputs = [kind.writable(tensor) for tensor in tensors]
            else:
                inputs = []
                for index, tensor in enumerate(tensors):
                    readable, restores[index] = kind.readable(tensor)
                    inputs.append(readable)
                outputs = [kind.empty_like(tensor) for tensor in inputs]
            place = place_of_all(kind, inputs)
            views = [kind.view(tensor) for tensor in inputs]
            targets = views if in_place else [kind.view(tensor) for tensor in outputs]
            prescale, postscale = check_factors(scales)
            number = set_number(process_set)
        members = [
            (member, pointer, target[0], shape, dtype)
            for member, (pointer, shape, dtype), target in zip(names, views, targets, strict=True)
        ]
        engine = process.engine()
        handle = engine.submit(
            ALLREDUCE, members, op, prescale, postscale, process_set=number,
            keep=(inputs, outputs), place=place, grouped=True,
        )  # fmt: skip
        stream = stream_of(kind, place)
        if in_place:
            return handles.start(engine, handle, list(tensors), None, stream)

        def give(_: list[Output]) -> list[Any]:
            return [
                output if restore is None else restore(output)
                for output, restore in zip(outputs, restores, strict=True)
            ]

        return handles.start(engine, handle, None, give, stream)

    def grouped_allreduce_async(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction of several tensors as one unit; else as for `allreduce_async`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_group(tensors, ALLREDUCE, name, process_set)
        return self._reduce_group(
            tensors,
            name,
            op,
            average,
            (prescale_factor, postscale_factor),
            process_set,
            in_place=False,
        )

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        """Reduces several tensors as one unit; arguments and errors as for `allreduce`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            The reduced tensors, in order.
        """
        check_group(tensors, ALLREDUCE, name, process_set)
        if is_codec(compression):
            coded = allreduce_coded(
                self._choose, tensors, compression, name, op, average,
                (prescale_factor, postscale_factor), process_set,
            )  # fmt: skip
            if coded is not None:
                return coded
            compression = NoneCompressor
        first = member_names("allreduce", name, len(tensors))[0]
        with complaining(ALLREDUCE, first, process_set, grouped=True):
            narrow = [compression.compress(tensor) for tensor in tensors]
        handle = self._reduce_group(
            [tensor for tensor, _ in narrow],
            name,
            op,
            average,
            (prescale_factor, postscale_factor),
            process_set,
            in_place=False,
        )
        return decompress_all(compression, handles.result(handle), narrow)

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction of several tensors in place; else as for `allreduce_async_`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_group(tensors, ALLREDUCE, name, process_set)
        return self._reduce_group(
            tensors,
            name,
            op,
            average,
            (prescale_factor, postscale_factor),
            process_set,
            in_place=True,
        )

    def grouped_allreduce_(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        """Reduces several tensors in place; arguments and errors as for `allreduce_`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            The same tensors.
        """
        check_group(tensors, ALLREDUCE, name, process_set)
        handle = self._reduce_group(
            tensors,
            name,
            op,
            average,
            (prescale_factor, postscale_factor),
            process_set,
            in_place=True,
        )
        return handles.result(handle)  # type: ignore[no-any-return]
