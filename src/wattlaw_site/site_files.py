"""``wattlaw site-files``: the scripts that a site's administrators install."""

import os
import re
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.options import option
from wattlaw.common.errors import BadInput
from wattlaw.common.files import replacing

_MODES = {"prolog.sh": 0o755, "epilog.sh": 0o755, "site.yaml": 0o644, "wattlaw.conf": 0o644}
#: These characters need no quoting, neither in the shell nor for systemd.
_PLAIN = re.compile(r"/[A-Za-z0-9_./+-]+")


def site_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    python: Annotated[
        str, option("PATH", "Python on the nodes with wattlaw installed, owned by root.")
    ] = sys.executable,
) -> int:
    """Write the Slurm prolog and epilog that let jobs set limits."""
    for path in write_site_files(folder, python):
        print(path)
    return 0


def write_site_files(folder: Path, python: str) -> list[Path]:
    """Write prolog, epilog, an example site file, and a systemd drop-in for slurmd into a folder.

    ``python`` is the path of a Python with wattlaw on the nodes, which only root may write. Raises
    ``BadInput`` if it is not absolute or has characters that need quoting, or a file exists.
    """
    if not _PLAIN.fullmatch(python):
        raise BadInput(f"{python!a}: not an absolute path of letters, digits and _ . / + -")
    paths = [folder / name for name in _MODES]
    for path in paths:
        if path.exists() or path.is_symlink():
            raise BadInput(f"{path} exists; it is not overwritten")
    squeue = shutil.which("squeue")
    search = [str(Path(squeue).parent)] if squeue and _PLAIN.fullmatch(squeue) else []
    search += [name for name in ("/usr/bin", "/bin") if name not in search]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            file = resources.files("wattlaw_site").joinpath("slurm", path.name)
            text = file.read_text("utf-8").replace("@PYTHON@", python)
            with replacing(path, mode=_MODES[path.name]) as temporary:
                temporary.write_bytes(os.fsencode(text.replace("@PATH@", ":".join(search))))
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written: {error.strerror}") from None
    return paths
