"""Gradients in flight: hooks that submit each one as autograd produces it, and the wait for them.

`horoacc.reduction` decides how gradients are reduced; this module handles torch's tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from horoacc import autotune, process
from horoacc.backward_passes import Schedule
from horoacc.collectives.calls import ALLREDUCE
from horoacc.collectives.coded_allreduce import CodedAllreduce, ErrorFeedback
from horoacc.collectives.tensors import place_of_all
from horoacc.compression import Compressor, NoneCompressor, is_codec
from horoacc.handles import has_ended
from horoacc.process_sets import ProcessSet, number_of
from horoacc.reduction import Scaling, has_peers
from horoacc.torch import gradient_hooks
from horoacc.torch.autograd import plain
from horoacc.torch.changed_gradients import ChangeNotice
from horoacc.torch.gradient_hooks import GradientHooks
from horoacc.torch.parameter_hooks import remember, take_off, take_over
from horoacc.torch.sparse import sparse_allreduce_async
from horoacc.torch.tensors import torch_tensors


class Member(NamedTuple):
    """One gradient on its way."""

    param: torch.Tensor
    sent: torch.Tensor
    """The tensor that is reduced in place: the gradient, or a compressed or dense copy."""
    context: Any
    grad: torch.Tensor
    version: int
    """Of the gradient, when it was submitted."""


class Flight(NamedTuple):
    """One submission: an engine's handle, or a function for a sparse or an encoded gradient."""

    engine: Any
    handle: Any
    members: Sequence[Member]


def _is_trained(param: torch.Tensor) -> bool:
    """A parameter that was frozen meanwhile has no gradient, on any rank."""
    return param.requires_grad or param.grad is not None


class GradientReducer:
    """Reduces the gradients of one optimizer's parameters."""

    def __init__(
        self,
        names: Mapping[torch.Tensor, str],
        schedule: Schedule[torch.Tensor],
        scaling: Scaling,
        compression: type[Compressor],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        """Prepares; `hook` starts. More `names` may come; `schedule` says when what travels."""
        self.schedule = schedule
        self.native: GradientHooks | None = None
        """The hooks in C++, if the schedule is one that they can serve."""
        self._names = names
        self._scaling = scaling
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._flights: list[Flight] = []
        self._sparse: set[torch.Tensor] = set()
        self._feedback = ErrorFeedback()
        self._coded: list[CodedAllreduce] = []
        self._notice = ChangeNotice()

    def hook(self) -> None:
        """Puts a hook on every parameter; it takes the place of an earlier one."""
        params = list(self.schedule.params)
        for param in params:
            take_off(param)
        simple = (
            self._compression is NoneCompressor
            and not self._sparse_as_dense
            and self.schedule.immediate
        )
        self.native = gradient_hooks.create(
            process.engine(), number_of(self._process_set), self._scaling, params,
            [self._name(param) for param in params],
        ) if simple else None  # fmt: skip
        if self.native is not None:
            for param in params:
                remember(param, self.native.remove)
            return
        # Weak: the parameters' hooks must not keep a replaced optimizer alive.
        reference = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer._on_gradient(param)

        for param in params:
            take_over(param, hook)

    def _native_hooks(self) -> GradientHooks | None:
        """The hooks in C++, unless a later optimizer's have taken their place."""
        return self.native if self.native is not None and self.native.on else None

    @property
    def touched(self) -> bool:
        """Whether a backward pass began since the last step."""
        native = self._native_hooks()
        return self.schedule.touched or (native is not None and native.touched)

    @property
    def in_flight(self) -> bool:
        """Whether gradients are being reduced."""
        native = self._native_hooks()
        return bool(self._flights) or (native is not None and native.in_flight)

    def _name(self, param: torch.Tensor) -> str:
        return f"allreduce.{self._names[param]}"

    def _on_gradient(self, param: torch.Tensor) -> None:
        ready = self.schedule.ready(param)
        if ready:
            self._submit(ready)

    def _submit(self, params: Sequence[torch.Tensor]) -> None:
        engine = process.engine()
        members = []
        for param in params:
            grad = self._gradient(param)
            if grad.is_sparse:
                self._submit_sparse(engine, param, grad)
            elif is_codec(self._compression) and grad.is_floating_point():
                self._submit_coded(engine, param, grad)
            else:
                members.append(self._member(param, grad))
        if not members:
            return
        scaling = self._scaling
        number = number_of(self._process_set)
        if len(members) == 1:
            member = members[0]
            pointer, shape, dtype = torch_tensors.view(member.sent)
            handle = engine.allreduce(
                self._name(member.param), pointer, pointer, shape, dtype, scaling.op,
                scaling.prescale, scaling.postscale, number, member.sent, False,
                torch_tensors.place(member.sent),
            )  # fmt: skip
        else:
            tensors = []
            for member in members:
                pointer, shape, dtype = torch_tensors.view(member.sent)
                name = self._name(member.param)
                tensors.append((name, pointer, pointer, shape, dtype))
            handle = engine.submit(
                ALLREDUCE, tensors, scaling.op, scaling.prescale, scaling.postscale,
                process_set=number, keep=members,
                place=place_of_all(torch_tensors, [member.sent for member in members]),
            )  # fmt: skip
        self._flights.append(Flight(engine, handle, members))

    def _gradient(self, param: torch.Tensor) -> torch.Tensor:
        """Gives the gradient to send; zeros if this rank has none but another may."""
        grad = param.grad
        if grad is None:
            if param in self._sparse and not self._sparse_as_dense:
                dims = param.dim()
                grad = torch.sparse_coo_tensor(
                    torch.empty((1, 0), dtype=torch.int64, device=param.device),
                    torch.empty((0, *param.shape[1:]), dtype=param.dtype, device=param.device),
                    param.shape, check_invariants=False,
                ) if dims else torch.zeros_like(param)  # fmt: skip
            else:
                grad = torch.zeros_like(param, requires_grad=False)
            param.grad = grad
        if grad.is_sparse and self._sparse_as_dense:
            grad = grad.to_dense()
            param.grad = grad
        return grad

    def _member(self, param: torch.Tensor, grad: torch.Tensor) -> Member:
        if self._compression is NoneCompressor or is_codec(self._compression):
            sent, context = grad, None
        else:
            sent, context = self._compression.compress(grad)
        # Ranks could disagree about another memory order, so a contiguous copy travels.
        return Member(param, sent.contiguous(), context, grad, grad._version)

    def _submit_sparse(self, engine: Any, param: torch.Tensor, grad: torch.Tensor) -> None:
        self._sparse.add(param)
        finish = sparse_allreduce_async(
            grad, self._name(param), self._scaling.op, self._process_set
        )
        self._flights.append(
            Flight(engine, finish, [Member(param, grad, None, grad, grad._version)])
        )

    def _submit_coded(self, engine: Any, param: torch.Tensor, grad: torch.Tensor) -> None:
        codec: Any = self._compression
        values: Any = torch_tensors.numbers(grad)
        reduction = CodedAllreduce(
            values, codec, self._name(param), self._scaling, self._process_set, self._feedback
        )

        def finish() -> torch.Tensor:
            return torch_tensors.of_numbers(reduction(), grad)

        self._coded.append(reduction)
        self._flights.append(
            Flight(engine, finish, [Member(param, grad, None, grad, grad._version)])
        )

    def start(self, param: torch.Tensor) -> tuple[int, Any]:
        """Starts one reduction that the caller waits for; gives its handle, and what `compress`
        gave beside the tensor.
        """
        sent, context = self._compression.compress(self._gradient(param))
        scaling = self._scaling
        handle = plain.allreduce_async_(
            sent, name=self._names[param], op=scaling.op, prescale_factor=scaling.prescale,
            postscale_factor=scaling.postscale, process_set=self._process_set,
        )  # fmt: skip
        return handle, context

    def finish(self, late: Sequence[torch.Tensor] = ()) -> None:
        """Hands over the remaining gradients, waits for all, and begins a new step.

        `late` parameters are trained from this step on, and have no hook yet.
        """
        native = self._native_hooks()
        refused: Exception | None = None
        if native is not None:
            left = [[param] for param in native.missing()]
            for (param,) in left:
                try:
                    if _is_trained(param):
                        self._gradient(param)
                        native.submit(param)
                except Exception as error:  # as below
                    refused = refused or error
            if left:  # Python's way takes what the hooks do not
                left = [[param] for param in native.missing()]
        else:
            left = self.schedule.missing()
        left += [[param] for param in late]
        for params in left:
            wanted = list(filter(_is_trained, params))
            try:
                if wanted:
                    self._submit(wanted)
            except Exception as error:  # the other ranks wait for the remaining calls
                refused = refused or error
        landed = self._land()
        failed = refused or landed
        if late:
            self.schedule.add(late)
        if late or (native is not None and native.engine is not process.engine()):
            self.hook()  # or init() was called again
        if failed is not None:
            raise failed
        if has_peers(self._process_set) and number_of(self._process_set) == 0:
            autotune.step_ended(self, self._listed, self.native is not None)

    def _listed(self) -> autotune.Gradients:
        return [
            (self._name(p), str(p.dtype), list(p.shape), p.numel() * p.element_size())
            for p in self.schedule.params
        ]

    def reduced_loss(self, loss: Any) -> Any:
        """Reduces a closure's loss as the gradients are; what is no loss stays as it was."""
        own = torch.as_tensor(loss, dtype=torch.float64) if isinstance(loss, float) else loss
        if not (isinstance(own, torch.Tensor) and own.numel() == 1 and own.is_floating_point()):
            return loss
        reduced = plain.allreduce(
            own.detach(), name="closure.loss", op=self._scaling.op,
            prescale_factor=self._scaling.prescale, postscale_factor=self._scaling.postscale,
            process_set=self._process_set,
        )  # fmt: skip
        return reduced.item() if isinstance(loss, float) else reduced

    def land(self) -> None:
        """Waits for the calls in flight, hands nothing over, and begins a new step."""
        if self.in_flight and (failed := self._land()) is not None:
            raise failed

    def restart(self) -> None:
        """Waits for the calls in flight, whatever becomes of them, and begins a new step."""
        self._land()

    def _land(self) -> Exception | None:
        """Waits for everything in flight and begins a new step; gives the first error."""
        native = self._native_hooks()
        failed = native.wait() if native is not None else None
        changed = native.changed() if native is not None else None
        for coded in self._coded:
            coded.add()  # all sums are submitted before the first wait
        for index, (engine, handle, members) in enumerate(self._flights):
            try:
                if callable(handle):
                    reduced = handle()
                else:
                    engine.wait(handle)
                if not callable(handle) and (place := torch_tensors.place(members[0].sent)):
                    engine.join_stream(handle, place[1])
            except Exception as error:  # the other calls must end before their memory may be reused
                if not callable(handle) and not has_ended(engine, handle):
                    del self._flights[:index]  # a signal's handler raised: still in flight
                    raise
                failed = failed or error
            else:
                for member in members:
                    if changed is None and member.grad._version != member.version:
                        changed = member.param
                if callable(handle):
                    self._replace(members[0].param, reduced)
                else:
                    for param, sent, context, *_ in members:
                        self._give_back(param, sent, context)
            if not callable(handle):
                engine.release(handle)
        self._flights.clear()
        self._coded.clear()
        self.schedule.restart()
        if native is not None:
            native.restart()
        if changed is not None:
            told = self._notice.tell(self._names[changed])
            failed = failed or told
        return failed

    def _replace(self, param: torch.Tensor, reduced: torch.Tensor) -> None:
        if reduced.is_sparse:
            param.grad = reduced
        else:
            self._give_back(param, reduced, None)

    def _give_back(self, param: torch.Tensor, sent: torch.Tensor, context: Any) -> None:
        grad = param.grad
        if sent is grad:
            return
        value = sent if context is None else self._compression.decompress(sent, context)
        if grad is None:
            param.grad = value.to(param.dtype)
        else:
            # Into the present tensor: the user may hold it, or a view of it.
            grad.copy_(value)
