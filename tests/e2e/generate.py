#!/usr/bin/env python3
"""`cokv generate` against the committed continuations, and what it says to bad input."""
import json
import os
import shutil
import struct
import subprocess

from checks import MODEL, run, same


def generate(binary, *arguments, model=MODEL):
    done = subprocess.run([binary, "generate", "--model", model, *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def check_expected(binary, dtype, *more):
    cases = json.load(open(os.path.join(MODEL, "expected.json")))["cases"]
    for case in cases:
        code, out, err = generate(binary, "--prompt", case["prompt"], "--max-tokens", str(len(case["tokens"])),
                                  "--temperature", "0", "--dtype", dtype, "--json", *more)
        same(f"exit code for {case['prompt']!r} ({err.strip()})", code, 0)
        answer = json.loads(out)
        same(f"prompt tokens of {case['prompt']!r}", answer["prompt_tokens"], case["prompt_tokens"])
        same(f"tokens of {case['prompt']!r}", answer["tokens"], case["tokens"])
        same(f"text of {case['prompt']!r}", answer["text"], case["text"])
        if "timing" not in answer:
            raise AssertionError("no timing")


def the_committed_continuations_in_f32(binary, folder):
    check_expected(binary, "f32")


def the_committed_continuations_in_bf16(binary, folder):
    check_expected(binary, "bf16")


def the_same_with_each_next_step_prepared(binary, folder):
    check_expected(binary, "f32", "--async-scheduling")


def a_seed_decides_a_sampled_answer(binary, folder):
    sample = lambda seed: json.loads(generate(binary, "--prompt", "And", "--max-tokens", "24", "--temperature", "1.0", "--top-k", "50",
                                              "--top-p", "0.95", "--seed", str(seed), "--json")[1])["tokens"]
    same("the same seed", sample(5), sample(5))
    if sample(5) == sample(6) == sample(7):
        raise AssertionError("three seeds gave the same answer")


def refused(binary, model, words, *arguments):
    code, out, err = generate(binary, "--prompt", "And", "--max-tokens", "1", *arguments, model=model)
    same(f"exit code ({err.strip()!r})", code, 2)
    same(f"lines of {err!r}", len(err.strip().splitlines()), 1)
    for word in words:
        if word not in err:
            raise AssertionError(f"{err.strip()!r} does not name {word!r}")


def bad_models_are_refused_in_one_line(binary, folder):
    def broken(name, change):
        path = os.path.join(folder, name)
        shutil.copytree(MODEL, path)
        change(path)
        return path

    def rewrite(path, change):
        config = json.load(open(os.path.join(path, "config.json")))
        change(config)
        json.dump(config, open(os.path.join(path, "config.json"), "w"))

    def truncate(path, size):
        os.truncate(os.path.join(path, "model.safetensors"), size)

    def long_header(path):
        with open(os.path.join(path, "model.safetensors"), "r+b") as file:
            file.write(struct.pack("<Q", 1 << 62))

    size = os.path.getsize(os.path.join(MODEL, "model.safetensors"))
    refused(binary, os.path.join(folder, "nowhere"), ["nowhere"])
    refused(binary, broken("no-weights", lambda p: os.remove(os.path.join(p, "model.safetensors"))), ["safetensors"])
    refused(binary, broken("cut", lambda p: truncate(p, size // 2)), ["model.safetensors"])
    refused(binary, broken("tiny", lambda p: truncate(p, 4)), ["model.safetensors"])
    refused(binary, broken("long-header", long_header), ["model.safetensors", "header"])
    refused(binary, broken("other", lambda p: rewrite(p, lambda c: c.update(architectures=["MambaForCausalLM"]))), ["config.json", "MambaForCausalLM"])
    refused(binary, broken("shape", lambda p: rewrite(p, lambda c: c.update(intermediate_size=642))), ["model.safetensors", "mlp"])
    refused(binary, broken("no-field", lambda p: rewrite(p, lambda c: c.pop("num_hidden_layers"))), ["config.json", "num_hidden_layers"])
    refused(binary, broken("text", lambda p: open(os.path.join(p, "config.json"), "w").write("{")), ["config.json"])
    refused(binary, broken("no-tokenizer", lambda p: os.remove(os.path.join(p, "tokenizer.json"))), ["tokenizer.json"])


def bad_flags_are_refused_in_one_line(binary, folder):
    refused(binary, MODEL, ["--dtype"], "--dtype", "f12")
    refused(binary, MODEL, ["--temperature"], "--temperature", "-1")
    refused(binary, MODEL, ["--top-p"], "--top-p", "1.5")
    refused(binary, MODEL, ["--max-tokens"], "--max-tokens", "many")
    refused(binary, MODEL, ["--nonsense"], "--nonsense", "1")
    refused(binary, MODEL, ["cuda:0"], "--device", "cuda:0")
    refused(binary, MODEL, ["warp:9"], "--device", "warp:9")


run(the_committed_continuations_in_f32, the_committed_continuations_in_bf16, a_seed_decides_a_sampled_answer,
    bad_models_are_refused_in_one_line, bad_flags_are_refused_in_one_line)
