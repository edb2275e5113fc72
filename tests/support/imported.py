"""What the tests of imports share: small files, and what became of them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.api.imports import Import
from wattlaw.cli.main import main
from wattlaw.store.store import Store, read_stores

POWER = "power.draw [W]"


def a_file(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def made(folder: Path, name: str, *lines: str, encoding: str = "utf-8") -> Path:
    return a_file(folder / name, "".join(f"{line}\n" for line in lines).encode(encoding))


def smi(rows: dict[float, str], *columns: str, sep: str = ", ") -> list[str]:
    """Return a log of nvidia-smi: the cells of each row by its seconds."""
    times = {s: f"2026/09/11 04:{19 + int(s // 60):02}:{s % 60:06.3f}" for s in rows}
    return [sep.join(("timestamp", *columns)), *(times[s] + sep + rows[s] for s in rows)]


def windows(read: Import, *phases: str) -> list[dict[str, Any]]:
    """Return the windows of all runs that have one of the phases, or all of them."""
    rows = [dict(row) for run in read.runs for row in run.windows]
    return [row for row in rows if not phases or row["phase"] in phases]


def joules(read: Import) -> list[float]:
    return [sum(row.get("gpu_energy_j") or 0.0 for row in run.windows) for run in read.runs]


def gpus(read: Import) -> list[int]:
    return [run.record.spec.setting.gpus for run in read.runs]


def verdicts(read: Import) -> set[str]:
    return {row["energy_verdict"] for run in read.runs for row in run.windows}


def metrics(read: Import, folder: Path) -> pd.DataFrame:
    read.write(folder / "store")
    return run_metrics(*read_stores([Store(folder / "store")]))


def notes(read: Import) -> str:
    return "\n".join(
        [*read.notes, *read.left_out, *(note for file in read.files for note in file.notes)]
    )


def left_out(read: Import) -> dict[str, int]:
    """Return how many rows are left out by reason; the notes of the runs say so too."""
    known = {note for run in read.runs for note in run.record.notes}
    reasons = {}
    for file in read.files:
        for each in file.left_out:
            assert any(note.endswith(str(each)) for note in known)
            reasons[each.reason] = each.count
    return reasons


def refusal(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which a file is refused, with exit code 2 and nothing written."""
    store = path.parent / "refused"
    assert main(["import", str(path), "--store", str(store), *arguments]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert path.name in told[0]
    assert not store.exists()
    return told[0]
