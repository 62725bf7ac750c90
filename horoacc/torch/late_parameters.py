"""Parameters that an optimizer did not train when it was wrapped, and does later."""

from __future__ import annotations

from typing import Any

import torch


class LateParameters:
    """Frozen parameters that may be thawed, and those of groups that were added since.

    Ranks thaw and add alike, as they step alike; nothing is exchanged about it.
    """

    def __init__(self, param_groups: list[dict[str, Any]], names: dict[torch.Tensor, str]) -> None:
        """Notes which parameters are frozen.

        Args:
            param_groups: Of the optimizer.
            names: What the parameters are called; those that are added later are named here.
        """
        self._groups = param_groups
        self._names = names
        self._waiting = [
            param for group in param_groups for param in group["params"] if not param.requires_grad
        ]

    def add_group(self) -> None:
        """Notes the parameters of the last group, which was added just now."""
        index = len(self._groups) - 1
        for position, param in enumerate(self._groups[index]["params"]):
            self._names.setdefault(param, f"added.{index}.{position}")
            self._waiting.append(param)

    def take(self) -> list[torch.Tensor]:
        """Gives the parameters that are trained by now, each of them once.

        Returns:
            Them, in the optimizer's order.
        """
        late = [param for param in self._waiting if param.requires_grad]
        if late:
            self._waiting = [param for param in self._waiting if not param.requires_grad]
        return late
