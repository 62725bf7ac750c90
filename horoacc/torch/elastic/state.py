"""States of training with PyTorch, and how each kind of object is saved and shared."""

from __future__ import annotations

import copy
from typing import Any

import torch

from horoacc import basics
from horoacc.elastic import ObjectState
from horoacc.errors import HorovodInternalError
from horoacc.torch.elastic.sampler import ElasticSampler
from horoacc.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "ScalerStateHandler",
    "SchedulerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Saves, restores and shares one object. Derive from it for a type of your own.

    Attributes:
        value: The object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Copies the object's state, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Puts the state that was last saved back into the object."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0. Every rank calls it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Takes care of another object from now on.

        Args:
            value: The object.
        """
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Handles objects with `state_dict` and `load_state_dict`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Copies the object's state, for `restore`."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Puts the state that was last saved back into the object."""
        # A copy, because an optimizer keeps the tensors that it loads.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it. Every rank calls it."""
        self.share()
        self.save()

    def share(self) -> None:
        """Gives all ranks the state of rank 0, without saving it."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


class ModelStateHandler(_StateDictHandler):
    """Handles a `torch.nn.Module`."""

    def share(self) -> None:
        """Gives all ranks the parameters and buffers of rank 0, in place."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_StateDictHandler):
    """Handles a `torch.optim.Optimizer`, distributed or not."""

    def restore(self) -> None:
        """Puts the state that was last saved back into the optimizer."""
        try:
            super().restore()
        except HorovodInternalError:
            # Results of gradients that were in flight: they are undone, and have arrived by now.
            super().restore()

    def share(self) -> None:
        """Gives all ranks the state of rank 0's optimizer, in place where it can."""
        if isinstance(self.value, torch.optim.LBFGS):  # its state is no tensor a parameter
            super().share()
        else:
            broadcast_optimizer_state(self.value, root_rank=0)


class SchedulerStateHandler(_StateDictHandler):
    """Handles a `torch.optim.lr_scheduler.LRScheduler`."""


class ScalerStateHandler(_StateDictHandler):
    """Handles a `torch.amp.GradScaler`."""


class SamplerStateHandler(_StateDictHandler):
    """Handles an `ElasticSampler`."""


# Their values change in steps, or between them.
_PLAIN_HANDLERS = {
    ModelStateHandler, OptimizerStateHandler, SchedulerStateHandler, SamplerStateHandler,
    ScalerStateHandler,
}  # fmt: skip


class _Registry:
    """Which handler serves which type; the first match counts."""

    def __init__(self) -> None:
        self.rows: list[tuple[type, type[StateHandler]]] = [
            (torch.nn.Module, ModelStateHandler),
            (torch.optim.Optimizer, OptimizerStateHandler),
            (torch.optim.lr_scheduler.LRScheduler, SchedulerStateHandler),
            (ElasticSampler, SamplerStateHandler),
            (torch.amp.GradScaler, ScalerStateHandler),
        ]


_registry = _Registry()


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Gives the list of types and their handlers. The first match counts.

    Returns:
        The list itself: handlers added to it serve states that are made afterwards.
    """
    return _registry.rows


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the list of types and their handlers.

    Args:
        registry: Pairs of a type and its handler's class; the first match counts.
    """
    _registry.rows = registry


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry.rows:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """Models, optimizers, schedulers, samplers and plain objects as attributes.

    A model or an optimizer more than one can be given under names of their own.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes a state that is committed with the values given.

        Args:
            model: A model.
            optimizer: Its optimizer.
            kwargs: More values. Handlers of the registry save and share the values that they serve,
                `ObjectState` the rest.
        """
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler_of(value) for name, value in values.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler}
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        plain = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **plain)

    def steps(self) -> int:
        """Counts the steps of the distributed optimizers.

        Returns:
            Their sum.
        """
        return sum(optimizer.steps_applied for optimizer in self._optimizers())

    def obstacle(self, error: HorovodInternalError) -> str:
        """Says why the values must not be used as they stand after an error.

        Args:
            error: Of a collective.

        Returns:
            The reason; "" if it was the reduction of a gradient that failed, before its step, and
            all values change in steps only.
        """
        if foreign := self._foreign():
            return foreign
        for name, handler in self._handlers.items():
            if type(handler) not in _PLAIN_HANDLERS:
                return f"state.{name} has a handler of the program's own"
        optimizers = self._optimizers()
        plain = sum(isinstance(h, OptimizerStateHandler) for h in self._handlers.values())
        if len(optimizers) != 1 or plain != 1:
            return "the state has no distributed optimizer, or several"
        return str(optimizers[0].obstacle_after(error))

    def _optimizers(self) -> list[Any]:
        values = [handler.value for handler in self._handlers.values()]
        return [value for value in values if hasattr(value, "obstacle_after")]

    def save(self) -> None:
        """Copies all values, for `restore`."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to the last saved values, in place for models and optimizers."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of rank 0, and saves them. Every rank calls it."""
        plain = [h for h in self._handlers.values() if isinstance(h, _StateDictHandler)]
        for handler in self._handlers.values():
            if handler in plain:
                handler.share()
            else:
                handler.sync()
        super().sync()
        for handler in plain:  # only once all are shared, so that what is saved fits together
            handler.save()

    def reset(self) -> None:
        """Parts the samplers' data among the ranks that there are now, and drops a half step."""
        for handler in self._handlers.values():
            if hasattr(handler.value, "begin_again"):
                handler.value.begin_again()
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)
