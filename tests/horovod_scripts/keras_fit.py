import argparse
import math
import os
import random

import horovod.keras as hvd
import keras
import numpy as np
from horovod.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--warmup-epochs", type=float, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--checkpoint-dir", default=".")
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()
random.seed(42 + hvd.rank())  # what initial weights are drawn from

rng = np.random.default_rng(1)
centres = 3 * np.eye(3, 8)
labels = rng.integers(0, 3, 960)
images = (centres[labels] + rng.normal(size=(960, 8))).astype("float32")
x_train, y_train = images[:720], labels[:720]
x_test, y_test = images[720:], labels[720:]
x_mine, y_mine = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]

checkpoint_format = os.path.join(args.checkpoint_dir, "checkpoint-{epoch}.keras")

# If set > 0, will resume training from a given checkpoint.
resume_from_epoch = 0
for try_epoch in range(args.epochs, 0, -1):
    if os.path.exists(checkpoint_format.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break
# Horovod: broadcast resume_from_epoch from rank 0 (which will have checkpoints) to other ranks.
resume_from_epoch = int(hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch"))

# Horovod: print logs on the first worker.
verbose = 2 if hvd.rank() == 0 else 0
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

# Restore from a previous checkpoint, if initial_epoch is specified.
# Horovod: restore on the first worker which will broadcast both model and optimizer weights
# to other workers.
if resume_from_epoch > 0 and hvd.rank() == 0:
    model = hvd.load_model(
        checkpoint_format.format(epoch=resume_from_epoch), compression=compression
    )
else:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    # Horovod: adjust learning rate based on number of workers.
    opt = keras.optimizers.SGD(learning_rate=args.base_lr * hvd.size(), momentum=0.9)
    # Horovod: add Horovod Distributed Optimizer.
    opt = hvd.DistributedOptimizer(opt, compression=compression)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

initial_lr = args.base_lr * hvd.size()
callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch.
    MetricAverageCallback(),
    # Horovod: using `lr = 1.0 * hvd.size()` from the very beginning leads to worse final
    # accuracy. Scale the learning rate `lr = 1.0` ---> `lr = 1.0 * hvd.size()` during
    # the first five epochs.
    LearningRateWarmupCallback(
        initial_lr=initial_lr, warmup_epochs=args.warmup_epochs, verbose=verbose
    ),
    # Horovod: after the warmup reduce learning rate by 10 on the later epochs.
    LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=1.0, start_epoch=args.warmup_epochs, end_epoch=4
    ),
    LearningRateScheduleCallback(initial_lr=initial_lr, multiplier=1e-1, start_epoch=4),
]
# Horovod: save checkpoints only on the first worker to prevent other workers from corrupting them.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint_format))

model.fit(
    x_mine,
    y_mine,
    batch_size=args.batch_size,
    steps_per_epoch=math.ceil(len(x_mine) / args.batch_size),
    callbacks=callbacks,
    epochs=args.epochs,
    verbose=verbose,
    initial_epoch=resume_from_epoch,
)

# Evaluate the model on the full data set.
score = hvd.allreduce(model.evaluate(x_test, y_test, verbose=0))
total = hvd.allreduce(float(np.abs(model.get_weights()[0]).sum()), name="total", average=False)
mine = float(np.abs(model.get_weights()[0]).sum())
if verbose:
    print("accuracy", round(float(score[1]), 3), "from epoch", resume_from_epoch)
    print("same everywhere:", abs(float(total) - mine * hvd.size()) < 1e-3)
