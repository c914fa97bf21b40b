#!/usr/bin/env python3
"""Hostile clients against the cache server as a process: what they cost it, by its own counters, while others are served."""
import http.client
import os
import resource
import socket
import threading

from checks import at_least, run, same
from lib_servers import Server

BASE = "/v1/kv/" + "ab" * 32
SANITIZED = bool(os.environ.get("COKV_SANITIZE"))


def memory(server):
    """Bytes that the process has in memory now."""
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


def healthy(server):
    peer = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    peer.request("GET", "/healthz")
    answer = peer.getresponse()
    same("another client", (answer.status, answer.read()), (200, b"ok\n"))
    peer.close()


def at_most(what, value, bound):
    if SANITIZED:
        return  # what it keeps of freed memory is a sanitizer's
    at_least(f"{what}: {value} below {bound}", bound - value, 0)


def ten_thousand_connections(binary, folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(10_000, hard - 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 12_000), hard))
    with Server(binary, "cache", "--memory", "64MiB") as server:
        healthy(server)
        before = memory(server)
        peers = []
        for number in range(wanted):
            peer = socket.socket()
            peer.setblocking(False)
            try:
                peer.connect(("127.0.0.1", server.port))
            except BlockingIOError:
                pass
            peers.append(peer)
            if number % 1000 == 999:
                healthy(server)  # which waits its turn among them
        for peer in peers[::7]:
            try:
                peer.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # never finished
            except OSError:
                pass
        healthy(server)
        at_most(f"memory for {wanted} connections", memory(server) - before, 96 << 20)
        for peer in peers:
            peer.close()
        healthy(server)
        same("exit code", server.stop(), 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def floods_are_bounded(binary, folder):
    """Bodies, headers and extensions without an end, each over several connections at once."""
    line = b"A: " + b"x" * 4000 + b"\r\n"
    chunked = b"Content-Type: application/vnd.cokv.frames\r\nTransfer-Encoding: chunked\r\n\r\n"
    head = f"POST {BASE}:write HTTP/1.1\r\nHost: x\r\n".encode()
    floods = [
        ("header", head, line),
        ("body", head + chunked, b"8000\r\n" + b"c" * 0x8000 + b"\r\n"),
        ("extensions", head + chunked, b"1;" + b"e" * 8000 + b"\r\nc\r\n"),
        ("match", f"POST {BASE}:match HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
         b"8000\r\n" + b" " * 0x8000 + b"\r\n"),
        ("length", head + b"Content-Length: 9223372036854775807\r\n\r\n", b"c" * 0x8000),
        ("requests", b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200),
    ]
    with Server(binary, "cache", "--memory", "64MiB") as server:
        healthy(server)
        before = memory(server)
        for what, begin, piece in floods:
            def attack():
                with socket.create_connection(("127.0.0.1", server.port)) as peer:
                    peer.settimeout(60)
                    try:
                        peer.sendall(begin)
                        for _ in range(16 << 20 >> 13):
                            peer.sendall(piece)
                            peer.setblocking(False)
                            try:
                                while peer.recv(1 << 16):
                                    pass
                                return  # it was cut off
                            except BlockingIOError:
                                pass
                            peer.settimeout(60)
                    except OSError:
                        pass

            attackers = [threading.Thread(target=attack) for _ in range(4)]
            for one in attackers:
                one.start()
            healthy(server)
            at_most(f"memory under a flood of {what}", memory(server) - before, 64 << 20)
            for one in attackers:
                one.join()
            healthy(server)
        same("exit code", server.stop(), 0)


def a_million_tiny_requests_are_answered(binary, folder):
    """Pipelined over one connection, while others are served."""
    wanted, at_once = 100_000 if SANITIZED else 1_000_000, 1000
    requests, answer = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * at_once, b"HTTP/1.1 200 OK\r\n"
    with Server(binary, "cache", "--memory", "64MiB") as server:
        healthy(server)
        before = memory(server)
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.settimeout(60)
            asking = threading.Thread(target=lambda: [peer.sendall(requests) for _ in range(wanted // at_once)])
            asking.start()
            answered, told, last = 0, 0, b""
            while answered < wanted:
                read = peer.recv(1 << 20)
                at_least("bytes of an answer", len(read), 1)
                last += read
                answered += last.count(answer)
                last = last[-len(answer) + 1:]
                if answered >= told + wanted // 10:
                    told = answered
                    healthy(server)
                    at_most("memory", memory(server) - before, 16 << 20)
            asking.join()
            same("answers", answered, wanted)
        same("exit code", server.stop(), 0)


def who_does_not_read_holds_little(binary, folder):
    with Server(binary, "cache", "--memory", "64MiB") as server:
        healthy(server)
        before = memory(server)
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for peer in peers:
            peer.setblocking(False)
            try:
                while True:  # answers pile up until nothing is taken any more
                    peer.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
            except OSError:
                pass
        healthy(server)
        at_most("memory for 100 that don't read", memory(server) - before, 64 << 20)
        for peer in peers:
            peer.close()
        same("exit code", server.stop(), 0)


run(ten_thousand_connections, floods_are_bounded, a_million_tiny_requests_are_answered, who_does_not_read_holds_little)
