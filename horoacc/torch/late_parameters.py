"""Parameters that an optimizer did not train when it was wrapped, and does later."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from horoacc.torch.loaded_states import in_place


class LateParameters:
    """Frozen parameters that may be thawed, and those of groups that were added since.

    Ranks thaw and add alike, as they step alike; nothing is exchanged about it.
    """

    def __init__(self, param_groups: list[dict[str, Any]], names: dict[torch.Tensor, str]) -> None:
        """Notes which parameters are frozen; `names` gets those of later parameters, too."""
        self._groups = param_groups
        self._names = names
        self._may_come = [
            param for group in param_groups for param in group["params"] if not param.requires_grad
        ]

    def add_group(self) -> None:
        """Notes the parameters of the last group, which was added just now."""
        index = len(self._groups) - 1
        for position, param in enumerate(self._groups[index]["params"]):
            self._names.setdefault(param, f"added.{index}.{position}")
            self._may_come.append(param)

    def trained(self, known: Collection[torch.Tensor]) -> list[torch.Tensor]:
        """Gives the parameters that are trained by now and not known to be, in order."""
        return [param for param in self._may_come if param.requires_grad and param not in known]


class TakesLateParameters(torch.optim.Optimizer):
    """Mixed in before a torch optimizer's class: remembers the parameters that are added to it."""

    _late: LateParameters

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters. The ranks train them together, as the others.

        Every rank adds the same ones. They are named by their position unless `named_parameters`
        had them.

        Args:
            param_group: As the wrapped optimizer takes it.

        Raises:
            TypeError: It has no parameters, or a member is none.
            ValueError: It has one that another group has.
        """
        super().add_param_group(param_group)
        self._late.add_group()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of the wrapped optimizer, whose schedulers go on with the groups.

        Args:
            state_dict: A result of `state_dict()`, here or of a plain optimizer.

        Raises:
            ValueError: It belongs to an optimizer with other parameter groups.
        """
        with in_place(self):
            super().load_state_dict(state_dict)
