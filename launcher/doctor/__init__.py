"""`horoaccrun doctor`: what usually goes wrong on a cluster, asked of all hosts at once."""
