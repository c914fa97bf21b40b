#!/usr/bin/env python3
"""cokv fit measures this machine's steps, and cokv simulate goes by what it wrote."""
import json
import subprocess

from checks import MODEL, ROOT, at_least, run, same

QUICK = ("--model", MODEL, "--dtype", "f32", "--threads", 1, "--max-batched-tokens", 32, "--context", 64)


def cokv(binary, *arguments):
    p = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    return p.returncode, p.stdout, p.stderr


def what_it_measures_is_what_a_simulation_takes(binary, folder):
    code, out, err = cokv(binary, "fit", *QUICK, "--workers", 2, "--out", f"{folder}/profile.json")
    same("exit code and output", (code, out), (0, ""))
    p = json.load(open(f"{folder}/profile.json"))
    same("of what", (p["layers"], p["dtype"], p["threads"], [n for n, _ in p["prompts"]]), (8, "f32", 1, [1, 2, 4, 8, 16, 17, 32]))
    same("workers", [len(p["prompts_beside"]), len(p["answers_beside"])], [2, 2])
    same("a pipeline of two, by how many compute", [len(w) for w in p["pipeline_tokens"]], [2])
    for kind in ("prompts_idle", "answers_idle"):
        same(kind, [pause for pause, _ in p[kind]], [0.001, 0.005, 0.025, 0.125, 0.5, 1])
    at_least("seconds of 32 tokens, over those of one", p["prompts"][-1][1], p["prompts"][0][1])
    at_least("link", p["link_bytes_per_second"], 1e6)
    code, out, err = cokv(binary, "simulate", "--profile", f"{folder}/profile.json", "--requests", 20, "--rate", 50, "--lengths", "fixed:32:8",
                          "--pipeline", 2, "--workers-a-machine", 2, "--json", f"{folder}/figures.json")
    same("exit code", code, 0)
    told = json.load(open(f"{folder}/figures.json"))
    # A prompt of 32 alone takes so long, and a worker beside another no less.
    at_least("milliseconds to the first token", told["summary"]["ttft_ms"]["p50"], 7e3 * p["prompts"][-1][1] * 0.5)


def without_a_file_it_prints_the_profile(binary, folder):
    code, out, _ = cokv(binary, "--log-level", "error", "fit", *QUICK[:6], "--max-batched-tokens", 2, "--context", 8)
    same("exit code", code, 0)
    same("tokens", [n for n, _ in json.loads(out)["answers"]], [1, 2])


def what_is_wrong_is_told(binary, folder):
    for arguments, said in ((("--model", f"{folder}/none"), "none"), (("--model", f"{folder}/none", "--workers", 3), "none"),
                            ((*QUICK, "--workers", 2, "--context", 1 << 20, "--random-weights", f"{ROOT}/bench/geometries/llama-3.2-1b.json"),
                             "--context"), ((*QUICK, "--out", f"{folder}/no/such"), "--out"),
                            ((*QUICK, "--workers", 0), "--workers"), ((*QUICK, "--device", "cuda:9"), "--device")):
        code, _, err = cokv(binary, "fit", *arguments)
        same(f"{arguments} is refused", (code != 0, said in err), (True, True))


run(what_it_measures_is_what_a_simulation_takes, without_a_file_it_prints_the_profile, what_is_wrong_is_told)
