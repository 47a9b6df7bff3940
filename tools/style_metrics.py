#!/usr/bin/env python3
"""Rough size/comment/test metrics for a C++ tree (heuristic, no compiler).

usage: style_metrics.py ROOT [ROOT...]     one Markdown table row per ROOT
Function bodies are found by brace matching on comment/string-stripped text;
lambdas inside a function count towards that function. Generated, vendored and
third-party folders are skipped; files whose path has 'test', 'bench', 'example'
or 'mock' are counted as test code, not as product code.
"""
import os, re, sys
EXT = {'cc','cpp','cxx','c++','h','hh','hpp','hxx','cu','cuh','c'}
SKIP = {'third_party','3rdparty','thirdparty','subprojects','deps','vendor','build','node_modules','.git','.venv'}
CTRL = re.compile(r'^\s*(?:\}?\s*)?(?:else\b.*|if|for|while|switch|catch|do|try|return|namespace|class|struct|union|enum|extern|case|default|using|typedef|template\s*<[^{}]*>\s*(?:class|struct|union|concept))\b')

def strip(src):
    out=[]; i=0; n=len(src); com=0
    lines_with_comment=set(); line=1
    while i<n:
        c=src[i]
        if src.startswith('//',i):
            j=src.find('\n',i); j=n if j<0 else j
            lines_with_comment.add(line); i=j; continue
        if src.startswith('/*',i):
            j=src.find('*/',i+2); j=n if j<0 else j+2
            seg=src[i:j]
            for k in range(seg.count('\n')+1): lines_with_comment.add(line+k)
            out.append('\n'*seg.count('\n')); line+=seg.count('\n'); i=j; continue
        m=re.match(r'R"([^()\\ ]{0,16})\(',src[i:i+20]) if c=='R' else None
        if m:
            end=')'+m.group(1)+'"'; j=src.find(end,i); j=n if j<0 else j+len(end)
            seg=src[i:j]; out.append('""'+'\n'*seg.count('\n')); line+=seg.count('\n'); i=j; continue
        if c=='"' or (c=="'" and not (i and (src[i-1].isalnum() or src[i-1]=='_'))):
            j=i+1
            while j<n and src[j]!=c and src[j]!='\n': j+=2 if src[j]=='\\' else 1
            out.append(c+c); i=min(j+1,n) if j<n and src[j]==c else j; continue
        if c=='\n': line+=1
        out.append(c); i+=1
    return ''.join(out), lines_with_comment

def is_fn_tail(h):
    """True if the text after the parameter list looks like a function's, not a lambda's or initialiser's."""
    h=h[-1500:]
    tail=h[h.rfind(')')+1:]
    if len(tail)>200: return False
    if re.match(r'\s*\]',tail): return False
    # a lambda at namespace/class scope: "= [..](..) {"
    if re.search(r'=\s*\[[^\]]*\]\s*(\(|$)',h): return False
    return True

def functions(code):
    # drop preprocessor lines (keep line count)
    ls=code.split('\n'); cont=False
    for k,l in enumerate(ls):
        if cont or l.lstrip().startswith('#'):
            cont=l.rstrip().endswith('\\'); ls[k]=''
        else: cont=False
    code='\n'.join(ls)
    res=[]; stack=[]; seg=0; line=1; segline=1; fresh=True
    for i,c in enumerate(code):
        if c=='\n': line+=1
        if fresh and not c.isspace(): segline=line; fresh=False
        if c=='{':
            head=code[max(seg,i-1500):i]
            kind='block'
            if not any(k=='fn' for k,_,_ in stack):
                tail=head[head.rfind(')')+1:] if ')' in head else ''
                h=re.sub(r'\b(?:public|private|protected)\s*:','',head)
                if ')' in head and re.search(r'[:,]\s*[\w:<>]+\s*$',tail) and not re.search(r'->',tail):
                    kind='init'
                elif ')' in head and not CTRL.match(h[-400:].lstrip()) and not re.search(r'(?<![=!<>+*/-])=\s*$',h[-40:]) and is_fn_tail(h):
                    kind='fn'
            stack.append((kind,segline,seg))
            if kind!='init': seg=i+1; fresh=True
        elif c=='}':
            if stack:
                kind,sl,sg=stack.pop()
                if kind=='fn': res.append((line-sl+1,sl))
                if kind=='init': continue
            seg=i+1; fresh=True
        elif c==';' and not (stack and stack[-1][0]=='init'):
            seg=i+1; fresh=True
    return res

def q(a,p): return a[min(len(a)-1,int(len(a)*p))] if a else 0
def measure(root):
    files=[]; fns=[]; com=tot=0; tl=0; tf=0
    for d,ds,fs in os.walk(root):
        ds[:]=[x for x in ds if x not in SKIP]
        for f in fs:
            if f.rsplit('.',1)[-1] not in EXT or re.search(r'\.capnp\.|_generated|singleheader',f): continue
            p=os.path.join(d,f); rel=p[len(root):]
            src=open(p,errors='replace').read()
            nb=sum(1 for l in src.split('\n') if l.strip())
            if re.search(r'test|bench|example|mock|demo',rel,re.I): tf+=1; tl+=nb; continue
            files.append((nb,rel)); code,cl=strip(src); com+=len(cl); tot+=nb
            fns+=[(n,rel,l) for n,l in functions(code)]
    fl=sorted(n for n,_ in files); fn=sorted(n for n,_,_ in fns)
    pct=lambda a,k: 100*sum(1 for x in a if x<=k)//max(1,len(a))
    print(f"| {root} | {len(fl)} | {sum(fl)} | {q(fl,.5)} / {q(fl,.9)} / {fl[-1] if fl else 0} | {pct(fl,300)}% | {q(fn,.5)} / {q(fn,.9)} / {q(fn,.99)} | {pct(fn,40)}% | {100*com//max(1,tot)}% | {tl/max(1,sum(fl)):.2f} |")
    if '-v' in sys.argv:
        for n,r,l in sorted(fns,reverse=True)[:5]: print('   ',n,r,l)
print("| tree | files | non-blank lines | file med / p90 / max | files ≤300 | fn med / p90 / p99 | fns ≤40 | comment lines | test:code |")
print("|---|---|---|---|---|---|---|---|---|")
for r in sys.argv[1:]:
    if r!='-v': measure(r.rstrip('/'))
