import pickle, numpy as np, sys
from collections import defaultdict
R=pickle.load(open('/tmp/dump41.pkl','rb'))
def beyond(g,n,p,dice):
    size=p['slope']*np.exp(p['spread']*dice.standard_normal((n,1)))
    slope=size*np.where(dice.random((n,1))<p['slower'],1,-.5)
    sat=np.floor(dice.exponential(1/p['sh'],(n,1))); st=dice.uniform(p['s0'],p['s1'],(n,1))
    full=dice.exponential(1/p['fh'],(n,1))
    nodes=np.maximum(g['nodes'],g['gpus']*~g['placed'])
    b=dice.standard_normal((n,1))*p['batch']*g['batch']
    f=np.where(g['hasb'],1.0,p['nob'])
    return f*(slope*g['gpus']+st*(nodes>sat)+np.log(2)*np.maximum(g['gpus']-full,0))+b
def ev(p,show=False):
    F=defaultdict(list)
    for i,(fam,name,lt,t,g) in enumerate(R):
        dice=np.random.default_rng(i)
        x=lt+(beyond(g,lt.shape[0],p,dice) if p else 0)
        q=np.quantile(x,[.05,.5,.95],axis=0)
        h=1.06*x.std(0)*x.shape[0]**-.2
        ls=np.log(np.maximum((np.exp(-.5*((t-x)/h)**2)/h/2.5066).mean(0),1e-9))
        for k in range(x.shape[1]):
            d=g['gpus'][k]
            F[fam.split(' (')[0]].append((q[1,k]-t[k],q[0,k]<=t[k]<=q[2,k],q[2,k]-q[0,k],ls[k],d))
    if show:
        for f,v in F.items():
            a=np.array(v,float); one=a[a[:,4]<=1.01]
            print(f'{f:42} n {len(a):3} med {np.median(np.abs(np.expm1(a[:,0]))):6.1%} bias {np.median(a[:,0]):+.2f} cov {a[:,1].mean():.2f} one {one[:,1].mean() if len(one) else np.nan:.2f} w {np.exp(np.median(a[:,2])):5.2f} w1 {np.exp(np.median(one[:,2])) if len(one) else 0:5.2f} ls {a[:,3].mean():+.2f}')
    s={f:np.mean([r[3] for r in v]) for f,v in F.items()}
    return np.mean([v for f,v in s.items() if f.startswith('zoo')]),np.mean([v for f,v in s.items() if not f.startswith('zoo')])
P0=dict(slope=.02,spread=1.0,slower=.8,sh=.05,s0=.1,s1=.8,fh=.02,batch=.04,nob=.5)
if __name__=='__main__':
    print('none',ev(None)); 
    print('P0',ev(P0,True))
    for k,vals in dict(slope=[.005,.01,.03],spread=[.5,1.4],slower=[.6,1.0],sh=[.01,.1],s1=[.5,1.2],fh=[.005,.04],nob=[0.,1.]).items():
        for v in vals: print(k,v,ev(P0|{k:v}))
