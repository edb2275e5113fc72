"""Programs that start ranks themselves, such as torchrun, in the command of a workload.

wattlaw starts a command once per GPU. A program that starts ranks would then start all of them
once per GPU.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from wattlaw.common.files import read_bytes


@dataclass(frozen=True)
class RankStarter:
    """A program that starts ranks.

    ``count`` is the word that says how many ranks it starts on a node, as it is in the command;
    None if nothing says it. With ``has_own_world`` each rank gets RANK and WORLD_SIZE of this
    program; otherwise a single rank keeps those that it has. ``script`` is the shell script in
    which it is.
    """

    program: str
    count: str | None
    has_own_world: bool = False
    has_nodes: bool = False
    script: str | None = None

    def fault(self, gpus: int, *, is_local: bool = False) -> str | None:
        """Return what is certainly wrong with the ranks in a run of so many GPUs, or None.

        ``is_local`` says that the machine is no job of a scheduler, whose tasks mpirun would count.
        """
        count = str(gpus) if self.count == "{gpus}" else self.count
        if count is not None and count.isascii() and count.isdigit() and int(count) != 1:
            return f"starts {count} ranks"
        if gpus == 1 or self.has_nodes:
            return None
        if count == "1" and self.has_own_world:
            return "starts a rank that trains alone (WORLD_SIZE=1)"
        starts_all = self.program == "deepspeed" or (self.program == "mpirun" and is_local)
        if count in ("gpu", "auto") or (count is None and starts_all):
            return "starts a rank for each GPU or core"
        return None


_NPROC = ("--nproc-per-node", "--nproc_per_node")
_MPI = ("-n", "-np", "--np", "--n", "-c")
#: For each program the options of its number of ranks, the number without one, and whether it sets
#: WORLD_SIZE for a single rank, too.
_PROGRAMS: dict[str, tuple[tuple[str, ...], str | None, bool]] = {
    "torchrun": (_NPROC, "1", True),
    "accelerate launch": (("--num_processes", "--num-processes"), None, False),
    "deepspeed": (("--num_gpus", "--num-gpus"), None, True),
    "horovodrun": (("-np", "--num-proc", "--num_proc"), None, False),
    "lightning run": (("--devices",), "1", True),
    "fabric run": (("--devices",), "1", True),
    "composer": (("-n", "--nproc"), None, True),
    "colossalai run": (_NPROC, None, True),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun"),
                    (_MPI, None, False)),
    **dict.fromkeys(("srun", "jsrun", "aprun", "ibrun", "flux run"),
                    (("-n", "--ntasks", "--np"), None, False)),
}  # fmt: skip
#: Other names of these programs, and modules that do the same.
_ALIASES = {
    "accelerate-launch": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "composer.cli.launcher": "composer",
    "deepspeed.launcher.runner": "deepspeed",
    **dict.fromkeys(("horovod.runner", "horovod.runner.launch"), "horovodrun"),
    **dict.fromkeys(("lightning.fabric.cli", "lightning_fabric.cli"), "lightning"),
    **dict.fromkeys(("mpiexec.openmpi", "mpiexec.mpich"), "mpiexec"),
    **dict.fromkeys(("mpirun.openmpi", "mpirun.mpich"), "mpirun"),
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch",
                     "torch.distributed.launcher"), "torchrun"),
}  # fmt: skip
#: Programs that start another one, with the number of words before it that are no options.
_WRAPPERS = {
    **dict.fromkeys(
        ("env", "nohup", "nice", "ionice", "time", "stdbuf", "setsid", "numactl", "sudo", "doas",
         "exec", "command", "hwloc-bind", "strace", "ncu", "unbuffer", "xvfb-run", "catchsegv",
         "gdb", "kernprof", "scalene"), 0),
    **dict.fromkeys(
        ("timeout", "taskset", "chrt", "uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi",
         "conda", "mamba", "micromamba", "nsys", "perf", "py-spy", "wattlaw"), 1),
    **dict.fromkeys(("apptainer", "singularity", "docker", "podman", "enroot"), 2),
}  # fmt: skip
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
_PYTHON = re.compile(r"\{python\}|(python|pypy)[0-9.]*[tw]?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time")
_MAX_SCRIPT_BYTES = 200_000
_MAX_DEPTH = 8


def find_rank_starter(
    words: Sequence[str], depth: int = 0, *, follow_shells: bool = True
) -> RankStarter | None:
    """Return the program in a command that starts ranks, None if none is seen.

    Programs that start another one (``env``, ``uv run``, ``numactl``) are looked through, and with
    ``follow_shells`` the commands of ``bash -c`` and shell scripts.
    """
    skipped, is_value = 0, False
    for index, word in enumerate(words if depth <= _MAX_DEPTH else ()):
        name = PurePosixPath(word).name
        if name in _SHELLS and not follow_shells:
            return None
        is_end, found = _at(word, words[index + 1 :], depth)
        if is_end:
            return found
        if name in _WRAPPERS:
            skipped, is_value = _WRAPPERS[name], False
        elif word.startswith("-"):
            is_value = "=" not in word and word != "--"
        elif is_value or _ASSIGNMENT.fullmatch(word):
            is_value = False
        elif skipped:
            skipped -= 1
        else:
            return None  # a program that is not known
    return None


def _at(word: str, rest: Sequence[str], depth: int) -> tuple[bool, RankStarter | None]:
    """Return whether a word decides what the command starts, and the starter."""
    name = PurePosixPath(word).name
    is_end, found = True, _starter(name, rest)
    if found is not None:
        inner = find_rank_starter(rest, depth + 1) if found.count == "1" else None
        found = inner or found
    elif word in ("-S", "--split-string") and rest:  # of env
        found = find_rank_starter([*_split(rest[0]), *rest[1:]], depth + 1)
    elif word in ("-m", "--module") and rest:  # of 'uv run'
        found = _starter(rest[0], rest[1:])
        is_end = found is not None
    elif _PYTHON.fullmatch(name):
        found = _of_python(rest)
    elif name in _SHELLS:
        found = _of_shell(rest, depth)
    elif word.endswith((".sh", ".bash")):
        found = _of_script(word, depth)
    else:
        is_end = word.endswith(".py")
    return is_end, found


def _starter(name: str, rest: Sequence[str]) -> RankStarter | None:
    name = _ALIASES.get(name, name)
    if name not in _PROGRAMS and rest:  # of several commands, one starts ranks
        command = next((word for word in rest if not word.startswith("-")), "")
        name = f"{name} {command}"
    if name not in _PROGRAMS:
        return None
    options, count, has_own_world = _PROGRAMS[name]
    arguments = list(rest)
    for index, word in enumerate(arguments):
        if word.endswith(".py") or _PYTHON.fullmatch(PurePosixPath(word).name):
            arguments = arguments[:index]
            break
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        attached = re.fullmatch(r"(-n|-np)([0-9]+)", word)
        if attached is not None and attached[1] in options:
            count = attached[2]
        elif option in options:
            count = value if equals else (*arguments[index + 1 :], "")[0]
    has_nodes = any(word.startswith("--nnodes") for word in arguments)
    return RankStarter(name, count, has_own_world, has_nodes)


def _of_python(words: Sequence[str]) -> RankStarter | None:
    is_value = False
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        if is_value:
            is_value = False
        elif re.fullmatch(r"-[A-Za-z]*m", word):
            return _starter(rest[0], rest[1:]) if rest else None
        elif word.startswith("-m"):
            return _starter(word[2:], rest)
        elif re.fullmatch(r"-[A-Za-z]*c", word):
            return None
        elif word.startswith("-"):
            is_value = word in ("-W", "-X")
        elif re.search(r"(^|/)torch/distributed/(run|launch)\.py$", word):
            return _starter("torchrun", rest)
        else:
            return _starter(PurePosixPath(word).name, rest)
    return None


def _of_shell(words: Sequence[str], depth: int) -> RankStarter | None:
    for index, word in enumerate(words):
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return _of_shell_text(words[index + 1], depth) if words[index + 1 :] else None
        if not word.startswith(("-", "+")):
            return _of_script(word, depth)
    return None


def _of_script(path: str, depth: int) -> RankStarter | None:
    try:
        text = read_bytes(Path(path), _MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    found = _of_shell_text(text, depth)
    return None if found is None else replace(found, script=path)


def _of_shell_text(text: str, depth: int) -> RankStarter | None:
    for line in text.replace("\\\n", " ").splitlines():
        command: list[str] = []
        for word in [*_split(line), ";"]:
            if not re.fullmatch(r"[();<>|&]+", word):
                if command or not (word in _KEYWORDS or _ASSIGNMENT.fullmatch(word)):
                    command.append(word)
                continue
            if (found := find_rank_starter(command, depth + 1)) is not None:
                return found
            command = []
    return None


def _split(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quotation over several lines
        return line.split()
