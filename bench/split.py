#!/usr/bin/env python3
"""What does it give to split a pipeline into one for prompts and one for answers, as DejaVu does (arXiv 2403.01876)?

usage: bench/split.py COKV [--stages 8] [--ratios 1,2,5,10,20,40,80] [--requests 200] [--sheet-requests 200] [--seeds 1,2,3] [--jobs 2]
                      [--json FILE]

In virtual time, by `cokv simulate`; the split is `cokv plan`'s. First with fixed times: a token takes a millisecond in each of the
stages of one pipeline, a prompt as many as the ratio says, and in a pipeline of fewer stages each takes as much longer. Answers are of
50 to 400 tokens, or all of 225. A request stands for a microbatch: no step has two. In one pipeline there are as many as stages, each
followed by another one when it ends, as in DejaVu's baseline; in two there are as many in all, or two more, so that prompts are
ahead. `over` is the makespan of one pipeline over that, the mean over the seeds. Then, for the ratio of 20, what else one pipeline could
do, and what KV costs that takes half as long as its prompt, or as long.

Then by the sheet: OPT-66B on eight machines of four A100s at 100 Gbit/s, 64 clients, prompts of 1000 tokens, continuous batching with
prompts whole or in chunks, and its KV over the network.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPT = os.path.join(ROOT, "bench/geometries/opt-66b.json")
LENGTHS = {"unequal": "uniform:20-20:50-400", "equal": "fixed:20:225"}


def told(command):
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "figures.json")
        subprocess.run([*map(str, command), "--json", to], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(open(to))


def cluster_of(folder, machines):
    path = os.path.join(folder, "cluster.json")
    with open(path, "w") as f:
        json.dump({"machines": [{"name": "a100x4", "count": machines, "gpus": 4, "gpu": "a100", "link_bytes_per_second": 270e9,
                                 "network_bytes_per_second": 12.5e9}]}, f)
    return path


def split_of(cokv, cluster, stages, ratio):
    said = told([cokv, "plan", "--model", OPT, "--cluster", cluster, "--lengths", "fixed:20:225", "--microbatch", 1, "--prompt-ms",
                 ratio * stages, "--token-ms", stages])["split"]
    return said["prompt_depth"], said["token_depth"]


def one(stages, ratio, load, clients):
    return ["--pipeline", stages, "--stage-prompt", ratio, "--stage-token", 1, "--closed-loop", clients, "--microbatches", clients, *load]


def two(stages, ratio, split, load, clients, cache=0):
    prompts, answers = split
    each = ratio * stages / prompts  # milliseconds of a prompt in a stage
    return ["--prefill-replicas", 1, "--prefill-pipeline", prompts, "--pipeline", answers, "--stage-prompt", each, "--stage-token",
            stages / answers, "--closed-loop", clients, *(["--microbatches", clients] if answers > 1 else []),
            *(["--stage-cache", cache * each] if cache else []), *load]


def fixed(o, cluster, pool):
    ways = []
    for ratio in o.ratios:
        split = split_of(o.cokv, cluster, o.stages, ratio)
        name = f"two, {split[0]}:{split[1]}"
        for lengths, text in LENGTHS.items():
            load = ["--lengths", text, "--requests", o.requests]
            ways += [(ratio, lengths, "one", o.stages, one(o.stages, ratio, load, o.stages)),
                     (ratio, lengths, name, o.stages, two(o.stages, ratio, split, load, o.stages)),
                     (ratio, lengths, name, o.stages + 2, two(o.stages, ratio, split, load, o.stages + 2))]
            if ratio != 20:
                continue
            ways += [(ratio, lengths, f"one, {n} times the microbatches", n * o.stages, one(o.stages, ratio, load, n * o.stages))
                     for n in (2, 4)]
            for cache in (0.5, 1):
                ways.append((ratio, lengths, f"{name}, KV {cache:g} of its prompt", o.stages + 2,
                             two(o.stages, ratio, split, load, o.stages + 2, cache)))
    runs = {(i, seed): pool.submit(told, [o.cokv, "simulate", "--seed", seed, *way[-1]]) for i, way in enumerate(ways) for seed in o.seeds}
    makespan = {key: run.result()["makespan_s"] for key, run in runs.items()}
    rows, base = [], 0
    for i, (ratio, lengths, way, clients, _) in enumerate(ways):
        if way == "one":
            base = i
        over = [makespan[base, s] / makespan[i, s] for s in o.seeds]
        rows.append({"what": "fixed", "ratio": ratio, "lengths": lengths, "pipelines": way, "at_once": clients,
                     "makespan_s": statistics.mean(makespan[i, s] for s in o.seeds), "over": statistics.mean(over),
                     "over_least": min(over), "over_most": max(over)})
    return rows


def by_sheet(o, cluster, pool):
    load = ["--model", OPT, "--cluster", cluster, "--lengths", "uniform:1000-1000:50-400", "--closed-loop", 64, "--requests",
            o.sheet_requests, "--tensor", 4]
    ways = [(f"one, {what}", ["--pipeline", 8, "--max-batched-tokens", n])
            for what, n in (("whole prompts", 2000), ("chunks of 512", 512), ("chunks of 128", 128))]
    ways += [(f"two, {p}:{8 - p}", ["--prefill-replicas", 1, "--prefill-pipeline", p, "--prefill-tensor", 4, "--pipeline", 8 - p])
             for p in (1, 2, 3, 4)]
    runs = [pool.submit(told, [o.cokv, "simulate", *load, *how]) for _, how in ways]
    rows = []
    for (way, _), run in zip(ways, runs):
        got = run.result()
        of = got["summary"]
        rows.append({"what": "sheet", "pipelines": way, "makespan_s": got["makespan_s"],
                     "bubbles": statistics.mean(s["bubbles"] for s in got["stages"]), "ttft_ms": of["ttft_ms"]["p50"],
                     "tpot_ms": of["tpot_ms"]["p50"], "tpot_p99_ms": of["tpot_ms"]["p99"], "itl_p99_ms": of["itl_ms"]["p99"],
                     "kv_gb": got.get("kv_bytes", 0) / 1e9, "kv_wait_p99_ms": of["kv_wait_ms"]["p99"] if "kv_wait_ms" in of else 0.0})
    for r in rows:
        r["over"] = rows[0]["makespan_s"] / r["makespan_s"]
    return rows


def table(rows, columns):
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for r in rows:
        print("| " + " | ".join(f"{r[c]:.4g}" if isinstance(r[c], float) else str(r[c]) for c in columns) + " |")
    print(flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cokv")
    p.add_argument("--stages", type=int, default=8)
    p.add_argument("--ratios", type=lambda t: [float(v) for v in t.split(",")], default=[1, 2, 5, 10, 20, 40, 80])
    p.add_argument("--requests", type=int, default=200)
    p.add_argument("--sheet-requests", type=int, default=200)
    p.add_argument("--seeds", type=lambda t: [int(v) for v in t.split(",")], default=[1, 2, 3])
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--json")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        cluster = cluster_of(folder, o.stages)
        rows = fixed(o, cluster, pool)
        table(rows, ["ratio", "lengths", "pipelines", "at_once", "makespan_s", "over", "over_least", "over_most"])
        sheet = by_sheet(o, cluster_of(folder, 8), pool)
        table(sheet, ["pipelines", "makespan_s", "over", "bubbles", "ttft_ms", "tpot_ms", "tpot_p99_ms", "itl_p99_ms", "kv_gb",
                      "kv_wait_p99_ms"])
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"bench": "split", "stages": o.stages, "requests": o.requests, "seeds": o.seeds, "rows": rows + sheet}, f, indent=1)


if __name__ == "__main__":
    main()
