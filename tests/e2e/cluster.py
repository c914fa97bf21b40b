"""A router with prefill and decode workers, requests from a seed, and what of their answers has to be the same."""
import json
import os
import random
import signal
import socket
import subprocess

from checks import MODEL, ROOT, same, until
from lib_servers import Server, fetch, free_ports, metric, request_bytes

VERSES = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
CASES = json.load(open(os.path.join(ROOT, "models/tiny-kjv/expected.json")))


LONG = {"prompt": " ".join(VERSES[:12]), "max_tokens": 600, "temperature": 1, "seed": 3,
        "logit_bias": {str(json.load(open(os.path.join(MODEL, "config.json")))["eos_token_id"]): -100}}


class Ranks:
    """Servers that mpirun starts together, each command's one as a rank of one job, which listens at its port."""

    def __init__(self, commands, ports, log=None):
        self.servers = [Rank(port, self) for port in ports]
        line = ["mpirun", "--oversubscribe"]
        for port, command in zip(ports, commands):
            line += [*([":"] if line[-1] != "--oversubscribe" else []), "-n", "1", *map(str, command), "--listen",
                     f"127.0.0.1:{port}"]
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.process = subprocess.Popen(line, env=os.environ | as_root, stdout=subprocess.DEVNULL, stderr=log)
        for server in self.servers:
            until(f"rank {self.servers.index(server)} listens", server.answers, 60)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


class Rank:
    def __init__(self, port, job):
        self.port, self.url, self.job = port, f"http://127.0.0.1:{port}", job

    @property
    def process(self):
        return self.job.process

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"mpirun ended with {self.process.poll()}")
        try:
            return fetch(self.port, "/healthz") is not None
        except (OSError, SystemExit):
            return False

    def stop(self):
        self.job.stop()
        return 0

    def __exit__(self, *_):
        self.job.stop()


class Cluster:
    def __init__(self, binary, *, both=(), prefill=(), decode=(), each_decode=None, router=(), prefills=1, decodes=1,
                 dtype="f32", lend=0, mpi=False, log=None):
        model = ("--model", MODEL, "--dtype", dtype, *both)
        command = lambda role, *more: (binary, "serve", *model, "--role", role, *more)
        # Layers of each decode worker's KV.
        borrow = lambda ports: ("--borrow-from", ",".join(f"http://127.0.0.1:{p}" for p in ports), "--borrow-layers",
                                lend) if lend else ()
        if mpi:
            ports = free_ports(prefills + decodes)
            prefill, decode = (*prefill, "--link", "mpi://"), (*decode, *borrow(ports[:prefills]), "--link", "mpi://")
            ranks = Ranks([command("prefill", *prefill)] * prefills + [command("decode", *decode)] * decodes, ports, log)
            self.prefills, self.decodes = ranks.servers[:prefills], ranks.servers[prefills:]
        else:
            self.prefills = [Server(*command("prefill", *prefill), log=log) for _ in range(prefills)]
            decode = (*decode, *borrow([s.port for s in self.prefills]))
            self.decodes = [Server(*command("decode", *decode, *own), log=log) for own in each_decode or [()] * decodes]
        self.decode, self.prefill = self.decodes[0], self.prefills[0]
        self.router = Server(binary, "serve", "--model", MODEL, "--dtype", dtype, "--role", "router", "--prefill",
                             ",".join(s.url for s in self.prefills), "--decode",
                             ",".join(s.url for s in self.decodes), *router, log=log)
        self.port = self.router.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (self.router, *self.prefills, *self.decodes):
            server.__exit__()

    def stop(self):
        return [server.stop() for server in (self.router, *self.prefills, *self.decodes)]

    def at_rest(self):
        for server in (*self.prefills, *self.decodes):
            if server.process.poll() is None:
                until("no block is in use",
                      lambda: metric(server.port, "cokv_kv_blocks", tier="device", state="in_use") == 0)
        for server in self.decodes:
            if server.process.poll() is None:
                until("no room is open", lambda: metric(server.port, "cokv_windows") == 0)


def ask(port, path="/v1/completions", timeout=60, **body):
    """Status and JSON of an answer that comes whole."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as peer:
        peer.sendall(request_bytes(port, "POST", path, {"model": "tiny-kjv", **body}))
        data = b""
        while chunk := peer.recv(1 << 16):
            data += chunk
    head, _, text = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(text)


def some_requests(count, seed):
    rng = random.Random(seed)
    for number in range(count):
        prompt = f"{number} " + " ".join(rng.sample(VERSES, rng.choice((1, 3, 12))))
        how = {"max_tokens": rng.randint(1, 40), "temperature": rng.choice((0, 0.7, 1)), "seed": rng.randint(0, 1 << 60)}
        if rng.random() < 0.4:
            how |= {"top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.2}
        if rng.random() < 0.3:
            how |= {"logprobs": 2}
        if rng.random() < 0.3:
            how |= {"stop": ["the", ":"]}
        if rng.random() < 0.2:
            how |= {"n": 2}
        yield {"prompt": prompt, **how}


def told(answer):
    """What of an answer has to be the same wherever it was made."""
    if "choices" not in answer:
        raise AssertionError(f"an error in an answer's place: {answer}")
    text = [c["text"] if "text" in c else c["message"]["content"] for c in answer["choices"]]
    how = [[c["finish_reason"], (c["logprobs"] or {}).get("tokens")] for c in answer["choices"]]
    return text, how, {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}


def asked(port, request):
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    peer.sendall(request_bytes(port, "POST", "/v1/completions", {"model": "tiny-kjv", **request}))
    return peer


def all_answered(peers, requests, wanted):
    for peer, r, answer in zip(peers, requests, wanted):
        data = b""
        while chunk := peer.recv(1 << 16):
            data += chunk
        same(f"answer to {r}", told(json.loads(data.partition(b"\r\n\r\n")[2])), answer)
        peer.close()


def at_the_worker_of(cluster, what, do):
    """Streams LONG, and does it to the worker that has a part in it, in the middle. Returns text and who it was."""
    text, victim, data = "", None, b""
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as peer:
        peer.sendall(request_bytes(cluster.port, "POST", "/v1/completions",
                                   {"model": "tiny-kjv", **LONG, "stream": True}))
        while chunk := peer.recv(1 << 12):
            data += chunk
            if victim is None and data.count(b"data: ") > 20:
                running = [s for s in what if metric(s.port, "cokv_requests_running") > 0]
                same("workers that decode it", len(running), 1)
                victim = running[0]
                do(victim)
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise AssertionError(f"the answer failed: {event['error']}")
            text += "".join(c.get("text", "") for c in event["choices"])
    return text, victim


def kill(victim):
    victim.process.send_signal(signal.SIGKILL)
    victim.process.wait()


def ring_is_told(cluster):
    """Everybody that decodes has been told its place."""
    until("the ring stands", lambda: metric(cluster.port, "cokv_ring_epoch") > 0 and all(
        metric(s.port, "cokv_ring_epoch") == metric(cluster.port, "cokv_ring_epoch")
        for s in cluster.decodes if s.process.poll() is None))


def blocks_are_free(cluster):
    for s in (*cluster.prefills, *cluster.decodes):
        if s.process.poll() is None:
            until("no block is in use", lambda: metric(s.port, "cokv_kv_blocks", tier="device", state="in_use") == 0)
