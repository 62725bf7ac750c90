"""Input pipelines that run on other processes than training: TensorFlow's data service."""
