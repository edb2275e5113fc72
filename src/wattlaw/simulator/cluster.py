"""The hardware of a simulation: a GPU, its node, their network; as files describe them."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from wattlaw.study.model import Model, Precision

Amount = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]


class Described(Model):
    """A part with a name and, for every number, where it is from."""

    name: str = Field(min_length=1, max_length=100)
    sources: dict[str, str]  # key -> source; "assumed" where there is none, and why so much

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Self:
        plain = {key for key in type(self).model_fields if key not in ("name", "sources")}
        known = {key for key in plain if not isinstance(getattr(self, key), Described)}
        lacking = {key for key in known if getattr(self, key) is not None} - set(self.sources)
        if lacking:
            raise ValueError(f"sources: nothing about {', '.join(sorted(lacking))}")
        return self


class Link(Described):
    """A way for data: of one GPU to the others of its node, or of one node to the others.

    Bandwidth is of one direction; a ring all-reduce can use all of it in both at once.
    """

    bandwidth_gb_s: Amount
    latency_us: Amount


class Gpu(Described):
    """One board. Peaks are dense, at ``max_clock_mhz``; a precision that it lacks is left out."""

    peak_tflops: dict[Precision, Amount]
    memory_gb: Amount
    memory_bandwidth_gb_s: Amount
    idle_w: Amount
    max_w: Amount  # the greatest power limit, and the one that is set by default
    min_limit_w: Amount  # the least power limit that can be set
    min_clock_mhz: Amount
    max_clock_mhz: Amount
    #: Up to this clock the voltage stays at its least; from there it rises in a straight line.
    knee_clock_mhz: Amount
    #: The least voltage over that at ``max_clock_mhz``.
    least_voltage: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _ranges_are_in_order(self) -> Self:
        if not self.idle_w < self.min_limit_w <= self.max_w:
            raise ValueError("idle_w < min_limit_w <= max_w is needed")
        if not self.min_clock_mhz <= self.knee_clock_mhz <= self.max_clock_mhz:
            raise ValueError("min_clock_mhz <= knee_clock_mhz <= max_clock_mhz is needed")
        return self


class Node(Described):
    """One machine: its GPUs and what they share."""

    gpus: int = Field(ge=1)
    gpu: Gpu
    link: Link  # of one GPU to the others of the node
    cores: int = Field(ge=1)
    cpu_idle_w: AtLeastZero  # of all packages
    cpu_core_w: AtLeastZero  # more for each busy core
    dram_w: AtLeastZero


class Cluster(Described):
    """Equal nodes with a network, and the storage that all of them share."""

    node: Node
    network: Link  # of one node to the others, all its adapters together
    nodes: int = Field(ge=1)  # how many there are; more are simulated all the same, and it is told
    storage_gb_s: Amount  # of all nodes together

    @property
    def gpu(self) -> Gpu:
        """Return the board of every node."""
        return self.node.gpu
