"""A fake NVML driver: the real pynvml runs on boards that tests script, and change at any moment.

`FakeGpus.create` writes a file of boards, `load` and `environment` lead this process or a child to
it, and `boards[0].high_w = 300.0` changes the running board. nvml.c says how boards behave.
"""

import ctypes
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char, c_double, c_int32, c_int64, c_uint64
from pathlib import Path
from typing import Self

from compiled import compiled

VARIABLE = "WATTLAW_FAKE_NVML"
SOURCE = Path(__file__).with_name("nvml.c")
SONAME = "libnvidia-ml.so.1"
MAGIC = 0x4C4D564E454B4146
MAX_BOARDS, MAX_MIG, MAX_SEGMENTS, MAX_FAULTS, MAX_COUNTED = 8, 4, 256, 16, 64
CODE, HANG = 1, 2
MAX_LIES = 16
#: What a board can say wrongly, and how; the numbers are those of nvml.c.
LIES = ("power", "counter", "sm_util", "mem_util", "sm_clock", "mem_clock", "temperature", "memory",
        "limit", "max_limit", "reasons", "violation", "sample_time")  # fmt: skip
HOWS = ("sets", "scales", "adds", "freezes")
SETTER_WORKS, SETTER_DOES_NOTHING, SETTER_IS_LATE, SETTER_IS_UNDONE = range(4)
COUNTER_OK, COUNTER_ABSENT, COUNTER_STILL, COUNTER_BACK, COUNTER_RESTARTS = range(5)
#: A change of one of these starts a new segment, so that energies so far stay as they are.
PHYSICS = {"low_w", "high_w", "period_s", "duty", "limit_mw", "clamp_mw"}


class Fault(ctypes.Structure):
    _fields_ = (
        ("function", c_char * 64),
        *((name, c_int32) for name in ("board", "kind", "code")),
        *((name, c_int32) for name in ("after_calls", "for_calls", "seen")),
        *((name, c_int64) for name in ("from_ns", "to_ns")),
    )


class Lie(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("from_ns", "to_ns")),
        *((name, c_int32) for name in ("what", "how")),
        ("value", c_uint64),
        ("factor", c_double),
    )


class Count(ctypes.Structure):
    """How often a function was called, by all processes together."""

    _fields_ = (("function", c_char * 64), ("calls", c_int64))


class Sums(ctypes.Structure):
    """What has passed since boot."""

    _fields_ = (("energy_mj", c_double), ("violation_ns", c_double), ("high_s", c_double))


class Segment(ctypes.Structure):
    """A time without changes of wave and limit, and the sums up to its start."""

    _fields_ = (
        ("start_ns", c_int64),
        ("before", Sums),
        *((name, c_double) for name in ("low_w", "high_w", "period_s", "duty", "enforced_mw")),
    )


class Header(ctypes.Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("header_size", c_int32),
        ("board_size", c_int32),
        ("boot_ns", c_int64),
        ("board_count", c_int32),
        ("root", c_int32),
        ("call_us", c_int32),
        ("order", c_int32 * MAX_BOARDS),
        ("faults", Fault * MAX_FAULTS),
        ("counts", Count * MAX_COUNTED),
    )


class Board(ctypes.Structure):
    """One board. Assigning changes the running driver; text may be assigned as str."""

    _fields_ = (
        ("uuid", c_char * 96),
        ("name", c_char * 64),
        ("bus_id", c_char * 32),
        *((name, c_double) for name in ("low_w", "high_w", "period_s", "duty")),
        *((name, c_int32) for name in ("minor", "limit_min_mw", "limit_max_mw")),
        *((name, c_int32) for name in ("limit_default_mw", "limit_mw", "clamp_mw")),
        *((name, c_int32) for name in ("locked_min_mhz", "locked_max_mhz")),
        *((name, c_int32) for name in ("sm_clock_mhz", "mem_clock_mhz")),
        *((name, c_int32) for name in ("clock_min_mhz", "clock_max_mhz", "clock_step_mhz")),
        *((name, c_int32) for name in ("counter_mode", "refresh_ms")),
        *((name, c_int32) for name in ("instant_power", "average_power")),
        *((name, c_int32) for name in ("buffers", "buffer_period_ms", "buffer_length")),
        *((name, c_int32) for name in ("sm_util_high", "sm_util_low")),
        *((name, c_int32) for name in ("mem_util_high", "mem_util_low")),
        *((name, c_int32) for name in ("temperature_c", "mig_mode", "mig_count")),
        *((name, c_int32) for name in ("persistence", "pstate", "virtualization")),
        *((name, c_int32) for name in ("capability", "module_mw")),
        *((name, c_int32) for name in ("module_counter", "module_repeats")),
        *((name, c_int64) for name in ("fault_ns", "lost_ns", "back_ns", "set_ns")),
        *((name, c_int32) for name in ("setter_mode", "setter_ms")),
        *((name, c_int32) for name in ("clock_setter_mode", "limit_before_mw")),
        ("lies", Lie * MAX_LIES),
        *((name, c_uint64) for name in ("memory_used", "memory_total")),
        *((name, c_uint64) for name in ("profiles", "requested_profiles", "refused_profiles")),
        ("mig_uuid", (c_char * 96) * MAX_MIG),
        ("segment_count", c_int64),
        ("segments", Segment * MAX_SEGMENTS),
    )

    def __setattr__(self, name: str, value: object) -> None:
        value = value.encode() if isinstance(value, str) else value
        boards = self.__dict__.get("boards")
        if boards is None or name not in PHYSICS:
            super().__setattr__(name, value)
            return
        with boards.locked():
            super().__setattr__(name, value)
            boards.start_segment(self)


class State(ctypes.Structure):
    _fields_ = (("header", Header), ("boards", Board * MAX_BOARDS))


DEFAULTS: dict[str, object] = {
    "name": "NVIDIA A100-SXM4-40GB (fake)",
    "low_w": 60.0,
    "high_w": 250.0,
    "period_s": 0.0,
    "duty": 0.5,
    "limit_min_mw": 100_000,
    "limit_max_mw": 400_000,
    "limit_default_mw": 400_000,
    "limit_mw": 400_000,
    "sm_clock_mhz": 1410,
    "mem_clock_mhz": 1215,
    "clock_min_mhz": 210,
    "clock_max_mhz": 1410,
    "clock_step_mhz": 15,
    "refresh_ms": 20,
    "instant_power": 1,
    "average_power": 1,
    "buffer_period_ms": 20,
    "buffer_length": 120,
    "sm_util_high": 95,
    "sm_util_low": 5,
    "mem_util_high": 60,
    "mem_util_low": 2,
    "temperature_c": 45,
    "persistence": 1,
    "capability": 80,
    "memory_used": 2 << 30,
    "memory_total": 40 << 30,
}


def library() -> Path:
    """Return the folder that holds the library."""
    return compiled(SOURCE.read_text(), SONAME)


class FakeGpus:
    """The boards of a file, shared with every process whose driver uses the file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._file = self.path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ctypes.sizeof(State))
        self.state = State.from_buffer(self._map)
        self._lock, self._depth = threading.RLock(), 0

    @classmethod
    def create(cls, path: Path | str, count: int = 1, **changes: object) -> Self:
        """Write a file with `count` boards, booted 100 s ago, and open it.

        A change is for all boards, or a list with a value for each; those of the header (root,
        call_us, boot_ns) are taken as well.
        """
        state = State()
        header = state.header
        header.magic = MAGIC
        header.header_size, header.board_size = ctypes.sizeof(Header), ctypes.sizeof(Board)
        header.boot_ns = (time.time_ns() // 1_000_000 - 100_000) * 1_000_000
        header.board_count, header.root = count, 1
        header.order[:] = range(MAX_BOARDS)
        for name in {name for name, *_ in Header._fields_} & changes.keys():
            setattr(header, name, changes.pop(name))
        if unknown := changes.keys() - {name for name, *_ in Board._fields_}:
            raise TypeError(f"a fake board has no {', '.join(sorted(unknown))}")
        for i in range(count):
            board = state.boards[i]
            board.uuid = f"GPU-{0xFA4E0000 + i:08x}-1111-4222-8333-{i:012x}"
            board.bus_id = f"00000000:{0x10 + i:02X}:00.0"
            board.minor = i
            for j in range(MAX_MIG):
                board.mig_uuid[j].value = f"MIG-{i:04x}{j:04x}-1111-5222-8333-{i:012x}".encode()
            for name, value in (DEFAULTS | changes).items():
                setattr(board, name, value[i] if isinstance(value, list | tuple) else value)
            board.segments[0] = _segment(board, header.boot_ns, Sums())
            board.segment_count = 1
        path = Path(path)
        written = path.with_name(f".{path.name}.{os.getpid()}")
        written.write_bytes(bytes(state))
        written.replace(path)
        return cls(path)

    @property
    def header(self) -> Header:
        return self.state.header

    @property
    def ids(self) -> list[str]:
        return [board.uuid.decode() for board in self]

    def __len__(self) -> int:
        return self.header.board_count

    def __getitem__(self, index: int) -> Board:
        if not 0 <= index < len(self):
            raise IndexError(index)
        board = self.state.boards[index]
        board.__dict__["boards"] = self
        return board

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the drivers of all processes out, this one's too: several changes become one."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def fault(
        self, function: str, board: int = -1, code: int | None = None, hang: bool = False
    ) -> None:
        """Let a function fail with a code, or hang, until the faults are cleared."""
        if (code is None) is not hang:
            raise TypeError("a fault has a code or hangs")
        with self.locked():
            entry = next((entry for entry in self.header.faults if not entry.kind), None)
            if entry is None:
                raise RuntimeError(f"the fault table has {MAX_FAULTS} entries")
            entry.function, entry.board = function.encode(), board
            entry.code = code or 0
            entry.kind = HANG if hang else CODE

    def clear_faults(self) -> None:
        """Take all faults away; calls that hang go on."""
        with self.locked():
            for entry in self.header.faults:
                entry.kind = 0

    def lie(self, board: int, what: str, how: str = "sets", value: float = 0) -> None:
        """Let a board say something wrong: of `LIES`, in one of the ways of `HOWS`."""
        with self.locked():
            entry = next((entry for entry in self[board].lies if not entry.what), None)
            if entry is None:
                raise RuntimeError(f"a board tells {MAX_LIES} lies")
            entry.how = 1 + HOWS.index(how)
            entry.factor, entry.value = float(value), int(value) % 2**64
            entry.what = 1 + LIES.index(what)

    def clear_lies(self) -> None:
        with self.locked():
            for board in self:
                for entry in board.lies:
                    entry.what = 0

    def calls(self, function: str) -> int:
        name = function.encode()
        return next((entry.calls for entry in self.header.counts if entry.function == name), 0)

    def environment(self) -> dict[str, str]:
        search = os.pathsep.join(filter(None, [str(library()), os.getenv("LD_LIBRARY_PATH")]))
        return {"LD_LIBRARY_PATH": search, VARIABLE: str(self.path)}

    def load(self) -> None:
        """Make these boards those of the present process, from its next nvmlInit on."""
        ctypes.CDLL(str(library() / SONAME), ctypes.RTLD_GLOBAL)
        if not hasattr(ctypes.CDLL(SONAME), "wattlaw_fake_nvml"):
            raise RuntimeError(f"another {SONAME} is loaded in this process already")
        os.environ[VARIABLE] = str(self.path)

    def energy_j(self, board_index: int, start_ns: int, end_ns: int) -> float:
        """Return what a board draws between two times, in pieces from edge to edge of the wave."""
        board = self[board_index]
        with self.locked():
            segments = _segments(board)
        if start_ns < segments[0].start_ns:
            raise ValueError("the time before is not known any more")
        ends = [segment.start_ns for segment in segments[1:]] + [max(start_ns, end_ns)]
        total_j = 0.0
        for segment, segment_end_ns in zip(segments, ends, strict=True):
            span = max(start_ns, segment.start_ns), min(end_ns, segment_end_ns)
            for seconds, watts, _ in self._pieces(segment, *span):
                total_j += seconds * min(watts, segment.enforced_mw / 1e3)
        return total_j

    def start_segment(self, board: Board) -> None:
        """Keep what has passed, and go on with the board's present wave and limit (under lock)."""
        now_ns = time.time_ns()
        last = _segments(board)[-1]
        sums = Sums(last.before.energy_mj, last.before.violation_ns, last.before.high_s)
        for seconds, watts, high in self._pieces(last, last.start_ns, now_ns):
            sums.energy_mj += seconds * min(watts * 1e3, last.enforced_mw)
            sums.violation_ns += seconds * 1e9 * (watts * 1e3 > last.enforced_mw)
            sums.high_s += seconds * high
        board.segments[board.segment_count % MAX_SEGMENTS] = _segment(board, now_ns, sums)
        board.segment_count += 1

    def _pieces(
        self, segment: Segment, start_ns: int, end_ns: int
    ) -> Iterator[tuple[float, float, bool]]:
        """Yield seconds, the model's power and whether it is high, from edge to edge."""
        boot_ns = self.header.boot_ns
        period_ns = round(segment.period_s * 1e9)
        high_ns = round(segment.duty * segment.period_s * 1e9)
        if period_ns <= 0:
            yield max(0, end_ns - start_ns) / 1e9, segment.high_w, True
            return
        for up_ns in range(start_ns - (start_ns - boot_ns) % period_ns, end_ns, period_ns):
            down_ns = up_ns + high_ns
            high = min(end_ns, down_ns) - max(start_ns, up_ns)
            yield max(0, high) / 1e9, segment.high_w, True
            low = min(end_ns, up_ns + period_ns) - max(start_ns, down_ns)
            yield max(0, low) / 1e9, segment.low_w, False


def _segment(board: Board, start_ns: int, before: Sums) -> Segment:
    """Return a segment with a board's present wave and limit."""
    enforced_mw = max(board.limit_mw, board.clamp_mw)
    wave = (board.low_w, board.high_w, board.period_s, board.duty)
    return Segment(start_ns, before, *wave, enforced_mw)


def _segments(board: Board) -> list[Segment]:
    """Return copies of a board's known segments, oldest first."""
    numbers = range(max(0, board.segment_count - MAX_SEGMENTS), board.segment_count)
    return [Segment.from_buffer_copy(board.segments[k % MAX_SEGMENTS]) for k in numbers]
