"""Model FLOP per token by the conventions in use, and how long a budget of them takes.

Three definitions of model FLOP utilisation are compared as if they were one: ``6 N`` (Kaplan et al. 2020,
arXiv:2001.08361), ``6 N + 12 L d s`` with the attention scores of the *full* matrix (PaLM, arXiv:2204.02311,
appendix B), and the latter without embedding parameters (torchtitan). A report names the one it uses. Of a mixture of
experts N are the *active* parameters, those that a token passes (torchtitan's ``nparams_sparse_active``).
"""

from __future__ import annotations

from simulator.training.operations import TrainingModel

OPERATIONS = "operations"
CONVENTIONS = ("6N", "6N+attention", "6N-no-embedding+attention")


def convention_for(model: TrainingModel, asked: str) -> str:
    """The convention that fits the model: what was asked for a transformer, its operations' own FLOP otherwise."""
    return asked if model.attention_size else OPERATIONS


def attention_flop_per_token(model: TrainingModel) -> float:
    """``12 L d s``: forward and backward of scores and values over the full matrix; d = heads x head size.

    s is the sequence, or the window of layers that look no further back (the mean over layers).
    """
    return 12.0 * model.num_layers * model.attention_size * (model.attention_span or model.seq_len)


def model_flop_per_token(model: TrainingModel, convention: str) -> float:
    """FLOP of one token's forward and backward pass by one of ``CONVENTIONS``.

    ``OPERATIONS`` is for models that are no transformers (a convolution uses each weight many times, so 6 N says
    nothing): the FLOP of the operations themselves, per sample.
    """
    if convention == OPERATIONS:
        return (model.forward_flop + model.backward_flop) / model.tokens
    if convention == "6N":
        return 6.0 * model.num_active_parameters
    if convention == "6N+attention":
        return 6.0 * model.num_active_parameters + attention_flop_per_token(model)
    assert convention == "6N-no-embedding+attention", convention
    return 6.0 * (model.num_active_parameters - model.num_embedding_parameters) + attention_flop_per_token(model)


def model_flop_utilisation(flop_per_token: float, tokens_per_s_per_gpu: float, peak_flop_per_s: float) -> float:
    """MFU = FLOP per token x tokens per second per GPU / peak of one GPU (dense)."""
    return flop_per_token * tokens_per_s_per_gpu / peak_flop_per_s


def training_flop(num_parameters: float, num_tokens: float) -> float:
    """``6 N D``: a multiply-add for each parameter and token in forward, two in backward."""
    return 6.0 * num_parameters * num_tokens


def training_time_s(flop: float, peak_flop_per_s: float, utilisation: float, num_gpus: int = 1) -> float:
    """Seconds to execute ``flop`` on ``num_gpus`` at a model FLOP utilisation between 0 and 1."""
    return flop / (peak_flop_per_s * utilisation * num_gpus)
