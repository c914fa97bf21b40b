#!/usr/bin/env python3
"""What do a prefill and a decode worker move and cost, against one server, and do they say the same?

usage: bench/disaggregated.py COKV [--models tiny,bench/geometries/qwen2.5-0.5b-served.json] [--device cpu] [--dtype f32] [--link URL]
                                   [--requests 8] [--tokens 32] [--shortest 64] [--longest 1000] [--rounds 3] [--seed 1]
                                   [--json FILE]

For each model (the bundled one, or random weights of a shape), in f32 unless told: a server alone, and a router with a prefill and a decode
worker, all on loopback. In each round both get the same REQUESTS prompts of random token ids, one request at a time, which
begins is by turns; half of the answers are sampled with a seed. Exits 1 unless all answers are the same, text and number of
tokens, and KV bytes sent (cokv_departed_bytes_total) are exactly prompt tokens * layers * 2 * kv heads * head size * 4.
In bf16 answers may differ, where two tokens are nearly as likely: they are counted, and no failure.

CPU seconds a request are of each process (/proc, in ticks of 10 ms), with what it does for nobody meanwhile. Times are for
information: the roles share the machine's cores, so computing and sending take from each other what they would not on two
machines. `late` is how much longer the second token takes than those after it (the median of answers): what is left of the
transfer behind the first token; of the server alone the same difference is noise.
"""
import argparse
import json
import os
import random
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
from lib_servers import Server, complete, metric  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "models/tiny-kjv")


def token_bytes(config, dtype):
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head * {"f32": 4, "bf16": 2}[dtype]


def cpu_seconds(server):
    with open(f"/proc/{server.process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def requests(o, round_number, vocabulary):
    rng = random.Random(f"{o.seed} {round_number}")
    for i in range(o.requests):
        prompt = [rng.randrange(3, vocabulary) for _ in range(rng.randint(o.shortest, o.longest))]
        sampled = {"temperature": 1, "seed": rng.randint(0, 1 << 60)} if i % 2 else {}
        yield prompt, {"ignore_eos": True, **sampled}


def ask_all(o, port, servers, all_requests):
    """The answers, and CPU seconds a request of each server."""
    before = [cpu_seconds(s) for s in servers]
    got = [complete(port, prompt, o.tokens, **how) for prompt, how in all_requests]
    return got, [(cpu_seconds(s) - b) / len(got) for s, b in zip(servers, before)]


def late(answers):
    gaps = [[b - a for a, b in zip(g["arrivals"], g["arrivals"][1:])] for g in answers]
    return statistics.median(g[0] - statistics.median(g[1:]) for g in gaps)


def one_model(o, name):
    shape = None if name == "tiny" else os.path.join(ROOT, name)
    with open(shape or os.path.join(MODEL, "config.json")) as f:
        config = json.load(f)
    serve = ("serve", "--model", MODEL, "--dtype", o.dtype, "--device", o.device, *(("--random-weights", shape) if shape else ()))
    wrong, cpu, ttft, behind = [], {}, {"alone": [], "disaggregated": []}, {"alone": [], "disaggregated": []}
    with open(os.devnull, "w") as quiet, Server(o.cokv, *serve, log=quiet) as alone, \
            Server(o.cokv, *serve, "--role", "decode", *(("--link", o.link) if o.link else ()), log=quiet) as decode, \
            Server(o.cokv, *serve, "--role", "prefill", log=quiet) as prefill, \
            Server(o.cokv, *serve, "--role", "router", "--prefill", prefill.url, "--decode", decode.url, log=quiet) as router:
        roles = {"alone": (alone,), "disaggregated": (router, prefill, decode)}
        names = {"alone": ("alone",), "disaggregated": ("router", "prefill", "decode")}
        for servers in roles.values():
            complete(servers[0].port, list(range(3, 67)), 4, ignore_eos=True)
        sent_before, prompt_tokens = metric(prefill.port, "cokv_departed_bytes_total"), 0
        for number in range(o.rounds):
            asked = list(requests(o, number, config["vocab_size"]))
            got = {}
            for kind in list(roles) if number % 2 == 0 else reversed(roles):
                got[kind], seconds = ask_all(o, roles[kind][0].port, roles[kind], asked)
                for role, s in zip(names[kind], seconds):
                    cpu.setdefault(role, []).append(s)
                ttft[kind] += [g["ttft"] for g in got[kind]]
                behind[kind].append(late(got[kind]))
            wrong += [(number, i) for i, (a, b) in enumerate(zip(got["alone"], got["disaggregated"]))
                      if a["text"] != b["text"] or a["usage"]["completion_tokens"] != b["usage"]["completion_tokens"]]
            prompt_tokens += sum(g["usage"]["prompt_tokens"] for g in got["disaggregated"])
        sent = int(metric(prefill.port, "cokv_departed_bytes_total") - sent_before)
    middle = {role: statistics.median(s) for role, s in cpu.items()}
    return {"model": name, "requests": o.requests * o.rounds, "different": len(wrong), "prompt_tokens": prompt_tokens,
            "token_bytes": token_bytes(config, o.dtype), "expected_bytes": prompt_tokens * token_bytes(config, o.dtype), "sent_bytes": sent,
            **{f"cpu_s_{role}": s for role, s in middle.items()},
            **{f"ttft_ms_{kind}": 1e3 * statistics.median(t) for kind, t in ttft.items()},
            **{f"late_ms_{kind}": 1e3 * statistics.median(b) for kind, b in behind.items()}}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--models", default="tiny,bench/geometries/qwen2.5-0.5b-served.json")
    p.add_argument("--device", default="cpu", help="of all three: cpu, cuda:N")
    p.add_argument("--link", help="where KV comes in, as cokv serve's")
    p.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
    p.add_argument("--requests", type=int, default=8)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--shortest", type=int, default=64)
    p.add_argument("--longest", type=int, default=1000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json")
    o = p.parse_args()
    print("| model | requests | other answers | prompt tokens | KV bytes sent | by formula | CPU s a request: alone | router | "
          "prefill | decode | all three | TTFT ms alone | disaggregated | late ms alone | disaggregated |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for name in o.models.split(","):
        r = one_model(o, name)
        rows.append(r)
        three = [r[f"cpu_s_{role}"] for role in ("router", "prefill", "decode")]
        print(f"| {os.path.basename(name).removesuffix('.json')} | {r['requests']} | {r['different']} | {r['prompt_tokens']} | "
              f"{r['sent_bytes']:,} | {r['expected_bytes']:,} | {r['cpu_s_alone']:.3f} | {three[0]:.3f} | {three[1]:.3f} | "
              f"{three[2]:.3f} | {sum(three):.3f} | {r['ttft_ms_alone']:.1f} | {r['ttft_ms_disaggregated']:.1f} | "
              f"{r['late_ms_alone']:.1f} | {r['late_ms_disaggregated']:.1f} |", flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"bench": "disaggregated, real processes", "rows": rows}, f, indent=1)
    if any((r["different"] and o.dtype == "f32") or r["sent_bytes"] != r["expected_bytes"] for r in rows):
        raise SystemExit("not the same answers, or not the bytes that were to be sent")


if __name__ == "__main__":
    main()
