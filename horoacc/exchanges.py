"""All-gather, broadcast and all-to-all, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles, process
from horoacc.calls import (
    ALLGATHER,
    ALLTOALL,
    BROADCAST,
    check_root,
    check_splits,
    member_names,
)
from horoacc.complaints import check_group, complaining
from horoacc.engine_outputs import EngineOutputs, each, only
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.tensors import Restore, stream_of

if TYPE_CHECKING:
    from horoacc._core import Output


class Exchanges(EngineOutputs):
    """All-gather, broadcast and all-to-all."""

    def allgather_async(
        self, tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
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
        self, tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Any:
        """Concatenates all ranks' tensors; arguments as for `allgather_async`.

        Returns:
            The concatenation in the order of ranks, [rows of all, ...], on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        names = member_names("allgather", name)
        return handles.result(self._submit(ALLGATHER, [tensor], names, process_set, only))

    def grouped_allgather_async(
        self,
        tensors: Sequence[Any],
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
        tensors: Sequence[Any],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        """Concatenates several tensors as one unit; arguments and errors as for `allgather`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            The concatenations, in order.
        """
        check_group(tensors, ALLGATHER, name, process_set)
        names = member_names("allgather", name, len(tensors))
        return handles.result(  # type: ignore[no-any-return]
            self._submit(ALLGATHER, tensors, names, process_set, each)
        )

    def _broadcast(
        self, tensor: Any, root: int, name: str | None, process_set: ProcessSet, in_place: bool
    ) -> int:
        full_name = member_names("broadcast", name)[0]
        restore: Restore | None = None
        with complaining(BROADCAST, full_name, process_set):
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

    def broadcast_async(
        self,
        tensor: Any,
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
        tensor: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends the root's tensor to all ranks; arguments as for `broadcast_async`.

        Returns:
            The root's tensor, of the same shape and type, on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        return handles.result(self._broadcast(tensor, root_rank, name, process_set, in_place=False))

    def broadcast_async_(
        self,
        tensor: Any,
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
        tensor: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends the root's tensor into all ranks' tensors; arguments as for `broadcast`.

        The tensor is contiguous and writable.

        Returns:
            The same tensor.
        """
        return handles.result(self._broadcast(tensor, root_rank, name, process_set, in_place=True))

    def alltoall_async(
        self,
        tensor: Any,
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
        with complaining(ALLTOALL, names[0], process_set):
            kind = self._choose(tensor)
            rows = check_splits(splits)

        def finish(results: list[Any], outputs: list[Output]) -> tuple[Any, Any]:
            return results[0], kind.counts(outputs[0].received_splits or [])

        return self._submit(
            ALLTOALL, [tensor], names, process_set, finish, splits=rows,
        )  # fmt: skip

    def alltoall(
        self,
        tensor: Any,
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
        received = handles.result(Exchanges.alltoall_async(self, tensor, splits, name, process_set))
        return received[0] if splits is None else received
