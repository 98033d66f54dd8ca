"""Models of Hugging Face with their defaults, every layer of which is dropped or called through a checkpoint.

Outputs, gradients, caches and the generator afterwards are those of the model without remat, to the last bit.
"""

from functools import cache

import pytest
import torch

pytest.importorskip("transformers")

from transformers import DynamicCache

from tests.frameworks.torch.layer_runs import differences
from tests.frameworks.torch.transformer_cases import ARCHITECTURES, CHANGES, make, outcome, tensors_in

# Every setting in the way that drops most, and the other ways in one setting; `make test-all` runs the whole matrix.
SETTINGS = [
    pytest.param(
        name,
        attention,
        training,
        way,
        id=f"{name}-{attention}-{'train' if training else 'eval'}-{way}",
        marks=[pytest.mark.full] * (way != "drop in drop" and (attention, training) != ("eager", True)),
    )
    for name, architecture in ARCHITECTURES.items()
    for attention in architecture.attentions
    for training in (True, False)
    for way in CHANGES
]
DECODERS = ("Llama", "GPT-2", "Mistral", "Qwen", "Mixtral")
each_setting = pytest.mark.parametrize(("name", "attention", "training", "way"), SETTINGS)
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
each_way = pytest.mark.parametrize("way", CHANGES)


def changed(name, way, *, attention="eager", training=True):
    """A model and its inputs, and with `way` its layers dropped or checkpointed."""
    model, inputs = make(name, attention=attention)
    model.train(training)
    if way:
        CHANGES[way](model)
    return model, inputs


@cache
def expected(name, attention, training):
    found = outcome(*changed(name, None, attention=attention, training=training))
    assert all(value.isfinite().all() for value in found.values() if value is not None)
    return found


@each_setting
def test_a_model_leaves_what_it_leaves_without_remat(name, attention, training, way):
    found = outcome(*changed(name, way, attention=attention, training=training))
    assert differences(found, expected(name, attention, training)) == []


@each_architecture
def test_hidden_states_and_attentions_are_handed_out(name):
    options = {"output_hidden_states": True, "output_attentions": name != "Mamba"}
    plain, dropped = (outcome(*changed(name, way), **options) for way in (None, "drop"))
    assert any("hidden_states[2]" in key for key in plain)
    assert differences(dropped, plain) == []


@each_architecture
def test_training_goes_on_as_without_remat(name):
    """Three steps: what the first leaves behind would show in the next, and values are compared in the first only."""

    def train(way):
        model, inputs = changed(name, way)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            model(**inputs).loss.backward()
            optimizer.step()
        return model.state_dict()

    assert differences(train("drop"), train(None)) == []


@each_way
@pytest.mark.parametrize("name", DECODERS)
def test_a_sequence_in_two_parts_through_one_cache(name, way):
    """The second call reads what the first put into the cache, and the backward goes through both."""

    def run(way):
        model, inputs = changed(name, way, training=False)
        kept = DynamicCache(config=model.config)
        first = model(**inputs, past_key_values=kept)
        mask = torch.cat([inputs["attention_mask"]] * 2, 1)
        second = model(inputs["input_ids"], attention_mask=mask, labels=inputs["labels"], past_key_values=kept)
        (first.loss + 2 * second.loss).backward()
        found = dict(tensors_in(kept, "cache")) | {name: value.grad for name, value in model.named_parameters()}
        return found | {"length": torch.tensor(kept.get_seq_length())}

    plain = run(None)
    assert plain["length"] == 12
    assert differences(run(way), plain) == []


@pytest.mark.parametrize("name", [*DECODERS, "T5", "Whisper", "Mamba"])
def test_generation_after_a_backward(name):
    """The words that a model gives, after a backward, are those of a model without remat."""

    def words(way):
        model, inputs = changed(name, way)
        model(**inputs).loss.backward()
        inputs.pop("labels")
        return model.eval().generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)

    assert torch.equal(words("drop"), words(None))
