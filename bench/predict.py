#!/usr/bin/env python3
"""What `cokv simulate` predicts by a profile of this machine against what real workers do here, under the same load.

    bench/predict.py build/release/apps/cokv --random-weights bench/geometries/NAME.json [--rates 0.5 3 --seconds 60 20] [--at-once 1 2 3 4] [--json FILE]

Each deployment (one server; pipelines of 2 and of 4 processes, which share the cores; with --apart a prefill and a decode worker behind a
router) is measured by `cokv fit` before, between and behind rounds in which it is started --starts times, as a machine is not as fast each
minute. Each start answers loads of `cokv load` with a seed of its own, and each profile says what comes of the same loads. What is compared
are medians of all requests of all starts with those of all simulated ones. A median of TPOT means something at a rate at which nearly all
requests are alone, or nearly none: --rates. With --at-once so many answers of 400 tokens are under way together, as well.

`again` is what the deployments say of each other: by how much a start's figure is off from that of the same load a round before, the
median. What a machine does not repeat itself no profile can tell.
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


def told_by(command):
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "figures.json")
        subprocess.run([*map(str, command), "--json", to], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(to))


def throughput(told):
    return statistics.median(t["summary"]["output_tokens_per_s"] for t in told)


def median_of(figure):
    return lambda told: statistics.median(r[figure] for t in told for r in t["requests"] if r.get(figure) is not None)


FIGURES = {"tokens/s": throughput, "TTFT ms": median_of("ttft_ms"), "TPOT ms": median_of("tpot_ms")}


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
    p.add_argument("--seconds", type=float, nargs="+", default=[60, 20], help="of each of these")
    p.add_argument("--lengths", default="uniform:64-256:16-64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--starts", type=int, default=3, help="of each deployment in a round, each with loads of its own")
    p.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4])
    p.add_argument("--at-once", type=int, nargs="*", default=[], help="TPOT of so many requests that come together, too")
    p.add_argument("--apart", action="store_true", help="a prefill and a decode worker behind a router, too")
    p.add_argument("--profile", help="taken instead of measuring one")
    p.add_argument("--json", help="where the figures go")
    o = p.parse_args()
    checkpoint = ["--model", o.model, "--dtype", o.dtype, "--device", o.device]
    if o.random_weights:
        checkpoint += ["--random-weights", o.random_weights]
    if len(o.seconds) != len(o.rates):
        p.error("--seconds: as many as --rates")
    loads = {f"{rate:g}/s": ["--rate", rate, "--duration", seconds, "--lengths", o.lengths] for rate, seconds in zip(o.rates, o.seconds)}
    loads |= {f"{n} at once": ["--rate", 200, "--requests", n, "--lengths", "fixed:16:400"] for n in o.at_once}
    seeds = [7 + n for n in range(o.starts)]
    # Of each load its own: of one seed two rates ask the same prompts, and a real server would have the second's KV in its cache.
    own_seed = {name: 1000 * i for i, name in enumerate(loads)}
    all_told = lambda command, seed: {name: told_by([*command, *load, "--seed", seed + own_seed[name]]) for name, load in loads.items()}

    deployments = [str(n) for n in o.stages] + ["apart"] * o.apart
    real, told, profiles = ({name: [] for name in deployments} for _ in range(3))
    arguments = [*checkpoint, "--threads", 1, "--kv-blocks", 1024]
    with tempfile.TemporaryDirectory() as folder:
        def fitted(name):
            profile = o.profile or os.path.join(folder, f"profile-{name}.json")
            if not o.profile:
                workers = 2 if name == "apart" else name
                subprocess.run([o.binary, "fit", *checkpoint, "--threads", "1", "--workers", str(workers), "--out", profile], check=True)
            profiles[name].append(json.load(open(profile)))
            told[name] += [all_told([o.binary, "simulate", "--profile", profile, *simulated(name)], seed) for seed in seeds]

        for name in deployments:
            fitted(name)
            for turn in range(o.rounds):
                for seed in seeds:
                    with served(o.binary, name, os.path.join(folder, f"{turn}-{name}-{seed}"), arguments) as port:
                        url = ["--url", f"http://127.0.0.1:{port}", "--vocabulary", 1000, "--ignore-eos"]
                        subprocess.run([*map(str, [o.binary, "load", *url, "--requests", 4, "--rate", 20, "--lengths", "fixed:32:4"])],
                                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                        real[name].append(all_told([o.binary, "load", *url], seed))
                fitted(name)
        rows = []
        for name in deployments:
            for load in loads:
                for figure, of in FIGURES.items():
                    if "at once" in load and figure != "TPOT ms":
                        continue
                    got, said = ([of([t[load]]) for t in all] for all in (real[name], told[name]))
                    measured, predicted = (of([t[load] for t in all]) for all in (real[name], told[name]))
                    again = statistics.median(abs(off_by(b, a)) for a, b in zip(got, got[o.starts:])) if o.rounds > 1 else None
                    rows.append({"stages": name, "figure": f"{figure}, {load}", "measured": measured, "all_measured": got, "predicted": predicted,
                                 "all_predicted": said, "off_percent": off_by(predicted, measured), "again_percent": again})
        print(f"{'stages':>6} {'figure':<20} {'measured':>10} {'least':>10} {'most':>10} {'predicted':>10} {'least':>10} {'most':>10} {'off':>8} {'again':>7}")
        for r in rows:
            got, said = r["all_measured"], r["all_predicted"]
            print(f"{r['stages']:>6} {r['figure']:<20} {r['measured']:>10.2f} {min(got):>10.2f} {max(got):>10.2f} {r['predicted']:>10.2f} "
                  f"{min(said):>10.2f} {max(said):>10.2f} {r['off_percent']:>+7.1f}% " + ("" if r["again_percent"] is None else f"{r['again_percent']:>6.1f}%"))
        if o.json:
            json.dump({"profiles": profiles, "loads": {name: [*map(str, load), "--seed", *(seed + own_seed[name] for seed in seeds)] for name, load in loads.items()}, "rows": rows}, open(o.json, "w"), indent=1)


if __name__ == "__main__":
    main()
