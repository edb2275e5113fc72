"""A meter of simulated devices, for tests of the sampler.

Its devices exist only if ``WATTLAW_SIMULATED`` names a JSON file with a list of ids; each draws
300 W. Their samples are marked ``simulated``.
"""

import json
import os
import time
from pathlib import Path
from typing import Self

from wattlaw.measure.devices.meter import Device, Meter, Sample, Target

POWER_W = 300.0


class SimulatedMeter(Meter):
    def __init__(self, ids: list[str], period_s: float) -> None:
        self._ids, self.period_s = ids, period_s
        self._start_ns = time.time_ns()

    @classmethod
    def open(cls, target: Target) -> Self:
        path = os.environ.get("WATTLAW_SIMULATED")
        return cls(json.loads(Path(path).read_text()) if path else [], target.period_s)

    def devices(self) -> list[Device]:
        return [Device(name, "gpu", "simulated") for name in self._ids]

    def read(self, *, last: bool = False) -> list[Sample]:
        t_ns = time.time_ns()
        energy_j = POWER_W * (t_ns - self._start_ns) * 1e-9
        given = {"power_w": POWER_W, "energy_j": energy_j, "power_source": "simulated"}
        return [Sample(name, "gpu", t_ns, **given) for name in self._ids]
