"""All-gather, broadcast and all-to-all, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles, process
from horoacc.collectives.calls import (
    ALLGATHER,
    ALLTOALL,
    BROADCAST,
    check_root,
    check_splits,
    member_names,
)
from horoacc.collectives.engine_outputs import EngineOutputs, T, each, only
from horoacc.collectives.tensors import Restore, stream_of
from horoacc.collectives.validation_errors import check_group, validating
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number

if TYPE_CHECKING:
    from horoacc._core import Output


class Exchanges(EngineOutputs[T]):
    """All-gather, broadcast and all-to-all."""

    def _differentiable_allgather(
        self, tensors: Sequence[T], name: str | None, process_set: ProcessSet, grouped: bool
    ) -> list[T]:
        if grouped:
            return handles.result(self.grouped_allgather_async(tensors, name, process_set))  # type: ignore[no-any-return]
        return [handles.result(self.allgather_async(tensors[0], name, process_set))]

    def allgather_async(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Starts a concatenation of all ranks' tensors along the first dimension.

        Args:
            tensor: The tensor, [rows, ...] of any type. The number of rows may differ between
                ranks, and nothing else may. Not changed.
            name: The same on all ranks; calls without one are matched by their order.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work.
        """
        names = member_names("allgather", name)
        return self._submit(ALLGATHER, [tensor], names, process_set, only)

    def allgather(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Concatenates all ranks' tensors; arguments as for `allgather_async`.

        Returns:
            The concatenation in the order of ranks, [rows of all, ...], on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        return self._differentiable_allgather([tensor], name, process_set, False)[0]

    def grouped_allgather_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts concatenations of several tensors as one unit; else as for `allgather_async`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_group(tensors, ALLGATHER, name, process_set)
        names = member_names("allgather", name, len(tensors))
        return self._submit(ALLGATHER, tensors, names, process_set, each)

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Concatenates several tensors as one unit; arguments and errors as for `allgather`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            The concatenations, in order.
        """
        check_group(tensors, ALLGATHER, name, process_set)
        return self._differentiable_allgather(tensors, name, process_set, True)

    def _broadcast(
        self, tensor: T, root: int, name: str | None, process_set: ProcessSet, in_place: bool
    ) -> int:
        full_name = member_names("broadcast", name)[0]
        restore: Restore | None = None
        with validating(BROADCAST, full_name, process_set):
            kind = self._choose(tensor)
            if in_place:
                source = output = kind.writable(tensor)
            else:
                source, restore = kind.readable(tensor)
                output = kind.empty_like(source)
            pointer, shape, dtype = kind.view(source)
            target = pointer if in_place else kind.view(output)[0]
            place = kind.place(source)
            root = check_root(root)
            number = set_number(process_set)
        engine = process.engine()
        handle = engine.submit(
            BROADCAST,
            [(full_name, pointer, target, shape, dtype)],
            root=root, process_set=number, keep=(source, output), place=place,
        )  # fmt: skip
        stream = stream_of(kind, place)
        if restore is None:
            return handles.start(engine, handle, tensor if in_place else output, None, stream)
        finish = restore
        return handles.start(engine, handle, None, lambda _: finish(output), stream)

    def _differentiable_broadcast(
        self, tensor: T, root: int, name: str | None, process_set: ProcessSet
    ) -> T:
        return handles.result(self._broadcast(tensor, root, name, process_set, in_place=False))  # type: ignore[no-any-return]

    def broadcast_async(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts sending the root's tensor to all ranks.

        Args:
            tensor: The tensor, of any shape and type, both the same on all ranks. Not changed.
            root_rank: The global rank that sends.
            name: The same on all ranks; calls without one are matched by their order.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work.
        """
        return self._broadcast(tensor, root_rank, name, process_set, in_place=False)

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Sends the root's tensor to all ranks; arguments as for `broadcast_async`.

        Returns:
            The root's tensor, of the same shape and type, on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        return self._differentiable_broadcast(tensor, root_rank, name, process_set)

    def broadcast_async_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts sending the root's tensor into all ranks'; else as for `broadcast_async`.

        The tensor is contiguous and writable, and must not be touched before `synchronize`.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        return self._broadcast(tensor, root_rank, name, process_set, in_place=True)

    def broadcast_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Sends the root's tensor into all ranks' tensors; arguments as for `broadcast`.

        The tensor is contiguous and writable.

        Returns:
            The same tensor.
        """
        return handles.result(self._broadcast(tensor, root_rank, name, process_set, in_place=True))  # type: ignore[no-any-return]

    def _row_counts(self, splits: Any) -> list[int] | None:
        """Checks the splits of an all-to-all; raises ValueError or TypeError."""
        return check_splits(splits)

    def _differentiable_alltoall(
        self, tensor: T, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        return handles.result(self.alltoall_async(tensor, splits, name, process_set))

    def alltoall_async(
        self,
        tensor: T,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts sending parts of the first dimension to the other ranks.

        Args:
            tensor: The tensor, [rows, ...] of any type. The number of rows may differ between
                ranks, and nothing else may. Not changed.
            splits: How many rows go to each rank of the set, in order: integers, [size of the
                set], of which the sum is `rows`. Equal parts if None.
            name: The same on all ranks; calls without one are matched by their order.
            process_set: The ranks that take part.

        Returns:
            A handle; `synchronize` gives the received rows, [received, ...], and how many came
            from each rank: int32, [size of the set].

        Raises:
            ValueError: An argument cannot work.
        """
        names = member_names("alltoall", name)
        with validating(ALLTOALL, names[0], process_set):
            kind = self._choose(tensor)
            rows = self._row_counts(splits)

        def finish(results: list[Any], outputs: list[Output]) -> tuple[Any, Any]:
            return results[0], kind.counts(outputs[0].received_splits or [])

        return self._submit(
            ALLTOALL, [tensor], names, process_set, finish, splits=rows,
        )  # fmt: skip

    def alltoall(
        self,
        tensor: T,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends parts of the first dimension to other ranks; arguments as for `alltoall_async`.

        Returns:
            The received rows in the order of ranks, [received, ...]; with `splits` a pair of them
            and how many came from each rank: int32, [size of the set].

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        output, received = self._differentiable_alltoall(tensor, splits, name, process_set)
        return output if splits is None else (output, received)
