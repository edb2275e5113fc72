"""Reads and writes calibration files: JSON, validated when it is read."""

import json
from pathlib import Path

import numpy as np

from wattlaw.errors import BadInput
from wattlaw.simulator.calibration import NAMES, Calibration
from wattlaw.simulator.cluster import Gpu
from wattlaw.study.document import read_document

_WORK = "work:"
_MAX_COVARIANCE = 1e300  # eigenvalues of larger ones overflow


def calibration_json(calibration: Calibration) -> str:
    """Return the text of a calibration's file, with a line for each key and row."""
    data = calibration.model_dump(mode="json")
    rows = ",\n".join(f"    {json.dumps(row)}" for row in data.pop("covariance"))
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join([*lines, f'  "covariance": [\n{rows}\n  ]']) + "\n}\n"


def read_calibration(path: Path, gpu: Gpu | None = None) -> Calibration:
    """Return the calibration of a file that ``wattlaw calibrate`` wrote.

    Parameters
    ----------
    path
        The file.
    gpu
        The board to simulate; None accepts a calibration of any board.

    Raises
    ------
    BadInput
        It cannot be read, is not a calibration, or is of another board: one line with the file, the
        key, the given value and what is allowed.
    """
    calibration = read_document(path, Calibration, "calibration file")
    fault = _fault(calibration)
    if fault is not None:
        raise BadInput(f"{path}: {fault}; allowed: what 'wattlaw calibrate' writes")
    if gpu is not None and calibration.gpu != gpu.name:
        raise BadInput(
            f"{path}: gpu: given {calibration.gpu!a:.80}; allowed for this hardware: {gpu.name}"
        )
    return calibration


def _fault(calibration: Calibration) -> str | None:
    """Return what is inconsistent in a calibration, or None."""
    factors = tuple(f"{_WORK}{name}" for name in calibration.work_factors)
    if calibration.names != (*NAMES, *factors):
        return "names: not the parameters of this version followed by the workloads"
    size, rows = len(calibration.names), calibration.covariance
    if len(rows) != size or any(len(row) != size for row in rows):
        return f"covariance: not {size} rows of {size} numbers"
    covariance = np.array(rows)
    scale = float(np.abs(covariance).max())
    if scale > _MAX_COVARIANCE:
        return f"covariance: a number beyond {_MAX_COVARIANCE:g}"
    least = float(np.linalg.eigvalsh((covariance + covariance.T) / 2)[0])
    if not np.allclose(covariance, covariance.T, atol=1e-6 * scale) or least < -1e-6 * scale:
        return "covariance: not symmetric and positive semidefinite"
    return None
