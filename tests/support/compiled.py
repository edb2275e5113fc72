"""Builds the library of a fake driver with gcc, once per content of its source."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


def compiled(source: str, soname: str, inside: str = "") -> Path:
    """Return the folder that holds the library; ``inside`` is a folder below that of the source."""
    flags = [*FLAGS, f"-Wl,-soname,{soname}"]
    digest = hashlib.sha256((source + " ".join(flags)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"wattlaw-fake-{os.getuid()}" / digest / inside
    if (folder / soname).exists():
        return folder
    if shutil.which("gcc") is None:
        raise RuntimeError(f"the fake library {soname} has to be compiled: install gcc")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        code, built = Path(made) / "source.c", Path(made) / soname
        code.write_text(source)
        line = ["gcc", *flags, str(code), "-o", str(built), "-lm", "-pthread"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"gcc could not build the fake library {soname}:\n{done.stderr}")
        built.replace(folder / soname)
    return folder
