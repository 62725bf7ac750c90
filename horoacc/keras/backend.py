"""The interface to Keras' backends, and the one that this process uses.

Keras computes with TensorFlow, torch or JAX; which one, KERAS_BACKEND or its configuration file
says before it is first imported.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import keras

from horoacc.collectives.coded_allreduce import ErrorFeedback
from horoacc.compression import Compressor
from horoacc.process_sets import ProcessSet
from horoacc.reduction import Scaling

R = TypeVar("R")


class Member(NamedTuple):
    """One gradient on its way."""

    name: str
    gradient: Any
    """None if this rank has none, where the backend exchanges that too."""
    variable: Any


@dataclass(frozen=True)
class Travel:
    """How the gradients of one optimizer travel."""

    name: str
    """The prefix of its collectives' names."""
    scaling: Scaling
    compression: type[Compressor]
    sparse_as_dense: bool
    process_set: ProcessSet
    feedback: ErrorFeedback = field(default_factory=ErrorFeedback)
    """The losses of encoding, for the next step."""


class Backend(Protocol):
    """The operations that differ between Keras' backends."""

    frontend: Any
    """The frontend of its framework, whose collectives reduce its tensors."""

    sends_absent: bool
    """Whether a gradient that some ranks do not have is reduced all the same."""

    def attach(self) -> None:
        """Prepares the framework, after the process has joined the job."""

    def register(self, variables: Sequence[Any], compression: type[Compressor]) -> None:
        """Says of which variables the gradients will be reduced, before there are any."""

    def tensor(self, value: Any) -> Any:
        """Makes a tensor of the framework of a tensor, an array, a number or a variable."""

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Broadcasts the variables that a TensorFlow 1 graph has collected."""

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, name: str) -> None:
        """Gives all ranks the root's values of Keras variables, in place."""

    def gradients(self, loss: Any, variables: Sequence[Any], tape: Any) -> list[Any]:
        """Computes the gradients of a loss; None for a variable that it does not depend on."""

    def reduce_gradients(self, parts: Sequence[Sequence[Member]], travel: Travel) -> list[Any]:
        """Reduces gradients, in the order of the members; those of a part travel as one unit.

        None where no rank had one.
        """

    def teach_optimizers(self) -> None:
        """In an elastic job, has optimizers begin a step only once its gradients are there."""

    def note(self, by: Any, prefix: str, obstacle: str) -> None:
        """As `horoacc.gradient_calls.note`."""

    def tied(self, gradients: Sequence[Any]) -> list[Any]:
        """Gives gradients of which, in an elastic job, none is there before all are."""

    def all_finite(self, gradients: Sequence[Any], travel: Travel) -> Any:
        """Says whether all ranks' gradients are finite, each rank's own ones.

        The ranks may have different ones; the truth value is the same on all.
        """

    def spoiled_unless(self, finite: Any, gradient: Any) -> Any:
        """Gives a gradient that is not finite if a truth value is false, otherwise itself."""

    def local_divisor(self, process_set: ProcessSet, scale_local_gradients: bool) -> Any:
        """As `reduction.local_divisor`; a graph that outlives the ranks gets a tensor."""

    def trace(self) -> Any:
        """Gives the outermost graph that is being made; None if calls are carried out now."""

    def with_own_errors(self, func: Callable[..., R]) -> Callable[..., R]:
        """Wraps a function so that an error of HoroACC's comes out of it as itself."""

    def scaled(self, gradient: Any, factor: float) -> Any:
        """Multiplies a gradient, which may be sparse."""

    def dense(self, gradient: Any) -> Any:
        """Makes a sparse gradient dense."""


_MODULES = {"tensorflow": "tensorflow_backend", "torch": "torch_backend"}


@functools.cache
def current() -> Backend:
    """Finds the backend that Keras uses; ImportError if there is nothing for it."""
    name = keras.backend.backend()
    if name not in _MODULES:
        raise ImportError(
            f"horoacc.keras works with Keras on TensorFlow and on torch, but Keras uses {name!r}. "
            "What is missing for JAX are collectives inside its compiled steps (an XLA custom "
            "call for each). Set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before Keras is "
            "imported."
        )
    module = importlib.import_module(f"horoacc.keras.{_MODULES[name]}")
    return module.BACKEND  # type: ignore[no-any-return]
