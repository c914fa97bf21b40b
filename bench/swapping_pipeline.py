#!/usr/bin/env python3
"""What do turns of microbatches gain a pipeline? The same answers from stages whose devices have room for one sequence of each stage: as
they are, when sequences take turns on them, when microbatches do, and with room for as large batches as those make.

usage: bench/swapping_pipeline.py COKV [--geometry bench/geometries/qwen2-80m-served.json] [--stages 4] [--device cpu]
                                       [--prompt 48] [--tokens 80] [--clients 24] [--answers 48] [--rounds 3] [--json FILE]

Each run: a pipeline of STAGES processes on loopback, bf16, random weights of that shape; ANSWERS greedy answers without end tokens from
CLIENTS clients that ask again when they are answered. Need is the KV blocks of one at its full length. `stay`, `sequences` and
`microbatches` have STAGES x need blocks on each device, the last two host memory for all; `room` has no less than microbatches have at
work at once, (STAGES + 1) x STAGES / 2 x need. Tokens a second from the first request to the last token; `batch` is sequences a step, by
what was sampled and cokv_steps_total; `MB in` what came to the first device.
"""
import argparse
import json
import os
import statistics
import tempfile
import threading
import time

from failover import MODEL, ROOT
from lib_parts import Parts
from lib_servers import complete, metric

BLOCK = 16


def one_run(o, blocks, *more):
    model = ["--model", MODEL, "--random-weights", os.path.join(ROOT, o.geometry), "--dtype", "bf16", "--block-tokens", BLOCK,
             "--kv-blocks", blocks, "--threads", 1, "--device", o.device]
    with open(os.devnull, "w") as quiet, tempfile.TemporaryDirectory() as folder, \
            Parts(o.cokv, folder, o.stages, 1, "shm", *model, *more, log=quiet) as parts:
        complete(parts.port, [5] * 32, 4)
        left, lock, ends = iter(range(o.answers)), threading.Lock(), []

        def client():
            while True:
                with lock:
                    i = next(left, None)
                if i is None:
                    return
                complete(parts.port, [(7 * i + k) % 250 + 3 for k in range(o.prompt)], o.tokens, ignore_eos=True)
                with lock:
                    ends.append(time.monotonic())
        counted = ("cokv_steps_total", "cokv_preemptions_total")
        before = {name: metric(parts.port, name) for name in counted}
        begun = time.monotonic()
        threads = [threading.Thread(target=client) for _ in range(o.clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        steps, preempted = (metric(parts.port, name) - before[name] for name in counted)
        return {"tokens_s": o.answers * o.tokens / (max(ends) - begun), "batch": o.answers * o.tokens / steps,
                "preemptions": preempted, "bytes_in": metric(parts.port, "cokv_swapped_bytes_total", way="in")}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--geometry", default="bench/geometries/qwen2-80m-served.json")
    p.add_argument("--stages", type=int, default=4)
    p.add_argument("--device", default="cpu")
    p.add_argument("--prompt", type=int, default=48)
    p.add_argument("--tokens", type=int, default=80)
    p.add_argument("--clients", type=int, default=24)
    p.add_argument("--answers", type=int, default=48)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json")
    o = p.parse_args()
    need = (o.prompt + o.tokens + BLOCK - 1) // BLOCK
    few, host = o.stages * need, ("--swap", "4GiB")
    kinds = {"stay": (few,), "sequences": (few, *host), "microbatches": (few, *host, "--swap-by", "microbatch"),
             "room": ((o.stages + 1) * o.stages // 2 * need,)}
    runs = {kind: [] for kind in kinds}
    for i in range(o.rounds):
        for kind in list(kinds) if i % 2 == 0 else reversed(kinds):
            runs[kind].append(one_run(o, *kinds[kind]))
    print(f"{o.stages} stages, {few} blocks of {BLOCK} tokens on each device, {need} a sequence\n\n"
          "| | tokens/s | of stay | batch | preemptions | MB in |\n|---|---|---|---|---|---|")
    for kind, of in runs.items():
        middle = lambda name: statistics.median(r[name] for r in of)
        ratio = statistics.median(a["tokens_s"] / b["tokens_s"] for a, b in zip(of, runs["stay"]))
        print(f"| {kind} | {middle('tokens_s'):.1f} | {ratio:.2f} | {middle('batch'):.2f} | {middle('preemptions'):.0f} | "
              f"{middle('bytes_in') / 1e6:.0f} |", flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"geometry": o.geometry, "stages": o.stages, "need": need, "runs": runs}, f)


if __name__ == "__main__":
    main()
