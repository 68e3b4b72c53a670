"""One thread for each process: the tests run on all cores at once, and tiny tensors gain nothing from more."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("unsmooth", deadline=None)  # a busy machine is no bug
settings.load_profile("unsmooth")
