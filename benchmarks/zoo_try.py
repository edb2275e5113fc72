import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import truths
from wattlaw.analysis.predict import Observation, fit
from wattlaw.study.setting import Setting


def one(a):
    kind, seed, rep = a
    j = truths.draw(kind, seed, repeats=rep)
    obs = [
        Observation(
            Setting.packed(r.at.gpus, j.node_gpus, local_batch=float(r.at.batch)),
            r.step_s,
            session=r.session,
        )
        for r in j.runs
    ]
    p = fit(obs, seed=0)
    t = p.runs(
        [Setting.packed(r.at.gpus, j.node_gpus, local_batch=float(r.at.batch)) for r in j.targets]
    )[1]
    out = []
    for k, r in enumerate(j.targets):
        lo, mid, hi = np.quantile(t[:, k], [0.05, 0.5, 0.95])
        out.append((lo <= r.step_s <= hi, hi / lo, mid / r.step_s - 1))
    fit.__globals__["_fit"].cache_clear()
    return kind, out


if __name__ == "__main__":
    n = int(sys.argv[1])
    rep = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    t0 = time.time()
    R = defaultdict(list)
    with ProcessPoolExecutor(2) as ex:
        for k, o in ex.map(one, [(k, s, rep) for k in truths.KINDS for s in range(n)], chunksize=4):
            R[k].append(o)
    for k, v in R.items():
        a = np.array(v, float)
        print(
            f"{k:18} cover 2x {a[:, 0, 0].mean():.2f} 4x {a[:, 1, 0].mean():.2f} 8x {a[:, 2, 0].mean():.2f} all {a[:, :, 0].mean():.2f} | hi/lo {np.median(a[:, 0, 1]):.2f} {np.median(a[:, 1, 1]):.2f} {np.median(a[:, 2, 1]):.2f} | err {np.median(a[:, :, 2]):+.2f} abs {np.median(abs(a[:, :, 2])):.2f} slower {np.mean(a[:, :, 2] < 0):.2f}"
        )
    print(time.time() - t0)
