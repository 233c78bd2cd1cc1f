"""What chains say of each other, where nothing else is known of a target."""

from dataclasses import replace

import numpy as np
import pytest

import demx
from demx.budget import Budget
from demx.config import build_method
from demx.evaluate.convergence import mixing, rhat, rhat_of_perfect
from demx.evaluate.evaluation import Metric, compare
from demx.evaluate.verdict import sentences, word
from demx.report.figures import GRID
from demx.resolve import resolve
from demx.space import Euclidean
from demx.targets.black_box import BlackBox, black_box
from demx.targets.function import FunctionTarget
from hosts import CHAINS, bowl
from untrained import untrained

NORMAL = FunctionTarget(lambda x: 0.5 * (x @ x), Euclidean(2))


def turns(chains):
    """(C, T, d) chains as samples that take turns, and which chain each is of."""
    count, length, dim = chains.shape
    x = np.swapaxes(chains, 0, 1).reshape(-1, dim).astype(np.float32)
    return x, np.arange(count * length) % count


def judged(chains, **options):
    x, island = turns(chains)
    return compare(NORMAL, x, n=100, island=island, **options)


def test_independent_chains_agree(rng):
    found = judged(rng.normal(size=(8, 500, 2)))
    # of 16 halves of 250: R-hat - 1 is 1/500 of a variance that is known to √(2/15) = 37 %
    assert abs(found.metrics["rhat"].value - 1) < 4 * 0.37 / 500 * 3  # the largest of four
    assert word("rhat", found.metrics["rhat"]) == "chains agree"
    assert found.metrics["rhat"].floor == 1.01
    assert found.metrics["effective_samples"].value == pytest.approx(4000, rel=0.3)
    said = sentences(found)
    assert said[0].startswith("The chains agree (R-hat 1.0")
    assert "only what the chains say of each other is known" in said[1]


@pytest.mark.parametrize(("count", "length"), [(64, 15), (4, 9), (16, 62)])
def test_perfect_chains_agree_however_short_they_are(rng, count, length):
    """Beyond the bound in 1 of 100 cases, up to four standard errors of 100 of them."""
    bound = rhat_of_perfect(count, length, 5)
    worst = [np.max(rhat(rng.normal(size=(count, length, 5)))) for _ in range(100)]
    assert np.mean(np.array(worst) > bound) <= 0.01 + 4 * (0.01 * 0.99 / 100) ** 0.5
    assert np.mean(worst) > 1 + (bound - 1) / 4  # and it is not far away


@pytest.mark.parametrize(("count", "length"), [(2, 8), (4, 9), (4, 25), (64, 8), (64, 15)])
def test_short_chains_in_two_basins_never_agree(rng, count, length):
    """Either they are too short to tell, or they are told apart."""
    chains = rng.normal(size=(count, length, 2)) + 20.0 * (np.arange(count) % 2)[:, None, None]
    found = judged(chains).metrics
    assert ("rhat" in found) == (count == 64 or length == 25)
    if "rhat" in found:
        assert word("rhat", found["rhat"]) == "chains disagree"


@pytest.mark.parametrize("bound, value, wanted", [
    (1.01, 1.05, "nearly agree"), (1.01, 1.11, "disagree"),
    (1.127, 1.134, "nearly agree"), (1.127, 1.26, "disagree"), (1.19, 1.3, "nearly agree"),
])  # fmt: skip
def test_chains_hardly_beyond_what_perfect_ones_have_nearly_agree(bound, value, wanted):
    """Also where perfect ones may be beyond 1.1: up to twice as far from 1."""
    assert word("rhat", Metric(value, np.nan, bound, 0.0, 100)) == f"chains {wanted}"


def test_every_coordinate_is_looked_at(rng):
    chains = rng.normal(size=(8, 100, 100))
    chains[:4, :, 80] += 3
    target = FunctionTarget(lambda x: 0.5 * (x @ x), Euclidean(100))
    x, island = turns(chains)
    found = compare(target, x, n=100, island=island)
    assert word("rhat", found.metrics["rhat"]) == "chains disagree"


def test_a_chain_that_never_moves_is_told(rng):
    chains = np.repeat(rng.normal(size=(4, 1, 2)), 20, axis=1)
    found = judged(chains)
    assert word("rhat", found.metrics["rhat"]) == "chains do not move"
    assert sentences(found)[0].startswith("A chain never moved")


def test_what_a_chain_with_memory_is_worth(rng):
    """x' = 0.9 x + √0.19 ξ is worth (1 - 0.9)/(1 + 0.9) of its states."""
    chains = np.empty((8, 2000, 2))
    chains[:, 0] = rng.normal(size=(8, 2))
    for i in range(1, 2000):
        chains[:, i] = 0.9 * chains[:, i - 1] + 0.19**0.5 * rng.normal(size=(8, 2))
    x, _ = turns(chains)
    found = mixing(NORMAL, x, 0.5 * np.sum(x**2, axis=1), 8)
    # Sokal: with a window of 5τ = 95 a relative error of √(2 (2·95 + 1)/16000) = 15 %
    assert np.log(found.effective / (16000 / 19)) == pytest.approx(0, abs=4 * 0.15)


def test_chains_that_stay_apart_disagree(rng):
    chains = rng.normal(size=(8, 100, 2)) + np.where(np.arange(8) < 4, -3.0, 3.0)[:, None, None]
    found = judged(chains)
    assert found.metrics["rhat"].value > 1.1
    assert word("rhat", found.metrics["rhat"]) == "chains disagree"
    assert "The chains disagree" in sentences(found)[0] and "tempering" in sentences(found)[0]


def test_what_is_not_a_set_of_chains_has_no_r_hat(rng):
    x, island = turns(rng.normal(size=(8, 100, 2)))
    assert "rhat" not in compare(NORMAL, x, n=100).metrics
    assert "rhat" not in compare(NORMAL, x, n=100, island=np.sort(island)).metrics
    assert "rhat" not in judged(rng.normal(size=(8, 7, 2))).metrics  # too short
    x[5] = np.nan  # one left out, and who follows is another chain
    found = compare(NORMAL, x, n=100, island=island)
    assert "rhat" not in found.metrics and any("not finite" in note for note in found.notes)


def test_a_state_that_never_changes_says_nothing():
    assert mixing(NORMAL, np.ones((80, 2), np.float32), np.ones(80), 8) is None


def fit(seconds, monkeypatch, **options):
    monkeypatch.setattr(BlackBox, "seconds_per_point", seconds)
    target = black_box(bowl, dim=2)
    defaults = {"method": "hmc", "scale": 1.0, "budget": "100s", "progress": False}
    settings = {"sampler": {"outer_steps": 1}} | options.pop("settings", {})
    return demx.fit(target, warm_start=np.zeros((1, 2)), settings=settings, **defaults | options)


def test_chains_of_a_slow_function_are_few_and_short(monkeypatch, tmp_path):
    """100 s of 1 ms are 5000 calls a loop, and the power of two below is 4096."""
    slow = fit(1e-3, monkeypatch, directory=tmp_path)
    sampler = slow.config["sampler"]
    assert (sampler["num_chains"], sampler["length"], sampler["thin"]) == (8, 50, 5)
    assert slow.method.calls_per_step == 8 * 50 * 8 <= 4096 == slow.config["loop_calls"]
    assert slow.progress.evaluation_calls == 0 == slow.config["evaluation"]["every"]
    again = fit(1e-5, monkeypatch, directory=tmp_path, budget="200s")
    assert again.config == slow.config  # whatever the clock says by then
    slower = fit(4e-2, monkeypatch).config["sampler"]
    assert (slower["num_chains"], slower["length"], slower["thin"]) == (4, 6, 1)
    chosen = fit(1e-2, monkeypatch, settings={"sampler": {"outer_steps": 1, "num_chains": 6}})
    assert chosen.config["sampler"]["num_chains"] == 6
    with pytest.warns(UserWarning, match=r"room for about 0\.52 outer loops .*it does not sample"):
        fit(1.0, monkeypatch)


@pytest.mark.parametrize("method", ["metropolis", "mala", "nuts", "tempering"])
def test_every_chain_method_fits_a_budget(method, monkeypatch):
    monkeypatch.setattr(BlackBox, "seconds_per_point", 1e-3)
    about = {"method": method, "scale": 1.0, "warm_start": np.zeros((1, 2))}
    target = black_box(bowl, dim=2)

    def calls(seconds):
        sections = resolve(target, budget=Budget(seconds), **about)[1]
        return build_method(method, target, sections).calls_per_step

    assert calls(100.0) <= 4096 < calls(1e9)


def test_an_evaluation_of_a_slow_function_is_one_block(monkeypatch):
    made = fit(1e-3, monkeypatch, settings=CHAINS)
    found = made.evaluate(100)
    assert (found.samples.n, found.samples.repeats) == (100, 1)
    assert found.samples.energy_calls == made.calls_of(100) + 100
    assert "rhat" in found.metrics


def test_a_page_of_samples_that_are_there(monkeypatch, tmp_path):
    """Nothing is drawn, and every energy is asked for once, for metrics and figures."""
    made = fit(1e-3, monkeypatch, settings=CHAINS)
    made.sample_to(tmp_path / "drawn.npz", 80)
    before = made.target.points
    monkeypatch.setattr(type(made), "sample", None)
    page = made.report(tmp_path / "page.html", 40, samples=tmp_path / "drawn.npz").read_text()
    assert "The samples are those of drawn.npz." in page and "R-hat" in page
    assert made.target.points - before == 80  # no contours
    assert "80 for the metrics" in page and ", 0 for the figures" in page
    assert f"80 samples, without contours, which would take {GRID**2:,} energy calls." in page
    np.savez(tmp_path / "wrong.npz", x=np.zeros((20, 3), np.float32))
    with pytest.raises(demx.UserError, match=r"wrong.npz: expected samples of shape \(n, 2\)"):
        made.report(tmp_path / "page.html", 40, samples=tmp_path / "wrong.npz")
    np.savez(tmp_path / "odd.npz", x=np.zeros((20, 2), np.float32), island=np.zeros(7, int))
    with pytest.raises(demx.UserError, match=r"odd.npz: expected 20 islands"):
        made.report(tmp_path / "page.html", 40, samples=tmp_path / "odd.npz")


@pytest.mark.parametrize("suffix", ["npz", "nc"])
def test_a_page_refuses_the_samples_of_another_run(suffix, monkeypatch, tmp_path):
    made, other = (fit(1e-3, monkeypatch, settings=CHAINS, seed=seed) for seed in (0, 1))
    path = tmp_path / f"drawn.{suffix}"
    other.sample_to(path, 80)
    with pytest.raises(demx.UserError, match=r"expected .*hmc, seed 0\), found .* by hmc, seed 1;"):
        made.report(tmp_path / "page.html", 40, samples=path)
    assert other.report(tmp_path / "page.html", 40, samples=path).is_file()


def test_a_page_of_a_slow_function_draws_once(monkeypatch, tmp_path):
    made = fit(1e-3, monkeypatch, settings=CHAINS)
    drawn = []
    draw = type(made).sample
    count = lambda self, n, **how: drawn.append(n) or draw(self, n, **how)  # noqa: E731
    monkeypatch.setattr(type(made), "sample", count)
    made.report(tmp_path / "page.html", 40)
    assert drawn == [40]


@pytest.mark.parametrize("method, told", [("hmc", []), ("importance", ["Training ended by"])])
def test_chains_that_a_budget_ended_are_not_half_trained(method, told):
    """What they are worth their R-hat says; what learns or tunes a path is told of."""
    fitted = untrained("gmm40", CHAINS if method == "hmc" else {}, method=method)
    fitted.progress, fitted.ended = replace(fitted.progress, step=1), "budget"
    fitted.method = fitted.method._replace(outer_steps=2)
    assert [said[:17] for said in fitted.caveats()] == told
