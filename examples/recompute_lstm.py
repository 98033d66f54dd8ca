"""An LSTM over many steps, split by recomputation checkpoints: how much is live, and what that costs.

`python examples/recompute_lstm.py --seq-len 2048 --checkpoints 7` is the command `remat lstm` with these options. It
has others: --report draws what is live when, --framework runs it on PyTorch or JAX. Without options the LSTM of 2,048
steps is run without checkpoints and with seven. Run it: python examples/recompute_lstm.py
"""

import sys

from remat.cli import main as remat

ARGUMENTS = ("--seq-len", "2048", "--checkpoints", "7", "--compare")


def main(arguments=()):
    status = remat(["lstm", *(arguments or ARGUMENTS)])
    assert status == 0


if __name__ == "__main__":
    main(sys.argv[1:])
