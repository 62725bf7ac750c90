"""With TF_USE_LEGACY_KERAS=1: what Horovod's optimizers and layers do, of the Keras that it was
written for. Expected values are computed by hand from all ranks' gradients."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lazy import as_tf_keras, hvd, ranks, tf, tf_keras

KINDS = ("SGD", "legacy.SGD")
FRONTENDS = ("horoacc.keras", "horoacc.tensorflow.keras", "horoacc.tensorflow")


def made(kind: str, rate: float = 1.0, **how: Any) -> Any:
    found = tf_keras.optimizers
    for name in kind.split("."):
        found = getattr(found, name)
    return found(rate, **how)


def slope(rank: int) -> float:
    return float(rank + 1)


def mean() -> float:
    return sum(slope(rank) for rank in range(hvd.size())) / hvd.size()


def loss_of(*variables: Any) -> Any:
    return tf.add_n([tf.reduce_sum(one * slope(hvd.rank())) for one in variables])


def in_both(call: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [call, tf.function(call)]


def adding(kind: str) -> Any:
    """An optimizer that adds gradients to its variables: a user's own class."""

    class Adding(tf_keras.optimizers.legacy.Optimizer):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            return var.assign_add(grad)

        def get_config(self) -> Any:
            return super().get_config()

    class AddingNew(tf_keras.optimizers.Optimizer):  # type: ignore[misc]
        def __init__(self, name: str = "Adding", **how: Any) -> None:
            super().__init__(name=name, **how)
            self._learning_rate = self._build_learning_rate(1.0)

        def update_step(self, gradient: Any, variable: Any) -> None:
            variable.assign_add(gradient)

        def get_config(self) -> Any:
            return {"name": self.name}

    return Adding("Adding") if kind.startswith("legacy") else AddingNew()


@as_tf_keras
@ranks(2)
def test_classes_are_of_tf_keras() -> None:
    import horoacc

    assert tf.keras.optimizers.SGD is tf_keras.optimizers.SGD
    horoacc.install_as_horovod()
    for name in FRONTENDS:
        frontend = importlib.import_module(name)
        assert importlib.import_module(name.replace("horoacc", "horovod")) is frontend
        for kind in (*KINDS, "Adam", "legacy.Adam"):
            plain = made(kind)
            optimizer = frontend.DistributedOptimizer(plain)
            assert isinstance(optimizer, type(plain)) and type(optimizer) is not type(plain)
            config = optimizer.get_config()
            assert config == plain.get_config()
            assert type(optimizer.__class__.from_config(config)) is type(plain)
            copied = optimizer.from_config(config)
            assert copied.get_config() == config
            variable = tf.Variable([2.0])
            copied.apply_gradients([(tf.constant([slope(hvd.rank())]), variable)])
            step = 1.0 if "Adam" in kind else mean()
            np.testing.assert_allclose(variable, [2.0 - step], rtol=1e-5)
    layer = importlib.import_module("horovod.tensorflow.sync_batch_norm").SyncBatchNormalization
    assert issubclass(layer, tf.keras.layers.BatchNormalization)
    assert layer is importlib.import_module("horoacc.tensorflow").SyncBatchNormalization
    with pytest.raises(ValueError, match="not supported yet with Keras"):
        importlib.import_module("horoacc.tensorflow").DistributedOptimizer(
            made("SGD"), op=hvd.Adasum
        )


@as_tf_keras
@ranks(2, 3)
@pytest.mark.parametrize("kind", KINDS)
def test_computed_gradients_are_reduced_once(kind: str) -> None:
    for op, wanted in ((hvd.Average, mean()), (hvd.Sum, mean() * hvd.size())):
        for index in range(2):
            variable = tf.Variable([1.0, 2.0])
            local = tf.Variable(1.0)
            optimizer = hvd.DistributedOptimizer(made(kind), op=op)
            optimizer.register_local_var(local)

            def step(optimizer: Any = optimizer, of: Any = (variable, local)) -> Any:
                pairs = optimizer._compute_gradients(lambda: loss_of(*of), list(of))
                again = [(tf.clip_by_value(grad, -100.0, 100.0), one) for grad, one in pairs]
                optimizer.apply_gradients(again)
                return [grad for grad, _ in pairs]

            grads = in_both(step)[index]()
            own = slope(hvd.rank()) / hvd.size()
            np.testing.assert_allclose(grads[0], [wanted] * 2, rtol=1e-6)
            np.testing.assert_allclose(grads[1], own, rtol=1e-6)
            np.testing.assert_allclose(variable, np.array([1, 2]) - wanted, rtol=1e-6)
            np.testing.assert_allclose(local, 1 - own, rtol=1e-6)
            # minimize() and gradients of somebody else's tape.
            optimizer.minimize(lambda of=variable: loss_of(of), [variable])
            np.testing.assert_allclose(variable, np.array([1, 2]) - 2 * wanted, rtol=1e-5)
            with tf.GradientTape() as tape:
                loss = loss_of(variable)
            optimizer.apply_gradients(zip(tape.gradient(loss, [variable]), [variable], strict=True))
            np.testing.assert_allclose(variable, np.array([1, 2]) - 3 * wanted, rtol=1e-5)
            pairs = optimizer._aggregate_gradients(
                [(tf.constant([slope(hvd.rank())] * 2), variable)]
            )
            np.testing.assert_allclose(pairs[0][0], [wanted] * 2, rtol=1e-6)
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
            np.testing.assert_allclose(variable, np.array([1, 2]) - 4 * wanted, rtol=1e-5)


@as_tf_keras
@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_scaled_losses_are_reduced_once(kind: str) -> None:
    """In a step and between two of them: nothing of a step is left over for the next."""
    for index in range(2):
        variable, local = tf.Variable([1.0, 2.0]), tf.Variable(1.0)
        inner = hvd.DistributedOptimizer(made(kind), op=hvd.Sum)
        inner.register_local_var(local)
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(inner)

        def step(optimizer: Any = optimizer, of: Any = (variable, local)) -> None:
            optimizer.minimize(lambda: loss_of(*of), list(of))

        run = in_both(step)[index]
        for steps in (1, 2):
            run()
            np.testing.assert_allclose(
                variable, np.array([1, 2]) - steps * mean() * hvd.size(), rtol=1e-5
            )
            np.testing.assert_allclose(local, 1 - steps * slope(hvd.rank()) / hvd.size(), rtol=1e-5)


@as_tf_keras
@ranks(2)
def test_two_losses_in_one_function() -> None:
    variables = [tf.Variable([1.0]), tf.Variable([1.0])]
    optimizer = hvd.DistributedOptimizer(made("legacy.SGD"), op=hvd.Sum)

    @tf.function
    def step() -> None:
        pairs = [
            optimizer._compute_gradients(lambda one=one: loss_of(one), [one]) for one in variables
        ]
        for each in pairs:
            optimizer.apply_gradients(each)

    step()
    np.testing.assert_allclose(variables, np.full((2, 1), 1 - mean() * hvd.size()), rtol=1e-5)


PASSES = 4


def computed_and_applied(optimizer: Any, variable: Any) -> Callable[[], Any]:
    def run() -> None:
        pairs = optimizer._compute_gradients(lambda: loss_of(variable), [variable])
        optimizer.apply_gradients(pairs)

    return run


def applied(optimizer: Any, variable: Any) -> Callable[[], Any]:
    def run() -> None:
        optimizer.apply_gradients([(tf.constant([slope(hvd.rank())]), variable)])

    return run


def reduced_outside(optimizer: Any, variable: Any, **how: Any) -> Callable[[], Any]:
    """As Horovod's own test does it: the function does not know whether gradients are reduced."""

    @tf.function
    def apply(grads: Any) -> None:
        optimizer.apply_gradients(zip(grads, [variable], strict=True), **how)

    def run() -> None:
        grads = [tf.constant([slope(hvd.rank())])]
        if how:
            grads = [one for one, _ in optimizer._aggregate_gradients([(grads[0], variable)])]
        else:
            grads = optimizer._allreduce(grads, [variable])
        apply(grads)

    return run


WAYS: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {
    "computed": computed_and_applied,
    "computed in a function": lambda *of: tf.function(computed_and_applied(*of)),
    "applied": applied,
    "applied in a function": lambda *of: tf.function(applied(*of)),
    "reduced outside": reduced_outside,
    "aggregated outside": lambda *of: reduced_outside(*of, experimental_aggregate_gradients=False),
}


@as_tf_keras
@ranks(2)
@pytest.mark.parametrize("kind", ["new", "legacy"])
def test_gradient_aggregation(kind: str) -> None:
    for average in (True, False):
        for way, prepare in WAYS.items():
            optimizer = hvd.DistributedOptimizer(
                adding(kind), backward_passes_per_step=PASSES, average_aggregated_gradients=average
            )
            assert int(optimizer.iterations) == 0
            variable = tf.Variable([0.0])
            run = prepare(optimizer, variable)
            for index in range(2 * PASSES + 1):
                run()
                steps = (index + 1) // PASSES
                wanted = steps * mean() * (1 if average else PASSES)
                assert variable.numpy() == pytest.approx(wanted), (way, index)
                # As in Horovod, passes are counted.
                assert int(optimizer.iterations) == index + 1, (way, index)
            assert int(optimizer._agg_helper.counter) == 1
    sums = hvd.DistributedOptimizer(adding(kind), backward_passes_per_step=2)
    local, absent = tf.Variable(0.0), tf.Variable(0.0)
    sums.register_local_var(local)
    shown = []
    for _ in range(4):
        pairs = sums._compute_gradients(lambda: loss_of(local, variable), [local, variable, absent])
        sums.apply_gradients(pairs)
        shown.append([None if grad is None else float(np.ravel(grad)[0]) for grad, _ in pairs])
    mine = slope(hvd.rank())
    last = [2 * mine / hvd.size(), 2 * mean(), None]
    assert shown == [[mine, mine, None], last] * 2
    assert float(local) == pytest.approx(2 * last[0]) and float(absent) == 0


@as_tf_keras
@ranks(2)
def test_gradients_of_a_graph() -> None:
    """`get_gradients` and `get_updates`, as Keras took them in graphs of TensorFlow 1."""
    for passes in (1, 2):
        with tf.Graph().as_default():
            variable = tf.compat.v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
            optimizer = hvd.DistributedOptimizer(
                made("legacy.SGD"), op=hvd.Sum, backward_passes_per_step=passes
            )
            given = optimizer.get_gradients(loss_of(variable), [variable])
            (update,) = optimizer.get_updates(loss_of(variable), [variable])
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(tf.compat.v1.local_variables_initializer())
                total = mean() * hvd.size()
                if passes == 1:
                    np.testing.assert_allclose(session.run(given[0]), [total] * 2)
                for _ in range(3):
                    session.run(update)
                steps = 3 // passes * passes
                np.testing.assert_allclose(session.run(variable), np.array([1, 2]) - steps * total)


@as_tf_keras
@ranks(2)
def test_training_is_that_of_one_rank() -> None:
    """Arguments of the optimizers in `fit`, one rank with all rows being the oracle."""
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    rows = np.random.default_rng(3).integers(0, 20, (8 * hvd.size(), 5))
    right = np.random.default_rng(4).normal(size=(8 * hvd.size(), 5, 4)).astype("float32")
    mine = slice(hvd.rank(), None, hvd.size())

    def network(data: Any, optimizer: Any, **how: Any) -> Any:
        tf_keras.utils.set_random_seed(7)
        model = tf_keras.Sequential([tf_keras.layers.Embedding(20, 4), tf_keras.layers.Dense(4)])
        model.compile(optimizer, loss="mse", **how)
        model.fit(rows[data], right[data], batch_size=99, epochs=2, verbose=0,
                  callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])  # fmt: skip
        return model.get_weights()

    everything = slice(None)
    for kind, arguments in (
        ("RMSprop", {"groups": 1, "sparse_as_dense": True, "compression": hvd.Compression.none}),
        ("legacy.Adam", {"gradient_predivide_factor": 2.0}),
    ):
        # Rows that no rank has used stay as they are for slices, and for dense gradients they
        # decay alike: the momenta are zero.
        alone = network(everything, made(kind, schedule), run_eagerly=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = network(mine, hvd.DistributedOptimizer(made(kind, schedule), **arguments))
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@as_tf_keras
@ranks(2)
def test_files_and_states_of_own_optimizers() -> None:
    optimizer = adding("new")
    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(2,))])
    model.compile(hvd.DistributedOptimizer(optimizer), loss="mse")
    state = hvd.elastic.KerasState(model, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    model.set_weights([np.full_like(one, hvd.rank() + 1) for one in model.get_weights()])
    state.sync()
    assert (state.batch, state.epoch) == (20, 10)
    assert all((one == 1).all() for one in model.get_weights())
    model.set_weights([one + 1 for one in model.get_weights()])
    state.restore()
    assert all((one == 1).all() for one in model.get_weights())
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = hvd.load_model(f"{folder}/model.keras", custom_optimizers=[type(optimizer)])
    assert isinstance(loaded.optimizer, type(optimizer))
    weight = loaded.trainable_weights[1]
    loaded.optimizer.apply_gradients([(tf.fill([2], slope(hvd.rank())), weight)])
    np.testing.assert_allclose(weight, [1 + mean()] * 2)


@as_tf_keras
@ranks(2)
@pytest.mark.parametrize("kind", ["RMSprop", "legacy.RMSprop"])
def test_loaded_optimizers_have_the_state_that_was_saved(kind: str) -> None:
    """At once, as scripts compare it; also where a function makes a distributed optimizer."""

    class Mine(type(made(kind))):  # type: ignore[misc]
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)

    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(2,))])
    model.compile(hvd.DistributedOptimizer(Mine(learning_rate=0.125)), loss="mse")
    model.train_on_batch(np.ones((2, 2)), np.zeros((2, 2)))
    wanted = variables_of(model.optimizer)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.h5")
        for how in (
            {"custom_optimizers": [Mine]},
            {"custom_objects": {"Mine": lambda **of: hvd.DistributedOptimizer(Mine(**of))}},
        ):
            loaded = hvd.load_model(f"{folder}/model.h5", **how)
            optimizer = loaded.optimizer
            assert isinstance(optimizer, Mine) and hasattr(optimizer, "register_local_var")
            assert float(optimizer.lr) == 0.125
            found = variables_of(optimizer)
            assert len(found) == len(wanted) > 1
            assert all((one == other).all() for one, other in zip(found, wanted, strict=True))
            loaded.train_on_batch(np.ones((2, 2)), np.zeros((2, 2)))


def variables_of(optimizer: Any) -> list[Any]:
    own = optimizer.variables
    return [np.asarray(one) for one in (own() if callable(own) else own)]


@as_tf_keras
@ranks(2)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)], ids=str)
def test_sync_batch_normalization(shape: tuple[int, ...]) -> None:
    layers = importlib.import_module("horoacc.tensorflow")
    me, size = hvd.rank(), hvd.size()
    batches = [np.random.default_rng(rank).normal(5.0, 2.0, (rank + 2, *shape)).astype(np.float32)
               for rank in range(size)]  # fmt: skip
    together = np.concatenate(batches)
    begin = sum(len(batch) for batch in batches[:me])
    mine = slice(begin, begin + len(batches[me]))
    ups = np.random.default_rng(99).standard_normal(together.shape).astype(np.float32)
    masks = np.random.default_rng(5).integers(0, 2, together.shape[:-1]).astype(bool)
    for axis, masked in ((-1, False), (1, False), (-1, True)):
        ours = layers.SyncBatchNormalization(axis=axis, momentum=0.5)
        whole = tf_keras.layers.BatchNormalization(axis=axis, momentum=0.5, fused=False)

        def run(layer: Any, part: slice, masked: bool = masked) -> Any:
            data = tf.constant(together[part])
            how = {"mask": tf.constant(masks[part])} if masked else {}
            with tf.GradientTape() as tape:
                tape.watch(data)
                out = layer(data, training=True, **how)
                loss = tf.reduce_sum(out * ups[part])
            return out, tape.gradient(loss, [data, *layer.trainable_variables])

        for one in (ours, whole):
            one.build(together.shape)
        for index in range(2):
            out, grads = in_both(lambda run=run, layer=ours: run(layer, mine))[index]()
            right, all_grads = run(whole, slice(None))
            np.testing.assert_allclose(out, right.numpy()[mine], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(grads[0], all_grads[0].numpy()[mine], rtol=1e-3, atol=1e-4)
            for grad, wanted in zip(grads[1:], all_grads[1:], strict=True):
                summed = hvd.allreduce(grad, average=False)
                np.testing.assert_allclose(summed, wanted, rtol=1e-3, atol=1e-3)
            for got, wanted in zip(ours.variables, whole.variables, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    copied = type(ours).from_config(ours.get_config())
    assert copied.get_config() == ours.get_config()
    with pytest.raises(ValueError, match="fused"):
        layers.SyncBatchNormalization(fused=True)


@as_tf_keras
@ranks(2)
def test_optimizers_of_tf1() -> None:
    frontend = importlib.import_module("horoacc.tensorflow")
    # Adasum of steps that point one way is their mean.
    for op, factor in (("Average", 1.0), ("Sum", hvd.size()), ("Adasum", 1.0)):
        variable = tf.Variable([1.0, 2.0])
        plain = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        optimizer = frontend.DistributedOptimizer(plain, op=getattr(frontend, op))
        optimizer.minimize(lambda of=variable: loss_of(of), var_list=[variable])
        right = np.array([1, 2]) - 0.5 * mean() * factor
        np.testing.assert_allclose(variable, right, rtol=1e-6)
