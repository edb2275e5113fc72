"""``wattlaw profile``: the profile of a workload, for the simulator."""

import json
from pathlib import Path
from typing import Annotated

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
