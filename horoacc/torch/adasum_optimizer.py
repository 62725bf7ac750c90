"""The optimizer for Adasum: each rank steps by itself, and the changes are combined.

Adasum combines the steps of an optimizer, not the gradients, so that its learning
rate and its momenta are those of one rank (S. Maleki et al., "Scaling Distributed Training with
Adaptive Summation", 2020, section 4).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from horoacc import reduction
from horoacc.backward_passes import Schedule
from horoacc.compression import Compressor, check_no_codec
from horoacc.dtypes import Adasum, Max
from horoacc.handles import synchronize
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch import hyperparameters
from horoacc.torch.autograd import plain
from horoacc.torch.grad_scaler import teach_grad_scaler
from horoacc.torch.late_parameters import LateParameters, TakesLateParameters
from horoacc.torch.parameter_hooks import take_over
from horoacc.torch.parameter_names import name_parameters


class _DistributedAdasumOptimizer(TakesLateParameters):
    """Mixed in before a torch optimizer's class: combines the ranks' steps."""

    def _distribute(
        self,
        named_parameters: Any,
        compression: type[Compressor],
        backward_passes_per_step: int,
        groups: Any,
        process_set: ProcessSet,
    ) -> None:
        check_no_codec(compression)
        self.op = Adasum
        self.process_set = process_set
        self._compression = compression
        self._agreement = hyperparameters.Agreement()
        self._names = {
            param: name for name, param in name_parameters(self.param_groups, named_parameters)
        }
        self._late = LateParameters(self.param_groups, self._names)
        owned = [
            param for group in self.param_groups for param in group["params"]
            if param.requires_grad
        ]  # fmt: skip
        self._parts = reduction.partition(owned, groups)
        self._schedule = Schedule([[param] for param in owned], backward_passes_per_step)
        self._count_passes(owned)
        teach_grad_scaler()

    def _count_passes(self, params: Iterable[torch.Tensor]) -> None:
        reference = weakref.ref(self)

        def count(param: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._schedule.ready(param)

        for param in params:
            take_over(param, count)

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that one step accumulates.

        It is set by `set_backward_passes_per_step()`.

        Raises:
            AssertionError: From the backward pass that is one too many before `step()`.
        """
        return self._schedule.passes

    def begin_again(self) -> None:
        """Forgets a step that an error or an interruption cut off, with its gradients."""
        self._schedule.restart()
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    def _before_unscale(self) -> None:
        """Gradients are this rank's own, and complete, also if the step is skipped."""
        self._schedule.restart()

    def _after_unscale(self, overflows: list[torch.Tensor]) -> None:
        """Lets all ranks skip the step if one of them must."""
        found = torch.stack([flag.cpu() for flag in overflows]).max() if overflows \
            else torch.zeros(())  # fmt: skip
        found = plain.allreduce(found, op=Max, process_set=self.process_set)
        for flag in overflows:
            flag.copy_(found)

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced. For scripts that call it before clipping."""

    def skip_synchronize(self) -> NoReturn:
        """Not possible: Adasum combines steps.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps on this rank, then combines the changes of the ranks' steps.

        Args:
            closure: Computes the loss and the gradients of this rank, as often as the wrapped
                optimizer asks for it.

        Returns:
            The result of the wrapped optimizer's `step`.

        Raises:
            HorovodInternalError: A reduction failed; this rank's parameters are as before.
        """
        if self.process_set is global_process_set:
            hyperparameters.agree(self)
        if late := self._late.trained(self._schedule.params):
            self._parts += [[param] for param in late]
            self._schedule.add(late)
            self._count_passes(late)
        starts = {param: param.detach().clone() for part in self._parts for param in part}
        if closure is not None:
            given = closure

            def counted() -> Any:
                self._schedule.restart()
                return given()

            closure = counted
        loss = super().step(closure)
        self._schedule.restart()
        with torch.no_grad():
            try:
                self._combine(starts)
            except Exception:
                for param, start in starts.items():
                    param.copy_(start)
                raise
        return loss

    # LBFGS and others run hooks around the wrapped class's step; a second layer would repeat them.
    step.hooked = True  # type: ignore[attr-defined]

    def _combine(self, starts: dict[torch.Tensor, torch.Tensor]) -> None:
        flights = [(part, *self._send(part, starts)) for part in self._parts]
        failure: Exception | None = None
        for part, handle, contexts in flights:
            try:
                deltas = synchronize(handle)
            except Exception as error:  # the other calls must end before their memory may be reused
                failure = failure or error
                continue
            for param, delta, context in zip(part, deltas, contexts, strict=True):
                param.copy_(starts[param] + self._compression.decompress(delta, context))
        if failure is not None:
            raise failure

    def _send(
        self, part: list[torch.Tensor], starts: dict[torch.Tensor, torch.Tensor]
    ) -> tuple[int, list[Any]]:
        """Submits the change of the step; returns the context of its compression."""
        sent = [
            self._compression.compress((param.detach() - starts[param]).contiguous())
            for param in part
        ]
        # On every rank the first parameter identifies a part.
        name = f"adasum.{self._names[part[0]]}"
        handle = plain.grouped_allreduce_async_(
            [delta for delta, _ in sent], name=name, op=Adasum, process_set=self.process_set
        )
        return handle, [context for _, context in sent]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes the number of backward passes that one step accumulates.

        Args:
            passes: The number.

        Raises:
            ValueError: It is not a positive integer.
        """
        self._schedule.set_passes(passes)

    find_duplicates = staticmethod(reduction.find_duplicates)
