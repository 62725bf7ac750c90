"""Names beside Horovod's API for TensorFlow that scripts import."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc.dropin.average import get_average_backwards_compatibility_fun, handle_average
from horoacc.dropin.extensions import gpu_available as _gpu_available
from horoacc.dropin.pieces import num_rank_is_power_2, split_list
from horoacc.dtypes import Sum
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow.reductions import allreduce

__all__ = [
    "_allreduce",
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "check_num_rank_power_of_2",
    "get_average_backwards_compatibility_fun",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
]

handle_average_backwards_compatibility = handle_average
_make_subgraph = tf.function


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """As `horoacc.dropin.extensions.gpu_available`."""
    return _gpu_available(ext_base_name, verbose)


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Raises if a number is no power of two, as Horovod's Adasum needs one; HoroACC's does not.

    Args:
        num_rank: The number.

    Raises:
        NotImplementedError: It is none.
    """
    if not num_rank_is_power_2(num_rank):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


def _executing_eagerly() -> bool:
    """Says whether calls are made now, and not by a graph."""
    return bool(tf.executing_eagerly())


def _cache(function: Any) -> Any:
    """Makes a function that remembers its results, by its arguments and the kind of execution."""
    results: dict[Any, Any] = {}

    def remembering(*args: Any) -> Any:
        key = (*args, _executing_eagerly())
        if key not in results:
            results[key] = function(*args)
        return results[key]

    return remembering


def vars_to_refs(variables: Any) -> Any:
    """Gives hashable references to variables.

    Args:
        variables: A list of variables, or of lists of them.

    Returns:
        A tuple of references, or of tuples of them.
    """
    return tuple(
        vars_to_refs(one) if isinstance(one, (list, tuple)) else _Reference(one)
        for one in variables
    )


def refs_to_vars(refs: Any) -> list[Any]:
    """Undoes `vars_to_refs`.

    Args:
        refs: The result of `vars_to_refs`.

    Returns:
        The variables.
    """
    return [refs_to_vars(one) if isinstance(one, (list, tuple)) else one.deref() for one in refs]


class _Reference:
    """A variable as a key: of TensorFlow's or of Keras 3, which has no `ref()`."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def deref(self) -> Any:
        return self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and other._variable is self._variable


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `allreduce`, with Horovod's inner order of arguments and Sum by default."""
    return allreduce(
        tensor, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        name=name, process_set=process_set, ignore_name_scope=ignore_name_scope,
    )  # fmt: skip
