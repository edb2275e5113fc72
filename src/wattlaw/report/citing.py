"""How to cite a page, and the studies whose methods it uses."""

from wattlaw import __version__
from wattlaw.analysis.findings import Findings

STUDIES = {
    "mit-2022": "Frey et al. 2022, Benchmarking Resource Usage for Efficient Distributed Deep "
    "Learning.",
    "kit-2025": "Huber et al. 2025, Energy Consumption in Parallel Neural Network Training, "
    "arXiv 2508.07706.",
}


def citations(findings: Findings) -> tuple[str, ...]:
    """Return what to cite: these measurements, the tool, the studies."""
    facts = findings.facts
    told = [facts[name] for name in ("Studies", "Hardware", "Measured") if name in facts]
    commit = facts.get("Git commit")
    return (
        f"These measurements: {'; '.join(told) or 'no run is done'}"
        f"{f'; code at {commit}' if commit else ''}. Say what the energies count.",
        f"The tool: wattlaw {__version__}.",
        *STUDIES.values(),
    )
