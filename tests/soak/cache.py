#!/usr/bin/env python3
"""The cache server under load and under kill -9, for as long as it is asked to: every byte that comes back is compared.

    cache.py COKV CLIENTS [--seconds 600] [--kills 50] [NAME...]
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from checks import at_least, run, same, until  # noqa: E402
from lib_servers import Server, metric  # noqa: E402

MiB = 1 << 20
options = argparse.ArgumentParser()
options.add_argument("cokv")
options.add_argument("clients")
options.add_argument("--seconds", type=int, default=600)
options.add_argument("--kills", type=int, default=50)
options.add_argument("names", nargs="*")
asked = options.parse_intermixed_args()
sys.argv = [sys.argv[0], asked.cokv, *asked.names]
CLIENTS = os.path.abspath(asked.clients)


class Watch:
    """The most memory that a process had at any time."""

    def __init__(self, pid):
        self.most, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.look, args=(pid,))
        self.thread.start()

    def look(self, pid):
        while not self.over.wait(0.2):
            with open(f"/proc/{pid}/status") as status:
                self.most = max([self.most] + [int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS")])

    def end(self):
        self.over.set()
        self.thread.join()
        return self.most


def a_thousand_clients_leave_nothing_behind(binary, folder):
    memory, room = 256 * MiB, 128 * MiB
    with Server(binary, "cache", "--memory", f"{memory >> 20}MiB", "--room", f"{room >> 20}MiB",
                "--dir", os.path.join(folder, "kv"), "--disk", "1GiB", "--socket", os.path.join(folder, "lent")) as server:
        before = metric(server.port, "cokv_cache_room_bytes")
        watch = Watch(server.process.pid)
        load = subprocess.run([CLIENTS, "mix", server.url, "--clients", "1000", "--slow", "50", "--local", "100",
                               "--seconds", str(asked.seconds), "--seed", str(random.randrange(1 << 30))],
                              stdout=subprocess.PIPE, text=True, timeout=asked.seconds + 300)
        most = watch.end()
        told = json.loads(load.stdout)
        print(json.dumps(told, indent=1))
        print(f"memory: at most {most / MiB:.0f} MiB, limits {memory >> 20} + {room >> 20} MiB")
        same("wrong segments", told["wrong_segments"], 0)
        same("exit code of the clients", load.returncode, 0)
        at_least("reads that gave blocks", told["blocks_read"], 10 * asked.seconds)
        at_least("reads where blocks lie", told["lent_reads"], asked.seconds)
        at_least("bytes copied from their writers", metric(server.port, "cokv_cache_taken_bytes_total"), asked.seconds << 20)
        at_least("memory left of the limits", memory + room + 160 * MiB - most, 0)
        until("all room given back", lambda: metric(server.port, "cokv_cache_room_bytes") == before)
        for what in ("blocks", "bytes"):
            until(f"no leased {what}", lambda: metric(server.port, f"cokv_cache_leased_{what}", tier="memory") == 0)
        for what in ("lent_blocks", "passed_bytes"):
            until(f"no {what}", lambda: metric(server.port, f"cokv_cache_{what}") == 0)
        for tier, limit in (("memory", memory), ("disk", 1024 * MiB)):
            at_least(f"{tier} within its limit", limit - metric(server.port, "cokv_cache_bytes", tier=tier), 0)
        same("damage", metric(server.port, "cokv_cache_digest_failures_total"), 0)
        same("exit code", server.stop(), 0)


def what_was_acknowledged_outlives_kill_9(binary, folder):
    end, kills, promised = time.monotonic() + asked.seconds, 0, 0
    while kills < asked.kills and time.monotonic() < end:
        # What is promised has to stay: a disk that nothing is evicted from, so a new one now and then.
        with tempfile.TemporaryDirectory(dir=folder) as disk:
            lines = []
            for _ in range(min(5, asked.kills - kills)):
                with Server(binary, "cache", "--memory", "64MiB", "--dir", disk, "--disk", "16GiB") as server:
                    verify(server, lines)
                    fill = subprocess.Popen([CLIENTS, "fill", server.url, "--seed", str(kills)], stdout=subprocess.PIPE, text=True)
                    timer = threading.Timer(random.uniform(0.02, 1.5), lambda: server.process.send_signal(signal.SIGKILL))
                    timer.start()
                    lines += fill.stdout.read().splitlines()
                    fill.wait()
                    server.process.wait()
                    kills += 1
            with Server(binary, "cache", "--memory", "64MiB", "--dir", disk, "--disk", "16GiB") as server:
                verify(server, lines)
                same("exit code", server.stop(), 0)
            promised += len(lines)
    print(f"{kills} kills, {promised} acknowledged writes, all there and right")
    at_least("kills", kills, min(asked.kills, 5))
    at_least("acknowledged writes", promised, kills)


def verify(server, lines):
    done = subprocess.run([CLIENTS, "verify", server.url], input="\n".join(lines), stdout=subprocess.PIPE, text=True, timeout=300)
    told = json.loads(done.stdout)
    same("reads", (told["reads"], told["missing_blocks"], told["wrong_segments"], told["errors"]), (len(lines), 0, 0, {}))
    same("exit code of the clients", done.returncode, 0)
    same("damage", metric(server.port, "cokv_cache_digest_failures_total"), 0)


run(a_thousand_clients_leave_nothing_behind, what_was_acknowledged_outlives_kill_9)
