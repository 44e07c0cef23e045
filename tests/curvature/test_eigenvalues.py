"""Eigenvalues against closed forms and dense linear algebra."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.curvature import lanczos, rayleigh
from holdfast.curvature.krylov import Krylov
from holdfast.errors import HoldfastError
from tests.curvature.matrices import draw, generator, largest, matrix_of


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [5, 40, 150])
def test_agrees_with_dense_eigenvalues(n: int, seed: int) -> None:
    a = draw(n, n, seed=seed)
    a = a + a.T
    found = lanczos(a.mv, draw(n, seed=9), top=5, tolerance=1e-10)
    torch.testing.assert_close(found.eigenvalues, largest(a, 5), rtol=1e-10, atol=1e-10)
    assert found.converged.all()
    assert found.complete


def test_largest_is_meant_algebraically() -> None:
    a = matrix_of([-50.0, -20.0, *torch.linspace(-1, 4, 58).tolist()])
    found = lanczos(a.mv, draw(60), top=2, tolerance=1e-10)
    assert found.eigenvalues.tolist() == pytest.approx([4.0, 4.0 - 5 / 57])
    mirrored = lanczos(lambda v: -(a @ v), draw(60), top=2, tolerance=1e-10)
    assert mirrored.eigenvalues.tolist() == pytest.approx([50.0, 20.0])


def test_all_eigenvalues_of_a_small_matrix() -> None:
    a = matrix_of([3.0, -1.0, 0.5, -7.0])
    found = lanczos(a.mv, draw(4), top=4, tolerance=1e-10)
    assert found.eigenvalues.tolist() == pytest.approx([3.0, 0.5, -1.0, -7.0])
    assert found.converged.all()


@pytest.mark.parametrize(
    "values",
    [
        [5.0] * 3 + [3.0] * 2 + torch.linspace(-1, 1, 75).tolist(),
        [2.0] * 80,
        [4.0] * 40 + [-4.0] * 40,
        [7.0] * 2 + [1.0] * 78,
    ],
    ids=["triple and double", "all equal", "two halves", "double over one"],
)
def test_multiple_eigenvalues_show_as_often_as_they_are(values: list[float]) -> None:
    a = matrix_of(values)
    found = lanczos(a.mv, draw(80), top=5, tolerance=1e-9)
    torch.testing.assert_close(found.eigenvalues, torch.tensor(sorted(values)[::-1][:5]).double())
    assert found.converged.all()
    assert found.complete
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(5).double(), rtol=0, atol=1e-8)


def test_without_the_search_a_copy_is_missed_and_the_result_says_that_nobody_looked() -> None:
    a = matrix_of([9.0, 9.0, 5.0, *torch.linspace(-1, 1, 77).tolist()])
    found = lanczos(a.mv, draw(80), top=2, risk=1, tolerance=1e-2)
    assert found.eigenvalues.tolist() == pytest.approx([9.0, 5.0], rel=1e-3)
    assert not found.complete
    assert lanczos(a.mv, draw(80), top=2, tolerance=1e-2).eigenvalues.tolist() == pytest.approx([9.0, 9.0])


def test_finds_what_the_start_vector_cannot_see() -> None:
    values = torch.linspace(0, 1, 50).double()
    values[-1] = 3.0
    start = draw(50)
    start[-1] = 0
    assert lanczos(lambda v: values * v, start, top=1, risk=1).eigenvalues[0] < 1.1
    assert lanczos(lambda v: values * v, start, top=1).eigenvalues[0] == pytest.approx(3.0)


@pytest.mark.parametrize("n", [6, 200])
def test_zero_matrix(n: int) -> None:
    found = lanczos(torch.zeros_like, draw(n), top=5)
    assert found.eigenvalues.tolist() == found.residuals.tolist() == [0.0] * 5
    assert found.converged.all()


def test_identity_given_back_as_it_is() -> None:
    start = draw(30)
    before = start.clone()
    found = lanczos(lambda v: v, start, top=3)
    torch.testing.assert_close(found.eigenvalues, torch.ones(3).double())
    assert torch.equal(start, before)


def test_rank_one() -> None:
    u = draw(100)
    found = lanczos(lambda v: u * (u @ v), draw(100, seed=1), top=4, tolerance=1e-9)
    assert found.eigenvalues[0] == pytest.approx(float(u @ u))
    assert found.eigenvalues[1:].abs().max() < 1e-12 * found.eigenvalues[0]
    assert found.converged.all()


def test_start_vector_that_is_an_eigenvector() -> None:
    values = torch.arange(1.0, 31.0).double()
    found = lanczos(lambda v: values * v, torch.eye(30).double()[3], top=3, tolerance=1e-9)
    assert found.eigenvalues.tolist() == pytest.approx([30.0, 29.0, 28.0])


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_precision_is_that_of_the_start_vector(dtype: torch.dtype, digits: float) -> None:
    values = torch.cat([torch.tensor([90.0, 60.0, 33.0, 20.0, 12.0]), torch.linspace(-1, 1, 200)])
    a = matrix_of(values, dtype=dtype)
    found = lanczos(a.mv, draw(205, dtype=dtype), top=5, tolerance=1e-6)
    torch.testing.assert_close(found.eigenvalues, values[:5].double(), rtol=digits, atol=0)
    assert found.vectors.dtype == dtype
    assert found.converged.all()


@pytest.mark.parametrize("exact", [True, False])
def test_residuals_are_what_they_say(exact: bool) -> None:
    a = matrix_of(torch.linspace(0, 1, 120))
    found = lanczos(a.mv, draw(120), top=4, steps=25, exact=exact)
    truth = (a @ found.vectors.T - found.eigenvalues * found.vectors.T).norm(dim=0)
    assert truth.max() > 1e-4  # few enough steps that there is something to measure
    torch.testing.assert_close(found.residuals, truth, rtol=1e-9, atol=1e-12)
    assert found.exact is exact
    assert found.products == 25 + 4 * exact


def test_an_eigenvalue_lies_within_the_residual() -> None:
    a = matrix_of(torch.linspace(0, 1, 120))
    found = lanczos(a.mv, draw(120), top=4, steps=12)
    gaps = (torch.linalg.eigvalsh(a) - found.eigenvalues[:, None]).abs().min(dim=1).values
    assert (gaps <= found.residuals).all()


def test_too_few_steps_are_not_called_converged() -> None:
    a = matrix_of(torch.linspace(0, 1, 300))
    found = lanczos(a.mv, draw(300), top=5, steps=10, tolerance=1e-6)
    assert not found.converged.any()
    assert not found.complete


def test_tolerance_is_relative_to_each_eigenvalue() -> None:
    a = matrix_of([1e3, 1.0, *torch.linspace(0, 0.9, 200).tolist()])
    found = lanczos(a.mv, draw(202), top=2, tolerance=1e-4)
    assert (found.residuals <= 1e-4 * found.eigenvalues).all()
    assert found.eigenvalues[1] == pytest.approx(1.0, rel=1e-4)


def test_restarts_bound_the_rows_and_change_nothing() -> None:
    values = torch.linspace(0, 1, 600) ** 2
    a = matrix_of(values)
    held: list[int] = []
    original = Krylov.extend

    def watched(self: Any) -> None:
        original(self)
        held.append(self.count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Krylov, "extend", watched)
        found = lanczos(a.mv, draw(600), top=3, rows=40, steps=2000, tolerance=1e-7)
    assert max(held) <= 40 < len(held)
    torch.testing.assert_close(found.eigenvalues, largest(a, 3), rtol=1e-10, atol=0)
    assert found.converged.all()
    assert found.complete
    assert len(found.nodes) == 0


def test_restarts_keep_copies_apart() -> None:
    values = torch.cat([torch.tensor([1.5, 1.5, 1.5]), torch.linspace(0, 1.4, 500)])
    a = matrix_of(values)
    found = lanczos(a.mv, draw(503), top=4, rows=40, steps=2000, tolerance=1e-6)
    assert found.eigenvalues.tolist() == pytest.approx([1.5, 1.5, 1.5, 1.4])


def test_repeats_and_leaves_the_global_generator_alone() -> None:
    a = matrix_of([9.0, 9.0, *torch.linspace(-1, 1, 78).tolist()], dtype=torch.float32)
    state = torch.get_rng_state()
    first, second = (lanczos(a.mv, draw(80, dtype=torch.float32), top=3) for _ in range(2))
    assert torch.equal(first.eigenvalues, second.eigenvalues)
    assert torch.equal(first.vectors, second.vectors)
    assert torch.equal(state, torch.get_rng_state())


def test_nodes_and_weights_are_moments_of_the_matrix_seen_from_the_start() -> None:
    a, start = matrix_of(torch.linspace(-1, 2, 60)), draw(60)
    found = lanczos(a.mv, start, top=1, least=12)
    unit = start / start.norm()
    assert len(found.nodes) >= 12
    for power in range(2 * 12):
        moment = unit @ torch.linalg.matrix_power(a, power) @ unit
        assert float((found.weights * found.nodes**power).sum()) == pytest.approx(float(moment), rel=1e-9)


def test_the_first_chain_can_be_given_more_products() -> None:
    a = matrix_of([100.0, *torch.linspace(-1, 1, 99).tolist()])
    short, long = (lanczos(a.mv, draw(100), top=1, least=least) for least in (0, 25))
    assert len(short.nodes) < 25 == len(long.nodes)


def test_a_search_that_draws_the_start_vector_draws_again() -> None:
    found = lanczos(torch.zeros_like, draw(6), top=5, generator=generator())
    assert found.eigenvalues.tolist() == [0.0] * 5
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(5).double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top": 0}, "top must be from 1 to the size of the matrix, 9, got 0"),
        ({"top": 10}, "top must be from 1 to the size of the matrix, 9, got 10"),
        ({"steps": 3}, "steps must be at least top (5), got 3"),
        ({"every": 0}, "every must be >= 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must be >= 0, got -1.0"),
        ({"risk": 0.0}, "risk must be in (0, 1], got 0.0"),
        ({"start": torch.zeros(9)}, "not zero, got one of length 0.0"),
        ({"start": torch.full((9,), torch.nan)}, "must be finite"),
        ({"start": torch.ones(3, 3)}, "must be flat, float32 or float64, got shape (3, 3)"),
        ({"start": torch.ones(9).half()}, "got shape (9,) and torch.float16"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError) as error:
        lanczos(lambda v: v, **{"start": torch.ones(9), **changes})
    assert message in str(error.value)


def test_rayleigh_quotients_of_eigenvectors_have_no_residual() -> None:
    a = matrix_of([3.0, 2.0, -1.0])
    values, vectors = torch.linalg.eigh(a)
    found, residuals = rayleigh(a.mv, vectors.T)
    torch.testing.assert_close(found, values)
    assert residuals.max() < 1e-14
    tilted = torch.nn.functional.normalize(vectors.T[:1] + vectors.T[1:2])
    found, residuals = rayleigh(a.mv, tilted)
    assert (float(found), float(residuals)) == pytest.approx((0.5, 1.5))


def in_tf32(a: torch.Tensor) -> torch.Tensor:
    """With the ten bits of mantissa that TF32 keeps."""
    bits = a.float().contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def test_a_rough_matrix_finds_the_vectors_and_the_exact_one_measures_them() -> None:
    """Seen through TF32, eigenvalues are still those of the exact matrix, at ``top`` of its products."""
    a = matrix_of([380.0, 250.0, 200.0, 165.0, 160.0, *torch.linspace(-5, 40, 295).tolist()], dtype=torch.float32)
    counted: list[int] = []

    def exact(v: torch.Tensor) -> torch.Tensor:
        counted.append(1)
        return a @ v

    def rough(v: torch.Tensor) -> torch.Tensor:
        return in_tf32(a) @ in_tf32(v)

    found = lanczos(exact, draw(300, dtype=torch.float32), tolerance=1e-3, rough=rough)
    assert len(counted) == 5
    assert found.exact
    assert found.converged.all()
    torch.testing.assert_close(found.eigenvalues, largest(a, 5), rtol=2e-6, atol=0)
    alone = lanczos(rough, draw(300, dtype=torch.float32), tolerance=1e-3)
    assert (alone.eigenvalues / largest(a, 5) - 1).abs().max() > 2e-6, "the rough one alone is further off"


def test_noise_of_the_rough_matrix_is_refined_away() -> None:
    """As in a trained network: few large eigenvalues, a flat bulk, and noise that is large beside the fifth of them."""
    a = matrix_of([400.0, 250.0, 160.0, 90.0, 50.0, *torch.linspace(-1, 2, 395).tolist()])
    noise = draw(400, 400, seed=5) + draw(400, 400, seed=5).T
    noise *= 5e-4 * 400 / torch.linalg.matrix_norm(noise, 2)
    counted: list[int] = []

    def exact(v: torch.Tensor) -> torch.Tensor:
        counted.append(1)
        return a @ v

    found = lanczos(exact, draw(400), tolerance=1e-3, rough=(a + noise).mv)
    assert len(counted) == 10
    assert found.converged.all()
    assert found.products == lanczos((a + noise).mv, draw(400), tolerance=1e-3, exact=False).products + 10
    torch.testing.assert_close(found.eigenvalues, largest(a, 5), rtol=1e-7, atol=0)
    residuals = (a @ found.vectors.T - found.vectors.T * found.eigenvalues).norm(dim=0)
    torch.testing.assert_close(found.residuals, residuals, rtol=1e-3, atol=1e-9)


def test_where_the_rough_matrix_is_too_rough_the_exact_one_does_it_all() -> None:
    a = matrix_of([10.0, 9.0, 8.0, *torch.linspace(-1, 1, 77).tolist()])
    off = a + 0.02 * (draw(80, 80, seed=3) + draw(80, 80, seed=3).T)
    found = lanczos(a.mv, draw(80), top=3, tolerance=1e-6, rough=off.mv)
    torch.testing.assert_close(found.eigenvalues, largest(a, 3), rtol=1e-9, atol=0)
    assert found.converged.all()
    assert found.products > lanczos(a.mv, draw(80), top=3, tolerance=1e-6).products


def test_rows_begin_where_kernels_are_the_same() -> None:
    space = Krylov(matrix_of([1.0] * 77).mv, draw(77), 5)
    assert {row.data_ptr() % 512 for row in space.rows} == {space.rows.data_ptr() % 512}
