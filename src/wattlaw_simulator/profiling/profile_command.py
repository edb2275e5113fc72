"""``wattlaw profile``: the profile of a workload, for the simulator."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from wattlaw.cli.common.options import option
from wattlaw.common.errors import BadInput
from wattlaw.common.files import read_input, write_text
from wattlaw.common.text import quote
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.profile import WorkloadProfile

_MAX_FILE_BYTES = 5_000_000


def parse_json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        example = """'{"image_size": 160}'"""
        raise BadInput(
            f"{name}: {quote(text)} is not valid; expected a JSON object such as {example}"
        )
    return value


def profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Workload.")],
    options: Annotated[str, option("JSON", "Options of the workload, a JSON object.")] = "{}",
    output: Annotated[
        Path | None, option("FILE", "File to write. Default: print.", "-o", "--output")
    ] = None,
) -> int:
    """Write the profile of a workload for the simulator."""
    values = parse_json_object("--options", options)
    catalogue.entry(name)  # raises BadInput for an unknown name
    spec = catalogue.without_defaults(WorkloadSpec(name=name, options=values))
    catalogue.check_installed(spec)

    from wattlaw_simulator.profiling.profiler import measure_profile

    measured = measure_profile(spec)
    data = measured.model_dump(mode="json")
    rows = ",\n".join(f"    {json.dumps(row)}" for row in data.pop("kernels"))
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    text = "{\n" + ",\n".join([*lines, f'  "kernels": [\n{rows}\n  ]']) + "\n}\n"
    if output is None:
        print(text, end="")
        return 0
    write_text(output, text)
    kernels = sum(row.count for row in measured.kernels)
    print(
        f"{output}: {name}, {measured.parameters:,} parameters, {kernels:,.0f} kernels per step, "
        f"{measured.flops_per_sample:.4g} operations per sample"
    )
    return 0


def read_profile(path: Path) -> WorkloadProfile:
    try:
        return WorkloadProfile.model_validate_json(read_input(path, _MAX_FILE_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        reason = " ".join(first["msg"].removeprefix("Value error, ").split())
        place = f"{path}: {key}" if key else f"{path}"
        raise BadInput(f"{place}: {reason}; allowed: what 'wattlaw profile' writes") from None
