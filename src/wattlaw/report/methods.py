"""How each number is computed: formula, explanation and source; and how to cite them."""

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.reference.published import SOURCES
from wattlaw.report.blocks import Method


def citations(findings: Findings) -> tuple[str, ...]:
    """Return how to cite these measurements, wattlaw and the two studies."""
    facts = findings.facts
    details = [facts[name] for name in ("Studies", "Hardware", "Ran") if name in facts]
    commit = f"; code at {facts['Git commit']}" if "Git commit" in facts else ""
    subject = "These measurements"
    if facts.get("Launcher") == "simulated":
        subject = "These simulated runs (nothing was measured)"
    return (
        f"{subject}: {'; '.join(details) or 'no run is done'}{commit}. State what the energies "
        "count.",
        f"The tool: wattlaw {__version__}.",
        *(f"{source.citation}, {source.url}." for source in SOURCES.values()),
    )


METHODS = (
    Method(
        "Time of an epoch",
        "T = mean over epochs of max over hosts of the training window",
        "Training and evaluation of an epoch are separate windows; at their edges the device is "
        "synchronised and all workers wait for each other. Warm-up epochs are measured, but not "
        "counted here. Evaluation never counts as training.",
        "wattlaw's documentation, measuring.md",
    ),
    Method(
        "Energy of an epoch",
        "E = sum over hosts of the energies of GPUs, CPU packages and DRAM, that have a meter",
        "From the devices' counters if they have one, else from power samples over time. Windows "
        "that samples cover only in part are left out. A value that was not measured is missing, "
        "never 0. An estimate is busy core-seconds times assumed watts per core; it is marked.",
        "wattlaw's documentation, measuring.md; on what such sensors see, arXiv 2312.02741",
    ),
    Method(
        "Repeats",
        "mean ± t(0.975, n − 1) · s / √n",
        "A setting's runs as mean with the 95 % interval of Student's t; a single run has none.",
        "textbook",
    ),
    Method(
        "Power law",
        "t = α N^−β, fitted as ln t = ln α − β ln N",
        "Ordinary least squares over runs. Where repeats of a count share a deviation from the "
        "law (F test of lack of fit), intervals are from the counts' means instead, since runs "
        "are not independent then. Robust (HC3) errors are in the JSON of wattlaw fit.",
        "Frey et al. 2022; MacKinnon and White 1985, J. Econometrics 29",
    ),
    Method(
        "Other laws",
        "α N^(−β + γ ln N);  a/N + b;  t₁ (1 + σ(N−1) + κN(N−1))/N;  a/N + b + c ln N",
        "Log-normal, Amdahl, universal scalability, and compute plus communication, fitted to "
        "ln t; compared by AICc and by the prediction error at the largest N, which the fit omits.",
        "Amdahl 1967; Gunther 2007; Thakur et al. 2005; Hurvich and Tsai 1989, Biometrika 76",
    ),
    Method(
        "Breakpoint",
        "ln t = a − b ln N + d max(0, ln N − ln c)",
        "Two power laws that meet at a measured count c; the p value accounts for the search of c: "
        "it is from the simulated distribution of the statistic without a breakpoint.",
        "Andrews 1993, Econometrica 61",
    ),
    Method(
        "Speedup, efficiency, normalised energy",
        "S = T(R)/T(N);  S·R/N, or S where the data set grows with N;  E(N)/E(R)",
        "Ratios of geometric means over repeats to the reference count R; t intervals of log "
        "ratios with the variance pooled over the series. Where the data set grows with N, the "
        "work per GPU is constant, so parallel efficiency is T(R)/T(N); and epochs differ in work, "
        "so energies are per sample.",
        "Frey et al. 2022",
    ),
    Method(
        "Caps and clocks",
        "ln t = a_l − β_l ln N for each limit l",
        "Analysis of covariance: an F test for different exponents, and two one-sided tests for "
        "exponents that are equal within a margin. The best limit has the lowest energy among "
        "those within the allowed slowdown; limits that may be better are named.",
        "Schuirmann 1987, J. Pharmacokinet. Biopharm. 15; Hsu 1984, Ann. Statist. 12",
    ),
    Method(
        "Energy law",
        "E = f · h;  E = E₀ + f · h;  E = k h^γ, with h = N T / 3600 the GPU-hours",
        "Least squares over settings (means of repeats), weighted by 1/h² or in logs; the factor f "
        "in W is the mean power of a GPU. Its dependence: ln f ~ ln samples per GPU-hour + ln "
        "steps per GPU-hour + workload + hardware, errors clustered by setting.",
        "Huber et al. 2025, arXiv 2508.07706; Liang and Zeger 1986, Biometrika 73",
    ),
    Method(
        "Energy-delay products",
        "E · T and E · T²",
        "Of an epoch; the second weighs time more.",
        "Gonzalez and Horowitz 1996, IEEE J. Solid-State Circuits 31",
    ),
    Method(
        "Utilisation",
        "CV = σ / μ over all samples of a run's training windows",
        "Shares of time in which a kernel ran (SM) or device memory was read or written. They show "
        "that a GPU was in use, not how efficiently.",
        "Frey et al. 2022",
    ),
    Method(
        "Quality against global batch",
        "mean_i − max of mean_j over j ≠ i",
        "Multiple comparisons with the best; their intervals have simultaneous coverage for all "
        "batches. Quality falls beyond a batch if all larger ones are worse than the best.",
        "Hsu 1996, Multiple Comparisons",
    ),
    Method(
        "Claims",
        "effect inside, outside or across a range that was set in advance",
        "One-sided tests at 5 %. With several workloads all must agree, and a contradiction is "
        "tested at 5 % divided by their number.",
        "Schuirmann 1987; Berger 1982, Technometrics 24",
    ),
    Method(
        "Carbon and cost",
        "kg CO2e = E · PUE · I / 1000;  cost = E · PUE · price + GPU-hours · price",
        "E in kWh, I in g CO2e per kWh. The energy is of the parts that have a meter, so both are "
        "lower bounds. Manufacturing of the machines is not included.",
        "Green Software Foundation, SCI (ISO/IEC 21031:2024); ISO/IEC 30134-2 (PUE)",
    ),
)
