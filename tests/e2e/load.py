#!/usr/bin/env python3
"""cokv load against a real server: what it says is what was asked, also when the server dies or the user stops it."""
import json
import os
import resource
import signal
import subprocess

from checks import MODEL, at_least, run, same, until
from lib_servers import Server, metric


def load(binary, *arguments, code=0):
    done = subprocess.run([binary, "load", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    same(f"exit code of {arguments}: {done.stderr}", done.returncode, code)
    return done


def server(binary, *more):
    return Server(binary, "serve", "--model", MODEL, "--dtype", "f32", *more, log=open(os.devnull, "w"))


def figures_are_of_what_was_asked(binary, folder):
    out, picture = os.path.join(folder, "l.json"), os.path.join(folder, "l.svg")
    with server(binary) as s:
        done = load(binary, "--url", s.url, "--rate", 50, "--requests", 50, "--lengths", "uniform:5-80:2-20", "--vocabulary", 250,
                    "--ignore-eos", "--slo-ttft", 60000, "--json", out, "--plot", picture)
    told = json.load(open(out))
    same("answered", told["summary"]["answered"], 50)
    for r in told["requests"]:
        same("prompt", r["prompt_tokens"], r["asked_prompt_tokens"])
        same("output", r["output_tokens"], r["asked_output_tokens"])
        if not 0 < r["ttft_ms"] <= r["total_ms"]:
            raise AssertionError(f"times of {r}")
    same("attainment", told["summary"]["attainment"], 1.0)
    same("the table", "50 requests: 50 sent, 50 answered, 0 failed" in done.stdout, True)
    same("the picture", open(picture).read().startswith("<svg"), True)


def chats_and_traces(binary, folder):
    trace = os.path.join(folder, "trace.jsonl")
    with open(trace, "w") as f:
        for i in range(10):
            f.write(json.dumps({"at": i / 50, "prompt_tokens": 10 + i, "output_tokens": 5}) + "\n")
    with server(binary) as s:
        done = load(binary, "--url", s.url, "--trace", trace, "--endpoint", "chat")
        same("answers", "10 answered" in done.stdout, True)


def prefixes_are_shared(binary, folder):
    with server(binary) as s:
        load(binary, "--url", s.url, "--rate", 5, "--requests", 20, "--lengths", "fixed:100:2", "--vocabulary", 250,
             "--shared-prefix", 64, "--groups", 2)
        at_least("tokens that were cached", metric(s.port, "cokv_cached_tokens_total"), 16 * 64)


def goodput_is_found(binary, folder):
    out = os.path.join(folder, "l.json")
    with server(binary) as s:
        load(binary, "--url", s.url, "--rate", 20, "--duration", 1, "--lengths", "fixed:20:10", "--find-goodput", "--slo-ttft", 200,
             "--max-in-flight", 100, "--json", out)
    told = json.load(open(out))
    at_least("goodput", told["goodput_per_s"], 1)


def a_server_that_dies_is_counted(binary, folder):
    out = os.path.join(folder, "l.json")
    with server(binary) as s:
        running = subprocess.Popen([binary, "load", "--url", s.url, "--rate", "20", "--duration", "4", "--lengths", "fixed:20:50",
                                    "--timeout", "5", "--json", out], stdout=subprocess.PIPE, text=True)
        until("some are answered", lambda: metric(s.port, "cokv_requests_total", outcome="finished") > 5)
        s.process.kill()
        text = running.communicate(timeout=60)[0]
    same("exit code", running.returncode, 0)
    told = json.load(open(out))["summary"]
    at_least("answered", told["answered"], 1)
    at_least("failed", told["failed"], 1)
    same("all are accounted for", told["answered"] + told["failed"] + told["not_sent"], told["requests"])
    same("the kind is told", "onnection refused" in text, True)


def stopped(binary, s, *arguments):
    running = subprocess.Popen([binary, "load", "--url", s.url, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    until("it is under load", lambda: metric(s.port, "cokv_generated_tokens_total") > 100)
    running.send_signal(signal.SIGINT)
    text = running.communicate(timeout=30)[0]
    same("exit code", running.returncode, 0)
    return text


def what_was_measured_is_told_after_ctrl_c(binary, folder):
    out = os.path.join(folder, "l.json")
    for more in ((), ("--find-goodput",)):
        with server(binary) as s:
            text = stopped(binary, s, "--rate", 50, "--duration", 60, "--lengths", "fixed:20:5", "--slo-ttft", 60000, "--json", out,
                           *more)
        same("the table", "TTFT" in text, True)
        told = json.load(open(out))["summary"]
        same("all that was due is good", told["attainment"], 1.0)
        at_least("stopped", told["stopped"], 100)
        same("all are accounted for", told["sent"] + told["not_sent"] + told["stopped"], told["requests"])
        same("failed", told["failed"], 0)


def each_step_of_a_search_has_prompts_of_its_own(binary, folder):
    with server(binary, "--kv-blocks", 8192) as s:
        load(binary, "--url", s.url, "--rate", 20, "--duration", 1, "--lengths", "fixed:60:2", "--vocabulary", 250, "--find-goodput",
             "--slo-ttft", 500, "--max-in-flight", 50)
        prompts, cached = (metric(s.port, f"cokv_{n}_tokens_total") for n in ("prompt", "cached"))
    if cached > prompts / 20:
        raise AssertionError(f"{cached} of {prompts} prompt tokens were cached")


def few_descriptors_are_told_and_cost_nothing_else(binary, folder):
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with server(binary) as s:
        done = subprocess.run([binary, "load", "--url", s.url, "--rate", "2000", "--requests", "200", "--lengths", "fixed:20:50"],
                              capture_output=True, text=True, timeout=60, preexec_fn=few)
    same("exit code", done.returncode, 0)
    same("it is told", "--max-in-flight: 32 at once" in done.stderr, True)
    same("nothing failed", " 0 failed," in done.stdout and "too many in flight" not in done.stdout.split("\n")[0], True)


def what_is_wrong_is_told_in_one_line(binary, folder):
    def refused(word, *arguments, code=2):
        done = load(binary, *arguments, code=code)
        lines = done.stderr.strip().splitlines()
        same("lines", len(lines), 1)
        if word not in lines[0]:
            raise AssertionError(f"{arguments}: {lines[0]!r} does not say {word!r}")

    refused("--url", "--url", "nonsense")
    refused("--lengths", "--lengths", "fixed:0:1")
    refused("--rate", "--rate", "0")
    refused("--trace", "--trace", os.path.join(folder, "none"))
    refused("--json", "--json", os.path.join(folder, "none", "l.json"), "--requests", 2)
    refused("--duration", "--duration", 1000000, "--rate", 1000000)
    refused("--find-goodput", "--find-goodput")
    refused("--vocabulary", "--vocabulary", "100", "--endpoint", "chat")
    refused("refused", "--url", "http://127.0.0.1:1", code=1)
    with server(binary) as s:
        done = load(binary, "--url", s.url, "--requests", 2, "--model", "another", code=1)
        same("the reason", "status 404 (model_not_found)" in done.stdout, True)


run(figures_are_of_what_was_asked, chats_and_traces, prefixes_are_shared, goodput_is_found, a_server_that_dies_is_counted,
    what_was_measured_is_told_after_ctrl_c, each_step_of_a_search_has_prompts_of_its_own,
    few_descriptors_are_told_and_cost_nothing_else, what_is_wrong_is_told_in_one_line)
