"""The hardware of a simulation, as hardware files describe it: GPU, node and network."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from wattlaw.study.base_model import Model, Precision

# Bounds are far outside any hardware, and keep products within the range of a float.
Amount = Annotated[float, Field(ge=1e-9, le=1e15)]
AtLeastZero = Annotated[float, Field(ge=0, le=1e15)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"\S")]


def _amount(meaning: str) -> Any:
    return Field(description=f"a number > 0 ({meaning})")


class Described(Model):
    name: str = Field(min_length=1, max_length=100, description="text of 1 to 100 characters")
    sources: dict[str, Text] = Field(
        description="a mapping of each number's key to its source, to 'assumed: reason', or to "
        "'calibrated: measurements that this number was chosen to fit'"
    )

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Self:
        numbers = self.numbers()
        for fault, keys in (
            ("none for", numbers.keys() - self.sources.keys()),
            ("no number is named", self.sources.keys() - numbers.keys()),
        ):
            if keys:
                wrong, allowed = ", ".join(sorted(keys))[:100], ", ".join(numbers)
                raise ValueError(f"sources: {fault} {wrong}; allowed: one for each of {allowed}")
        return self

    def numbers(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in self
            if key not in ("name", "sources")
            and value is not None
            and not isinstance(value, Described)
        }

    @property
    def calibrated(self) -> tuple[str, ...]:
        own = [key for key, source in self.sources.items() if source.startswith("calibrated:")]
        parts = (value.calibrated for _, value in self if isinstance(value, Described))
        return (*own, *(key for keys in parts for key in keys))


class Link(Described):
    """A data link: from one GPU to the others of its node, or from one node to the others.

    The bandwidth is of one direction; a ring all-reduce can use both directions at once.
    """

    bandwidth_gb_s: Amount = _amount("10^9 bytes per second in one direction")
    latency_us: Amount = _amount("microseconds of one hop, software included")


class Gpu(Described):
    """One board. Peaks are dense, at ``max_clock_mhz``; an unsupported precision has none."""

    peak_tflops: dict[Precision, Amount] = Field(
        min_length=1,
        description="a mapping of precisions (fp32, tf32, bf16, fp16) to dense peaks in "
        "TFLOP/s at max_clock_mhz",
    )
    memory_gb: Amount = _amount("10^9 bytes, as the vendor names the board")
    memory_bandwidth_gb_s: Amount = _amount("10^9 bytes per second, read and written together")
    idle_w: Amount = _amount("watts without work")
    max_w: Amount = _amount("watts: the greatest power limit, which is the default limit")
    min_limit_w: Amount = _amount("watts: the lowest power limit that can be set")
    min_clock_mhz: Amount = _amount("MHz")
    max_clock_mhz: Amount = _amount("MHz")
    knee_clock_mhz: Amount = _amount(
        "MHz: up to this clock the voltage is at its minimum, above it rises linearly"
    )
    least_voltage: float = Field(
        gt=0.01,
        le=1,
        description="a number > 0 and <= 1: minimum voltage over that at max_clock_mhz",
    )

    @model_validator(mode="after")
    def _ranges_are_in_order(self) -> Self:
        if not self.idle_w < self.min_limit_w <= self.max_w:
            raise ValueError(
                f"given idle_w {self.idle_w:g}, min_limit_w {self.min_limit_w:g}, "
                f"max_w {self.max_w:g}; allowed: idle_w < min_limit_w <= max_w"
            )
        if not self.min_clock_mhz <= self.knee_clock_mhz <= self.max_clock_mhz:
            raise ValueError(
                f"given min_clock_mhz {self.min_clock_mhz:g}, knee_clock_mhz "
                f"{self.knee_clock_mhz:g}, max_clock_mhz {self.max_clock_mhz:g}; "
                "allowed: min_clock_mhz <= knee_clock_mhz <= max_clock_mhz"
            )
        if self.knee_clock_mhz == self.max_clock_mhz and self.least_voltage < 1:
            raise ValueError(
                f"given least_voltage {self.least_voltage:g} and a knee at max_clock_mhz; "
                "allowed: 1, or a knee_clock_mhz below max_clock_mhz"
            )
        return self


class Node(Described):
    gpus: Count = Field(description="a whole number >= 1")
    gpu: Gpu = Field(description="the name of a board, or a mapping that describes one")
    link: Link = Field(description="a mapping: the link of one GPU to the others of the node")
    cores: Count = Field(description="a whole number >= 1: physical cores of all packages")
    cpu_idle_w: AtLeastZero = Field(description="a number >= 0: watts of all packages without work")
    cpu_core_w: AtLeastZero = Field(description="a number >= 0: additional watts of each busy core")
    dram_w: AtLeastZero = Field(description="a number >= 0: watts of all memory modules")


class Cluster(Described):
    node: Node = Field(description="a mapping that describes one node")
    network: Link = Field(
        description="a mapping: the link of one node to the others, all its adapters together"
    )
    #: A simulation may use more nodes; it then has a warning.
    nodes: Count = Field(description="a whole number >= 1")
    storage_gb_s: Amount = _amount("10^9 bytes per second that all nodes together can read")
    epoch_ms: Amount | None = Field(
        default=None,
        description="milliseconds of an epoch besides its steps (a number > 0), or null for the "
        "simulator's default",
    )

    @property
    def gpu(self) -> Gpu:
        return self.node.gpu

    @property
    def calibration(self) -> str:
        return "calibrated" if self.calibrated else "uncalibrated"
