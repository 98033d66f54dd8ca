"""Hugging Face's Llama with random weights; the large one has 0.95 billion parameters."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from .case import Case, build, names_of

__all__ = ["make_llama"]

SIZES = {
    "tiny": {"blocks": 3, "width": 32, "inner": 48, "heads": 4, "words": 12, "batch": 2, "vocabulary": 64},
    "small": {"blocks": 8, "width": 128, "inner": 352, "heads": 4, "words": 128, "batch": 2, "vocabulary": 512},
    "large": {"blocks": 16, "width": 2048, "inner": 5632, "heads": 32, "words": 4096, "batch": 4, "vocabulary": 32000},
}


def _perceptron_and_norms(layer):
    for module in (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm):
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)


BY_HAND = {"[norms], [mlp]": _perceptron_and_norms}


def make_llama(size="small", device="cpu", dtype=None, **changes):
    """A Llama whose loss is its own, made inside of its forward; bfloat16 on CUDA."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    sizes = {**SIZES[size], **changes}
    config = LlamaConfig(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["width"],
        intermediate_size=sizes["inner"],
        num_hidden_layers=sizes["blocks"],
        num_attention_heads=sizes["heads"],
        max_position_embeddings=sizes["words"],
        attn_implementation="sdpa",
    )
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    model = build(lambda: LlamaForCausalLM(config), device, dtype).train()
    batch, words = sizes["batch"], sizes["words"]
    ids = torch.randint(sizes["vocabulary"], (batch, words), device=device)
    count = sum(parameter.numel() for parameter in model.parameters())
    title = f"Llama of transformers, {count / 1e9:.2g} B, {sizes['blocks']} blocks, {words} words, batch {batch}"
    sample = {"input_ids": ids, "labels": ids, "use_cache": False}
    return Case(
        title, model, sample, lambda out: out.loss, names_of(model, LlamaDecoderLayer), chained=True, by_hand=BY_HAND
    )
