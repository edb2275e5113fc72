"""A tree of energy counters as Linux's powercap shows it, for tests."""

from pathlib import Path

#: Power of each zone of the tree, by its folder: two processors with a core part and memory each.
WATTS = {
    "intel-rapl:0": 100.0,
    "intel-rapl:0:0": 70.0,
    "intel-rapl:0:1": 20.0,
    "intel-rapl:1": 120.0,
    "intel-rapl:1:0": 80.0,
    "intel-rapl:1:1": 30.0,
}
NAMES = dict(zip(WATTS, ("package-0", "core", "dram", "package-1", "core", "dram"), strict=True))
RANGE_UJ = 262_143_328_850


class Powercap:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "intel-rapl").mkdir(parents=True)  # the driver itself: no zone
        for zone, name in NAMES.items():
            folder = root / zone
            folder.mkdir()
            (folder / "name").write_text(f"{name}\n")
            (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            self.set(zone, 0)

    def file(self, zone: str) -> Path:
        return self.root / zone / "energy_uj"

    def set(self, zone: str, energy_uj: int) -> None:
        self.file(zone).write_text(f"{energy_uj}\n")

    def advance(self, seconds: float) -> None:
        """Let every zone use its power for a while; counters start again at 0 past their range."""
        for zone, watts in WATTS.items():
            now_uj = int(self.file(zone).read_text()) + round(watts * seconds * 1e6)
            self.set(zone, now_uj % RANGE_UJ)
