"""The most that a file may say of a model: far above any that people have, far below what does harm."""

MAX_VOCAB = 1 << 20
MAX_HIDDEN = 65_536
MAX_LAYERS = 512
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_FFN = 1 << 20
MAX_CONTEXT = 1 << 22
MAX_ROPE_BASE = 1e12
MAX_SCALE = 1e6
MAX_EXPERTS = 65_536
