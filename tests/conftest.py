"""Settings of the whole test run."""

import torch

torch.set_num_threads(1)
