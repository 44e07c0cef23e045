"""Eigenvalues, densities and Hessians against closed forms and dense linear algebra."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast import spectrum
from holdfast.errors import HoldfastError
from holdfast.losses import cross_entropy
from holdfast.spectrum import NoSpectrum, Operator, density, hessian_operator, lanczos, rayleigh, smoothed

Batches = Sequence[tuple[Tensor, Tensor]]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def matrix_of(values: Sequence[float] | Tensor, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    q = torch.linalg.qr(draw(len(values), len(values), seed=seed))[0]
    return (q * values @ q.T).to(dtype)


def dense(operator: Operator) -> Tensor:
    """The matrix, one column a product."""
    return torch.stack([operator(column) for column in torch.eye(operator.size, dtype=operator.dtype)], dim=1)


def largest(a: Tensor, k: int) -> Tensor:
    return torch.linalg.eigvalsh(a.double()).flip(0)[:k]


class Net(nn.Module):
    """A bit of everything: convolution, batch norm with real statistics, pooling, dropout, a parameter not used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(12, 3)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.softplus(self.norm(self.conv(x))), 2)
        logits: Tensor = self.head(self.drop(x.flatten(1)))
        return logits


def make_net(dtype: torch.dtype = torch.float64) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Net()
        nn.init.uniform_(net.norm.running_var, 0.5, 2.0)
        nn.init.normal_(net.norm.running_mean)
    return net.to(dtype)


def images(n: int = 20, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 1, 4, 4, generator=generator(4), dtype=dtype), torch.arange(n) % 3


def cut(x: Tensor, y: Tensor, *sizes: int) -> Batches:
    return list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))


def full_hessian(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """By torch, row by row."""
    model = copy.deepcopy(model).eval()
    names, values = zip(*model.named_parameters(), strict=True)
    sizes = [v.numel() for v in values]

    def loss(flat: Tensor) -> Tensor:
        parts = [p.view_as(v) for p, v in zip(flat.split(sizes), values, strict=True)]
        return F.cross_entropy(torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,)), y)

    flat = torch.cat([v.detach().flatten() for v in values])
    hessian: Tensor = torch.autograd.functional.hessian(loss, flat)
    return hessian


class TestLanczos:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("n", [5, 40, 150])
    def test_agrees_with_dense_eigenvalues(self, n: int, seed: int) -> None:
        a = draw(n, n, seed=seed)
        a = a + a.T
        found = lanczos(a.mv, draw(n, seed=9), top=5, tolerance=1e-10)
        torch.testing.assert_close(found.eigenvalues, largest(a, 5), rtol=1e-10, atol=1e-10)
        assert found.converged.all()
        assert found.complete

    def test_largest_is_meant_algebraically(self) -> None:
        a = matrix_of([-50.0, -20.0, *torch.linspace(-1, 4, 58).tolist()])
        found = lanczos(a.mv, draw(60), top=2, tolerance=1e-10)
        assert found.eigenvalues.tolist() == pytest.approx([4.0, 4.0 - 5 / 57])
        mirrored = lanczos(lambda v: -(a @ v), draw(60), top=2, tolerance=1e-10)
        assert mirrored.eigenvalues.tolist() == pytest.approx([50.0, 20.0])

    def test_all_eigenvalues_of_a_small_matrix(self) -> None:
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
    def test_multiple_eigenvalues_show_as_often_as_they_are(self, values: list[float]) -> None:
        a = matrix_of(values)
        found = lanczos(a.mv, draw(80), top=5, tolerance=1e-9)
        torch.testing.assert_close(found.eigenvalues, torch.tensor(sorted(values)[::-1][:5]).double())
        assert found.converged.all()
        assert found.complete
        torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(5).double(), rtol=0, atol=1e-8)

    def test_without_the_search_a_copy_is_missed_and_the_result_says_that_nobody_looked(self) -> None:
        a = matrix_of([9.0, 9.0, 5.0, *torch.linspace(-1, 1, 77).tolist()])
        found = lanczos(a.mv, draw(80), top=2, risk=1, tolerance=1e-2)
        assert found.eigenvalues.tolist() == pytest.approx([9.0, 5.0], rel=1e-3)
        assert not found.complete
        assert lanczos(a.mv, draw(80), top=2, tolerance=1e-2).eigenvalues.tolist() == pytest.approx([9.0, 9.0])

    def test_finds_what_the_start_vector_cannot_see(self) -> None:
        values = torch.linspace(0, 1, 50).double()
        values[-1] = 3.0
        start = draw(50)
        start[-1] = 0
        assert lanczos(lambda v: values * v, start, top=1, risk=1).eigenvalues[0] < 1.1
        assert lanczos(lambda v: values * v, start, top=1).eigenvalues[0] == pytest.approx(3.0)

    @pytest.mark.parametrize("n", [6, 200])
    def test_zero_matrix(self, n: int) -> None:
        found = lanczos(torch.zeros_like, draw(n), top=5)
        assert found.eigenvalues.tolist() == found.residuals.tolist() == [0.0] * 5
        assert found.converged.all()

    def test_identity_given_back_as_it_is(self) -> None:
        start = draw(30)
        before = start.clone()
        found = lanczos(lambda v: v, start, top=3)
        torch.testing.assert_close(found.eigenvalues, torch.ones(3).double())
        assert torch.equal(start, before)

    def test_rank_one(self) -> None:
        u = draw(100)
        found = lanczos(lambda v: u * (u @ v), draw(100, seed=1), top=4, tolerance=1e-9)
        assert found.eigenvalues[0] == pytest.approx(float(u @ u))
        assert found.eigenvalues[1:].abs().max() < 1e-12 * found.eigenvalues[0]
        assert found.converged.all()

    def test_start_vector_that_is_an_eigenvector(self) -> None:
        values = torch.arange(1.0, 31.0).double()
        found = lanczos(lambda v: values * v, torch.eye(30).double()[3], top=3, tolerance=1e-9)
        assert found.eigenvalues.tolist() == pytest.approx([30.0, 29.0, 28.0])

    @pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
    def test_precision_is_that_of_the_start_vector(self, dtype: torch.dtype, digits: float) -> None:
        values = torch.cat([torch.tensor([90.0, 60.0, 33.0, 20.0, 12.0]), torch.linspace(-1, 1, 200)])
        a = matrix_of(values, dtype=dtype)
        found = lanczos(a.mv, draw(205, dtype=dtype), top=5, tolerance=1e-6)
        torch.testing.assert_close(found.eigenvalues, values[:5].double(), rtol=digits, atol=0)
        assert found.vectors.dtype == dtype
        assert found.converged.all()

    @pytest.mark.parametrize("exact", [True, False])
    def test_residuals_are_what_they_say(self, exact: bool) -> None:
        a = matrix_of(torch.linspace(0, 1, 120))
        found = lanczos(a.mv, draw(120), top=4, steps=25, exact=exact)
        truth = (a @ found.vectors.T - found.eigenvalues * found.vectors.T).norm(dim=0)
        assert truth.max() > 1e-4  # few enough steps that there is something to measure
        torch.testing.assert_close(found.residuals, truth, rtol=1e-9, atol=1e-12)
        assert found.exact is exact
        assert found.products == 25 + 4 * exact

    def test_an_eigenvalue_lies_within_the_residual(self) -> None:
        a = matrix_of(torch.linspace(0, 1, 120))
        found = lanczos(a.mv, draw(120), top=4, steps=12)
        gaps = (torch.linalg.eigvalsh(a) - found.eigenvalues[:, None]).abs().min(dim=1).values
        assert (gaps <= found.residuals).all()

    def test_too_few_steps_are_not_called_converged(self) -> None:
        a = matrix_of(torch.linspace(0, 1, 300))
        found = lanczos(a.mv, draw(300), top=5, steps=10, tolerance=1e-6)
        assert not found.converged.any()
        assert not found.complete

    def test_tolerance_is_relative_to_each_eigenvalue(self) -> None:
        a = matrix_of([1e3, 1.0, *torch.linspace(0, 0.9, 200).tolist()])
        found = lanczos(a.mv, draw(202), top=2, tolerance=1e-4)
        assert (found.residuals <= 1e-4 * found.eigenvalues).all()
        assert found.eigenvalues[1] == pytest.approx(1.0, rel=1e-4)

    def test_restarts_bound_the_rows_and_change_nothing(self) -> None:
        values = torch.linspace(0, 1, 600) ** 2
        a = matrix_of(values)
        held: list[int] = []
        original = spectrum._Krylov.extend

        def watched(self: Any) -> None:
            original(self)
            held.append(self.count)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spectrum._Krylov, "extend", watched)
            found = lanczos(a.mv, draw(600), top=3, rows=40, steps=2000, tolerance=1e-7)
        assert max(held) <= 40 < len(held)
        torch.testing.assert_close(found.eigenvalues, largest(a, 3), rtol=1e-10, atol=0)
        assert found.converged.all()
        assert found.complete
        assert len(found.nodes) == 0

    def test_restarts_keep_copies_apart(self) -> None:
        values = torch.cat([torch.tensor([1.5, 1.5, 1.5]), torch.linspace(0, 1.4, 500)])
        a = matrix_of(values)
        found = lanczos(a.mv, draw(503), top=4, rows=40, steps=2000, tolerance=1e-6)
        assert found.eigenvalues.tolist() == pytest.approx([1.5, 1.5, 1.5, 1.4])

    def test_repeats_and_leaves_the_global_generator_alone(self) -> None:
        a = matrix_of([9.0, 9.0, *torch.linspace(-1, 1, 78).tolist()], dtype=torch.float32)
        state = torch.get_rng_state()
        first, second = (lanczos(a.mv, draw(80, dtype=torch.float32), top=3) for _ in range(2))
        assert torch.equal(first.eigenvalues, second.eigenvalues)
        assert torch.equal(first.vectors, second.vectors)
        assert torch.equal(state, torch.get_rng_state())

    def test_nodes_and_weights_are_moments_of_the_matrix_seen_from_the_start(self) -> None:
        a, start = matrix_of(torch.linspace(-1, 2, 60)), draw(60)
        found = lanczos(a.mv, start, top=1, least=12)
        unit = start / start.norm()
        assert len(found.nodes) >= 12
        for power in range(2 * 12):
            moment = unit @ torch.linalg.matrix_power(a, power) @ unit
            assert float((found.weights * found.nodes**power).sum()) == pytest.approx(float(moment), rel=1e-9)

    def test_the_first_chain_can_be_given_more_products(self) -> None:
        a = matrix_of([100.0, *torch.linspace(-1, 1, 99).tolist()])
        short, long = (lanczos(a.mv, draw(100), top=1, least=least) for least in (0, 25))
        assert len(short.nodes) < 25 == len(long.nodes)

    def test_rows_stay_orthogonal(self) -> None:
        # without a second pass of Gram-Schmidt this is off by more than a tenth
        values = torch.logspace(0, 6, 300)
        krylov = spectrum._Krylov(lambda v: values * v, draw(300, dtype=torch.float32), 81)
        for _ in range(80):
            krylov.extend()
        rows = krylov.rows.double()
        assert (rows @ rows.T - torch.eye(81)).abs().max() < 1e-5

    def test_a_search_that_draws_the_start_vector_draws_again(self) -> None:
        found = lanczos(torch.zeros_like, draw(6), top=5, generator=generator())
        assert found.eigenvalues.tolist() == [0.0] * 5
        torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(5).double())

    def test_a_matrix_that_is_not_symmetric_is_refused(self) -> None:
        with pytest.raises(NoSpectrum, match="not symmetric: off by"):
            lanczos(draw(50, 50).mv, draw(50, seed=1))

    def test_values_that_are_not_finite_are_refused(self) -> None:
        with pytest.raises(NoSpectrum, match="not finite"):
            lanczos(lambda v: v / 0, draw(50))

    def test_memory_that_does_not_suffice_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spectrum, "free_bytes", lambda _: 1 << 20)
        with pytest.raises(NoSpectrum, match=r"35 vectors of 100,000 numbers, 0.03 GiB, .*memory of cpu is 0.00 GiB"):
            lanczos(torch.zeros_like, draw(100_000))

    def test_less_memory_means_fewer_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spectrum, "free_bytes", lambda _: 2 * 46 * 500 * 8)
        a = matrix_of(torch.linspace(0, 1, 500))
        found = lanczos(a.mv, draw(500), top=2, tolerance=1e-6, steps=1000)
        assert len(found.nodes) == 0  # it had to restart
        assert found.eigenvalues[0] == pytest.approx(1.0, rel=1e-9)

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
    def test_bad_input_is_named(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(HoldfastError) as error:
            lanczos(lambda v: v, **{"start": torch.ones(9), **changes})
        assert message in str(error.value)

    @pytest.mark.gpu
    def test_products_on_a_gpu_do_not_wait_for_the_host(self) -> None:
        values = torch.linspace(0, 1, 5000, device="cuda")
        krylov = spectrum._Krylov(lambda v: values * v, torch.randn(5000, device="cuda"), 20)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                krylov.extend()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        krylov.read()
        assert krylov.ritz.values[0] <= 1 + 1e-5


class TestDensity:
    def test_moments_of_a_diagonal_matrix_are_exact(self) -> None:
        # every probe of ±1 has the same length along every axis
        values = torch.cat([torch.linspace(-1, 1, 180), torch.linspace(3, 9, 20)]).double()
        probes = [draw(200, seed=s).sign() for s in range(3)]
        found = density(lambda v: values * v, probes, steps=30)
        assert float(found.weights.sum()) == pytest.approx(1.0)
        for power in range(1, 6):
            moment = float((found.weights * found.nodes**power).sum())
            assert moment == pytest.approx(float((values**power).mean()), rel=1e-9)

    def test_integrates_to_one_and_has_the_moments_of_the_spectrum(self) -> None:
        values = torch.cat([torch.linspace(-1, 1, 290), torch.linspace(3, 9, 10)]).double()
        a = matrix_of(values)
        found = density(a.mv, [draw(300, seed=s) for s in range(20)], steps=60, sigma=0.2)
        step = found.grid[1] - found.grid[0]
        mass, mean = found.values.sum() * step, (found.grid * found.values).sum() * step
        square = (found.grid**2 * found.values).sum() * step
        assert float(mass) == pytest.approx(1.0, abs=1e-4)
        assert float(mean) == pytest.approx(float(values.mean()), abs=0.05)
        assert float(square) == pytest.approx(float((values**2).mean()) + 0.2**2, rel=0.1)

    def test_matches_the_smoothed_histogram(self) -> None:
        values = torch.cat([torch.linspace(-1, 1, 280), torch.full((20,), 6.0)]).double()
        a = matrix_of(values)
        found = density(a.mv, [draw(300, seed=s) for s in range(20)], steps=40, sigma=0.3)
        exact = smoothed(values, torch.full((300,), 1 / 300).double(), sigma=0.3)
        assert (found.values - exact.values).abs().max() < 0.1 * exact.values.max()
        assert float(found.values[found.grid > 4].sum() / found.values.sum()) == pytest.approx(20 / 300, rel=0.2)

    @pytest.mark.parametrize("value", [0.0, 3.0])
    def test_one_eigenvalue_is_one_bell(self, value: float) -> None:
        found = density(lambda v: value * v, [draw(40)], steps=10)
        assert found.nodes.tolist() == pytest.approx([value])
        assert float(found.values.sum() * (found.grid[1] - found.grid[0])) == pytest.approx(1.0, abs=1e-4)

    @pytest.mark.parametrize(
        ("probes", "changes", "message"),
        [
            ([], {}, "needs at least one probe"),
            ([torch.ones(4)], {"steps": 0}, "steps must be >= 1, got 0"),
            ([torch.ones(4)], {"sigma": 0.0}, "sigma must be > 0, got 0.0"),
            ([torch.ones(4)], {"points": 1}, "points must be >= 2, got 1"),
        ],
    )
    def test_bad_input_is_named(self, probes: list[Tensor], changes: dict[str, Any], message: str) -> None:
        with pytest.raises(HoldfastError, match=message):
            density(lambda v: v, probes, **changes)


class TestHessian:
    def test_least_squares_has_a_closed_form(self) -> None:
        x, y = draw(70, 12) * torch.linspace(1, 4, 12), draw(70, seed=1)
        model = nn.Linear(12, 1, bias=False).double()
        operator = hessian_operator(model, cut(x, y, 30, 30, 10), lambda out, target: (out[:, 0] - target) ** 2)
        exact = 2 / 70 * x.T @ x
        torch.testing.assert_close(dense(operator), exact, rtol=1e-12, atol=1e-12)
        found = lanczos(operator, draw(12), top=5, tolerance=1e-9)
        torch.testing.assert_close(found.eigenvalues, largest(exact, 5), rtol=1e-8, atol=1e-8)

    def test_agrees_with_the_full_hessian_of_a_net(self) -> None:
        net, (x, y) = make_net(), images()
        exact = full_hessian(net, x, y)
        operator = hessian_operator(net, [(x, y)], cross_entropy)
        torch.testing.assert_close(dense(operator), exact, rtol=1e-10, atol=1e-12)
        found = lanczos(operator, draw(operator.size), top=5, tolerance=1e-9)
        torch.testing.assert_close(found.eigenvalues, largest(exact, 5), rtol=1e-10, atol=1e-12)
        assert torch.linalg.eigvalsh(exact)[0] < -1e-3  # a Hessian, not just its positive part

    def test_float32_agrees_to_its_precision(self) -> None:
        x, y = images()
        exact = full_hessian(make_net(), x, y)
        operator = hessian_operator(make_net(torch.float32), [(x.float(), y)], cross_entropy)
        found = lanczos(operator, draw(operator.size, dtype=torch.float32), top=3)
        torch.testing.assert_close(found.eigenvalues, largest(exact, 3), rtol=1e-4, atol=0)

    @pytest.mark.parametrize("ggn", [False, True])
    @pytest.mark.parametrize("memory", [0, None, float("inf")], ids=["made anew", "half", "kept"])
    @pytest.mark.parametrize("sizes", [(20,), (1,) * 20, (9, 9, 2), (1, 19)], ids=str)
    def test_does_not_depend_on_how_data_are_cut_or_kept(
        self, sizes: tuple[int, ...], memory: float | None, ggn: bool
    ) -> None:
        net, (x, y) = make_net(), images()
        v = draw(sum(p.numel() for p in net.parameters()))
        whole = hessian_operator(net, [(x, y)], cross_entropy, ggn=ggn)(v)
        parts = hessian_operator(net, iter(cut(x, y, *sizes)), cross_entropy, ggn=ggn, memory=memory)
        torch.testing.assert_close(parts(v), whole, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(parts(v), whole, rtol=1e-11, atol=1e-13)  # a kept graph serves again
        assert parts.kept == (0 if memory == 0 else len(sizes))

    def test_graphs_are_kept_as_far_as_memory_goes(self) -> None:
        net, (x, y) = make_net(), images()
        batches = cut(x, y, 5, 5, 5, 5)
        kept = [hessian_operator(net, batches, cross_entropy, memory=m).kept for m in range(0, 400_000, 4000)]
        assert kept == sorted(kept)
        assert set(kept) == {0, 1, 2, 3, 4}

    def test_gauss_newton_is_the_hessian_of_a_linear_softmax_model(self) -> None:
        model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double(), images()
        hessian, gauss_newton = (dense(hessian_operator(model, [(x, y)], cross_entropy, ggn=g)) for g in (False, True))
        assert hessian.abs().max() > 1e-2
        torch.testing.assert_close(gauss_newton, hessian, rtol=1e-11, atol=1e-13)

    def test_gauss_newton_is_positive_and_has_its_closed_form(self) -> None:
        net, (x, y) = make_net().eval(), images()
        found = dense(hessian_operator(net, cut(x, y, 13, 7), cross_entropy, ggn=True))
        parameters = {k: v.detach() for k, v in net.named_parameters()}
        jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(net, p, (x,)))(parameters)
        j = torch.cat([part.flatten(2) for part in jacobian.values()], dim=2)
        p = net(x).softmax(1).detach()
        bend = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        exact = torch.einsum("nki,nkl,nlj->ij", j, bend, j) / len(x)
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-13)
        assert torch.linalg.eigvalsh(found)[0] > -1e-12
        assert torch.linalg.eigvalsh(dense(hessian_operator(net, [(x, y)], cross_entropy)))[0] < -1e-3

    def test_model_is_given_back_as_it_was(self) -> None:
        net, (x, y) = make_net(), images()
        net.train()
        net.norm.eval()
        net.conv.bias.requires_grad_(False)
        net.head.weight.grad = torch.ones_like(net.head.weight)
        before = copy.deepcopy(net.state_dict())
        operator = hessian_operator(net, cut(x, y, 10, 10), cross_entropy, memory=0)
        operator(draw(operator.size))
        assert [m.training for m in (net, net.conv, net.norm, net.drop)] == [True, True, False, True]
        assert [name for name, p in net.named_parameters() if not p.requires_grad] == ["conv.bias"]
        assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))
        assert net.conv.weight.grad is None
        assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
        assert torch.is_grad_enabled()

    def test_training_mode_makes_no_difference(self) -> None:
        net, (x, y) = make_net(), images()
        v = draw(sum(p.numel() for p in net.parameters()))
        first = hessian_operator(net.train(), [(x, y)], cross_entropy)(v)
        assert torch.equal(first, hessian_operator(net.eval(), [(x, y)], cross_entropy)(v))

    def test_works_where_gradients_are_switched_off(self) -> None:
        net, (x, y) = make_net(), images()
        v = draw(sum(p.numel() for p in net.parameters()))
        expected = hessian_operator(net, [(x, y)], cross_entropy)(v)
        with torch.no_grad():
            assert torch.equal(hessian_operator(net, [(x, y)], cross_entropy, memory=0)(v), expected)

    def test_chosen_parameters_give_their_block(self) -> None:
        net, (x, y) = make_net(), images()
        exact = full_hessian(net, x, y)
        places = torch.arange(len(exact)).split([p.numel() for p in net.parameters()])
        block = torch.cat([places[i] for i, (name, _) in enumerate(net.named_parameters()) if "head" in name])
        operator = hessian_operator(net, [(x, y)], cross_entropy, parameters=net.head.parameters())
        torch.testing.assert_close(dense(operator), exact[block][:, block], rtol=1e-10, atol=1e-12)

    def test_frozen_parameters_are_left_out_unless_all_are_frozen(self) -> None:
        net, (x, y) = make_net(), images()
        everything = sum(p.numel() for p in net.parameters())
        net.conv.requires_grad_(False)
        assert hessian_operator(net, [(x, y)], cross_entropy).size == everything - 30
        net.requires_grad_(False)
        operator = hessian_operator(net, [(x, y)], cross_entropy)
        assert operator.size == everything
        assert operator(draw(everything)).abs().max() > 0

    def test_shared_weights_count_once(self) -> None:
        class Shared(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one = nn.Linear(3, 3).double()
                self.two = nn.Linear(3, 3).double()
                self.two.weight = self.one.weight

            def forward(self, x: Tensor) -> Tensor:
                logits: Tensor = self.two(self.one(x).tanh())
                return logits

        model, x, y = Shared(), draw(8, 3), torch.arange(8) % 3
        operator = hessian_operator(model, [(x, y)], cross_entropy)
        assert operator.size == 15
        torch.testing.assert_close(dense(operator), full_hessian(model, x, y), rtol=1e-10, atol=1e-12)

    def test_attention_can_be_differentiated_twice(self) -> None:
        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                q, k, v = self.qkv(x.flatten(1, 2)).chunk(3, dim=-1)
                logits: Tensor = self.head(F.scaled_dot_product_attention(q, k, v).mean(1))
                return logits

        model, (x, y) = Attention().double(), images(6)
        operator = hessian_operator(model, [(x, y)], cross_entropy)
        v = draw(operator.size)
        h = 1e-5 * v
        gradients = []
        for sign in (1, -1):
            moved = copy.deepcopy(model)
            nn.utils.vector_to_parameters(
                nn.utils.parameters_to_vector(moved.parameters()) + sign * h, moved.parameters()
            )
            grads = torch.autograd.grad(F.cross_entropy(moved(x), y), list(moved.parameters()))
            gradients.append(torch.cat([g.flatten() for g in grads]))
        torch.testing.assert_close(operator(v), (gradients[0] - gradients[1]) / 2e-5, rtol=1e-5, atol=1e-8)

    def test_a_loss_without_curvature_has_none(self) -> None:
        model, x, y = nn.Linear(3, 2).double(), draw(5, 3), torch.zeros(5)
        for ggn in (False, True):
            operator = hessian_operator(model, [(x, y)], lambda out, _: out.sum(1), ggn=ggn)
            assert torch.equal(operator(draw(8)), torch.zeros(8).double())

    @pytest.mark.parametrize(
        ("last", "message"),
        [
            (lambda z: z.detach(), "no gradient flows from the outputs (torch.float64)"),
            (lambda z: z.argmax(1), "no gradient flows from the outputs (torch.int64)"),
            (lambda z: (z, z), "the model gives a tuple, not a tensor"),
            (lambda z: Once.apply(z), "cannot be differentiated twice"),
        ],
        ids=["detached", "whole numbers", "tuple", "once"],
    )
    def test_why_there_is_no_hessian_is_said(self, last: Callable[[Tensor], Any], message: str) -> None:
        class Broken(nn.Linear):
            def forward(self, x: Tensor) -> Any:
                return last(super().forward(x))

        with pytest.raises(NoSpectrum) as error:
            hessian_operator(Broken(3, 2).double(), [(draw(5, 3), torch.zeros(5).long())], cross_entropy)(draw(8))
        assert message in str(error.value)

    def test_bad_input_is_named(self) -> None:
        model, x, y = nn.Linear(3, 2), torch.ones(4, 3), torch.zeros(4).long()
        with pytest.raises(HoldfastError, match="at least one sample, got none"):
            hessian_operator(model, [], cross_entropy)
        with pytest.raises(HoldfastError, match=r"must have 8 numbers, got shape \(7,\)"):
            hessian_operator(model, [(x, y)], cross_entropy)(torch.ones(7))
        with pytest.raises(HoldfastError, match="must be among model.parameters"):
            hessian_operator(model, [(x, y)], cross_entropy, parameters=[torch.ones(2)])
        with pytest.raises(NoSpectrum, match="all be float32 or all float64, on one device, got torch.bfloat16 on cpu"):
            hessian_operator(nn.Linear(3, 2).bfloat16(), [(x, y)], cross_entropy)
        with pytest.raises(NoSpectrum, match="no parameters to differentiate by"):
            hessian_operator(nn.Flatten(), [(x, y)], cross_entropy)


class Once(torch.autograd.Function):
    """x² with a backward pass that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_rayleigh_quotients_of_eigenvectors_have_no_residual() -> None:
    a = matrix_of([3.0, 2.0, -1.0])
    values, vectors = torch.linalg.eigh(a)
    found, residuals = rayleigh(a.mv, vectors.T)
    torch.testing.assert_close(found, values)
    assert residuals.max() < 1e-14
    tilted = torch.nn.functional.normalize(vectors.T[:1] + vectors.T[1:2])
    found, residuals = rayleigh(a.mv, tilted)
    assert (float(found), float(residuals)) == pytest.approx((0.5, 1.5))
