"""What `horoaccrun replay` says of training, against the training."""
