#!/usr/bin/env python3
"""`cokv serve` as its clients and operators meet it: answers, refusals, disconnects, keys, signals, bad flags."""
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

from checks import MODEL, at_least, run, same, until
from lib_servers import Server, complete, fetch, metric, request_bytes

CASES = json.load(open(os.path.join(MODEL, "expected.json")))["cases"]


def serve(binary, *arguments, log=None):
    return Server(binary, "serve", "--model", MODEL, *arguments, log=log)


def send(port, data, timeout=60):
    """Sends bytes, reads until the server closes; (status, headers, body)."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as peer:
        peer.sendall(data)
        got = b""
        while chunk := peer.recv(1 << 16):
            got += chunk
    return parse(got)


def parse(got):
    head, _, body = got.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            whole, body = whole + body[:int(size, 16)], body[int(size, 16) + 2:]
        body = whole
    return int(lines[0].split()[1]), headers, body


def ask(port, path, body, method="POST"):
    status, headers, answer = send(port, request_bytes(port, method, path, body))
    return status, json.loads(answer)


def the_committed_continuations_streamed_and_whole(binary, folder):
    for dtype in ("f32", "bf16"):
        with serve(binary, "--dtype", dtype) as server:
            for case in CASES:
                body = {"model": "tiny-kjv", "prompt": case["prompt"], "max_tokens": len(case["tokens"]), "temperature": 0}
                status, answer = ask(server.port, "/v1/completions", body)
                same("status", status, 200)
                same(f"text of {case['prompt']!r} in {dtype}", answer["choices"][0]["text"], case["text"])
                same("prompt tokens", answer["usage"]["prompt_tokens"], len(case["prompt_tokens"]))
                same("completion tokens", answer["usage"]["completion_tokens"], len(case["tokens"]))
                streamed = complete(server.port, case["prompt"], len(case["tokens"]))
                same("streamed text", streamed["text"], case["text"])
                body["prompt"] = case["prompt_tokens"]
                same("from token ids", ask(server.port, "/v1/completions", body)[1]["choices"][0]["text"], case["text"])


def many_at_once_answer_as_one_by_one(binary, folder):
    with serve(binary, "--dtype", "f32", "--max-batched-tokens", 64, "--kv-blocks", 64) as server:
        got = {}
        def one(n):
            case = CASES[n % len(CASES)]
            got[n] = (complete(server.port, case["prompt"], len(case["tokens"]))["text"], case["text"])
        threads = [threading.Thread(target=one, args=(n,)) for n in range(24)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        same("answers", len(got), 24)
        for text, wanted in got.values():
            same("text", text, wanted)


def sequences_that_take_turns_answer_as_if_all_had_room(binary, folder):
    """A pool for a quarter of them, each next one's KV brought back from the host."""
    def answers(*flags):
        got = {}
        with serve(binary, "--dtype", "f32", *flags) as server:
            def one(n):
                case = CASES[n % len(CASES)]
                how = {"temperature": 0.8, "seed": n} if n % 2 else {"temperature": 0}
                body = {"model": "tiny-kjv", "prompt": f"{n} {case['prompt']}", "max_tokens": 200, "ignore_eos": True, **how}
                got[n] = ask(server.port, "/v1/completions", body)[1]["choices"][0]["text"]
            threads = [threading.Thread(target=one, args=(n,)) for n in range(16)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            until("no block is in use", lambda: metric(server.port, "cokv_kv_blocks", tier="device", state="in_use") == 0)
            return got, {name: metric(server.port, f"cokv_{name}") for name in
                         ("swapped_bytes_total", "preemptions_total", "requests_parked", "swap_failures_total")}
    needed = 16 * 15
    wanted, none = answers("--kv-blocks", needed, "--swap", "64MiB")
    same("bytes swapped where all fits", none["swapped_bytes_total"], 0)
    got, counted = answers("--kv-blocks", needed // 4, "--swap", "64MiB")
    same("answers", got, wanted)
    at_least("bytes swapped", counted["swapped_bytes_total"], 1)
    same("still parked", counted["requests_parked"], 0)
    same("failures", counted["swap_failures_total"], 0)
    same("answers with each next step prepared", answers("--kv-blocks", needed // 4, "--swap", "64MiB", "--async-scheduling")[0],
         wanted)


def a_chat_and_the_models(binary, folder):
    with serve(binary, "--name", "kjv") as server:
        same("models", [m["id"] for m in json.loads(fetch(server.port, "/v1/models"))["data"]], ["kjv"])
        body = {"model": "kjv", "messages": [{"role": "user", "content": "Who was Moses?"}], "max_completion_tokens": 12}
        status, answer = ask(server.port, "/v1/chat/completions", body)
        same("status", status, 200)
        same("role", answer["choices"][0]["message"]["role"], "assistant")
        same("health", fetch(server.port, "/healthz"), "ok\n")


def bad_requests_are_told_apart(binary, folder):
    ok = {"model": "tiny-kjv", "prompt": "And"}
    long = "And it came to pass. " * 3000
    table = [
        ("POST", "/v1/completions", {"model": "tiny-kjv", "prompt": ""}, 400, "prompt"),
        ("POST", "/v1/completions", {**ok, "prompt": long}, 400, "context"),
        ("POST", "/v1/completions", {**ok, "max_tokens": 9000}, 400, "context"),
        ("POST", "/v1/completions", {**ok, "prompt": [99999]}, 400, "vocabulary"),
        ("POST", "/v1/completions", {**ok, "temperature": 3}, 400, "temperature"),
        ("POST", "/v1/completions", {**ok, "n": 300}, 400, "n: "),
        ("POST", "/v1/completions", {**ok, "logprobs": 21}, 400, "logprobs"),
        ("POST", "/v1/completions", {**ok, "frobnicate": 1}, 400, "frobnicate"),
        ("POST", "/v1/completions", {"prompt": "And"}, 400, "model"),
        ("POST", "/v1/completions", {**ok, "model": "gpt"}, 404, "gpt"),
        ("POST", "/v1/chat/completions", {"model": "tiny-kjv", "messages": []}, 400, "messages"),
        ("GET", "/v1/nothing", None, 404, "/v1/nothing"),
        ("GET", "/v1/completions", None, 405, "POST"),
        ("DELETE", "/v1/models", None, 405, "GET"),
    ]
    with serve(binary) as server:
        for method, path, body, wanted, word in table:
            status, answer = ask(server.port, path, body, method)
            same(f"status of {method} {path} {str(body)[:60]}", status, wanted)
            if word not in answer["error"]["message"]:
                raise AssertionError(f"{answer} does not name {word!r}")
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
        same("no JSON", send(server.port, head.encode() + b"1\r\n\r\n{")[0], 400)
        same("announced too large", send(server.port, head.encode() + b"99999999\r\n\r\n")[0], 413)
        same("sent too large", send(server.port, head.encode() + b"20000000\r\n\r\n" + b"x" * 20000000)[0], 413)
        same("a header too large", send(server.port, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 50000 + b"\r\n\r\n")[0], 431)
        same("nonsense", send(server.port, b"hello\r\n\r\n")[0], 400)
        same("and it still answers", complete(server.port, "And", 4)["usage"]["completion_tokens"], 4)


def only_who_has_a_key_may(binary, folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("# ours\nsesame\n")
    with serve(binary, "--api-key-file", keys) as server:
        def status(authorization, path="/v1/models"):
            extra = f"Authorization: {authorization}\r\n" if authorization else ""
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{extra}\r\n"
            return send(server.port, head.encode())
        code, headers, body = status(None)
        same("without", code, 401)
        same("scheme", headers["www-authenticate"], 'Bearer realm="cokv"')
        same("code", json.loads(body)["error"]["code"], "invalid_api_key")
        same("wrong", status("Bearer open")[0], 401)
        same("right", status("Bearer sesame")[0], 200)
        same("metrics without", status(None, "/metrics")[0], 401)
        same("health without", status(None, "/healthz")[0], 200)


def a_client_that_goes_away_frees_its_blocks(binary, folder):
    with serve(binary) as server:
        in_use = lambda: metric(server.port, "cokv_kv_blocks", tier="device", state="in_use")
        same("blocks in use at first", in_use(), 0)
        for stream in (True, False):
            cancelled = metric(server.port, "cokv_requests_total", outcome="cancelled")
            body = {"model": "tiny-kjv", "prompt": CASES[0]["prompt"], "max_tokens": 8000, "temperature": 1,
                    "stream": stream, "logit_bias": None}
            peer = socket.create_connection(("127.0.0.1", server.port))
            peer.sendall(request_bytes(server.port, "POST", "/v1/completions", body))
            if stream:
                peer.recv(1)
            until("the request holds blocks", lambda: in_use() > 0)
            peer.close()
            until("its blocks are free", lambda: in_use() == 0)
            until("it is counted", lambda: metric(server.port, "cokv_requests_total", outcome="cancelled") > cancelled)
        same("and it still answers", complete(server.port, "And", 4)["usage"]["completion_tokens"], 4)


def the_metrics_say_what_happened(binary, folder):
    with serve(binary, "--kv-host", "64MiB") as server:
        prompt = " ".join(case["prompt"] for case in CASES)
        first, second = (complete(server.port, prompt, 8) for _ in range(2))
        same("text", first["text"], second["text"])
        same("ttft", metric(server.port, "cokv_ttft_seconds_count"), 2)
        same("tpot", metric(server.port, "cokv_tpot_seconds_count"), 2)
        same("generated", metric(server.port, "cokv_generated_tokens_total"), 16)
        steps = metric(server.port, "cokv_step_seconds_total")
        at_least("steps took time", steps, 1e-6)
        at_least("no more than the requests", first["total"] + second["total"], steps)
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        at_least("cached", cached, 16)
        same("cached counted", metric(server.port, "cokv_cached_tokens_total"), cached)
        at_least("hits", metric(server.port, "cokv_kv_hits_total", tier="device"), cached // 16)
        until("bytes to the host", lambda: metric(server.port, "cokv_kv_bytes_total", path="host_out") > 0)
        same("digest failures", metric(server.port, "cokv_kv_digest_failures_total"), 0)
        same("resumed tokens", metric(server.port, "cokv_resumed_tokens_total"), 0)
        same("failed handshakes", metric(server.port, "cokv_tls_failed_handshakes_total"), 0)
        same("failed requests", metric(server.port, "cokv_requests_total", outcome="failed"), 0)


def a_signal_lets_an_answer_finish(binary, folder):
    for number in (signal.SIGTERM, signal.SIGINT):
        with serve(binary) as server:
            result = {}
            thread = threading.Thread(target=lambda: result.update(complete(server.port, "And it came to pass", 400, stop=None)))
            thread.start()
            until("it runs", lambda: metric(server.port, "cokv_generations_active") == 1)
            server.process.send_signal(number)
            same("exit code", server.process.wait(timeout=60), 0)
            thread.join()
            at_least("tokens of the answer in flight", result["usage"]["completion_tokens"], 1)


def a_trace_is_written_at_the_end(binary, folder):
    path = os.path.join(folder, "trace.json")
    with serve(binary, "--trace", path, "--kv-host", "64MiB") as server:
        complete(server.port, " ".join(case["prompt"] for case in CASES), 8)
        same("not before", os.path.exists(path), False)
        same("exit code", server.stop(), 0)
    names = {event["name"] for event in json.load(open(path))["traceEvents"]}
    for wanted in ("step", "layer 0", "layer 7", "flush 0", "flush 7"):
        if wanted not in names:
            raise AssertionError(f"no {wanted!r} among {sorted(names)}")
    same("leftovers", os.listdir(folder), ["trace.json"])


def bad_flags_are_one_line_and_exit_code_2(binary, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        empty = os.path.join(folder, "empty")
        open(empty, "w").close()
        broken = os.path.join(folder, "broken")
        shutil.copytree(MODEL, broken)
        config = json.load(open(os.path.join(broken, "config.json")))
        config["vocab_size"] -= 1
        json.dump(config, open(os.path.join(broken, "config.json"), "w"))
        table = [
            ([], "--model"),
            (["--model", "/nonexistent/model"], "/nonexistent/model"),
            (["--model", MODEL, "--listen", in_use], in_use),
            (["--model", MODEL, "--listen", "nonsense"], "--listen"),
            (["--model", MODEL, "--listen", "127.0.0.1:99999"], "--listen"),
            (["--model", MODEL, "--kv-host", "4XB"], "--kv-host"),
            (["--model", MODEL, "--kv-disk", "4GiB"], "--kv-d"),
            (["--model", MODEL, "--kv-dir", os.path.join(empty, "kv")], "--kv-dir"),
            (["--model", MODEL, "--kv-remote", "ftp://x"], "--kv-remote"),
            (["--model", MODEL, "--kv-blocks", "-3"], "--kv-blocks"),
            (["--model", MODEL, "--block-tokens", "0"], "--block-tokens"),
            (["--model", MODEL, "--dtype", "f8"], "--dtype"),
            (["--model", MODEL, "--device", "tpu"], "--device"),
            (["--model", MODEL, "--device", "cuda:0"], "--device"),
            (["--model", MODEL, "--api-key-file", empty], empty),
            (["--model", MODEL, "--trace", "/nonexistent/trace"], "--trace"),
            (["--model", MODEL, "--trace", folder], f"--trace {folder}"),
            (["--model", MODEL, "--kv-host", "1"], "--kv-host"),
            (["--model", MODEL, "--swap", "1"], "--swap"),
            (["--model", MODEL, "--role", "prefill", "--swap", "1GiB"], "--swap"),
            (["--model", MODEL, "--role", "router", "--policy", "random"], "--policy"),
            (["--model", MODEL, "--role", "router", "--slo-ttft", "100"], "--slo-ttft"),
            (["--model", MODEL, "--policy", "slo"], "--policy"),
            (["--model", MODEL, "--kv-dir", os.path.join(folder, "kv"), "--kv-disk", "10"], "--kv-disk"),
            (["--model", MODEL, "--max-sequence", "100000"], "--max-sequence"),
            (["--model", MODEL, "--kv-blocks", "1", "--block-tokens", "1"], "--kv-blocks"),
            (["--model", broken, "--trace", os.path.join(folder, "trace")], "broken: its tokenizer"),
            (["--model", MODEL, "--frobnicate"], "--frobnicate"),
        ]
        for arguments, word in table:
            if word == "--device" and arguments[-1] == "cuda:0" and os.path.exists("/dev/nvidia0"):
                continue
            listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
            done = subprocess.run([binary, "serve", *arguments, *listen], capture_output=True, text=True, timeout=60)
            same(f"exit code of {arguments} ({done.stderr.strip()!r})", done.returncode, 2)
            same(f"lines of {done.stderr!r}", len(done.stderr.strip().splitlines()), 1)
            same("output", done.stdout, "")
            if word not in done.stderr:
                raise AssertionError(f"{done.stderr.strip()!r} does not name {word!r}")
        same("leftovers", sorted(os.listdir(folder)), ["broken", "empty"])


def an_answer_that_outlasts_the_grace_ends_with_an_error(binary, folder):
    path = os.path.join(folder, "log")
    body = {"model": "tiny-kjv", "prompt": "And it came to pass", "max_tokens": 8000, "temperature": 1, "seed": 1}
    with open(path, "w") as log, serve(binary, "--grace", 0, log=log) as server:
        peers = []
        for stream in (True, False):
            peer = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            peer.sendall(request_bytes(server.port, "POST", "/v1/completions", {**body, "stream": stream}))
            peers.append(peer)
        until("both run", lambda: metric(server.port, "cokv_generations_active") == 2)
        first = peers[0].recv(1)
        server.process.send_signal(signal.SIGTERM)
        answers = []
        for peer, got in zip(peers, (first, b"")):
            while chunk := peer.recv(1 << 16):
                got += chunk
            peer.close()
            answers.append(parse(got))
        same("exit code", server.process.wait(timeout=60), 0)
    status, _, streamed = answers[0]
    same("status of the stream", status, 200)
    last = streamed.decode().strip().split("\n\n")[-1]
    same("the last event", json.loads(last.removeprefix("data: "))["error"]["code"], "shutting_down")
    same("status of the other", answers[1][0], 503)
    same("its error", json.loads(answers[1][2])["error"]["code"], "shutting_down")
    same(f"warnings in {open(path).read()}", open(path).read().count("2 requests were cut short"), 1)


def refusals_are_counted_alike(binary, folder):
    with serve(binary) as server:
        for body in ({"model": "gpt", "prompt": "x"}, {"model": "tiny-kjv", "prompt": ""}, {"model": "tiny-kjv", "n": 2}):
            ask(server.port, "/v1/completions", body)
        complete(server.port, "And", 2)
        same("generations", metric(server.port, "cokv_generations_total", outcome="refused"), 3)
        same("requests", metric(server.port, "cokv_requests_total", outcome="refused"), 3)
        same("all generations", metric(server.port, "cokv_generations_total"), 4)
        same("all requests", metric(server.port, "cokv_requests_total"), 4)


def a_key_makes_a_request_one_computation(binary, folder):
    body = {"model": "tiny-kjv", "prompt": "And it came to pass", "max_tokens": 300, "temperature": 1, "ignore_eos": True}
    def keyed(port, key, body, fields=""):
        return send(port, request_bytes(port, "POST", "/v1/completions", body, f"Idempotency-Key: {key}\r\n{fields}"))
    with serve(binary) as server:
        port = server.port
        generations = lambda: metric(port, "cokv_generations_total")
        for number, stream in enumerate((True, False)):
            asked, got = {**body, "stream": stream}, {}
            def one(n):
                got[n] = keyed(port, f"key-{stream}", asked)
            threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            got[4] = keyed(port, f'"key-{stream}"', asked)
            same("status", {status for status, _, _ in got.values()}, {200})
            same("bodies", len({answer for _, _, answer in got.values()}), 1)
            same("who began it", sum("idempotent-replayed" not in headers for _, headers, _ in got.values()), 1)
            same("computed", generations(), number + 1)
        same("tokens", metric(port, "cokv_generated_tokens_total"), 600)
        same("replays", metric(port, "cokv_replayed_answers_total"), 8)
        same("kept", metric(port, "cokv_kept_answers", state="complete"), 2)

        # Who goes in the middle comes again for all of it.
        peer = socket.create_connection(("127.0.0.1", port))
        asked = {**body, "max_tokens": 1000, "stream": True}
        peer.sendall(request_bytes(port, "POST", "/v1/completions", asked, "Idempotency-Key: gone\r\n"))
        begun = b""
        while begun.count(b"data: ") < 5:
            begun += peer.recv(1 << 12)
        peer.close()
        status, headers, again = keyed(port, "gone", asked)
        same("status", status, 200)
        same("it is the same one", headers.get("idempotent-replayed"), "true")
        first_event = begun[begun.index(b"data: "):].split(b"\n\n")[0]
        same("it begins alike", again.startswith(first_event + b"\n\n"), True)
        same("its end", again.endswith(b"data: [DONE]\n\n"), True)
        same("computed", generations(), 3)

        same("another body", keyed(port, "gone", body)[0], 422)
        same("its code", json.loads(keyed(port, "gone", body)[2])["error"]["code"], "idempotency_key_reused")
        for bad in ("", '""', "a b", "x" * 256, "x" * 5000, "\x01", "a\r\nIdempotency-Key: b"):
            same(f"status of key {bad[:20]!r}", keyed(port, bad, body)[0], 400)
        # A new one each time without it.
        texts = {ask(port, "/v1/completions", {**body, "max_tokens": 30})[1]["choices"][0]["text"] for _ in range(3)}
        same("answers without a key", len(texts), 3)
        same("kept", metric(port, "cokv_kept_answers", state="complete"), 3)
        same("exit code", server.stop(), 0)
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("one\ntwo\nthree name=ana\nfour name=ana\n")
    with serve(binary, "--api-key-file", keys) as server:
        got = [json.loads(keyed(server.port, "k", {**body, "max_tokens": 20}, f"Authorization: Bearer {who}\r\n")[2])["id"]
               for who in ("one", "two", "three", "four", "one")]
        same("answers", [got.index(one) for one in got], [0, 1, 2, 2, 0])


def ten_thousand_keys_are_bounded(binary, folder):
    body = {"model": "tiny-kjv", "prompt": "And", "max_tokens": 1}
    with serve(binary) as server, socket.create_connection(("127.0.0.1", server.port)) as peer:
        stream = peer.makefile("rb")
        for n in range(10000):
            head = request_bytes(server.port, "POST", "/v1/completions", body, f"Idempotency-Key: {n}\r\n")
            peer.sendall(head.replace(b"Connection: close\r\n", b""))
            same("status", stream.readline().split()[1], b"200")
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split()[1])
            stream.read(length)
        same("computed", metric(server.port, "cokv_generations_total"), 10000)
        at_least("no more are kept than may be", 4096, metric(server.port, "cokv_kept_answers", state="complete"))
        at_least("bytes", 64 << 20, metric(server.port, "cokv_kept_answer_bytes"))


if __name__ == "__main__":
    run(the_committed_continuations_streamed_and_whole, many_at_once_answer_as_one_by_one,
        sequences_that_take_turns_answer_as_if_all_had_room, a_chat_and_the_models,
        bad_requests_are_told_apart, only_who_has_a_key_may, a_client_that_goes_away_frees_its_blocks,
        the_metrics_say_what_happened, a_signal_lets_an_answer_finish, a_trace_is_written_at_the_end,
        bad_flags_are_one_line_and_exit_code_2, an_answer_that_outlasts_the_grace_ends_with_an_error,
        refusals_are_counted_alike, a_key_makes_a_request_one_computation, ten_thousand_keys_are_bounded)
