#!/usr/bin/env python3
"""Workers of a disaggregated cluster are killed, stopped and cut off at any time: every answer is the right one, or one
clean error, nobody waits longer than the deadline, and nothing is left behind.

usage: survival.py COKV [--runs 200] [--seconds 100] [--seed N]

A router, two prefill and three decode workers that keep copies of each other's answers, one of which keeps layers of its KV in
a prefill worker's memory, each in a network namespace of its own where this may make some (root, iproute2), else all on loopback and nobody is cut off. A run is six
streamed answers and one or two faults at random times: kill -9 (another worker comes for it), SIGSTOP for up to 5 s, a network
link that is down for as long. Ends after so many runs, or seconds.
"""
import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

from checks import MODEL, ROOT, same, until
from lib_servers import Server, Stream, fetch, metric, request_bytes

VERSES = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
NEVER = {str(json.load(open(os.path.join(MODEL, "config.json")))["eos_token_id"]): -100}
DEADLINE = 60


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode == 0


class Network:
    """A bridge in a namespace that this process moved to, and one namespace behind it for each worker."""

    def __init__(self):
        self.tag, self.count = f"ckv{os.getpid() % 100000}", 0
        self.names = []
        self.works = os.geteuid() == 0 and shutil.which("ip") is not None
        if not self.works:
            return
        try:
            os.unshare(os.CLONE_NEWNET)
        except (AttributeError, OSError):
            self.works = self.by_hand()
        if self.works:
            ip("link", "set", "lo", "up")
            ip("link", "add", "br0", "type", "bridge")
            ip("addr", "add", "10.213.0.1/16", "dev", "br0")
            ip("link", "set", "br0", "up")

    @staticmethod
    def by_hand():
        import ctypes
        return ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0

    def place(self):
        """A namespace with an address: what a command is to begin with, the address, and the link's name here."""
        if not self.works:
            return [], "127.0.0.1", None
        self.count += 1
        name, link = f"{self.tag}-{self.count}", f"v{self.count}"
        address = f"10.213.{self.count // 200 + 1}.{self.count % 200 + 1}"
        ip("netns", "add", name)
        self.names.append(name)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", link, "master", "br0", "up")
        ip("-n", name, "addr", "add", f"{address}/16", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return ["ip", "netns", "exec", name], address, link

    def close(self):
        for name in self.names:
            ip("netns", "del", name, check=False)


class Worker(Server):
    """`before`: whose place it takes, and address."""

    def __init__(self, binary, network, role, log, more=(), before=None):
        self.place = prefix, host, self.link = before.place if before else network.place()
        self.role, self.more = role, more
        own = ("--lease", 5) if role == "decode" else ("--lend-memory", "64MiB")
        super().__init__(binary, "serve", "--model", MODEL, "--dtype", "f32", "--threads", 1, "--role", role, "--advertise", host,
                         "--link", f"tcp://{host}:0", "--max-batched-tokens", 128, "--kv-blocks", 1024, *own, *more, log=log,
                         host=host, port=before.port if before else 0, prefix=prefix)

    def metric(self, name, **labels):
        return metric(self.port, name, self.host, **labels)


def some_bodies(rng, count):
    for i in range(count):
        body = {"model": "tiny-kjv", "stream": True, "prompt": f"{i} " + " ".join(rng.sample(VERSES, rng.choice((1, 4, 12)))),
                "max_tokens": rng.randint(60, 300), "temperature": rng.choice((0, 1)), "seed": rng.randint(0, 1 << 60),
                "logit_bias": NEVER}
        if rng.random() < 0.3:
            body |= {"frequency_penalty": 0.5, "presence_penalty": 0.2}
        yield body


class Fleet:
    def __init__(self, binary, network, log):
        self.binary, self.network, self.log = binary, network, log
        self.router = Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", "router", "--replicas", 1,
                             "--heartbeat", 200, "--dead-after", 700, log=log)
        self.workers = []
        try:
            for role in ("prefill", "prefill", "decode", "decode"):
                self.add(role)
            lenders = ",".join(w.url for w in self.workers if w.role == "prefill")
            self.add("decode", ("--borrow-from", lenders, "--borrow-layers", 3))
            until("the router answers", self.answers)
            self.all_here()
        except BaseException:
            self.close()
            network.close()
            raise

    def tell(self, method, path, body=None):
        with socket.create_connection(("127.0.0.1", self.router.port), timeout=10) as peer:
            peer.sendall(request_bytes(self.router.port, method, path, body))
            return int(peer.recv(1 << 12).split()[1])

    def answers(self):
        try:
            return self.tell("POST", "/v1/completions", {"model": "tiny-kjv", "prompt": "In", "max_tokens": 1}) == 200
        except (OSError, IndexError):
            return False

    def add(self, role, more=(), before=None):
        worker = Worker(self.binary, self.network, role, self.log, more, before)
        self.workers.append(worker)
        same("the router takes it", self.tell("POST", "/v1/workers", {"url": worker.url}), 204)

    def all_here(self):
        def here():
            states = {w["url"]: w["state"] for w in json.loads(fetch(self.router.port, "/v1/workers"))["workers"]}
            return all(states.get(w.url) == "here" for w in self.workers)
        until("all workers are here", here)

    def kill(self, worker):
        worker.process.kill()
        worker.process.wait()

    def replace(self, worker):
        self.workers.remove(worker)
        self.tell("DELETE", f"/v1/workers?url={worker.url}")
        self.add(worker.role, worker.more, worker)

    def at_rest(self):
        for w in self.workers:
            for what, labels in (("cokv_kv_blocks", {"tier": "device", "state": "in_use"}), ("cokv_requests_running", {}),
                                 ("cokv_sequences", {}), ("cokv_copied_sequences", {})):
                try:
                    until(f"{what} of a {w.role} worker is 0", lambda: w.metric(what, **labels) == 0, 45)
                except AssertionError:
                    print(f"{w.url} {w.more}\n" + fetch(w.port, "/metrics", w.host), flush=True)
                    raise
        loans = lambda: sum(w.metric("cokv_loans") for w in self.workers if w.role == "prefill")
        until("one decode worker borrows", lambda: self.workers_that_borrow() == loans() == 1)

    def workers_that_borrow(self):
        return sum(w.metric("cokv_borrowing") for w in self.workers if w.more)

    def close(self):
        for server in (self.router, *self.workers):
            server.__exit__()


def disturb(fleet, worker, rng, kind):
    """Begins one fault; returns what ends it, and its name."""
    if kind == "kill":
        fleet.kill(worker)
        return lambda: fleet.replace(worker), f"kill of a {worker.role}"
    until_then = time.monotonic() + rng.uniform(0.2, 5)
    if kind == "stop":
        worker.process.send_signal(signal.SIGSTOP)
    else:
        ip("link", "set", worker.link, "down")

    def end():
        time.sleep(max(0, until_then - time.monotonic()))
        if kind == "stop":
            worker.process.send_signal(signal.SIGCONT)
        else:
            ip("link", "set", worker.link, "up")
    return end, f"{kind} of a {worker.role}"


def one_run(fleet, rng, requests, kinds):
    chosen = rng.sample(requests, 6)
    answers = [Stream(fleet.router.port, body, DEADLINE) for body, _ in chosen]
    for a in answers:
        a.start()
        time.sleep(rng.uniform(0, 0.1))
    ends, names = [], []
    for worker in rng.sample(fleet.workers, rng.choice((1, 1, 2))):
        time.sleep(rng.uniform(0, 0.6))
        end, name = disturb(fleet, worker, rng, rng.choice(kinds))
        ends.append(end)
        names.append(name)
    for a in answers:
        a.join(DEADLINE + 10)
        if a.is_alive() or a.ended - a.asked > DEADLINE:
            raise AssertionError(f"an answer hangs: {names}")
    for end in ends:
        end()
    errors = []
    for a, (body, text) in zip(answers, chosen):
        if a.error:
            errors.append(a.error["code"])
            same(f"what was told before an error, in {names}", a.text, text[:len(a.text)])
        else:
            same(f"the answer to {body}, in {names}", (a.text, a.whole), (text, True))
    fleet.all_here()
    return errors, names


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("cokv")
    p.add_argument("--runs", type=int, default=200)
    p.add_argument("--seconds", type=float, default=float("inf"))
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    o = p.parse_args()
    binary = os.path.abspath(o.cokv)
    rng = random.Random(o.seed)
    network = Network()
    kinds = ("kill", "stop", "cut") if network.works else ("kill", "stop")
    print(f"seed {o.seed}; faults: {', '.join(kinds)}", flush=True)
    end, runs, errors, seen = time.monotonic() + o.seconds, 0, [], {}
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        requests = []
        for body in some_bodies(rng, 16):
            a = Stream(one.port, body, DEADLINE)
            a.run()
            same("an error of one server", a.error, None)
            requests.append((body, a.text))
    with open(os.devnull, "w") as quiet:
        fleet = Fleet(binary, network, quiet)
        try:
            while runs < o.runs and time.monotonic() < end:
                try:
                    failed, names = one_run(fleet, rng, requests, kinds)
                except (Exception, SystemExit):
                    print(f"run {runs} of seed {o.seed} failed", flush=True)
                    raise
                runs += 1
                errors += failed
                if failed:
                    print(f"run {runs}: {len(failed)} ended with an error, in {names}", flush=True)
                for name in names:
                    seen[name] = seen.get(name, 0) + 1
                if runs % 25 == 0:
                    fleet.at_rest()
            fleet.at_rest()
            metrics = fetch(fleet.router.port, "/metrics")
        finally:
            fleet.close()
            network.close()
    of = lambda name: next((line.split()[-1] for line in metrics.splitlines() if line.startswith(name + " ")), "?")
    print(f"{runs} runs, {6 * runs} answers: {6 * runs - len(errors)} right, {len(errors)} ended with an error {sorted(set(errors))}")
    print(f"faults: {seen}; answers that went on from a copy: {of('cokv_resumed_answers_total')}, tokens of them computed "
          f"again: {of('cokv_computed_again_tokens_total')}")
    passed = runs > 0
    print(f"{int(passed)} passed, {int(not passed)} failed")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
