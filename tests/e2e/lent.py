#!/usr/bin/env python3
"""The cache's memory as another process sees it, with nothing of ours in between: mapped to read only, read where a block
lies, and what becomes of that when either side is killed."""
import http.client
import json
import mmap
import os
import re
import signal
import socket
import struct

from checks import ROOT, run, same, until
from lib_servers import Server, metric

FRAMES = open(os.path.join(ROOT, "docs/protocol.md")).read()
BLOCK = bytes.fromhex(re.search(r"```hex block\n(.*?)```", FRAMES, re.S)[1])  # two layers: "segment0" and "layr"
BEGIN = BLOCK[:128 + 16 + 16 + 32 + 8]
BASE = "/v1/kv/" + BLOCK[8:40].hex()
KEY = BLOCK[160:192].hex()


def tcp(server, method, path, body=None):
    peer = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    peer.request(method, path, body)
    answer = peer.getresponse()
    data = answer.read()
    return answer.status, data, answer.getheader("Cokv-Memory")


def say(peer, method, path, body=b""):
    """One exchange over the socket: status, body, descriptors."""
    peer.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    data, files = b"", []
    while b"\r\n\r\n" not in data:
        more, came, _, _ = socket.recv_fds(peer, 1 << 16, 4)
        if not more:
            raise SystemExit("the server ended the connection")
        data, files = data + more, files + list(came)
    head, _, rest = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"Content-Length: (\d+)", head)[1])
    while len(rest) < length:
        rest += peer.recv(1 << 16)
    return int(head.split()[1]), rest, files


def connect(path):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    return peer


def memory_of(path):
    with connect(path) as peer:
        status, body, files = say(peer, "GET", "/v1/memory")
        same("memory", (status, len(files)), (200, 1))
        about = json.loads(body)
    return about["memory"], mmap.mmap(files[0], about["bytes"], mmap.MAP_SHARED, mmap.PROT_READ), files[0]


def lease(path):
    """A connection that holds the block, and where its segments lie."""
    peer = connect(path)
    status, body, _ = say(peer, "POST", BASE + ":read?by=reference", BEGIN)
    same("by reference", status, 200)
    magic, version, memory, _, layers, blocks = struct.unpack_from("<4sIQQII", body)
    same("an answer", (magic, version, layers, blocks), (b"ckvP", 1, 2, 1))
    return peer, memory, [struct.unpack_from("<QQ", body, 40 + 16 * i)[0] for i in range(2)]


def shown(memory, places):
    return memory[places[0]:places[0] + 8], memory[places[1]:places[1] + 4]


WHOLE = (b"segment0", b"layr")


def blocks_are_read_where_they_lie(binary, folder):
    path = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as server:
        same("mode", os.stat(path).st_mode & 0o777, 0o600)
        same("put", tcp(server, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
        number, memory, file = memory_of(path)
        same("told over TCP", tcp(server, "POST", BASE + ":match", json.dumps([KEY]))[2], f"{number} {path}")
        peer, of, places = lease(path)
        same("its number", of, number)
        same("the bytes", shown(memory, places), WHOLE)
        for refused in (lambda: mmap.mmap(file, len(memory)), lambda: os.pwrite(file, b"x", 0), lambda: os.truncate(file, 0)):
            try:
                refused()
                raise SystemExit("the memory can be changed")
            except OSError:
                pass
        same("lent", metric(server.port, "cokv_cache_lent_blocks"), 1)
        same("delete", tcp(server, "DELETE", f"{BASE}/{KEY}")[0], 204)
        same("what is lent stays", shown(memory, places), WHOLE)
        peer.close()
        until("given back", lambda: metric(server.port, "cokv_cache_lent_blocks") == 0)
        same("exit code", server.stop(), 0)
    same("its file", os.path.exists(path), False)


def a_client_that_is_killed_gives_back_what_it_had(binary, folder):
    path = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as server:
        same("put", tcp(server, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            ready, tell = os.pipe()
            child = os.fork()
            if child == 0:
                _, memory, _ = memory_of(path)
                held = lease(path)
                os.write(tell, b"x" if shown(memory, held[2]) == WHOLE else b"-")
                signal.pause()
                os._exit(0)
            same("the child reads", os.read(ready, 1), b"x")
            same("lent", metric(server.port, "cokv_cache_lent_blocks"), 1)
            os.kill(child, number)
            if number == signal.SIGSTOP:  # it may go on any time
                same("kept for it", metric(server.port, "cokv_cache_lent_blocks"), 1)
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            until("given back", lambda: metric(server.port, "cokv_cache_lent_blocks") == 0)


def what_was_lent_outlives_a_server_that_is_killed(binary, folder):
    path = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as server:
        same("put", tcp(server, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
        number, memory, _ = memory_of(path)
        peer, _, places = lease(path)
        server.process.kill()
        server.process.wait()
        same("the bytes", shown(memory, places), WHOLE)
        same("its file", os.path.exists(path), True)
        with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as other:
            same("another memory", memory_of(path)[0] != number, True)
            same("put", tcp(other, "PUT", f"{BASE}/{KEY}", BLOCK)[0], 204)
            same("the bytes", shown(memory, places), WHOLE)
            same("a second one in its place", refused_there(binary, path), True)
        peer.close()


def refused_there(binary, path):
    try:
        Server(binary, "cache", "--memory", "16MiB", "--socket", path, log=open(os.devnull, "w"))
    except SystemExit:
        return True
    return False


run(blocks_are_read_where_they_lie, a_client_that_is_killed_gives_back_what_it_had,
    what_was_lent_outlives_a_server_that_is_killed)
