"""Tasks: a frozen value of parts (codec, splits, metrics) for each benchmark."""
