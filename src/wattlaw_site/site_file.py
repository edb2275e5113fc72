"""The site file: which limits jobs may request. Only root may write it."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.state_folder import check_only_root_writes
from wattlaw.study.base_model import PowerProfile
from wattlaw.study.document import read_document


class AllowedRange(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min: float = Field(gt=0)
    max: float = Field(gt=0)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min:g}, more than max, {self.max:g}")
        return self


class SiteFile(BaseModel):
    """The limits that a site allows. A limit that is absent is not allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    power_w: AllowedRange | None = None
    clock_mhz: AllowedRange | None = None
    power_profiles: tuple[PowerProfile, ...] | None = None
    #: The site states that no GPU's clock is locked before a job; NVML cannot read a lock.
    prior_clocks: Literal["default"] | None = None
    users: tuple[str, ...] | None = None
    accounts: tuple[str, ...] | None = None
    #: The watchdog restores the limits if it sees neither slurmd nor the job for this long.
    grace_s: float = Field(default=60.0, gt=0, le=3600)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; ``NotAvailable`` if it is absent or others than root may write it."""
        if not path.exists():
            raise NotAvailable(f"{path} does not exist: no limit is allowed on this node")
        check_only_root_writes(path)
        return read_document(path, cls)

    def check(self, limits: Limits) -> None:
        for kind, value, allowed, unit in (
            ("power limit", limits.power_limit_w, self.power_w, "W"),
            ("clock limit", limits.clock_limit_mhz, self.clock_mhz, "MHz"),
        ):
            if value is None:
                continue
            if allowed is None:
                raise NotAvailable(f"this site allows jobs no {kind}")
            if not allowed.min <= value <= allowed.max:
                span = f"{allowed.min:g} to {allowed.max:g} {unit}"
                raise NotAvailable(f"a {kind} of {value:g} {unit} is outside the site's {span}")
        profile, allowed_profiles = limits.power_profile, self.power_profiles or ()
        if profile is not None and profile not in allowed_profiles:
            listed = ", ".join(allowed_profiles) or "none"
            raise NotAvailable(f"this site allows no power profile {profile}; allowed: {listed}")
        if limits.clock_limit_mhz is not None and self.prior_clocks is None:
            raise NotAvailable(
                "no clock limit: the site file does not state 'prior_clocks: default', and an "
                "existing clock lock cannot be read"
            )

    def check_user(self, user: str, account: str) -> None:
        """Raise ``NotPermitted`` unless the site file lists the user or the account, or none."""
        is_listed = user in (self.users or ()) or (account and account in (self.accounts or ()))
        if not is_listed and (self.users, self.accounts) != (None, None):
            raise NotPermitted("this site lets only some users and accounts limit power and clocks")
