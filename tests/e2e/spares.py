#!/usr/bin/env python3
"""A model in parts whose workers keep copies of each other's KV: of those that are lost the place is taken, by a spare or by the
same one begun anew, and every answer goes on, a token of each computed again at the most."""
import os
import signal
import subprocess
import time

from checks import MODEL, at_least, run, same, until
from cluster import LONG, ask, some_requests, told
from lib_parts import Parts as AnyParts
from lib_servers import Server, Stream, metric

HERE = ("--model", MODEL, "--dtype", "f32", "--threads", 1)
MANY = 8


class Parts(AnyParts):
    def __init__(self, binary, folder, n, m, link, *more, **how):
        super().__init__(binary, folder, n, m, link, *HERE, *more, **how)

    def counted(self, what):
        return metric(self.port, f"cokv_{what}")

    def at_rest(self):
        until("no block is in use", lambda: metric(self.port, "cokv_kv_blocks", state="in_use") == 0)


def long_ones():
    return [LONG | {"prompt": r["prompt"], "seed": i, "max_tokens": 250} | ({"frequency_penalty": 0.2} if i % 2 else {})
            for i, r in enumerate(some_requests(MANY, 300))]


def alone(binary, requests):
    with Server(binary, "serve", *HERE) as one:
        return [told(ask(one.port, **r)[1])[0][0] for r in requests]


def streams(port, requests):
    out = [Stream(port, r | {"model": "tiny-kjv", "stream": True}) for r in requests]
    for s in out:
        s.start()
    return out


def all_have(answers, count):
    until("some tokens of each came", lambda: all(len(a.at) > count for a in answers), 60)


def ended_right(answers, wanted):
    for answer, text in zip(answers, wanted):
        answer.join(90)
        same("the answer ended", answer.is_alive(), False)
        same("without an error", answer.error, None)
        same("the answer", answer.text, text)


def longest_gap(answer):
    return max(b - a for a, b in zip(answer.at, answer.at[1:]))


def a_spare_takes_the_place_of_whoever_is_lost(binary, folder):
    requests = long_ones()
    wanted = alone(binary, requests)
    by_turns = ("--kv-blocks", 90, "--swap", "64MiB", "--swap-by", "microbatch")
    shapes = [(2, 2, "shm", ())] if os.environ.get("COKV_SANITIZE") else \
        [(3, 1, "tcp", by_turns), (2, 2, "shm", ()), (1, 2, "tcp", ())]
    for n, m, link, more in shapes:
        with Parts(binary, folder, n, m, link, *more, spares=n * m - 1) as parts:
            for victim in range(1, n * m):
                answers = streams(parts.port, requests)
                all_have(answers, 20)
                before, times = parts.counted("recomputed_tokens_total"), parts.counted("recoveries_total")
                parts.kill(victim)
                until("its place is taken", lambda: parts.counted("recoveries_total") > times)
                ended_right(answers, wanted)
                again, times = parts.counted("recomputed_tokens_total") - before, parts.counted("recoveries_total") - times
                if again > MANY * times:
                    raise AssertionError(f"{again} tokens of {MANY} sequences were computed again in {times} recoveries")
                same("requests that began anew", parts.counted("restarted_requests_total"), 0)
                if more:
                    at_least("bytes that came in", metric(parts.port, "cokv_swapped_bytes_total", way="in"), 1)
                print(f"      pp{n}xtp{m} over {link} without worker {victim}: {again:.0f} tokens of {MANY} sequences again, "
                      f"{max(longest_gap(a) for a in answers):.2f} s without a token", flush=True)
                parts.at_rest()


def one_that_is_begun_anew_takes_its_own_place(binary, folder):
    requests = long_ones()
    wanted = alone(binary, requests)
    with Parts(binary, folder, 2, 1, "tcp", "--replicas", 1) as parts:
        answers = streams(parts.port, requests)
        all_have(answers, 20)
        parts.kill(1)
        until("it is missed", lambda: parts.counted("workers_lost_total") == 1)
        same("more are refused", ask(parts.port, prompt="x", max_tokens=1)[0], 503)
        parts.replace(1)
        ended_right(answers, wanted)
        same("requests that began anew", parts.counted("restarted_requests_total"), 0)
        parts.at_rest()
        # What is over is forgotten with the next step.
        before = parts.counted("kept_bytes")
        ask(parts.port, prompt="In the", max_tokens=2)
        if parts.counted("kept_bytes") * MANY > before:
            raise AssertionError("copies of what is over are kept")
        same("exit codes", parts.stop(), [0, 0])


def one_that_stands_still_is_replaced(binary, folder):
    requests = long_ones()[:2]
    wanted = alone(binary, requests)
    with Parts(binary, folder, 2, 1, "tcp", spares=1) as parts:
        answers = streams(parts.port, requests)
        all_have(answers, 20)
        parts.others[0].send_signal(signal.SIGSTOP)
        try:
            ended_right(answers, wanted)
        finally:
            parts.others[0].send_signal(signal.SIGCONT)
        same("requests that began anew", parts.counted("restarted_requests_total"), 0)
        # Who only stood still does not disturb whoever has its place, and takes it when that is lost.
        answers = streams(parts.port, requests)
        all_have(answers, 20)
        same("workers lost", parts.counted("workers_lost_total"), 1)
        parts.kill(2)
        ended_right(answers, wanted)
        same("workers lost", parts.counted("workers_lost_total"), 2)
        parts.at_rest()


def of_two_that_are_lost_together_no_copy_is_left(binary, folder):
    requests = long_ones()
    wanted = alone(binary, requests)
    with Parts(binary, folder, 3, 1, "tcp", spares=2) as parts:
        answers = streams(parts.port, requests)
        all_have(answers, 20)
        for victim in 1, 2:
            parts.others[victim - 1].kill()
        ended_right(answers, wanted)
        at_least("requests that began anew", parts.counted("restarted_requests_total"), MANY)
        parts.at_rest()


def copies_beyond_their_memory_are_not_kept(binary, folder):
    requests = long_ones()
    wanted = alone(binary, requests)
    with Parts(binary, folder, 2, 1, "tcp", "--replica-memory", "1MiB", spares=1) as parts:
        answers = streams(parts.port, requests)
        all_have(answers, 20)
        if parts.counted("kept_bytes") > 1 << 20:
            raise AssertionError("more than a mebibyte is kept")
        parts.kill(1)
        ended_right(answers, wanted)
        at_least("requests that began anew", parts.counted("restarted_requests_total"), 1)
        parts.at_rest()


def nobody_waits_for_ever(binary, folder):
    with Parts(binary, folder, 2, 1, "tcp", "--replicas", 1, "--rejoin-within", 1) as parts:
        answers = streams(parts.port, long_ones())
        all_have(answers, 20)
        begun = time.monotonic()
        parts.kill(1)
        for answer in answers:
            answer.join(20)
            same("it ended with an error", answer.error and answer.error["code"], "unavailable")
        at_least("seconds until then", time.monotonic() - begun, 0.9)
        parts.replace(1)
        parts.all_here()
        same("status", ask(parts.port, prompt="In the", max_tokens=2)[0], 200)
        parts.at_rest()


def one_line_says_what_does_not_fit(binary, folder):
    def refused(*arguments):
        p = subprocess.run([binary, "serve", *map(str, (*HERE, *arguments))], capture_output=True, text=True, timeout=60)
        return p.returncode, p.stderr.strip().split("\n")[-1].removeprefix("cokv: ")

    two = ("--pipeline", 2, "--ranks", "tcp://127.0.0.1:1,tcp://127.0.0.1:2")
    one_more = ("--spares", "tcp://127.0.0.1:3")
    for arguments, line in (
            ((*two, *one_more, "--rank", 3), "--rank: 3 is none of 0 to 2"),
            ((*two, *one_more, "--replicas", 0), "--spares: take KV from copies, of which --replicas 0 keeps none"),
            ((*two, "--replicas", 2), "--replicas: is 0 or 1 with --pipeline or --tensor: the next process keeps a copy"),
            ((*two, "--rejoin-within", 5), "--rejoin-within: is for --replicas 1"),
            ((*two, "--replica-memory", "1GiB"), "--replica-memory: is for --replicas 1"),
            ((*two, "--replicas", 1, "--replica-memory", 0), "--replica-memory: is 0, and --replicas 1 keeps copies in it"),
            (("--pipeline", 2, "--ranks", "mpi://", "--replicas", 1),
             "--replicas: is for --ranks of URLs: an mpirun ends with any of its processes"),
            (("--pipeline", 2, "--ranks", "mpi://", *one_more, "--role", "prefill"),
             "--spares: is for --ranks of URLs: an mpirun ends with any of its processes"),
            (("--replica-memory", "1GiB"), "--replica-memory: is for --role decode, or --pipeline or --tensor above 1"),
            (("--replicas", 1), "--replicas: is for --role router, or --pipeline or --tensor above 1")):
        code, said = refused(*arguments)
        same(f"what is said of {arguments}", (code != 0, said), (True, line))
    for arguments, line in (
            (("--role", "decode", "--replicas", 1), "--replicas: is for --role router, or --pipeline or --tensor above 1"),
            (("--role", "decode", *two, "--replica-memory", "1GiB"), "--replica-memory: is for --replicas 1"),
            (("--role", "decode", *two, "--replica-patience", 5),
             "--replica-patience: does not go together with --pipeline or --tensor"),
            (("--role", "prefill", *two, "--replicas", 1), "--replicas: is for --role both, decode or router"),
            (("--role", "prefill", *two, "--rejoin-within", 5), "--rejoin-within: is for --role both or decode")):
        code, said = refused(*arguments)
        same(f"what is said of {arguments}", (code != 0, said), (True, line))


run(a_spare_takes_the_place_of_whoever_is_lost, one_that_is_begun_anew_takes_its_own_place,
    one_that_stands_still_is_replaced, of_two_that_are_lost_together_no_copy_is_left,
    copies_beyond_their_memory_are_not_kept, nobody_waits_for_ever, one_line_says_what_does_not_fit)
