"""A shared folder of saved limits in which another user plants what root must not trip over."""

import codecs
import fcntl
import json
import multiprocessing
import os
import pwd
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak.killing import Fault, Killer, run
from wattlaw.measure.limits.saved_state import boot_id

WHAT = "hostile shared folders"
_COMMANDS: tuple[tuple[object, ...], ...] = (
    ("limits", "set", "--power-limit", 150),
    ("limits", "show"),
    ("limits", "restore"),
    ("measure", "-o", "store", "--power-limit", 150, "--", "true"),
)
_MOST_S = 240.0


def missing() -> str | None:
    """Return why there are no two users here."""
    try:
        pwd.getpwnam("nobody")
    except KeyError:
        return "there is no user nobody"
    return None if os.geteuid() == 0 else "only root may act as another user"


class UsersRound:
    """Root limits boards and gives back while nobody plants files."""

    def __init__(self, killer: Killer) -> None:
        self.killer, self.own, self.dice = killer, killer.sandbox, killer.dice
        self.before_mw = [self.dice.randrange(180_001, 280_000, 2) for _ in range(2)]
        self.boards = self.own.make_boards(2, root=1, limit_mw=self.before_mw)
        self.own.boards_path.chmod(0o666)
        self.environment = self.own.environment()
        self.nobody = pwd.getpwnam("nobody")
        self.devices = [board.uuid.decode() for board in self.boards]
        self.victim = self.own.home / "victim"
        self.is_nobodys = self.dice.random() < 0.25

    def go(self) -> None:
        """Carry the round out; raise ``Fault`` where something is wrong."""
        self.own.limits.rmdir()
        self.own.limits.mkdir()
        self.own.limits.chmod(0o1777)
        if self.is_nobodys:
            os.chown(self.own.limits, self.nobody.pw_uid, self.nobody.pw_gid)
        self.victim.write_text("of root")
        for _ in range(self.dice.choice([1, 2, 3])):
            attack = self.dice.randrange(2**32)
            self.killer.note(f"attack {attack}")
            attacker = self._attack(attack)
            try:
                self._wattlaw(self.dice.choice(_COMMANDS))
            finally:
                attacker.terminate()
                attacker.join()
            if self.victim.read_text() != "of root" or self.victim.stat().st_mode & 0o777 != 0o644:
                raise Fault("a file of root's is changed through the folder", str(self.victim))
            if any(
                limit not in (150_000, was)
                for limit, was in zip(self._limits, self.before_mw, strict=True)
            ):
                raise Fault(
                    "a forged state sets a limit", f"{self.before_mw} mW, then {self._limits}"
                )
        self._clean()
        self._wattlaw(("limits", "restore"))
        if self._limits != self.before_mw and not self.is_nobodys:
            raise Fault("a limit is not given back", f"{self.before_mw} mW, then {self._limits} mW")

    @property
    def _limits(self) -> list[int]:
        return [board.limit_mw for board in self.boards]

    def _wattlaw(self, words: tuple[object, ...]) -> None:
        begin_s = time.monotonic()
        code, said = run(self.own, self.environment, _MOST_S, *words)
        self.killer.note(
            f"{words[:2]}: exit code {code}, {time.monotonic() - begin_s:.1f} s: {said[-300:]}"
        )
        if code not in (0, 1, 2, 3):
            raise Fault(f"exit code {code} of {words[0]} {words[1]}", said[-800:])

    def _attack(self, seed: int) -> multiprocessing.Process:
        """Plant files as nobody; held locks are held until the process is ended."""
        context = multiprocessing.get_context("fork")
        ready = context.Event()

        def work() -> None:
            codecs.lookup("ascii")  # nobody may not read root's Python
            os.setgroups([])
            os.setgid(self.nobody.pw_gid)
            os.setuid(self.nobody.pw_uid)
            dice = random.Random(seed)
            for _ in range(dice.choice([1, 2, 4])):
                try:
                    dice.choice(ATTACKS)(
                        dice, self.own.limits, dice.choice(self.devices), self.victim
                    )
                except OSError:
                    continue
            ready.set()
            time.sleep(2 * _MOST_S)

        process = context.Process(target=work)
        process.start()
        if not ready.wait(20) and not process.is_alive():  # it may wait for a lock of root's
            raise RuntimeError("the attack did not run; its traceback is above")
        return process

    def _clean(self) -> None:
        """Remove what nobody has planted, as an administrator does."""
        for path in self.own.limits.iterdir():
            if path.lstat().st_uid == self.nobody.pw_uid:
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _link(dice: random.Random, folder: Path, device: str, victim: Path) -> None:
    target = dice.choice(
        [str(victim), "/dev/zero", "/etc/passwd", ".", "nowhere", str(victim.parent)]
    )
    _path(dice, folder, device).symlink_to(target)


def _fifo(dice: random.Random, folder: Path, device: str, _: Path) -> None:
    os.mkfifo(_path(dice, folder, device))


def _folder(dice: random.Random, folder: Path, device: str, _: Path) -> None:
    _path(dice, folder, device).mkdir()


def _huge(dice: random.Random, folder: Path, device: str, _: Path) -> None:
    path = _path(dice, folder, device)
    path.open("x").close()
    os.truncate(path, dice.choice([1 << 20, 8 << 30]))


def _many(dice: random.Random, folder: Path, _: str, __: Path) -> None:
    for number in range(dice.choice([10, 500])):
        (folder / f"GPU-{number}-{dice.randrange(10**6)}.json").write_text("{}")


def _forged(dice: random.Random, folder: Path, device: str, _: Path) -> None:
    known = dict.fromkeys(("token", "host"), "x")
    for path in folder.glob("*.json"):  # the owner's token can be read
        try:
            known |= json.loads(path.read_bytes()[:5000])
        except (OSError, ValueError):
            continue
    told: dict[str, Any] = {
        "device": device, "host": dice.choice([os.uname().nodename, known["host"]]),
        "power_limit_w": dice.choice([110.0, 390.0, None]), "set_w": dice.choice([None, 150.0,
        1.0]),
        "unlock_clock": dice.choice([True, False]), "token": dice.choice([known["token"], "y"]),
        "owner_pid": dice.choice([1, os.getpid(), 2**22 - 1]), "user": dice.choice(["root",
        "nobody"]),
        "made_at": "2025-01-01T00:00:00Z", "boot_id": dice.choice([boot_id(), None]),
        "kept": dice.choice([True, False]), "job_id": None, "node": None,
    }  # fmt: skip
    path = _path(dice, folder, device, kinds=("json",))
    if dice.random() < 0.5:
        path.unlink(missing_ok=True)  # only where the folder is nobody's own
    path.write_text(json.dumps(told))


def _held(dice: random.Random, folder: Path, device: str, _: Path) -> None:
    path = folder / f"{device}.lock"
    handle = os.open(path, os.O_RDONLY | (0 if path.exists() else os.O_CREAT), 0o644)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _path(
    dice: random.Random, folder: Path, device: str, kinds: tuple[str, ...] = ("json", "lock")
) -> Path:
    name = dice.choice([device, device, f".{device}.json", "GPU-0", "x"])
    return folder / f"{name}.{dice.choice(kinds)}"


ATTACKS: tuple[Callable[[random.Random, Path, str, Path], None], ...] = (
    _link, _fifo, _folder, _huge, _many, _forged, _forged, _forged, _held,
)  # fmt: skip
