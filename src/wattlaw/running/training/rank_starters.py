"""Programs that start ranks themselves, such as torchrun, in the command of a workload.

wattlaw starts a command once per GPU. A program that starts ranks would then start all of them
once per GPU.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from wattlaw.common.errors import BadInput


@dataclass(frozen=True)
class RankStarter:
    """A program that starts ranks.

    ``count`` is the word that says how many ranks it starts on a node; None if nothing says it.
    With ``has_nodes`` others of its kind join it, so that only their number is certain.
    """

    program: str
    count: str | None
    has_nodes: bool = False

    def fault(self, gpus: int) -> str | None:
        """Return what is certainly wrong with the ranks in a run of so many GPUs, or None."""
        count = str(gpus) if self.count == "{gpus}" else self.count
        if count is not None and count.isascii() and count.isdigit() and int(count) != 1:
            return f"starts {count} ranks"
        if gpus == 1 or self.has_nodes:
            return None
        if count in ("gpu", "auto") or (self.program == "deepspeed" and not count):
            return "starts a rank for each GPU"
        if self.program == "torchrun":
            return "starts ranks that know nothing of the others"
        return None


_NPROC = ("--nproc-per-node", "--nproc_per_node")
_MPI = (("-n", "-np", "--np", "--n", "-c"), None)
_TASKS = (("-n", "--ntasks", "--np"), None)
#: For each program the options of its number of ranks, and the number without one.
_PROGRAMS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "torchrun": (_NPROC, "1"),
    "accelerate launch": (("--num_processes", "--num-processes"), None),
    "deepspeed": (("--num_gpus", "--num-gpus"), None),
    "lightning run": (("--devices",), "1"),
    "fabric run": (("--devices",), "1"),
    "composer": (("-n", "--nproc"), None),
    "colossalai run": (_NPROC, None),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), _MPI),
    **dict.fromkeys(("srun", "jsrun", "aprun", "ibrun", "flux run"), _TASKS),
}
#: Other names of these programs, and modules that do the same.
_ALIASES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch"), "accelerate launch"),
    "deepspeed.launcher.runner": "deepspeed",
    **dict.fromkeys(("mpiexec.openmpi", "mpiexec.mpich"), "mpiexec"),
    **dict.fromkeys(("mpirun.openmpi", "mpirun.mpich"), "mpirun"),
}
#: Programs that start another one.
_WRAPPERS = (
    "env", "nohup", "nice", "ionice", "time", "stdbuf", "setsid", "numactl", "sudo", "exec",
    "command", "hwloc-bind", "strace", "ncu", "timeout", "taskset", "chrt", "uv", "poetry",
    "pipenv", "pdm", "hatch", "pixi", "conda", "mamba", "micromamba", "nsys", "perf", "py-spy",
    "wattlaw", "apptainer", "singularity", "docker", "podman", "enroot",
    "accelerate", "lightning", "fabric", "colossalai", "flux",
)  # fmt: skip
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
_PYTHON = re.compile(r"\{python\}|(python|pypy)[0-9.]*[tw]?")


def find_rank_starter(words: Sequence[str]) -> RankStarter | None:
    """Return the program that starts ranks; shell scripts and ``bash -c`` are not read."""
    first = _name(words[0]) if words else ""
    if first in _PROGRAMS or first in _ALIASES or first in _WRAPPERS or _PYTHON.fullmatch(first):
        return _first_starter(words)
    return None


#: Options of torchrun that take no value.
TORCHRUN_FLAGS = frozenset(
    {
        *("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path"),
        *("--standalone", "--virtual-local-rank", "--virtual_local_rank"),
    }
)


def command_of_one_rank(words: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the command of one rank, and what starts the ranks, as ``launch_with`` of a study.

    torchrun's ranks need no torchrun: wattlaw starts them with its variables. ``BadInput`` for a
    program whose ranks wattlaw cannot start.
    """
    starter = find_rank_starter(words)
    if starter is None:
        return tuple(words), "auto"
    names = [_ALIASES.get(_name(word), _name(word)) for word in words]
    if starter.program in ("mpirun", "srun"):
        at = names.index(starter.program)
        for index in range(at + 1, len(words)):
            if words[index].endswith(".py") or _PYTHON.fullmatch(names[index]):
                return (*words[:at], *words[index:]), starter.program
    if starter.program != "torchrun":
        raise BadInput(
            f"{starter.program} starts ranks; allowed: the command of one rank, such as python "
            "train.py, also after torchrun, mpirun or srun"
        )
    at = names.index("torchrun")
    python, before = str(PurePosixPath(words[at]).with_name("python")), words[:at]
    if at and words[at - 1] == "-m":
        python, before = words[at - 2], words[: at - 2]
    flags, rest = set[str](), [*words[at + 1 :]]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        flags.add(option)
        if option not in TORCHRUN_FLAGS and "=" not in option and rest:
            rest.pop(0)  # its value
    if not flags & {"--no-python", "--no_python"}:
        rest = [python, *(["-m"] if flags & {"-m", "--module"} else []), *rest]
    return (*before, *rest), "auto"


def _first_starter(words: Sequence[str]) -> RankStarter | None:
    is_python = False
    for index, word in enumerate(words):
        name, rest = _name(word), words[index + 1 :]
        own = _ALIASES.get(name, name)
        with_command = f"{own} {next((each for each in rest if not each.startswith('-')), '')}"
        program = own if own in _PROGRAMS else with_command
        if program in _PROGRAMS:
            found = _starter(program, rest)
            return (_first_starter(rest) if found.count == "1" else None) or found
        if name in _SHELLS or word.endswith(".py") or (is_python and word == "-c"):
            return None
        is_python = is_python or _PYTHON.fullmatch(name) is not None
    return None


def _starter(program: str, arguments: Sequence[str]) -> RankStarter:
    options, count = _PROGRAMS[program]
    has_nodes = False
    for index, word in enumerate(arguments):
        if word.endswith(".py") or _PYTHON.fullmatch(_name(word)):
            break  # its arguments follow
        option, equals, value = word.partition("=")
        attached = re.fullmatch(r"(-n|-np)([0-9]+)", word)
        if attached is not None and attached[1] in options:
            count = attached[2]
        elif option in options:
            count = value if equals else (*arguments[index + 1 :], "")[0]
        has_nodes = has_nodes or word.startswith("--nnodes")
    return RankStarter(program, count, has_nodes)


def _name(word: str) -> str:
    return PurePosixPath(word).name
