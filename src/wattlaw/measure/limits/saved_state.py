"""The saved state of a device: its limits before wattlaw changed them, and who changed them."""

import socket
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SavedState(BaseModel):
    """The state of one device before it was limited, and who limited it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: str
    host: str
    power_limit_w: float | None  # the previous limit; None: not changed
    set_w: float | None  # the limit that was set
    unlock_clock: bool  # the clock was locked; before, as the user stated, it was not
    #: The requested power profiles before; None: not changed.
    power_profiles: tuple[str, ...] | None = None
    token: str  # of the owner that wrote it
    owner_pid: int = Field(ge=0, lt=2**31)
    user: str
    made_at: AwareDatetime
    boot_id: str | None
    kept: bool = False  # set by 'limits set', to stay until 'limits restore'
    job_id: str | None = None  # the job for which a Slurm prolog has set it
    node: str | None = None  # this machine's name in that Slurm

    @model_validator(mode="after")
    def _check_power_fields(self) -> "SavedState":
        if (self.power_limit_w is None) != (self.set_w is None):
            raise ValueError("power_limit_w and set_w must both be set, or neither")
        return self

    @property
    def is_from_this_boot(self) -> bool:
        """Return whether the machine has not booted since. Drivers forget limits at a boot."""
        return self.boot_id == boot_id()

    @property
    def is_for_this_host(self) -> bool:
        """Return whether it is about this machine; a folder may be on a shared file system.

        Containers of one machine have host names of their own, but the machine's boot id.
        """
        same_boot = self.boot_id is not None and self.is_from_this_boot
        return same_boot or self.host == socket.gethostname()


def boot_id() -> str | None:
    """Return the id of this boot of the machine, None if the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
