"""What autotune finds, and what it costs."""
