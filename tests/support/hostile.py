"""Folders with a module of every name that is imported anywhere; each leaves a mark."""

import os
import subprocess
import sys
from pathlib import Path

#: Not of the standard library; ``evil_plugin`` is what the hostile entry points name.
OTHERS = (
    "altair", "evil_plugin", "h5py", "jinja2", "numpy", "pandas", "psutil", "pyarrow",
    "pydantic", "pydantic_core", "pynvml", "rich", "scipy", "sitecustomize", "sklearn",
    "statsmodels", "tensorflow", "torch", "triton", "typer", "usercustomize", "vl_convert",
    "wattlaw", "yaml",
)  # fmt: skip
GROUPS = (
    "wattlaw.devices", "wattlaw.limiters", "wattlaw.launchers", "wattlaw.workloads",
    "torchrun.logs_specs", "torch.backends", "pydantic",
)  # fmt: skip
#: Python itself imports these for ``python -m wattlaw``, before any line of ours.
BEFORE_US = {
    "collections", "contextlib", "functools", "importlib", "keyword", "operator", "reprlib",
    "types", "warnings", "wattlaw",
}  # fmt: skip


class Hostile:
    """A hostile folder; it also has a distribution with entry points of every group."""

    def __init__(self, folder: Path, *, without: set[str] = frozenset()) -> None:
        self.folder, self._marks = folder, folder / "marks"
        folder.mkdir(exist_ok=True)
        code = (
            "import posix, sys\n"  # open() is not there when Python imports ``encodings``
            f"file = posix.open({str(self._marks)!r}, {os.O_CREAT | os.O_WRONLY | os.O_APPEND})\n"
            'line = f\'{__name__} {getattr(sys, "orig_argv", "")}\\n\'\n'
            "posix.write(file, line.encode())\nraise RuntimeError('hostile')\n"
        )
        for name in {*sys.stdlib_module_names, *OTHERS} - without:
            (folder / f"{name}.py").write_text(code)
        info = folder / "evil-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        points = "".join(f"[{group}]\nevil = evil_plugin:Evil\n" for group in GROUPS)
        (info / "entry_points.txt").write_text(points)

    @property
    def imported(self) -> list[str]:
        """Return what was imported from here, and by which command lines."""
        return self._marks.read_text().splitlines() if self._marks.exists() else []

    def does(self, *line: object, **variables: str) -> str:
        """Run a command line in the folder, which imports nothing there; return its output."""
        done = subprocess.run(
            list(map(str, line)), cwd=self.folder, env=os.environ | variables,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert self.imported == []
        assert done.returncode == 0, done.stderr
        return done.stdout
