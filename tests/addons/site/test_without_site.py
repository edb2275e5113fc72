"""The core limits, restores and asks a site's prolog without the add-on."""

import json

from limiting import Place
from without_addon import python_without, wattlaw_without

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


def test_the_core_works_without_the_add_on(tmp_path, fake_gpus, monkeypatch):
    place = Place(tmp_path, fake_gpus(1, limit_mw=217_500), monkeypatch)
    assert "site-files" not in wattlaw_without("wattlaw_site", "--help").stdout
    assert wattlaw_without("wattlaw_site", "limits", "set", "--power-limit", "150").returncode == 0
    (shown,) = json.loads(wattlaw_without("wattlaw_site", "limits", "show", "--json").stdout)
    assert (shown["power_limit_w"], shown["to_restore"]["power_limit_w"]) == (150.0, 217.5)
    assert wattlaw_without("wattlaw_site", "limits", "restore").returncode == 0
    assert place.limits_w == [217.5]
    told = python_without("wattlaw_site", "-c", ASKS, *place.devices)
    assert told.stdout.splitlines()[0] == "wattlaw:power_w=250", told.stderr
    assert "no Slurm prolog of this site has limited job 7" in told.stdout
    assert told.stdout.endswith("hidden\n")
