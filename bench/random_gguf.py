#!/usr/bin/env python3
"""Writes a model of random numbers as llama.cpp reads it, of the shape that a config.json gives: for its llama-bench.

usage: bench/random_gguf.py CONFIG_JSON OUT.gguf

    llama-bench -m OUT.gguf -p 512 -n 32 -t 2

Llama and Qwen2, in bf16. Needs gguf and numpy; the model has no vocabulary, which llama-bench does not need.
"""
import json
import math
import sys

import gguf
import numpy as np

BF16 = gguf.GGMLQuantizationType.BF16


def main():
    config = json.load(open(sys.argv[1]))
    kind = {"Qwen2ForCausalLM": "qwen2", "LlamaForCausalLM": "llama"}[config["architectures"][0]]
    hidden, mlp, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, layers = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers"))
    dim = config.get("head_dim", hidden // heads)
    random = np.random.default_rng(1)
    out = gguf.GGUFWriter(sys.argv[2], kind)
    out.add_block_count(layers)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(hidden)
    out.add_feed_forward_length(mlp)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(dim)
    out.add_value_length(dim)
    out.add_rope_dimension_count(dim)
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    out.add_tokenizer_model("no_vocab")
    out.add_vocab_size(vocab)

    def matrix(name, n, k):
        values = (random.standard_normal((n, k), dtype=np.float32) * 0.02).view(np.uint32)
        half = (values >> 16).astype(np.uint16)
        out.add_tensor(name + ".weight", half.view(np.uint8), raw_shape=(n, k * 2), raw_dtype=BF16)

    def vector(name, n, value):
        out.add_tensor(name, np.full(n, value, dtype=np.float32))

    matrix("token_embd", vocab, hidden)
    vector("output_norm.weight", hidden, 1)
    if not config.get("tie_word_embeddings"):
        matrix("output", vocab, hidden)
    if "rope_scaling" in config:
        s = config["rope_scaling"]
        factors = []
        for i in range(dim // 2):
            turns = s["original_max_position_embeddings"] * config["rope_theta"] ** (-2 * i / dim) / (2 * math.pi)
            blend = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            blend = min(1.0, max(0.0, blend))
            factors.append(1 / ((1 - blend) / s["factor"] + blend))
        out.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    for i in range(layers):
        b = f"blk.{i}."
        for name, n, k in (("attn_q", heads * dim, hidden), ("attn_k", kv_heads * dim, hidden),
                           ("attn_v", kv_heads * dim, hidden), ("attn_output", hidden, heads * dim),
                           ("ffn_gate", mlp, hidden), ("ffn_up", mlp, hidden), ("ffn_down", hidden, mlp)):
            matrix(b + name, n, k)
            if kind == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                vector(b + name + ".bias", n, 0)
        vector(b + "attn_norm.weight", hidden, 1)
        vector(b + "ffn_norm.weight", hidden, 1)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
