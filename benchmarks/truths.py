"""A zoo of training jobs whose time is known: each kind has its own physics, written out here.

Nothing of this file is in ``wattlaw.analysis.predict``. A job is a function from a setting to the
time of an optimizer step, drawn at random from a kind; runs deviate from it by noise, by the
session and by the nodes that they get. The observations of a job are settings on at most two nodes;
the targets have 2 to 8 times as many GPUs at the same local batch. ``KINDS`` says which kinds
change their regime where nothing was measured.

Sources of the forms: ring and tree all-reduce (Patarasuk and Yuan 2009; Sanders, Speck and Traeff
2009), gradient buckets that overlap with the backward pass (Li et al. 2020, PyTorch Distributed),
sparse gradients that are gathered (Jiang et al. 2020, BytePS; volume grows with the workers),
roofline of small batches (Williams, Waterman and Patterson 2009), waiting for the slowest of many
(Dean and Barroso 2013).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2

import numpy as np

Dice = np.random.Generator


@dataclass
class Machine:
    """The hardware and the model of a job; times in seconds, data in bytes."""

    dice: Dice
    node_gpus: int = field(init=False)
    sample_s: float = field(init=False)
    floor_s: float = field(init=False)
    batch: int = field(init=False)
    gradient: float = field(init=False)
    layers: int = field(init=False)
    inside: float = field(init=False)  # bytes per second of a link in a node
    between: float = field(init=False)  # of a node's adapter
    is_changed: Callable[["Place"], bool] = field(init=False, default=lambda _: False)

    def __post_init__(self) -> None:
        dice = self.dice
        self.node_gpus = int(dice.choice([2, 4, 8]))
        self.batch = int(dice.choice([8, 16, 32, 64]))
        compute_s = float(np.exp(dice.normal(np.log(0.2), 0.8)))
        self.sample_s = compute_s / self.batch
        self.floor_s = compute_s * float(np.exp(dice.normal(np.log(0.15), 0.7)))
        self.gradient = float(np.exp(dice.normal(np.log(3e8), 0.8)))
        self.layers = int(dice.integers(10, 60))
        # Volumes that take from a hundredth of a step to as long as one.
        self.inside = self.gradient / (compute_s * float(np.exp(dice.normal(np.log(0.05), 0.7))))
        self.between = self.gradient / (compute_s * float(np.exp(dice.normal(np.log(0.25), 0.8))))

    def compute_s(self, batch: float) -> float:
        return self.floor_s * 0.3 + max(self.floor_s, self.sample_s * batch)


@dataclass(frozen=True)
class Place:
    """A setting: GPUs, nodes and local batch."""

    gpus: int
    nodes: int
    batch: int


Step = Callable[[Place], float]
Kind = Callable[[Machine], Step]


def _slowest(ranks: int, sigma: float) -> float:
    """Return the mean of the largest of so many log-normal numbers, by quantile."""
    from statistics import NormalDist

    return (
        float(np.exp(sigma * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))))
        if ranks > 1
        else 1.0
    )


def ring(machine: Machine) -> Step:
    """One ring through all GPUs, of which a share overlaps with the backward pass."""
    latency_s, overlap = machine.dice.uniform(5e-6, 1e-4), machine.dice.uniform(0.2, 0.9)

    def step(at: Place) -> float:
        compute_s = machine.compute_s(at.batch)
        rate = machine.inside if at.nodes == 1 else min(machine.inside, machine.between)
        network_s = (
            2 * (at.gpus - 1) / at.gpus * machine.gradient / rate + 2 * (at.gpus - 1) * latency_s
        )
        return compute_s + max(
            0.1 * network_s * (at.gpus > 1), network_s - overlap * 0.66 * compute_s
        )

    return step


def buckets(machine: Machine) -> Step:
    """Buckets that are reduced one after the other while the backward pass makes the next ones.

    Each is reduced in the node, then between nodes by all GPUs' shares, then gathered in the node.
    """
    dice = machine.dice
    size = 25 * 2**20 * dice.choice([0.5, 1.0, 4.0])
    latency_s, share = dice.uniform(1e-5, 2e-4), dice.uniform(0.5, 0.7)
    sizes = np.full(
        max(1, ceil(machine.gradient / size)),
        machine.gradient / max(1, ceil(machine.gradient / size)),
    )
    contention = dice.uniform(0.0, 0.15)

    def step(at: Place) -> float:
        compute_s = machine.compute_s(at.batch)
        per_node = at.gpus / at.nodes
        forward_s, backward_s = (1 - share) * compute_s, share * compute_s
        end_s = 0.0
        for index, bucket in enumerate(sizes):
            ready_s = backward_s * (index + 1) / len(sizes)
            takes_s = 2 * (per_node - 1) / per_node * bucket / machine.inside
            if at.nodes > 1:
                takes_s += (
                    2
                    * (at.nodes - 1)
                    / at.nodes
                    * bucket
                    / (machine.between * at.nodes**-contention)
                )
                takes_s += 2 * log2(at.nodes) * latency_s
            takes_s += latency_s * log2(max(per_node, 1) + 1)
            end_s = max(end_s, ready_s) + (takes_s if at.gpus > 1 else 0.0)
        return forward_s + max(backward_s, end_s)

    return step


def tree(machine: Machine) -> Step:
    """Two binary trees: the volume does not depend on the nodes, but two nodes are faster."""
    latency_s, overlap = machine.dice.uniform(1e-5, 3e-4), machine.dice.uniform(0.0, 0.8)
    two = machine.dice.uniform(0.5, 0.9)

    def step(at: Place) -> float:
        compute_s = machine.compute_s(at.batch)
        network_s = 0.0
        if at.gpus > 1:
            per_node = at.gpus / at.nodes
            network_s = 2 * (per_node - 1) / per_node * machine.gradient / machine.inside
        if at.nodes > 1:
            factor = two if at.nodes == 2 else 1.0
            network_s += (
                2 * factor * machine.gradient / machine.between + 4 * log2(at.nodes) * latency_s
            )
        return compute_s + max(0.0, network_s - overlap * 0.6 * compute_s)

    return step


def slow_ranks(machine: Machine) -> Step:
    """Ranks whose steps differ as their samples do: all wait for the slowest."""
    network, sigma = ring(machine), machine.dice.uniform(0.03, 0.2)
    return lambda at: network(at) + machine.compute_s(at.batch) * (_slowest(at.gpus, sigma) - 1)


def slow_nodes(machine: Machine) -> Step:
    """Nodes that differ, so that more of them have a slower slowest one; and noise between them."""
    network, sigma = buckets(machine), machine.dice.uniform(0.02, 0.12)
    grows = machine.dice.uniform(0.0, 0.06)
    return lambda at: network(at) * (_slowest(at.nodes, sigma) + grows * log2(at.nodes))


def sparse(machine: Machine) -> Step:
    """Embeddings whose gradients are gathered from all ranks: their volume grows with the ranks."""
    network = buckets(machine)
    rows = machine.gradient * machine.dice.uniform(0.02, 0.15) / machine.batch

    def step(at: Place) -> float:
        rate = machine.inside if at.nodes == 1 else machine.between
        return network(at) + (at.gpus - 1) * rows * at.batch / rate / at.gpus * at.nodes * 0.5

    return step


def small_batches(machine: Machine) -> Step:
    """Kernels that are bound by memory at small batches: the time falls less than the batch."""
    network = ring(machine)
    half = machine.batch * machine.dice.uniform(0.2, 1.5)
    power = machine.dice.uniform(1.0, 2.0)

    def step(at: Place) -> float:
        efficiency = at.batch**power / (at.batch**power + half**power)
        return network(at) - machine.compute_s(at.batch) + machine.sample_s * at.batch / efficiency

    return step


def processors(machine: Machine) -> Step:
    """Samples that a node's processors prepare, for all of its GPUs."""
    network = ring(machine)
    load_s = machine.sample_s / machine.node_gpus * machine.dice.uniform(0.6, 1.5)
    return lambda at: max(network(at), load_s * at.batch * at.gpus / at.nodes)


def hot_nodes(machine: Machine) -> Step:
    """Boards that get hotter with the boards beside them, and lower their clock."""
    network, slower = tree(machine), machine.dice.uniform(0.01, 0.05)
    room = machine.dice.uniform(0.0, 0.03)

    def step(at: Place) -> float:
        hot = 1 + slower * (at.gpus / at.nodes - 1) ** 0.7 + room * log2(at.nodes)
        return network(at) + machine.compute_s(at.batch) * (hot - 1)

    return step


def cliff(machine: Machine) -> Step:
    """A network that narrows from some number of nodes on, as where a second switch begins."""
    network = machine.dice.choice([ring, buckets, tree])(machine)
    first, factor = int(machine.dice.choice([3, 4, 5, 9])), machine.dice.uniform(1.5, 4.0)
    machine.is_changed = lambda at: at.nodes >= first

    def step(at: Place) -> float:
        whole_s, compute_s = network(at), machine.compute_s(at.batch)
        if at.nodes < first:
            return whole_s
        wide = machine.between
        network_s = 2 * (at.nodes - 1) / at.nodes * machine.gradient / wide * (factor - 1)
        return whole_s + max(0.0, network_s - 0.2 * compute_s)

    return step


def storage(machine: Machine) -> Step:
    """Storage that all ranks share: from some number of GPUs on it is what a step takes."""
    network = machine.dice.choice([ring, buckets])(machine)
    full = 2 * machine.node_gpus * machine.dice.uniform(1.0, 6.0)
    load_s = machine.sample_s / full
    machine.is_changed = lambda at: load_s * at.batch * at.gpus > network(at)
    return lambda at: (network(at) ** 6 + (load_s * at.batch * at.gpus) ** 6) ** (1 / 6)


#: Every kind, and whether its regime may change beyond what is measured.
KINDS: dict[str, tuple[Kind, bool]] = {
    "ring": (ring, False),
    "buckets": (buckets, False),
    "tree": (tree, False),
    "slow ranks": (slow_ranks, False),
    "slow nodes": (slow_nodes, False),
    "sparse gradients": (sparse, False),
    "small batches": (small_batches, False),
    "processors": (processors, False),
    "hot nodes": (hot_nodes, False),
    "cliff": (cliff, True),
    "storage": (storage, True),
}


@dataclass(frozen=True)
class Run:
    at: Place
    step_s: float
    session: str


@dataclass(frozen=True)
class Job:
    """The runs of a job, and those with 2, 4 and 8 times as many GPUs that are to be predicted."""

    kind: str
    node_gpus: int
    runs: tuple[Run, ...]
    targets: tuple[Run, ...]


def draw(kind: str, seed: int, *, repeats: int = 1, beyond: bool = False) -> Job:
    """Return a job of a kind with its runs, each with noise of its own and of its session.

    The runs are on at most two nodes. With ``beyond`` there is one more, with the fewest doublings
    of GPUs that are beyond the change of regime.
    """
    dice = np.random.default_rng([seed, *kind.encode()])
    machine = Machine(dice)
    step = KINDS[kind][0](machine)
    noise, session, allocation = (
        dice.uniform(0.003, 0.015),
        dice.uniform(0.0, 0.02),
        dice.uniform(0.0, 0.03),
    )
    sessions: dict[str, float] = {}

    def run(at: Place, name: str) -> Run:
        shared = sessions.setdefault(
            name, float(dice.normal(0, session) + dice.normal(0, allocation) * (at.nodes > 1))
        )
        return Run(at, step(at) * float(np.exp(shared + noise * dice.standard_t(5))), name)

    most = 2 * machine.node_gpus
    counts = [n for n in (1, 2, 4, 8, 16) if n <= most]
    batches = [machine.batch, *([machine.batch // 2] if dice.random() < 0.7 else [])]
    runs = []
    for number in range(repeats):
        for gpus in counts:
            for batch in batches:
                if batch != machine.batch and dice.random() < 0.4:
                    continue
                at = Place(gpus, ceil(gpus / machine.node_gpus), batch)
                runs.append(run(at, f"{gpus} GPUs, {number}"))

    def large(gpus: int) -> Place:
        return Place(gpus, gpus // machine.node_gpus, machine.batch)

    if beyond:
        most *= 2
        while not machine.is_changed(large(most)):
            most *= 2
        runs.append(run(large(most), f"beyond {most}"))
    targets = [run(large(most * factor), f"target {most * factor}") for factor in (2, 4, 8)]
    return Job(kind, machine.node_gpus, tuple(runs), tuple(targets))
