"""A virtual environment that lacks some of the packages of this one."""

import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def python_without(folder: Path, *packages: str) -> Path:
    """Return its Python. It lacks what begins with the names; the rest are links."""
    base = Path(sys._base_executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site, python = folder / "lib" / version / "site-packages", folder / "bin" / "python"
    site.mkdir(parents=True)
    python.parent.mkdir()
    python.symlink_to(base)
    config = f"home = {base.parent}\ninclude-system-site-packages = false\n"
    (folder / "pyvenv.cfg").write_text(config)
    (site / "aa.pth").write_text(f"{SOURCE}\n")
    for place in map(Path, sys.path):
        for entry in place.glob("*") if place.name == "site-packages" else ():
            is_without = entry.name.lower().startswith(packages)
            if not is_without and entry.suffix != ".pth" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return python
