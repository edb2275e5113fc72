"""How each number was found: formula, words, source."""

from wattlaw.report.blocks import Method

METHODS = (
    Method(
        "Time of an epoch",
        "T = mean over epochs of max over hosts of the training window",
        "Training and evaluation of an epoch are separate windows; at their edges the device is "
        "synchronised and all workers meet. Warm-up epochs are measured, and left out here. "
        "Evaluation never counts as training.",
        "wattlaw's documentation, measuring.md",
    ),
    Method(
        "Energy of an epoch",
        "E = sum over hosts of the energies of GPUs, CPU packages and DRAM, as far as metered",
        "From the devices' counters where they have one, else from power samples over time. "
        "Windows that samples cover in part only are left out. What was not measured is missing, "
        "never 0. An estimate is busy core-seconds times assumed watts per core, and called so.",
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
        "are then no independent evidence. Robust (HC3) errors are in the JSON of wattlaw fit.",
        "Frey et al. 2022; MacKinnon and White 1985, J. Econometrics 29",
    ),
    Method(
        "Other laws",
        "α N^(−β + γ ln N);  a/N + b;  t₁ (1 + σ(N−1) + κN(N−1))/N;  a/N + b + c ln N",
        "Log-normal, Amdahl, universal scalability, and compute plus communication, fitted to "
        "ln t; compared by AICc and by the error at the largest N of a fit without it.",
        "Amdahl 1967; Gunther 2007; Thakur et al. 2005; Hurvich and Tsai 1989, Biometrika 76",
    ),
    Method(
        "Breakpoint",
        "ln t = a − b ln N + d max(0, ln N − ln c)",
        "Two power laws that meet at a measured count c; the p value is corrected for the search "
        "of c by drawing the statistic's distribution without a breakpoint.",
        "Andrews 1993, Econometrica 61",
    ),
    Method(
        "Speedup, efficiency, normalised energy",
        "S = T(R)/T(N);  S·R/N, or S where the data set grows with N;  E(N)/E(R)",
        "Ratios of geometric means over repeats to the reference count R; t intervals of log "
        "ratios with the variance pooled over the series. Where the data set grows with N, a GPU "
        "has as much to do at every N, so that parallel efficiency is T(R)/T(N); and epochs are "
        "different work, so that energies are those of a sample.",
        "Frey et al. 2022",
    ),
    Method(
        "Caps and clocks",
        "ln t = a_l − β_l ln N for each limit l",
        "Analysis of covariance: an F test for different exponents, and two one-sided tests for "
        "exponents that are equal within a margin. The best limit has the least energy among those "
        "that slow down by no more than is allowed; limits that may be better are named.",
        "Schuirmann 1987, J. Pharmacokinet. Biopharm. 15; Hsu 1984, Ann. Statist. 12",
    ),
    Method(
        "Energy law",
        "E = f · h;  E = E₀ + f · h;  E = k h^γ, with h = N T / 3600 the GPU-hours",
        "Least squares over settings (means of repeats), weighted by 1/h² or in logs; the factor f "
        "in W is the mean power of a GPU. Its dependence: ln f ~ ln samples per GPU-hour + ln "
        "steps per GPU-hour + workload + hardware, errors robust to what repeats share.",
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
        "Shares of time in which a kernel ran (SM) or device memory was read or written. They say "
        "that a GPU was in use, not how well.",
        "Frey et al. 2022",
    ),
    Method(
        "Quality against global batch",
        "mean_i − max of mean_j over j ≠ i",
        "Multiple comparisons with the best, whose intervals hold for all batches together; "
        "quality falls beyond a batch if all that are larger are worse than the best.",
        "Hsu 1996, Multiple Comparisons",
    ),
    Method(
        "Claims",
        "effect inside, outside or across a range that was set before",
        "One-sided tests at 5 %; over several workloads all must agree, and a contradiction is "
        "tested at 5 % over their number.",
        "Schuirmann 1987; Berger 1982, Technometrics 24",
    ),
    Method(
        "Carbon and cost",
        "kg CO2e = E · PUE · I / 1000;  cost = E · PUE · price + GPU-hours · price",
        "E in kWh, I in g CO2e per kWh. The energy is that of the parts that were metered, so that "
        "both are lower bounds. Making the machines is not in it.",
        "Green Software Foundation, SCI (ISO/IEC 21031:2024); ISO/IEC 30134-2 (PUE)",
    ),
)
