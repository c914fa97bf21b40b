#!/usr/bin/env python3
"""cokv load against a real server: what it says is what was asked, also when the server dies or the user stops it."""
import json
import os
import signal
import subprocess
import time

from checks import MODEL, at_least, run, same
from lib_servers import Server


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
        load(binary, "--url", s.url, "--rate", 100, "--requests", 20, "--lengths", "fixed:100:2", "--vocabulary", 250,
             "--shared-prefix", 64, "--groups", 2)
        from lib_servers import metric
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
        time.sleep(1.5)
        s.process.kill()
        text = running.communicate(timeout=60)[0]
    same("exit code", running.returncode, 0)
    told = json.load(open(out))["summary"]
    at_least("answered", told["answered"], 1)
    at_least("failed", told["failed"], 1)
    same("all are accounted for", told["answered"] + told["failed"] + told["not_sent"], told["requests"])
    same("the kind is told", "onnection refused" in text, True)


def what_was_measured_is_told_after_ctrl_c(binary, folder):
    with server(binary) as s:
        running = subprocess.Popen([binary, "load", "--url", s.url, "--rate", "50", "--duration", "60", "--lengths", "fixed:20:5"],
                                   stdout=subprocess.PIPE, text=True)
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        text = running.communicate(timeout=30)[0]
    same("exit code", running.returncode, 0)
    same("the table", "TTFT" in text and "not sent" in text, True)


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
    refused("--find-goodput", "--find-goodput")
    refused("--vocabulary", "--vocabulary", "100", "--endpoint", "chat")
    refused("refused", "--url", "http://127.0.0.1:1", code=1)
    with server(binary) as s:
        load(binary, "--url", s.url, "--requests", 2, "--model", "another", code=1)


run(figures_are_of_what_was_asked, chats_and_traces, prefixes_are_shared, goodput_is_found, a_server_that_dies_is_counted,
    what_was_measured_is_told_after_ctrl_c, what_is_wrong_is_told_in_one_line)
