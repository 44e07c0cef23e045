"""The rows of a Krylov space: orthogonal, as many as memory holds, of a matrix that is fit for them."""

from __future__ import annotations

import pytest
import torch

from holdfast.curvature import NoSpectrum, krylov, lanczos
from holdfast.curvature.krylov import Krylov
from tests.curvature.matrices import draw, matrix_of


def test_rows_stay_orthogonal() -> None:
    # without a second pass of Gram-Schmidt this is off by more than a tenth
    values = torch.logspace(0, 6, 300)
    space = Krylov(lambda v: values * v, draw(300, dtype=torch.float32), 81)
    for _ in range(80):
        space.extend()
    rows = space.rows.double()
    assert (rows @ rows.T - torch.eye(81)).abs().max() < 1e-5


def test_a_matrix_that_is_not_symmetric_is_refused() -> None:
    with pytest.raises(NoSpectrum, match="not symmetric: off by"):
        lanczos(draw(50, 50).mv, draw(50, seed=1))


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(NoSpectrum, match="not finite"):
        lanczos(lambda v: v / 0, draw(50))


def test_memory_that_does_not_suffice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krylov, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(NoSpectrum, match=r"35 vectors of 100,000 numbers, 0.03 GiB, .*memory of cpu is 0.00 GiB"):
        lanczos(torch.zeros_like, draw(100_000))


def test_less_memory_means_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krylov, "free_bytes", lambda _: 2 * 46 * 500 * 8)
    a = matrix_of(torch.linspace(0, 1, 500))
    found = lanczos(a.mv, draw(500), top=2, tolerance=1e-6, steps=1000)
    assert len(found.nodes) == 0  # it had to restart
    assert found.eigenvalues[0] == pytest.approx(1.0, rel=1e-9)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_products_on_a_gpu_do_not_wait_for_the_host() -> None:
    values = torch.linspace(0, 1, 5000, device="cuda")
    space = Krylov(lambda v: values * v, torch.randn(5000, device="cuda"), 24)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            space.extend()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    space.read()
    assert space.ritz.values[0] <= 1 + 1e-5
