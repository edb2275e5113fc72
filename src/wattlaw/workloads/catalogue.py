"""The registered workloads by name, and the validation of their options."""

import contextlib
import importlib.util
import inspect
import os
import shutil
import sys
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

from pydantic import BaseModel, ValidationError

from wattlaw.common import registry
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.text import quote
from wattlaw.study.model import Study, WorkloadSpec
from wattlaw.workloads.profile import WorkloadProfile
from wattlaw.workloads.workload import Entry, Work, Workload

GROUP = "wattlaw.workloads"
#: Where ``make setup`` puts a torchvision that does not fit torch, out of the way of scripts.
SEPARATE_TORCHVISION = Path(sys.prefix) / "wattlaw-torchvision"

#: A profile is of a workload if its operations per sample differ by at most this share.
_SAME_WORK = 1e-3


def entry(name: str) -> Entry:
    loaded: Entry = registry.load(GROUP, name)
    return loaded


def entries() -> list[Entry]:
    """One whose add-on is missing is left out; a run of it says what is missing."""
    found = []
    for name in registry.names(GROUP):
        with contextlib.suppress(NotAvailable):
            found.append(entry(name))
    return found


def is_registered(spec: WorkloadSpec) -> bool:
    return spec.command is None and spec.name in registry.names(GROUP)


def checked(study: Study) -> Study:
    """Return the study with validated options, without those at their defaults.

    An option that is set to its default gives the same run id as one that is not set. The launcher
    ``replay``, which trains nothing, accepts any workload.
    """
    specs = []
    for index, spec in enumerate(study.workloads):
        place = f"workloads[{index}]"
        # Nodes may have other programs; a replay starts none.
        if study.launch.kind not in ("slurm", "replay") and _is_missing(spec):
            given = f"given {(spec.command or ('',))[0]!r:.80}"
            raise BadInput(f"{place}.command: {given}; allowed: an installed program")
        # The options of a replay are those of the table.
        is_free = study.launch.kind == "replay" and not is_registered(spec)
        is_as_given = spec.command is not None or is_free
        specs.append(spec if is_as_given else without_defaults(spec, place))
    return study.model_copy(update={"workloads": tuple(specs)})


def _is_missing(spec: WorkloadSpec) -> bool:
    program = spec.command[0] if spec.command else "{"
    return "{" not in program and shutil.which(program) is None


def missing_files(study: Study) -> list[str]:
    """Return what commands lack here; ``BadInput`` for a script that Python is to run here."""
    sentences = []
    for index, spec in enumerate(study.workloads):
        place, words = f"workloads[{index}].command", spec.command or ()
        if _is_missing(spec):
            sentences.append(f"{place}: the program {quote(words[0])} is not installed here")
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        if script is not None and "{" not in script and not Path(script).is_file():
            where = "" if Path(script).is_absolute() else f" in {Path.cwd()}"
            sentence = f"{place}: the script {quote(script)} does not exist{where}"
            is_first = "python" in Path(words[0]).name and words[1] == script
            if is_first and study.launch.kind == "local":
                raise BadInput(sentence)
            sentences.append(sentence)
    return sentences


def without_defaults(spec: WorkloadSpec, place: str | None = None) -> WorkloadSpec:
    options = validated(spec, place).model_dump(mode="json", exclude_defaults=True)
    return WorkloadSpec(name=spec.name, options=options)


def validated(spec: WorkloadSpec, place: str | None = None) -> BaseModel:
    """With defaults. The text of ``BadInput`` begins with ``place``, by default the name."""
    place = place or spec.name
    try:
        options = entry(spec.name).options
    except BadInput as error:
        raise BadInput(
            f"{place}.name: {error}; others are in add-ons that are not installed"
        ) from None
    try:
        return options.model_validate(spec.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if not key:  # options that contradict each other
        raise BadInput(f"{place}.options: {first['msg'].removeprefix('Value error, ')}")
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(options.model_fields) or "none"
        raise BadInput(f"{place}.options.{key}: unknown key; allowed: {allowed}")
    field = options.model_fields.get(str(first["loc"][0]))
    allowed = (field.description if field else None) or first["msg"]
    given = quote(spec.options.get(key))
    raise BadInput(f"{place}.options.{key}: given {given}; allowed: {allowed}")


def build(spec: WorkloadSpec) -> Workload:
    check_installed(spec)
    workload: Workload = resolve_name(entry(spec.name).factory)(validated(spec))
    return workload


def make_data(name: str, folder: Path, size: int, seed: int) -> None:
    function = entry(name).make_data
    if function is None:
        raise BadInput(f"workloads make-data: {name} reads no files")
    check_installed(WorkloadSpec(name=name))
    resolve_name(function)(folder, size, seed)


def missing_packages(study: Study) -> list[str]:
    found = []
    for workload in study.workloads:
        try:
            check_installed(workload)
        except NotAvailable as error:
            found.append(str(error))
    return found


def check_installed(spec: WorkloadSpec) -> None:
    """``NotAvailable``: packages of a workload, or the launcher of a command, are missing."""
    if spec.command is not None:
        check_launch_program(spec.launch_with)
        return
    needed = entry(spec.name)
    missing = [
        name
        for name in needed.modules
        if importlib.util.find_spec(name) is None
        and not (name == "torchvision" and (SEPARATE_TORCHVISION / name).is_dir())
    ]
    if missing:
        raise NotAvailable(
            f"{needed.name} needs {', '.join(missing)}, which cannot be imported; try: "
            f'pip install "wattlaw[{needed.extra}]"'
        )


def check_launch_program(name: str) -> None:
    if name in ("auto", "none"):
        return
    if shutil.which(name) is None:
        raise NotAvailable(
            f"launch_with: {name} is not on PATH; install it, or set launch_with to none or auto"
        )
    if name == "srun" and "SLURM_JOB_ID" not in os.environ:
        raise NotAvailable(
            "launch_with: srun needs an allocation of Slurm; start this in a job (salloc, sbatch), "
            "or with --launch slurm"
        )


def work(spec: WorkloadSpec) -> Work | None:
    count = entry(spec.name).work if is_registered(spec) else None
    return None if count is None else count(validated(spec))


def profile(spec: WorkloadSpec) -> WorkloadProfile:
    """The stored profile with the same operations per sample (within 0.1 %).

    Of several, such as with other optimizers, it is the one whose options agree most.
    """
    if spec.command is not None:
        raise BadInput(f"{spec.name}: a command has no profile; allowed: a workload")
    known, values = work(spec), validated(spec).model_dump(mode="json")

    def agreement(stored: WorkloadProfile) -> int:
        same = [bool(values.get(key) == value) for key, value in stored.options.items()]
        return 2 * sum(same) - len(same)

    similar = [
        stored
        for stored in _stored(spec.name)
        if known and abs(stored.flops_per_sample / known.flops_per_sample - 1) <= _SAME_WORK
    ]
    if not similar:
        raise BadInput(
            f"{spec.name}: no profile is stored for these options; make one: "
            f"wattlaw profile {spec.name} --options '...' -o FILE"
        )
    return max(similar, key=agreement)


@cache
def _stored(name: str) -> tuple[WorkloadProfile, ...]:
    folder = Path(inspect.getfile(entry(name).options)).parent / "profiles"
    files = sorted(folder.glob(f"{name}*.json"))
    profiles = [WorkloadProfile.model_validate_json(file.read_text("utf-8")) for file in files]
    return tuple(profile for profile in profiles if profile.workload == name)
