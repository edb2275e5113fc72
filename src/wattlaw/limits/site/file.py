"""The site's file: which limits jobs may ask for. Only root may be able to write it."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wattlaw.errors import NotAvailable, NotPermitted
from wattlaw.limits.requests import Limits
from wattlaw.limits.trust import only_root_writes
from wattlaw.study.document import read_document


class Allowed(BaseModel):
    """The least and the most that may be asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min: float = Field(gt=0)
    max: float = Field(gt=0)

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min:g}, more than max, {self.max:g}")
        return self


class SiteFile(BaseModel):
    """What is allowed here; what is absent is not."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    power_w: Allowed | None = None
    clock_mhz: Allowed | None = None
    #: The site states that no board's clock is locked beforehand; NVML cannot tell.
    prior_clocks: Literal["default"] | None = None
    users: tuple[str, ...] | None = None
    accounts: tuple[str, ...] | None = None
    #: How long neither slurmd nor the job may be seen before the watchdog gives back.
    grace_s: float = Field(default=60.0, gt=0, le=3600)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file.

        Raises
        ------
        NotAvailable
            It is not there, or others than root may write it.
        BadInput
            It cannot be understood; the text says where.
        """
        if not path.exists():
            raise NotAvailable(f"{path} is not there: no limit is allowed on this node")
        only_root_writes(path)
        return read_document(path, cls, "site file")

    def check(self, limits: Limits) -> None:
        """Raise ``NotAvailable`` unless the site allows such limits."""
        for what, asked, allowed, unit in (
            ("power limit", limits.power_limit_w, self.power_w, "W"),
            ("clock limit", limits.clock_limit_mhz, self.clock_mhz, "MHz"),
        ):
            if asked is None:
                continue
            if allowed is None:
                raise NotAvailable(f"this site allows jobs no {what}")
            if not allowed.min <= asked <= allowed.max:
                span = f"{allowed.min:g} to {allowed.max:g} {unit}"
                raise NotAvailable(f"a {what} of {asked:g} {unit} is outside the site's {span}")
        if limits.clock_limit_mhz is not None and self.prior_clocks is None:
            told = "the site has not stated 'prior_clocks: default'"
            raise NotAvailable(f"no clock limit: {told}, and a lock that is there cannot be read")

    def check_person(self, user: str, account: str) -> None:
        """Raise ``NotPermitted`` unless the user or the account is one of those named, if any."""
        if self.users is None and self.accounts is None:
            return
        if user in (self.users or ()) or (account and account in (self.accounts or ())):
            return
        raise NotPermitted("this site lets only some users and accounts limit power and clocks")
