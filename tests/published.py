"""Figures other people published, which tests hold the simulator against: value, unit, source, tolerance.

``tolerance`` is relative; 0 means exact.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published number."""

    value: float
    unit: str
    source: str
    tolerance: float = 0.0


def _cards(source: str, counts: dict[str, int]) -> dict[str, Published]:
    return {name: Published(value=count, unit="parameters", source=source) for name, count in counts.items()}


# The totals that other people's files state too (found 2026-11 in public repositories: Hugging Face API answers, GGUF
# headers, test constants), so agreement is independent evidence.
STATED_ELSEWHERE = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
}
# Arithmetic on each config.json, typed by hand; the model cards give rounded counts only as far as we looked. These
# guard against a change of ours, they do not confirm us. Hugging Face's total for Llama-2-70B is 5,120 larger, which
# is as many as its 80 layers have values in rotary buffers of 64; buffers are not parameters.
FROM_CONFIG = {
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "qwen3-32b": 32_762_123_264,
}
# What transformers 5.24 builds from the config.json on the meta device; the hub's safetensors have as many (DeepSeek-V3
# 14,848 more: the biases that balance its experts, which are no parameters).
BUILT_BY_TRANSFORMERS = {
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_404_352,
}
# 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) of the paper (equation 2), and the final norm of 2 h that it leaves out;
# its table 1 rounds to 174.6 and 1,008.0 billion, table 3 of the second paper to 22 and 530.
MEGATRON = {
    "megatron-22b": 22_074_273_792,
    "gpt-3-175b": 174_615_846_912,
    "megatron-530b": 529_600_819_200,
    "megatron-1t": 1_008_038_758_400,
}
PARAMETERS = (
    _cards("arXiv:2104.04473, equation 2; arXiv:2205.05198, table 3", MEGATRON)
    | _cards("arXiv:2211.05100, table 3, and the hub's safetensors", {"bloom-176b": 176_247_271_424})
    | _cards("total parameters as stated in public files of others", STATED_ELSEWHERE)
    | _cards("our arithmetic on config.json", FROM_CONFIG)
    | _cards("transformers 5.24, AutoModelForCausalLM.from_config", BUILT_BY_TRANSFORMERS)
    | _cards("torchvision resnet18 documentation, num_params", {"resnet-18": 11_689_512})
    | _cards("Stanford CS336 lecture 7: 8.4 M parameters in 34 tensors (head ours)", {"cs-mlp-8x1024": 8_423_434})
)

RESNET18_GMAC = Published(
    value=1.814e9, unit="multiply-adds per image", source="torchvision resnet18 documentation, 1.81 GFLOPS (as MAC)",
    tolerance=0.005,
)  # fmt: skip

YEARS_FOR_405B = Published(
    value=3_044, unit="years on one H100", source="CS336 lecture 7: 3.8e25 FLOP at 40% of 989 TFLOP/s (3,000 there)",
    tolerance=0.005,
)  # fmt: skip

ZERO_DDP_7_5B = Published(value=120e9, unit="bytes", source="ZeRO, arXiv:1910.02054, table 1: 7.5B, 64 GPUs")
ZERO_DDP_100B = Published(value=1_600e9, unit="bytes", source="CS336 lecture 7: 100B parameters on 64 GPUs, DDP")
LARGEST_DDP = Published(
    value=6.7e9, unit="parameters", source="CS336 lecture 7: 8 x 80 GB at 12 B/param", tolerance=0.01
)
FMS_7B_A100 = Published(
    value=4_550, unit="tokens/s/GPU", tolerance=0.10,
    source="foundation-model-stack/fms-fsdp README: Llama-2-7B, 128 A100 80 GB, HSDP, seq 4096, batch 2, compiled",
)  # fmt: skip
INTERNLM_7B_A100 = Published(
    value=4_103, unit="tokens/s/GPU", tolerance=0.12,
    source="InternLM/InternEvo: 7B (Llama shape, vocabulary 103,168), 8 A100 80 GB, seq 2048, batch 2 x 4",
)  # fmt: skip
