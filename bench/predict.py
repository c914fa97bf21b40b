#!/usr/bin/env python3
"""What `cokv simulate` predicts by a profile of this machine against what real workers do here, under the same load.

    bench/predict.py build/release/apps/cokv --random-weights bench/geometries/NAME.json [--rates 0.5 3] [--at-once 1 2 3 4] [--json FILE]

In each round each deployment (one server; pipelines of 2 and of 4 processes, which share the cores; with --apart a prefill and a
decode worker behind a router) is measured by `cokv fit`, started --starts times, each of which answers loads of `cokv load`, and
simulated by that profile with the same seeds: one behind the other, as a machine is not as fast each minute. Medians of all starts and of
all rounds are compared. A median of TPOT means something at a rate at which nearly all requests are alone, or nearly none: --rates. With
--at-once so many answers of 400 tokens are under way together, as well.

`again` is what the deployments say of each other: by how much one start's figure is off from the one's before it, the median. What a
machine does not repeat itself no profile can tell.
"""
import argparse
import contextlib
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


def all_told(loads, command):
    """Each load once, and of what is told of it its figures."""
    told = {}
    for load, _ in loads.values():
        if str(load) not in told:
            told[str(load)] = told_by([*command, *load])
    return {name: told[str(load)][figure] for name, (load, figure) in loads.items()}


def off_by(said, got):
    return 100 * (said / got - 1)


@contextlib.contextmanager
def served(binary, name, folder, arguments):
    """A deployment, and the port that answers."""
    with contextlib.ExitStack() as all_servers:
        start = lambda *more: all_servers.enter_context(Server(binary, "serve", *arguments, *more, log=subprocess.DEVNULL))
        if name == "apart":
            prefill, decode = start("--role", "prefill"), start("--role", "decode")
            router = ("--role", "router", "--prefill", prefill.url, "--decode", decode.url)
            yield all_servers.enter_context(Server(binary, "serve", *arguments[:-4], *router, log=subprocess.DEVNULL)).port
        elif name == "1":
            yield start().port
        else:
            os.mkdir(folder)
            yield all_servers.enter_context(Parts(binary, folder, int(name), 1, "tcp", *arguments)).port


def simulated(name):
    if name == "apart":
        return ["--prefill-replicas", 1, "--workers-a-machine", 2]
    return ["--pipeline", name, "--workers-a-machine", name]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"), help="a checkpoint, or the tokenizer of --random-weights")
    p.add_argument("--random-weights", help="a config.json")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--device", default="cpu", help="cuda:0: all of them share it")
    p.add_argument("--rates", type=float, nargs="+", default=[0.5, 3], help="requests a second, each a load of its own")
    p.add_argument("--seconds", type=float, default=20, help="of each load")
    p.add_argument("--lengths", default="uniform:64-256:16-64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--starts", type=int, default=3, help="of each deployment in a round: how its processes find cores differs from start to start")
    p.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4])
    p.add_argument("--at-once", type=int, nargs="*", default=[], help="TPOT of so many requests that come together, too")
    p.add_argument("--apart", action="store_true", help="a prefill and a decode worker behind a router, too")
    p.add_argument("--profile", help="taken instead of measuring one")
    p.add_argument("--json", help="where the figures go")
    o = p.parse_args()
    checkpoint = ["--model", o.model, "--dtype", o.dtype, "--device", o.device]
    if o.random_weights:
        checkpoint += ["--random-weights", o.random_weights]
    loads = {}
    for rate in o.rates:
        load = ["--rate", rate, "--duration", o.seconds, "--lengths", o.lengths, "--seed", 7]
        loads |= {f"{figure}, {rate:g}/s": (load, figure) for figure in FIGURES}
    for n in o.at_once:
        loads[f"tpot_ms, {n} at once"] = (["--rate", 200, "--requests", n, "--lengths", "fixed:16:400", "--seed", 7], "tpot_ms_p50")

    deployments = [str(n) for n in o.stages] + ["apart"] * o.apart
    real, told, profiles = ({name: [] for name in deployments} for _ in range(3))
    arguments = [*checkpoint, "--threads", 1, "--kv-blocks", 1024]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(o.rounds):
            for name in deployments:
                profile = o.profile or os.path.join(folder, f"profile-{turn}-{name}.json")
                if not o.profile:
                    workers = 2 if name == "apart" else name
                    subprocess.run([o.binary, "fit", *checkpoint, "--threads", "1", "--workers", str(workers), "--out", profile], check=True)
                profiles[name].append(json.load(open(profile)))
                for start in range(o.starts):
                    with served(o.binary, name, os.path.join(folder, f"{turn}-{name}-{start}"), arguments) as port:
                        url = ["--url", f"http://127.0.0.1:{port}", "--vocabulary", 1000, "--ignore-eos"]
                        subprocess.run([*map(str, [o.binary, "load", *url, "--requests", 4, "--rate", 20, "--lengths", "fixed:32:4"])],
                                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                        real[name].append(all_told(loads, [o.binary, "load", *url]))
                told[name].append(all_told(loads, [o.binary, "simulate", "--profile", profile, *simulated(name)]))
        rows = []
        for name in deployments:
            for figure in loads:
                got, said = [r[figure] for r in real[name]], [r[figure] for r in told[name]]
                again = statistics.median([abs(off_by(a, b)) for a, b in zip(got[1:], got)] or [0])
                rows.append({"stages": name, "figure": figure, "measured": statistics.median(got), "all_measured": got,
                             "predicted": statistics.median(said), "all_predicted": said,
                             "off_percent": off_by(statistics.median(said), statistics.median(got)), "again_percent": again})
        print(f"{'stages':>6} {'figure':<26} {'measured':>10} {'least':>10} {'most':>10} {'predicted':>10} {'least':>10} {'most':>10} {'off':>8} {'again':>7}")
        for r in rows:
            got, said = r["all_measured"], r["all_predicted"]
            print(f"{r['stages']:>6} {r['figure']:<26} {r['measured']:>10.2f} {min(got):>10.2f} {max(got):>10.2f} {r['predicted']:>10.2f} "
                  f"{min(said):>10.2f} {max(said):>10.2f} {r['off_percent']:>+7.1f}% {r['again_percent']:>6.1f}%")
        if o.json:
            json.dump({"profiles": profiles, "loads": {name: [*map(str, load)] for name, (load, _) in loads.items()}, "rows": rows}, open(o.json, "w"), indent=1)


if __name__ == "__main__":
    main()
