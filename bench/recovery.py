#!/usr/bin/env python3
"""What do copies of KV cost a pipeline, and what do they save when a stage's host is lost?

usage: bench/recovery.py COKV [--requests 128] [--seconds 120] [--networks 12.5e9,25e9,50e9] [--parts failures,random] [--jobs 2]
                         [--json FILE]

In virtual time, by `cokv simulate`: OPT-66B in pipelines of four stages, of one A100 each or of four, prompts of 1000 tokens and
answers of 220 as in DejaVu (arXiv 2403.01876), clients that ask again when they are answered. First undisturbed, with copies and without. Then
stage 2's host is lost at a quarter, half and three quarters of that: requests go on by copies, or are asked again by their router, with
what was told of them as part of the prompt (told) or token by token from their start (start). `over` is the makespan over the undisturbed one
without copies. Another host is there when the loss is known (5 s) and its weights are loaded (2 GB/s), or 2 s behind the loss, as one that
has them. Last, hosts that are lost at random, in four pipelines under 14 requests a second of 500 and 50 tokens.
"""
import argparse
import concurrent.futures
import json
import os
import tempfile

from split import OPT, table, told

WAYS = {"copies": ["--kv-copies", 1], "told": ["--ask-again", "told"], "start": ["--ask-again", "start"]}
SHAPES = {1: 32, 4: 64}  # GPUs of a stage: clients


def cluster_of(folder, gpus, network, machines=4):
    path = os.path.join(folder, f"{gpus}-{network:g}-{machines}.json")
    if os.path.exists(path):  # others read it
        return path
    with open(path, "w") as f:
        json.dump({"machines": [{"name": "m", "count": machines, "gpus": gpus, "gpu": "a100", "link_bytes_per_second": 270e9,
                                 "network_bytes_per_second": network, "network_seconds": 10e-6}]}, f)
    return path


def run(o, folder, gpus, network, more):
    return told([o.cokv, "simulate", "--model", OPT, "--cluster", cluster_of(folder, gpus, network), "--pipeline", 4, "--tensor", gpus,
                 "--max-batched-tokens", 512, "--closed-loop", SHAPES[gpus], "--requests", o.requests, "--lengths", "fixed:1000:220", *more])


def row(got, **what):
    s, losses = got["summary"], got.get("losses", {})
    return {**what, "makespan_s": got["makespan_s"], "ttft_ms": s["ttft_ms"]["p50"], "tpot_ms": s["tpot_ms"]["p50"],
            "tpot_p99_ms": s["tpot_ms"]["p99"], "itl_p99_ms": s["itl_ms"]["p99"], "gap_ms": losses.get("longest_gap_ms", s["itl_ms"]["max"]),
            "again": losses.get("recomputed_tokens", 0), "copies_gb": sum(c["bytes"] for c in got.get("copies", [])) / 1e9}


def cost(o, folder, pool):
    runs = {(g, n, c): pool.submit(run, o, folder, g, n, ["--kv-copies", c]) for g in SHAPES for n in o.networks for c in (0, 1)}
    rows = []
    for (g, n, c), r in runs.items():
        rows.append(row(r.result(), what="cost", gpus=g, gbits=n * 8 / 1e9, copies=c))
        rows[-1]["over"] = rows[-1]["makespan_s"] / (rows[-1 - c]["makespan_s"])
    return rows


def failures(o, folder, pool, undisturbed):
    network = o.networks[0]
    spares = {"loads weights": [], "has weights": ["--detect", 1, "--repair", 1]}
    runs = []
    for g in SHAPES:
        base = next(r["makespan_s"] for r in undisturbed if r["gpus"] == g and r["gbits"] == network * 8 / 1e9 and not r["copies"])
        for spare, how in spares.items():
            for part in (0.25, 0.5, 0.75):
                for way, flags in WAYS.items():
                    more = ["--fail", f"{part * base:.3f}:0.2", "--patience", 3600, *how, *flags]
                    runs.append((g, spare, part, way, base, pool.submit(run, o, folder, g, network, more)))
    rows = []
    for g, spare, part, way, base, r in runs:
        got = r.result()
        one = row(got, what="failure", gpus=g, spare=spare, at=part, way=way)
        one.update(over=one["makespan_s"] / base, down_s=got["losses"]["seconds"], failed=got["losses"]["failed"])
        rows.append(one)
    return rows


def at_random(o, folder, pool):
    runs = []
    for mtbf in (0, 900, 300):
        for way, flags in WAYS.items():
            if not mtbf and way == "start":
                continue
            flags = flags if mtbf or way == "copies" else []
            more = ["--mtbf", mtbf, "--patience", 60] if mtbf else []
            runs.append((mtbf, way, pool.submit(told, [
                o.cokv, "simulate", "--model", OPT, "--cluster", cluster_of(folder, 4, o.networks[0], 16), "--pipeline", 4, "--tensor", 4,
                "--replicas", 4, "--max-batched-tokens", 512, "--rate", 14, "--requests", 14 * o.seconds, "--lengths", "fixed:500:50",
                "--slo-ttft", 2000, "--slo-tpot", 100, *more, *flags])))
    rows = []
    for mtbf, way, r in runs:
        got = r.result()
        losses = got.get("losses", {})
        one = row(got, what="random", mtbf_s=mtbf or "-", way=way if mtbf or way == "copies" else "none")
        one.update(failures=len(got.get("failures", [])), resumed=losses.get("resumed", 0), asked=losses.get("asked_again", 0),
                   failed=losses.get("failed", 0), attainment=got["summary"]["attainment"])
        rows.append(one)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cokv")
    p.add_argument("--requests", type=int, default=128)
    p.add_argument("--seconds", type=int, default=120)
    p.add_argument("--networks", type=lambda t: [float(v) for v in t.split(",")], default=[12.5e9, 25e9, 50e9])
    p.add_argument("--parts", type=lambda t: t.split(","), default=["failures", "random"], help="beside the cost")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--json")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        rows, lost, random = cost(o, folder, pool), [], []
        table(rows, ["gpus", "gbits", "copies", "makespan_s", "over", "ttft_ms", "tpot_ms", "tpot_p99_ms", "itl_p99_ms", "copies_gb"])
        if "failures" in o.parts:
            lost = failures(o, folder, pool, rows)
        table(lost, ["gpus", "spare", "at", "way", "makespan_s", "over", "down_s", "gap_ms", "again", "tpot_p99_ms", "failed"])
        if "random" in o.parts:
            random = at_random(o, folder, pool)
        table(random, ["mtbf_s", "way", "failures", "attainment", "resumed", "asked", "failed", "again", "ttft_ms", "tpot_p99_ms", "gap_ms"])
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"bench": "recovery", "requests": o.requests, "rows": rows + lost + random}, f, indent=1)


if __name__ == "__main__":
    main()
