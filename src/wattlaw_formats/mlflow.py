"""MLflow's file store: ``mlruns/EXPERIMENT/RUN`` with ``meta.yaml``, ``metrics``, ``params``.

A metric is a file with a line ``TIME_IN_MS VALUE STEP`` for each value.
"""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from wattlaw.common.errors import BadInput
from wattlaw.common.files import open_regular, read_input
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_BYTES, Source, count, ns_of, number
from wattlaw.importing.runs import HOST
from wattlaw_formats import scalars
from wattlaw_formats.scalars import MAX_STEPS

_META, _PARTS = "meta.yaml", ("metrics", "params", "tags")
_MAX_FILES, _MAX_META, _MAX_PARAM = 10_000, 2**16, 8192
_GPU = re.compile(r"system/(?:(.{1,100})/)?gpu_(\d{1,3})_(\w+)")
_COLUMNS = {"power_usage_watts": ("power_w", 1.0), "utilization_percentage": ("sm_util", 0.01)}
#: Of ``meta.yaml``, other than finished (3).
_STATUS = {1: "is not finished", 2: "was not started", 4: "failed", 5: "was killed"}


class RunImporter:
    name = "mlflow"
    description = "folder of a run in MLflow's file store (mlruns/EXPERIMENT/RUN)"
    mapped = scalars.MAPPED

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        if path.name == _META:
            return _is_run(path.parent)
        return any(each.name in _PARTS and _is_run(each.parent) for each in [*path.parents][:20])

    def files_of(self, path: Path) -> list[Path]:
        if not _is_run(path):
            return []
        files = (each for part in _PARTS for each in (path / part).rglob("*") if each.is_file())
        return [path / _META, *sorted(islice(files, _MAX_FILES))]

    def read(self, source: Source, options: Options) -> Imported:
        path = source.path
        folder = path if path.is_dir() else path.parent
        if path not in (folder, folder / _META):
            raise BadInput(f"{path}: a part of a run of MLflow; name the folder of the run")
        meta = _read_yaml(folder / _META)
        if "run_id" not in meta:
            raise BadInput(f"{path}: no run_id; not a run of MLflow")
        if meta.get("lifecycle_stage") == "deleted":
            raise BadInput(f"{path}: a run that was deleted in MLflow")
        files = self.files_of(folder)
        if len(files) > _MAX_FILES:
            raise BadInput(f"{path}: a run with more than {_MAX_FILES:,} files")
        name = _read_yaml(folder.parent / _META).get("name")
        run = scalars.Logged(source, "MLflow run", str(name or folder.parent.name)[:200])
        if (status := _STATUS.get(meta.get("status", 3))) is not None:
            run.notes.append(f"the run {status}")
        for file in files[1:]:
            part, *names = file.relative_to(folder).parts
            if part == "params":
                with open_regular(file) as content:
                    text = content.read(_MAX_PARAM).decode("utf-8", "replace").strip()
                known = number(text)
                run.config["/".join(names)] = text if known is None else count(text) or known
            elif part == "metrics":
                _read_metric(run, file, "/".join(names))
        return run.imported(options)


def _read_metric(run: scalars.Logged, file: Path, tag: str) -> None:
    text, gpu = read_input(file, MAX_BYTES).decode("utf-8", "replace"), _GPU.fullmatch(tag)
    account = run.source.account
    lines = (line for line in text.split("\n") if line.strip())
    for row, line in run.source.items(lines, "line"):
        cells = [*line.split(), "", "", "0"]
        time_s, value = (number(cell) for cell in cells[:2])
        t_ns = None if time_s is None else ns_of(time_s / 1000)
        step = count(cells[2], most=MAX_STEPS)
        if t_ns is None or value is None or step is None:
            account.leave_out("no time, value and step", row)
        elif gpu is not None and gpu[3] in _COLUMNS:
            column, scale = _COLUMNS[gpu[3]]
            run.add_reading(row, gpu[1] or HOST, gpu[2], t_ns, {column: value * scale})
        elif tag.startswith("system/"):
            account.leave_out("a system metric that is not used", row)
        else:
            run.add_scalar(row, tag, step, t_ns * 1e-9, value)


def _is_run(folder: Path) -> bool:
    """Say whether a folder is that of a run, and not of an experiment or of a logged model."""
    is_model = folder.parent.name == "models"
    return not is_model and (folder / _META).is_file() and (folder / "metrics").is_dir()


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(read_input(path, _MAX_META)) if path.is_file() else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        raise BadInput(f"{path}: not a YAML file") from None
    return read if isinstance(read, dict) else {}


IMPORTER = RunImporter()
