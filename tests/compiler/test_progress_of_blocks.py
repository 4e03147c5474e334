"""Which loops wait for other blocks, for which, and what a program can say about it."""

from __future__ import annotations

import pytest

from gpud.compiler.forms.classifier import Decision, Form, classify
from gpud.compiler.pipeline import compile_program
from tests.compiler.support.flat_programs import compiled

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
PARAMETERS = "int* x, int* lock, const int* row, const int* col, const int* prio, int n"


def cuda(body: str, progress: str | None = None) -> Decision:
    source = f'extern "C" __global__ void k({PARAMETERS}) {{ {INDEX} {body} }}'
    return classify(compiled(source), "k", progress=progress)


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.why]


STRIDE = "for (int e = i; e < n; e += gridDim.x * blockDim.x)"

RETRIES = {
    "hooking": f"""{STRIDE} {{ int u = col[e], v = row[e];
        while (u != v) {{ if (u < v) {{ int t = u; u = v; v = t; }}
            int old = atomicCAS(&x[u], u, v); if (old == u) break; u = old; }} }}""",
    "hooking by edges, finding first": f"""volatile int* p = x; {STRIDE} {{
        int u = col[e], v = row[e]; bool again = true;
        while (again) {{ while (p[u] != u) u = p[u]; while (p[v] != v) v = p[v];
            if (u == v) break; int hi = max(u, v), lo = min(u, v);
            again = atomicCAS(&x[hi], hi, lo) != hi; }} }}""",
    "a float sum": """float* f = (float*)x; int old = x[i & 7], seen; do { seen = old;
        old = atomicCAS(x + (i & 7), seen, __float_as_int(__int_as_float(seen) + 1.f));
        } while (old != seen); f[9] = 0;""",
    "relaxation": f"""{STRIDE} {{ int d = prio[e]; bool go = true;
        while (go) {{ int old = atomicMin(&x[col[e]], d); go = old < d && d-- > row[e]; }} }}""",
    "a work queue": """int j; while ((j = atomicAdd(lock, 1)) < n) x[j] = j;""",
    "hashing": f"""{STRIDE} {{ int key = col[e]; unsigned h = key * 2654435761u & 1023;
        while (true) {{ int old = atomicCAS(&x[h], -1, key); if (old == -1 || old == key) break;
            h = (h + 1) & 1023; }} }}""",
}

LOCKS = {
    "test and set": f"""{STRIDE} {{ bool done = false; while (!done) {{
        if (atomicCAS(&lock[col[e]], 0, 1) == 0) {{ __threadfence(); x[col[e]] += e;
            __threadfence(); atomicExch(&lock[col[e]], 0); done = true; }} }} }}""",
    "exchange": f"""{STRIDE} {{ bool done = false; while (!done) {{
        if (atomicExch(&lock[col[e]], 1) == 0) {{ x[col[e]] += e; __threadfence();
            lock[col[e]] = 0; done = true; }} }} }}""",
    "test and test and set": f"""{STRIDE} {{ volatile int* l = lock + col[e];
        while (true) {{ while (*l != 0) ; if (atomicCAS(lock + col[e], 0, 1) == 0) break; }}
        x[col[e]]++; __threadfence(); *l = 0; }}""",
    "backing off": f"""{STRIDE} {{ unsigned ns = 8;
        while (atomicCAS(&lock[col[e]], 0, 1)) {{ __nanosleep(ns); if (ns < 256) ns *= 2; }}
        x[col[e]]++; __threadfence(); atomicExch(&lock[col[e]], 0); }}""",
    "two locks": f"""{STRIDE} {{ int a = col[e], b = row[e]; bool done = false; while (!done) {{
        if (atomicCAS(&lock[a], 0, 1) == 0) {{ if (atomicCAS(&lock[b], 0, 1) == 0) {{
            x[a]++; x[b]--; done = true; __threadfence(); atomicExch(&lock[b], 0); }}
            __threadfence(); atomicExch(&lock[a], 0); }} }} }}""",
    "tree building": """volatile int* child = x; int at = 0, level = 0; bool in = false;
        while (!in) { int ch = child[at * 8 + (prio[i] >> level & 7)];
            while (ch >= n) { at = ch; level++; ch = child[at * 8 + (prio[i] >> level & 7)]; }
            if (ch != -2) { int slot = at * 8 + (prio[i] >> level & 7);
                if (atomicCAS(&x[slot], ch, -2) == ch) { __threadfence(); x[slot] = i; in = true; }
            } __threadfence(); }""",
}

BOUNDED = {
    "reading levels": f"""volatile int* level = x; {STRIDE}
        for (int j = row[e]; j < row[e + 1]; ++j) if (level[col[j]] == 3) {{ x[e] = 4; break; }}""",
    "looking a while": """volatile int* f = x; int tries = 0;
        while (f[col[i]] == 0 && tries < 1000) ++tries; row == 0 ? x[0] = tries : 0;""",
    "finding roots": f"""volatile int* p = x; {STRIDE} {{ int u = e;
        while (p[u] != u) u = p[u]; x[e] = u; }}""",
    "probing": f"""volatile int* t = x; {STRIDE} {{ unsigned h = col[e] & 1023;
        while (t[h] != -1 && t[h] != col[e]) h = (h + 1) & 1023; lock[e] = h; }}""",
    "until a clock": """volatile int* f = x; long long t = clock64();
        while (f[col[i]] == 0 && clock64() - t < 1000) ; lock[i] = 1;""",
}

ORDERED = {
    "the block before": """volatile int* f = x; if (threadIdx.x == 0 && blockIdx.x > 0)
        while (f[blockIdx.x - 1] == 0) ; __syncthreads(); x[blockIdx.x] = 1;""",
    "look back": """__shared__ int tile; if (threadIdx.x == 0) tile = atomicAdd(lock, 1);
        __syncthreads(); volatile int* f = x; int at = 32 + tile - 1 - threadIdx.x; int v;
        do { v = f[at]; } while (__any_sync(~0u, v == 0)); lock[i + 1] = v;""",
    "a member's array": """struct S { volatile int* flags; int n; };
        S* s = (S*)x; while (s->flags[blockIdx.x] == 0) ; lock[i] = 1;""",
}

ANY = {
    "colouring": f"""volatile int* colour = x; {STRIDE} {{ bool done = false; while (!done) {{
        bool ready = true; for (int j = row[e]; j < row[e + 1]; ++j) {{ int u = col[j];
            if (prio[u] > prio[e] && colour[u] == 0) ready = false; }}
        if (ready) {{ colour[e] = 1; done = true; }} }} }}""",
    "colouring, leaving at the first": """volatile int* colour = x; bool done = i >= n;
        while (!done) { int j = row[i]; for (; j < row[i + 1]; ++j) { int u = col[j];
            if (prio[u] > prio[i] && colour[u] == 0) break; }
        if (j == row[i + 1]) { colour[i] = 1; __threadfence(); done = true; } }""",
    "colouring with fences": """bool done = i >= n; while (!done) { __threadfence();
        bool ready = true; for (int j = row[i]; j < row[i + 1]; ++j)
            if (prio[col[j]] > prio[i] && x[col[j]] == 0) ready = false;
        if (ready) { x[i] = 1; done = true; } }""",
    "an independent set": f"""volatile int* stat = x; bool missing; do {{ missing = false;
        {STRIDE} {{ int mine = stat[e]; if (mine & 1) {{ int j = row[e];
            while (j < row[e + 1] && (mine > stat[col[j]] || !(stat[col[j]] & 1))) ++j;
            if (j < row[e + 1]) missing = true; else stat[e] = 2; }} }} }} while (missing);""",
    "a dependency": "volatile int* f = x; while (f[col[i]] == 0) ; f[i] = 1;",
    "a dependency for the block": """volatile int* f = x; __shared__ int go; do {
        __syncthreads(); if (threadIdx.x == 0) go = f[col[blockIdx.x]]; __syncthreads();
        } while (!go); lock[i] = 1;""",
}


@pytest.mark.parametrize("body", RETRIES.values(), ids=RETRIES)
def test_retries_are_resizable(body: str) -> None:
    assert cuda(body).form is Form.PERSISTENT, cuda(body).why


@pytest.mark.parametrize("name", ["hooking", "a float sum"])
def test_a_retry_with_the_value_found_waits_for_nobody(name: str) -> None:
    assert codes(cuda(RETRIES[name])) == ["persistent"]


@pytest.mark.parametrize("body", LOCKS.values(), ids=LOCKS)
def test_locks_are_resizable(body: str) -> None:
    """Whoever holds a lock has begun; nothing is claimed in advance while others wait for it."""
    decision = cuda(body)
    assert decision.form is Form.PERSISTENT, decision.why
    assert decision.waits_on_blocks


@pytest.mark.parametrize("body", BOUNDED.values(), ids=BOUNDED)
def test_loops_with_an_end_of_their_own_are_resizable(body: str) -> None:
    assert cuda(body).form is Form.PERSISTENT, cuda(body).why


@pytest.mark.parametrize("body", ORDERED.values(), ids=ORDERED)
def test_waits_by_position_are_resizable(body: str) -> None:
    decision = cuda(body)
    assert decision.form is Form.PERSISTENT, decision.why
    assert decision.waits_on_blocks
    assert "progress='blocks'" in decision.why[-1].text


@pytest.mark.parametrize("body", ANY.values(), ids=ANY)
def test_waits_that_data_chooses_are_whole(body: str) -> None:
    decision = cuda(body)
    assert decision.form is Form.WHOLE, decision.why
    assert codes(decision) == ["waits-on-any-block"]
    assert decision.why[0].instruction is not None
    assert decision.why[0].instruction.startswith("ld")
    assert "progress='independent'" in decision.why[0].text


# -- what the program says ---------------------------------------------------------------------


@pytest.mark.parametrize("body", ANY.values(), ids=ANY)
def test_a_program_may_say_that_no_block_waits_for_a_later_one(body: str) -> None:
    decision = cuda(body, "independent")
    assert decision.form is Form.PERSISTENT
    if "a dependency for" not in body:
        assert not decision.why[0].code.startswith("waits")


def test_blocks_that_wait_by_position_still_claim_one_at_a_time() -> None:
    """None waits for a block that has not begun, it said: claims in advance would change that."""
    assert cuda(ORDERED["the block before"], "independent").waits_on_blocks


def test_a_grid_barrier_may_be_said_to_be_none() -> None:
    barrier = "if (threadIdx.x == 0) { atomicAdd(x, 1); while (*(volatile int*)x < gridDim.x) ; }"
    assert codes(cuda(barrier)) == ["grid-barrier"]
    assert "progress='independent'" in cuda(barrier).why[0].text
    assert cuda(barrier, "independent").form is Form.PERSISTENT


def test_a_program_may_say_that_its_blocks_wait_for_one_another() -> None:
    decision = cuda("x[i] = 1;", "blocks")
    assert decision.form is Form.WHOLE
    assert codes(decision) == ["progress-blocks"]


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="progress is independent or blocks, not 'none'"):
        compile_program("__global__ void k() {}", progress="none")


def test_what_is_said_is_part_of_the_cache_key(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from gpud.compiler.cache import Cache

    cache = Cache(tmp_path)
    source = 'extern "C" __global__ void k(int* x) { x[blockIdx.x] = 1; }'
    forms = [
        compile_program(source, cache=cache, progress=said).kernels["k"].form
        for said in (None, "blocks", "independent", None)
    ]
    assert forms == [Form.PERSISTENT, Form.WHOLE, Form.PERSISTENT, Form.PERSISTENT]
