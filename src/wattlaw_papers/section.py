"""What the report shows of the two studies: their layouts, claims, exponents and citations."""

from collections import Counter
from collections.abc import Iterator, Sequence

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fitting import Fit
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.sections import Content, Layout, Method, Parts, Section
from wattlaw_papers.claims import check_claims
from wattlaw_papers.claims.verdicts import (
    CONTRADICTED,
    NOT_DECIDABLE,
    SCOPES,
    SIMULATED,
    SUPPORTED,
    Claim,
)
from wattlaw_papers.published import SOURCES, Published, published

_COMMAND = "wattlaw claims STORE --json"
#: The summary names the supported claims if there are at most this number.
_MAX_NAMED = 4


def _layout(study: str, sections: str, figures: str, reference: int | None = None) -> Layout:
    source = f"layout, figures and claims of {SOURCES[study].name}"
    return Layout(
        tuple(sections.split()), tuple(figures.split()), study, source, reference, SCOPES[study]
    )


LAYOUTS = {
    "mit-2022": _layout(
        "mit-2022",
        "environment utilisation energy caps scaling claims data methods",
        "epoch_time epoch_time_by_cap epoch_time_by_clock speedup energy energy_speed "
        "effects_by_cap effects_by_clock utilisation joint variation_by_cap variation_by_clock",
        reference=2,
    ),
    "kit-2025": _layout(
        "kit-2025",
        "environment scaling energy batch claims data methods",
        "epoch_time speedup energy gpu_hours factor strong_scaling constant_local_batch "
        "growing_data quality",
    ),
}


def _build(content: Content) -> Parts:
    """Yield the claims, in a layout those of its study; nothing if none is decided."""
    findings, study = content.findings, content.layout.name
    claims = check_claims(
        findings.stored, findings.epochs, statistics=findings.statistics,
        footprint=findings.footprint, energy_scope=content.energy_scope,
    )  # fmt: skip
    claims = tuple(claim for claim in claims if study in (None, claim.study))
    is_decided = {claim.verdict for claim in claims} & {SUPPORTED, CONTRADICTED}
    if is_decided or study is not None:
        yield from claim_sentences(findings, claims)
        yield from (verdicts(claims, each) for each in SOURCES)
        yield by_workload(claims)


def verdicts(claims: Sequence[Claim], study: str) -> tables.Table | None:
    columns = [
        tables.text("claim", lambda claim: claim.claim),
        tables.text("verdict here", lambda claim: claim.verdict),
        tables.text("evidence", lambda claim: claim.evidence),
        tables.text("tested as", lambda claim: claim.criterion),
    ]
    return tables.build(
        f"claims-{study}",
        f"Claims of {SOURCES[study].name}, tested on these data",
        columns,
        [claim for claim in claims if claim.study == study],
        note="Supported: one-sided tests at 5 % show the effect inside the tested range. "
        "Contradicted: they show it outside. Not decidable: neither, or it was not measured. "
        "Simulated: only simulated runs could be tested, which show what the simulator assumes.",
        command=_COMMAND,
        max_open_rows=40,
    )


def by_workload(claims: Sequence[Claim]) -> tables.Table | None:
    columns = [
        tables.text("claim", lambda row: row[0].claim),
        tables.text("runs of", lambda row: row[1].label),
        tables.text("verdict", lambda row: row[1].verdict),
        tables.text("evidence", lambda row: row[1].evidence),
    ]
    rows = [(claim, part) for claim in claims for part in claim.workloads]
    return tables.build("claims_by_workload", "Claims by workload", columns, rows, command=_COMMAND)


def claim_sentences(findings: Findings, claims: Sequence[Claim]) -> Iterator[str]:
    for study in dict.fromkeys(claim.study for claim in claims):
        in_study = [claim for claim in claims if claim.study == study]
        counts = Counter(claim.verdict for claim in in_study)
        text = (
            f"Of {len(in_study)} claims of {SOURCES[study].name}: {counts[SUPPORTED]} supported, "
            f"{counts[CONTRADICTED]} contradicted, {counts[NOT_DECIDABLE]} not decidable from "
            "these data."
        )
        if counts[SIMULATED]:
            text += f" {counts[SIMULATED]} were tested on simulated runs alone and are not scored."
        if "estimated" in (findings.energy or ""):
            text += " Energies are estimated, so claims about energy are not tested by measurement."
        for verdict, most in ((CONTRADICTED, len(in_study)), (SUPPORTED, _MAX_NAMED)):
            named = [claim.claim.rstrip(".") for claim in in_study if claim.verdict == verdict]
            if 0 < len(named) <= most:
                text += f" {verdict.capitalize()}: {'; '.join(named)}."
        yield text


def _published(fit: Fit) -> Published | None:
    values = published(quantity="beta", workload=str(fit.group.get("workload")))
    limits = [fit.group.get(name) for name in POWER_SETTINGS]
    own = (v for v in values if [getattr(v, name, None) for name in POWER_SETTINGS] == limits)
    return next(own, None)


def _published_beta(fit: Fit) -> str | None:
    value = _published(fit)
    if value is None:
        return None
    counts = f"N {value.gpus_min} to {value.gpus_max}" if value.gpus_max else "N unknown"
    return f"{fmt.number(value.value)} ({counts}; {value.source.name}, {value.hardware})"


def _beta_in_published_range(fit: Fit) -> float | None:
    value = _published(fit)
    if value is None or fit.law is None or not (value.gpus_min and value.gpus_max):
        return None
    return fit.law.beta_within(value.gpus_min, value.gpus_max)


SECTION = Section(
    "Published claims on these data",
    _build,
    methods=(
        Method(
            "Claims",
            "effect inside, outside or across a range that was set in advance",
            "One-sided tests at 5 %. With several workloads all must agree, and a contradiction is "
            "tested at 5 % divided by their number.",
            "Schuirmann 1987; Berger 1982, Technometrics 24",
        ),
        Method(
            "Exponents under limits",
            "ln t = a_l − β_l ln N for each limit l",
            "Analysis of covariance: an F test for different exponents, and two one-sided tests "
            "for exponents that are equal within a margin.",
            "Schuirmann 1987, J. Pharmacokinet. Biopharm. 15",
        ),
        Method(
            "Energy factor",
            "ln f ~ ln samples per GPU-hour + ln steps per GPU-hour + workload + hardware",
            "Least squares over runs, errors clustered by setting.",
            "Liang and Zeger 1986, Biometrika 73",
        ),
    ),
    layouts=LAYOUTS,
    law_columns=(
        tables.number("β in the published range", _beta_in_published_range),
        tables.text("published β", _published_beta),
    ),
    citations=tuple(f"{source.citation}, {source.url}." for source in SOURCES.values()),
)
