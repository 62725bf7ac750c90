"""Process sets: collectives among some of the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horoacc import process
from horoacc.errors import InvalidArgument

if TYPE_CHECKING:
    from horoacc._core import Engine

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

_LARGEST_RANK = 2**31 - 1
"""Of the core; a job has none so large, and it says so."""

_UNREGISTERED = -1
"""The core has no set with this number."""


class ProcessSet:
    """Some ranks of the job that run collectives among themselves.

    Attributes:
        process_set_id: The core's number for it, or None while it is not registered.
        ranks: Its ranks, ascending.
        mpi_comm: The mpi4py communicator that it was made from, or None.
    """

    process_set_id: int | None
    ranks: list[int] | None
    mpi_comm: Any
    _of_epoch = False  # it ends with the epoch of an elastic job in which it was added

    def __init__(self, ranks_or_comm: Any) -> None:
        """Makes a set that is not registered.

        Args:
            ranks_or_comm: Global ranks, in any order, or an mpi4py communicator.

        Raises:
            ValueError: It is neither, or names a rank twice.
        """
        self.process_set_id = None
        self.mpi_comm = None
        if isinstance(ranks_or_comm, Iterable):
            ranks = list(ranks_or_comm)
            if any(not isinstance(rank, int) for rank in ranks):
                raise ValueError(f"A process set is made of ranks (integers), not of {ranks!r}.")
            self.ranks = sorted(ranks)
            if len(set(ranks)) != len(ranks):
                raise ValueError(f"A process set names a rank twice: {self.ranks}.")
        else:
            self.ranks = _ranks_of(ranks_or_comm)
            self.mpi_comm = ranks_or_comm

    def size(self) -> int | None:
        """Gives the number of its ranks.

        Returns:
            The number, or None while it is not registered.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """Gives this process's rank within the set.

        Returns:
            The rank, or None while the set is not registered.

        Raises:
            ValueError: This process is not in the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        own = process.position().rank
        if own not in self.ranks:
            raise ValueError(f"Rank {own} is not in the process set of ranks {self.ranks}.")
        return self.ranks.index(own)

    def included(self) -> bool | None:
        """Says whether this process is in the set.

        Returns:
            True if so, or None while the set is not registered.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        return process.position().rank in self.ranks

    def _invalidate(self) -> None:
        self.process_set_id = None

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_registered: dict[int, ProcessSet] = {0: global_process_set}


@dataclass
class _Carried:
    """A set of an elastic job, which comes back in each epoch in which ranks have all its slots."""

    process_set: ProcessSet
    slots: Any = None
    """Of its ranks, as the coordinator knows them; None: it was added in the present epoch."""
    ranks: list[int] | None = None
    """In the present epoch, if it comes back by itself; None: not all its slots are taken."""

    @property
    def there(self) -> bool:
        return self.process_set.process_set_id is not None


_carried: list[_Carried] = []


class _Phase:
    trains = False
    """Whether a function of `elastic.run` is being called."""


def _ranks_of(comm: Any) -> list[int]:
    """Translates an mpi4py communicator to ranks of the job."""
    if not hasattr(comm, "Get_group"):
        raise ValueError(
            f"A process set is made of a list of ranks or an mpi4py communicator, not of {comm!r}."
        )
    from mpi4py import MPI  # noqa: PLC0415 - only needed to pass a communicator

    group = comm.Get_group()
    try:
        translated = MPI.Group.Translate_ranks(group, None, MPI.COMM_WORLD.Get_group())
        return sorted(int(rank) for rank in translated)
    finally:
        group.Free()


def reset(size: int | None) -> None:
    """Forgets all sets but the global one, which gets the ranks of a job of this size, if any."""
    for process_set in _registered.values():
        if process_set is not global_process_set:
            process_set._invalidate()
    _registered.clear()
    _registered[0] = global_process_set
    global_process_set.ranks = [] if size is None else list(range(size))


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set. Every rank of the job calls it, in the same order.

    Of a set that was made from a communicator, the ranks may each pass the one that they are in, as
    `MPI.COMM_WORLD.Split()` gives it: then all of these sets are registered.

    A signal whose handler raises, such as that of Ctrl-C, ends this rank's wait and not the call:
    the ranks register the set all the same. This rank then has no `ProcessSet` of it and cannot use
    it; to go on, all ranks leave the job and join it again.

    Args:
        process_set: The set, or its ranks.

    Returns:
        The set, registered.

    Raises:
        ValueError: It is empty, is registered already, or names ranks that do not exist; on every
            rank, also if only one of them says so.
        HorovodInternalError: A rank died, or has joined.
    """
    engine = process.engine()
    if process.prepares():
        return _add_later(process_set)
    # The core refuses wrong sets on all ranks: a rank that raised alone would leave them waiting.
    if not isinstance(process_set, ProcessSet):
        try:
            process_set = ProcessSet(process_set)
        except ValueError:
            with contextlib.suppress(ValueError):
                engine.add_process_set([])
            raise
    ranks = [max(-1, min(rank, _LARGEST_RANK)) for rank in process_set.ranks or []]
    own_part = process_set.mpi_comm is not None
    # A program may know that Horovod's sets end with their epoch, and add one that came back.
    back = next((one for one in _carried if one.ranks and one.ranks == process_set.ranks), None)
    if back is not None and back.there:
        _remove(back.process_set)
    process_set.process_set_id = engine.add_process_set(ranks, own_part)
    process_set._of_epoch = _Phase.trains
    _registered[process_set.process_set_id] = process_set
    if back is not None:
        back.process_set, back.ranks = process_set, None
    if own_part:
        _register_parts(engine)
    return process_set


def _register_parts(engine: Engine) -> None:
    """Registers the sets that came with this rank's, from the other ranks' communicators."""
    for number in engine.process_set_ids():
        if number not in _registered:
            part = ProcessSet(engine.process_set_ranks(number))
            part.process_set_id = number
            part._of_epoch = _Phase.trains
            _registered[number] = part


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. Every rank of the job calls it, in the same order.

    Sets that were registered together, each rank with its own communicator, are removed so.

    Args:
        process_set: A registered set.

    Returns:
        Whether it was removed: the global set, and one that is not registered, are not.

    Raises:
        ValueError: The ranks do not remove the same set, or it has calls in flight; on every rank.
    """
    number = process_set.process_set_id
    if number != 0:
        _carried[:] = [one for one in _carried if one.process_set is not process_set]
    if number is not None and process.prepares():
        return _registered.pop(number, None) is not None
    if number is None or number == 0:
        if process.entered():
            _remove_none(_UNREGISTERED if number is None else number)
        return False
    _remove(process_set)
    return True


def _remove(process_set: ProcessSet) -> None:
    engine, number = process.engine(), process_set.process_set_id
    assert number is not None
    engine.remove_process_set(number, process_set.mpi_comm is not None)
    left = set(engine.process_set_ids())
    for gone in [known for known in _registered if known not in left]:
        _registered.pop(gone)._invalidate()


def _remove_none(number: int) -> None:
    """Takes part in a removal without a set of its own: the other ranks may have one."""
    try:
        process.engine().remove_process_set(number)
    except InvalidArgument as refusal:
        if refusal.culprit is not None:
            raise


# --- elastic jobs ------------------------------------------------------------------------------


def _add_later(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Keeps a set of a process that prepares itself beside the running ranks of its job.

    They have added theirs with the same statements; it is the one of them that has its position.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if not added.ranks or added.ranks[0] < 0:
        raise ValueError(f"A process set is made of ranks, not of {added.ranks}.")
    added.process_set_id = max(_registered) + 1
    _registered[added.process_set_id] = added
    return added


@contextlib.contextmanager
def training() -> Iterator[None]:
    """While a function of `elastic.run` is called: sets that are added then end with the epoch.

    The function is called again in the next one, and adds its sets again.
    """
    before, _Phase.trains = _Phase.trains, True
    try:
        yield
    finally:
        _Phase.trains = before


def carry() -> None:
    """Remembers the sets of an elastic job before its epoch ends, in the order of their adding.

    Those that were added while a function of `elastic.run` was called are not among them.
    """
    known = [one for one in _carried if one.there or one.slots is not None]
    old = {id(one.process_set) for one in known}
    added = [
        one for one in list(_registered.values())[1:] if id(one) not in old and not one._of_epoch
    ]
    _carried[:] = [*known, *map(_Carried, added)]


def carried() -> list[dict[str, Any]]:
    """Tells the coordinator of them: their ranks in the epoch that is over, or their slots."""
    return [
        {"ranks": one.process_set.ranks} if one.slots is None else {"slots": one.slots}
        for one in _carried
    ]


def take_slots(told: Sequence[Mapping[str, Any]]) -> None:
    """Takes what the coordinator tells with a seat: of each set its slots, and its ranks or None.

    A process that comes knows its own sets by their order, and the others by their ranks.
    """
    missing = [ProcessSet(one["ranks"] or []) for one in told[len(_carried) :]]
    sets = [*(one.process_set for one in _carried), *missing]
    _carried[:] = [
        _Carried(one, part["slots"], part["ranks"]) for one, part in zip(sets, told, strict=False)
    ]


def bring_back() -> None:
    """Registers the sets that have all their ranks in the new epoch. Every rank calls it.

    Raises:
        HorovodInternalError: A rank died meanwhile.
    """
    for one in _carried:
        if one.ranks is not None and not one.there:
            one.process_set.ranks = list(one.ranks)
            number = process.engine().add_process_set(one.process_set.ranks)
            one.process_set.process_set_id = number
            _registered[number] = one.process_set


def ids_and_ranks() -> dict[int, list[int]]:
    """Gives the ranks of every registered set, by the core's number of the set."""
    return {number: list(one.ranks or []) for number, one in _registered.items()}


def is_registered(number: int) -> bool:
    """Says whether a set has the core's number."""
    return number in _registered


def registered(number: int) -> ProcessSet:
    """Finds a set by the core's number of it; ValueError if no set has it, or not any more."""
    found = _registered.get(number)
    if found is None:
        raise ValueError(f"No process set with the number {number} is registered.")
    return found


def number_of(process_set: ProcessSet) -> int:
    """Gives the core's number of a call's set; TypeError or ValueError if it cannot be used."""
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise TypeError(f"process_set must be a ProcessSet, not {process_set!r}.") from None
    if number == 0:
        return 0
    if number is None:
        raise ValueError(f"{process_set} is not registered; use hvd.add_process_set().")
    if not process_set.included():
        raise ValueError(
            f"Rank {process.position().rank} is not in the process set of ranks "
            f"{process_set.ranks}, so it cannot take part in its collectives."
        )
    return number
