"""Models to train under a budget, in plain torch: `MODELS[name](size, device, dtype, **changes)` makes a `Case`.

Sizes: "tiny" for tests, "small" for a CPU, "large" for a GPU with 80 GB or more; every number of a size can be changed.
"""

from .case import Case
from .llama import make_llama
from .resnet import make_deep_resnet, make_resnet50, make_resnet101
from .transformer import make_gpt, make_vit
from .unet import make_unet

__all__ = ["MODELS", "Case"]

MODELS = {
    "gpt": make_gpt,
    "vit": make_vit,
    "resnet50": make_resnet50,
    "resnet101": make_resnet101,
    "deep-resnet": make_deep_resnet,
    "unet": make_unet,
    "llama": make_llama,
}
