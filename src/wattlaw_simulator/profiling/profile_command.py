"""``wattlaw profile``: the profile of a workload, for the simulator."""

from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.options import option, parse_json_object
from wattlaw.common.files import write_text
from wattlaw.common.text import json_with_rows
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
    text = json_with_rows(measured.model_dump(mode="json"), "kernels")
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
