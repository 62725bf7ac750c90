import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--checkpoint-dir", default=".")
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

rng = np.random.default_rng(1)
centres = 3 * np.eye(3, 8)
labels = rng.integers(0, 3, 960)
images = (centres[labels] + rng.normal(size=(960, 8))).astype("float32")
mine = slice(hvd.rank(), 720, hvd.size())
dataset = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine]))
dataset = dataset.repeat().shuffle(360, seed=hvd.rank()).batch(16)

tf.random.set_seed(42 + hvd.rank())
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(3, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()

# Horovod: adjust learning rate based on number of GPUs.
opt = tf.optimizers.Adam(0.005 * hvd.size())

checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape, compression=compression)

    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    # Horovod: broadcast initial variable states from rank 0 to all other processes. This is
    # necessary to ensure consistent initialization of all workers when training is started with
    # random weights or restored from a checkpoint. Broadcast should be done after the first
    # gradient step to ensure optimizer initialization.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)

    return loss_value


# Horovod: adjust number of steps based on number of GPUs.
for batch, (some_images, some_labels) in enumerate(dataset.take(args.steps // hvd.size())):
    loss_value = training_step(some_images, some_labels, batch == 0)

    if batch % 10 == 0 and hvd.rank() == 0:
        print(f"step {batch}")

# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting it.
if hvd.rank() == 0:
    checkpoint.save(os.path.join(args.checkpoint_dir, "checkpoint"))

found = tf.argmax(model(images[720:]), axis=1).numpy() == labels[720:]
accuracy = hvd.allreduce(tf.constant(found.mean()), name="accuracy")
weights = tf.concat([tf.reshape(one, [-1]) for one in model.trainable_variables], axis=0)
everybodys = hvd.allgather(weights[tf.newaxis])
losses = hvd.allgather_object(float(loss_value))
if hvd.rank() == 0:
    print("accuracy", round(float(accuracy), 3), "ranks", len(losses))
    print("same everywhere:", bool(tf.reduce_all(everybodys == weights)))
