"""Files of weights: what they say, where their tensors lie, and what kind of file one is."""
