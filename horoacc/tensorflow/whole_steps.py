"""Steps that are applied whole or not at all: in the graphs of an elastic job.

A graph applies each variable as soon as its own gradient is reduced, and counts the step even
before. If a rank dies then, part of a step is applied, and the state is good for nothing. In an
elastic job nothing is applied before all gradients are reduced.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph, WhileCondFuncGraph

from horoacc import gradient_calls, process

SEVERAL_STEPS = "a call of a function takes several steps"
_APPLYING = {
    "keras": ("optimizers.Optimizer", "apply"),
    "tf_keras": ("optimizers.Optimizer", "apply_gradients"),
}
"""By package: its optimizers' base class, and the method that takes reduced gradients."""

_LOOP = (WhileBodyFuncGraph, WhileCondFuncGraph)
"""The graphs of `tf.while_loop`, which a loop over tensors in a `tf.function` becomes."""

_CALLS = ("Call", "If", "Case")
"""How the types of ops end that carry out a graph of their own, but for loops."""


@dataclass(frozen=True)
class _Trace:
    """Where gradients of a step were reduced while a graph was made."""

    outermost: weakref.ref[Any]
    part: weakref.ref[Any]
    """The graph right in the outermost one that has the reduction, or the outermost itself."""
    calls: int
    """How many graphs the outermost one carried out so far."""

    def comes_with(self, here: _Trace) -> bool:
        """Whether the graph of `here` reduces these gradients, too, so that it takes two steps.

        TensorFlow traces a function again that made variables, as Keras' metrics are, and never
        calls the graph of the first time.
        """
        if self.outermost() is not here.outermost():
            return False
        return self.part() is here.part() or self.calls != here.calls


_traces: weakref.WeakKeyDictionary[Any, _Trace] = weakref.WeakKeyDictionary()


def trace() -> Any:
    """Gives the outermost graph that is being made; None if calls are carried out now."""
    return None if tf.executing_eagerly() else _outermost()[0]


def _outermost() -> tuple[Any, Any]:
    """Gives the outermost graph that is being made, and the one right in it, or itself."""
    graph = part = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        if not getattr(graph.outer_graph, "building_function", False):
            break
        graph, part = graph.outer_graph, graph
    return graph, part


def tied(gradients: Sequence[Any]) -> list[Any]:
    """Gives gradients of which none is there before all are.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or None.

    Returns:
        The same values; in an elastic job's graph each depends on all.
    """
    if tf.executing_eagerly() or not process.is_elastic():
        return list(gradients)
    with tf.control_dependencies(_tensors(gradients)):
        return [
            None if one is None
            else tf.nest.map_structure(tf.identity, one, expand_composites=True)
            for one in gradients
        ]  # fmt: skip


def _tensors(gradients: Sequence[Any]) -> list[Any]:
    given = [one for one in gradients if one is not None]
    return [one for one in tf.nest.flatten(given, expand_composites=True) if one is not None]


def note(by: Any, prefix: str, obstacle: str) -> None:
    """As `gradient_calls.note`; a function that reduces for several steps is an obstacle.

    The loop around it cannot know how many of them were applied.
    """
    if not process.is_elastic():
        return
    if not tf.executing_eagerly():
        graph, part = _outermost()
        calls = sum(op.type.endswith(_CALLS) for op in graph.get_operations())
        here = _Trace(weakref.ref(graph), weakref.ref(part), calls)
        before = _traces.get(by)
        if _in_a_loop() or (before is not None and before.comes_with(here)):
            obstacle = obstacle or SEVERAL_STEPS
        _traces[by] = here
    gradient_calls.note(by, prefix, obstacle)


def _in_a_loop() -> bool:
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if isinstance(graph, _LOOP):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def teach_optimizers() -> None:
    """Has Keras' optimizers begin a step only once all gradients are there, in an elastic job.

    Their counts of steps and their weight decays need no gradient: a graph would go ahead with
    them. Once is enough for each package that has been imported.
    """
    if not process.is_elastic():
        return
    for package, (path, method) in _APPLYING.items():
        base: Any = sys.modules.get(package)
        if base is None:
            continue
        for name in path.split("."):
            base = getattr(base, name)
        # The one that takes gradients of all ranks, should a derived class reduce them.
        owner = [kind for kind in base.__mro__ if method in vars(kind)][-1]
        original = vars(owner)[method]
        if not hasattr(original, "_waits_for_all"):
            setattr(owner, method, _waiting(original, sys.modules[package]))


def _waiting(original: Any, package: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or not process.is_elastic():
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        _, what, *_ = bound.arguments  # gradients, or pairs of a gradient and a variable
        given = bound.arguments[what] = list(bound.arguments[what])
        variables = bound.arguments.get("trainable_variables")
        if variables is not None and not self.built:
            # As Keras 3 does it, but now: new variables must wait for nothing.
            variables = bound.arguments["trainable_variables"] = list(variables)
            with package.name_scope(self.name, caller=self):
                self.build(variables)
            self.built = True
        gradients = [one[0] if isinstance(one, (tuple, list)) else one for one in given]
        with tf.control_dependencies(_tensors(gradients)):
            return original(*bound.args, **bound.kwargs)

    apply._waits_for_all = True  # type: ignore[attr-defined]
    return apply
