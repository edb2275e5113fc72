import pickle
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import lofo_try
import truths
import wattlaw.analysis.predict.posterior as PO
from wattlaw.analysis.predict import Observation, fit
from wattlaw.analysis.predict.layout import Layout
from wattlaw.study.setting import Setting

PO.draw_beyond = lambda seen, wanted, draws, seed: 0.0


def geo(p, te):
    s = Layout.of_observations(p.observations, p.reference)
    w = Layout.of(te, p.reference)
    b = lambda a, c: np.maximum(np.log2(c) - np.log2(a).max(), 0)
    o = lambda a, c: np.maximum(b(a, c), np.maximum(np.log2(a).min() - np.log2(c), 0))
    return dict(
        gpus=b(s.gpus, w.gpus),
        nodes=b(s.nodes, w.nodes),
        placed=w.is_placed,
        batch=o(s.micro, w.micro),
        hasb=w.has_batch,
    )


def one(a):
    fam, name, tr, te, truth = a
    p = fit(tr, seed=0)
    st = [o for o in te]
    t = p.runs(st)[1][::4]
    fit.__globals__["_fit"].cache_clear()
    return fam, name, np.log(t), np.log(truth), geo(p, st)


def work():
    for k in truths.KINDS:
        for s in range(int(sys.argv[1])):
            j = truths.draw(k, s, repeats=1 + (s % 3 == 2))
            S = lambda r: Setting.packed(r.at.gpus, j.node_gpus, local_batch=float(r.at.batch))
            yield (
                "zoo:" + k,
                str(s),
                [Observation(S(r), r.step_s, session=r.session) for r in j.runs],
                [S(r) for r in j.targets],
                [r.step_s for r in j.targets],
            )
    for c in lofo_try.make():
        if c[0].startswith("caps"):
            continue
        yield (c[0], c[1], c[2], [o.setting for o in c[3]], [o.step_time_s for o in c[3]])


if __name__ == "__main__":
    t0 = time.time()
    with ProcessPoolExecutor(2) as ex:
        R = list(ex.map(one, list(work()), chunksize=2))
    pickle.dump(R, open("/tmp/dump41.pkl", "wb"))
    print(len(R), time.time() - t0)
