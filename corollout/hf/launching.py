"""What ``accelerate launch`` has asked for, and how accelerate is told that the trainer sums gradients itself."""

import os
from functools import partial
from typing import Any

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import TrainerCallback

from corollout.errors import InputError
from corollout.hf.config import PolicyGradientConfig
from corollout.hf.replicas import Replica


def shards_weights(args: PolicyGradientConfig) -> bool:
    """Whether the optimizer is to have shards of the weights (FSDP)."""
    is_asked = bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes")
    return args.world_size > 1 and is_asked


def set_up(accelerator: Accelerator, args: PolicyGradientConfig) -> None:
    """Have no model wrapped: forward passes are those of parts of it, and gradients are summed by a ``Replica``."""
    state = accelerator.state
    if state.distributed_type == DistributedType.DEEPSPEED:
        raise InputError("DeepSpeed is not supported: use data parallelism, or FSDP with fsdp_version 2")
    config = accelerator.parallelism_config
    if config is not None and config.non_data_parallel_size > 1:
        raise InputError("processes divide prompts here, not tensors or sequences: leave tp, cp and sp out")
    accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)
    if not shards_weights(args):
        return
    if state.distributed_type == DistributedType.MULTI_CPU:  # accelerate shards on other devices only
        given: dict[str, Any] = args.fsdp_plugin_args or {}
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**given)
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    plugin: Any = state.fsdp_plugin
    if plugin.fsdp_version != 2:
        raise InputError("FSDP 1 is not supported: set fsdp_version: 2 in the configuration of accelerate")
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        raise InputError("shards stay on their devices here: switch fsdp_offload_params off")


class Exchange(TrainerCallback):
    """Has weights gathered after each step of the optimizer."""

    def __init__(self, replica: Replica):
        self._replica = replica

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._replica.attach(model)
        whole: Any = self._replica.model
        if args.gradient_checkpointing and whole is not model:
            whole.gradient_checkpointing_enable()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._replica.gather()
