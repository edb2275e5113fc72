"""Workload power profiles: a swept setting that is saved and restored as power limits are."""

import json
import subprocess
import sys

import pynvml
import pytest

from conftest import records, wait_for, wattlaw
from limiting import OWNER, child, kill_group, places
from wattlaw.cli.main import main
from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.requests import Limits
from wattlaw.study.base_model import POWER_PROFILES

MAX_Q, NETWORK, TRAINING = (1 << POWER_PROFILES.index(n) for n in ("max-q", "network", "training"))
UNNAMED = 1 << 40  # newer than this program
#: Somebody has requested two profiles; one of them has no name here.
OFFERS = {"profiles": MAX_Q | NETWORK | TRAINING | UNNAMED, "requested_profiles": NETWORK | UNNAMED}
UNLIMITED = {"limit_max_mw": 400_000, "limit_default_mw": 400_000, "limit_mw": 400_000}
PROFILE = Limits(power_profile="max-q")
#: A run of two epochs that imports no torch.
TRAINS = """
import time, wattlaw
with wattlaw.track() as run:
    for epoch in run.epochs(range(2), warmup=0):
        time.sleep(0.3)
"""


@pytest.fixture
def start(tmp_path, fake_gpus, monkeypatch):
    yield from places(tmp_path, fake_gpus, monkeypatch)


@pytest.fixture
def offering(start):
    return lambda count=1, **changes: start(count, **(UNLIMITED | OFFERS | changes))


def test_names_are_those_of_nvml_in_the_order_of_its_ids():
    ids = {
        name.removeprefix("NVML_POWER_PROFILE_").lower().replace("_", "-"): value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_POWER_PROFILE_") and "OPERATION" not in name
    }
    assert ids.pop("max") == len(POWER_PROFILES)
    assert ids == {name: number for number, name in enumerate(POWER_PROFILES)}


def test_a_profile_is_the_only_one_during_a_lease_and_the_previous_ones_come_back(offering):
    place = offering(2)
    lease = acquire(place.devices)
    reports = lease.apply(PROFILE)
    assert {board.requested_profiles for board in place.boards} == {MAX_Q}
    assert [(report.power_profile, report.note) for report in reports] == [("max-q", None)] * 2
    assert place.limits_w == [400.0] * 2
    lease.release()
    assert {board.requested_profiles for board in place.boards} == {NETWORK | UNNAMED}
    assert place.is_clean()


def test_a_profile_is_restored_with_the_cap_after_the_owner_was_killed(offering):
    place = offering(1, limit_mw=217_500)
    code = OWNER.replace("Limits(", "Limits(power_profile='max-q', ")
    line = [sys.executable, "-c", code, "150", *place.devices]
    with child(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == "limited\n", owner.stderr.read()
        assert (place.boards[0].requested_profiles, place.limits_w) == (MAX_Q, [150.0])
        assert place.folder.read(place.devices[0]).power_profiles == ("network", "profile-40")
        kill_group(owner)
        wait_for(place.is_clean, "the profile to be restored", 20)
    assert place.boards[0].requested_profiles == NETWORK | UNNAMED
    assert place.limits_w == [217.5]


def test_a_profile_that_the_board_does_not_enforce_gives_a_note(offering):
    place = offering(1, refused_profiles=MAX_Q)
    with acquire(place.devices) as lease:
        (report,) = lease.apply(PROFILE)
    assert report.note == f"{place.devices[0]} enforces no power profile instead of max-q"


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"profiles": 0, "requested_profiles": 0}, NotAvailable, "it has: none"),
        ({"profiles": TRAINING, "requested_profiles": 0}, NotAvailable, "it has: training"),
        ({"mig_mode": 1, "mig_count": 2}, NotAvailable, "instances of MIG"),
        ({}, NotPermitted, "requires root"),
    ],
)
def test_a_profile_that_cannot_be_set_changes_nothing(offering, changes, error, reason):
    place = offering(1, **changes)
    place.boards.header.root = error is NotAvailable
    before = place.boards[0].requested_profiles
    with acquire(place.devices) as lease, pytest.raises(error, match=reason):
        lease.apply(PROFILE)
    assert place.boards[0].requested_profiles == before
    assert place.is_clean()


def test_runs_with_profiles_are_measured_and_advised(offering, write_study, tmp_path, capsys):
    place = offering(1)
    store = tmp_path / "store"
    study = write_study(
        workloads=[{"name": "command", "command": [sys.executable, "-c", TRAINS]}],
        sweeps=[{"gpus": [1], "global_batch": [32], "power_profile": [None, "max-q", "compute"]}],
        launch={"gpus_per_node": 1},
    )
    done = wattlaw("run", study, "--store", store)
    assert done.returncode == 0, done.stderr
    by_profile = {r.spec.setting.power_profile: r for r in records(store).values()}
    assert by_profile["compute"].status == "skipped"
    assert "max-q, network" in by_profile["compute"].reason
    (limit,) = by_profile["max-q"].limits
    assert (limit.power_profile, limit.power_limit_w, limit.note) == ("max-q", None, None)
    assert by_profile[None].limits == ()
    assert place.boards[0].requested_profiles == NETWORK | UNNAMED
    assert main(["advise", str(store), "--json", "--baseline", "power_profile=max-q"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["baseline"]["power_profile"] == "max-q"
    options = [advice["recommended"], *advice["pareto"]]
    assert {option["power_profile"] for option in options} <= {None, "max-q"}
