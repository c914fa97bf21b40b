#!/usr/bin/env python3
"""What PyTorch takes for what bench_engine_cpu measures: a step of decoding, a prompt, and loading, on random weights.

usage: bench/engine_pytorch.py CONFIG_JSON [--dtype bf16] [--threads N] [--prompt 512] [--repeat 5] [--json FILE]

Needs torch, transformers and safetensors. Medians; the reference's eager code, which is what most people run on a CPU.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

DECODED = 32


def seconds(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def median(repeat, f):
    f()
    return statistics.median(f() for _ in range(repeat))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("config")
    options.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--prompt", type=int, default=512)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--json")
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[options.dtype]
    values = json.load(open(options.config))
    kind = {"Qwen2ForCausalLM": "qwen2", "LlamaForCausalLM": "llama"}[values["architectures"][0]]
    config = AutoConfig.for_model(kind, **{k: v for k, v in values.items() if k not in ("torch_dtype", "architectures")})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()

    def tokens(n):
        return torch.randint(0, config.vocab_size, (1, n))

    def prefill(n):
        return model(tokens(n), use_cache=True, logits_to_keep=1)

    def per_token(context):
        out = prefill(context)
        start = time.perf_counter()
        for _ in range(DECODED):
            out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
        return (time.perf_counter() - start) / DECODED

    rows = []

    def row(what, value, unit):
        rows.append({"what": what, "ours": value, "unit": unit})
        print(f"| {what} | {value:.4g} {unit} |", flush=True)

    name = os.path.splitext(os.path.basename(options.config))[0]
    print(f"PyTorch {torch.__version__}, {name}, {options.dtype}, {options.threads} threads\n\n| what | takes |\n|---|---|")
    with torch.inference_mode():
        for context in (16, 1000):
            row(f"decode, 1 request, after {context} tokens", 1e3 * median(options.repeat, lambda: per_token(context)), "ms")
        row(f"prefill of {options.prompt} tokens",
            1e3 * median(options.repeat, lambda: seconds(lambda: prefill(options.prompt))), "ms")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        row("load", median(options.repeat, lambda: seconds(
            lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype))), "s")
    if options.json:
        json.dump({"bench": "engine_pytorch", "model": name, "rows": rows}, open(options.json, "w"))


if __name__ == "__main__":
    main()
