#!/usr/bin/env python3
"""How long does a client wait for its next token when the worker that decodes its answer is lost?

usage: bench/failover.py COKV [--how kill|stop] [--streams 8] [--tokens 300] [--runs 5] [--replicas 0] [--dead-after 1500]
                                [--json FILE]

Each run: a router, a prefill worker and two decode workers on loopback, f32, their cores shared; STREAMS sampled answers of
prompts of 40 to 600 tokens; when all are decoding, one decode worker is killed (kill -9), or stands still (SIGSTOP). Of
the answers that were there (as many as it said it ran) the longest time without a token from then on is taken; beside it the usual
time between tokens, and the time within which the loss can be known: at once by a connection that breaks, or --dead-after.
Every answer must be the one that the same cluster gave before. With replicas lost answers go on from copies of their KV, and
how many tokens of them were computed again is told; without, their prompts and all that was said is.
"""
import argparse
import json
import os
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
from lib_servers import Server, Stream, metric  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models/tiny-kjv")


def answers(port, bodies):
    streams = [Stream(port, b) for b in bodies]
    for s in streams:
        s.start()
    return streams


def one_run(o, seed):
    rng = random.Random(seed)
    verses = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
    bodies = [{"model": "tiny-kjv", "prompt": f"{seed} {i} " + " ".join(rng.sample(verses, rng.choice((1, 4, 12)))),
               "max_tokens": o.tokens, "temperature": 1, "seed": rng.randint(0, 1 << 60), "stream": True,
               "logit_bias": {"0": -100}} for i in range(o.streams)]
    serve = ("serve", "--model", MODEL, "--dtype", "f32", "--role")
    with open(os.devnull, "w") as quiet, Server(o.cokv, *serve, "decode", log=quiet) as first, \
            Server(o.cokv, *serve, "decode", log=quiet) as second, \
            Server(o.cokv, *serve, "prefill", log=quiet) as prefill, \
            Server(o.cokv, *serve, "router", "--prefill", prefill.url, "--decode", f"{first.url},{second.url}",
                   "--dead-after", o.dead_after, "--heartbeat", o.dead_after // 3, "--replicas", o.replicas,
                   log=quiet) as router:
        while o.replicas and not all(metric(s.port, "cokv_ring_epoch") > 1 for s in (first, second)):
            time.sleep(0.05)
        before = answers(router.port, bodies)
        for s in before:
            s.join()
        streams = answers(router.port, bodies)
        while any(len(s.at) < o.tokens // 6 for s in streams):
            time.sleep(0.005)
        affected = int(metric(first.port, "cokv_requests_running"))
        first.process.send_signal(signal.SIGKILL if o.how == "kill" else signal.SIGSTOP)
        lost = time.perf_counter()
        for s in streams:
            s.join()
        if o.how == "stop":
            first.process.send_signal(signal.SIGCONT)
        wrong = [i for i, (a, b) in enumerate(zip(before, streams)) if b.error or a.error or a.text != b.text]
        if wrong:
            raise SystemExit(f"answers {wrong} are not what they were: {[streams[i].error for i in wrong]}")
        # What was on its way still comes: the longest time without a token from then on.
        waits = sorted((max((b - max(a, lost) for a, b in zip(s.at, s.at[1:]) if b > lost), default=0.0)
                        for s in streams), reverse=True)
        usual = [b - a for s in before for a, b in zip(s.at, s.at[1:])]
        return waits[:affected], usual, [int(metric(router.port, f"cokv_{name}_total"))
                                         for name in ("resumed_answers", "computed_again_tokens")]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--how", choices=("kill", "stop"), default="kill")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--replicas", type=int, choices=(0, 1), default=0)
    p.add_argument("--dead-after", type=int, default=1500)
    p.add_argument("--json")
    o = p.parse_args()
    waits, usual, resumed, again = [], [], 0, 0
    for run in range(o.runs):
        w, u, (r, a) = one_run(o, run)
        waits, usual, resumed, again = waits + w, usual + u, resumed + r, again + a
        print(f"run {run}: {len(w)} answers lost, next token after "
              f"{', '.join(f'{1e3 * x:.0f}' for x in sorted(w))} ms", flush=True)
    if not waits:
        raise SystemExit("no answer was there when the worker was lost")
    detection = 0 if o.how == "kill" else o.dead_after / 1e3
    out = {"how": o.how, "streams": o.streams, "lost": len(waits), "replicas": o.replicas,
           "resumed": resumed, "computed_again": again, "next_token_p50": statistics.median(waits),
           "next_token_max": max(waits), "between_tokens_p50": statistics.median(usual), "detection": detection}
    print(f"\n{resumed} answers went on from a copy, {again} tokens of them were computed again")
    print(f"\n| lost answers | next token p50 | max | bound: detection + 200 ms | between tokens p50 |\n|---|---|---|---|---|\n"
          f"| {len(waits)} | {1e3 * out['next_token_p50']:.0f} ms | {1e3 * out['next_token_max']:.0f} ms | "
          f"{1e3 * detection + 200:.0f} ms | {1e3 * out['between_tokens_p50']:.1f} ms |")
    if o.json:
        with open(o.json, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
