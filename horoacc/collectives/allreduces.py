"""Allreduce of one tensor and of several as one unit, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles, process
from horoacc.collectives.calls import ALLREDUCE, check_factors, member_names, resolve_op
from horoacc.collectives.coded_allreduce import allreduce_coded
from horoacc.collectives.engine_outputs import EngineOutputs, T
from horoacc.collectives.tensors import Restore, place_of_all, stream_of
from horoacc.collectives.validation_errors import check_group, send_validation_error, validating
from horoacc.compression import Compressor, NoneCompressor, decompress_all, is_codec
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number

if TYPE_CHECKING:
    from horoacc._core import Output


class Allreduces(EngineOutputs[T]):
    """Allreduce in all its variants."""

    def _reduce(
        self,
        tensor: T,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool,
        wait: bool,
    ) -> Any:
        """Submits one tensor; returns the result if `wait`, else a handle.

        A blocking call of a small tensor takes as long as this method, and longer with more ranks
        than cores, when each rank finds the caches cold.
        """
        full_name = None if name is None else f"allreduce.{name}"
        restore: Restore | None = None
        try:
            op = resolve_op(op, average)
            kind = self._choose(tensor)
            if in_place:
                source = output = kind.writable(tensor)
                pointer, shape, dtype = kind.view(source)
                target = pointer
            else:
                source, restore = kind.readable(tensor)
                output = kind.empty_like(source)
                pointer, shape, dtype = kind.view(source)
                target = kind.address(output)
            place = kind.place(source)
            prescale, postscale = float(prescale), float(postscale)
            number = set_number(process_set)
        except Exception as error:
            send_validation_error(error, ALLREDUCE, full_name, process_set)
            raise
        engine = process.engine()
        handle = engine.allreduce(
            full_name, pointer, target, shape, dtype, op, prescale, postscale,
            number, (source, output), wait, place,
        )  # fmt: skip
        if wait:
            if in_place:
                return tensor
            return output if restore is None else restore(output)
        stream = stream_of(kind, place)
        if in_place:
            return handles.start(engine, handle, tensor, None, stream)
        if restore is None:
            return handles.start(engine, handle, output, None, stream)
        finish = restore
        return handles.start(engine, handle, None, lambda _: finish(output), stream)

    def _reduce_group(
        self,
        tensors: Sequence[T],
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool,
    ) -> int:
        """Submits several tensors as one unit."""
        check_group(tensors, ALLREDUCE, name, process_set)
        names = member_names("allreduce", name, len(tensors))
        restores: list[Restore | None] = [None] * len(tensors)
        with validating(ALLREDUCE, names[0], process_set, grouped=True):
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
            prescale, postscale = check_factors((prescale, postscale))
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

    def _differentiable_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None,
        name: str | None,
        compression: type[Compressor],
        op: int | None,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[T]:
        """Compresses tensors, reduces them and gives the results in their own types."""
        if is_codec(compression):
            coded = allreduce_coded(
                self._choose, tensors, compression, name, op, average, scales, process_set
            )
            if coded is not None:
                return coded
            compression = NoneCompressor
        first = member_names("allreduce", name, len(tensors) if grouped else None)[0]
        with validating(ALLREDUCE, first, process_set, grouped=grouped):
            narrow = [compression.compress(tensor) for tensor in tensors]
        given = [tensor for tensor, _ in narrow]
        call = (average, name, op, *scales, process_set)
        if grouped:
            reduced = handles.result(self._reduce_group(given, *call, False))
        else:
            reduced = [self._reduce(given[0], *call, False, True)]
        return decompress_all(compression, reduced, narrow)

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction over all ranks.

        Args:
            tensor: The tensor, of any shape and type but that bool has no Average, complex numbers
                have no Min and Max, and Adasum is for floating-point numbers. Shape and type are
                the same on all ranks. Not changed.
            average: Older way to say `op=Average` (True) or `op=Sum` (False).
            name: The same on all ranks; calls without one are matched by their order.
            op: The reduction; Average by default.
            prescale_factor: Factor of each rank's tensor before the reduction.
            postscale_factor: Factor of the result.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work, or the name belongs to a handle that nobody has
                synchronised yet. What goes wrong later is raised by `synchronize`.
        """
        return self._reduce(  # type: ignore[no-any-return]
            tensor, average, name, op, prescale_factor, postscale_factor, process_set, False, False
        )

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Reduces a tensor over all ranks.

        Args:
            tensor: The tensor, of any shape and type but that bool has no Average, complex numbers
                have no Min and Max, and Adasum is for floating-point numbers. Shape and type are
                the same on all ranks. Not changed.
            average: Older way to say `op=Average` (True) or `op=Sum` (False).
            name: The same on all ranks; calls without one are matched by their order.
            compression: How to make the tensor narrower while it travels.
            op: The reduction; Average by default.
            prescale_factor: Factor of each rank's tensor before the reduction.
            postscale_factor: Factor of the result.
            process_set: The ranks that take part.

        Returns:
            The reduced tensor, of the same shape and type, with the same bits on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        if compression is NoneCompressor and self._only_values((tensor,)):
            return self._reduce(  # type: ignore[no-any-return]
                tensor, average, name, op, prescale_factor, postscale_factor, process_set,
                False, True,
            )  # fmt: skip
        scales = (prescale_factor, postscale_factor)
        return self._differentiable_allreduce(
            [tensor], average, name, compression, op, scales, process_set, False
        )[0]

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction in place; arguments and errors as for `allreduce_async`.

        The tensor is contiguous and writable, and must not be touched before `synchronize`.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        return self._reduce(  # type: ignore[no-any-return]
            tensor, average, name, op, prescale_factor, postscale_factor, process_set, True, False
        )

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Reduces a tensor in place; arguments and errors as for `allreduce`.

        The tensor is contiguous and writable, and gets the result.

        Returns:
            The same tensor.
        """
        return self._reduce(  # type: ignore[no-any-return]
            tensor, average, name, op, prescale_factor, postscale_factor, process_set, True, True
        )

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
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
        return self._reduce_group(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set, False
        )

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Reduces several tensors as one unit; arguments and errors as for `allreduce`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            The reduced tensors, in order.
        """
        check_group(tensors, ALLREDUCE, name, process_set)
        scales = (prescale_factor, postscale_factor)
        return self._differentiable_allreduce(
            tensors, average, name, compression, op, scales, process_set, True
        )

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
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
        return self._reduce_group(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set, True
        )

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Reduces several tensors in place; arguments and errors as for `allreduce_`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            The same tensors.
        """
        return handles.result(  # type: ignore[no-any-return]
            self._reduce_group(
                tensors, average, name, op, prescale_factor, postscale_factor, process_set, True
            )
        )
