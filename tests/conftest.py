"""One thread for each process: the tests run on all cores at once, and tiny tensors gain nothing from more."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines announce AMX but trap its instructions; without them bfloat16 runs everywhere.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("unsmooth", deadline=None)  # a busy machine is no bug
settings.load_profile("unsmooth")


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process, for DistributedDataParallel."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
