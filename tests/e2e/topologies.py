#!/usr/bin/env python3
"""Prompts are computed by a model in parts and decoded by one in other parts, each part a process: the answers are one server's,
whatever links its workers have with each other and KV goes by; a worker that dies costs an attempt, and no answer.

COKV_REQUESTS says how many each time; 8 unless told.
"""
import json
import os
import shutil

from checks import MODEL, at_least, run, same, until
from cluster import LONG, all_answered, ask, asked, some_requests, told
from lib_parts import Parts
from lib_servers import Server, Stream, fetch, metric

COUNT = int(os.environ.get("COKV_REQUESTS", "8"))
HERE = ("--model", MODEL, "--dtype", "f32", "--threads", 1)
SLOW = bool(os.environ.get("COKV_SANITIZE"))


class Side:
    """A worker of a role, whole or in parts."""

    def __init__(self, binary, folder, role, n, m, link, *more, spares=0, dtype="f32"):
        arguments = (*HERE[:2], "--dtype", dtype, *HERE[4:], "--role", role, *more)
        os.makedirs(folder, exist_ok=True)
        self.parts = Parts(binary, folder, n, m, link, *arguments, spares=spares) if n * m > 1 else None
        self.server = self.parts.leader if self.parts else Server(binary, "serve", *arguments)
        self.url, self.port = self.server.url, self.server.port

    def stop(self):
        return self.parts.stop() if self.parts else [self.server.stop()]

    def __exit__(self, *_):
        (self.parts or self.server).__exit__()


class Cluster:
    def __init__(self, binary, folder, prefill, decode, link, *, prefills=1, both=(), decode_args=(), spares=(0, 0),
                 dtypes=("f32", "f32")):
        self.prefills = [Side(binary, f"{folder}/p{i}", "prefill", *prefill, link, *both, spares=spares[0], dtype=dtypes[0])
                         for i in range(prefills)]
        self.decode = Side(binary, f"{folder}/d", "decode", *decode, link, *both, *decode_args, spares=spares[1],
                           dtype=dtypes[1])
        self.sides = [*self.prefills, self.decode]
        self.router = Server(binary, "serve", *HERE[:4], "--role", "router", "--prefill",
                             ",".join(s.url for s in self.prefills), "--decode", self.decode.url)
        self.port = self.router.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (self.router, *self.sides):
            one.__exit__()

    def at_rest(self):
        for side in self.sides:
            until("no block is in use",
                  lambda: metric(side.port, "cokv_kv_blocks", state="in_use") == 0)
        until("no room is open", lambda: metric(self.decode.port, "cokv_windows") == 0)

    def stop(self):
        return [code for one in (self.router, *self.sides) for code in (one.stop() if one is not self.router else [one.stop()])]


def one_server(binary, requests):
    with Server(binary, "serve", *HERE) as one:
        return [told(ask(one.port, **r)[1]) for r in requests]


def whatever_the_topologies_answers_are_one_servers(binary, folder):
    requests = list(some_requests(COUNT, 300))
    wanted = one_server(binary, requests)
    cases = [((2, 1), (1, 1), "tcp", ()), ((1, 1), (2, 2), "shm", ()),
             ((2, 2), (4, 1), "tcp", ("--link", "tcp://127.0.0.1:0")), ((1, 2), (2, 1), "shm", ())]
    if shutil.which("mpirun"):
        cases += [((2, 2), (1, 2), "mpi", ()), ((4, 1), (2, 1), "mpi", ())]
    for i, (prefill, decode, link, more) in enumerate(cases[1:3] if SLOW else cases):
        # A chunk is less than most prompts: they are on their way while they are computed.
        with Cluster(binary, f"{folder}/{i}", prefill, decode, link, both=("--max-batched-tokens", 100),
                     decode_args=more) as cluster:
            all_answered([asked(cluster.port, r) for r in requests], requests, wanted)
            at_least("prompts that were sent", metric(cluster.prefills[0].port, "cokv_departed_prompts_total"), COUNT)
            at_least("KV that was sent", metric(cluster.prefills[0].port, "cokv_departed_bytes_total"), 1)
            cluster.at_rest()
            if link != "mpi":  # mpirun's own is not 0 when it is told to end
                same("exit codes", set(cluster.stop()), {0})
        print(f"      pp{prefill[0]}xtp{prefill[1]} to pp{decode[0]}xtp{decode[1]}, ranks over {link}: the same", flush=True)


def blocks_of_another_size(binary, folder):
    requests = list(some_requests(COUNT, 301))
    wanted = one_server(binary, requests)
    with Cluster(binary, folder, (2, 1), (1, 2), "tcp", decode_args=("--block-tokens", 24)) as cluster:
        all_answered([asked(cluster.port, r) for r in requests], requests, wanted)
        cluster.at_rest()


def each_part_converts_its_own(binary, folder):
    """Stages compute what the whole model does, bit for bit, so that whoever converts, all of it or a part, sends the same."""
    requests = list(some_requests(COUNT, 308))
    for dtypes in (("f32", "bf16"), ("bf16", "f32")):
        answers = []
        for prefill, decode in (((1, 1), (1, 1)), ((2, 1), (3, 1))):
            with Cluster(binary, f"{folder}/{dtypes[0]}-{prefill[0]}", prefill, decode, "tcp", both=("--convert-kv",),
                         decode_args=("--block-tokens", 8), dtypes=dtypes) as cluster:
                answers.append([told(ask(cluster.port, **r)[1]) for r in requests])
                at_least("KV that was sent", metric(cluster.prefills[0].port, "cokv_departed_bytes_total"), 1)
                cluster.at_rest()
        same(f"answers, {dtypes[0]} to {dtypes[1]}", answers[1], answers[0])


def where_microbatches_take_turns_to_decode(binary, folder):
    """KV arrives in the hosts' memory, shared by its windows; a device has room for a step and the next. Prompts that begin alike
    come into blocks that others had."""
    requests = [r for seed in (304, 304, 305) for r in some_requests(COUNT, seed)]
    wanted = one_server(binary, requests)
    by_turns = ("--kv-blocks", 60, "--swap", "8MiB", "--swap-by", "microbatch")
    with Cluster(binary, folder, (1, 1), (2, 1), "shm", decode_args=by_turns) as cluster:
        all_answered([asked(cluster.port, r) for r in requests], requests, wanted)
        at_least("bytes that came in", metric(cluster.decode.port, "cokv_swapped_bytes_total", way="in"), 1)
        at_least("KV that was sent", metric(cluster.prefills[0].port, "cokv_departed_bytes_total"), 1)
        cluster.at_rest()


def a_worker_that_decodes_dies(binary, folder):
    """Any of them: all KV there is lost, and answers go on when the others have come together with another one."""
    (wanted,) = one_server(binary, [LONG])
    with Cluster(binary, folder, (1, 1), (2, 1), "tcp") as cluster:
        peer = asked(cluster.port, LONG)
        until("it decodes", lambda: metric(cluster.decode.port, "cokv_generated_tokens_total") > 20)
        cluster.decode.parts.kill(1)
        until("it is told", lambda: json.loads(fetch(cluster.decode.port, "/v1/worker"))["broken"])
        cluster.decode.parts.replace(1)
        all_answered([peer], [LONG], [wanted])
        at_least("times a worker was lost", metric(cluster.decode.port, "cokv_workers_lost_total"), 1)
        cluster.at_rest()


def a_spare_takes_the_place_of_one_that_decodes(binary, folder):
    """With its KV: the answers that were decoded go on where they are."""
    requests = [LONG | {"prompt": r["prompt"], "seed": i, "max_tokens": 250} for i, r in enumerate(some_requests(COUNT, 306))]
    wanted = one_server(binary, requests)
    by_turns = ("--kv-blocks", 90, "--swap", "64MiB", "--swap-by", "microbatch")
    cases = [((2, 1), (3, 1), "tcp", by_turns), ((1, 1), (2, 2), "shm", ())]
    for i, (prefill, decode, link, more) in enumerate(cases[1:] if SLOW else cases):
        workers = decode[0] * decode[1]
        with Cluster(binary, f"{folder}/{i}", prefill, decode, link, decode_args=more, spares=(0, workers - 1)) as cluster:
            counted = lambda what: metric(cluster.decode.port, f"cokv_{what}")
            for victim in range(1, workers):
                answers = [Stream(cluster.port, r | {"model": "tiny-kjv", "stream": True}) for r in requests]
                for a in answers:
                    a.start()
                until("some tokens of each came", lambda: all(len(a.at) > 20 for a in answers), 60)
                before, times = counted("recomputed_tokens_total"), counted("recoveries_total")
                cluster.decode.parts.kill(victim)
                until("its place is taken", lambda: counted("recoveries_total") > times)
                for a, (text, *_) in zip(answers, wanted):
                    a.join(90)
                    same("without an error", (a.is_alive(), a.error), (False, None))
                    same("the answer", a.text, text[0])
                again, times = counted("recomputed_tokens_total") - before, counted("recoveries_total") - times
                if again > COUNT * times:
                    raise AssertionError(f"{again} tokens of {COUNT} sequences were computed again in {times} recoveries")
                same("requests that began anew", counted("restarted_requests_total"), 0)
                same("answers that were moved", metric(cluster.port, "cokv_moved_requests_total", of="answer"), 0)
                print(f"      pp{decode[0]}xtp{decode[1]} over {link} without worker {victim}: {again:.0f} tokens of {COUNT} "
                      "sequences again", flush=True)
                cluster.at_rest()


def a_spare_takes_the_place_of_one_that_computes_prompts(binary, folder):
    """With its weights alone."""
    requests = [r | {"max_tokens": 4} for r in some_requests(3 * COUNT, 307)]
    wanted = one_server(binary, requests)
    with Cluster(binary, folder, (2, 1), (1, 1), "tcp", spares=(1, 0)) as cluster:
        peers = [asked(cluster.port, r) for r in requests]
        until("one is at it", lambda: metric(cluster.prefills[0].port, "cokv_steps_total") > 3)
        cluster.prefills[0].parts.kill(1)
        all_answered(peers, requests, wanted)
        until("all are there", lambda: metric(cluster.prefills[0].port, "cokv_workers_joined") == 1)
        at_least("times a worker was lost", metric(cluster.prefills[0].port, "cokv_workers_lost_total"), 1)
        cluster.at_rest()


def a_worker_that_computes_prompts_dies(binary, folder):
    requests = [r | {"max_tokens": 4} for r in some_requests(3 * COUNT, 302)]
    wanted = one_server(binary, requests)
    with Cluster(binary, folder, (2, 1), (1, 2), "tcp", prefills=2) as cluster:
        peers = [asked(cluster.port, r) for r in requests]
        until("one is at it", lambda: metric(cluster.prefills[0].port, "cokv_steps_total") > 3)
        cluster.prefills[0].parts.kill(1)
        all_answered(peers, requests, wanted)
        cluster.prefills[0].parts.replace(1)
        cluster.prefills[0].parts.all_here()
        cluster.at_rest()


run(whatever_the_topologies_answers_are_one_servers, blocks_of_another_size, each_part_converts_its_own,
    where_microbatches_take_turns_to_decode, a_worker_that_decodes_dies, a_worker_that_computes_prompts_dies,
    a_spare_takes_the_place_of_one_that_decodes, a_spare_takes_the_place_of_one_that_computes_prompts)
