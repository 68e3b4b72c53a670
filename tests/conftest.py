"""One thread for each process: the tests run on all cores at once, and tiny tensors gain nothing from more."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
