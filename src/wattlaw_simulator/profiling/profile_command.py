"""``wattlaw profile``: the profile of a workload, for the simulator."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from wattlaw.cli.common.options import option, parse_json_object
from wattlaw.common.files import write_text
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue


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
    text = _json_with_rows(measured.model_dump(mode="json"), "kernels")
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


def _json_with_rows(data: dict[str, Any], rows: str) -> str:
    items = ",\n".join(f"    {json.dumps(item)}" for item in data[rows])
    lines = [f"  {json.dumps(key)}: {json.dumps(data[key])}" for key in data if key != rows]
    return "{\n" + ",\n".join([*lines, f'  "{rows}": [\n{items}\n  ]']) + "\n}\n"
