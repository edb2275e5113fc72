"""Requests of jobs to a site's prolog, refusals, and reports to jobs."""

import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import wait_for
from sites import ASKS, BEFORE_W, JOB, OTHER, SITE, nodes, stepd
from wattlaw.common import machine_lock
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.measure.limits.prolog_limits import VARIABLE, verify_prolog_limits
from wattlaw.measure.limits.prolog_request import limit_comment, parse_limit_comment, requests_limit
from wattlaw.measure.limits.requests import Limits
from wattlaw.study.base_model import POWER_PROFILES


@pytest.fixture
def start(tmp_path, fake_gpus, monkeypatch):
    yield from nodes(tmp_path, fake_gpus, monkeypatch)


def test_a_word_that_only_resembles_a_request_is_none():
    comment = "wattlaw is nice: power_w=100 xwattlaw:power_w=100"
    assert parse_limit_comment(comment) == Limits()
    assert not requests_limit(comment)


@pytest.mark.parametrize(
    "word",
    [
        "wattlaw:", "wattlaw:power_w", "wattlaw:power_w=", "wattlaw:power_w=-1",
        "wattlaw:power_w=1e3", "wattlaw:power_w=nan", "wattlaw:power_w=12345",
        "wattlaw:power_w=250,", "wattlaw:power_w=250;id", "wattlaw:power_w=250,power_w=250",
        "wattlaw:Power_w=250", "wattlaw:device=0", "wattlaw:power_w=２５０", "wattlaw:power_w=.5",
        "wattlaw:power_w=250 wattlaw:clock_mhz=900", "wattlaw:power_w=250 wattlaw:",
    ],
)  # fmt: skip
def test_a_request_that_is_not_written_as_it_must_be_is_none(word):
    assert requests_limit(word)
    with pytest.raises(BadInput, match="job's comment") as caught:
        parse_limit_comment(word)
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)


WORDS = st.lists(st.text().filter(lambda text: "wattlaw:" not in text), max_size=3).map(" ".join)
NUMBERS = st.none() | st.integers(0, 9_999_999).map(lambda thousandth: thousandth / 1000)


@given(NUMBERS, NUMBERS, st.none() | st.sampled_from(POWER_PROFILES), WORDS, WORDS)
def test_requested_limits_are_parsed_from_any_comment(watts, mhz, profile, before, after):
    limits = Limits(watts, mhz, profile)
    assert parse_limit_comment(f"{before} {limit_comment(limits)} {after}") == limits


@given(st.text(st.sampled_from("wattlaw:power_w=clock_mhz=0123456789., \n-e")))
def test_any_comment_gives_limits_or_an_error(comment):
    with contextlib.suppress(BadInput):
        limits = parse_limit_comment(comment)
        assert limits.are_none is not requests_limit(comment)
        assert not limits.are_none or limit_comment(limits) == ""


MIG = {"mig_mode": [1, 0], "mig_count": [2, 0]}


@pytest.mark.parametrize(
    ("comment", "gpus", "site", "boards", "reason"),
    [
        ("wattlaw:power_w=250 wattlaw:power_w=250", "0", SITE, {}, "has 2 words"),
        ("wattlaw:power_w=lots", "0", SITE, {}, "allowed: wattlaw:power_w"),
        ("wattlaw:power_w=149", "0", SITE, {}, "outside the site's 150 to 350 W"),
        (ASKS, "0", SITE, {"limit_min_mw": 260_000}, "outside 260 to 400 W of NVIDIA"),
        (ASKS, "0,1", SITE, {"limit_min_mw": [100_000, 260_000]}, "outside 260 to 400 W"),
        ("wattlaw:clock_mhz=900", "0", SITE, {}, "allows jobs no clock limit"),
        (ASKS, "0", "clock_mhz: {min: 600, max: 1300}", {}, "allows jobs no power limit"),
        ("wattlaw:clock_mhz=900", "0", "clock_mhz: {min: 600, max: 1300}", {}, "prior_clocks"),
        (ASKS, "0", SITE + "users: [eve]", {}, "only some users"),
        (ASKS, "0", SITE + "powr_w: 3", {}, "site file has an error"),
        (ASKS, "", SITE, {}, "no GPU on this node"),
        (ASKS, "2", SITE, {}, "no GPU /dev/nvidia2"),
        (ASKS, "MIG-1", SITE, {}, "no list of GPU numbers or UUIDs"),
        (ASKS, "GPU-fa4e000", SITE, {}, "no GPU GPU-fa4e000,"),  # of both
        (ASKS, "GPU-1234", SITE, {}, "no GPU GPU-1234,"),
        (ASKS, "0", SITE, MIG, "instances of MIG"),
        (ASKS, "0", SITE, {"root": 0}, "requires root"),
    ],
)
def test_a_refused_request_is_reported_and_changes_nothing(
    start, comment, gpus, site, boards, reason
):
    node = start(2, **boards)
    node.allow(site)
    said = node.prolog(comment=comment, gpus=gpus)
    assert reason in node.report(JOB)["refused"]
    assert f"job {JOB} of ada" in said
    assert node.limits_w == BEFORE_W
    assert node.states == []
    wait_for(lambda: not node.watchdogs, "no watchdog", 10)
    assert node.hook("epilog", gpus=gpus)[0] == 0
    assert node.is_clean()


def test_users_and_accounts_that_the_site_names_may(start):
    node = start(1)
    node.allow(SITE + "users: [eve]\naccounts: [energy]")
    node.squeue(f"{JOB} energy")
    node.prolog()
    assert node.limits_w == [250]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda node: node.config.chmod(0o664), "config"),
        (lambda node: os.chown(node.config, 1234, 0), "config"),
        (lambda node: node.config.unlink(), "config"),
        (lambda node: node.path.chmod(0o777), None),
        (lambda node: node.state.chmod(0o777), "state"),
        (lambda node: node.state.chmod(0o1777), "state"),
    ],
)
def test_reports_that_others_may_write_are_not_trusted(start, damage, named):
    node = start(1)
    node.state.mkdir(parents=True, mode=0o700)
    damage(node)
    node.prolog()
    assert node.limits_w == [287.5]
    if named:  # else there is no safe place for a report
        assert str(getattr(node, named)) in node.report(JOB)["refused"]
    node.path.chmod(0o755)


def test_a_board_of_another_job_that_runs_is_not_limited_twice(start):
    node = start(1)
    with stepd(JOB):
        node.prolog(JOB)
        node.prolog(OTHER, "wattlaw:power_w=200")
    assert f"is limited for job {JOB}" in node.report(OTHER)["refused"]
    assert node.limits_w == [250]
    assert node.hook("epilog", OTHER)[0] == 0
    assert node.limits_w == [250]
    assert node.hook("epilog", JOB)[0] == 0
    assert node.limits_w == [287.5]


def test_another_user_stops_no_hook_by_a_lock_of_the_machine(start):
    node = start(1)
    with machine_lock.lock(f"limits/{node.devices[0]}"):
        node.prolog()
        assert node.limits_w == [250]
        assert node.hook("epilog")[0] == 0
    assert node.limits_w == [287.5]


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/etc/passwd"),
        Path.mkdir,
        lambda path: path.write_text("[" * 8_000 + "]" * 8_000),
        lambda path: path.touch() or os.truncate(path, 8 * 2**30),
    ],
)
def test_a_job_without_a_valid_report_fails_at_once(tmp_path, monkeypatch, make):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    make(tmp_path / "7.n.json")
    begin_s = time.process_time()
    with pytest.raises(NotAvailable, match=r"7\.n\.json"):
        verify_prolog_limits(Limits(250), ["GPU-0"], "7", wait_s=0)
    assert time.process_time() - begin_s < 1


def test_the_job_checks_that_its_cap_is_enforced(start):
    node = start(1)
    node.prolog()
    (limit,) = verify_prolog_limits(Limits(250), node.devices, str(JOB))
    assert (limit.limiter, limit.device) == ("slurm", node.devices[0])
    assert (limit.power_limit_w, limit.power_limit_enforced_w) == (250, 250)
    assert limit.power_limit_before_w == 287.5
    assert verify_prolog_limits(Limits(), node.devices, str(JOB)) == ()
    for asked, boards, job, reason in (
        (Limits(250), [], str(JOB), "no GPU on this node"),
        (Limits(250), ["GPU-other"], str(JOB), "has not limited GPU-other"),
        (Limits(250), node.devices, str(OTHER), f"no Slurm prolog .* limited job {OTHER}"),
        (Limits(200), node.devices, str(JOB), "--comment=wattlaw:power_w=200"),
        (Limits(250, 900), node.devices, str(JOB), "--comment=wattlaw:power_w=250,clock_mhz=900"),
    ):
        with pytest.raises(NotAvailable, match=reason):
            verify_prolog_limits(asked, boards, job, wait_s=0)
    node.boards[0].clamp_mw = 300_000
    with pytest.raises(NotAvailable, match="enforces 300 W instead of the 250 W"):
        verify_prolog_limits(Limits(250), node.devices, str(JOB), wait_s=0)
