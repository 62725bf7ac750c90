"""States that a training function can go back to: values with a committed copy."""

from __future__ import annotations

import contextlib
import copy
import queue
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any

from horoacc import basics, objects, process
from horoacc.elastic import member
from horoacc.elastic.notices import HostUpdateResult
from horoacc.errors import HorovodInternalError, HostsUpdatedInterrupt
from horoacc.gradient_calls import TapeSources, obstacle_after


class State:
    """The parts that all states share: callbacks, and news of hosts.

    Attributes:
        commits: How often `commit` has saved.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        """Makes a state without values.

        Args:
            bcast_object: Gives every rank the object of rank 0.
            get_rank: Gives this process's rank.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._news: queue.SimpleQueue[tuple[float, HostUpdateResult]] = queue.SimpleQueue()
        self._last_update = 0.0
        self.commits = 0
        self._steps_at_commit = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Has functions called after each reset, as to fit a learning rate to a new size.

        Args:
            callbacks: The functions; they take nothing.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Forgets old news and calls the reset callbacks; `run` does it after a reset."""
        self._news = queue.SimpleQueue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Takes news, to be looked at by the next `check_host_updates`. Any thread may call it.

        Args:
            timestamp: When it happened; older changes than the last are ignored.
            update_res: The change.
        """
        self._news.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then looks for news of hosts.

        All values are copied, so that a commit after every batch may cost more than it saves.

        Raises:
            HostsUpdatedInterrupt: As `check_host_updates`.
        """
        self.save()
        self.commits += 1
        self._steps_at_commit = type(self).steps(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Asks whether hosts came or went. Every rank calls it.

        In an elastic job the coordinator says at which call of it all ranks raise; without news
        the call sends nothing. In other jobs rank 0's news counts, which it broadcasts.

        Raises:
            HostsUpdatedInterrupt: They did; on every rank. It asks for no `sync` if hosts only
                went: those that stay have the same state.
        """
        if process.is_elastic():
            news = member.member().look()
            if news is not None:
                self._last_update = max(self._last_update, news.time)
                raise HostsUpdatedInterrupt(news.change == HostUpdateResult.removed)
            return
        before = latest = self._last_update
        happened = HostUpdateResult.no_update
        while not self._news.empty():
            timestamp, update = self._news.get()
            if timestamp > latest:
                latest = timestamp
                happened |= update
        before, self._last_update, happened = self._bcast_object((before, latest, happened))
        if self._last_update > before:
            raise HostsUpdatedInterrupt(happened == HostUpdateResult.removed)

    def steps(self) -> int:
        """Says how many steps have been applied to the values, where the state can know it.

        Returns:
            The number, of which only differences matter; 0 if it is not known.
        """
        return 0

    def obstacle(self, error: HorovodInternalError) -> str:
        """Says why the values must not be used as they stand after an error.

        Args:
            error: Of a collective.

        Returns:
            The reason; "" if each value is that of the last step which was applied.
        """
        del error
        return f"{type(self).__name__} does not know which steps were applied to it"

    def save(self) -> None:
        """Copies the values, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the last saved values."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the values of rank 0. Every rank calls it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Fits the state to a job whose ranks may be others, before the reset callbacks."""


class ObjectState(State):
    """Python objects as attributes, each with a committed copy.

    Attributes are those of the constructor's keyword arguments.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = objects.broadcast_object,
        get_rank: Callable[[], int] = basics.rank,
        **kwargs: Any,
    ) -> None:
        """Makes a state that is committed with the values given.

        Args:
            bcast_object: Gives every rank the object of rank 0.
            get_rank: Gives this process's rank.
            kwargs: The values; pickle and `copy.deepcopy` must be able to handle them.

        Raises:
            TypeError: A value cannot be copied.
        """
        super().__init__(bcast_object, get_rank)
        # A copy, so that changes in place by the training function do not reach the saved values.
        self._saved_state = copy.deepcopy(kwargs)
        self._show(kwargs)

    def save(self) -> None:
        """Copies the values, for `restore`."""
        self._saved_state = copy.deepcopy(self._shown())

    def restore(self) -> None:
        """Goes back to the last saved values."""
        self._show(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Gives all ranks the values of rank 0, and saves them. Every rank calls it."""
        if self._saved_state:
            self._show(self._bcast_object(self._shown()))
            ObjectState.save(self)

    def _foreign(self) -> str:
        """Says what of the state is not HoroACC's own, or may change apart from steps; or ""."""
        for kind in type(self).__mro__:
            own = {"save", "restore", "sync", "reset", "commit", "on_reset"} & set(vars(kind))
            if own and kind.__module__.partition(".")[0] != __name__.partition(".")[0]:
                return f"{type(self).__name__} has a {min(own)} of its own"
        for name, value in self._shown().items():
            if not isinstance(value, int | float | str | NoneType):
                return f"state.{name} is a {type(value).__name__}, which may change at any time"
        return ""

    def _shown(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _show(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class CountedState(ObjectState):
    """Objects beside variables, of which the optimizer's count of steps is one.

    That is shared and restored as the others are, so that it tells the steps only in between.
    """

    _uncounted = 0

    def _count(self) -> int:
        """Reads the optimizer's count; 0 if there is none."""
        raise NotImplementedError

    def steps(self) -> int:
        """Counts the steps that this process has applied.

        Returns:
            The number, of which only differences matter.
        """
        return self._count() - self._uncounted

    @contextlib.contextmanager
    def _taking_values(self) -> Iterator[None]:
        """Has changes of the variables in the block be no steps."""
        before = type(self).steps(self)  # a program may have a value of that name
        try:
            yield
        finally:
            self._uncounted += type(self).steps(self) - before


class ModelState(CountedState):
    """A model of Keras and its optimizer, beside objects.

    Attributes:
        model: The model.
        optimizer: The optimizer, or None.
    """

    model: Any
    optimizer: Any

    def obstacle(self, error: HorovodInternalError) -> str:
        """Says why the values must not be used as they stand after an error.

        Args:
            error: Of a collective.

        Returns:
            The reason; "" if it was the reduction of a gradient that failed, before its step, the
            optimizer has counted the steps, and all values change in steps only.
        """
        if self.optimizer is None:
            return "the state has no optimizer"
        for name in ("steps_per_execution", "_steps_per_execution"):  # of Keras 3, of tf_keras
            several: Any = getattr(self.model, name, None)
            several = several.numpy() if hasattr(several, "numpy") else several
            if several not in (None, 1):
                return f"the model was compiled with steps_per_execution={several}"
        own = getattr(self.optimizer, "inner_optimizer", self.optimizer)  # one that scales losses
        if (getattr(own, "gradient_accumulation_steps", None) or 1) != 1:
            return "a step takes several backward passes"
        by = getattr(own, "_reduction", TapeSources)
        return self._foreign() or obstacle_after(error, by)
