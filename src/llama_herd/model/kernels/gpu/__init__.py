"""gpu: kernels in Triton. Only `load.py` and what needs no triton may be imported where it is missing."""
