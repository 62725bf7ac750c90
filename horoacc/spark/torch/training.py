"""What each rank of a TorchEstimator's job does."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import horoacc.torch as hvd
from horoacc.spark.estimator import steps_of, write_history
from horoacc.spark.reader import Batches, Columns, Reading
from horoacc.spark.store import Store

_PRINT_STEPS = 100


@dataclass(frozen=True)
class Plan:
    """All that ranks need to know; they get it pickled in one piece, so that the optimizer's
    parameters are the model's.
    """

    model: Any
    optimizer: Any
    losses: list[Any]
    loss_constructors: list[Any] | None
    loss_weights: list[float] | None
    metrics: list[list[Any]]
    compression: Any
    backward_passes_per_step: int
    features: list[str]
    labels: list[str]
    weight: str | None
    input_shapes: list[list[int]]
    label_shapes: list[list[int]] | None
    epochs: int
    train_path: str
    val_path: str | None
    train_rows: int
    val_rows: int
    train: Reading
    val: Reading
    train_steps: int | None
    val_steps: int | None
    minibatch: Any
    checkpoint: bytes | None
    store: Store
    run_id: str
    verbose: int
    seed: int | None
    use_gpu: bool


def train(plan: Plan) -> tuple[list[dict[str, Any]], bytes] | None:
    """Trains.

    Args:
        plan: What to do.

    Returns:
        On rank 0 the metrics of each epoch, and the model's and the optimizer's state.
    """
    hvd.init()
    if plan.seed is not None:
        torch.manual_seed(plan.seed)
    return _Trainer(plan).train()


class _Mean:
    """The mean of a number over steps and ranks."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: Any) -> None:
        self._sum += float(value)
        self._count += 1

    def over_ranks(self) -> float:
        mine = torch.tensor([self._sum, float(self._count)], dtype=torch.float64)
        total = hvd.allreduce(mine, op=hvd.Sum)
        return float(total[0] / total[1])

    def here(self) -> float:
        return self._sum / self._count


class _Trainer:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        gpu = plan.use_gpu and torch.cuda.is_available()
        self._device = torch.device("cuda", hvd.local_rank()) if gpu else torch.device("cpu")
        self._model = plan.model.to(self._device)
        losses = plan.losses
        if plan.loss_constructors:
            losses = [make(model=self._model, plan=plan) for make in plan.loss_constructors]
        self._losses = losses * len(plan.labels) if len(losses) == 1 else losses
        count = len(plan.labels)
        self._loss_weights = plan.loss_weights or [1.0 / count] * count
        optimizer = bound(plan.optimizer, self._model)
        if plan.checkpoint is not None:
            state = torch.load(io.BytesIO(plan.checkpoint), map_location=self._device)
            self._model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        scale_rates(optimizer, hvd.size())
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        given = {"compression": plan.compression} if plan.compression else {}
        self._optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self._model.named_parameters(),
            backward_passes_per_step=plan.backward_passes_per_step, **given,
        )  # fmt: skip

    def train(self) -> tuple[list[dict[str, Any]], bytes] | None:
        plan = self._plan
        history: list[dict[str, Any]] = []
        sync = plan.store.sync_fn(plan.run_id)
        reader = Batches(plan.store, plan.train_path, hvd.rank(), hvd.size(), plan.train)
        val_reader = None
        if plan.val_path is not None:
            val_reader = Batches(plan.store, plan.val_path, hvd.rank(), hvd.size(), plan.val)
        state = b""
        with plan.store.get_local_output_dir_fn(plan.run_id)() as folder:
            for epoch in range(plan.epochs):
                steps = steps_of(plan.train_steps, plan.train_rows, plan.train, hvd.size())
                told: dict[str, Any] = {
                    "epoch": epoch, "train": self._pass(reader, steps, epoch, True)
                }  # fmt: skip
                if val_reader is not None:
                    steps = steps_of(plan.val_steps, plan.val_rows, plan.val, hvd.size())
                    told["validation"] = self._pass(val_reader, steps, epoch, False)
                history.append(told)
                if hvd.rank() != 0:
                    continue
                if plan.verbose:
                    print(told, flush=True)
                state = self._state()
                if plan.store.saving_runs():
                    Path(folder, plan.store.get_checkpoint_filename()).write_bytes(state)
                    sync(folder)
                    write_history(plan.store, plan.run_id, history)
        reader.close()
        if val_reader is not None:
            val_reader.close()
        hvd.barrier()
        return (history, state) if hvd.rank() == 0 else None

    def _state(self) -> bytes:
        """The state with the learning rates of one rank, on the CPU."""
        file = io.BytesIO()
        scale_rates(self._optimizer, 1.0 / hvd.size())
        whole = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(whole, file)
        scale_rates(self._optimizer, hvd.size())
        return file.getvalue()

    def _pass(self, reader: Batches, steps: int, epoch: int, training: bool) -> dict[str, Any]:
        self._model.train(training)
        plan = self._plan
        loss_mean = _Mean()
        means = [[_Mean() for _ in plan.labels] for _ in plan.metrics]
        phase = "train" if training else "validation"
        for step in range(steps):
            inputs, labels, weights = self._batch(next(reader))
            if training:
                minibatch = plan.minibatch or train_minibatch
                outputs, loss = minibatch(
                    self._model, self._optimizer, shaped, self._loss, inputs, labels, weights
                )
            else:
                with torch.no_grad():
                    outputs, labels = shaped(self._model(*inputs), labels)
                    loss = self._loss(outputs, labels, weights)
            outputs, labels = shaped(outputs, labels)
            loss_mean.add(loss.detach())
            for group, its_means in zip(plan.metrics, means, strict=True):
                fns = group * len(plan.labels) if len(group) == 1 else group
                for fn, mean, output, label in zip(fns, its_means, outputs, labels, strict=True):
                    mean.add(fn(output.detach(), label))
            if plan.verbose > 1 and hvd.rank() == 0 and step % _PRINT_STEPS == 0:
                print(f"epoch {epoch} {phase} step {step}: loss {loss_mean.here():.4g}", flush=True)
        return {
            "loss": loss_mean.over_ranks(),
            "all_metrics": [
                {
                    f"group_{at}_{label}": mean.over_ranks()
                    for label, mean in zip(plan.labels, group, strict=True)
                }
                for at, group in enumerate(means)
            ],
        }

    def _loss(self, outputs: Any, labels: Any, weights: Any) -> Any:
        return weighted_loss(outputs, labels, self._loss_weights, self._losses, weights)

    def _batch(self, rows: Columns) -> tuple[list[Any], list[Any], Any]:
        plan = self._plan
        inputs = [
            of_shape(torch.as_tensor(rows[name]).float(), shape).to(self._device)
            for name, shape in zip(plan.features, plan.input_shapes, strict=True)
        ]
        labels = [_label(torch.as_tensor(rows[name])).to(self._device) for name in plan.labels]
        if plan.label_shapes:
            labels = [
                of_shape(label, shape)
                for label, shape in zip(labels, plan.label_shapes, strict=True)
            ]
        weights = None
        if plan.weight is not None:
            weights = torch.as_tensor(rows[plan.weight]).float().to(self._device)
        return inputs, labels, weights


def _label(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.is_floating_point() else values.long()


def of_shape(values: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Gives rows a shape: that of a row, or that of the batch, with -1 for its rows.

    Args:
        values: Of shape (rows, …).
        shape: The shape.
    """
    return values.reshape(shape if -1 in shape else [-1, *shape])


def shaped(outputs: Any, labels: list[Any]) -> tuple[list[Any], list[Any]]:
    """Makes a list of a model's outputs, and gives labels with as many numbers the same shapes.

    Args:
        outputs: A tensor, or several.
        labels: As many.
    """
    listed = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    same = [
        label.reshape(output.shape) if label.numel() == output.numel() else label
        for label, output in zip(labels, listed, strict=True)
    ]
    return listed, same


def weighted_loss(
    outputs: Any, labels: Any, loss_weights: Any, losses: Any, weights: Any = None
) -> Any:
    """Adds the labels' losses up.

    Args:
        outputs: A tensor for each label.
        labels: The labels.
        loss_weights: A factor for each.
        losses: A loss for each; it must take `reduction="none"` if samples have weights.
        weights: The samples' weights, of shape (rows,), or None.

    Returns:
        The sum. Of weighted samples a loss is the mean of weight times loss.
    """
    total: Any = 0.0
    for output, label, loss, factor in zip(outputs, labels, losses, loss_weights, strict=True):
        if weights is None:
            total = total + factor * loss(output, label)
        else:
            each = loss(output, label, reduction="none").flatten()
            total = total + factor * (each * weights).mean()
    return total


def train_minibatch(
    model: Any, optimizer: Any, shape: Callable[..., Any], loss_fn: Callable[..., Any],
    inputs: list[Any], labels: list[Any], weights: Any,
) -> tuple[list[Any], Any]:  # fmt: skip
    """Takes a step: what `train_minibatch_fn` replaces.

    Args:
        model: The model.
        optimizer: A DistributedOptimizer.
        shape: Makes lists of outputs and labels of the same shapes.
        loss_fn: Takes outputs, labels and weights.
        inputs: Tensors of a batch.
        labels: The same.
        weights: The samples' weights, or None.

    Returns:
        The outputs and the loss.
    """
    optimizer.zero_grad()
    outputs, labels = shape(model(*inputs), labels)
    loss = loss_fn(outputs, labels, weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


def scale_rates(optimizer: Any, factor: float) -> None:
    """Multiplies the learning rates: one of a rank is for its batch, and all ranks have as many.

    Args:
        optimizer: The optimizer.
        factor: The factor.
    """
    for group in optimizer.param_groups:
        group["lr"] *= factor


def bound(optimizer: Any, model: Any) -> Any:
    """Gives an optimizer whose parameters are the model's: itself, or another of its class.

    Args:
        optimizer: An optimizer, maybe of a model of the same kind.
        model: The model.
    """
    own = set(map(id, model.parameters()))
    if all(id(one) in own for group in optimizer.param_groups for one in group["params"]):
        return optimizer
    made = type(optimizer)(model.parameters(), lr=optimizer.param_groups[0]["lr"])
    made.load_state_dict(optimizer.state_dict())
    return made
