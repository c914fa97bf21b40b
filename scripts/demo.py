#!/usr/bin/env python3
"""The demo: a prompt's KV streams to a cache while it is computed, and comes back after a restart.

usage: demo.py COKV [--model DIR] [--out DIR]
"""
import argparse
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(__file__))
from lib_servers import WARM_UP, Server, complete, metric  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load_spans(path):
    """The transfers and layers of a trace: (kind, layer, start, end) in milliseconds."""
    found = []
    for event in json.load(open(path))["traceEvents"]:
        named = re.fullmatch(r"(layer|flush|load) (\d+)", event["name"]) if event.get("ph") == "X" else None
        if named:
            kind = {"layer": "compute"}.get(named[1], named[1])
            found.append((kind, int(named[2]), event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3))
    return found


def merged(intervals):
    out = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return out


def hidden_fraction(spans):
    """Of the time in which KV was on its way, the fraction in which a layer was computing."""
    compute = merged((s, e) for kind, _, s, e in spans if kind == "compute")
    flush = merged((s, e) for kind, _, s, e in spans if kind == "flush")
    total = sum(e - s for s, e in flush)
    both = sum(max(0, min(e1, e2) - max(s1, s2)) for s1, e1 in flush for s2, e2 in compute)
    return both / total if total else 0.0


def draw(spans, width=72):
    """One row a layer: '#' computing, '-' its KV on the way to the cache."""
    start = min(s for _, _, s, _ in spans)
    end = max(e for _, _, _, e in spans)
    column = lambda t: min(width - 1, int((t - start) / (end - start) * width))
    for layer in sorted({layer for _, layer, _, _ in spans}):
        row = [" "] * width
        for kind, mark in (("flush", "-"), ("compute", "#")):
            for k, l, s, e in spans:
                if k == kind and l == layer:
                    for at in range(column(s), column(e) + 1):
                        row[at] = mark
        print(f"  layer {layer:2} |{''.join(row)}|")
    print(f"           0 ms{'':{width - 12}}{end - start:5.1f} ms")


def svg(spans, path, fraction):
    """The same picture as a file."""
    start = min(s for _, _, s, _ in spans)
    end = max(e for _, _, _, e in spans)
    layers = sorted({layer for _, layer, _, _ in spans})
    x = lambda t: 70 + (t - start) / (end - start) * 700
    height = 58 + 26 * len(layers)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="800" height="{height}" fill="white"/>',
           '<rect x="70" y="10" width="14" height="12" fill="#3465a4"/><text x="90" y="21">computing the layer</text>'
           '<rect x="230" y="10" width="14" height="12" fill="#f57900"/><text x="250" y="21">its KV on the way to the cache</text>'
           f'<text x="770" y="21" text-anchor="end">{fraction:.0%} of the transfer is hidden</text>']
    for row, layer in enumerate(layers):
        y = 34 + 26 * row
        out.append(f'<text x="62" y="{y + 14}" text-anchor="end">layer {layer}</text>')
        for kind, colour, top in (("compute", "#3465a4", 0), ("flush", "#f57900", 11)):
            for k, l, s, e in spans:
                if k == kind and l == layer:
                    out.append(f'<rect x="{x(s):.1f}" y="{y + top}" width="{max(0.8, x(e) - x(s)):.1f}" height="9" fill="{colour}"/>')
    out.append(f'<text x="70" y="{height - 8}">0 ms</text>'
               f'<text x="770" y="{height - 8}" text-anchor="end">{end - start:.1f} ms</text></svg>')
    open(path, "w").write("\n".join(out) + "\n")


def prompt_of(text, server, tokens):
    """As many whole lines of the text as the model's tokenizer turns into about `tokens` tokens."""
    lines = open(text).read().split("\n")
    prompt = ""
    for line in lines:
        prompt += line + " "
        if len(prompt) / 3.75 >= tokens:
            break
    return prompt.strip()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cokv")
    options.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"))
    options.add_argument("--out", default=os.path.join(ROOT, "out"), help="folder for the trace and the picture")
    options = options.parse_args()
    os.makedirs(options.out, exist_ok=True)
    trace = os.path.join(options.out, "demo.perfetto.json")
    picture = os.path.join(options.out, "timeline.svg")
    log = open(os.path.join(options.out, "servers.log"), "w")

    print("1. a remote KV cache starts")
    with Server(options.cokv, "cache", "--memory", "256MiB", log=log) as cache:
        print(f"   cokv cache on {cache.url}, 256 MiB of memory")
        serve = ["serve", "--model", options.model, "--kv-remote", cache.url]
        print("2. a server starts, and is asked to go on with the first chapter of Genesis")
        with Server(options.cokv, *serve, "--trace", trace, log=log) as first:
            complete(first.port, WARM_UP, 4)  # the first request of a process pays for cold caches: not ours to show
            prompt = prompt_of(os.path.join(ROOT, "models/text/genesis.txt"), first, 1000)
            cold = complete(first.port, prompt, 24)
            print(f"   prompt: {cold['usage']['prompt_tokens']} tokens, answer: {cold['text']!r}")
            cold_out = metric(first.port, "cokv_kv_bytes_total", path="remote_out")
            code = first.stop()
        print(f"   the server is stopped (exit code {code}); what it computed is in the cache: {cold_out / 1e6:.2f} MB")
        spans = load_spans(trace)
        prompt_spans = last_prefill(spans)
        fraction = hidden_fraction(prompt_spans)
        print(f"3. the prompt's layers, '#' computing, '-' their KV on its way to the cache: {fraction:.0%} of the transfer hidden")
        draw(prompt_spans)
        svg(prompt_spans, picture, fraction)
        print("4. a new server starts, and is asked the same")
        with Server(options.cokv, *serve, log=log) as second:
            complete(second.port, WARM_UP, 4)
            before = metric(second.port, "cokv_kv_bytes_total", path="remote_in")
            warm = complete(second.port, prompt, 24)
            warm_in = metric(second.port, "cokv_kv_bytes_total", path="remote_in") - before
            second.stop()
        cache.stop()

    cached = lambda run: run["usage"]["prompt_tokens_details"]["cached_tokens"]
    rows = [("", "computed", "after restart"),
            ("time to first token", f"{cold['ttft'] * 1e3:.1f} ms", f"{warm['ttft'] * 1e3:.1f} ms"),
            ("tokens from cache", f"{cached(cold)} of {cold['usage']['prompt_tokens']}", f"{cached(warm)} of {warm['usage']['prompt_tokens']}"),
            ("bytes moved", f"{cold_out / 1e6:.2f} MB out", f"{warm_in / 1e6:.2f} MB in")]
    print()
    for row in rows:
        print("   {:22}{:>18}{:>18}".format(*row))
    same = cold["text"] == warm["text"]
    print(f"\n   both answers are {'the same' if same else 'NOT THE SAME'}; first token {cold['ttft'] / warm['ttft']:.1f} times sooner")
    print(f"   trace for https://ui.perfetto.dev: {os.path.relpath(trace)}; picture: {os.path.relpath(picture)}")
    return 0 if same and cached(warm) > 0 else 1


def last_prefill(spans):
    """The spans of the longest run of layers: the prompt, not the decode steps around it."""
    compute = sorted((s, e, l) for kind, l, s, e in spans if kind == "compute")
    if not compute:
        raise SystemExit("the trace holds no layers")
    passes, current = [], []
    for s, e, l in compute:
        if current and l <= current[-1][2]:
            passes.append(current)
            current = []
        current.append((s, e, l))
    passes.append(current)
    longest = max(passes, key=lambda p: p[-1][1] - p[0][0])
    begin, end = longest[0][0], longest[-1][1]
    chosen = [("compute", l, s, e) for s, e, l in longest]
    for layer in {l for _, _, l in longest}:
        after = [(s, e) for kind, l, s, e in spans if kind == "flush" and l == layer and s >= begin]
        if after:
            s, e = min(after)
            if s <= end + (end - begin):
                chosen.append(("flush", layer, s, e))
    return chosen


if __name__ == "__main__":
    sys.exit(main())
