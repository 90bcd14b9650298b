"""``simulator calibrate``: a library's profile corrected by a user's own nccl-tests logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.calibration.comparison import BandErrors, Comparison
from simulator.calibration.fit import Errors, Fit, fit_samples, time_s
from simulator.calibration.log import OPERATIONS
from simulator.calibration.parse import parse_log
from simulator.calibration.profile import Calibrated, Profile, Shipped, placed, profile_json, profile_yaml, use
from simulator.calibration.samples import Samples, samples_of
from simulator.corrections import compared, correctable, guessed_topology
from simulator.errors import ScenarioError
from simulator.problems import nearest
from simulator.report.console import console
from simulator.text_file import read_text
from simulator.topology import TopologySpec
from simulator.units import format_bandwidth, format_gib, format_percent, format_time

_CALIBRATED = re.compile(r"^model:\s*calibrated\s*$", re.MULTILINE)


def calibrate(
    logs: tuple[Path, ...],
    output: Path | None,
    topology: str | None,
    op: str | None,
    ranks: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Read, fit, compare, print and write. Raises ScenarioError for a log that cannot be used, naming file and line,
    for a topology that cannot be corrected, and for an output file that something else wrote.
    """
    if ranks is not None and ranks < 2:
        raise ScenarioError(f"--ranks: {ranks}: must be at least 2")
    if output is not None and output.suffix not in {".yaml", ".yml"}:
        raise ScenarioError(f"--output: {str(output)!r}: the profile is YAML; give a name that ends in .yaml")
    if output is not None and not force:
        _keep_others(output)
    parsed = [log for path in logs for log in parse_log(str(path), read_text(path))]
    samples = samples_of(parsed, op=_operation(op), ranks=ranks)
    profile = _profile(output.stem if output else "measured", samples, topology, needed=output is not None)
    profile = replace(profile, notes=tuple(note for log in parsed for note in log.notes))
    if output is not None:
        _write(output, profile_yaml(profile))
    for kind, said in (("note", profile.notes), ("warning", profile.warnings)):
        for sentence in said:
            click.echo(f"{kind}: {sentence}", err=True)
    if as_json:
        click.echo(profile_json(profile))
        return
    out = console()
    for piece in _profile_text(profile, samples):
        out.print(piece)
    if output is not None:
        click.echo(f"{output} written; use: {use(profile, str(output))}")  # one line whatever its length, to be copied


def _profile(name: str, samples: Sequence[Samples], topology: str | None, *, needed: bool) -> Profile:
    """Fits, compared with the library of the topology that is named or guessed; where neither, with none unless that is
    needed. Raises ScenarioError.
    """
    fits = tuple(fit_samples(held) for held in samples)
    guessed_from = ""
    if topology is None:
        try:
            topology, guessed_from = guessed_topology(samples)
        except ScenarioError as error:
            if needed:
                raise
            return Profile(name=name, fits=tuple(Calibrated(fit=fit) for fit in fits), not_compared=str(error))
    spec = correctable(topology)
    return Profile(
        name=name, shipped=_shipped(spec, guessed_from),
        fits=tuple(
            Calibrated(fit=fit, comparison=compared(fit, held, spec)) for fit, held in zip(fits, samples, strict=True)
        ),
    )  # fmt: skip


def _shipped(spec: TopologySpec, guessed_from: str) -> Shipped:
    return Shipped(
        base=str(getattr(spec.library, "name", spec.library)), topology=spec.name, guessed_from=guessed_from,
        gpus_per_node=getattr(spec, "gpus_per_node", None), generation=getattr(spec.device, "generation", None),
    )  # fmt: skip


def _operation(op: str | None) -> str | None:
    """Accepts the spellings of nccl-tests and of torch. Raises ScenarioError with the nearest name."""
    if op is None:
        return None
    plain = {name.replace("_", ""): name for name in OPERATIONS.values()}
    word = op.lower().replace("-", "").replace("_", "")
    if word not in plain:
        raise ScenarioError(f"--op: {op!r}: accepted: {', '.join(OPERATIONS.values())}{nearest(op, plain.values())}")
    return plain[word]


def _keep_others(path: Path) -> None:
    """Raises ScenarioError for a file that is there and is no profile of this command's."""
    if path.is_file() and not _CALIBRATED.search(read_text(path)):
        raise ScenarioError(
            f"--output: {str(path)!r}: there is such a file, and 'simulator calibrate' did not write it (no 'model: "
            "calibrated'); give another name, or overwrite it with --force"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--output: {str(path)!r}: {error.strerror or error}") from None


def _profile_text(profile: Profile, samples: Sequence[Samples]) -> Iterator[RenderableType]:
    """What the logs were compared with, then operation after operation."""
    shipped = profile.shipped
    if shipped is None:
        yield Text(f"not compared with a shipped profile: {profile.not_compared}")
    elif shipped.guessed_from:
        yield Text(
            f"compared with '{shipped.base}' on topology '{shipped.topology}', guessed from {shipped.guessed_from} "
            "(the log does not tell the fabric); --topology NAME or FILE says otherwise"
        )
    else:
        yield Text(f"compared with '{shipped.base}' on topology '{shipped.topology}'")
    yield ""
    for held, of in zip(profile.fits, samples, strict=True):
        yield from _fit_text(held.fit, of, held.comparison, shipped.base if shipped else "")
        yield ""


def _fit_text(fit: Fit, samples: Samples, comparison: Comparison | None, base: str) -> Iterator[RenderableType]:
    """The constants in a line, every size with its residual, and the errors."""
    rate = format_bandwidth(fit.busbw_bytes_per_s, 4)
    yield Text(f"{fit.op}, {placed(fit)}: alpha {format_time(fit.alpha_s, 3)}, busbw {rate}", style="bold")
    table = Table(box=None, pad_edge=False)
    for name in ("size", "efficiency", "measured", "fitted", "error", *([f"{base} error"] if comparison else []), ""):
        table.add_column(name, justify="right")
    knots = dict(zip(fit.knots_bytes, fit.efficiency, strict=True))
    predicted = time_s(fit, samples.sizes_bytes)
    for row, (size, measured) in enumerate(zip(samples.sizes_bytes.tolist(), samples.times_s.tolist(), strict=True)):
        fitted = float(predicted[row])
        table.add_row(
            format_gib(size), format_percent(knots[size]) if size in knots else "", format_time(measured),
            format_time(fitted), _signed(fitted / measured - 1),
            *([_signed(comparison.shipped_times_s[row] / measured - 1)] if comparison else []),
            "" if size in fit.fitted_sizes_bytes else "held out",
        )  # fmt: skip
    yield table
    for name, errors in (("sizes fitted", fit.fitted), ("sizes held out", fit.held_out)):
        yield Text(
            f"{name}: {errors.rows} timings, error {format_percent(errors.median)} median, "
            f"{format_percent(errors.p90)} p90, {format_percent(errors.largest)} largest"
        )
    if comparison:
        yield _bands_table(comparison, base)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _bands_table(comparison: Comparison, base: str) -> Table:
    """Errors by band of sizes, median / 90th percentile: uncorrected, and after calibration on sizes held out."""
    table = Table(box=None, pad_edge=False, title="error, median / p90", title_justify="left", title_style="")
    columns = (
        (f"{base}, all sizes", comparison.shipped), (f"{base}, sizes held out", comparison.shipped_held_out),
        ("calibrated, sizes held out", comparison.calibrated),
    )  # fmt: skip
    table.add_column("sizes")
    for title, _ in columns:
        table.add_column(title, justify="right")
    for band in dict.fromkeys(one.band for one in comparison.shipped):
        table.add_row(band, *(_band_cell(band, found) for _, found in columns))
    return table


def _band_cell(band: str, found: Sequence[BandErrors]) -> str:
    errors: Errors | None = next((one.errors for one in found if one.band == band), None)
    if errors is None:
        return "-"
    return f"{format_percent(errors.median)} / {format_percent(errors.p90)} of {errors.rows}"
