"""Allreduce of one tensor, for every kind of tensor."""

from __future__ import annotations

from typing import Any

from horoacc import handles, process
from horoacc.calls import ALLREDUCE, resolve_op
from horoacc.coded_allreduce import allreduce_coded
from horoacc.complaints import complain, complaining
from horoacc.compression import Compressor, NoneCompressor, is_codec
from horoacc.engine_outputs import EngineOutputs
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.tensors import Restore, stream_of


def _full(name: str | None) -> str | None:
    return None if name is None else f"allreduce.{name}"


class Allreduce(EngineOutputs):
    """Allreduce of one tensor."""

    def _reduce(
        self,
        tensor: Any,
        name: str | None,
        op: int | None,
        average: bool | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool,
        wait: bool,
    ) -> Any:
        """Submits one tensor and gives a handle or, if it is to wait, the result.

        A blocking call of a small tensor is as fast as this is short, and more so with more ranks
        than cores, when each finds the caches cold.
        """
        full_name = _full(name)
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
            complain(error, ALLREDUCE, full_name, process_set)
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

    def allreduce_async(
        self,
        tensor: Any,
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
            prescale_factor: What each rank's tensor is multiplied by before.
            postscale_factor: What the result is multiplied by.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work, or the name belongs to a handle that nobody has
                synchronised yet. What goes wrong later is raised by `synchronize`.
        """
        return self._reduce(  # type: ignore[no-any-return]
            tensor,
            name,
            op,
            average,
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=False,
            wait=False,
        )

    def allreduce(
        self,
        tensor: Any,
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Reduces a tensor over all ranks.

        Args:
            tensor: The tensor, of any shape and type but that bool has no Average, complex numbers
                have no Min and Max, and Adasum is for floating-point numbers. Shape and type are
                the same on all ranks. Not changed.
            average: Older way to say `op=Average` (True) or `op=Sum` (False).
            name: The same on all ranks; calls without one are matched by their order.
            compression: How to make the tensor narrower while it travels.
            op: The reduction; Average by default.
            prescale_factor: What each rank's tensor is multiplied by before.
            postscale_factor: What the result is multiplied by.
            process_set: The ranks that take part.

        Returns:
            The reduced tensor, of the same shape and type, with the same bits on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        scales = (prescale_factor, postscale_factor)
        if compression is not NoneCompressor:
            return self._compressed(compression, tensor, name, op, average, scales, process_set)
        return self._reduce(
            tensor, name, op, average, *scales, process_set, in_place=False, wait=True
        )

    def _compressed(
        self,
        compression: type[Compressor],
        tensor: Any,
        name: str | None,
        op: int | None,
        average: bool | None,
        scales: tuple[float, float],
        process_set: ProcessSet,
    ) -> Any:
        narrow, context = tensor, None
        coded = is_codec(compression)
        if coded:
            results = allreduce_coded(
                self._choose, [tensor], compression, name, op, average, scales, process_set
            )
            if results is not None:
                return results[0]
        else:
            with complaining(ALLREDUCE, _full(name), process_set):
                narrow, context = compression.compress(tensor)
        reduced = self._reduce(
            narrow, name, op, average, *scales, process_set, in_place=False, wait=True
        )
        return reduced if coded else compression.decompress(reduced, context)

    def allreduce_async_(
        self,
        tensor: Any,
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
            tensor,
            name,
            op,
            average,
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=True,
            wait=False,
        )

    def allreduce_(
        self,
        tensor: Any,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Reduces a tensor in place; arguments and errors as for `allreduce`.

        The tensor is contiguous and writable, and gets the result.

        Returns:
            The same tensor.
        """
        return self._reduce(
            tensor,
            name,
            op,
            average,
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=True,
            wait=True,
        )
