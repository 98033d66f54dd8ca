"""What is inside the tape of a loop, where the loop is recorded in a segment or its nodes are gone."""

import torch

import remat
from remat.frameworks.torch.internals.seen_nodes import SeenNodes
from remat.frameworks.torch.loops import tape_contents
from tests.frameworks.torch.programs import DOUBLE


def test_a_profile_of_a_loop_whose_first_tape_is_recorded_in_a_segment():
    """Hooks of the segment pack saved tensors, also those by which references of an unused tensor are counted."""
    tape_contents._references_of_own.cache_clear()
    x, w = torch.ones(3, dtype=DOUBLE, requires_grad=True), torch.ones(3, dtype=DOUBLE)

    def loop(h):
        return remat.scan(lambda h, _: (remat.checkpoint(torch.tanh, h) * w, None), h, length=1, slots=1)[0]

    with remat.profile() as run:
        remat.checkpoint(loop, x).sum().backward()
    assert run.calls
    assert torch.allclose(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_nodes_that_are_gone_are_not_listed():
    class Gone:
        def _sequence_nr(self):
            raise RuntimeError("Attribute '_sequence_nr' is invalid for this instance")  # as PyTorch 2.11 has it

    seen, node = SeenNodes(), torch.ones(2, requires_grad=True).sin().grad_fn
    seen.nodes.update([Gone(), node])
    assert seen.alive() == [node]
