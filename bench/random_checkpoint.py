"""A checkpoint of Qwen2.5-0.5B's geometry with random weights, for what serves and not only computes: with tiny-kjv's tokenizer.
What a model costs does not depend on what it has learned."""
import json
import os
import random
import shutil
import struct
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE = 24, 896, 14, 2, 4864
VOCAB = 2048  # of the tokenizer; the model's own 151,936 are a fourth of its weights


def tensors():
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}{name}.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv), ("o", HIDDEN)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, HIDDEN)
        for name, shape in (("gate", (INTERMEDIATE, HIDDEN)), ("up", (INTERMEDIATE, HIDDEN)), ("down", (HIDDEN, INTERMEDIATE))):
            yield f"{at}mlp.{name}_proj.weight", shape


def random_checkpoint():
    """Its folder; written once a machine, 0.7 GB."""
    folder = os.path.join(tempfile.gettempdir(), "cokv-random-qwen2.5-0.5b-served")
    if os.path.exists(os.path.join(folder, "config.json")):
        return folder
    os.makedirs(folder, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(ROOT, "models/tiny-kjv", name), folder)
    header, at = {}, 0
    for name, shape in tensors():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    source = random.Random(1)
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors():
            count = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if len(shape) == 1:
                out.write(b"\x80\x3f" * (count // 2))  # a norm's weights are 1,
                continue
            bits = bytearray(source.randbytes(count))  # a matrix's between 2^-6 and 2^-5, or as far below 0
            bits[0::2] = bits[0::2].translate(bytes(b | 0x80 for b in range(256)))
            bits[1::2] = bits[1::2].translate(bytes(b & 0x80 | 0x3c for b in range(256)))
            out.write(bits)
    with open(os.path.join(folder, "config.json"), "w") as out:  # last: a folder with it is whole
        json.dump({"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "hidden_act": "silu",
                   "tie_word_embeddings": True, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
                   "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": INTERMEDIATE,
                   "vocab_size": VOCAB, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                   "bos_token_id": 0, "eos_token_id": 0}, out)
    return folder
