"""The Triton operators in Triton's interpreter, on a CPU, against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from unsmooth.remedies.kernels import adder as adder_ops

SCRIPT = """
import numpy as np
import torch
from tests.remedies.test_adder_kernel import draw, ref_forward, ref_pull, ref_weight_grad
from unsmooth.remedies.kernels import adder, adder_triton

adder_triton.TILE = 16  # several tiles of small tensors, with ragged ends
adder._kernels = lambda *tensors: adder_triton
for b, n, m, d in [(1, 1, 1, 1), (2, 17, 20, 5), (1, 33, 7, 18)]:
    q, k, g = draw((b, n, d), (b, m, d), (b, n, m), dtype=torch.float32)
    a, c = q.clone().requires_grad_(), k.clone().requires_grad_()
    out = adder.l1_scores(a, c, 2.0)
    dq, dk = torch.autograd.grad(out, (a, c), g)
    x, w = q.clone().requires_grad_(), k[0].clone().requires_grad_()
    y = adder.adder_linear(x, w, None)
    dx, dw = torch.autograd.grad(y, (x, w), g)
    for i in range(b):
        qi, ki, gi = (t.double().numpy()[i] for t in (q, k, g))
        for got, want in [
            (out, ref_forward(qi, ki)), (dq, ref_pull(qi, ki, gi, 2.0)), (dk, ref_pull(ki, qi, gi.T, 2.0)),
            (y, ref_forward(qi, k[0].double().numpy())), (dx, ref_pull(qi, k[0].double().numpy(), gi, 1.0)),
        ]:
            np.testing.assert_allclose(got[i].detach().numpy(), want, atol=2e-5)
    rows = [t.double().flatten(0, 1).numpy() for t in (q, g)]
    np.testing.assert_allclose(dw.numpy(), ref_weight_grad(rows[0], k[0].double().numpy(), rows[1], None), atol=1e-4)

q, k = draw((20, 5), (18, 5), dtype=torch.float32)  # a NaN stays
q[3, 2] = float("nan")
out = adder.l1_scores(q.requires_grad_(), k)
(dq,) = torch.autograd.grad(out, q, torch.ones_like(out))
assert out.isnan()[3].all() and out.isnan().sum() == 18 and dq.isnan().sum() == 1 and dq[3, 2].isnan()
print("equal")
"""


@pytest.mark.slow  # a process of its own: the interpreter must be chosen before Triton is imported
def test_scores_linear_layers_and_gradients_match_reference():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.stdout == "equal\n", done.stderr


def test_without_a_gpu_nothing_else_runs(monkeypatch):
    def unexpected(device: torch.device) -> None:
        raise AssertionError(device)

    monkeypatch.setattr(adder_ops, "triton_operators", unexpected)
    adder_ops.l1_scores(torch.randn(3, 4), torch.randn(5, 4))


def test_a_triton_that_does_not_work_is_reported():
    """On a CPU it does not, unless it is interpreted: the operators then run in torch."""
    pytest.importorskip("triton")
    with pytest.warns(UserWarning, match="Triton does not work on cpu: .*run in torch"):
        assert adder_ops.triton_operators.__wrapped__(torch.device("cpu")) is None
