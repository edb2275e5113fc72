"""An outside package, as a user might install it: a workload that fails and two odd meters."""

from pydantic import BaseModel, ConfigDict

from wattlaw.workloads.workload import Entry


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


ENTRY = Entry("broken", "fails", 85_066, "accuracy", Options, "wattlaw_test_plugin.broken:Broken")
