#!/usr/bin/env python3
"""Long prompts, round after round, and after a restart: what does the KV that was computed before save?

usage: bench/long_prefill.py COKV [--model DIR | --random] [--tokens 1900] [--prompts 10] [--outputs 2,8,32] [--rounds 3] [--dtype bf16] [--json FILE]

For each length of the answers: a server computes the prompts (round 1) and finds them on the device (the other rounds); it is
stopped; a new one, whose device is empty, is asked the same, so that their KV comes from the remote cache (with --socket out of
memory that it lends), or from the disk. Requests a second, one after the other.

The bound of TTFT after the restart: 1.3 times the bytes that came over the raw rate of a loopback socket plus one step. The
step that a first token waits for computes what no whole block holds of the prompt, up to 17 tokens, and is told by the server
itself for a prompt that is all there (cokv_step_seconds_total: nothing but the step, the median of three). A decode step, of
one token, is shorter, and stands beside it with its own ratio; where a step is bound by arithmetic the two are far apart.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from restart import ROOT, first_step, machine, prompts, raw_loopback  # noqa: E402
from lib_servers import WARM_UP, Server, complete, metric  # noqa: E402


def round_of(server, texts, output, model):
    answers = [complete(server.port, text, output, model=model) for text in texts]
    steps = [b - a for answer in answers for a, b in zip(answer["arrivals"], answer["arrivals"][1:])]
    return {"requests_s": len(texts) / sum(answer["total"] for answer in answers),
            "ttft_ms": statistics.median(answer["ttft"] for answer in answers) * 1e3,
            "step_ms": statistics.median(steps) * 1e3 if steps else 0,
            "texts": [answer["text"] for answer in answers]}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cokv")
    options.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"))
    options.add_argument("--random", action="store_true", help="random weights of Qwen2.5-0.5B's geometry, with --model's tokenizer")
    options.add_argument("--socket", action="store_true", help="the cache lends its memory")
    options.add_argument("--tokens", type=int, default=1900)
    options.add_argument("--prompts", type=int, default=10)
    options.add_argument("--outputs", default="2,8,32")
    options.add_argument("--rounds", type=int, default=3, help="at least 2: the first fills the device, the others find it full")
    options.add_argument("--dtype", default="bf16")
    options.add_argument("--policy", default="auto")
    options.add_argument("--json")
    options = options.parse_args()
    model = os.path.basename(options.model)
    weights = ["--random-weights", os.path.join(ROOT, "bench/geometries/qwen2.5-0.5b-served.json")] if options.random else []
    log = open(os.devnull, "w")
    host, commit = machine()
    print(f"{host}, {'random Qwen2.5-0.5B' if options.random else model}, {options.dtype}, {options.prompts} prompts of about {options.tokens} tokens, {options.rounds} rounds, "
          f"--kv-policy {options.policy}, commit {commit}\n")
    print("| tier | output | computed requests/s | device | after restart | TTFT computed ms | device | after restart | of computed | raw ms | step ms "
          "| after restart / (raw + step) | decode step ms | / (raw + decode step) |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for where in ("remote", "disk"):
        for output in map(int, options.outputs.split(",")):
            texts = list(prompts(options.prompts, options.tokens, seed=output))
            with tempfile.TemporaryDirectory() as folder, Server(
                    options.cokv, "cache", "--memory", "2GiB",
                    *(["--socket", os.path.join(folder, "socket")] if options.socket else []), log=log) as cache:
                tier = ["--kv-remote", cache.url] if where == "remote" else ["--kv-dir", os.path.join(folder, "kv")]
                serve = ["serve", "--model", options.model, *weights, "--dtype", options.dtype, "--kv-policy", options.policy,
                         "--kv-blocks", str(options.prompts * (options.tokens // 8)), *tier]
                rounds, moved = [], 0
                for start in range(2):
                    with Server(options.cokv, *serve, log=log) as server:
                        complete(server.port, WARM_UP, 8, model=model)
                        before = metric(server.port, "cokv_kv_bytes_total", path=f"{where}_in")
                        rounds.append([round_of(server, texts, output, model)])
                        rounds[-1] += [round_of(server, texts, output, model) for _ in range(options.rounds - 1)]
                        if start:
                            step = statistics.median(first_step(server, text, model) for text in texts) * 1e3
                            moved = metric(server.port, "cokv_kv_bytes_total", path=f"{where}_in") - before
                        server.stop()
                if any(r["texts"] != rounds[0][0]["texts"] for part in rounds for r in part):
                    raise SystemExit("the answers differ")
                raw = raw_loopback(int(moved / options.prompts)) * 1e3 if moved else 0
            device = rounds[0][1:] or rounds[0]
            row = {"tier": where, "output": output, "computed_requests_s": rounds[0][0]["requests_s"],
                   "device_requests_s": statistics.median(r["requests_s"] for r in device),
                   "restart_requests_s": rounds[1][0]["requests_s"], "computed_ttft_ms": rounds[0][0]["ttft_ms"],
                   "device_ttft_ms": statistics.median(r["ttft_ms"] for r in device), "restart_ttft_ms": rounds[1][0]["ttft_ms"],
                   "raw_ms": raw, "first_step_ms": step, "decode_step_ms": rounds[1][0]["step_ms"], "bytes": moved}
            row["of_computed"] = row["restart_ttft_ms"] / row["computed_ttft_ms"]
            for which in ("first_step", "decode_step"):
                floor = raw + row[f"{which}_ms"]
                row[f"over_raw_and_{which}"] = row["restart_ttft_ms"] / floor if floor else 0
            rows.append(row)
            print(f"| {where} | {output} | {row['computed_requests_s']:.1f} | {row['device_requests_s']:.1f} | {row['restart_requests_s']:.1f} "
                  f"| {row['computed_ttft_ms']:.1f} | {row['device_ttft_ms']:.1f} | {row['restart_ttft_ms']:.1f} | {row['of_computed']:.3f} "
                  f"| {raw:.2f} | {step:.2f} | {row['over_raw_and_first_step']:.2f} | {row['decode_step_ms']:.2f} "
                  f"| {row['over_raw_and_decode_step']:.2f} |", flush=True)
    if options.json:
        json.dump({"bench": "long_prefill", "machine": host, "commit": commit, "model": model, "rows": rows}, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
