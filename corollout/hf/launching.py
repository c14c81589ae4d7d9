"""What ``accelerate launch`` has asked for, and how accelerate is told that the trainer sums gradients itself."""

import os
from functools import partial
from typing import Any

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from transformers import TrainerCallback

from corollout.errors import InputError
from corollout.hf.config import PolicyGradientConfig
from corollout.hf.replicas import Replica


def shards_weights(args: PolicyGradientConfig) -> bool:
    """Whether the optimizer is to have shards of the weights (FSDP)."""
    return args.world_size > 1 and (bool(args.fsdp) or _is_set("ACCELERATE_USE_FSDP"))


def require_supported(args: PolicyGradientConfig) -> None:
    """Raise an error if shards are asked for that are not those of FSDP2."""
    if not shards_weights(args):
        return
    given: dict[str, Any] | None = args.fsdp_plugin_args
    if given is None:  # accelerate reads the environment
        given = {"fsdp_version": os.environ.get("FSDP_VERSION", "1"), "cpu_offload": _is_set("FSDP_OFFLOAD_PARAMS")}
    if str(given.get("fsdp_version", 2)) != "2":
        raise InputError("FSDP 1 is not supported: set fsdp_version: 2 in the configuration of accelerate")
    if given.get("cpu_offload"):
        raise InputError("shards stay on their devices here: switch fsdp_offload_params off")


def set_up(accelerator: Accelerator, args: PolicyGradientConfig) -> None:
    """Have no model wrapped: forward passes are those of parts of it, and gradients are summed by a ``Replica``."""
    state = accelerator.state
    if state.distributed_type == DistributedType.DEEPSPEED:
        raise InputError("DeepSpeed is not supported: use data parallelism, or FSDP with fsdp_version: 2")
    config = accelerator.parallelism_config
    if config is not None and config.non_data_parallel_size > 1:
        raise InputError("processes divide prompts here, not tensors or sequences: leave tp, cp and sp out")
    accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)
    if shards_weights(args) and state.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate shards on other devices only, although PyTorch can do it on this one.
        given: dict[str, Any] = args.fsdp_plugin_args or {}
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**given)
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


class Exchange(TrainerCallback):
    """Has weights gathered whenever the optimizer, or a checkpoint, has changed them."""

    def __init__(self, replica: Replica):
        self._replica = replica

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._replica.attach(model)
        whole: Any = self._replica.model
        if args.gradient_checkpointing and whole is not model:
            whole.gradient_checkpointing_enable()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._replica.gather()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._replica.gather()  # load_best_model_at_end has changed them
