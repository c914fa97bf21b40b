"""Starts the cokv command's servers for the demo and the benchmarks, and talks to them over plain sockets."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

# The first request of a process pays for connections and cold caches. This one is longer than a block, and shares no
# prefix with any other.
WARM_UP = "Where wast thou when I laid the foundations of the earth? declare, if thou hast understanding. " * 2


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def with_device(arguments):
    """What a server of a model is started with, and COKV_SERVE."""
    if arguments[0] == "serve" and "router" not in arguments and "--device" not in arguments:
        return (*arguments, *os.environ.get("COKV_SERVE", "").split())
    return arguments


class Server:
    """One `cokv` server process, listening on a port of its own choice unless told. `prefix` is what its command begins with.

    COKV_SERVE has more options for servers of a model: "--device cuda:0 --batch-invariant".
    """

    def __init__(self, binary, *arguments, log=None, host="127.0.0.1", port=0, prefix=()):
        self.host = host
        arguments = with_device(arguments)
        self.process = subprocess.Popen([*prefix, binary, *map(str, arguments), "--listen", f"{host}:{port}"],
                                        stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            if found := re.search(rf"listening on (https?://{re.escape(host)}:(\d+))", line):
                self.url, self.port = found[1], int(found[2])
                return
        raise SystemExit(f"{binary} {' '.join(map(str, arguments))}: exited with {self.process.wait()} before it listened")

    def stop(self):
        """SIGTERM, as an operator would; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def request_bytes(port, method, path, body=None, fields=""):
    text = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n" \
           f"Content-Length: {len(text)}\r\nConnection: close\r\n{fields}\r\n"
    return head.encode() + text


def fetch(port, path, host="127.0.0.1"):
    """GET of a small document; returns its body as text."""
    with socket.create_connection((host, port)) as peer:
        peer.sendall(request_bytes(port, "GET", path))
        data = b""
        while chunk := peer.recv(1 << 16):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise SystemExit(f"GET {path}: {head.splitlines()[0].decode()}")
    return body.decode(errors="replace")


def metric(port, name, host="127.0.0.1", **labels):
    """The sum of a metric's samples that carry these labels."""
    total = 0.0
    for line in fetch(port, "/metrics", host).splitlines():
        found = re.match(rf"{re.escape(name)}(?:{{(.*)}})? ([-+.\deE]+|NaN)$", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            total += float(found[2])
    return total


def complete(port, prompt, max_tokens, **options):
    """A streamed, greedy completion. Returns text, ttft and total in seconds, usage, and the arrival times of tokens."""
    body = {"model": "tiny-kjv", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **options}
    message = request_bytes(port, "POST", "/v1/completions", body)
    text, usage, arrivals, data = "", None, [], b""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.perf_counter()
        peer.sendall(message)
        while chunk := peer.recv(1 << 16):
            now = time.perf_counter() - start
            data += chunk
            *lines, data = data.split(b"\n")
            for line in lines:
                line = line.strip()
                if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                    raise SystemExit(f"completion refused: {line.decode()} {(data or b'').decode()}")
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"completion failed: {event['error']}")
                usage = event.get("usage") or usage
                for choice in event.get("choices", []):
                    text += choice.get("text", "")
                    arrivals.append(now)
    if not arrivals:
        raise SystemExit("completion ended without a token")
    return {"text": text, "ttft": arrivals[0], "total": arrivals[-1], "usage": usage, "arrivals": arrivals}


class Stream(threading.Thread):
    """One streamed answer: its text, and when it was asked for, each piece came and it ended (perf_counter)."""

    def __init__(self, port, body, timeout=120):
        super().__init__(daemon=True)
        self.port, self.body, self.timeout = port, body, timeout
        self.text, self.at, self.error = "", [], None
        self.asked, self.ended, self.usage, self.whole = None, None, None, False

    def run(self):
        self.asked = time.perf_counter()
        try:
            self.read()
        except OSError as e:
            self.error = {"code": f"connection: {e}"}
        self.ended = time.perf_counter()

    def read(self):
        data = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=self.timeout) as peer:
            peer.sendall(request_bytes(self.port, "POST", "/v1/completions", self.body))
            while chunk := peer.recv(1 << 16):
                now = time.perf_counter()
                data += chunk
                *lines, data = data.split(b"\n")
                for line in lines:
                    self.whole = self.whole or line.strip() == b"data: [DONE]"
                    if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                        self.error = {"code": line.split(b" ", 1)[1].strip().decode()}
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    self.error = self.error or event.get("error")
                    self.usage = event.get("usage") or self.usage
                    for choice in event.get("choices", []):
                        self.text += choice.get("text", "")
                        self.at.append(now)
