"""Models of Hugging Face with random weights, in twelve architectures: how each is made, called and taken apart.

Everything but sizes and dropout is the default of its configuration: decoders fill a cache while they train. Batches
are padded. The tests run them small, and the benchmark on a GPU larger.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import remat


@dataclass(frozen=True)
class Size:
    """How large a model and its batch are; `width` is of one head, of which there are `heads`."""

    layers: int = 2
    heads: int = 2
    width: int = 8
    words: int = 6
    batch: int = 3
    vocabulary: int = 48
    side: int = 8

    @property
    def hidden(self) -> int:
        return self.heads * self.width


TINY = Size()


@dataclass(frozen=True)
class Architecture:
    """The model's class, its configuration for a size and a dropout, and its inputs for a size."""

    model: str
    configure: Callable[[Size, float], Any]
    inputs: Callable[[Size], dict[str, Tensor]]
    attentions: tuple[str, ...] = ("eager", "sdpa")


def _words(size: Size) -> dict[str, Tensor]:
    ids = torch.randint(3, size.vocabulary, (size.batch, size.words))
    mask = torch.ones_like(ids)
    for row in range(1, size.batch):  # on the left and on the right
        mask[row, slice(0, 2) if row % 2 else slice(-1, None)] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _labelled_words(size: Size) -> dict[str, Tensor]:
    words = _words(size)
    return words | {"labels": words["input_ids"].masked_fill(words["attention_mask"] == 0, -100)}


def _image(size: Size) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size.batch, 3, size.side, size.side)}


def _classes(size: Size) -> dict[str, Tensor]:
    return {"labels": torch.randint(0, 2, (size.batch,))}


def _sound(size: Size) -> dict[str, Tensor]:
    return {"input_features": torch.randn(size.batch, 8, 2 * size.words), "labels": _words(size)["input_ids"]}


def _text_and_image(size: Size) -> dict[str, Tensor]:
    return _words(size) | _image(size) | {"return_loss": torch.tensor(True)}


def _decoder(name: str, **more: Any) -> Callable[[Size, float], Any]:
    def configure(size: Size, dropout: float) -> Any:
        return getattr(transformers, name)(
            **_common(size),
            num_key_value_heads=max(1, size.heads // 2),
            head_dim=size.width,
            attention_dropout=dropout,
            **more,
        )

    return configure


def _common(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
    }


def _both_dropouts(dropout: float) -> dict[str, float]:
    return {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}


def _gpt2(size: Size, dropout: float) -> Any:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"n_embd": size.hidden, "n_layer": size.layers, "n_head": size.heads, "vocab_size": size.vocabulary}
    return transformers.GPT2Config(**sizes, **rates, bos_token_id=1, eos_token_id=2)


def _bert(size: Size, dropout: float) -> Any:
    return transformers.BertConfig(**_common(size), **_both_dropouts(dropout))


def _deberta(size: Size, dropout: float) -> Any:
    relative = {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"]}
    return transformers.DebertaV2Config(**_common(size), **_both_dropouts(dropout), **relative)


def _vit(size: Size, dropout: float) -> Any:
    sizes = {key: value for key, value in _common(size).items() if key != "vocab_size"}
    return transformers.ViTConfig(**sizes, **_both_dropouts(dropout), image_size=size.side, patch_size=4)


def _t5(size: Size, dropout: float) -> Any:
    sizes = {"d_model": size.hidden, "d_kv": size.width, "d_ff": 2 * size.hidden, "num_layers": size.layers}
    return transformers.T5Config(
        **sizes, num_heads=size.heads, vocab_size=size.vocabulary, dropout_rate=dropout, decoder_start_token_id=0
    )


def _whisper(size: Size, dropout: float) -> Any:
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": size.layers, f"{side}_attention_heads": size.heads, f"{side}_ffn_dim": size.hidden}
    return transformers.WhisperConfig(
        vocab_size=size.vocabulary,
        d_model=size.hidden,
        num_mel_bins=8,
        max_source_positions=size.words,
        max_target_positions=size.words,
        **sides,
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), dropout),
        **tokens,
    )


def _mamba(size: Size, dropout: float) -> Any:
    return transformers.MambaConfig(
        vocab_size=size.vocabulary, hidden_size=size.hidden, num_hidden_layers=size.layers, state_size=4
    )


def _clip(size: Size, dropout: float) -> Any:
    sizes = {key: value for key, value in _common(size).items() if key != "vocab_size"} | {"attention_dropout": dropout}
    return transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": size.vocabulary, "max_position_embeddings": size.words, "eos_token_id": 2},
        vision_config={**sizes, "image_size": size.side, "patch_size": 4},
        projection_dim=size.hidden,
    )


ARCHITECTURES = {
    "Llama": Architecture("LlamaForCausalLM", _decoder("LlamaConfig"), _labelled_words),
    "GPT-2": Architecture("GPT2LMHeadModel", _gpt2, _labelled_words),
    "Mistral": Architecture("MistralForCausalLM", _decoder("MistralConfig", sliding_window=4), _labelled_words),
    "Qwen": Architecture("Qwen3ForCausalLM", _decoder("Qwen3Config"), _labelled_words),
    "BERT": Architecture("BertForSequenceClassification", _bert, lambda size: _words(size) | _classes(size)),
    "T5": Architecture("T5ForConditionalGeneration", _t5, _labelled_words),
    "ViT": Architecture("ViTForImageClassification", _vit, lambda size: _image(size) | _classes(size)),
    "Whisper": Architecture("WhisperForConditionalGeneration", _whisper, _sound),
    "Mamba": Architecture("MambaForCausalLM", _mamba, _labelled_words, ("eager",)),
    "CLIP": Architecture("CLIPModel", _clip, _text_and_image),
    "Mixtral": Architecture("MixtralForCausalLM", _decoder("MixtralConfig", num_local_experts=4), _labelled_words),
    "DeBERTa": Architecture(
        "DebertaV2ForSequenceClassification", _deberta, lambda size: _words(size) | _classes(size), ("eager",)
    ),
}


def make(
    name: str, size: Size = TINY, *, attention: str = "sdpa", dropout: float = 0.1
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model, always with the same weights, and its inputs."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = architecture.configure(size, dropout)
    config._attn_implementation = attention
    return getattr(transformers, architecture.model)(config), architecture.inputs(size)


def lists_of_layers(module: nn.Module) -> list[nn.ModuleList]:
    """The lists of layers of a model, outermost ones only."""
    found: list[nn.ModuleList] = []
    for child in module.children():
        found += [child] if isinstance(child, nn.ModuleList) else lists_of_layers(child)
    return found


def drop_layers(model: nn.Module) -> None:
    """Every layer is dropped."""
    for layers in lists_of_layers(model):
        for index, layer in enumerate(layers):
            layers[index] = remat.drop(layer)


def drop_layers_and_their_parts(model: nn.Module) -> None:
    """Every layer is dropped, and so are the attention and the perceptron inside."""
    for layers in lists_of_layers(model):
        for layer in layers:
            for name, part in list(layer.named_children()):
                if not isinstance(part, nn.ModuleList) and next(part.parameters(), None) is not None:
                    setattr(layer, name, remat.drop(part))
    drop_layers(model)


def checkpoint_layers(model: nn.Module) -> None:
    """Every layer's forward is called through a checkpoint."""
    for layers in lists_of_layers(model):
        for layer in layers:
            layer.forward = _checkpointed(layer.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: remat.checkpoint(forward, *args, **kwargs)


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "drop": drop_layers,
    "drop in drop": drop_layers_and_their_parts,
    "checkpoint": checkpoint_layers,
}


def outcome(model: nn.Module, inputs: dict[str, Any], **options: Any) -> dict[str, Tensor | None]:
    """All that a forward and a backward leave, by name: outputs, caches, gradients, buffers, the generator."""
    torch.manual_seed(1)
    result = model(**inputs, **options)
    result.loss.backward()
    found = dict(tensors_in(dict(result), "output"))
    found |= {f"gradient of {name}": value.grad for name, value in model.named_parameters()}
    found |= {f"{name} afterwards": value for name, value in model.named_buffers()}
    return found | {"generator": torch.get_rng_state()}


def tensors_in(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors and numbers in containers and caches, by their paths."""
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif isinstance(value, bool | int | float):
        yield name, torch.tensor(value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_in(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        yield f"length of {name}", torch.tensor(len(value))
        for index, part in enumerate(value):
            yield from tensors_in(part, f"{name}[{index}]")
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        yield from tensors_in(vars(value), name)
