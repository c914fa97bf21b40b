#!/usr/bin/env python3
"""The page at / and the stream that it reads: of a router, of its workers, of one server, with keys and without."""
import contextlib
import json
import os
import re
import signal
import socket

from checks import MODEL, ROOT, at_least, run, same, until
from lib_servers import Server, complete, metric, request_bytes


def get(port, path, key=None):
    """Status, header fields and body."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        head = request_bytes(port, "GET", path)
        if key:
            head = head.replace(b"Connection:", f"Authorization: Bearer {key}\r\nConnection:".encode())
        peer.sendall(head)
        data = b""
        while chunk := peer.recv(1 << 16):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body.decode()


class Stream:
    """GET /v1/status/stream, one object at a time."""

    def __init__(self, port, key=None):
        self.peer, self.data = socket.create_connection(("127.0.0.1", port), timeout=30), b""
        head = f"GET /v1/status/stream HTTP/1.1\r\nHost: x\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        self.peer.sendall((head + "\r\n").encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peer.close()

    def next(self):
        while not (found := re.search(rb"data: (\{.*\})\n\n", self.data)):
            if not (chunk := self.peer.recv(1 << 16)):
                raise AssertionError(f"the stream has ended: {self.data[-300:]!r}")
            self.data += chunk
        self.data = self.data[found.end():]
        return json.loads(found[1])

    def until(self, what, condition):
        for _ in range(60):
            if condition(now := self.next()):
                return now
        raise AssertionError(f"did not come about: {what}; it is {now}")


def page_is_served(port):
    for path, kind, file in (("/", "text/html", "index.html"), ("/page.css", "text/css", "page.css"),
                             ("/page.js", "text/javascript", "page.js"), ("/view.js", "text/javascript", "view.js")):
        status, fields, body = get(port, path)
        same(f"status of {path}", status, 200)
        same(f"type of {path}", fields["content-type"], f"{kind}; charset=utf-8")
        policy = dict(part.strip().split(" ", 1) for part in fields["content-security-policy"].split(";"))
        same("what may be loaded by default", policy["default-src"], "'none'")
        same("where scripts are from", policy["script-src"], "'self'")
        same("who may frame it", policy["frame-ancestors"], "'none'")
        same(f"{path} is {file}", body == open(os.path.join(ROOT, "apps/web", file)).read(), True)


@contextlib.contextmanager
def cluster(binary, router=()):
    with contextlib.ExitStack() as all_of_them:
        start = lambda *a: all_of_them.enter_context(Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", *a))
        prefill, decodes = start("prefill"), [start("decode") for _ in range(2)]
        yield prefill, decodes, start("router", "--prefill", prefill.url, "--decode", ",".join(s.url for s in decodes),
                                      "--replicas", 1, "--heartbeat", 100, "--dead-after", 1500, *router)


def a_router_shows_a_worker_die(binary, folder):
    with cluster(binary) as (prefill, decodes, router):
        page_is_served(router.port)
        with Stream(router.port) as stream:
            now = stream.until("all are here", lambda s: [w["state"] for w in s["workers"]] == ["here"] * 3)
            same("role", (now["role"], now["model"]), ("router", "tiny-kjv"))
            keepers = {w["url"]: w["keepers"] for w in
                       stream.until("there is a ring", lambda s: s["ring"]["epoch"] > 0)["workers"]}
            same("who keeps whose copies", [keepers[s.url] for s in decodes], [[decodes[1].url], [decodes[0].url]])
            until("the ring was told", lambda: all(metric(s.port, "cokv_ring_epoch") > 0 for s in decodes))
            body = {"model": "tiny-kjv", "prompt": "And it came to pass in those days, that " * 8, "max_tokens": 7000,
                    "temperature": 1, "seed": 5, "stream": True,
                    "logit_bias": {str(json.load(open(os.path.join(MODEL, "config.json")))["eos_token_id"]): -100}}
            with socket.create_connection(("127.0.0.1", router.port), timeout=60) as client:
                client.sendall(request_bytes(router.port, "POST", "/v1/completions", body))
                now = stream.until("an answer is under way", lambda s: any(a["told"] > 20 for a in s["sequences"]))
                answer = now["sequences"][0]
                same("its tokens", (answer["most"], answer["prefill"]), (7000, prefill.url))
                same("KV that was sent", [(x["from"], x["to"], x["prompts"]) for x in now["links"]],
                     [(prefill.url, answer["decode"], 1)])
                at_least("bytes of it", now["links"][0]["bytes"], 10000)
                victim = next(s for s in decodes if s.url == answer["decode"])
                survivor = next(s for s in decodes if s is not victim)
                victim.process.send_signal(signal.SIGKILL)
                victim.process.wait()
                now = stream.until("the answer goes on", lambda s: any(e["what"] == "resumed" for e in s["events"]))
                resumed = next(e for e in now["events"] if e["what"] == "resumed")
                same("from where to where", (resumed["who"], resumed["to"], resumed["sequence"]),
                     (victim.url, survivor.url, answer["id"]))
                now = stream.until("its death is known", lambda s: any(e["what"] == "died" for e in s["events"]))
                same("who died", next(e["who"] for e in now["events"] if e["what"] == "died"), victim.url)
                same("its state", next(w["state"] for w in now["workers"] if w["url"] == victim.url), "gone")
                same("where the answer is", [(a["decode"], a["moved"], a["resumed"]) for a in now["sequences"]],
                     [(survivor.url, 1, 1)])
            now = stream.until("nothing is under way once its client has gone", lambda s: s["running"] == 0)
            same("totals", (now["totals"]["answers_moved"], now["totals"]["resumed"]), (1, 1))
            router.process.send_signal(signal.SIGTERM)
            same("exit code while somebody watches", router.process.wait(timeout=10), 0)


def what_workers_and_one_server_show(binary, folder):
    with cluster(binary) as (prefill, decodes, router):
        complete(router.port, "And it came to pass " * 20, 8)
        for server, role in ((prefill, "prefill"), (decodes[0], "decode")):
            page_is_served(server.port)
            same("role", json.loads(get(server.port, "/v1/status")[2])["role"], role)
        at_least("bytes that were sent", json.loads(get(prefill.port, "/v1/status")[2])["doing"]["sent_bytes"], 10000)
    with Server(binary, "serve", "--model", MODEL, "--kv-host", "64MiB") as one:
        page_is_served(one.port)
        with Stream(one.port) as stream:
            same("tiers", [t["name"] for t in stream.next()["doing"]["tiers"]], ["host"])
            complete(one.port, "And it came to pass " * 40, 16)
            now = stream.until("tokens were generated", lambda s: s["doing"]["generated_tokens"] >= 16)
            at_least("KV that left the device", now["doing"]["tiers"][0]["out_bytes"], 10000)
            drawn = now["timeline"]
            at_least("pieces of computing", len(drawn["compute"]), 1)
            at_least("milliseconds in which KV moved", drawn["moving_ms"], 0.001)
            at_least("hidden", drawn["hidden"], 0)
            for begin, end in drawn["compute"] + drawn["out"]:
                same("a piece lies in the window", 0 <= begin <= end <= drawn["window_ms"], True)


def keys_are_for_what_is_shown(binary, folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as f:
        f.write("all-of-it\nonly-read rights=read\n")
    with Server(binary, "serve", "--model", MODEL, "--api-key-file", keys) as one:
        page_is_served(one.port)
        for path in ("/v1/status", "/v1/status/stream"):
            same(f"{path} without a key", get(one.port, path)[0], 401)
            same(f"{path} with a key that is unknown", get(one.port, path, "nonsense")[0], 401)
            same(f"{path} without the right", get(one.port, path, "only-read")[0], 403)
        same("with the right", get(one.port, "/v1/status", "all-of-it")[0], 200)
        with Stream(one.port, "all-of-it") as stream:
            same("role", stream.next()["role"], "both")


run(a_router_shows_a_worker_die, what_workers_and_one_server_show, keys_are_for_what_is_shown)
