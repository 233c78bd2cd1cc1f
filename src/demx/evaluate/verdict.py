"""An evaluation in plain words: what is at the floor, what is not, how far to trust it."""

from collections.abc import Mapping

import numpy as np

from demx.evaluate.evaluation import Evaluation, Metric
from demx.evaluate.weights import RELIABLE_K

SLIGHT = 3.5  # standard errors
# of a weighted mean: where q is a little too narrow and its draws missed the tail, they are too
# small, and perfect samples are sometimes 3.5 of them off (tests/test_trial.py)
CLEAR = 7.0
# R-hat beyond which chains are nowhere near each other, or, if that is more, twice as far from 1 as
# perfect ones may be
APART = 1.1
LONGER = "--set sampler.outer_steps=…, in a new run, lets them go on for longer"
FEW = 0.1  # effective share of the weights below which reweighting rests on few samples


def word(name: str, metric: Metric) -> str:
    """One metric's verdict: 'at the floor', 'above', 'as reference', 'off', …"""
    if name == "psis_k":
        return "weights reliable" if metric.value < RELIABLE_K else "weights unreliable"
    if name == "rhat":
        return f"chains {_agreement(metric)}"
    if name in UNJUDGED or metric.gap is None:
        return ""
    if name == "modes_hit":
        missing = metric.value < metric.floor - 2 * metric.standard_error
        return "modes missing" if missing else "all"
    if metric.two_sided:
        return "as reference" if metric.at_floor else "off"
    if metric.at_floor:
        return "says little" if metric.saturated else "at the floor"
    return "above"


# matters of degree, not of noise: how far q is from p, told in `_weights`, and chains in `_chains`
UNJUDGED = ("ess", "nll", "log_z_lower", "log_z_upper", "rhat")
GOOD = ("at the floor", "as reference", "all")
POOR = ("above", "off", "modes missing")


def sentences(found: Evaluation) -> list[str]:
    """The verdict, most important first."""
    if not found.metrics:
        few = "Too many samples are not finite: nothing can be said of the others."
        return [*found.notes, few]
    words = {name: word(name, metric) for name, metric in found.metrics.items()}
    good = [name for name, w in words.items() if w in GOOD]
    poor = [name for name, w in words.items() if w in POOR]
    said = [*found.notes]
    known = {
        name: metric
        for name, metric in found.metrics.items()
        if metric.floor is not None and name not in UNJUDGED
    }
    unsure = [name for name, metric in known.items() if metric.gap is None]
    if not known:
        said += _chains(found)
        alone = "only what the chains say of each other is known"
        said.append(
            "There is no reference for this target, so "
            f"{alone if 'rhat' in found.metrics else 'how close the samples are cannot be said'}; "
            "`demx reference TARGET` makes one (of a slow energy in hours), or in Python "
            "`demx.reference(…)`, with the options of the fit."
        )
    elif unsure:
        told = ", ".join(f"{name} {known[name].value:.4g} (floor {known[name].floor:.4g})"
                         for name in unsure)  # fmt: skip
        said.append(
            f"Without a standard error it cannot be said how far these are from floors: {told}."
        )
    if found.bad:  # before anything good is said of the others
        said.append(f"{found.bad} samples are not finite and were left out.")
    if good and not poor and not unsure:
        those = "the others" if found.bad else "these samples"
        said.append(f"No metric tells {those} from perfect ones ({', '.join(good)}).")
    elif poor:
        worst = sorted(poor, key=lambda name: -abs(found.metrics[name].gap or 0.0))
        told = ", ".join(_how_far(name, found.metrics[name]) for name in worst)
        # of ten metrics, one is beyond two standard errors by chance every third time
        slight = all(abs(found.metrics[name].gap or 0.0) < SLIGHT for name in poor)
        said.append(
            f"Hardly told from perfect samples; only {told}."
            if slight and "modes_hit" not in poor
            else f"These are not yet perfect samples: {told}."
        )
    if good and (poor or unsure):
        said.append(f"At the floor: {', '.join(good)}.")
    if known:
        said += _chains(found)
    said += _outliers(found) + _modes(found) + _weights(found)
    little = [name for name, w in words.items() if w == "says little"]
    if little:
        said.append(
            f"At this n {', '.join(little)} cannot tell good samples from bad ones: perfect "
            "samples score almost as badly as the worst."
        )
    return [*said, *found.left_out]


def _how_far(name: str, metric: Metric) -> str:
    if name == "modes_hit":
        told = f"{metric.worst - metric.value:.0f} of {metric.worst:.0f} modes missing"
        chance = metric.worst - metric.floor
        return told + f" (perfect samples of that number miss {chance:.0f})" * (chance >= 0.5)
    side = "below" if metric.value < metric.floor else "above"
    gap = abs(metric.gap)
    far = f"{gap:.0f}" if gap < 100 else "more than 100"
    return f"{name} {metric.value:.4g} is {far} standard errors {side} {metric.floor:.4g}"


def _agreement(rhat: Metric) -> str:
    """R-hat in a word; its floor is what chains that agree are below."""
    if np.isnan(rhat.value):
        return "do not move"
    if rhat.value < rhat.floor:
        return "agree"
    return "nearly agree" if rhat.value < max(APART, 2 * rhat.floor - 1) else "disagree"


def _chains(found: Evaluation) -> list[str]:
    """Whether chains agree, and how many independent samples theirs are worth."""
    if "rhat" not in found.metrics:
        return []
    rhat, worth = found.metrics["rhat"], found.metrics["effective_samples"]
    many = f"{worth.value:.2g}" if worth.value < 100 else f"{min(worth.value, worth.n):.0f}"
    worth = f"their {worth.n} samples are worth about {many} independent ones"
    word = _agreement(rhat)
    told = f"The chains {word} (R-hat {rhat.value:.3f}, perfect ones are below {rhat.floor:.4g})"
    if word == "do not move":
        return ["A chain never moved: every proposal was refused. Another --scale may help."]
    if word == "agree":
        return [f"{told}, and {worth}; a basin that none of them has met would not show."]
    if word == "nearly agree":
        return [f"{told}, and {worth}: means are rough. More samples help, and {LONGER}."]
    return [
        f"{told}: they are not at equilibrium yet ({LONGER}), or sit in different basins (--method "
        "tempering helps)."
    ]


def _outliers(found: Evaluation) -> list[str]:
    """A few energies so far above the others that the mean is theirs."""
    if found.outliers is None or not found.outliers.telling:
        return []
    mean, median = (found.metrics[f"energy_{name}"] for name in ("mean", "median"))
    told = (
        f"The mean energy, {mean.value:.4g}, is far above the median, {median.value:.4g}: "
        f"{found.outliers.count} of {mean.n} samples have energies that p hardly knows (particles "
        "that overlap, most often), and every mean over the samples suffers."
    )
    if found.of_chains:  # which a correction would only go on with
        return [
            f"{told} Chains that are still coming down from where they began have such; {LONGER}."
        ]
    return [f"{told} Correction (--correct hmc) mends those, training longer makes fewer."]


def _modes(found: Evaluation) -> list[str]:
    if "ess" in found.metrics and "w2" not in found.metrics:
        return ["Weights alone cannot see a mode that was never visited."]
    return []


def disputed(metrics: Mapping[str, Metric]) -> list[str]:
    """What is said where reliable weights deny samples without weights their mean energy."""
    if "energy_mean_weighted" not in metrics or not metrics["psis_k"].value < RELIABLE_K:
        return []
    gap = metrics["log_z_is"].gap if "log_z_is" in metrics else None
    if gap is not None and abs(gap) >= SLIGHT:  # log Z is known, and refutes them
        return []
    return _by_weight(metrics["energy_mean"], metrics["energy_mean_weighted"])


def _by_weight(plain: Metric, weighted: Metric) -> list[str]:
    """Whether samples without weights have the mean energy that weights say is p's."""
    joint = np.hypot(plain.standard_error, weighted.standard_error)
    gap = abs(plain.value - weighted.value)
    if not gap > CLEAR * joint:
        return []
    return [
        f"Samples and weights disagree: the mean energy of the samples, {plain.value:.4g}, is "
        f"{gap / joint:.0f} standard errors from that by the weights, {weighted.value:.4g}. "
        "Weighted samples (--weights) are nearer to p, and --correct smc is where q misses some of "
        "its mass; longer training, or better estimates of the score, bring both together."
    ]


def _weights(found: Evaluation) -> list[str]:
    if "psis_k" not in found.metrics:
        return []
    k, share = found.metrics["psis_k"].value, found.metrics["ess"].value
    said, known = [], found.metrics["log_z_is"]
    if k < RELIABLE_K and known.gap is not None and abs(known.gap) >= SLIGHT:
        said.append(
            f"k̂ = {k:.2f} is small, yet log Z is {abs(known.gap):.0f} standard errors from its "
            "known value: the weights have not met all of the mass, do not trust them."
        )
    elif k >= RELIABLE_K:
        said.append(
            f"The importance weights cannot be trusted (k̂ = {k:.2f} ≥ {RELIABLE_K}): reweighted "
            "means and log Z may be far off."
        )
    elif share < FEW:
        said += disputed(found.metrics)
        said.append(
            f"The weights hold (k̂ = {k:.2f}) but rest on {100 * share:.1f} % of the samples."
        )
    elif denied := disputed(found.metrics):
        said += denied
        said.append(
            f"The weights look reliable (k̂ = {k:.2f}, ESS {share:.2f}), as far as "
            f"{found.metrics['ess'].n} of them can tell."
        )
    else:
        said.append(f"The importance weights can be trusted (k̂ = {k:.2f}, ESS {share:.2f}).")
    if "log_z_upper" in found.metrics:
        upper, lower = found.metrics["log_z_upper"], found.metrics["log_z_lower"]
        said.append(f"The bounds on log Z are {upper.value - lower.value:.3g} nats apart.")
        above, below = upper.value - known.value, known.value - lower.value
        # close to p both are half the variance of log w: what is more comes from mass hardly met
        error = np.hypot(upper.standard_error, lower.standard_error)
        if above > 2 * below and above - below > 2 * error:
            said.append(
                "Reference samples have larger weights than the sampler's own: part of the mass is "
                "drawn too rarely, and log Z may be too low."
            )
    return said
