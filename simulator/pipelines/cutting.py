"""How many layers each stage of a pipeline has."""

from __future__ import annotations


def even_layers(layers: int, count: int, *, slots: bool = False) -> tuple[int, ...]:
    """Layers of each of ``count`` stages; the first ones have one more where they do not come out even (torchtitan,
    ``generate_llm_fqn_per_model_part``). slots: embedding and head each take the place of a layer.
    """
    total = layers + (2 if slots else 0)
    each, more = divmod(total, count)
    sizes = [each + (1 if number < more else 0) for number in range(count)]
    if slots:
        sizes[0] -= 1
        sizes[-1] -= 1
    return tuple(sizes)
