"""The workloads there are, by name, and their options checked before anything runs."""

import importlib
from typing import Any

from pydantic import BaseModel, ValidationError

from wattlaw import registry
from wattlaw.errors import BadInput
from wattlaw.study.model import Study, WorkloadSpec
from wattlaw.workloads.workload import Entry, Workload

GROUP = "wattlaw.workloads"


def entries() -> list[Entry]:
    """Return every registered workload, sorted by name."""
    return [registry.load(GROUP, name) for name in registry.names(GROUP)]


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
        options = _options(spec, f"workloads[{index}]").model_dump(
            mode="json", exclude_defaults=True
        )
        specs.append(WorkloadSpec(name=spec.name, options=options))
    return study.model_copy(update={"workloads": tuple(specs)})


def build(spec: WorkloadSpec) -> Workload:
    """Return the workload that a run trains; imports what it needs, torch first of all."""
    entry: Entry = registry.load(GROUP, spec.name)
    module, _, name = entry.factory.partition(":")
    factory: Any = getattr(importlib.import_module(module), name)
    workload: Workload = factory(_options(spec, spec.name))
    return workload


def _options(spec: WorkloadSpec, place: str) -> BaseModel:
    try:
        entry: Entry = registry.load(GROUP, spec.name)
    except BadInput as error:
        raise BadInput(f"{place}.name: {error}") from None
    try:
        return entry.options.model_validate(spec.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(entry.options.model_fields) or "none"
            raise BadInput(f"{place}.options.{key}: unknown key; allowed: {allowed}") from None
        field = entry.options.model_fields.get(str(first["loc"][0])) if first["loc"] else None
        allowed = (field.description if field else None) or first["msg"]
        given = spec.options.get(key)
        raise BadInput(f"{place}.options.{key}: given {given!r}; allowed: {allowed}") from None
