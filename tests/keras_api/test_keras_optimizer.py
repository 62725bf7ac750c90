"""DistributedOptimizer of Keras: the ranks together train what one rank would."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, mostly_on_torch, on_both, on_tensorflow, on_torch, ranks, tf


@on_both
@ranks(1, 2, 4)
def test_same_as_one_rank() -> None:
    import keras_training as training

    model = training.network()
    training.fit(model, hvd.DistributedOptimizer(training.sgd(nesterov=True)), training.share(6))
    assert len(training.all_bits(model)) == 1
    training.close(model, training.alone(6, training.sgd(nesterov=True)))


@mostly_on_torch
@ranks(1, 2, 4)
def test_same_as_one_rank_with_what_comes_after_the_reduction() -> None:
    """Bias corrections, weight decay and clipping."""
    import keras_training as training

    def made() -> Any:
        return keras.optimizers.AdamW(0.01, weight_decay=0.02, global_clipnorm=0.1)

    model = training.network()
    training.fit(model, hvd.DistributedOptimizer(made()), training.share(6))
    assert len(training.all_bits(model)) == 1
    # Adam divides by the gradient's size, so that what rounding has changed of a small one grows.
    training.close(model, training.alone(6, made()), training.TOLERANCE * 20)


@on_tensorflow
@ranks(2)
def test_a_step_of_a_graph_is_one_call() -> None:
    import keras_training as training

    model = training.network()
    training.fit(model, hvd.DistributedOptimizer(training.sgd()), training.share(3))
    before = hvd.counters()["submissions"]
    model.fit(*training.share(3), batch_size=training.BATCH, verbose=0)
    assert hvd.counters()["submissions"] - before == 3


@ranks(2)
@pytest.mark.parametrize(
    "env", [{"KERAS_BACKEND": "tensorflow", "HOROACC_SIMULATED_HOSTS": "each"}]
)
def test_a_step_of_a_graph_sends_no_message_to_other_hosts(env: dict[str, str]) -> None:
    import keras_training as training

    training.seed_weights(3)
    widths = (200, 200, 3)
    model = keras.Sequential([keras.Input((7,)), *map(keras.layers.Dense, widths)])
    training.fit(model, hvd.DistributedOptimizer(training.sgd()), training.share(8))
    assert len(training.all_bits(model)) == 1
    assert hvd.counters()["plan_granted"] == 8 - 2


@on_both
@ranks(2)
@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        ({"gradient_predivide_factor": 2.0}, None),
        ({"groups": 2}, None),
        ({"groups": "lists"}, None),
        ({"num_groups": 3}, None),
        ({"op": "Sum"}, None),
        # Half of the last of 11 and 8 binary digits, of gradients below 4, in 3 steps of 0.05 * 10.
        ({"compression": "fp16"}, 4 * 2.0**-11),
        ({"compression": "bf16"}, 4 * 2.0**-8),
        ({"sparse_as_dense": True, "name": "mine", "device_dense": "/cpu:0"}, None),
    ],
    ids=str,
)
def test_arguments(arguments: dict[str, Any], tolerance: float | None) -> None:
    import keras_training as training

    model = training.network()
    given = dict(arguments)
    rate = 0.05
    if "compression" in given:
        given["compression"] = getattr(hvd.Compression, given["compression"])
    if given.get("groups") == "lists":
        weights = model.trainable_weights
        given["groups"] = [weights[:2], weights[2:3]]
    if "op" in given:
        given["op"] = hvd.Sum
        rate /= hvd.size()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9), **given)
    before = hvd.counters()["submissions"]
    training.fit(model, optimizer, training.share(3))
    assert hvd.counters()["submissions"] > before
    assert len(training.all_bits(model)) == 1
    training.close(model, training.learned_alone(3), tolerance or training.TOLERANCE)


@on_both
@ranks(2)
@pytest.mark.parametrize("arguments", [{}, {"sparse_as_dense": True}, {"groups": 1}], ids=str)
def test_embeddings_whose_gradients_are_sparse(arguments: dict[str, Any]) -> None:
    """TensorFlow's are slices: the ranks have looked up different rows."""
    import keras_training as training

    def model() -> Any:
        training.seed_weights(5)
        return keras.Sequential([
            keras.Input((4,), dtype="int32"), keras.layers.Embedding(40, 5),
            keras.layers.Flatten(), keras.layers.Dense(3),
        ])  # fmt: skip

    words = np.random.default_rng(2).integers(0, 40, (4 * training.BATCH, 4)).astype("int32")
    mine = words.reshape(2, 2, training.BATCH, 4)[:, hvd.rank()].reshape(-1, 4)
    together, alone = model(), model()
    optimizer = hvd.DistributedOptimizer(training.sgd(), **arguments)
    training.fit(together, optimizer, (mine, training.share(2)[1]))
    training.fit_alone(alone, training.sgd(), (words, training.whole(2)[1]), 2 * training.BATCH)
    assert len(training.all_bits(together)) == 1
    training.close(together, alone)


@on_both
@ranks(1, 2)
def test_eight_bit_compression_keeps_ranks_equal() -> None:
    import keras_training as training

    model = training.network(dtype="float32")
    before = training.values(model)
    optimizer = hvd.DistributedOptimizer(training.sgd(), compression=hvd.Compression.int8)
    training.fit(model, optimizer, training.share(3, "float32"))
    assert len(training.all_bits(model)) == 1
    assert all((a != b).any() for a, b in zip(training.values(model), before, strict=True))


@mostly_on_torch
@ranks(2, 4)
def test_without_the_reduction_the_ranks_differ() -> None:
    import keras_training as training

    from horoacc.keras import backend

    place: Any = type(backend.current())
    original = place.reduce_gradients
    place.reduce_gradients = lambda self, parts, travel: [
        member.gradient for part in parts for member in part
    ]
    try:
        model = training.network()
        training.fit(model, hvd.DistributedOptimizer(training.sgd()), training.share(2))
    finally:
        place.reduce_gradients = original
    assert len(training.all_bits(model)) == hvd.size()


@mostly_on_torch
@ranks(1, 2, 4)
@pytest.mark.parametrize("average", [False, True])
def test_backward_passes_per_step(average: bool) -> None:
    import keras_training as training

    model = training.network()
    rate = 0.05 if average else 0.025  # what is summed and not averaged is twice as long
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate, momentum=0.9), backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )  # fmt: skip
    training.fit(model, optimizer, training.share(7))
    assert int(optimizer.iterations) == 3
    assert int(keras.ops.convert_to_numpy(optimizer._agg_helper.counter)) == 1
    alone = training.network()
    x, y = training.whole(7)
    used = 6 * training.BATCH * hvd.size()
    training.fit_alone(alone, training.sgd(), (x[:used], y[:used]), 2 * training.BATCH * hvd.size())
    training.close(model, alone)


@on_both
@ranks(2)
def test_gradient_accumulation_of_keras() -> None:
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(training.sgd(gradient_accumulation_steps=2))
    training.fit(model, optimizer, training.share(6))
    training.close(model, training.learned_alone(6, passes=2))


@on_torch
@ranks(1, 2, 4)
@pytest.mark.parametrize("how", ["layers", "scaled", "registered"])
def test_local_layers(how: str) -> None:
    step_with_local_layers(how)


@on_tensorflow
@ranks(1, 2, 4)
@pytest.mark.parametrize("how", ["layers", "registered"])
def test_local_layers_in_a_graph(how: str) -> None:
    step_with_local_layers(how)


def step_with_local_layers(how: str) -> None:
    """One step of SGD: the weights move by the rate times the gradients, which are known."""
    import keras_training as training

    model = training.network()
    start = training.values(model)
    rate = 0.5
    sgd = keras.optimizers.SGD(rate)
    layer = model.get_layer("inner")
    if how == "registered":
        optimizer = hvd.DistributedOptimizer(sgd)
        for weight in layer.trainable_weights:
            optimizer.register_local_var(weight)
    else:
        optimizer = hvd.PartialDistributedOptimizer(
            sgd, local_layers=layer if how == "layers" else [layer],
            scale_local_gradients=how == "scaled",
        )  # fmt: skip
    training.fit(model, optimizer, training.share(1))
    mine, everybody = (
        training.by_hand(start, *data) for data in (training.share(1), training.whole(1))
    )
    factor = 1.0 if how == "layers" else 1.0 / hvd.size()
    wanted = [
        start[0] - rate * factor * mine[0], start[1] - rate * factor * mine[1],
        start[2] - rate * everybody[2], start[3] - rate * everybody[3],
    ]  # fmt: skip
    for found, value in zip(training.values(model), wanted, strict=True):
        assert np.abs(found - value).max() <= training.TOLERANCE


@on_both
@ranks(4)
def test_process_set() -> None:
    import keras_training as training

    some = hvd.add_process_set([1, 3])
    try:
        model = training.network()
        optimizer = hvd.DistributedOptimizer(training.sgd(), process_set=some)
        training.fit(model, optimizer, training.share(2))
        import horoacc

        found = horoacc.allgather_object(training.bits(model))
        assert found[1] == found[3]
        assert len(set(found)) == 3
    finally:
        hvd.remove_process_set(some)


@on_torch
@ranks(2)
def test_gradient_that_only_one_rank_has() -> None:
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    weights = model.trainable_weights
    start = training.values(model)
    grads = [None, None, None, keras.ops.ones_like(weights[3])]
    if hvd.rank() == 1:
        grads[2] = keras.ops.ones_like(weights[2])
    optimizer.apply(grads, weights)
    found = training.values(model)
    assert (found[0] == start[0]).all() and (found[1] == start[1]).all()
    assert np.allclose(found[2], start[2] - 0.5, atol=1e-6)
    assert np.allclose(found[3], start[3] - 1.0, atol=1e-6)


@on_both
@ranks(2)
def test_ranks_may_have_used_other_optimizers() -> None:
    """Names are alike all the same; optimizers of as many variables take turns with them."""
    import keras_training as training

    models = [training.network(), keras.Sequential([
        keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(4),
    ])]  # fmt: skip
    weights = models[0].trainable_weights
    if hvd.rank() == 0:
        twice = hvd.DistributedOptimizer(training.sgd(), groups=[weights[:1], weights[:2]])
        with pytest.raises(ValueError, match="disjoint"):
            twice.apply(training.gradients(weights, 1.0), weights)
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in models]

    def step() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            trained = model.trainable_weights
            optimizer.apply(training.gradients(trained, float(hvd.rank())), trained)

    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.build(model.trainable_weights)
    before = [training.values(model) for model in models]
    in_graph = tf.function(step) if keras.backend.backend() == "tensorflow" else step
    for way in (step, in_graph, step, in_graph):
        way()
    for model, values in zip(models, before, strict=True):
        for found, value in zip(training.values(model), values, strict=True):
            assert np.allclose(found, value - 4 * 0.5, atol=1e-5)
