#!/usr/bin/env python3
"""A model in parts, as processes: any number of stages and ranks, over every kind of link, answers as one server does; a
worker that dies fails what is under way, and nothing else.

COKV_REQUESTS says how many each time; 12 unless told. COKV_SERVE what computes, as lib_servers.py has it: on a GPU, over shm.
"""
import json
import os
import random
import shutil
import signal
import subprocess

from checks import MODEL, ROOT, at_least, run, same, until
from cluster import LONG, all_answered, ask, asked, some_requests, told
from lib_parts import AS_ROOT, Parts as AnyParts
from lib_servers import Server, Stream, metric

COUNT = int(os.environ.get("COKV_REQUESTS", "12"))
HERE = ("--model", MODEL, "--dtype", "f32", "--threads", 1)
SHAPES = [(n, m) for n in (1, 2, 4) for m in (1, 2) if n * m > 1]


class Parts(AnyParts):
    def __init__(self, binary, folder, n, m, link, *more, **how):
        super().__init__(binary, folder, n, m, link, *HERE, *more, **how)

    def at_rest(self):
        until("no block is in use", lambda: metric(self.port, "cokv_kv_blocks", state="in_use") == 0)


def one_server(binary, requests, *more):
    with Server(binary, "serve", *HERE, *more) as one:
        answers = [ask(one.port, **r) for r in requests]
    for status, _ in answers:
        same("status of one server", status, 200)
    return [told(answer) for _, answer in answers]


def every_shape_over_every_link_answers_as_one_server(binary, folder):
    requests = list(some_requests(COUNT, 200))
    wanted = one_server(binary, requests)
    slow = bool(os.environ.get("COKV_SANITIZE"))
    links = ["shm"] if slow or os.environ.get("COKV_SERVE") else ["tcp", "shm", "ucx"] + (["mpi"] if shutil.which("mpirun") else [])
    for link in links:
        for n, m in [(2, 2)] if slow else SHAPES:
            with Parts(binary, folder, n, m, link) as parts:
                all_answered([asked(parts.port, r) for r in requests], requests, wanted)
                at_least("steps", metric(parts.port, "cokv_steps_total"), 1)
                parts.at_rest()
            print(f"      pp{n}xtp{m} over {link}: {COUNT} requests the same", flush=True)


def stages_of_other_sizes_answer_the_same(binary, folder):
    requests = list(some_requests(COUNT, 202))
    wanted = one_server(binary, requests)
    with Parts(binary, folder, 3, 1, "shm", "--stage-starts", "0,1,6", "--microbatches", 2) as parts:
        all_answered([asked(parts.port, r) for r in requests], requests, wanted)
        parts.at_rest()


def four_layers(folder, family):
    """The family's miniature with four layers, random weights, and as many tokens as the bundled model has."""
    with open(os.path.join(ROOT, "tests/engine/fixtures/families", family, "config.json")) as f:
        config = json.load(f)
    config["vocab_size"] = 2048
    config["n_layer" if "n_layer" in config else "num_hidden_layers"] = 4
    to = os.path.join(folder, f"{family}.json")
    with open(to, "w") as f:
        json.dump(config, f)
    return to


def every_family_answers_as_one_server(binary, folder):
    rng = random.Random(203)
    links = ["shm"] if os.environ.get("COKV_SANITIZE") or os.environ.get("COKV_SERVE") else ["tcp", "shm"] + (["mpi"] if shutil.which("mpirun") else [])
    turn = 0
    for family in ("llama", "qwen2", "glm", "gpt2", "opt", "bloom"):
        weights = ("--random-weights", four_layers(folder, family), "--kv-blocks", 200)
        requests = [{"prompt": [rng.randrange(3, 2000) for _ in range(rng.randint(1, 90))], "max_tokens": 30, "temperature": rng.choice((0, 1)), "seed": rng.randint(0, 1 << 60)} for _ in range(COUNT)]
        wanted = one_server(binary, requests, *weights)
        for link in links:
            n, m = SHAPES[turn % len(SHAPES)]
            turn += 1
            with Parts(binary, folder, n, m, link, *weights) as parts:
                all_answered([asked(parts.port, r) for r in requests], requests, wanted)
                parts.at_rest()
            print(f"      {family}, pp{n}xtp{m} over {link}: {COUNT} requests the same", flush=True)


def with_few_blocks_they_are_preempted_or_take_turns_and_answer_the_same(binary, folder):
    requests = [r | {"max_tokens": 60} for r in some_requests(max(COUNT, 12), 201)]
    wanted = one_server(binary, requests)
    few = ("--kv-blocks", 60, "--max-batched-tokens", 100)
    with Parts(binary, folder, 2, 2, "tcp", *few) as parts:
        all_answered([asked(parts.port, r) for r in requests], requests, wanted)
        at_least("preemptions", metric(parts.port, "cokv_preemptions_total"), 1)
        parts.at_rest()
    with Parts(binary, folder, 2, 2, "tcp", *few, "--swap", "16MiB") as parts:
        all_answered([asked(parts.port, r) for r in requests], requests, wanted)
        same("preemptions", metric(parts.port, "cokv_preemptions_total"), 0)
        at_least("bytes that went and came back", metric(parts.port, "cokv_swapped_bytes_total"), 1)
        parts.at_rest()
    # A sequence has half of a device's blocks at the most.
    enough = ("--kv-blocks", 80, *few[2:])
    with Parts(binary, folder, 2, 2, "tcp", *enough, "--swap", "16MiB", "--swap-by", "microbatch") as parts:
        all_answered([asked(parts.port, r) for r in requests], requests, wanted)
        same("preemptions", metric(parts.port, "cokv_preemptions_total"), 0)
        at_least("bytes that went and came back", metric(parts.port, "cokv_swapped_bytes_total"), 1)
        same("blocks on the device", metric(parts.port, "cokv_kv_blocks", tier="device", state="all"), 80)
        parts.at_rest()


def a_worker_that_dies_fails_what_is_under_way_and_nothing_else(binary, folder):
    (wanted,) = one_server(binary, [LONG])
    body = LONG | {"model": "tiny-kjv", "stream": True}
    with Parts(binary, folder, 2, 2, "tcp") as parts:
        for number in (1, 2, 3):
            answer = Stream(parts.port, body)
            answer.start()
            until("some tokens came", lambda: len(answer.at) > 20)
            parts.kill(number)
            answer.join(30)
            same("the answer ended", answer.is_alive(), False)
            same("with an error", answer.error["code"], "unavailable")
            same("what was told is right", wanted[0][0].startswith(answer.text), True)
            until("more are refused", lambda: ask(parts.port, prompt="x", max_tokens=1)[0] == 503)
            parts.replace(number)
            parts.all_here()
            status, again = ask(parts.port, **LONG)
            same("status", status, 200)
            same("the answer of those that are there now", told(again), wanted)
        same("workers lost", metric(parts.port, "cokv_workers_lost_total"), 3)
        parts.at_rest()
        same("exit codes", parts.stop(), [0, 0, 0, 0])


def a_worker_that_stands_still_is_given_up(binary, folder):
    with Parts(binary, folder, 2, 1, "tcp") as parts:
        answer = Stream(parts.port, LONG | {"model": "tiny-kjv", "stream": True})
        answer.start()
        until("some tokens came", lambda: len(answer.at) > 20)
        parts.others[0].send_signal(signal.SIGSTOP)
        try:
            answer.join(20)
            same("the answer ended", answer.is_alive(), False)
            same("with an error", answer.error["code"], "unavailable")
        finally:
            parts.others[0].send_signal(signal.SIGCONT)
        parts.all_here()
        same("status", ask(parts.port, prompt="In the", max_tokens=2)[0], 200)


def flipped(folder, tensor):
    """The model with one bit of that tensor changed."""
    to = os.path.join(folder, f"flipped-{tensor}")
    shutil.copytree(MODEL, to)
    with open(os.path.join(to, "model.safetensors"), "r+b") as f:
        length = int.from_bytes(f.read(8), "little")
        at = 8 + length + json.loads(f.read(length))[tensor]["data_offsets"][0]
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
    return to


def a_worker_reads_its_stage_and_is_let_in_if_that_is_the_leaders(binary, folder):
    (wanted,) = one_server(binary, [LONG])
    with Parts(binary, folder, 2, 1, "tcp") as parts:
        def begun_with(model):
            parts.kill(1)
            log = open(os.path.join(folder, "log"), "w+")
            parts.command, parts.log, before = [model if a == MODEL else a for a in parts.command], log, (parts.command, parts.log)
            parts.replace(1)
            parts.command, parts.log = before
            return log

        def heard(log):
            log.seek(0)
            return log.read()

        with begun_with(flipped(folder, "model.layers.4.mlp.down_proj.weight")) as log:
            until("it says why it does not go on", lambda: "namespace mismatch" in heard(log), 30)
            same("a request is refused", ask(parts.port, prompt="x", max_tokens=1)[0], 503)
        with begun_with(flipped(folder, "model.layers.3.mlp.down_proj.weight")):
            parts.all_here()  # its own stage is as it should be
            status, again = ask(parts.port, **LONG)
            same("status", status, 200)
            same("the answer", told(again), wanted)


def told_to_end_together_they_finish_what_is_under_way(binary, folder):
    under_way = LONG | {"max_tokens": 200}  # well within the time that they have to finish it
    (wanted,) = one_server(binary, [under_way])
    for n, m in (2, 1), (3, 1), (2, 2):
        end_together(binary, folder, n, m, under_way, wanted)


def end_together(binary, folder, n, m, under_way, wanted):
    with Parts(binary, folder, n, m, "tcp") as parts:
        answer = Stream(parts.port, under_way | {"model": "tiny-kjv", "stream": True})
        answer.start()
        until("some tokens came", lambda: len(answer.at) > 20)
        for p in (*parts.others, parts.leader.process):
            p.send_signal(signal.SIGTERM)
        answer.join(60)
        same("the answer", (answer.error, answer.text), (None, wanted[0][0]))
        same("exit codes", [p.wait(30) for p in (parts.leader.process, *parts.others)], [0] * (n * m))


def one_line_says_what_does_not_fit(binary, folder):
    def refused(*arguments, before=(), env=()):
        p = subprocess.run([*before, binary, "serve", *map(str, (*HERE, *arguments))], capture_output=True, text=True,
                           env=os.environ | dict(env), timeout=60)
        return p.returncode, p.stderr.strip().split("\n")[-1].removeprefix("cokv: ")

    two = ("--ranks", "tcp://127.0.0.1:1,tcp://127.0.0.1:2")
    for arguments, line in (
            (("--pipeline", 2), "--ranks: --pipeline 2 --tensor 1 takes the URLs of 2 workers, or mpirun -n 2"),
            (("--pipeline", 2, "--tensor", 2, *two), "--ranks: 2 URLs; --pipeline 2 --tensor 2 takes 4"),
            (("--pipeline", 2, *two, "--rank", 2), "--rank: 2 is none of 0 to 1"),
            (("--pipeline", 2, *two, "--stage-starts", "0,3,5"), "--stage-starts: 3 layers for 2 stages"),
            (("--pipeline", 2, *two, "--stage-starts", "1,4"), "--stage-starts: the first stage begins at layer 1, not 0"),
            (("--pipeline", 2, *two, "--rank", 1, "--stage-starts", "0,8"), "--stage-starts: a stage begins at layer 8 of 8"),
            (("--pipeline", 9, "--rank", 1, "--ranks", ",".join(["tcp://127.0.0.1:1"] * 9)),
             "--pipeline: 9 stages of 8 layers; at most one a layer"),
            (("--tensor", 3, "--rank", 1, "--ranks", ",".join(["tcp://127.0.0.1:1"] * 3)),
             "--tensor: 3 ranks can't share 8 heads equally; 1, 2 can"),
            (("--pipeline", 2, "--rank", 1, "--ranks", "tcp://127.0.0.1:1,carrier-pigeon://x"),
             "--ranks: carrier-pigeon://x: not supported")):
        code, said = refused(*arguments)
        same(f"what is said of {arguments}", (code, said), (2, line))
    for arguments, name in ((("--ranks", "tcp://127.0.0.1:1"), "--ranks"), (("--rank", 1), "--rank"),
                            (("--pipeline", 2, *two, "--kv-host", "1MiB"), "--kv-host"),
                            (("--pipeline", 2, *two, "--swap", "1MiB", "--replicas", 1), "--swap"),
                            (("--pipeline", 2, *two, "--swap-by", "microbatch"), "--swap"),
                            (("--swap", "1GiB", "--swap-by", "microbatch"), "--swap-by"),
                            (("--pipeline", 2, *two, "--swap", "1GiB", "--swap-by", "turns"), "--swap-by"),
                            (("--pipeline", 2, *two, "--swap", "1MiB", "--swap-by", "microbatch", "--kv-blocks", 400), "swap"),
                            (("--pipeline", 2, *two, "--role", "router"), "--pipeline"),
                            (("--pipeline", 2, *two, "--rank", 1, "--role", "decode", "--link", "carrier-pigeon://x"), "--link"),
                            (("--pipeline", 2, *two, "--role", "decode", "--borrow-from", "http://127.0.0.1:1"), "--borrow-from"),
                            (("--pipeline", 2, "--ranks", "mpi://", "--rank", 1), "--rank"),
                            (("--pipeline", 1000, "--tensor", 256), "--tensor"),
                            (("--microbatches", 2), "--microbatches"), (("--pipeline", 0), "--pipeline")):
        code, said = refused(*arguments)
        same(f"{arguments} is refused by its name", (code != 0, name in said), (True, True))
    if shutil.which("mpirun") and not os.environ.get("COKV_SANITIZE"):
        p = subprocess.run(["mpirun", "--oversubscribe", "-n", "3", binary, "serve", *map(str, HERE), "--pipeline", "2",
                            "--tensor", "2"], capture_output=True, text=True, env=os.environ | AS_ROOT, timeout=60)
        same("three for four", "--pipeline 2 --tensor 2 takes 4 workers, and this mpirun has 3: mpirun -n 4" in p.stderr,
             True)


run(every_shape_over_every_link_answers_as_one_server, every_family_answers_as_one_server, stages_of_other_sizes_answer_the_same,
    with_few_blocks_they_are_preempted_or_take_turns_and_answer_the_same,
    a_worker_that_dies_fails_what_is_under_way_and_nothing_else, a_worker_that_stands_still_is_given_up,
    a_worker_reads_its_stage_and_is_let_in_if_that_is_the_leaders,
    told_to_end_together_they_finish_what_is_under_way, one_line_says_what_does_not_fit)
