"""How to cite a page, and the studies whose methods it uses."""

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.reference.published import SOURCES


def citations(findings: Findings) -> tuple[str, ...]:
    """Return what to cite: these measurements, the tool, the studies."""
    facts = findings.facts
    told = [facts[name] for name in ("Studies", "Hardware", "Ran") if name in facts]
    commit = f"; code at {facts['Git commit']}" if "Git commit" in facts else ""
    what = "These measurements"
    if facts.get("Launcher") == "simulated":
        what = "These simulated runs (nothing was measured)"
    return (
        f"{what}: {'; '.join(told) or 'no run is done'}{commit}. Say what the energies count.",
        f"The tool: wattlaw {__version__}.",
        *(f"{source.citation}, {source.url}." for source in SOURCES.values()),
    )
