"""Fits as a library profile: the factors that a simulation applies, and the fits themselves for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from simulator.calibration.comparison import BandErrors, Comparison
from simulator.calibration.fit import Errors, Fit
from simulator.errors import ScenarioError

#: What ``simulator.fields.Share`` accepts at least.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What the logs were compared with: a shipped library on a topology. ``guessed_from`` says from what the topology
    was guessed, in words; empty where the user named it. gpus_per_node and generation (of the GPUs): of the topology,
    None where it has none.
    """

    base: str
    topology: str
    gpus_per_node: int | None = None
    generation: str | None = None
    guessed_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One operation on one number of ranks: its fit and, where there was something to compare with, the comparison."""

    fit: Fit
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What logs say about a library on one machine. ``shipped`` is None where the logs were compared with nothing, for
    the reason ``not_compared``. notes: what was left out of the logs.
    """

    name: str
    fits: tuple[Calibrated, ...]
    shipped: Shipped | None = None
    not_compared: str = ""
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what is odd, in the order of the fits."""
        return tuple(said for held in self.fits if held.comparison for said in held.comparison.warnings)


def placed(fit: Fit) -> str:
    """Where the ranks of a fit were, in words: ``16 ranks on 2 nodes``."""
    nodes = "" if fit.nodes is None else f" on {fit.nodes} node{'s' if fit.nodes > 1 else ''}"
    return f"{fit.ranks} ranks{nodes}"


def use(profile: Profile, file: str) -> str:
    """The command that times the first operation of a log anew with the profile in ``file``, on ranks placed alike."""
    fit, shipped = profile.fits[0].fit, profile.shipped
    assert shipped is not None, "a profile corrects something"
    words = ["simulator collective", fit.op, "--topology", shipped.topology, "--library", file, "-p", str(fit.ranks)]
    if fit.nodes is not None and fit.per_node != shipped.gpus_per_node:
        words += ["--nodes", str(fit.nodes), "--gpus-per-node", str(fit.per_node)]
    return " ".join(words)


def check_one_of_each(profile: Profile) -> None:
    """A profile holds one correction for an operation on one node, and one for several. Raises ScenarioError where logs
    give two.
    """
    seen: dict[tuple[str, str], Fit] = {}
    for held in profile.fits:
        assert held.comparison is not None, "a profile corrects something"
        other = seen.setdefault((held.fit.op, held.comparison.span), held.fit)
        if other is not held.fit:
            raise ScenarioError(
                f"{', '.join(held.fit.names)}: {held.fit.op} on {placed(held.fit)}, and in {', '.join(other.names)} on "
                f"{placed(other)}: one profile corrects an operation once on one node and once on several; write one "
                "profile for each with -o"
            )


def profile_yaml(profile: Profile) -> str:
    """The profile as YAML with units, ``model: calibrated``; no date and no path, so the same logs give the same bytes.

    Raises ScenarioError when an operation was measured twice on one node, or twice on several.
    """
    assert profile.shipped is not None, "a profile corrects something"
    check_one_of_each(profile)
    files = _files([name for held in profile.fits for name in held.fit.names])
    shipped = profile.shipped
    lines = [
        f"# {shipped.base}, corrected by `simulator calibrate` to what logs of nccl-tests show. Use it so:",
        f"#   {use(profile, 'FILE')}",
        "#   cluster: {library: FILE, ...}   in a scenario",
        "model: calibrated",
        f"name: {json.dumps(profile.name)}",
        f"title: {json.dumps(f'{shipped.base} on {shipped.topology}, corrected by {files}')}",
        f"base: {shipped.base}",
        f"topology: {json.dumps(shipped.topology)}",
        *([f"generation: {shipped.generation}"] if shipped.generation else []),
        "# [size, fitted time / time of the base]: log-linear between two sizes, flat outside. Ranks in one node (or",
        "# NVLink domain) and ranks on several have factors of their own; where there are none, the base's times stand",
        "corrections:",
        *_correction_lines(profile),
        "# for people: T(S) = alpha + S f / (busbw share(S)), f the factor of nccl-tests; between two sizes the time",
        "# is linear in the size. Errors: of the fit on the sizes that it saw and on others, of the base on all.",
        "fits:",
    ]
    for held in profile.fits:
        lines += _fit_lines(held)
    return "\n".join([*lines, f"source: {json.dumps(f'nccl-tests logs: {files}')}"]) + "\n"


def _correction_lines(profile: Profile) -> Iterator[str]:
    for op in dict.fromkeys(held.fit.op for held in profile.fits):
        yield f"  {op}:"
        found = [held.comparison for held in profile.fits if held.fit.op == op and held.comparison is not None]
        for comparison in sorted(found, key=lambda one: one.span):
            yield f"    {comparison.span}:"
            yield from (f"    - [{size:.0f} B, {factor:.10g}]" for size, factor in comparison.corrections)


def _files(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(PurePath(name).name for name in names))


def _fit_lines(held: Calibrated) -> list[str]:
    fit = held.fit
    lines = [f"- op: {fit.op}", f"  ranks: {fit.ranks}"]
    lines += [] if fit.nodes is None else [f"  nodes: {fit.nodes}"]
    lines += [] if fit.per_node is None else [f"  per_node: {fit.per_node}"]
    lines += [] if fit.device is None else [f"  device: {json.dumps(fit.device)}"]
    lines += [
        f"  alpha: {fit.alpha_s * 1e6:.6g} us",
        f"  busbw: {fit.busbw_bytes_per_s / 1e9:.6g} GB/s",
        "  efficiency:",
    ]
    for size, share in zip(fit.knots_bytes, fit.efficiency, strict=True):
        lines.append(f"  - {{size: {size:.0f} B, share: {100 * min(1.0, max(_LEAST_SHARE, share)):.6g}%}}")
    lines += [_errors_line("fitted", fit.fitted), _errors_line("held_out", fit.held_out)]
    lines += [_errors_line("base", held.comparison.shipped_all)] if held.comparison else []
    names = ", ".join(json.dumps(PurePath(name).name) for name in fit.names)
    return [*lines, f"  source: [{names}]"]


def _errors_line(name: str, errors: Errors) -> str:
    shares = ", ".join(f"{key}: {100 * getattr(errors, key):.2f}%" for key in ("median", "p90", "largest"))
    return f"  {name}: {{timings: {errors.rows}, {shares}}}"


def profile_json(profile: Profile) -> str:
    """The same in SI units. Keys:

    * ``schema_version``, ``kind`` ("calibration"), ``name``
    * ``base``, ``topology``: what the logs were compared with, null where nothing; ``guessed_from``: from what the
      topology was guessed, null where it was named; ``not_compared``: why nothing was compared, null otherwise
    * ``warnings``: what is odd about the logs; ``notes``: what was left out of them (lists of sentences)
    * ``fits``: for each operation and placement ``op, ranks, nodes, per_node, device, names, alpha_s,
      busbw_bytes_per_s, knots_bytes, efficiency, fitted_sizes_bytes``, the fit's errors ``fitted`` and ``held_out``
      ``{rows, median, p90, largest}``, and, null where nothing was compared, ``span`` (``one_node``,
      ``several_nodes``: the groups that the corrections hold for), ``corrections`` ``[[size_bytes, factor]]`` with the
      errors by band of sizes ``[{band, rows, median, p90, largest}]``: ``errors_shipped`` of the uncorrected
      profile on all timings, ``errors_shipped_held_out`` of it and ``errors_calibrated`` of the corrected profile on
      the sizes that the fit did not see
    """
    shipped = profile.shipped
    value: dict[str, Any] = {
        "schema_version": 1, "kind": "calibration", "name": profile.name,
        "base": shipped.base if shipped else None, "topology": shipped.topology if shipped else None,
        "guessed_from": (shipped.guessed_from or None) if shipped else None,
        "not_compared": profile.not_compared or None, "warnings": profile.warnings, "notes": profile.notes,
        "fits": [_fit_json(held) for held in profile.fits],
    }  # fmt: skip
    return json.dumps(value, indent=2)


def _fit_json(held: Calibrated) -> dict[str, Any]:
    found = held.comparison
    return asdict(held.fit) | {
        "span": found.span if found else None,
        "corrections": found.corrections if found else None,
        "errors_shipped": _bands_json(found.shipped) if found else None,
        "errors_shipped_held_out": _bands_json(found.shipped_held_out) if found else None,
        "errors_calibrated": _bands_json(found.calibrated) if found else None,
    }


def _bands_json(bands: Sequence[BandErrors]) -> list[dict[str, Any]]:
    return [{"band": one.band, **asdict(one.errors)} for one in bands]
