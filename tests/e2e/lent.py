#!/usr/bin/env python3
"""The cache's memory as another process sees it, with nothing of ours in between: mapped to read only, read where a block
lies, written by telling where it lies, and what becomes of that when either side is killed."""
import ctypes
import fcntl
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


xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64


def digest(data):
    return xxhash.XXH3_64bits(data, ctypes.c_size_t(len(data)))


def places(*segments):
    """Of one block: (offset, bytes) a layer; of none the end."""
    head = struct.pack("<4sIQQII", b"ckvP", 1, 0, 0, len(segments), len(segments)) + bytes(8 * len(segments))
    head += b"".join(struct.pack("<QQ", at, digest(data)) for at, data in segments)
    return head + struct.pack("<Q", digest(head))


def shown_file(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
    file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(file, b"....segment0layr", 0)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


WRITTEN = (BEGIN, places((4, b"segment0")), places((12, b"layr")), places())


def write(path, file, parts, length=None):
    """Begins a write; the descriptor comes with the first places."""
    peer = connect(path)
    length = sum(map(len, WRITTEN)) if length is None else length
    peer.sendall(f"POST {BASE}:write?by=reference HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + parts[0])
    if len(parts) > 1:
        socket.send_fds(peer, [b"".join(parts[1:])], [file])
    return peer


def status_of(peer):
    """The final answer's, and how many interim ones came before."""
    peer.settimeout(30)
    data, interim = b"", 0
    while True:
        while b"\r\n\r\n" not in data:
            more = peer.recv(1 << 16)
            if not more:
                return None, interim
            data += more
        head, _, data = data.partition(b"\r\n\r\n")
        if int(head.split()[1]) != 102:
            return int(head.split()[1]), interim
        interim += 1


def blocks_are_written_from_where_they_lie(binary, folder):
    path = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as server:
        for seals in (0, fcntl.F_SEAL_GROW):
            with write(path, shown_file(seals), WRITTEN) as peer:
                same("memory that can be cut", status_of(peer), (400, 0))
        with write(path, shown_file(), (BEGIN, places((4, b"segment1")), *WRITTEN[2:])) as peer:
            same("other bytes", status_of(peer), (422, 0))
        same("nothing is stored", tcp(server, "GET", f"{BASE}/{KEY}")[0], 404)
        file = shown_file()
        with write(path, file, WRITTEN) as peer:
            same("written", status_of(peer), (200, 2))
            same("mapped", metric(server.port, "cokv_cache_passed_bytes"), 16)
            os.pwrite(file, b"-" * 16, 0)
        same("the block", tcp(server, "GET", f"{BASE}/{KEY}")[1], BLOCK)
        same("copied", metric(server.port, "cokv_cache_taken_bytes_total"), 12)
        until("unmapped", lambda: metric(server.port, "cokv_cache_passed_bytes") == 0)
        same("exit code", server.stop(), 0)


def a_writer_that_is_killed_leaves_nothing(binary, folder):
    path = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as server:
        for parts in range(1, 4):
            ready, tell = os.pipe()
            child = os.fork()
            if child == 0:
                peer = write(path, shown_file(), WRITTEN[:parts])
                os.write(tell, b"x")
                signal.pause()
                os._exit(0)
            same("the child writes", os.read(ready, 1), b"x")
            if parts > 1:
                until("mapped", lambda: metric(server.port, "cokv_cache_passed_bytes") == 16)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            until("unmapped", lambda: metric(server.port, "cokv_cache_passed_bytes") == 0)
            until("given back", lambda: metric(server.port, "cokv_cache_leased_bytes") == 0)
            same("no block", tcp(server, "GET", f"{BASE}/{KEY}")[0], 404)
        with write(path, shown_file(), WRITTEN) as peer:
            same("written by another", status_of(peer), (200, 2))


def a_server_that_is_killed_ends_the_writes_under_way(binary, folder):
    path = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as server:
        file = shown_file()
        with write(path, file, WRITTEN[:2]) as peer:
            until("mapped", lambda: metric(server.port, "cokv_cache_passed_bytes") == 16)
            server.process.kill()
            server.process.wait()
            same("the end", status_of(peer), (None, 1))
        with Server(binary, "cache", "--memory", "16MiB", "--socket", path) as other:
            same("no block", tcp(other, "GET", f"{BASE}/{KEY}")[0], 404)
            with write(path, file, WRITTEN) as peer:
                same("written anew", status_of(peer), (200, 2))


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
    what_was_lent_outlives_a_server_that_is_killed, blocks_are_written_from_where_they_lie,
    a_writer_that_is_killed_leaves_nothing, a_server_that_is_killed_ends_the_writes_under_way)
