#!/usr/bin/env python3
"""What `cokv simulate` predicts by a profile of this machine against what real workers do here, under the same load.

    bench/predict.py build/release/apps/cokv --random-weights bench/geometries/NAME.json [--tokenizer DIR] [--rate 2] [--json FILE]

`cokv fit` measures the model once; then each deployment (one server; pipelines of 2 and of 4 processes, which share the
cores) answers a load of `cokv load`, and is simulated with the same seed. Rounds are in turns; medians over them are compared.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from lib_parts import Parts  # noqa: E402
from lib_servers import Server  # noqa: E402

FIGURES = ("output_tokens_per_s", "ttft_ms_p50", "tpot_ms_p50")


def figures_of(told):
    of = told["summary"]
    return {"output_tokens_per_s": of["output_tokens_per_s"], "ttft_ms_p50": of["ttft_ms"]["p50"],
            "tpot_ms_p50": of["tpot_ms"]["p50"]}


def told_by(command):
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "figures.json")
        subprocess.run([*map(str, command), "--json", to], check=True, stdout=subprocess.DEVNULL)
        return figures_of(json.load(open(to)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"), help="a checkpoint, or the tokenizer of --random-weights")
    p.add_argument("--random-weights", help="a config.json")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--rate", type=float, default=2)
    p.add_argument("--requests", type=int, default=40)
    p.add_argument("--lengths", default="uniform:64-256:16-64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4])
    p.add_argument("--profile", help="taken instead of measuring one")
    p.add_argument("--json", help="where the figures go")
    o = p.parse_args()
    checkpoint = ["--model", o.model, "--dtype", o.dtype]
    if o.random_weights:
        checkpoint += ["--random-weights", o.random_weights]
    load = ["--rate", o.rate, "--requests", o.requests, "--lengths", o.lengths, "--seed", 7]

    with tempfile.TemporaryDirectory() as folder:
        profile = o.profile or os.path.join(folder, "profile.json")
        if not o.profile:
            subprocess.run([o.binary, "fit", *checkpoint, "--threads", "1", "--workers", str(max(o.stages)), "--out", profile], check=True)
        real = {n: [] for n in o.stages}
        for turn in range(o.rounds):
            for n in o.stages:
                arguments = [*checkpoint, "--threads", 1, "--kv-blocks", 1024]
                to = os.path.join(folder, f"{turn}-{n}")
                os.mkdir(to)
                with (Server(o.binary, "serve", *arguments, log=subprocess.DEVNULL) if n == 1 else
                      Parts(o.binary, to, n, 1, "tcp", *arguments)) as one:
                    subprocess.run([o.binary, "load", "--url", f"http://127.0.0.1:{one.port}", "--requests", "4", "--rate", "20",
                                    "--lengths", "fixed:32:4", "--vocabulary", "1000", "--ignore-eos"], check=True, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
                    real[n].append(told_by([o.binary, "load", "--url", f"http://127.0.0.1:{one.port}", "--vocabulary", 1000,
                                            "--ignore-eos", *load]))
        rows = []
        for n in o.stages:
            said = told_by([o.binary, "simulate", "--profile", profile, "--pipeline", n, "--workers-a-machine", n, *load])
            for name in FIGURES:
                got = [r[name] for r in real[n]]
                rows.append({"stages": n, "figure": name, "measured": statistics.median(got), "least": min(got), "most": max(got),
                             "predicted": said[name], "off_percent": 100 * (said[name] / statistics.median(got) - 1)})
        print(f"{'stages':>6} {'figure':<20} {'measured':>10} {'least':>10} {'most':>10} {'predicted':>10} {'off':>8}")
        for r in rows:
            print(f"{r['stages']:>6} {r['figure']:<20} {r['measured']:>10.2f} {r['least']:>10.2f} {r['most']:>10.2f} {r['predicted']:>10.2f} "
                  f"{r['off_percent']:>+7.1f}%")
        if o.json:
            json.dump({"profile": json.load(open(profile)), "load": list(map(str, load)), "rows": rows}, open(o.json, "w"), indent=1)


if __name__ == "__main__":
    main()
