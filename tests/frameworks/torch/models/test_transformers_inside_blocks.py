"""Models of Hugging Face under a budget, with choices inside of their layers: gradients are the plain model's."""

import pytest

pytest.importorskip("transformers")

import remat
from tests.frameworks.torch.layer_runs import differences
from tests.frameworks.torch.transformer_cases import ARCHITECTURES, make, outcome

# Two that take little time; `make test-all` runs them all.
QUICK = ("Mistral", "ViT")
NAMES = [pytest.param(name, marks=[pytest.mark.full] * (name not in QUICK)) for name in ARCHITECTURES]


def model_of(name):
    model, inputs = make(name, attention=ARCHITECTURES[name].attentions[-1])
    return model.train(), inputs


@pytest.mark.parametrize("name", NAMES)
def test_a_model_under_a_budget(name):
    expected = outcome(*model_of(name))
    model, inputs = model_of(name)
    all_kept = remat.auto_checkpoint(model, memory=10**9, sample=inputs).remat_plan.peak
    choices = []
    for share in (0.85, 0.3):
        model, inputs = model_of(name)
        try:
            remat.auto_checkpoint(model, memory=int(share * all_kept), sample=inputs)
        except remat.InfeasibleError as error:
            remat.auto_checkpoint(model, memory=int(1.05 * error.minimum), sample=inputs)
        found = outcome(model, inputs)
        # A model under a budget makes no cache in training.
        assert differences(found, {key: value for key, value in expected.items() if key in found}) == []
        choices += model._remat_forward.last.remade
    assert any(choices)
