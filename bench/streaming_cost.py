#!/usr/bin/env python3
"""What does streaming the whole KV to a remote cache cost, end to end, against not streaming?

usage: bench/streaming_cost.py COKV [--model DIR] [--tokens 1000] [--output 64] [--pairs 40] [--dtype bf16] [--json FILE]

Two servers, one with --kv-remote and one without, both warm, are asked the same fresh prompt one after the other, the order
alternating from pair to pair; only one works at a time. Reported: the median of the pairs' ratios with a 95 % interval
(bootstrap), prompt and token times apart, and the CPU seconds a GB that streaming took on both sides together.
"""
import argparse
import json
import os
import random
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from restart import ROOT, machine, prompts  # noqa: E402
from lib_servers import WARM_UP, Server, complete, metric  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(server):
    fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def interval(ratios, draws=4000):
    rng = random.Random(7)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cokv")
    options.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"))
    options.add_argument("--tokens", type=int, default=1000)
    options.add_argument("--output", type=int, default=64)
    options.add_argument("--pairs", type=int, default=40)
    options.add_argument("--dtype", default="bf16")
    options.add_argument("--json")
    options = options.parse_args()
    log = open(os.devnull, "w")
    pairs, cpu = [], {"plain": 0.0, "streaming": 0.0}
    with Server(options.cokv, "cache", "--memory", "2GiB", log=log) as cache:
        serve = ["serve", "--model", options.model, "--dtype", options.dtype]
        with Server(options.cokv, *serve, log=log) as plain, Server(options.cokv, *serve, "--kv-remote", cache.url, log=log) as streaming:
            servers = {"plain": (plain, [plain]), "streaming": (streaming, [streaming, cache])}
            for server, _ in servers.values():
                complete(server.port, WARM_UP, 8)
            for number, prompt in enumerate(prompts(options.pairs, options.tokens, seed=2)):
                order = ["plain", "streaming"] if number % 2 == 0 else ["streaming", "plain"]
                pair = {}
                for name in order:
                    server, processes = servers[name]
                    before = sum(map(cpu_seconds, processes))
                    run = complete(server.port, prompt, options.output, seed=number)
                    cpu[name] += sum(map(cpu_seconds, processes)) - before
                    pair[name] = {"total": run["total"], "ttft": run["ttft"],
                                  "token": (run["total"] - run["ttft"]) / max(1, len(run["arrivals"]) - 1)}
                pairs.append(pair)
            moved = metric(streaming.port, "cokv_kv_bytes_total", path="remote_out")
    host, commit = machine()
    print(f"{host}, {options.dtype}, {options.tokens}-token prompts, {options.output} tokens out, {options.pairs} alternating pairs, commit {commit}\n")
    print("| | plain ms | streaming ms | streaming / plain | 95 % interval |")
    print("|---|---|---|---|---|")
    result = {}
    for key, name in (("total", "end to end"), ("ttft", "prompt (TTFT)"), ("token", "a token")):
        ratios = [pair["streaming"][key] / pair["plain"][key] for pair in pairs]
        low, high = interval(ratios)
        middle = {side: statistics.median(pair[side][key] for pair in pairs) * 1e3 for side in ("plain", "streaming")}
        result[key] = {"ratio": statistics.median(ratios), "low": low, "high": high, **middle}
        print(f"| {name} | {middle['plain']:.2f} | {middle['streaming']:.2f} | {statistics.median(ratios):.4f} | {low:.4f} to {high:.4f} |")
    per_gb = (cpu["streaming"] - cpu["plain"]) / (moved / 1e9) if moved else float("nan")
    print(f"\nmoved {moved / 1e6:.1f} MB; CPU seconds {cpu['plain']:.2f} plain, {cpu['streaming']:.2f} streaming "
          f"(server and cache): {per_gb:.2f} CPU s per GB")
    if options.json:
        json.dump({"machine": host, "commit": commit, "dtype": options.dtype, **result, "bytes": moved, "cpu": cpu, "cpu_s_per_gb": per_gb},
                  open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
