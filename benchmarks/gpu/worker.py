"""`herd`, with weights that are drawn on the device: `python -m benchmarks.gpu.worker cuda:0 worker ...`.

First torch's name of the device, then the command.
"""

import sys

import torch

from benchmarks.gpu.device_weights import draw_weights_on
from llama_herd.cli import main

if __name__ == "__main__":
    draw_weights_on(torch.device(sys.argv.pop(1)))
    main()
