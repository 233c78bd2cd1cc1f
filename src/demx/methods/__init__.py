"""Methods by name: their factory, what configures them, and what is true of them.

The costs are those of the paper's tables of methods (tables 1 and 6), for a path of L steps in d
dimensions; of classical methods, for chains, rungs or live points in the place of L.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """factory: (target, parts) -> Method. settings: the class of its `sampler` section; None: it
    is made of the sections of the matching engine. network: it has one.

    gradient: goes by ∇E; others ask for it too, with every energy. trains: has something to learn
    or tune before it samples. weights, log_z, log_prob: gives them. mcmc_free: no Markov chain that
    leaves p invariant. off_policy: learns from points of anywhere: 'yes', 'partly', 'no', or '-'
    without learning. warm_start: what it does with points to begin from: its 'chains' begin there,
    or its 'buffer' holds them; '': it cannot use them. Then time of a gradient and of a proposal
    while training, memory, and time of a sample.
    """

    factory: str
    settings: str | None = None
    network: bool = False
    gradient: bool = True
    trains: bool = True
    weights: bool = False
    log_z: bool = False
    log_prob: bool = False
    mcmc_free: bool = False
    off_policy: str = "-"
    warm_start: str = ""
    gradient_time: str = "-"
    proposal_time: str = "-"
    memory: str = "O(d)"
    sampling_time: str = "O(Ld)"

    @property
    def matching(self) -> bool:
        return self.settings is None


def _matching(name: str, off_policy: str, proposal_time: str) -> Entry:
    return Entry(
        f"demx.methods.idem:{name}", network=True, weights=True, log_z=True, log_prob=True,
        mcmc_free=True, off_policy=off_policy, gradient_time="O(1)", proposal_time=proposal_time,
        warm_start="buffer",
    )  # fmt: skip


def _controlled(name: str, settings: str) -> Entry:
    return Entry(
        f"demx.methods.control:{name}", f"demx.methods.processes:{settings}", network=True,
        weights=True, log_z=True, mcmc_free=True, off_policy="no", gradient_time="O(L)",
        proposal_time="O(L)", memory="O(Ld)",
    )  # fmt: skip


def _classical(module: str, name: str, settings: str, **properties) -> Entry:
    where = f"demx.classical.{module}"
    return Entry(f"{where}:{name}", f"{where}:{settings}", **properties)


def _chains(name: str, settings: str, **properties) -> Entry:
    return _classical("chains", name, settings, warm_start="chains", **properties)


METHODS = {
    "idem": _matching("idem", "partly", "O(L)"),
    "pdem": _matching("pdem", "yes", "O(1)"),
    "pis": _controlled("pis", "PISSettings"),
    "dds": _controlled("dds", "DDSSettings"),
    "dis": _controlled("dis", "DISSettings"),
    "rdmc": Entry(
        "demx.methods.reverse_monte_carlo:reverse_monte_carlo",
        "demx.methods.reverse_monte_carlo:Settings",
        trains=False,
        mcmc_free=True,
    ),
    "importance": _classical(
        "importance",
        "importance",
        "Importance",
        gradient=False,
        weights=True,
        log_z=True,
        log_prob=True,
        mcmc_free=True,
        sampling_time="O(d)",
    ),
    "metropolis": _chains("metropolis", "Metropolis", gradient=False),
    "mala": _chains("mala", "Mala"),
    "hmc": _chains("hmc", "Hmc"),
    "nuts": _chains("nuts", "Nuts"),
    "tempering": _classical(
        "tempering", "parallel_tempering", "ParallelTempering", warm_start="chains"
    ),
    "ais": _classical("annealed", "ais", "Annealed", weights=True, log_z=True),
    "smc": _classical("annealed", "smc", "Smc", weights=True, log_z=True),
    "nested": _classical("nested", "nested", "Nested", gradient=False, trains=False, log_z=True),
}
