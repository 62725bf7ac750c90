"""TorchEstimator trains a torch model on a DataFrame; TorchModel predicts with it."""

from horoacc.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
