"""The registered workloads by name, and the validation of their options."""

import importlib.util
import os
import shutil
import sys
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from wattlaw.common import registry
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import read_input
from wattlaw.common.text import quote
from wattlaw.study.model import Study, WorkloadSpec
from wattlaw.workloads.profile import WorkloadProfile
from wattlaw.workloads.workload import Entry, Work, Workload

GROUP = "wattlaw.workloads"
#: Where ``make setup`` puts a torchvision that does not fit torch, out of the way of scripts.
SEPARATE_TORCHVISION = Path(sys.prefix) / "wattlaw-torchvision"

#: A profile is of a workload if its operations per sample differ by at most this share.
_SAME_WORK = 1e-3
_MAX_FILE_BYTES = 5_000_000


def entries() -> list[Entry]:
    """Return every registered workload, sorted by name."""
    return [entry(name) for name in registry.names(GROUP)]


def entry(name: str) -> Entry:
    """Return a registered workload.

    Raises ``BadInput`` if no workload has this name.
    """
    loaded: Entry = registry.load(GROUP, name)
    return loaded


def checked(study: Study) -> Study:
    """Return the study with validated options, without those at their defaults.

    An option that is set to its default gives the same run id as one that is not set. The launcher
    ``replay``, which trains nothing, accepts any workload.

    Raises ``BadInput`` for an unknown workload or option, or a value that is not allowed.
    """
    specs = []
    for index, spec in enumerate(study.workloads):
        if spec.command is not None:
            is_here = shutil.which(spec.command[0]) is not None or "{" in spec.command[0]
            # Nodes may have other programs; a replay starts none.
            if not is_here and study.launch.kind not in ("slurm", "replay"):
                raise BadInput(
                    f"workloads[{index}].command: given {spec.command[0]!r:.80}; "
                    "allowed: an installed program"
                )
            specs.append(spec)
            continue
        if study.launch.kind == "replay" and not is_registered(spec):
            specs.append(spec)  # its options are those of the table
            continue
        specs.append(without_defaults(spec, f"workloads[{index}]"))
    return study.model_copy(update={"workloads": tuple(specs)})


def without_defaults(spec: WorkloadSpec, place: str | None = None) -> WorkloadSpec:
    """Return a workload with options ``validated``, without those at their defaults."""
    options = validated(spec, place).model_dump(mode="json", exclude_defaults=True)
    return WorkloadSpec(name=spec.name, options=options)


def is_registered(spec: WorkloadSpec) -> bool:
    """Say whether a workload is a registered one, not a command or a name of a table."""
    return spec.command is None and spec.name in registry.names(GROUP)


def work(spec: WorkloadSpec) -> Work | None:
    """Return the work of an epoch of a workload, where it is known before a run."""
    if not is_registered(spec):
        return None
    count = entry(spec.name).work
    return count(validated(spec)) if count is not None else None


def profile(spec: WorkloadSpec) -> WorkloadProfile:
    """Return the stored profile of a workload.

    It is of the same workload and has the same operations per sample (within 0.1 %). Of several,
    such as with other optimizers, it is the one whose options agree most.

    Raises ``BadInput`` if no profile is stored for these options, or the workload is a command.
    """
    if spec.command is not None:
        raise BadInput(f"{spec.name}: a command has no profile; allowed: a workload")
    known, options = work(spec), validated(spec)
    values = options.model_dump(mode="json")
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

    def agreement(stored: WorkloadProfile) -> int:
        same = [bool(values.get(key) == value) for key, value in stored.options.items()]
        return 2 * sum(same) - len(same)

    return max(similar, key=agreement)


def read_profile(path: Path) -> WorkloadProfile:
    """Return the profile of a file that ``wattlaw profile`` wrote.

    Raises ``BadInput`` if it cannot be read or is not such a file: one line with the key and the
    reason.
    """
    try:
        return WorkloadProfile.model_validate_json(read_input(path, _MAX_FILE_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        reason = " ".join(first["msg"].removeprefix("Value error, ").split())
        place = f"{path}: {key}" if key else f"{path}"
        raise BadInput(f"{place}: {reason}; allowed: what 'wattlaw profile' writes") from (None)


@cache
def _stored(name: str) -> tuple[WorkloadProfile, ...]:
    """Return the profiles of a workload that ship with this package."""
    files = sorted(resources.files("wattlaw.workloads").joinpath("profiles").iterdir(), key=str)
    texts = [file.read_text("utf-8") for file in files if file.name.startswith(name)]
    profiles = [WorkloadProfile.model_validate_json(text) for text in texts]
    return tuple(profile for profile in profiles if profile.workload == name)


def make_data(name: str, folder: Path, size: int, seed: int) -> None:
    """Write a small data set in the format that a workload reads.

    Raises ``BadInput`` if the workload is unknown or reads no files, the folder is not empty, or
    size is too small.
    """
    function = entry(name).make_data
    if function is None:
        raise BadInput(f"workloads make-data: {name} reads no files")
    check_installed(WorkloadSpec(name=name))
    _imported(function)(folder, size, seed)


def _imported(name: str) -> Any:
    """Return an object by its name, ``module:object``."""
    return EntryPoint("", name, "").load()


def check_installed(spec: WorkloadSpec) -> None:
    """Check that the packages of a workload, or the launcher of a command, are installed.

    Raises ``NotAvailable`` if any is missing: one line names them and how to install them.
    """
    if spec.command is not None:
        check_launch_program(spec.launch_with)
        return
    needed = entry(spec.name)
    missing = [name for name in needed.modules if not _is_installed(name)]
    if missing:
        raise NotAvailable(
            f"{needed.name} needs {', '.join(missing)}, which cannot be imported; try: "
            f'pip install "wattlaw[{needed.extra}]"'
        )


def check_launch_program(name: str) -> None:
    """Check that a program of ``launch_with`` can start the ranks of a command here.

    Raises ``NotAvailable`` if it is not installed, or if srun has no allocation.
    """
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


def missing_files(study: Study) -> list[str]:
    """Return a sentence for each script or program of a study's commands that is missing here."""
    sentences = []
    for index, spec in enumerate(study.workloads):
        place, words = f"workloads[{index}].command", spec.command or ()
        if words and "{" not in words[0] and shutil.which(words[0]) is None:
            sentences.append(f"{place}: the program {quote(words[0])} is not installed here")
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        if script is not None and "{" not in script and not Path(script).is_file():
            sentences.append(f"{place}: the script {quote(script)} does not exist")
        if spec.launch_with not in ("auto", "none") and shutil.which(spec.launch_with) is None:
            place = f"workloads[{index}].launch_with"
            sentences.append(f"{place}: {spec.launch_with} is not installed here")
    return sentences


def _is_installed(module: str) -> bool:
    if module == "torchvision" and (SEPARATE_TORCHVISION / module).is_dir():
        return True
    return importlib.util.find_spec(module) is not None


def build(spec: WorkloadSpec) -> Workload:
    """Return the workload of a run; imports torch and its other requirements.

    Raises ``NotAvailable`` if a package that it needs is not installed.
    """
    check_installed(spec)
    workload: Workload = _imported(entry(spec.name).factory)(validated(spec))
    return workload


def validated(spec: WorkloadSpec, place: str | None = None) -> BaseModel:
    """Return the validated options of a workload, with defaults.

    Raises ``BadInput`` for an unknown workload or option, or a value that is not allowed; its text
    begins with ``place``, by default the name of the workload.
    """
    place = place or spec.name
    try:
        options = entry(spec.name).options
    except BadInput as error:
        raise BadInput(f"{place}.name: {error}") from None
    try:
        return options.model_validate(spec.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:  # options that contradict each other
            raise BadInput(
                f"{place}.options: {first['msg'].removeprefix('Value error, ')}"
            ) from None
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(options.model_fields) or "none"
            raise BadInput(f"{place}.options.{key}: unknown key; allowed: {allowed}") from None
        field = options.model_fields.get(str(first["loc"][0]))
        allowed = (field.description if field else None) or first["msg"]
        value = quote(spec.options.get(key))
        raise BadInput(f"{place}.options.{key}: given {value}; allowed: {allowed}") from None
