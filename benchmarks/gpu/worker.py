"""`herd`, with weights that are drawn on the device: `python -m benchmarks.gpu.worker cuda:0 kernels worker`.

First torch's name of the device, then the choices that are switched off by no setting, or a dash.
"""

import sys

import torch

from benchmarks.gpu.choices import switch_off
from benchmarks.gpu.device_weights import draw_weights_on
from llama_herd.worker.cli import main

if __name__ == "__main__":
    device, off = sys.argv[1:3]
    del sys.argv[1:3]
    draw_weights_on(torch.device(device))
    switch_off([] if off == "-" else off.split(","))
    main()
