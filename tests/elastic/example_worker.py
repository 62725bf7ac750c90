"""Runs an example as it stands, to which things happen: example_worker.py FOLDER SCRIPT ARGUMENTS.

Places of the framework and of HoroACC are patched from outside. A worker dies at the n-th time
that it reaches one, as the plan has it: {"at": "commit", "nth": 2, "rank": 0}, or, if it is one
that comes later, {"at": "sync", "worker": 4}. Noted are the samples that a rank gave to each step,
known by their images, and the fingerprints of the weights before and after the step: so the weights
at the end tell which steps, and which samples, they are made of.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import runpy
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_plan import FOLDER, happens, note

SCRIPT = Path(sys.argv[2])
OPTIONS = json.loads((FOLDER / "options").read_text())
WORKER = int(os.environ["HOROACC_WORKER"])
happens(worker=WORKER)

import numpy as np  # noqa: E402

import horoacc  # noqa: E402
from horoacc.elastic import ObjectState, State, epoch  # noqa: E402

reached: Counter[str] = Counter()


def reach(place: str) -> None:
    """Here the plan may have something happen."""
    reached[place] += 1
    happens(at=place, worker=WORKER)
    happens(at=place, nth=reached[place], rank=horoacc.rank())


def before(place: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def reaching(*args: Any, **kwargs: Any) -> Any:
        reach(place)
        return function(*args, **kwargs)

    return reaching


def after(place: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def reaching(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        reach(place)
        return result

    return reaching


class Trained:
    """What the script trains, once it has made its state."""

    state: Any = None
    weights: Callable[[], list[Any]]
    numbers: dict[bytes, int]  # of samples, by their images

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for weight in self.weights():
            digest.update(np.ascontiguousarray(weight).tobytes())
        return digest.hexdigest()[:20]

    def gives(self, images: Any, weights: str = "") -> None:
        """This rank is about to take samples into the step from these weights."""
        self.before = weights or self.fingerprint()
        rows = np.asarray(images, np.float32).reshape(len(images), -1)
        note("gives", epoch=epoch(), before=self.before, rank=horoacc.rank(),
             training=int(self.state.epoch), samples=[self.numbers[row.tobytes()] for row in rows],
             )  # fmt: skip
        reach("forward")

    def applied(self) -> None:
        note("applied", epoch=epoch(), before=self.before, after=self.fingerprint(),
             size=horoacc.size(), rank=horoacc.rank())  # fmt: skip
        reach("applied")


trained = Trained()


def load_digits(return_X_y: bool) -> Any:
    """The same digits without scikit-learn, which takes a second to import."""
    assert return_X_y
    with np.load(OPTIONS["digits"]) as saved:
        images, labels = saved["images"], saved["labels"]
    rows = (images / 16).astype(np.float32)
    trained.numbers = {row.tobytes(): number for number, row in enumerate(rows)}
    return images, labels


def check_host_updates(self: State) -> None:
    """Waits first, if there is to be another number of ranks in this epoch of the training."""
    size = OPTIONS.get("sizes", {}).get(str(int(trained.state.epoch)), 0)
    while size and horoacc.size() != size:
        horoacc.barrier()  # so that all ranks make as many checks
        time.sleep(0.05)
        plain_check(self)
    plain_check(self)


def watch(kind: type[Any], begin: Callable[[Any], None]) -> None:
    """Has a function called with each state of a kind that is made."""
    make = kind.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        trained.state = self
        begin(self)
        self.register_reset_callbacks([lambda: reach("reset")])
        reach("built")

    kind.__init__ = made


def patch_torch() -> None:
    import torch

    import horoacc.torch as hvd

    def begin(state: Any) -> None:
        model, optimizer = state.model, state.optimizer
        trained.weights = lambda: [p.detach().numpy() for p in model.parameters()]

        def forward(model: Any, args: Any) -> None:
            if model.training:
                trained.gives(args[0].numpy())
            else:
                reach("test")

        model.register_forward_pre_hook(forward)
        plain = optimizer.step

        @functools.wraps(plain)
        def step(*args: Any, **kwargs: Any) -> Any:
            reach("step")
            result = plain(*args, **kwargs)
            trained.applied()
            return result

        optimizer.step = step

    save = torch.save

    def half(what: Any, file: Any) -> None:
        whole = io.BytesIO()
        save(what, whole)
        middle = len(whole.getvalue()) // 2
        file.write(whole.getvalue()[:middle])
        file.flush()
        reach("checkpoint")
        file.write(whole.getvalue()[middle:])

    torch.save = half
    hvd.init = after("init", hvd.init)
    sampler = hvd.elastic.ElasticSampler
    sampler.set_epoch = before("between", sampler.set_epoch)  # type: ignore[method-assign]
    watch(hvd.elastic.TorchState, begin)


def patch_tensorflow() -> None:
    import tensorflow as tf
    from tensorflow.python.checkpoint import checkpoint_management

    import horoacc.tensorflow as hvd

    plain = tf.function

    def function(*args: Any, **kwargs: Any) -> Any:
        """Of the script's functions one is a step."""
        made = plain(*args, **kwargs)
        if args and callable(args[0]):
            return made
        return lambda f: stepping(made(f)) if f.__module__ == "__main__" else made(f)

    def stepping(step: Any) -> Any:
        def taken(inputs: Any, targets: Any) -> Any:
            trained.gives(inputs.numpy())
            result = step(inputs, targets)
            trained.applied()
            return result

        return taken

    def begin(state: Any) -> None:
        model = state.model
        trained.weights = lambda: [v.numpy() for v in model.trainable_variables]

    tf.function = function
    checkpoint_management.update_checkpoint_state_internal = before(
        "checkpoint", checkpoint_management.update_checkpoint_state_internal
    )
    tf.data.Dataset.from_tensor_slices = before("between", tf.data.Dataset.from_tensor_slices)
    hvd.init = after("init", hvd.init)
    hvd.allreduce = before("test", hvd.allreduce)
    watch(hvd.elastic.TensorFlowKerasState, begin)


def patch_keras() -> None:
    import keras

    import horoacc.keras as hvd

    class Notes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.weights = trained.fingerprint()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            trained.applied()

        def on_test_begin(self, logs: Any = None) -> None:
            reach("test")

    notes = Notes()
    fit, train_step, save = keras.Model.fit, keras.Model.train_step, keras.Model.save

    def fitting(self: Any, *args: Any, callbacks: Any, **kwargs: Any) -> Any:
        reach("between")
        return fit(self, *args, callbacks=[notes, *callbacks], **kwargs)

    def stepping(self: Any, data: Any) -> Any:
        def gives(images: Any) -> None:
            trained.gives(images, notes.weights)

        if keras.backend.backend() == "torch":
            gives(data[0].numpy())
            return train_step(self, data)
        import tensorflow as tf

        with tf.control_dependencies([tf.numpy_function(gives, [data[0]], [])]):
            data = (tf.identity(data[0]), *data[1:])  # so that no gradient is there before
        return train_step(self, data)

    def half(self: Any, path: Path) -> None:
        save(self, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        reach("checkpoint")
        path.write_bytes(whole)

    def begin(state: Any) -> None:
        trained.weights = lambda: [
            keras.ops.convert_to_numpy(v).copy() for v in state.model.trainable_variables
        ]

    keras.Model.fit, keras.Model.train_step, keras.Model.save = fitting, stepping, half
    hvd.init = after("init", hvd.init)
    watch(hvd.elastic.KerasState, begin)


plain_check = State.check_host_updates
State.check_host_updates = check_host_updates  # type: ignore[method-assign]
State.commit = after("committed", before("commit", State.commit))  # type: ignore[method-assign]
# In the middle of it: a frontend's state has done its models before.
ObjectState.save = before("save", ObjectState.save)  # type: ignore[method-assign]
ObjectState.sync = before("sync", ObjectState.sync)  # type: ignore[method-assign]
sys.modules["sklearn.datasets"] = types.ModuleType("sklearn.datasets")
sys.modules["sklearn.datasets"].load_digits = load_digits  # type: ignore[attr-defined]
patches = {"tensorflow": patch_tensorflow, "keras": patch_keras}
patches.get(SCRIPT.stem.removeprefix("elastic_"), patch_torch)()
sys.argv = sys.argv[2:]
sys.path.insert(0, str(SCRIPT.parent))
runpy.run_path(str(SCRIPT), run_name="__main__")
note("end", rank=horoacc.rank(), size=horoacc.size(), weights=trained.fingerprint())
