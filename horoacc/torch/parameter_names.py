"""Names of an optimizer's parameters in its collectives."""

from __future__ import annotations

from typing import Any

import torch

from horoacc import reduction


def name_parameters(
    param_groups: list[dict[str, Any]], named_parameters: Any
) -> list[tuple[str, torch.Tensor]]:
    """Names parameters as their model does, or by their position if `named_parameters` is None.

    ValueError if these are no pairs of name and parameter, names are not unique, or a parameter of
    the optimizer has none.
    """
    if named_parameters is None:
        return [
            (f"noname.{index}.{position}", param)
            for index, group in enumerate(param_groups)
            for position, param in enumerate(group["params"])
        ]
    named = list(named_parameters)
    if any(not isinstance(item, tuple) for item in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "produced by model.named_parameters()."
        )
    reduction.check_names([name for name, _ in named])
    known = {id(param) for _, param in named}
    unnamed = [
        param for group in param_groups for param in group["params"] if id(param) not in known
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(str(id(param)) for param in unnamed)}"
        )
    return named
