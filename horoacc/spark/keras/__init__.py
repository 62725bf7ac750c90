"""KerasEstimator trains a model of Keras 3 on a DataFrame; KerasModel predicts with it.

On Keras' back end TensorFlow or torch, which ranks and executors take from the driver.
"""

from horoacc.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
