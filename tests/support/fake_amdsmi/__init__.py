"""Machines with AMD GPUs: the kernel's files, and a library for amdsmi's real Python binding.

Names, units and the layout of the files are those of the kernel's documentation
(gpu/amdgpu/thermal.rst, gpu/amdgpu/driver-misc.rst, hwmon/sysfs-interface.rst) and of its driver
amdgpu (amdgpu_pm.c; aldebaran_ppt.c, by which the second GPU of an MI250X shows a power and a limit
of 0; smu_v13_0_6_ppt.c, by which an MI300X has power1_input and no power1_average). Ids are those
of the PCI ID database; limits are the boards' published ones (MI210 300 W, MI250X 560 W, MI300X
750 W, RX 7900 XTX 339 W). The GPUs of a Frontier or LUMI node have the bus ids c1, c6, c9, ce, ....
"""

import ctypes
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from compiled import compiled

VARIABLE = "WATTLAW_FAKE_AMDSMI"
SOURCE = Path(__file__).with_name("amdsmi.c")
SONAME = "libamd_smi.so"
#: Joules of one unit of the energy counter, as the fake library states them.
UNIT_J = ctypes.c_float(15.3).value * 1e-6
BUSES = ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")

_SENSORS = {
    "temp1_label": "edge",
    "temp1_input": 41000,
    "temp2_label": "junction",
    "temp2_input": 45000,
    "power1_label": "PPT",
    "power1_average": 96_000_000,
    "power1_cap": 217_000_000,
    "power1_cap_default": 250_000_000,
    "power1_cap_min": 100_000_000,
    "power1_cap_max": 260_000_000,
}
_FILES = {
    "vendor": "0x1002",
    "gpu_busy_percent": 87,
    "mem_busy_percent": 31,
    "mem_info_vram_used": 2 << 30,
    "mem_info_vram_total": 64 << 30,
    "pp_dpm_sclk": "0: 500Mhz\n1: 800Mhz *\n2: 1700Mhz",
    "pp_dpm_mclk": "0: 400Mhz\n1: 1600Mhz *",
}
#: What differs between models, in the device's folder and among its sensors.
MODELS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "MI210": ({"device": "0x740f", "product_name": "AMD INSTINCT MI210"}, {"temp1_label": "edge"}),
    "MI250X": ({"device": "0x7408"}, {"power1_cap_min": 0}),
    "MI300X": (
        {
            "device": "0x74a1",
            "current_compute_partition": "SPX",
            "pp_dpm_sclk": "S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz",
        },
        {"power1_average": None, "power1_input": 141_000_000, "temp1_label": None,
         "temp1_input": None},
    ),
    "RX 7900 XTX": ({"device": "0x744c", "unique_id": None, "product_name": None}, {}),
}  # fmt: skip
#: The second GPU of an MI250X.
SECONDARY = dict.fromkeys(("power1_average", "power1_cap", "power1_cap_default"), 0)


@dataclass
class Gpu:
    """One GPU: its folder below ``sys/devices``, and the folder of the fake library."""

    bus_id: str
    folder: Path
    smi: Path
    unique_id: str | None

    @property
    def id(self) -> str:
        return f"AMD-{self.unique_id or self.bus_id}"

    @property
    def hwmon(self) -> Path:
        return next((self.folder / "hwmon").iterdir())

    @property
    def limit_uw(self) -> int | None:
        """Return its power limit, None while somebody writes it."""
        text = (self.hwmon / "power1_cap").read_text().strip()
        return int(text) if text else None

    @property
    def limit_mw(self) -> int | None:
        """Return its power limit as a fake NVIDIA board has it."""
        limit_uw = self.limit_uw  # read once: another process writes the file
        return None if limit_uw is None else limit_uw // 1000

    @limit_mw.setter
    def limit_mw(self, value: int) -> None:
        self.set(power1_cap=value * 1000)

    def set(self, **values: object) -> None:
        """Write files of the device and, where the name is one of a sensor, of its sensors."""
        for name, value in values.items():
            is_sensor = re.match(r"(power|temp|energy|in)\d", name)
            write(self.hwmon if is_sensor else self.folder, name, value)

    def set_smi(self, **values: object) -> None:
        """Write what the library says; None: it says that a value is not available."""
        for name, value in values.items():
            write(self.smi, name, value)

    def use(self, joules: float) -> None:
        now = int((self.smi / "energy_accumulator").read_text())
        self.set_smi(energy_accumulator=now + round(joules / UNIT_J))

    def remove(self) -> None:
        for folder in (self.folder, self.smi):
            shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, name: str, value: object) -> None:
    """Write a file, or remove it."""
    if value is None:
        (folder / name).unlink(missing_ok=True)
    else:
        (folder / name).write_text(f"{value}\n")


class AmdMachine:
    def __init__(
        self, root: Path, model: str = "MI210", count: int = 2, *, library: bool = True
    ) -> None:
        self.root, self.model, self.has_library = root, model, library
        self.sys = root / "sys"
        (self.sys / "class/drm").mkdir(parents=True)
        (self.sys / "class/drm/version").write_text("drm 1.1.0 20060810\n")
        (root / "smi").mkdir()
        # card0, the graphics of a server's management processor, which is no GPU.
        console = self.sys / "devices/pci0000:00/0000:03:00.0"
        (console / "drm/card0").mkdir(parents=True)
        write(console, "vendor", "0x1a03")
        self._link(console, "card0")
        self.gpus = [self._add(place) for place in range(count)]

    def _link(self, folder: Path, name: str) -> None:
        (folder / "drm" / name / "device").symlink_to("../..")
        target = os.path.relpath(folder / "drm" / name, self.sys / "class/drm")
        (self.sys / "class/drm" / name).symlink_to(target)

    def _add(self, place: int) -> Gpu:
        bus_id = f"0000:{BUSES[place]}:00.0"
        folder = self.sys / f"devices/pci0000:{BUSES[place]}" / bus_id
        card, render = f"card{place + 1}", f"renderD{128 + place}"
        for part in (f"drm/{card}", f"drm/{render}", f"hwmon/hwmon{place + 3}"):
            (folder / part).mkdir(parents=True)
        for name in (card, render):
            self._link(folder, name)
        (self.sys / "class/drm" / f"{card}-DP-1").mkdir()
        (smi := self.root / "smi" / bus_id).mkdir()
        files, sensors = MODELS[self.model]
        unique_id = f"{0xB45D0000DEADBEE0 + place:016x}"
        files = _FILES | {"unique_id": unique_id} | files
        gpu = Gpu(bus_id, folder, smi, unique_id if files["unique_id"] else None)
        write(gpu.hwmon, "name", "amdgpu")
        gpu.set(**files, **(_SENSORS | sensors))
        if self.model == "MI250X" and place % 2:
            gpu.set(**SECONDARY)
        nodes = self.sys / "class/kfd/kfd/topology/nodes"
        for node, minor in ((0, 0), (place + 1, 128 + place)):
            (nodes / str(node)).mkdir(parents=True, exist_ok=True)
            write(nodes / str(node), "properties", f"cpu_cores_count 0\ndrm_render_minor {minor}")
        gpu.set_smi(energy_accumulator=5_000_000_000)
        return gpu

    @property
    def ids(self) -> list[str]:
        return [gpu.id for gpu in self.gpus]

    def clear_faults(self) -> None:
        """Do what a fake NVIDIA driver does: nothing is wrong here."""

    def __getitem__(self, place: int) -> Gpu:
        return self.gpus[place]

    def environment(self) -> dict[str, str]:
        found = {"WATTLAW_SYSFS_ROOT": str(self.sys), VARIABLE: ""}
        if self.has_library:
            library_folder()
            found |= {VARIABLE: str(self.root / "smi"), "ROCM_PATH": str(library_folder().parent)}
        return found


def library_folder() -> Path:
    """Return the folder that has the library.

    It has every function of the installed binding, which looks up all of them when it is imported.
    """
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package amdsmi is not installed: make setup")
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    functions = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    own = SOURCE.read_text()
    stubs = "".join(
        f"int {name}(void) {{ return NOT_SUPPORTED; }}\n"
        for name in sorted(functions)
        if not re.search(rf"\b{name}\(", own)
    )
    return compiled(own + stubs, SONAME, "lib")
