#!/usr/bin/env python3
"""The server keeps its KV in a real Redis: the same tokens after a restart, while Redis is away, and when it is back."""
import os
import shutil
import signal
import socket
import subprocess

from checks import MODEL, ROOT, at_least, run, same, until
from lib_servers import Server, complete, metric

VERSES = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
PROMPT = " ".join(VERSES[:20])


class Redis:
    def __init__(self, folder, port=None):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", port or 0))
            self.port = unused.getsockname()[1]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
             "--appendonly", "no", "--requirepass", "s3cret"], stdout=subprocess.DEVNULL)
        self.url = f"redis://:s3cret@127.0.0.1:{self.port}"
        until("redis-server answers", lambda: self.ask("PING").startswith(b"+PONG"))

    def ask(self, *words):
        try:
            with socket.create_connection(("127.0.0.1", self.port)) as peer:
                for command in (("AUTH", "s3cret"), words):
                    peer.sendall(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in command))
                    answer = peer.recv(1 << 16)
                return answer
        except OSError:
            return b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def serve(binary, *arguments, log=None):
    return Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--kv-policy", "always", *arguments, log=log)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def reference(binary):
    with serve(binary) as server:
        return complete(server.port, PROMPT, 16)


def from_redis_after_a_restart(binary, folder):
    wanted = reference(binary)
    with Redis(folder) as redis:
        with serve(binary, "--kv-remote", redis.url, "--kv-remote-ttl", 3600) as server:
            same("text", complete(server.port, PROMPT, 16)["text"], wanted["text"])
            same("exit code", server.stop(), 0)
        with serve(binary, "--kv-remote", redis.url) as server:
            again = complete(server.port, PROMPT, 16)
            same("text", again["text"], wanted["text"])
            at_least("cached tokens", cached(again), wanted["usage"]["prompt_tokens"] - 16)
            at_least("remote hits", metric(server.port, "cokv_kv_hits_total", tier="remote"), 1)
            same("exit code", server.stop(), 0)


def redis_stands_still_and_dies(binary, folder):
    wanted = reference(binary)
    with Redis(folder) as redis, serve(binary, "--kv-remote", redis.url) as server:
        same("text", complete(server.port, PROMPT, 16)["text"], wanted["text"])
        redis.process.send_signal(signal.SIGSTOP)
        same("while it stands still", complete(server.port, "1 " + PROMPT, 16)["text"] != "", True)
        redis.process.send_signal(signal.SIGCONT)
        redis.process.send_signal(signal.SIGKILL)
        redis.process.wait()
        for n in range(3):
            complete(server.port, f"{n} {PROMPT}", 4)
        same("text after", complete(server.port, PROMPT, 16)["text"], wanted["text"])
        at_least("errors", metric(server.port, "cokv_kv_errors_total", tier="remote"), 1)
        same("exit code", server.stop(), 0)


def a_wrong_password_is_one_warning(binary, folder):
    path = os.path.join(folder, "log")
    with Redis(folder) as redis, open(path, "w") as log:
        with serve(binary, "--kv-remote", f"redis://:wrong@127.0.0.1:{redis.port}", log=log) as server:
            complete(server.port, PROMPT, 4)
            complete(server.port, "1 " + PROMPT, 4)
            same("exit code", server.stop(), 0)
    warned = [line for line in open(path) if "warn" in line.lower()]
    same(f"warnings: {warned}", ["password" in line for line in warned], [True])


if shutil.which("redis-server"):
    run(from_redis_after_a_restart, redis_stands_still_and_dies, a_wrong_password_is_one_warning)
print("e2e_redis: 0 passed, 0 failed, 1 skipped: there is no redis-server")
