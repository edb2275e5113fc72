"""The cluster that the tests of this folder share; it is idle before and after each test."""

import os
import shutil

import pytest

from slurm.cluster import PROGRAMS, Cluster
from slurm.studies import Desk


@pytest.fixture(scope="session")
def started_cluster():
    if os.geteuid() != 0:
        pytest.exit("tests/slurm makes namespaces and device files: run it as root", 1)
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        names = ", ".join(missing)
        pytest.exit(f"tests/slurm: not on PATH: {names} (Debian's slurm-wlm, munge)", 1)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster):
    yield started_cluster
    started_cluster.repair()


@pytest.fixture
def shared(cluster):
    return cluster.fresh_folder()


@pytest.fixture
def desk(cluster):
    return Desk(cluster, cluster.fresh_folder())
