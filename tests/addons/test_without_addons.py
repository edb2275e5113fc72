"""Where an add-on is not installed, its commands and formats are not there; all else works."""

import json
import os
import re
import subprocess
import sys

import pytest

import paths
from import_samples import SAMPLES
from limiting import Place
from made_stores import write_store
from made_tables import study

BY_FORMAT = {sample.format: sample for sample in SAMPLES}
#: What a Slurm launcher does: it writes the comment, and reads the prolog's report on the node.
ASKS = """
import sys
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.limits.prolog_limits import verify_prolog_limits
from wattlaw.measure.limits.requests import Limits
from wattlaw.running.slurm import node, submission
print(submission.limit_comment(Limits(250.0)))
try:
    verify_prolog_limits(Limits(250.0), sys.argv[1:], "7", 0)
except NotAvailable as error:
    print(error)
try:
    import wattlaw_site
except ModuleNotFoundError:
    print("hidden")
"""


def python_without(addon: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run Python, and what it starts, with a package and its entry points hidden."""
    hiding = str(paths.SUPPORT / "hidden_addon")
    path = os.pathsep.join(filter(None, [hiding, os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "WATTLAW_TEST_HIDDEN": addon}
    line = [sys.executable, *map(str, arguments)]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def without(tmp_path, monkeypatch):
    """Give a function that runs the command line in a folder, without a package."""
    monkeypatch.chdir(tmp_path)
    return lambda addon, *words: python_without(addon, "-m", "wattlaw", *words)


def test_without_the_simulator_a_study_is_run_and_advised_on(without, write_study):
    study = write_study(sweeps=[{"gpus": [1], "local_batch": [256]}])
    for arguments in (["check", study], ["run", study, "--store", "store"]):
        done = without("wattlaw_simulator", *arguments)
        assert done.returncode == 0, done.stderr
    advised = without("wattlaw_simulator", "advise", "store", "--minimize", "time", "--json")
    assert advised.returncode == 0, advised.stderr
    assert json.loads(advised.stdout)["recommended"]["gpus"] == 1


def test_commands_and_launcher_of_the_simulator_are_not_there(without, write_study):
    assert not {"simulate", "profile"} & {*without("wattlaw_simulator", "--help").stdout.split()}
    assert without("wattlaw_simulator", "simulate").returncode == 2
    refused = without("wattlaw_simulator", "check", write_study(launch={"kind": "simulated"}))
    assert refused.returncode == 2
    assert "simulated" in refused.stderr and "allowed" in refused.stderr


def test_the_formats_of_the_core_are_imported_and_exported(without, tmp_path):
    path = BY_FORMAT["zeus"].write(tmp_path)
    done = without("wattlaw_formats", "import", path, "--store", "s")
    assert done.returncode == 0, done.stderr
    assert without("wattlaw_formats", "export", "s", "bundle", "-o", "bundle.zip").returncode == 0
    assert (tmp_path / "bundle.zip").stat().st_size > 0


def test_the_formats_of_the_addon_are_unknown_files_and_no_help_names_them(without, tmp_path):
    path = BY_FORMAT["mlperf"].write(tmp_path)
    done = without("wattlaw_formats", "import", path, "--store", "s")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert path.name in line
    assert "no known format" in line
    assert not {"mlperf", "perun"} & {*line.partition("allowed:")[2].replace(",", " ").split()}
    told = without("wattlaw_formats", "import", "--help").stdout
    assert "nvidia-smi" in told
    assert not {"perun", "tensorboard", "extrap"} & {*told.replace(",", " ").split()}


def test_without_the_sites_package_limits_are_set_restored_and_asked_of_a_prolog(
    without, tmp_path, fake_gpus, monkeypatch
):
    place = Place(tmp_path, fake_gpus(1, limit_mw=217_500), monkeypatch)
    assert "site-files" not in without("wattlaw_site", "--help").stdout
    assert without("wattlaw_site", "limits", "set", "--power-limit", "150").returncode == 0
    (shown,) = json.loads(without("wattlaw_site", "limits", "show", "--json").stdout)
    assert (shown["power_limit_w"], shown["to_restore"]["power_limit_w"]) == (150.0, 217.5)
    assert without("wattlaw_site", "limits", "restore").returncode == 0
    assert place.limits_w == [217.5]
    told = python_without("wattlaw_site", "-c", ASKS, *place.devices)
    assert told.stdout.splitlines()[0] == "wattlaw:power_w=250", told.stderr
    assert "no Slurm prolog of this site has limited job 7" in told.stdout
    assert told.stdout.endswith("hidden\n")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("without") / "store", *study(counts=(1, 2))).path


def test_the_report_has_all_sections_but_the_claims_and_cites_no_study(without, store, tmp_path):
    written = without("wattlaw_papers", "report", store, "-o", "page.html")
    assert (written.returncode, written.stderr) == (0, "")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    sections = re.findall(r'(?:class="section"|class="line") id="(\w+)"', text)
    assert {"scaling", "energy", "data", "methods"} <= {*sections}
    assert "claims" not in sections
    assert 'id="figure-speedup"' in text
    assert "published β</th>" not in text
    assert "arxiv.org/abs/2201.12423." not in text


@pytest.mark.parametrize(
    ("line", "words"),
    [(("report", "--template", "mit-2022"), "allowed: those of add-ons"), (("claims",), "claims")],
)
def test_what_the_papers_have_is_refused_with_what_is_there(without, store, tmp_path, line, words):
    command, *options = line
    refused = without("wattlaw_papers", command, store, *options)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert not list(tmp_path.iterdir())
