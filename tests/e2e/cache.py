#!/usr/bin/env python3
"""The cache server as a process: golden frames over http.client, bad input, kill -9 while it writes, and its signals."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading

from checks import ROOT, at_least, run, same
from lib_servers import Server, metric

FRAMES = "application/vnd.cokv.frames"


def golden(name):
    """The bytes of a ```hex block of docs/protocol.md."""
    text = open(os.path.join(ROOT, "docs/protocol.md")).read()
    return bytes.fromhex(re.search(rf"```hex {name}\n(.*?)```", text, re.S)[1])


BLOCK = golden("block")               # a whole stream: one block of two layers
NAMESPACE = BLOCK[8:40].hex()
KEY = BLOCK[128 + 16 + 16:][:32].hex()  # behind begin's header, counts and two sizes
BEGIN = BLOCK[:128 + 16 + 16 + 32 + 8]
BASE = f"/v1/kv/{NAMESPACE}"


def ask(server, method, path, body=None, **headers):
    peer = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    peer.request(method, path, body, headers)
    answer = peer.getresponse()
    data = answer.read()
    peer.close()
    return answer.status, data


def match(server, *keys):
    status, data = ask(server, "POST", BASE + ":match", json.dumps({"keys": keys}))
    same("match", status, 200)
    return json.loads(data)["matched"]


def a_block_goes_in_and_comes_out(binary, folder):
    with Server(binary, "cache", "--memory", "64MiB") as server:
        same("before", ask(server, "GET", f"{BASE}/{KEY}")[0], 404)
        same("put", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
        same("get", ask(server, "GET", f"{BASE}/{KEY}"), (200, BLOCK))
        same("head", ask(server, "HEAD", f"{BASE}/{KEY}"), (200, b""))
        same("match", match(server, KEY, "00" * 32), 1)
        same("match of a hole", match(server, "00" * 32, KEY), 0)
        same("read", ask(server, "POST", BASE + ":read", BEGIN), (200, BLOCK))
        same("delete", ask(server, "DELETE", f"{BASE}/{KEY}")[0], 204)
        same("delete again", ask(server, "DELETE", f"{BASE}/{KEY}")[0], 404)
        status, answer = ask(server, "POST", BASE + ":write", BLOCK)
        same("write", status, 200)
        same("the answer is an ack", (answer[:4], answer[6], answer[128:136]), (b"cokv", 6, bytes([0, 0, 0, 0, 1, 0, 0, 0])))
        same("deferred", ask(server, "POST", BASE + ":write?deferred=1", BLOCK)[0], 202)
        same("stored", match(server, KEY), 1)
        info = json.loads(ask(server, "GET", "/v1/info")[1])
        same("info", info["tiers"]["memory"]["blocks"], 1)
        same("metrics", metric(server.port, "cokv_cache_blocks", tier="memory"), 1)
        same("health", ask(server, "GET", "/healthz")[0], 200)
        same("exit code", server.stop(), 0)


def bad_input_is_refused_and_nothing_is_stored(binary, folder):
    flipped = lambda at: BLOCK[:at] + bytes([BLOCK[at] ^ 0x10]) + BLOCK[at + 1:]
    begin = len(BEGIN)
    table = [
        ("GET", "/", None, 404), ("GET", "/v1/kv", None, 404), ("GET", f"{BASE}/{KEY}/x", None, 404),
        ("PATCH", f"{BASE}/{KEY}", b"x", 405), ("GET", BASE + ":match", None, 405), ("DELETE", "/metrics", None, 405),
        ("GET", f"/v1/kv/nonsense/{KEY}", None, 400), ("GET", f"{BASE}/nonsense", None, 400),
        ("PUT", f"{BASE}/{'g' * 64}", BLOCK, 400), ("POST", BASE + ":match", b"{", 400),
        ("POST", BASE + ":match", b'{"keys": 1}', 400), ("POST", BASE + ":match", b'["zz"]', 400),
        ("POST", BASE + ":match", b" " * (16 << 20), 413), ("POST", BASE + ":read", b"{}", 400),
        ("POST", BASE + ":read", BLOCK, 400), ("POST", BASE + ":write", BLOCK[:-1], 400),
        ("POST", BASE + ":write", BLOCK + b"x", 400), ("POST", BASE + ":write?later=1", BLOCK, 400),
        ("PUT", f"{BASE}/{'00' * 32}", BLOCK, 400), ("PUT", f"/v1/kv/{'00' * 32}/{KEY}", BLOCK, 409),
        ("PUT", f"{BASE}/{KEY}", flipped(20), 422), ("PUT", f"{BASE}/{KEY}", flipped(begin + 104), 422),
        ("PUT", f"{BASE}/{KEY}", flipped(begin + 128), 422), ("PUT", f"{BASE}/{KEY}", flipped(begin + 136), 422),
    ]
    with Server(binary, "cache", "--memory", "64MiB") as server:
        for method, path, body, wanted in table:
            status, data = ask(server, method, path, body)
            same(f"{method} {path[:40]} {len(body or b'')}", status, wanted)
            at_least("an error message", len(json.loads(data)["error"]["message"]), 5)
        same("stored", match(server, KEY), 0)
        at_least("damage counted", metric(server.port, "cokv_cache_digest_failures_total", where="wire"), 4)
        same("exit code", server.stop(), 0)


def a_bad_flag_is_one_line_and_exit_code_2(binary, folder):
    def refused(*arguments):
        done = subprocess.run([binary, "cache", *arguments], capture_output=True, text=True, timeout=30)
        same(f"exit code of {arguments}", done.returncode, 2)
        same(f"lines of {done.stderr!r}", done.stderr.count("\n"), 1)
        return done.stderr

    for flag, value in (("--memory", "lots"), ("--memory", "1"), ("--listen", "nowhere"), ("--listen", "127.0.0.1:99999"),
                        ("--api-key-file", os.path.join(folder, "none")), ("--room", "-5MiB")):
        same(f"{flag} named", flag in refused(flag, value), True)
    same("--disk without --dir", "--dir" in refused("--disk", "1GiB"), True)
    with open(os.path.join(folder, "of-a-disk"), "w") as keys:
        keys.write("one name=team disk=1MiB\n")
    same("disk= without --dir", "--dir" in refused("--api-key-file", keys.name), True)
    with open(os.path.join(folder, "file"), "w") as plain:
        plain.write("not a folder")
    same("--dir named", "--dir" in refused("--listen", "127.0.0.1:0", "--dir", plain.name), True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        same("address named", address in refused("--listen", address), True)


def keys_are_asked_for(binary, folder):
    path = os.path.join(folder, "keys")
    with open(path, "w") as file:
        file.write("# ours\nopen sesame\n")
    with Server(binary, "cache", "--memory", "64MiB", "--api-key-file", path) as server:
        same("none", ask(server, "GET", "/v1/info")[0], 401)
        same("wrong", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK, Authorization="Bearer nope")[0], 401)
        same("right", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK, Authorization="Bearer open sesame")[0], 204)
        same("health", ask(server, "GET", "/healthz")[0], 200)
        same("exit code", server.stop(), 0)


def new_keys_are_read_on_sighup(binary, folder):
    path = os.path.join(folder, "keys")

    def write(text):
        with open(path, "w") as file:
            file.write(text)

    def until(what, wanted, *asked, **headers):
        while ask(server, *asked, **headers)[0] != wanted:  # a signal arrives when it does
            same(what, server.process.poll(), None)

    write("one name=team memory=1MiB\ntwo rights=read\n")
    with Server(binary, "cache", "--memory", "64MiB", "--api-key-file", path) as server:
        one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        same("put", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK, **one)[0], 204)
        same("read-only", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK, **two)[0], 403)
        tenants = json.loads(ask(server, "GET", "/v1/info", **one)[1])["tiers"]["memory"]["tenants"]
        same("tenants", tenants, {"team": {"used_bytes": 12, "quota_bytes": 1 << 20}})
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        kept.request("GET", f"{BASE}/{KEY}", headers=one)
        same("kept", kept.getresponse().read(), BLOCK)
        write("two name=other\n")
        server.process.send_signal(signal.SIGHUP)
        until("reloaded", 204, "PUT", f"{BASE}/{KEY}", BLOCK, **two)
        kept.request("GET", f"{BASE}/{KEY}", headers=one)
        answer = kept.getresponse()
        same("the old key, on the old connection", (answer.status, len(answer.read()) > 0), (401, True))
        write("two rights=everything\n")
        server.process.send_signal(signal.SIGHUP)  # says so in the log, and goes on
        same("still", ask(server, "GET", f"{BASE}/{KEY}", **two), (200, BLOCK))
        same("exit code", server.stop(), 0)


def quotas_of_the_disk_hold(binary, folder):
    path = os.path.join(folder, "disk-keys")

    def write(text):
        with open(path, "w") as file:
            file.write(text)

    options = ("cache", "--memory", "64MiB", "--dir", os.path.join(folder, "quotas"), "--api-key-file", path)
    one = {"Authorization": "Bearer one"}

    def disk_tenants(server):
        return json.loads(ask(server, "GET", "/v1/info", **one)[1])["tiers"]["disk"]["tenants"]

    write("one name=team memory=1MiB disk=11\n")  # the block has 12 bytes
    with Server(binary, *options) as server:
        status, answer = ask(server, "PUT", f"{BASE}/{KEY}", BLOCK, **one)
        same("too much", (status, json.loads(answer)["error"]["code"]), (507, "quota_exceeded"))
        same("says of what", "11 bytes of disk" in json.loads(answer)["error"]["message"], True)
        same("nor in memory", ask(server, "GET", f"{BASE}/{KEY}", **one)[0], 404)
        same("quota", disk_tenants(server), {"team": {"used_bytes": 0, "quota_bytes": 11}})
        write("one name=team memory=1MiB disk=1MiB\n")
        server.process.send_signal(signal.SIGHUP)
        while ask(server, "PUT", f"{BASE}/{KEY}", BLOCK, **one)[0] != 204:  # a signal arrives when it does
            same("reloaded", server.process.poll(), None)
        same("it has", disk_tenants(server), {"team": {"used_bytes": 12, "quota_bytes": 1 << 20}})
        same("metric", 'cokv_cache_tenant_quota_bytes{tenant="team",tier="disk"} 1048576' in
             ask(server, "GET", "/metrics", **one)[1].decode(), True)
        same("exit code", server.stop(), 0)
    with Server(binary, *options) as server:
        same("still its", disk_tenants(server), {"team": {"used_bytes": 12, "quota_bytes": 1 << 20}})
        same("get", ask(server, "GET", f"{BASE}/{KEY}", **one), (200, BLOCK))
        same("exit code", server.stop(), 0)


def what_was_acknowledged_outlives_kill_9(binary, folder):
    disk = os.path.join(folder, "kv")
    options = ("cache", "--memory", "64MiB", "--dir", disk, "--disk", "64MiB")
    for round_ in range(5):
        with Server(binary, *options) as server:
            if round_:
                same("after kill -9", ask(server, "GET", f"{BASE}/{KEY}"), (200, BLOCK))
                same("delete", ask(server, "DELETE", f"{BASE}/{KEY}")[0], 204)
            same("put", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()


def nothing_torn_is_served_after_kill_9(binary, folder):
    disk = os.path.join(folder, "kv")
    options = ("cache", "--memory", "64MiB", "--dir", disk, "--disk", "64MiB")
    for round_ in range(8):
        with Server(binary, *options) as server:
            acknowledged = []

            def write():
                try:
                    while True:
                        status, _ = ask(server, "PUT", f"{BASE}/{KEY}", BLOCK)
                        acknowledged.append(status == 204)
                        status, _ = ask(server, "DELETE", f"{BASE}/{KEY}")
                        acknowledged.append(False)
                except (OSError, http.client.HTTPException):
                    pass

            writer = threading.Thread(target=write)
            writer.start()
            while len(acknowledged) < 3 + round_:
                pass
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            writer.join()
        with Server(binary, *options) as server:
            status, data = ask(server, "GET", f"{BASE}/{KEY}")
            same("whole or not there", (status, data) if status == 200 else (404, b""), (200, BLOCK) if status == 200 else (404, b""))
            same("nothing found damaged", metric(server.port, "cokv_cache_digest_failures_total"), 0)
            same("exit code", server.stop(), 0)


def a_cut_upload_leaves_nothing(binary, folder):
    with Server(binary, "cache", "--memory", "64MiB", "--dir", os.path.join(folder, "kv"), "--disk", "64MiB") as server:
        head = f"PUT {BASE}/{KEY} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BLOCK)}\r\n\r\n".encode()
        for sent in (0, 1, 127, 128, 200, 300, 400, len(BLOCK) - 1):
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(head + BLOCK[:sent])
        same("stored", match(server, KEY), 0)
        same("put", ask(server, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
        same("exit code", server.stop(), 0)


def signals_drain_and_exit_0(binary, folder):
    for number in (signal.SIGINT, signal.SIGTERM):
        with Server(binary, "cache", "--memory", "64MiB") as server:
            peer = socket.create_connection(("127.0.0.1", server.port))
            peer.sendall(f"PUT {BASE}/{KEY} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BLOCK)}\r\n\r\n".encode() + BLOCK[:200])
            same("alive", ask(server, "GET", "/healthz")[0], 200)
            server.process.send_signal(number)
            peer.sendall(BLOCK[200:])  # a request in flight is finished
            same("answered", peer.recv(100).split(b"\r\n")[0], b"HTTP/1.1 204 No Content")
            peer.close()
            same("exit code", server.process.wait(timeout=60), 0)


run(a_block_goes_in_and_comes_out, bad_input_is_refused_and_nothing_is_stored, a_bad_flag_is_one_line_and_exit_code_2,
    keys_are_asked_for, new_keys_are_read_on_sighup, quotas_of_the_disk_hold,
    what_was_acknowledged_outlives_kill_9, nothing_torn_is_served_after_kill_9, a_cut_upload_leaves_nothing, signals_drain_and_exit_0)
