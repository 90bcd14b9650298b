"""The command line: exit codes, one line per error, JSON that keeps its contract, and a start that stays fast."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, Result, plain_environment, python, simulator
from pytest_benchmark.fixture import BenchmarkFixture

from simulator import __version__
from simulator.cli import COMMANDS, collective
from simulator.cli import schema as schema_command
from simulator.cli.implementation import implementation
from simulator.collectives import ALGORITHMS, AUTO, OPERATIONS
from simulator.engine.collective import FIDELITIES
from simulator.engine.pricer import LIBRARY
from simulator.errors import DeadlockError, InternalError
from simulator.schema import SCHEMAS

STEP = "ddp-llama-1b-16xh100"
SMALL = "mlp-bucketed"
COLLECTIVE = "all-reduce-tpu-v5p-torus"
HEAVY = {"numpy", "pydantic", "networkx", "simpy", "yaml", "rich", "matplotlib"}


def lines_of(error: str) -> list[str]:
    assert "Traceback" not in error
    return error.splitlines()


def refused(result: Result, *words: str) -> None:
    """Exit code 2, nothing on stdout, and nothing but lines that start with 'error: ' on stderr."""
    assert (result.code, result.out) == (2, "")
    lines = lines_of(result.err)
    assert lines
    assert all(line.startswith("error: ") for line in lines), result.err
    for word in words:
        assert word in result.err


# ---- exit codes ------------------------------------------------------------------------------------------------------


def test_answer_that_holds_ends_with_0() -> None:
    assert simulator("run", SMALL).code == 0


def test_step_that_does_not_fit_ends_with_1_and_a_full_report() -> None:
    result = simulator("run", "llama-8b-does-not-fit")
    assert result.code == 1
    assert "FAIL memory" in result.out
    assert "Step time" in result.out


def test_broken_limit_ends_with_1() -> None:
    result = simulator("run", SMALL, "limits.exposed=1%")
    assert result.code == 1
    assert "FAIL exposed communication" in result.out


@pytest.mark.parametrize("fault", [InternalError("faster than light"), DeadlockError("rank 3 waits")])
def test_broken_law_of_ours_ends_with_3_and_its_message(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def schema() -> dict[str, Any]:
        raise fault

    monkeypatch.setitem(SCHEMAS, "device", schema)
    result = simulator("schema", "device")
    assert (result.code, result.out, result.err) == (3, "", f"error: {fault}\n")


def test_bug_ends_with_3_asks_for_a_report_and_shows_a_traceback_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SCHEMAS, "device", lambda: {}["nothing"])
    result = simulator("schema", "device")
    assert (result.code, result.out) == (3, "")
    assert lines_of(result.err)[0] == "internal error: KeyError: 'nothing'"
    assert "SIMULATOR_DEBUG=1" in result.err
    with pytest.raises(KeyError, match="nothing"):
        simulator("schema", "device", environment={"SIMULATOR_DEBUG": "1"})


# ---- bad input -------------------------------------------------------------------------------------------------------

GOOD = """\
cluster: {topology: uniform, nodes: 2}
model: {preset: gpt2}
train: {seq_len: 128, micro_batch: 1}
"""
BAD_FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("empty",)),
    "only a comment": (b"# nothing\n", ("empty",)),
    "binary": (bytes(range(256)), ("binary",)),
    "latin-1": ("cluster: {topology: caf\xe9}\n".encode("latin-1"), ("UTF-8", "0xe9")),
    "syntax": (b"cluster: [\n", (":2:", "not valid YAML")),
    "a list": (b"- cluster\n", ("key: value",)),
    "duplicate key": (GOOD.encode() + b"train: {seq_len: 1, micro_batch: 1}\n", (":4:", "duplicate key", "line 3")),
    "misspelt key": (GOOD.encode().replace(b"micro_batch", b"micro_bacth"), (":3:", "micro_bacth", "'micro_batch'")),
    "bare number for a size": (GOOD.encode() + b"parallel: {bucket_cap: 25}\n", (":4:", "has no unit", "25 MiB")),
    "bits for bytes": (GOOD.encode() + b"parallel: {bucket_cap: 25 Mb}\n", (":4:", "parallel.bucket_cap", "25 Mb")),
    "yes for a number": (GOOD.encode().replace(b"128", b"yes"), (":3:", "train.seq_len")),
    "exponent without a dot": (GOOD.encode().replace(b"128", b"1e3"), (":3:", "train.seq_len", "1e3")),
    "sexagesimal": (GOOD.encode().replace(b"128", b"12:30"), (":3:", "train.seq_len", "12:30")),
    "not a number": (GOOD.encode().replace(b"128", b".nan"), (":3:", "train.seq_len")),
    "zero": (GOOD.encode().replace(b"128", b"0"), (":3:", "train.seq_len")),
    "unknown topology": (GOOD.encode().replace(b"uniform", b"unifrom"), (":1:", "unifrom", "'uniform'")),
    "unknown preset": (GOOD.encode().replace(b"gpt2", b"gpt3"), (":2:", "gpt3", "'gpt2'")),
    "topology file that is not there": (GOOD.encode().replace(b"uniform", b"./no.yaml"), (":1:", "no.yaml")),
    "model without training": (GOOD.encode()[: GOOD.index("train")], ("train",)),
    "unknown strategy": (GOOD.encode() + b"parallel: {strategy: zero4}\n", (":4:", "zero4", "'zero3'")),
    "key that the strategy does not read": (
        GOOD.encode() + b"parallel: {strategy: fsdp, bucket_cap: 25 MiB}\n",
        (":4:", "parallel.bucket_cap", "fsdp"),
    ),
    "tensor parallel": (
        GOOD.encode() + b"parallel: {tp: 5}\n",
        (":4:", "parallel.tp", "tp 5 = 5 ranks of a replica do not divide"),
    ),
    "aliases that explode": (
        b"a0: &a0 x\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 9)),
        ("more than 100,000 values",),
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_refused_with_file_line_and_what_is_accepted(case: str, tmp_path: Path) -> None:
    content, words = BAD_FILES[case]
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    refused(simulator("run", str(path)), "bad.yaml", *words)


def test_all_errors_of_a_file_come_together(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("128", "0").replace("nodes: 2", "nodes: -1") + "foo: 1\n", encoding="utf-8")
    result = simulator("run", str(path))
    refused(result, "cluster.nodes", "train.seq_len", "foo")
    assert len(lines_of(result.err)) == 3


def test_missing_file_folder_and_unreadable_names_are_refused(tmp_path: Path) -> None:
    refused(simulator("run", "ddp-llama-1b"), "did you mean 'ddp-llama-1b-16xh100'", "no such file")
    refused(simulator("run", str(tmp_path / "no.yaml")), "no.yaml", "no such file")
    refused(simulator("run", str(tmp_path)), "is a directory")
    refused(simulator("run", "a\0b"), "a")
    refused(simulator("run", ""), STEP)


BAD_ARGUMENTS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("run", STEP, "train.micro_bacth=2"), ("override", "did you mean 'micro_batch'")),
    (("run", STEP, "train.micro_batch=0"), ("train.micro_batch", "0")),
    (("run", STEP, "train.micro_batch=x"), ("train.micro_batch", "x")),
    (("run", STEP, "nonsense"), ("nonsense", "key=value")),
    (("run", STEP, "=1"), ("=1",)),
    (("run", STEP, "cluster.topology=dgx-h10"), ("did you mean 'dgx-h100'",)),
    (("run", STEP, "model.preset=llama-3-9b"), ("did you mean 'llama-3-8b'",)),
    (("run", STEP, "parallel.algorithm=rign"), ("parallel.algorithm", "did you mean 'ring'")),
    (("run", STEP, "parallel.bucket_cap=25"), ("has no unit", "25 MiB")),
    (("run", STEP, "train.precision=fp8"), ("train.precision", "bf16-mixed")),
    (("run", STEP, "cluster.nodes=1000000000"), ("1000000000",)),
    (("run", STEP, "cluster.nodes=100000"), ("131,072",)),
    (("run", STEP, "engine.fidelity=message", "cluster.nodes=16"), ("at most 64", "128")),
    (("run", STEP, "--trace", "/no/such/folder/x.json"), ("--trace", "/no/such/folder/x.json")),
    (("run", COLLECTIVE, "--trace", "x.json"), ("--trace",)),
    (("run", COLLECTIVE, "collective.op=all_redux"), ("did you mean 'all_reduce'",)),
    (("run", COLLECTIVE, "collective.ranks=65"), ("collective.ranks", "64")),
    (("run", COLLECTIVE, "collective.size=1.5 B"), ("collective.size", "whole number")),
    (("collective", "all_redux"), ("did you mean 'all_reduce'",)),
    (("collective", "all_redux", "--algo", "all"), ("did you mean 'all_reduce'",)),
    (("collective", "all_redux", "--algo", "ring"), ("did you mean 'all_reduce'",)),
    (("collective", "all_reduce", "--algo", "rign"), ("did you mean 'ring'",)),
    (("collective", "all_reduce", "--algo", ""), ("--algo",)),
    (("collective", "all_to_all", "--algo", "ring"), ("ring", "pairwise")),
    (("collective", "all_reduce", "-p", "0"), ("-p", "0")),
    (("collective", "all_reduce", "-p", "4,x"), ("-p", "x")),
    (("collective", "all_reduce", "-b", "5q"), ("-b", "5q", "25 MiB")),
    (("collective", "all_reduce", "-b", "1G", "-e", "1K"), ("-e", "smaller")),
    (("collective", "all_reduce", "-b", "1", "-e", "1K", "-f", "1"), ("-f", "above 1")),
    (("collective", "all_reduce", "-b", "1", "-e", "1K", "-f", "nan"), ("-f", "nan")),
    (("collective", "all_reduce", "--alpha", "5"), ("--alpha", "has no unit", "5 us")),
    (("collective", "all_reduce", "--alpha", "-5us"), ("--alpha", "-5us")),
    (("collective", "all_reduce", "--bandwidth", "0 GB/s"), ("--bandwidth", "0 GB/s")),
    (("collective", "all_reduce", "--bandwidth", "50 GB"), ("--bandwidth", "50 GB/s")),
    (("collective", "all_reduce", "--topology", "dgx-h100", "--alpha", "5us"), ("--alpha", "uniform")),
    (("collective", "all_reduce", "--topology", "nope"), ("nope", "dgx-h100")),
    (("collective", "all_reduce", "--topology", "tpu-v5p", "-p", "65"), ("65", "64")),
    (("collective", "broadcast", "-p", "4", "--root", "4", "--algo", "tree"), ("--root", "0 .. 3")),
    (("collective", "all_reduce", "-p", "32", "--show-steps"), ("--show-steps", "16 ranks")),
    (("collective", "all_reduce", "-p", "4", "--plot", "x.bmp"), ("--plot", ".png")),
    (("collective", "all_reduce", "-p", "4", "--plot", "/no/such/folder/x.png"), ("--plot", "x.png")),
    (("topology", "dgx-h10"), ("did you mean 'dgx-h100'",)),
    (("topology", "dgx-h100", "--nodes", "0"), ("nodes", "0")),
    (("topology", "dgx-h100", "--shape", "4x4"), ("shape", "nodes")),
    (("topology", "tpu-v5p", "--shape", "4x4x4x4"), ("--shape", "4x4x4")),
    (("topology", "dgx-h100", "--svg", "/no/such/folder/x.svg"), ("--svg", "x.svg")),
    (("sweep", "nope", "train.micro_batch=1,2"), ("nope",)),
    (("sweep", STEP, "train.micro_bacth=1,2"), ("did you mean 'micro_batch'",)),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS, ids=[" ".join(case) for case, _ in BAD_ARGUMENTS])
def test_bad_arguments_are_refused_with_the_culprit_and_what_is_accepted(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(simulator(*arguments), *words)
    assert not list(tmp_path.iterdir()), "a refused command left a file"


USAGE: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("frobnicate",), ("frobnicate", "run, check, compare, collective")),
    (("colective",), ("Did you mean 'collective'",)),
    (("run",), ("SCENARIO",)),
    (("run", SMALL, "--jsn"), ("--jsn", "--json")),
    (("collective",), ("OP",)),
    (("collective", "all_reduce", "extra"), ("extra",)),
    (("collective", "all_reduce", "--json", "--csv"), ("--json", "--csv")),
    (("topology", "dgx-h100", "--nodes", "x"), ("--nodes", "x")),
    (("schema", "nope"), ("nope", "scenario")),
    (("sweep", SMALL), ("KEY=VALUE",)),
    (("sweep", SMALL, "train.micro_batch=1,2", "--jobs", "0"), ("--jobs",)),
    (("demo", "extra"), ("extra",)),
]


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=[" ".join(case) for case, _ in USAGE])
def test_wrong_usage_is_one_line_that_says_where_help_is(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = simulator(*arguments)
    refused(result, *words, "--help")
    assert len(lines_of(result.err)) == 1


# ---- what is printed -------------------------------------------------------------------------------------------------


def test_run_json_keeps_its_contract() -> None:
    found = json.loads(simulator("run", STEP, "--json").out)
    assert (found["schema_version"], found["kind"]) == (1, "step")
    assert set(found["breakdown_s"]) == {"compute", "exposed_comm", "bubble", "optimizer", "other"}
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-9)
    assert found["comm_hidden_s"] + found["breakdown_s"]["exposed_comm"] == pytest.approx(found["comm_total_s"])
    assert 0 < found["mfu"] < 1
    assert found["mfu_definition"] == "6N+attention"
    assert found["tokens_per_s_per_gpu"] == pytest.approx(2 * 4096 / found["step_time_s"])
    memory = found["memory"]
    assert {"params", "grads", "optimizer", "activations", "gathered", "buffers", "workspace"} == set(
        memory["by_kind_bytes"]
    )
    assert sum(memory["by_kind_bytes"].values()) == pytest.approx(memory["peak_bytes"])
    assert memory["fits"] is (memory["peak_bytes"] <= memory["capacity_bytes"])
    for use in found["collectives"]:
        assert set(use) >= {
            "op", "axis", "group_size", "message_bytes", "count", "algorithm", "protocol", "time_s", "exposed_s",
            "wire_bytes_per_rank",
        }  # fmt: skip
    assert sum(use["message_bytes"] * use["count"] for use in found["collectives"]) == 4 * found["num_parameters"]
    assert all(set(link) == {"link", "utilization", "bytes"} for link in found["links"])
    assert set(found["engine"]) >= {"wall_s", "events", "fidelity", "ranks_simulated", "ranks_total"}
    assert found["engine"]["ranks_total"] == 16


@pytest.mark.parametrize("variant", ["bucketed", "per_parameter", "none"])
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_breakdown_adds_up_to_the_step(variant: str, nodes: str) -> None:
    found = json.loads(
        simulator("run", SMALL, f"parallel.overlap={variant}", f"cluster.nodes={nodes}", "--json").out
    )  # fmt: skip
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-9)
    assert min(found["breakdown_s"].values()) >= 0
    assert found["interference_s"] >= 0


def test_text_and_json_of_a_run_tell_the_same_step() -> None:
    found = json.loads(simulator("run", STEP, "--json").out)
    text = simulator("run", STEP).out
    assert f"{found['step_time_s'] * 1e3:.1f} ms" in text
    assert f"{100 * found['mfu']:.1f} %" in text


def test_collective_json_and_csv_have_the_same_rows() -> None:
    arguments = ("collective", "all_reduce", "-p", "4,64", "-b", "1K", "-e", "1M", "-f", "32", "--algo", "ring,tree")
    found = json.loads(simulator(*arguments, "--json").out)
    assert (found["schema_version"], found["kind"]) == (1, "collective")
    assert len(found["rows"]) == 2 * 3 * 2
    for row in found["rows"]:
        assert set(row) >= {
            "op", "p", "size_bytes", "algorithm", "protocol", "time_s", "algbw_bytes_per_s", "busbw_bytes_per_s",
            "steps", "wire_bytes_per_rank", "fidelity",
        }  # fmt: skip
        assert row["busbw_bytes_per_s"] == pytest.approx(2 * (1 - 1 / row["p"]) * row["size_bytes"] / row["time_s"])
    table = list(csv.DictReader(io.StringIO(simulator(*arguments, "--csv").out)))
    assert [float(row["time_s"]) for row in table] == [row["time_s"] for row in found["rows"]]


def test_ring_against_tree_prints_the_lectures_crossover() -> None:
    # 57 a b / (6 - 63/64) bytes at p = 64, a = 5 us, b = 50 GB/s; CS336 lecture 7 says about 2.8 MB
    result = simulator("collective", "all_reduce", "-p", "64", "-b", "1K", "-e", "1G", "--algo", "ring,tree")
    assert "2.84 MB" in result.out
    (cross,) = json.loads(
        simulator(
            "collective", "all_reduce", "-p", "64", "-b", "1K", "-e", "1G", "--algo", "ring,tree", "--json"
        ).out
    )["crossovers"]  # fmt: skip
    assert (cross["below"], cross["above"]) == ("tree", "ring")
    assert cross["size_bytes"] == pytest.approx(57 * 5e-6 * 50e9 / (6 - 63 / 64), rel=1e-6)


def test_show_steps_prints_the_ring_of_the_lecture() -> None:
    out = simulator("collective", "all_reduce", "-p", "4", "-b", "32", "--algo", "ring", "--show-steps").out
    step_3 = out[out.index("step 3") : out.index("step 4")]
    for line in ("rank 0: [0, 10, 11, 9]", "rank 1: [1, 2, 14, 13]", "rank 2: [3, 5, 4, 18]", "rank 3: [6, 9, 9, 6]"):
        assert line in step_3
    assert out[out.index("step 6") :].count("[6, 10, 14, 18]") == 4


@pytest.mark.parametrize("root", ["0", "2"])
def test_table_names_the_root_that_was_asked_for(root: str) -> None:
    out = simulator("collective", "broadcast", "-p", "4", "-b", "1K", "--algo", "tree", "--root", root).out
    header, row = (line.split() for line in out.splitlines()[-2:])
    assert row[header.index("root")] == root


def test_plot_and_picture_are_written(tmp_path: Path) -> None:
    plot, picture = tmp_path / "x.svg", tmp_path / "y.svg"
    result = simulator(
        "collective", "all_reduce", "-p", "4,64", "-b", "1K", "-e", "1M", "--algo", "ring,tree", "--plot", str(plot)
    )  # fmt: skip
    assert result.code == 0
    assert "<svg" in plot.read_text(encoding="utf-8")
    assert simulator("topology", "dgx-h100", "--svg", str(picture)).code == 0
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_trace_is_written_beside_the_report(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    result = simulator("run", SMALL, "--trace", str(path))
    assert result.out == simulator("run", SMALL).out
    assert json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_prints_json(kind: str) -> None:
    assert json.loads(simulator("schema", kind).out)["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_topology_json_and_list() -> None:
    assert json.loads(simulator("topology", "dgx-h100", "--json").out)["tiers"]
    listed = simulator("topology", "--list").out
    for path in (ROOT / "topologies").glob("*.yaml"):
        assert path.stem in listed


def test_demo_shows_question_answer_and_what_to_try_and_these_commands_work() -> None:
    result = simulator("demo")
    assert result.code == 0
    assert "train: {seq_len: 4096" in result.out
    assert "Step time" in result.out
    tries = [line.split("#")[0].split() for line in result.out.splitlines() if line.startswith("  simulator run")]
    assert len(tries) >= 3
    for _, *arguments in tries:
        assert simulator(*arguments).code in (0, 1)
    assert json.loads(simulator("demo", "--json").out)["kind"] == "step"


def test_sweep_gives_a_row_for_every_combination(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = ("sweep", SMALL, "parallel.bucket_cap=1 MiB,25 MiB", "cluster.nodes=1,2", "--jobs", "1")
    result = simulator(*arguments, "--out", str(out), "--csv")
    assert result.code == 0
    assert len(list(csv.DictReader(io.StringIO(result.out)))) == 4
    assert len(out.read_text(encoding="utf-8").splitlines()) >= 4


def test_version_and_module_and_command_are_the_same_program() -> None:
    assert __version__ in simulator("--version").out
    assert python("-m", "simulator", "--version").out == simulator("--version").out


def test_help_names_every_command_and_every_command_has_help() -> None:
    out = simulator("--help").out
    for name, command in COMMANDS.items():
        assert name in out
        assert command.short_help
        assert command.short_help.split()[0] in out
        assert "Usage: simulator " + name in simulator(name, "--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_accepts_is_what_its_implementation_takes(name: str) -> None:
    taken = inspect.signature(implementation(name)).parameters
    assert [parameter.name for parameter in COMMANDS[name].params] == list(taken)


def test_names_that_help_and_choices_spell_out_are_those_of_the_tables() -> None:
    assert collective.OPERATIONS == OPERATIONS
    assert tuple(dict.fromkeys(name for _, name in ALGORITHMS)) == collective.ALGORITHMS
    assert (FIDELITIES[0], LIBRARY, *FIDELITIES[1:]) == collective.FIDELITIES
    assert tuple(sorted(SCHEMAS)) == schema_command.KINDS
    (algo,) = (parameter for parameter in collective.collective.params if parameter.name == "algo")
    assert algo.default == AUTO


def test_no_colour_code_without_a_terminal_and_none_with_no_color() -> None:
    assert "\x1b" not in simulator("run", SMALL).out
    forced = {"FORCE_COLOR": "1"}
    assert "\x1b[32m" in simulator("run", SMALL, environment=forced).out
    assert "\x1b[32m" not in simulator("run", SMALL, environment=forced | {"NO_COLOR": "1"}).out


# ---- the process -----------------------------------------------------------------------------------------------------

PRINT_MODULES = """
import contextlib, sys
from simulator.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


LIGHT: list[tuple[str, ...]] = [
    ("--help",), ("--version",), ("frobnicate",),
    *((name, "--help") for name in COMMANDS),
    ("run",), ("collective", "all_reduce", "--fidelity", "x"), ("sweep", SMALL), ("topology", "--nodes", "x"),
    ("demo", "extra"), ("schema", "nope"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_help_and_wrong_usage_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    imported = set(python("-c", PRINT_MODULES, *arguments).err.splitlines()[-1].split())
    assert "click" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("simulator ", list(COMMANDS)),
        ("simulator sweep s.yaml --ret", ["--retry-failed"]),
        ("simulator collective all_reduce --fidelity l", ["library", "lockstep"]),
        ("simulator schema ", sorted(SCHEMAS)),
    ],
)
def test_shell_completes_without_importing_anything_heavy(words: str, offered: list[str]) -> None:
    asked = {"_SIMULATOR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = python("-c", PRINT_MODULES, environment=asked)
    assert result.out.split() == [f"plain,{word}" for word in offered]
    assert not set(result.err.split()) & HEAVY


@pytest.mark.slow
def test_run_imports_no_plotting() -> None:
    assert "matplotlib" not in python("-c", PRINT_MODULES, "run", SMALL).err.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("collective", "all_reduce", "-p", "4", "-b", "1K", "-e", "1G", "-f", "1.005", "--csv"),
        ("schema",),
        ("run", SMALL),
    ],
    ids=lambda arguments: arguments[0],
)
def test_reader_that_leaves_early_ends_the_command_in_silence(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    environment = plain_environment() | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "simulator", *arguments], stdout=write, stderr=subprocess.PIPE, env=environment
    ) as process:  # fmt: skip
        os.close(write)
        os.read(read, 10)
        os.close(read)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode in (0, 141)  # all was written before, or 128 + SIGPIPE; never 1, "infeasible"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_said_and_not_called_a_bug() -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "simulator", "schema"], stdout=full, stderr=subprocess.PIPE, encoding="utf-8",
            env=plain_environment() | {"PYTHONPATH": str(ROOT)}, timeout=60, check=False,
        )  # fmt: skip
    assert run.returncode == 2
    assert lines_of(run.stderr) == ["error: cannot write the output: No space left on device"]


@pytest.mark.slow
def test_terminal_that_knows_only_ascii_gets_an_answer() -> None:
    result = python("-m", "simulator", "run", SMALL, environment={"PYTHONIOENCODING": "ascii"})
    assert (result.code, result.err) == (0, "")
    assert result.out.isascii()
    assert "Step time" in result.out


# ---- speed: measured, not judged (pytest --benchmark-only) -----------------------------------------------------------


def children_cpu_s() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.benchmark(timer=children_cpu_s)
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_takes_little_cpu(command: tuple[str, ...], benchmark: BenchmarkFixture) -> None:
    assert benchmark.pedantic(python, args=("-m", "simulator", *command, "--help"), rounds=10).code == 0


def test_demo_answers_at_once(benchmark: BenchmarkFixture) -> None:
    assert benchmark.pedantic(python, args=("-m", "simulator", "demo"), rounds=3).code == 0
