"""The log-likelihood of references given their prompts, with each prompt computed once for all of its references."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

_IGNORED = -100


class Group(NamedTuple):
    """A prompt and some of its references as token ids; a reference ends with eos."""

    prompt: list[int]
    references: list[list[int]]

    @property
    def length(self) -> int:
        return len(self.prompt) + sum(map(len, self.references))


class Loss(NamedTuple):
    """The sum of −ln π(token) over the tokens of references, and their number."""

    total: Tensor
    tokens: int


def split_references(group: Group, most: int) -> Iterator[Group]:
    """Groups with the same prompt and at most so many references each."""
    for start in range(0, len(group.references), most):
        yield Group(group.prompt, group.references[start : start + most])


def causal_loss(model: Any, groups: Sequence[Group]) -> Loss:
    """A row is a prompt followed by its references, each of which sees the prompt and itself, but no other.

    Positions of every reference begin after the prompt, so the result equals that of a row for each reference. The
    first token of each is predicted at the last token of the prompt.
    """
    length = max(group.length for group in groups)
    tokens, positions, parts = (torch.zeros(len(groups), length, dtype=torch.long) for _ in range(3))
    parts[:] = -1  # padding; 0 is the prompt, 1 and above are references
    rows, predictors, targets = [], [], []
    for row, (prompt, references) in enumerate(groups):
        start = len(prompt)
        tokens[row, :start], positions[row, :start], parts[row, :start] = torch.tensor(prompt), torch.arange(start), 0
        for number, reference in enumerate(references, 1):
            end = start + len(reference)
            tokens[row, start:end] = torch.tensor(reference)
            positions[row, start:end] = len(prompt) + torch.arange(len(reference))
            parts[row, start:end] = number
            rows += [row] * len(reference)
            predictors += [len(prompt) - 1, *range(start, end - 1)]
            targets += reference
            start = end
    before = torch.ones(length, length, dtype=torch.bool).tril()
    visible = (parts[:, None, :] == 0) | (parts[:, None, :] == parts[:, :, None])
    mask = (visible & before)[:, None]
    hidden = model.base_model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)[0]
    logits = model.lm_head(hidden[rows, predictors])
    return Loss(cross_entropy(logits, torch.tensor(targets), reduction="sum"), len(targets))


def seq2seq_loss(model: Any, groups: Sequence[Group]) -> Loss:
    """The encoder reads each prompt once; its states are repeated for the references."""
    prompts = _padded([group.prompt for group in groups], 0)
    mask = _padded([[1] * len(group.prompt) for group in groups], 0)
    counts = torch.tensor([len(group.references) for group in groups])
    states = model.get_encoder()(input_ids=prompts, attention_mask=mask)[0].repeat_interleave(counts, 0)
    labels = _padded([reference for group in groups for reference in group.references], _IGNORED)
    output = model(
        encoder_outputs=(states,),
        attention_mask=mask.repeat_interleave(counts, 0),
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
        use_cache=False,
    )
    total = cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, reduction="sum")
    return Loss(total, int((labels != _IGNORED).sum()))


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
