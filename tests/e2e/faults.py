#!/usr/bin/env python3
"""The cache is down, slow, killed or lying: requests are served by computing, with one warning and a metric."""
import contextlib
import os
import signal
import socket
import subprocess
import threading

from checks import MODEL, ROOT, at_least, run, same, until
from lib_servers import Server, complete, metric

VERSES = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
PROMPT = " ".join(VERSES[:20])


def serve(binary, *arguments, log=None):
    # What is found is loaded, however fast this machine computes.
    return Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--kv-policy", "always", *arguments, log=log)


def reference(binary, prompt=PROMPT):
    with serve(binary) as server:
        return complete(server.port, prompt, 16)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def warnings(path):
    return [line for line in open(path) if "warn" in line.lower()]


def a_cache_that_is_not_there(binary, folder):
    wanted = reference(binary)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        path = os.path.join(folder, "log")
        with open(path, "w") as log, serve(binary, "--kv-remote", f"http://127.0.0.1:{port}", log=log) as server:
            for _ in range(3):
                same("text", complete(server.port, PROMPT, 16)["text"], wanted["text"])
            at_least("errors counted", metric(server.port, "cokv_kv_errors_total", tier="remote"), 1)
            same("exit code", server.stop(), 0)
        same(f"warnings in {open(path).read()}", len(warnings(path)), 1)


def a_cache_that_accepts_and_says_nothing(binary, folder):
    wanted = reference(binary)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, serve(binary, "--kv-remote", f"http://127.0.0.1:{silent.getsockname()[1]}") as server:
        answer = complete(server.port, PROMPT, 16)
        same("text", answer["text"], wanted["text"])
        same("cached", cached(answer), 0)
        same("text again", complete(server.port, PROMPT, 16)["text"], wanted["text"])
        same("exit code", server.stop(), 0)


def a_cache_killed_while_it_works(binary, folder):
    prompts = [f"{n} " + " ".join(VERSES[n:n + 20]) for n in range(8)]
    wanted = [reference(binary, prompt)["text"] for prompt in prompts[:2]]
    with Server(binary, "cache", "--memory", "256MiB") as cache, serve(binary, "--kv-remote", cache.url) as server:
        same("before", complete(server.port, prompts[0], 16)["text"], wanted[0])
        killer = threading.Timer(0.15, lambda: cache.process.send_signal(signal.SIGKILL))
        killer.start()
        for prompt in prompts:
            complete(server.port, prompt, 16)
        killer.join()
        same("after", complete(server.port, prompts[1], 16)["text"], wanted[1])
        same("first again", complete(server.port, prompts[0], 16)["text"], wanted[0])
        same("exit code", server.stop(), 0)


def a_stopped_cache_does_not_stop_the_server(binary, folder):
    wanted = reference(binary)
    with Server(binary, "cache", "--memory", "256MiB") as cache, serve(binary, "--kv-remote", cache.url) as server:
        complete(server.port, PROMPT, 16)
        cache.process.send_signal(signal.SIGSTOP)
        try:
            for number in range(2):
                complete(server.port, f"{number} {PROMPT}", 16)
            same("text", complete(server.port, PROMPT, 16)["text"], wanted["text"])
        finally:
            cache.process.send_signal(signal.SIGCONT)
        same("exit code", server.stop(), 0)


def flip(path, offsets):
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        for offset in range(len(data))[offsets]:
            data[offset] ^= 0x10
        file.seek(0)
        file.write(data)


def stored_files(folder):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name != "lock")


def a_flipped_byte_on_disk_is_never_used(binary, folder):
    wanted = reference(binary)
    disk = os.path.join(folder, "kv")
    options = ("--kv-dir", disk, "--kv-disk", "256MiB")
    with serve(binary, *options) as server:
        complete(server.port, PROMPT, 16)
        server.stop()
    files = stored_files(disk)
    at_least("files on disk", len(files), 1)
    # How the file is read; what its index says; the blocks themselves.
    for where in (slice(0, 64, 16), slice(64, 4096, 32), slice(4096, None, 500)):
        for path in files:
            flip(path, where)
        with serve(binary, *options) as server:
            answer = complete(server.port, PROMPT, 16)
            same(f"text, flipped at {where}", answer["text"], wanted["text"])
            same(f"cached tokens, flipped at {where}", cached(answer), 0)
            server.stop()
        files = stored_files(disk)


def a_flipped_byte_on_the_wire_is_never_used(binary, folder):
    wanted = reference(binary)
    with Server(binary, "cache", "--memory", "256MiB") as cache:
        with serve(binary, "--kv-remote", cache.url) as server:
            complete(server.port, PROMPT, 16)
            server.stop()
        for offset in (700, 5000, 100_000, 200_001):
            with relay(cache.port, offset) as port, serve(binary, "--kv-remote", f"http://127.0.0.1:{port}") as server:
                answer = complete(server.port, PROMPT, 16)
                same(f"text, byte {offset} of an answer flipped", answer["text"], wanted["text"])
                server.stop()


class relay:
    """Passes bytes on to a port, and flips one bit of byte `offset` of what each connection brings back."""

    def __init__(self, target, offset):
        self.target, self.offset = target, offset
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self.listener.getsockname()[1]

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self.carry, args=(near, far, None), daemon=True).start()
            threading.Thread(target=self.carry, args=(far, near, self.offset), daemon=True).start()

    @staticmethod
    def carry(source, target, offset):
        seen = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if offset is not None and seen <= offset < seen + len(data):
                    data[offset - seen] ^= 0x10
                seen += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            target.close()


@contextlib.contextmanager
def small_disk(folder):
    """A disk of 1 MiB; None, with a message, where there can't be one."""
    disk = os.path.join(folder, "disk")
    os.mkdir(disk)
    if os.geteuid() != 0:
        print("skipped: a small disk of its own takes root")
        yield None
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        print("skipped: no disk can be mounted here:", mounted.stderr.strip())
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def a_disk_that_is_full(binary, folder):
    wanted = reference(binary)
    path = os.path.join(folder, "log")
    with small_disk(folder) as disk:
        if not disk:
            return
        with open(path, "w") as log, serve(binary, "--kv-dir", disk, "--kv-blocks", 200, log=log) as server:
            for n in range(6):
                complete(server.port, f"{n} " + PROMPT, 4)
                until("saves end", lambda: metric(server.port, "cokv_kv_pending_blocks", tier="disk") == 0)
            same("text", complete(server.port, PROMPT, 16)["text"], wanted["text"])
            until("saves end", lambda: metric(server.port, "cokv_kv_pending_blocks", tier="disk") == 0)
            at_least("blocks without room", metric(server.port, "cokv_kv_no_room_blocks_total", tier="disk"), 1)
            at_least("blocks that fitted", metric(server.port, "cokv_kv_blocks", tier="disk", state="stored"), 1)
            same("the tier is full", metric(server.port, "cokv_kv_tier_full", tier="disk"), 1)
            same("the tier is bad", metric(server.port, "cokv_kv_tier_bad", tier="disk"), 0)
            same("exit code", server.stop(), 0)
        same(f"warnings in {open(path).read()}", len(warnings(path)), 1)
        with serve(binary, "--kv-dir", disk) as server:  # what fitted can be read
            again = complete(server.port, PROMPT, 16)
            same("text after a restart", again["text"], wanted["text"])
            at_least("cached tokens", cached(again), 16)


def a_cache_whose_disk_is_full(binary, folder):
    wanted = reference(binary)
    path = os.path.join(folder, "log")
    with small_disk(folder) as disk:
        if not disk:
            return
        with open(path, "w") as log, Server(binary, "cache", "--dir", disk, log=log) as cache, \
                serve(binary, "--kv-remote", cache.url, "--kv-blocks", 200) as server:
            for n in range(6):
                complete(server.port, f"{n} " + PROMPT, 4)
                until("saves end", lambda: metric(server.port, "cokv_kv_pending_blocks", tier="remote") == 0)
            same("text", complete(server.port, PROMPT, 16)["text"], wanted["text"])
            same("the tier is bad", metric(server.port, "cokv_kv_tier_bad", tier="remote"), 0)
            same("exit code", cache.stop(), 0)
        told = [line for line in warnings(path) if "no room for more KV" in line]
        same(f"warnings in {open(path).read()}", len(told), 1)


def a_folder_that_another_process_has(binary, folder):
    kv = os.path.join(folder, "kv")
    with Server(binary, "cache", "--dir", kv) as first:
        for flag, command in (("--kv-dir", ["serve", "--model", MODEL, "--kv-dir", kv]), ("--dir", ["cache", "--dir", kv])):
            second = subprocess.run([binary, *command, "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
            same("exit code", second.returncode, 2)
            lines = [line for line in second.stderr.splitlines() if "in use by another process" in line]
            same(f"lines that say so in {second.stderr}", len(lines), 1)
            if flag not in lines[0] or kv not in lines[0]:
                raise AssertionError(f"no flag or folder in {lines[0]!r}")
        first.process.kill()
        first.process.wait()
    with Server(binary, "cache", "--dir", kv) as again:
        same("exit code", again.stop(), 0)


run(a_cache_that_is_not_there, a_cache_that_accepts_and_says_nothing, a_cache_killed_while_it_works,
    a_stopped_cache_does_not_stop_the_server, a_flipped_byte_on_disk_is_never_used, a_flipped_byte_on_the_wire_is_never_used,
    a_disk_that_is_full, a_cache_whose_disk_is_full, a_folder_that_another_process_has)
