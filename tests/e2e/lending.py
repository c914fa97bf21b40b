#!/usr/bin/env python3
"""Prefill workers that keep layers of decode workers' KV: what becomes of answers and memory when one of them goes."""
import json
import signal
import subprocess
import time

from checks import MODEL, at_least, run, same, until
from cluster import LONG, Cluster, all_answered, ask, asked, blocks_are_free, kill, some_requests, told
from lib_servers import Server, fetch, metric


def lent(server):
    return metric(server.port, "cokv_lent_bytes")


def long_answers(binary, count, seed):
    requests = [r | {"max_tokens": 150, "logit_bias": LONG["logit_bias"]} for r in some_requests(count, seed)]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        return requests, [told(ask(one.port, **r)[1]) for r in requests]


def in_mid_answer(cluster, requests, do):
    peers = [asked(cluster.port, r) for r in requests]
    until("it decodes", lambda: metric(cluster.decode.port, "cokv_generated_tokens_total") > 100)
    do()
    return peers


def who_lends(cluster):
    (one,) = [s for s in cluster.prefills if s.process.poll() is None and metric(s.port, "cokv_loans") == 1]
    return one


def another_one_lends(binary, folder, do):
    requests, wanted = long_answers(binary, 12, 60)
    with Cluster(binary, prefills=2, lend=5, prefill=("--lend-memory", "512MiB")) as cluster:
        victim = who_lends(cluster)
        peers = in_mid_answer(cluster, requests, lambda: do(victim))
        all_answered(peers, requests, wanted)
        until("a lender was lost", lambda: metric(cluster.decode.port, "cokv_lenders_lost_total") > 0)
        until("it borrows again", lambda: metric(cluster.decode.port, "cokv_borrowing") == 1)
        until("the victim has ended", lambda: victim.process.poll() is not None)
        blocks_are_free(cluster)
        same("text", told(ask(cluster.port, **requests[0])[1]), wanted[0])


def one_with_too_little_is_passed_over(binary, folder):
    model = ("--model", MODEL, "--dtype", "f32")
    with Server(binary, "serve", *model, "--role", "prefill", "--lend-memory", "64KiB") as little, \
            Server(binary, "serve", *model, "--role", "prefill", "--lend-memory", "512MiB") as much, \
            Server(binary, "serve", *model, "--role", "decode", "--borrow-from", f"{little.url},{much.url}",
                   "--borrow-layers", 4) as decode:
        same("who lends", [metric(s.port, "cokv_loans") for s in (little, much)], [0, 1])
        same("it borrows", metric(decode.port, "cokv_borrowing"), 1)


def a_lender_that_is_killed(binary, folder):
    another_one_lends(binary, folder, kill)


def a_lender_that_ends(binary, folder):
    another_one_lends(binary, folder, lambda s: s.process.send_signal(signal.SIGTERM))


def a_lender_that_stands_still(binary, folder):
    requests, wanted = long_answers(binary, 12, 61)
    with Cluster(binary, prefills=2, lend=5, prefill=("--lend-memory", "512MiB")) as cluster:
        victim = who_lends(cluster)
        peers = in_mid_answer(cluster, requests, lambda: victim.process.send_signal(signal.SIGSTOP))
        all_answered(peers, requests, wanted)
        victim.process.send_signal(signal.SIGCONT)
        until("what it had lent is its own again", lambda: lent(victim) == 0)


def the_only_lender_comes_back(binary, folder):
    """Without a lender answers end with an error that says so, and the next ones are right when there is one again."""
    requests, wanted = long_answers(binary, 6, 62)
    model = ("--model", MODEL, "--dtype", "f32")
    with Server(binary, "serve", *model, "--role", "prefill") as computes, \
            Server(binary, "serve", *model, "--role", "prefill", "--lend-memory", "512MiB") as lends, \
            Server(binary, "serve", *model, "--role", "decode", "--borrow-from", lends.url, "--borrow-layers", 4) as decode, \
            Server(binary, "serve", *model, "--role", "router", "--prefill", computes.url, "--decode", decode.url) as router:
        peers = [asked(router.port, r) for r in requests]
        until("it decodes", lambda: metric(decode.port, "cokv_generated_tokens_total") > 50)
        kill(lends)
        until("it is told", lambda: metric(decode.port, "cokv_borrowing") == 0)
        same("how the worker is", json.loads(fetch(decode.port, "/v1/worker"))["broken"], True)
        with Server(binary, "serve", *model, "--role", "prefill", "--lend-memory", "512MiB", port=lends.port):
            until("it borrows again", lambda: metric(decode.port, "cokv_borrowing") == 1)
            all_answered(peers, requests, wanted)


def without_a_lender_answers_end(binary, folder):
    with Cluster(binary, lend=3, prefill=("--lend-memory", "512MiB")) as cluster:
        peers = in_mid_answer(cluster, [LONG], lambda: kill(cluster.prefill))
        begun, data = time.monotonic(), b""
        while chunk := peers[0].recv(1 << 16):
            data += chunk
        same("it ended with an error", b" 503 " in data.split(b"\r\n")[0], True)
        same("in time", time.monotonic() - begun < 30, True)
        blocks_are_free(cluster)


def a_decode_worker_that_dies_gives_back(binary, folder):
    with Cluster(binary, decodes=2, lend=3, prefill=("--lend-memory", "512MiB")) as cluster:
        before = lent(cluster.prefill)
        same("loans", metric(cluster.prefill.port, "cokv_loans"), 2)
        kill(cluster.decodes[1])
        until("half of it is free", lambda: lent(cluster.prefill) == before / 2)
        same("a loan", metric(cluster.prefill.port, "cokv_loans"), 1)
        same("status", ask(cluster.port, prompt="In the beginning", max_tokens=5)[0], 200)
        cluster.decode.stop()
        until("all of it is free", lambda: lent(cluster.prefill) == 0)


def what_is_wrong_is_told(binary, folder):
    def refused(*args):
        done = subprocess.run([binary, "serve", "--model", MODEL, "--role", *map(str, args)], capture_output=True,
                              text=True, timeout=60)
        same("exit code", done.returncode, 2)
        return done.stderr

    for flag in (("--swap", "1GiB"), ("--kv-host", "1GiB"), ("--async-scheduling",)):
        assert flag[0] in refused("decode", "--borrow-from", "http://127.0.0.1:1", *flag), flag
    assert "--borrow-layers" in refused("decode", "--borrow-layers", 3)
    assert "--borrow-layers" in refused("decode", "--borrow-from", "http://127.0.0.1:1", "--borrow-layers", 8)
    assert "--borrow-from" in refused("decode", "--borrow-from", "ftp://127.0.0.1:1")
    assert "--lend-memory" in refused("decode", "--lend-memory", "1GiB")
    assert "--link" in refused("prefill", "--link", "tcp://127.0.0.1:0")
    with Server(binary, "serve", "--model", MODEL, "--role", "prefill", "--lend-memory", "64MiB") as lends:
        assert "no room for a block" in refused("decode", "--borrow-from", lends.url, "--borrow-layers", 1, "--kv-blocks", 1)


run(one_with_too_little_is_passed_over, a_lender_that_is_killed, a_lender_that_ends, a_lender_that_stands_still, the_only_lender_comes_back,
    without_a_lender_answers_end, a_decode_worker_that_dies_gives_back, what_is_wrong_is_told)
