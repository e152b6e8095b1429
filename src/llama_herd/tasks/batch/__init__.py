"""A batch's input as rows, and its answers as lines: what `herd batch` and the gateway's batches share."""
