import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd
from scipy import stats

import prediction_data as D
from prediction_cases import cases
from wattlaw.analysis.predict import Observation, fit
from wattlaw.study.setting import Setting

D.FOLDER = D.Path("/work/shared/data")


def layouts():
    d = pd.read_csv(D.FOLDER / "parallel_layouts.csv")
    d = d[d.status == "ok"]
    for c in ("tp", "pp", "cp"):
        d = d[d[c].fillna(1) == 1]
    d = d[~d.source.isin(["internevo memory"])]
    d["step"] = d.step_time_s
    tok = d.tokens_per_s_per_gpu * d.gpus
    d["step"] = d.step.fillna(d.global_batch * d.seq_len / tok)
    d = d[d.step.notna() & d.micro_batch.notna()]
    for key, r in d.groupby(
        ["source", "model", "hardware", "seq_len", "zero_or_fsdp", "act_ckpt"], dropna=False
    ):
        obs = []
        for x in r.itertuples():
            ga = (
                int(x.grad_acc)
                if x.grad_acc == x.grad_acc
                else max(1, round(x.global_batch / (x.gpus * x.micro_batch)))
            )
            node = int(x.gpus_per_node) if x.gpus_per_node == x.gpus_per_node else 8
            obs.append(
                Observation(
                    Setting.packed(
                        int(x.gpus),
                        node,
                        local_batch=float(x.micro_batch) * ga,
                        gradient_accumulation=ga,
                    ),
                    float(x.step),
                )
            )
        yield key, obs


def make():
    for c in cases():
        yield (
            "T4:" + c.family + ":" + c.contest.split(" to")[0]
            if c.contest.startswith("T4")
            else c.contest.split(":")[1].strip() + ":" + c.family,
            c.family,
            c.train,
            c.test,
        )
    for key, obs in layouts():
        ns = sorted({o.setting.gpus for o in obs})
        if len(ns) < 3:
            continue
        for cut in sorted({(len(ns) + 1) // 2, len(ns) - 1}):
            tr = [o for o in obs if o.setting.gpus <= ns[cut - 1]]
            te = [o for o in obs if o.setting.gpus > ns[cut - 1]]
            yield ("dp:" + key[0].split(" ")[0], str(key), tr, te)
    for job in D.caps():
        rows = job.observations
        if len(rows) < 4:
            continue
        seen = [0, len(rows) // 2, len(rows) - 1]
        yield (
            "caps:" + job.family.split()[-1],
            job.name,
            [rows[i] for i in seen],
            [r for i, r in enumerate(rows) if i not in seen],
        )


def sc(d, true):
    lo, mid, hi = np.quantile(d, [0.05, 0.5, 0.95])
    l = np.log(d)
    t = np.log(true)
    ls = float(np.log(max(stats.gaussian_kde(l)(t)[0], 1e-9)))
    s = np.sort(l)
    n = len(s)
    crps = np.abs(s - t).mean() - ((2 * np.arange(1, n + 1) - n - 1) * s).sum() / n**2
    return (mid / true - 1, lo <= true <= hi, hi / lo, ls, crps)


def one(a):
    fam, name, tr, te = a
    try:
        p = fit(tr, seed=0)
    except Exception as e:
        return fam, [("x", str(e))]
    _, t, w = p.runs([o.setting for o in te])
    out = []
    for k, o in enumerate(te):
        out.append(sc(t[:, k], o.step_time_s))
    if fam.startswith("caps"):
        r = [
            (fam + " time", out),
            (fam + " power", [sc(w[:, k], o.power_per_gpu_w) for k, o in enumerate(te)]),
            (
                fam + " energy",
                [sc((t * w)[:, k], o.power_per_gpu_w * o.step_time_s) for k, o in enumerate(te)],
            ),
        ]
    else:
        r = [(fam, out)]
    fit.__globals__["_fit"].cache_clear()
    return r


if __name__ == "__main__":
    sel = sys.argv[1] if len(sys.argv) > 1 else ""
    import re

    C = [c for c in make() if re.search(sel, c[0])]
    if not sel:
        C = [c for i, c in enumerate(C) if not c[0].startswith("caps") or i % 3 == 0]
    t0 = time.time()
    R = defaultdict(list)
    with ProcessPoolExecutor(2) as ex:
        for r in ex.map(one, C, chunksize=2):
            for f, o in r:
                R[f] += o
    for f, v in sorted(R.items()):
        a = np.array(v, float)
        e = np.abs(a[:, 0])
        print(
            f"{f:42} n {len(a):4} med {np.median(e):6.1%} p90 {np.quantile(e, 0.9):6.1%} bias {np.median(a[:, 0]):+.2f} cov {a[:, 1].mean():.2f} w {np.median(a[:, 2]):6.2f} ls {a[:, 3].mean():+.2f} crps {a[:, 4].mean():.3f}"
        )
    print(len(C), time.time() - t0)
