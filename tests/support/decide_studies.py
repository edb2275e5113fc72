"""Studies with ``decide`` that are run, for several test files."""

from conftest import records
from wattlaw.api.deciding import StoreDecider
from wattlaw.api.studies import load_study
from wattlaw.running.campaign import Campaign
from wattlaw.store.store import Store

QUESTION = {"minimize": "gpu_hours"}


def run_with(study, store, launcher):
    """Run a study with a launcher, at most one run at a time."""
    loaded = load_study(study)
    opened = Store(store)
    opened.create()
    decider = StoreDecider(loaded.plan.study, loaded.plan.runs, store)
    plan = loaded.plan
    return Campaign(plan.study, plan.runs, opened, launcher, [], None, decider).run()


def statuses(store):
    return sorted((record.status, record.reason or "") for record in records(store).values())
