"""How each number is computed: formula, explanation and source; and how to cite them."""

import tomllib
from importlib import resources

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.report.sections import Method, added_sections


def citations(findings: Findings) -> tuple[str, ...]:
    facts = findings.facts
    details = [facts[name] for name in ("Studies", "Hardware", "Ran") if name in facts]
    commit = f"; code at {facts['Git commit']}" if "Git commit" in facts else ""
    subject = "These measurements"
    if findings.origins_label:
        subject = f"These {findings.origins_label} runs (nothing was measured)"
    return (
        f"{subject}: {'; '.join(details) or 'no run is done'}{commit}. State what the energies "
        "count.",
        f"The tool: wattlaw {__version__}.",
        *(source for added in added_sections().values() for source in added.citations),
    )


def read_methods() -> tuple[Method, ...]:
    text = resources.files("wattlaw.report").joinpath("templates/methods.toml").read_text("utf-8")
    return tuple(Method(**method) for method in tomllib.loads(text)["methods"])
