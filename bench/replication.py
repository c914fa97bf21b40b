#!/usr/bin/env python3
"""What do copies of answers cost? TPOT of the same answers with and without --replicas (or --replicate-to), in turns.

usage: bench/replication.py COKV [--geometry bench/geometries/qwen2.5-0.5b-served.json] [--streams 4] [--tokens 100]
                                 [--rounds 5] [--replicas 1 | --to-cache] [--json FILE]

Each run: a router, a prefill worker and two decode workers (three for two replicas) on loopback, bf16, random weights of
that shape, their cores shared (with --to-cache a cache server, too, which is there in both); STREAMS greedy answers at once. TPOT is (last - first) / (pieces - 1) of each answer, its
median a run's figure; the ratio is of two runs one behind the other, which begins is by turns.
"""
import argparse
import json
import os
import statistics

from failover import MODEL, ROOT, answers
from lib_servers import Server, metric


def one_run(o, replicas):
    serve = ("serve", "--model", MODEL, "--random-weights", os.path.join(ROOT, o.geometry), "--threads", 1, "--role")
    with open(os.devnull, "w") as quiet:
        cache = Server(o.cokv, "cache", "--memory", "2GiB", log=quiet) if o.to_cache else None
        copies = ("--replicate-to", cache.url) if cache and replicas else ()
        decodes = [Server(o.cokv, *serve, "decode", *copies, log=quiet) for _ in range(max(2, o.replicas + 1))]
        prefill = Server(o.cokv, *serve, "prefill", log=quiet)
        router = Server(o.cokv, *serve[:-1], "--role", "router", "--prefill", prefill.url, "--decode",
                        ",".join(s.url for s in decodes), "--replicas", 0 if cache else replicas, log=quiet)
        try:
            while replicas and not cache and not all(metric(s.port, "cokv_ring_epoch") >= len(decodes) for s in decodes):
                pass
            bodies = [{"model": "tiny-kjv", "prompt": [(7 * i + k) % 250 + 3 for k in range(200 + 60 * i)],
                       "max_tokens": o.tokens, "temperature": 0, "stream": True, "logit_bias": {"0": -100}}
                      for i in range(o.streams)]
            streams = answers(router.port, bodies)
            for s in streams:
                s.join()
            if any(s.error or len(s.at) < o.tokens // 2 for s in streams):
                raise SystemExit(f"an answer failed: {[s.error or len(s.at) for s in streams]}")
            vain = sum(metric(s.port, "cokv_uncovered_tokens_total") for s in decodes)
            return statistics.median((s.at[-1] - s.at[0]) / (len(s.at) - 1) for s in streams), vain
        finally:
            for s in (router, prefill, *decodes, *([cache] if cache else [])):
                s.__exit__()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--geometry", default="bench/geometries/qwen2.5-0.5b-served.json")
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--tokens", type=int, default=100)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--replicas", type=int, choices=(1, 2), default=1)
    p.add_argument("--to-cache", action="store_true", help="copies in a cache instead")
    p.add_argument("--json")
    o = p.parse_args()
    rounds = []
    for i in range(o.rounds):
        times, vain = {}, 0
        for replicas in (0, o.replicas) if i % 2 == 0 else (o.replicas, 0):
            times[replicas], v = one_run(o, replicas)
            vain += v
        rounds.append((times[0], times[o.replicas]))
        print(f"round {i}: {1e3 * times[0]:.2f} ms without, {1e3 * times[o.replicas]:.2f} ms with, "
              f"{times[o.replicas] / times[0]:.4f}; {vain:.0f} tokens waited in vain", flush=True)
    ratios = sorted(b / a for a, b in rounds)
    print(f"\nTPOT with {'a cache' if o.to_cache else f'{o.replicas} replicas'} over without: median {statistics.median(ratios):.4f} "
          f"({ratios[0]:.4f} to {ratios[-1]:.4f}), {o.streams} streams, {len(rounds)} rounds")
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"replicas": "cache" if o.to_cache else o.replicas, "streams": o.streams, "rounds": rounds}, f, indent=1)


if __name__ == "__main__":
    main()
