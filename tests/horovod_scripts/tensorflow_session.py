import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

# Initialize Horovod
hvd.init()

# Build model...
rng = np.random.default_rng(1)
features = rng.normal(size=(64, 3)).astype("float32")
targets = features @ np.array([[1.0], [-2.0], [0.5]], "float32")
mine = slice(hvd.rank(), None, hvd.size())
x = tf.placeholder(tf.float32, [None, 3])
y = tf.placeholder(tf.float32, [None, 1])
weights = tf.get_variable("weights", [3, 1], initializer=tf.random_normal_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
opt = tf.train.GradientDescentOptimizer(0.1 * hvd.size())

# Add Horovod Distributed Optimizer
opt = hvd.DistributedOptimizer(opt)

# Add hook to broadcast variables from rank 0 to all other processes during
# initialization.
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=60)]

# Make training operation
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)

# Save checkpoints only on worker 0 to prevent other workers from corrupting them.
checkpoint_dir = sys.argv[1] if hvd.rank() == 0 else None

# The MonitoredTrainingSession takes care of session initialization,
# restoring from a checkpoint, saving to a checkpoint, and closing when done
# or an error occurs.
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks) as mon_sess:
    while not mon_sess.should_stop():
        # Perform synchronous training.
        _, learned = mon_sess.run(
            [train_op, weights], feed_dict={x: features[mine], y: targets[mine]}
        )

print("weights", [round(float(one), 2) for one in learned[:, 0]])
