#!/usr/bin/env python3
"""A router that dies or stands still, and another one that stood by: workers listen to one of them at a time."""
import json
import os
import signal
import socket
import subprocess
import threading
import time

from checks import MODEL, ROOT, at_least, run, same, until
from lib_servers import Server, complete, fetch, metric, request_bytes

VERSES = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
SERVE = ("serve", "--model", MODEL, "--dtype", "f32")
QUICK = ("--heartbeat", 200, "--dead-after", 1500)  # busy machines let nobody run for a while


def status(port, path="/healthz", method="GET", body=None):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        peer.sendall(request_bytes(port, method, path, body))
        return int(peer.recv(1 << 12).split()[1])


class Workers:
    def __init__(self, binary, prefills=2, decodes=2):
        self.binary = binary
        self.decodes = [Server(binary, *SERVE, "--role", "decode") for _ in range(decodes)]
        self.prefills = [Server(binary, *SERVE, "--role", "prefill") for _ in range(prefills)]
        self.all = self.decodes + self.prefills
        self.routers = []

    def router(self, *more, log=None, named=True):
        where = ("--prefill", ",".join(s.url for s in self.prefills), "--decode", ",".join(s.url for s in self.decodes))
        self.routers.append(Server(self.binary, *SERVE, "--role", "router", *(where if named else ()), *QUICK, *more, log=log))
        return self.routers[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.routers + self.all:
            server.__exit__()

    def epochs(self):
        return [json.loads(fetch(s.port, "/v1/epoch"))["epoch"] for s in self.all]


def answers(port):
    return status(port) == 200


def wanted_of(binary, prompt, tokens):
    with Server(binary, *SERVE) as one:
        return complete(one.port, prompt, tokens, ignore_eos=True)["text"]


def one_that_is_killed_is_followed(binary, folder):
    prompt = " ".join(VERSES[:5])
    wanted = wanted_of(binary, prompt, 60)
    with Workers(binary) as w:
        first = w.router("--replicas", 1)
        same("the answer", complete(first.port, prompt, 60, ignore_eos=True)["text"], wanted)
        second = w.router("--replicas", 1, "--standby-of", first.url, named=False)
        until("it knows the workers", lambda: len(json.loads(fetch(second.port, "/v1/workers"))["workers"]) == 4)
        same("it stands by", status(second.port), 503)
        same("its API", status(second.port, "/v1/completions", "POST", {"prompt": "And", "max_tokens": 1}), 503)
        epochs = w.epochs()
        broken = []
        def cut():
            try:
                complete(first.port, prompt, 2000, ignore_eos=True)
            except (SystemExit, OSError) as e:
                broken.append(e)
        reader = threading.Thread(target=cut)
        reader.start()
        until("an answer is under way", lambda: sum(metric(s.port, "cokv_sequences") for s in w.decodes) > 0)
        first.process.kill()
        first.process.wait()
        killed = time.monotonic()
        until("the other one answers", lambda: answers(second.port))
        print(f"      it answers {time.monotonic() - killed:.2f} s after the kill")
        same("the same tokens", complete(second.port, prompt, 60, ignore_eos=True)["text"], wanted)
        reader.join()
        same("exit code of one that is told to end", second.stop(), 0)
        for before, now in zip(epochs, w.epochs()):
            at_least("the epoch that a worker promised", now, before + 1)
        until("what nobody reads is given up",
              lambda: all(metric(s.port, "cokv_kv_blocks", tier="device", state="in_use") == 0 for s in w.all))


def one_that_stood_still_ends_when_it_comes_back(binary, folder):
    prompt = " ".join(VERSES[5:9])
    wanted = wanted_of(binary, prompt, 40)
    with Workers(binary) as w:
        log = os.path.join(folder, "first.log")
        first = w.router(log=open(log, "w"))
        second = w.router("--standby-of", first.url)
        same("it stands by", status(second.port), 503)
        first.process.send_signal(signal.SIGSTOP)
        until("the other one answers", lambda: answers(second.port))
        same("the answer", complete(second.port, prompt, 40, ignore_eos=True)["text"], wanted)
        first.process.send_signal(signal.SIGCONT)
        same("exit code of the first", first.process.wait(timeout=30), 1)
        at_least("words about another router", open(log).read().count("another router has the workers"), 1)
        same("the other one goes on", complete(second.port, prompt, 40, ignore_eos=True)["text"], wanted)


def workers_that_join_both_are_followed_to_the_second(binary, folder):
    first = Server(binary, *SERVE, "--role", "router", *QUICK)
    second = Server(binary, *SERVE, "--role", "router", "--standby-of", first.url, *QUICK)
    joins = ("--join", f"{first.url},{second.url}")
    servers = [first, second]
    try:
        servers += [Server(binary, *SERVE, "--role", role, *joins) for role in ("prefill", "decode")]
        until("the first answers", lambda: answers(first.port))
        wanted = complete(first.port, VERSES[2], 20, ignore_eos=True)["text"]
        first.process.kill()
        first.process.wait()
        until("the second answers", lambda: answers(second.port))
        servers.append(Server(binary, *SERVE, "--role", "decode", *joins))
        until("who comes now is there", lambda: metric(second.port, "cokv_workers", role="decode", state="here") == 2)
        same("the answer", complete(second.port, VERSES[2], 20, ignore_eos=True)["text"], wanted)
        same("exit code of one that leaves", servers[-1].stop(), 0)
        until("it has left", lambda: metric(second.port, "cokv_workers", role="decode", state="here") == 1)
    finally:
        for server in servers:
            server.__exit__()


def of_two_that_stand_by_one_follows(binary, folder):
    with Workers(binary) as w:
        first = w.router()
        others = [w.router("--standby-of", first.url) for _ in range(2)]
        for _ in range(3):
            time.sleep(0.1)
            same("who answers", [answers(s.port) for s in (first, *others)], [True, False, False])
        first.process.kill()
        first.process.wait()
        until("one of them answers", lambda: any(answers(s.port) for s in others))
        for _ in range(20):
            same("how many answer", sum(answers(s.port) for s in others), 1)
            time.sleep(0.1)
        follows = [s for s in others if answers(s.port)][0]
        follows.process.kill()
        follows.process.wait()
        others.remove(follows)
        until("then the other one", lambda: answers(others[0].port))


def a_router_that_starts_anew_answers_soon(binary, folder):
    with Workers(binary) as w:
        first = w.router()
        complete(first.port, VERSES[0], 4)
        same("exit code of a standby that is told to end", w.router("--standby-of", first.url).stop(), 0)
        first.process.kill()
        first.process.wait()
        again = w.router()
        until("it answers", lambda: answers(again.port), 10)
        complete(again.port, VERSES[0], 4)


def calls_of_a_router_that_was_replaced_are_refused(binary, folder):
    with Workers(binary, 1, 1) as w:
        w.router()
        port = w.decodes[0].port
        until("it has promised", lambda: w.epochs()[0] > 0)
        def ask(claim):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
                peer.sendall(f"GET /v1/worker HTTP/1.1\r\nHost: x\r\n{claim}Connection: close\r\n\r\n".encode())
                got = b""
                while chunk := peer.recv(1 << 16):
                    got += chunk
                return int(got.split()[1]), got.decode()
        same("without a claim", ask("")[0], 200)
        for claim, why in (("0", 400), ("1; router=x", 400), ("1; router=x; lease=9999999999", 400),
                           ("1; router=other; lease=100", 409), (f"{1 << 28}; router=other; lease=100", 409)):
            code, text = ask(f"Cokv-Epoch: {claim}\r\n")
            same(f"with {claim}", code, why)
        at_least("it is held", text.count("held_epoch"), 1)
        same("bad promises", status(port, "/v1/epoch", "PUT", {"epoch": 0, "router": "x", "lease_ms": 1}), 400)


def ask_by_key(port, key, body, whole=True):
    """Its bytes as they come; the socket where not all of them are waited for."""
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    peer.sendall(request_bytes(port, "POST", "/v1/completions", body, f"Idempotency-Key: {key}\r\n"))
    if not whole:
        return peer
    got = b""
    while chunk := peer.recv(1 << 16):
        got += chunk
    peer.close()
    return got


def events_of(got):
    """Those that are there as a whole: it may have been cut, in a chunk or between two."""
    _, _, chunks = got.partition(b"\r\n\r\n")
    body = b""
    while b"\r\n" in chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        body, chunks = body + chunks[:int(size, 16)], chunks[int(size, 16) + 2:]
    *whole, _ = body.split(b"\n\n")
    return [json.loads(line[6:]) for line in whole if line.startswith(b"data: {")]


def text_and_id(got):
    events = events_of(got)
    if wrong := [e for e in events if "error" in e]:
        raise AssertionError(f"{wrong}")
    return "".join(e["choices"][0]["text"] for e in events if e["choices"]), {e["id"] for e in events}


def a_key_finds_its_answer_at_the_next_router(binary, folder):
    body = {"model": "tiny-kjv", "prompt": " ".join(VERSES[3:6]), "max_tokens": 700, "temperature": 0.9, "ignore_eos": True,
            "stream": True}
    with Workers(binary) as w:
        first = w.router()
        second = w.router("--standby-of", first.url, named=False)
        wanted, ids = text_and_id(ask_by_key(first.port, "whole", body))
        same("ids", len(ids), 1)
        same("the same at once", text_and_id(ask_by_key(first.port, "whole", body)), (wanted, ids))
        same("replayed", metric(first.port, "cokv_replayed_answers_total"), 1)
        same("generations", metric(first.port, "cokv_generations_total"), 1)
        # Another key has another seed: what follows is not by chance.
        peer = ask_by_key(first.port, "cut", body, whole=False)
        begun = b""
        while begun.count(b"data: ") < 20:
            begun += peer.recv(1 << 12)
        first.process.kill()
        first.process.wait()
        with peer:
            try:
                while chunk := peer.recv(1 << 16):
                    begun += chunk
            except OSError:
                pass
        until("the other one answers", lambda: answers(second.port))
        text, again = text_and_id(ask_by_key(second.port, "cut", body))
        first_text, first_ids = text_and_id(begun)
        same("id", again, first_ids)
        same("it goes on as it began", text.startswith(first_text), True)
        at_least("characters that were told before", len(first_text), 20)
        same("another key, another answer", text != wanted and again != ids, True)
        same("followed", metric(second.port, "cokv_followed_answers_total"), 1)
        # What was over when its router died, and is nowhere any more, is computed again.
        same("computed again", text_and_id(ask_by_key(second.port, "whole", body)), (wanted, ids))
        same("followed", metric(second.port, "cokv_followed_answers_total"), 1)
        # Whoever asks now gets what is kept.
        same("kept", text_and_id(ask_by_key(second.port, "cut", body)), (text, again))
        same("replayed", metric(second.port, "cokv_replayed_answers_total"), 1)
        same("another body", int(ask_by_key(second.port, "cut", {**body, "max_tokens": 3}).split()[1]), 422)
        until("nothing is left", lambda: all(metric(s.port, "cokv_sequences") == 0 for s in w.decodes))
        same("exit code of one that is told to end", second.stop(), 0)


def two_with_one_key_are_computed_once_by_workers(binary, folder):
    body = {"model": "tiny-kjv", "prompt": VERSES[7], "max_tokens": 200, "ignore_eos": True, "temperature": 1}
    with Workers(binary, 1, 1) as w:
        router = w.router()
        until("it answers", lambda: answers(router.port))
        got = {}
        def one(n):
            got[n] = ask_by_key(router.port, "k", body).partition(b"\r\n\r\n")[2]
        threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        same("answers", len(set(got.values())), 1)
        at_least("of so many bytes", len(got[0]), 200)
        same("generations", metric(router.port, "cokv_generations_total"), 1)
        same("replays", metric(router.port, "cokv_replayed_answers_total"), 2)
        same("tokens", sum(metric(s.port, "cokv_generated_tokens_total") for s in w.decodes), 200)
        # Its client goes for good: what it had asked for is given up after a while.
        peer = ask_by_key(router.port, "gone", {**body, "max_tokens": 8000}, whole=False)
        until("it decodes", lambda: metric(w.decodes[0].port, "cokv_sequences") == 1)
        peer.close()
        time.sleep(1)
        same("it goes on for a while", metric(router.port, "cokv_kept_answers", state="making"), 1)
        until("nothing is made", lambda: metric(router.port, "cokv_kept_answers", state="making") == 0, 60)
        until("nothing is decoded", lambda: metric(w.decodes[0].port, "cokv_sequences") == 0)


if __name__ == "__main__":
    run(one_that_is_killed_is_followed, one_that_stood_still_ends_when_it_comes_back,
        workers_that_join_both_are_followed_to_the_second, of_two_that_stand_by_one_follows,
        a_key_finds_its_answer_at_the_next_router, two_with_one_key_are_computed_once_by_workers,
        a_router_that_starts_anew_answers_soon, calls_of_a_router_that_was_replaced_are_refused)
