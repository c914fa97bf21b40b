#!/usr/bin/env python3
"""After a restart, what does a prompt's first token cost when its KV comes from the remote cache?

usage: bench/restart.py COKV [--model DIR] [--tokens 1000] [--runs 7] [--dtype bf16] [--json FILE]

Each run, with a prompt of its own: a server computes it (TTFT computed) while its KV streams to the cache; the server is
stopped; a new one is asked the same (TTFT remote), and once more, when all of it is on the device. Beside them, in the same
run: the bytes that came back over a bare loopback socket; the step that a first token waits for, which computes what no whole
block holds of the prompt, as the server tells it when all KV is on the device (cokv_step_seconds_total: nothing but the step,
the median of three); and a decode step, of one token (the median time between tokens). The bound is 1.5 times raw + step.
"""
import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
from lib_servers import WARM_UP, Server, complete, metric  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def raw_loopback(size, working_set=128 << 20, repeats=5):
    """Seconds that `size` bytes take over a loopback socket between two processes, each with one thread and 1 MiB calls: the
    best a socket does. The rate is measured over a working set beyond the cache, walked through on both sides."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        payload = memoryview(bytearray(working_set))
        peer, _ = listener.accept()
        for _ in range(repeats):
            peer.recv(1)
            for at in range(0, working_set, 1 << 20):
                peer.sendall(payload[at:at + (1 << 20)])
        os._exit(0)
    target, times = memoryview(bytearray(working_set)), []
    with socket.create_connection(listener.getsockname()) as peer:
        for _ in range(repeats):
            start = time.perf_counter()
            peer.sendall(b"x")
            got = 0
            while got < working_set:
                got += peer.recv_into(target[got:got + (1 << 20)])
            times.append(time.perf_counter() - start)
    os.waitpid(child, 0)
    listener.close()
    return statistics.median(times) * size / working_set


def prompts(count, tokens, seed):
    """Prompts that share no prefix: the verses of Genesis in an order of their own, cut to `tokens` after tokenisation."""
    verses = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
    rng = random.Random(seed)
    for number in range(count):
        rng.shuffle(verses)
        yield f"{number}: " + " ".join(verses)[: int(tokens * 3.74)]


def first_step(server, prompt, model=None, repeats=3):
    """Seconds of the one step that gives a prompt's first token, when all its whole blocks are on the device; the median."""
    times = []
    for _ in range(repeats):
        before = metric(server.port, "cokv_step_seconds_total")
        complete(server.port, prompt, 1, **({"model": model} if model else {}))
        times.append(metric(server.port, "cokv_step_seconds_total") - before)
    return statistics.median(times)


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return f"{model}, {os.cpu_count()} cores", commit


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cokv")
    options.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"))
    options.add_argument("--tokens", type=int, default=1000)
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--dtype", default="bf16")
    options.add_argument("--json")
    options = options.parse_args()
    log = open(os.devnull, "w")
    rows = []
    with Server(options.cokv, "cache", "--memory", "1GiB", log=log) as cache:
        serve = ["serve", "--model", options.model, "--dtype", options.dtype, "--kv-remote", cache.url]
        for prompt in prompts(options.runs, options.tokens, seed=1):
            with Server(options.cokv, *serve, log=log) as server:
                complete(server.port, WARM_UP, 8)
                cold = complete(server.port, prompt, 32)
                server.stop()
            with Server(options.cokv, *serve, log=log) as server:
                complete(server.port, WARM_UP, 8)
                before = metric(server.port, "cokv_kv_bytes_total", path="remote_in")
                warm = complete(server.port, prompt, 32)
                moved = metric(server.port, "cokv_kv_bytes_total", path="remote_in") - before
                waited_for = first_step(server, prompt)
                server.stop()
            if cold["text"] != warm["text"]:
                raise SystemExit("the answers differ")
            step = statistics.median(b - a for a, b in zip(warm["arrivals"], warm["arrivals"][1:]))
            rows.append({"prompt_tokens": warm["usage"]["prompt_tokens"],
                         "cached_tokens": warm["usage"]["prompt_tokens_details"]["cached_tokens"],
                         "computed_ms": cold["ttft"] * 1e3, "remote_ms": warm["ttft"] * 1e3,
                         "bytes": moved, "raw_ms": raw_loopback(int(moved)) * 1e3, "step_ms": waited_for * 1e3,
                         "decode_step_ms": step * 1e3})
        cache.stop()
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    floor = median["raw_ms"] + median["step_ms"]
    host, commit = machine()
    print(f"{host}, {options.dtype}, medians of {options.runs}, commit {commit}\n")
    print("| prompt tokens | from cache | TTFT computed ms | TTFT remote ms | remote / computed | bytes | raw loopback ms | step ms | remote / (raw + step) | decode step ms | remote / (raw + decode step) |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print(f"| {median['prompt_tokens']:.0f} | {median['cached_tokens']:.0f} | {median['computed_ms']:.2f} | {median['remote_ms']:.2f} "
          f"| {median['remote_ms'] / median['computed_ms']:.3f} | {median['bytes']:.0f} | {median['raw_ms']:.2f} | {median['step_ms']:.2f} "
          f"| {median['remote_ms'] / floor:.2f} | {median['decode_step_ms']:.2f} "
          f"| {median['remote_ms'] / (median['raw_ms'] + median['decode_step_ms']):.2f} |")
    if options.json:
        json.dump({"machine": host, "commit": commit, "dtype": options.dtype, "runs": rows, "median": median,
                   "over_floor": median["remote_ms"] / floor}, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
