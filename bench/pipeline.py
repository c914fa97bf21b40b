#!/usr/bin/env python3
"""What does it cost to have a model in parts, and what do several steps under way gain? Tokens a second of one process, and of two,
as stages and as ranks, over every kind of link.

usage: bench/pipeline.py COKV [--geometry bench/geometries/qwen2.5-0.5b-served.json] [--dtype bf16] [--at-once 1,8,32]
                         [--tokens 64] [--starts 0,16] [--links tcp,shm,ucx,mpi] [--rounds 3] [--json FILE]

Each run: AT-ONCE greedy answers of TOKENS tokens without end tokens, to prompts of 16. Two processes compute with a thread each, so the fair
baseline is one process with two, and that with one shows what a stage by itself could do at the most: stages that never waited would be
twice as fast. `one step` is two stages with --microbatches 1: the same without steps under way at once. `copies`: the second
stage's KV is kept by the first (--replicas 1).
Medians of ROUNDS rounds, set-ups in turn.
"""
import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading

from failover import MODEL, ROOT
from lib_parts import Parts
from lib_servers import Server, complete


def throughput(port, count, tokens):
    got = [None] * count

    def one(i):
        got[i] = complete(port, [(7 * i + k) % 250 + 3 for k in range(16)], tokens, ignore_eos=True)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return count * tokens / max(g["arrivals"][-1] for g in got)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--geometry")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--at-once", default="1,8,32")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--starts", help="as --stage-starts: stages of other sizes, once over shm")
    p.add_argument("--links", default="tcp,shm,ucx" + (",mpi" if shutil.which("mpirun") else ""))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json")
    o = p.parse_args()
    model = ["--model", MODEL, "--dtype", o.dtype, "--kv-blocks", 1024]
    if o.geometry:
        model += ["--random-weights", os.path.join(ROOT, o.geometry)]
    counts = [int(n) for n in o.at_once.split(",")]
    links = o.links.split(",")
    parts = lambda n, m, link, *more: lambda folder, log: Parts(o.cokv, folder, n, m, link, *model, "--threads", 1, *more,
                                                                log=log)
    alone = lambda threads: lambda folder, log: Server(o.cokv, "serve", *model, "--threads", threads, log=log)
    ways = {"one process, 1 thread": alone(1), "one process, 2 threads": alone(2),
            f"2 stages, {links[0]}, one step": parts(2, 1, links[0], "--microbatches", 1)}
    if o.starts:
        ways |= {f"2 stages, shm, at {o.starts}": parts(2, 1, "shm", "--stage-starts", o.starts)}
    ways |= {f"2 stages, {link}": parts(2, 1, link) for link in links}
    ways |= {f"2 stages, {links[0]}, copies": parts(2, 1, links[0], "--replicas", 1)} if links[0] != "mpi" else {}
    ways |= {f"2 ranks, {link}": parts(1, 2, link) for link in links}
    seen = {name: {n: [] for n in counts} for name in ways}
    for _ in range(o.rounds):
        for name, begin in ways.items():
            with open(os.devnull, "w") as quiet, tempfile.TemporaryDirectory() as folder, begin(folder, quiet) as server:
                throughput(server.port, 2, 8)
                for n in counts:
                    seen[name][n].append(throughput(server.port, n, o.tokens))
    print("tokens/s at once:".ljust(26) + "".join(f"{n:>10}" for n in counts))
    for name, of in seen.items():
        print(name.ljust(26) + "".join(f"{statistics.median(of[n]):>10.0f}" for n in counts), flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"geometry": o.geometry or "models/tiny-kjv", "dtype": o.dtype, "tokens": o.tokens, "tokens_s": seen}, f)


if __name__ == "__main__":
    main()
