"""The workloads there are, by name, and their options checked before anything runs."""

import importlib
import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from wattlaw import registry
from wattlaw.errors import BadInput
from wattlaw.study.model import Study, WorkloadSpec
from wattlaw.workloads.workload import Entry, Work, Workload

GROUP = "wattlaw.workloads"


def entries() -> list[Entry]:
    """Return every registered workload, sorted by name."""
    return [entry(name) for name in registry.names(GROUP)]


def entry(name: str) -> Entry:
    """Return a registered workload.

    Raises
    ------
    BadInput
        There is none of that name.
    """
    found: Entry = registry.load(GROUP, name)
    return found


def checked(study: Study) -> Study:
    """Return the study with its workloads' options validated and reduced to what differs.

    An option given at its default is left out, so that it is the same run as one not given.

    Raises
    ------
    BadInput
        An unknown workload or option, or a value that the workload does not allow.
    """
    specs = []
    for index, spec in enumerate(study.workloads):
        if spec.command is not None:
            if shutil.which(spec.command[0]) is None and "{" not in spec.command[0]:
                raise BadInput(
                    f"workloads[{index}].command: given {spec.command[0]!r:.80}; "
                    "allowed: a program that is there"
                )
            specs.append(spec)
            continue
        options = _options(spec, f"workloads[{index}]").model_dump(
            mode="json", exclude_defaults=True
        )
        specs.append(WorkloadSpec(name=spec.name, options=options))
    return study.model_copy(update={"workloads": tuple(specs)})


def work(spec: WorkloadSpec) -> Work | None:
    """Return the work of an epoch of a workload, where it is known before anything has run."""
    if spec.command is not None:
        return None
    count = entry(spec.name).work
    return count(_options(spec, spec.name)) if count is not None else None


def make_data(name: str, folder: Path, size: int, seed: int) -> None:
    """Write a small data set in the format that a workload reads.

    Raises
    ------
    BadInput
        There is no such workload, it reads no files, the folder has something in it, or size or
        seed cannot be.
    """
    where = entry(name).make_data
    if where is None:
        raise BadInput(f"workloads make-data: {name} reads no files")
    if size < 1:
        raise BadInput(f"workloads make-data: --size {size}; allowed: a whole number >= 1")
    if not 0 <= seed < 2**32:  # of more, torch takes the last 32 bits
        raise BadInput(f"workloads make-data: --seed {seed}; allowed: 0 to 2^32 - 1")
    module, _, function = where.partition(":")
    getattr(importlib.import_module(module), function)(folder, size, seed)


def build(spec: WorkloadSpec) -> Workload:
    """Return the workload that a run trains; imports what it needs, torch first of all."""
    module, _, name = entry(spec.name).factory.partition(":")
    factory: Any = getattr(importlib.import_module(module), name)
    workload: Workload = factory(_options(spec, spec.name))
    return workload


def _options(spec: WorkloadSpec, place: str) -> BaseModel:
    try:
        options = entry(spec.name).options
    except BadInput as error:
        raise BadInput(f"{place}.name: {error}") from None
    try:
        return options.model_validate(spec.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:  # options that do not go together
            raise BadInput(
                f"{place}.options: {first['msg'].removeprefix('Value error, ')}"
            ) from None
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(options.model_fields) or "none"
            raise BadInput(f"{place}.options.{key}: unknown key; allowed: {allowed}") from None
        field = options.model_fields.get(str(first["loc"][0]))
        allowed = (field.description if field else None) or first["msg"]
        given = spec.options.get(key)
        raise BadInput(f"{place}.options.{key}: given {given!r}; allowed: {allowed}") from None
