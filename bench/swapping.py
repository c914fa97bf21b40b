#!/usr/bin/env python3
"""What do turns on the device cost? The same answers with room for a part of them, against room for all, in turns.

usage: bench/swapping.py COKV [--geometry bench/geometries/qwen2.5-0.5b-served.json] [--sequences 8] [--prompt 192]
                              [--tokens 256] [--rounds 3] [--parts 1,0.75,0.5,0.25] [--copy-gb-s 7] [--trace FOLDER]
                              [--json FILE]

Each run: one server on loopback, bf16, random weights of that shape; SEQUENCES greedy answers at once, without end tokens.
Need is the KV blocks of all of them at their full length. For each part P of the need two servers compute steps of at most P
of the sequences: one has blocks for P of the need and --swap, so that all sequences go on by turns; the other has blocks for all and
--max-running, so that the rest waits until some have ended. Tokens a second are of all answers, from the first request to
the last token. `alone` is the same small pool without --swap.

The bound: copies are hidden while bytes / rate < time, with the rate of copies from extent to extent (--copy-gb-s;
bench_copy_digest measures it). `link` is bytes / rate / time: beyond 1 nothing could hide them. `at once` is how many
answers had begun when the first ended: those that are held, whether they compute or not. With --trace the folder gets a Perfetto trace of one
more run of each kind.
"""
import argparse
import json
import os
import statistics
import threading

from failover import MODEL, ROOT
from lib_servers import Server, complete, metric

BLOCK = 16


def one_run(o, blocks, running, swap, *more):
    serve = ("serve", "--model", MODEL, "--random-weights", os.path.join(ROOT, o.geometry), "--kv-blocks", blocks,
             "--block-tokens", BLOCK, "--max-running", running, *(("--swap", "4GiB") if swap else ()), *more)
    with open(os.devnull, "w") as quiet, Server(o.cokv, *serve, log=quiet) as server:
        got = [None] * o.sequences
        def one(i):
            got[i] = complete(server.port, [(7 * i + k) % 250 + 3 for k in range(o.prompt)], o.tokens, ignore_eos=True)
        complete(server.port, [5] * 64, 4)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(o.sequences)]
        before = metric(server.port, "cokv_swapped_bytes_total")
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        ends = [g["arrivals"][-1] for g in got]
        seconds = max(ends)
        counted = {name: metric(server.port, name) for name in ("cokv_swapped_bytes_total", "cokv_preemptions_total")}
        if more:
            server.stop()  # which writes the trace
        return {"tokens_s": o.sequences * o.tokens / seconds, "seconds": seconds,
                "bytes": counted["cokv_swapped_bytes_total"] - before,
                "preempted": counted["cokv_preemptions_total"],
                "at_once": sum(g["arrivals"][0] < min(ends) for g in got)}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--geometry", default="bench/geometries/qwen2.5-0.5b-served.json")
    p.add_argument("--sequences", type=int, default=8)
    p.add_argument("--prompt", type=int, default=192)
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--parts", default="1,0.75,0.5,0.25")
    p.add_argument("--copy-gb-s", type=float, default=7)
    p.add_argument("--trace")
    p.add_argument("--json")
    o = p.parse_args()
    each = (o.prompt + o.tokens + BLOCK - 1) // BLOCK
    rows = []
    print("| part of the need | tokens/s by turns | all have room | ratio | alone, without turns | at once, by turns | "
          "all have room | MB copied | link |\n|---|---|---|---|---|---|---|---|---|")
    for part in map(float, o.parts.split(",")):
        running = max(1, round(o.sequences * part))
        small, whole = running * each + running, o.sequences * each + o.sequences
        runs = {"turns": [], "room": [], "alone": []}
        kinds = {"turns": (small, o.sequences, True), "room": (whole, running, False), "alone": (small, o.sequences, False)}
        for i in range(o.rounds):
            for kind in list(kinds) if i % 2 == 0 else reversed(kinds):
                runs[kind].append(one_run(o, *kinds[kind]))
        if o.trace:
            for kind in kinds:
                one_run(o, *kinds[kind], "--trace", os.path.join(o.trace, f"{kind}-{part}.json"))
        middle = {kind: statistics.median(r["tokens_s"] for r in all) for kind, all in runs.items()}
        ratio = statistics.median(a["tokens_s"] / b["tokens_s"] for a, b in zip(runs["turns"], runs["room"]))
        copied = statistics.median(r["bytes"] for r in runs["turns"])
        link = statistics.median(r["bytes"] / (1e9 * o.copy_gb_s) / r["seconds"] for r in runs["turns"])
        held = {kind: statistics.median(r["at_once"] for r in all) for kind, all in runs.items()}
        rows.append({"part": part, "running": running, "ratio": ratio, "copied": copied, "link": link, "runs": runs})
        print(f"| {part:.2f} | {middle['turns']:.1f} | {middle['room']:.1f} | {ratio:.3f} | {middle['alone']:.1f} | "
              f"{held['turns']:.0f} | {held['room']:.0f} | {copied / 1e6:.0f} | {link:.4f} |", flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"sequences": o.sequences, "prompt": o.prompt, "tokens": o.tokens, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
