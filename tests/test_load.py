"""From a scenario file, a name and overrides to one frozen Scenario, or to errors that say what to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import shipped
from simulator.device import DeviceSpec
from simulator.errors import ScenarioError
from simulator.load import load_device, load_preset, load_scenario, load_topology, scenario_digest
from simulator.model_spec import ArchitectureModel, HfModel, LayersModel, PresetModel
from simulator.overrides import expand_sweep
from simulator.topology import TorusSpec, UniformSpec

GOOD = """\
cluster: {topology: dgx-h100, nodes: 2}
model:
  preset: gpt2
train:
  seq_len: 1024
  micro_batch: 4
"""
INLINE = """\
name: mine
kind: uniform
nodes: 4
alpha: 5 us
bandwidth: 50 GB/s
source: made up for a test
"""


def write(tmp_path: Path, text: str = GOOD, name: str = "s.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def complaint(path: Path | str, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return str(caught.value).splitlines()


def test_a_loaded_scenario_stands_by_itself(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path))
    assert scenario.cluster.spec.name == "dgx-h100"
    assert isinstance(scenario.cluster.spec.device, DeviceSpec)
    assert scenario.model == PresetModel(preset="gpt2")
    assert scenario.parallel.strategy == "ddp"
    assert (scenario.parallel.bucket_cap, scenario.parallel.first_bucket_bytes) == (25 * 2**20, 2**20)  # torch's


def test_a_collective_needs_no_model(tmp_path: Path) -> None:
    path = write(tmp_path, "cluster: {topology: uniform}\ncollective: {op: all_reduce, size: 1.1 MB, ranks: 4}\n")
    collective = load_scenario(path).collective
    assert collective is not None
    assert (collective.op, collective.size, collective.algorithm, collective.ranks) == ("all_reduce", 1.1e6, "auto", 4)


@pytest.mark.parametrize("name", shipped.names("topology"))
def test_every_shipped_topology_loads_under_its_own_name_with_its_device(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    assert topology.device is None or isinstance(topology.device, DeviceSpec)


@pytest.mark.parametrize("name", shipped.names("device"))
def test_every_shipped_device_loads_under_its_own_name(name: str) -> None:
    assert load_device(name).name == name


@pytest.mark.parametrize("name", shipped.names("preset"))
def test_every_shipped_preset_loads_under_its_own_name(name: str) -> None:
    assert load_preset(name).name == name


@pytest.mark.parametrize("name", shipped.names("scenario"))
def test_every_shipped_scenario_loads_by_name(name: str) -> None:
    assert load_scenario(name) == load_scenario(shipped.scenario_file(name))


def test_something_is_shipped_of_each_kind_the_tests_above_walk_over() -> None:
    assert {"dgx-h100", "uniform"} <= set(shipped.names("topology"))
    assert len(shipped.names("device")) >= 10
    assert {"gpt2", "llama-3-8b", "llama-3-70b"} <= set(shipped.names("preset"))


def test_paths_start_at_the_scenario_file_and_overrides_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "here").mkdir()
    write(tmp_path / "sub", INLINE, "net.yaml")
    write(tmp_path / "here", INLINE.replace("mine", "other"), "net.yaml")
    (tmp_path / "sub" / "config.json").write_text("{}")
    text = "cluster: {topology: ./net.yaml}\nmodel: {hf: config.json}\ntrain: {seq_len: 8, micro_batch: 1}\n"
    path = write(tmp_path / "sub", text)
    monkeypatch.chdir(tmp_path / "here")
    scenario = load_scenario(path)
    assert scenario.cluster.spec.name == "mine"
    assert scenario.model == HfModel(hf=str((tmp_path / "sub" / "config.json").resolve()))
    assert load_scenario(path, ["cluster.topology=net.yaml"]).cluster.spec.name == "other"
    assert load_topology("net.yaml", tmp_path / "sub").name == "mine"


def test_a_topology_can_be_written_in_the_scenario(tmp_path: Path) -> None:
    block = "".join(f"    {line}\n" for line in INLINE.splitlines())
    path = write(tmp_path, f"cluster:\n  topology:\n{block}{GOOD.partition(chr(10))[2]}")
    spec = load_scenario(path).cluster.spec
    assert isinstance(spec, UniformSpec)
    assert (spec.alpha, spec.bandwidth) == (5e-6, 50e9)
    shape = (
        "cluster.topology={name: t, kind: torus, shape: [4, 4], link: {bandwidth: 1 GB/s, latency: 1 us, source: xxx}}"
    )
    torus = load_scenario(path, [shape]).cluster.spec
    assert isinstance(torus, TorusSpec)
    assert torus.shape == (4, 4)


BAD_SCENARIOS = [
    ("cluster: {topology: dgx-h100}", 1, "", "needs either 'model' and 'train' (a training step) or 'collective'"),
    (GOOD.replace("nodes: 2", "nodez: 2"), 1, "cluster.nodez", "did you mean 'nodes'?"),
    (GOOD.replace("nodes: 2", "nodes: 0"), 1, "cluster.nodes", "must be at least 1; got 0"),
    (GOOD.replace("nodes: 2", "nodes: -3"), 1, "cluster.nodes", "must be at least 1; got -3"),
    (GOOD.replace("nodes: 2", "nodes: 2000000"), 1, "cluster.nodes", "must be at most 1,000,000"),
    (GOOD.replace("nodes: 2", "nodes: 999999, gpus_per_node: 8"), 1, "cluster.nodes", "at most 1,000,000 GPUs"),
    (GOOD.replace("nodes: 2", "nodes: two"), 1, "cluster.nodes", "must be a whole number; got 'two'"),
    (GOOD.replace("nodes: 2", "shape: [1000, 1000, 1000]"), 1, "cluster.shape", "holds 1,000,000,000 chips"),
    (GOOD.replace("nodes: 2", "shape: [4, 4, 4, 4]"), 1, "cluster.shape", "at most 3 items"),
    (GOOD.replace("nodes: 2", "nodes: 2, shape: [4, 4]"), 1, "cluster.nodes", "follows from 'shape'"),
    (GOOD.replace("dgx-h100", "dgx-h10"), 1, "cluster.topology", "did you mean 'dgx-h100'?"),
    (GOOD.replace("dgx-h100", "./gone.yaml"), 1, "cluster.topology", "gone.yaml: no such file"),
    (GOOD.replace("topology: dgx-h100, ", ""), 1, "cluster.topology", "missing key: a shipped topology"),
    (GOOD.replace("preset: gpt2", "preset: gtp2"), 3, "model.preset", "did you mean 'gpt2'?"),
    (GOOD.replace("preset: gpt2", "prest: gpt2"), 3, "model.prest", "accepted: preset; did you mean 'preset'?"),
    (GOOD.replace("preset: gpt2", "preset: gpt2\n  hf: x"), 2, "model", "holds both 'preset' and 'hf'; keep one"),
    (GOOD.replace("preset: gpt2", "preset: gpt2\n  dtype: bf16"), 4, "model.dtype", "accepted: preset"),
    (GOOD.replace("preset: gpt2", "hf: gone.json"), 3, "model.hf", "gone.json: no such file"),
    (GOOD.replace("preset: gpt2", "colour: red"), 2, "model", "must be one of: {preset: NAME}"),
    (GOOD.replace("\n  preset: gpt2", " gpt2"), 2, "model", "must be one of: {preset: NAME}"),
    (GOOD.replace("preset: gpt2", "layers: []"), 3, "model.layers", "at least 1 items"),
    (GOOD.replace("preset: gpt2", "layers: [{name: a, params: 4, forward: 5 ms, backward: 1 s}, "
                  "{name: a, params: 4, forward: 5 ms, backward: 1 s}]"), 3, "model.layers[1].name",
     "'a' is the name of another layer; give each its own, or one with 'repeat'"),
    (GOOD.replace("preset: gpt2", "layers: [{name: a, repeat: 2, params: 4, forward: 5 ms, backward: 1 s}, "
                  "{name: a.1, params: 4, forward: 5 ms, backward: 1 s}]"), 3, "model.layers[1].name",
     "'a.1' is the name of another layer"),
    (GOOD.replace("preset: gpt2", "layers: [{name: a, params: 4, forward: 5 ms}]"), 3,
     "model.layers[0].backward", "missing key"),
    (GOOD.replace("preset: gpt2", "layers: [{name: a, params: 4.0, forward: 5 ms, backward: 1 s}]"), 3,
     "model.layers[0].params", "must be a whole number or a list"),
    (GOOD.replace("preset: gpt2", "layers: [{name: a, params: [4, -1], forward: 5 ms, backward: 1 s}]"), 3,
     "model.layers[0].params[1]", "must be at least 0; got -1"),
    (GOOD.replace("preset: gpt2", "hidden_size: 10\n  num_layers: 2\n  num_attention_heads: 3\n  vocab_size: 9\n"
                  "  intermediate_size: 8"), 3, "model.hidden_size", "multiple of num_attention_heads (3)"),
    (GOOD.replace("seq_len: 1024", "seq_len: 1024.0"), 5, "train.seq_len", "got 1024.0; write 1024"),
    (GOOD.replace("seq_len: 1024", "seq_len: true"), 5, "train.seq_len", "must be a whole number; got true"),
    (GOOD.replace("  seq_len: 1024\n", ""), 4, "train.seq_len", "missing key"),
    (GOOD.replace("micro_batch: 4", "micro_batch: 0"), 6, "train.micro_batch", "must be at least 1"),
    (GOOD.replace("micro_batch: 4", "micro_batch: 1e2"), 6, "train.micro_batch", "write 1.0e+2 or 100"),
    (GOOD + "  precision: bf16mixed\n", 7, "train.precision", "did you mean 'bf16-mixed'?"),
    (GOOD + "  optimizer: AdamW\n", 7, "train.optimizer", "did you mean 'adamw'?"),
    (GOOD + "parallel: {strategy: zero4}\n", 7, "parallel.strategy",
     "accepted: ddp, zero1, zero2, zero3, fsdp, hsdp; did you mean 'zero3'?"),
    (GOOD + "parallel: {implementation: fsdp2}\n", 7, "parallel.implementation",
     "ddp has no implementation 'fsdp2'; accepted: torch"),
    (GOOD + "parallel: {strategy: fsdp, bucket_cap: 1 MiB}\n", 7, "parallel.bucket_cap",
     "fsdp (fsdp2) does not read it; it has wrap, reshard_after_forward"),
    (GOOD + "parallel: {strategy: fsdp, algorithm: ring}\n", 7, "parallel.algorithm", "fsdp (fsdp2) does not read it"),
    (GOOD + "parallel: {strategy: zero2, use_multi_rank_bucket_allreduce: false, algorithm: ring}\n", 7,
     "parallel.algorithm", "is that of all-reduces; use_multi_rank_bucket_allreduce: false reduces to each owner"),
    (GOOD + "parallel: {overlap: none, comm_hook: fp16}\n", 7, "parallel.comm_hook",
     "needs overlap 'bucketed'; with 'none' tensors are reduced one by one"),
    (GOOD + "parallel: {overlap: per_parameter, iteration: first}\n", 7, "parallel.iteration",
     "needs overlap 'bucketed'"),
    (GOOD + "parallel: {comm_hook: fp8}\n", 7, "parallel.comm_hook", "fp16"),
    (GOOD + "parallel: {overlap_comm: true}\n", 7, "parallel.overlap_comm", "ddp does not read it; it has bucket_cap"),
    (GOOD + "parallel: {strategy: dpp}\n", 7, "parallel.strategy", "did you mean 'ddp'?"),
    (GOOD + "parallel:\n  schedule: 1f1b\n", 8, "parallel.schedule", "needs pp above 1"),
    (GOOD + "parallel: {etp: 2}\n", 7, "parallel.etp", "needs ep or tp above 1; got ep 1, tp 1"),
    (GOOD + "parallel: {tp: 0}\n", 7, "parallel.tp", "must be at least 1"),
    (GOOD + "parallel: {bucket_cap: 25}\n", 7, "parallel.bucket_cap", "has no unit"),
    (GOOD + "parallel: {bucket_cap: 25 Mb}\n", 7, "parallel.bucket_cap", "counts bits"),
    (GOOD + "parallel: {first_bucket: 0 MiB}\n", 7, "parallel.first_bucket", "greater than zero"),
    (GOOD + "parallel: {overlap: yes}\n", 7, "parallel.overlap", "write true"),
    (GOOD + "parallel: {overlap: 'yes'}\n", 7, "parallel.overlap", "accepted: bucketed, per_parameter, none"),
    (GOOD + "parallel: {gradient_as_bucket_view: 1}\n", 7, "parallel.gradient_as_bucket_view", "true or false; got 1"),
    (GOOD + "limits: {exposed: 110%}\n", 7, "limits.exposed", "between 0% and 100%"),
    (GOOD + "limits: {memory: .nan}\n", 7, "limits.memory", "finite"),
    (GOOD + "engine: {fidelity: mesage}\n", 7, "engine.fidelity", "did you mean 'message'?"),
    (GOOD + "trian: {}\n", 7, "trian", "did you mean 'train'?"),
    (GOOD.partition("model")[0] + "collective: {op: all_reduse, size: 1 GB}", 2, "collective.op", "'all_reduce'?"),
    (GOOD.partition("model")[0] + "collective: {op: all_reduce, size: 1.5 B}", 2, "collective.size", "whole number of"),
    (GOOD.partition("model")[0] + "collective: {op: all_reduce, size: 1 Gb}", 2, "collective.size", "counts bits"),
    (GOOD.partition("model")[0] + "collectiv: {op: all_reduce, size: 1 GB}", 2, "collectiv", "mean 'collective'"),
    (GOOD.replace("dgx-h100", "{kind: tours}"), 1, "cluster.topology.kind", "did you mean 'torus'?"),
    (GOOD.replace("dgx-h100", "{name: x}"), 1, "cluster.topology.kind", "missing key"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "key", "said"), BAD_SCENARIOS, ids=[f"{k}-{i}" for i, (_, _, k, _) in enumerate(BAD_SCENARIOS)]
)
def test_a_bad_scenario_is_one_line_with_its_place(tmp_path: Path, text: str, line: int, key: str, said: str) -> None:
    path = write(tmp_path, text)
    (only,) = complaint(path)
    assert only.startswith(f"{path}:{line}: {key + ': ' if key else ''}")
    assert said in only


def test_a_collective_beside_a_model_is_said_at_each_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "collective: {op: all_reduce, size: 1 GB}\n")
    lines = complaint(path)
    assert [line.split(": ")[:2] for line in lines] == [[f"{path}:2", "model"], [f"{path}:4", "train"]]
    assert all("cannot stand beside 'collective'" in line for line in lines)


def test_errors_in_blocks_and_across_blocks_come_together(tmp_path: Path) -> None:
    path = write(tmp_path, "cluster: {topology: uniform, nodes: no}\nparallel: {tp: 0}\nmodel: {preset: gpt2, hf: x}\n")
    assert [line.removeprefix(f"{path}:").split(": ")[:2] for line in complaint(path)] == [
        ["1", "train"],
        ["1", "cluster.nodes"],
        ["2", "parallel.tp"],
        ["3", "model"],
    ]


def test_a_bad_topology_file_is_named_with_its_own_lines(tmp_path: Path) -> None:
    topology = write(tmp_path, INLINE.replace("50 GB/s", "50").replace("nodes", "nods"), "net.yaml")
    lines = complaint(write(tmp_path, GOOD.replace("dgx-h100", "net.yaml")))
    assert [line.split(": ")[:2] for line in lines] == [[f"{topology}:3", "nods"], [f"{topology}:5", "bandwidth"]]
    write(tmp_path, INLINE + "device: h100\n", "net.yaml")
    (only,) = complaint(tmp_path / "s.yaml")
    assert only.startswith(f"{topology}:7: device: no device 'h100' is shipped")
    write(tmp_path, INLINE.replace("uniform", "unifrom"), "net.yaml")
    (only,) = complaint(tmp_path / "s.yaml")
    assert only.startswith(f"{topology}:2: kind: unknown kind 'unifrom'")
    assert only.endswith("did you mean 'uniform'?")


def test_what_a_scenario_points_to_is_reported_together(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("dgx-h100", "dgx-h10").replace("gpt2", "gtp2"))
    assert [line.split(": ")[1] for line in complaint(path)] == ["cluster.topology", "model.preset"]


def test_a_name_that_is_nothing_lists_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path, name="step.yaml").parent)
    assert "did you mean" in complaint("step")[0]
    assert "step.yaml" in complaint("step")[0]
    assert "shipped scenarios: " in complaint("no-such-scenario")[0]
    assert "expected a scenario file" in complaint("  ")[0]
    assert "is a directory" in complaint(tmp_path)[0]
    assert complaint("a\0b")


# --- overrides ---------------------------------------------------------------------------------------


def test_overrides_are_yaml_values_and_reach_every_block(tmp_path: Path) -> None:
    scenario = load_scenario(
        write(tmp_path),
        ["train.micro_batch=8", "cluster.nodes=4", "parallel.bucket_cap=1 MiB", "parallel.algorithm='tree'",
         "cluster.gpus_per_node=null", "limits={memory: 90%}"],
    )  # fmt: skip
    assert scenario.train is not None
    assert (scenario.train.micro_batch, scenario.train.seq_len, scenario.cluster.nodes) == (8, 1024, 4)
    assert (scenario.parallel.bucket_cap, scenario.parallel.algorithm) == (2**20, "tree")
    assert scenario.limits.memory == 0.9


def test_an_override_of_a_list_item_changes_only_that_item(tmp_path: Path) -> None:
    layer, second = (f"{{name: {name}, params: 4, forward: 5 ms, backward: 5 ms}}" for name in "ab")
    path = write(tmp_path, GOOD.replace("preset: gpt2", f"layers: [{layer}, {second}]\n  dtype: fp32"))
    model = load_scenario(path, ["model.layers[1].forward=7 ms", "model.layers.0.params=[1, 2]"]).model
    assert isinstance(model, LayersModel)
    assert [layer.forward for layer in model.layers] == [5e-3, 7e-3]
    assert [layer.params for layer in model.layers] == [(1, 2), 4]
    (only,) = complaint(path, "model.layers[2].forward=7 ms")
    assert "model.layers is a list of 2; expected an index below that, got 2" in only


def test_an_override_that_names_another_form_of_model_replaces_the_model(tmp_path: Path) -> None:
    layer, second = (f"{{name: {name}, params: 4, forward: 5 ms, backward: 5 ms}}" for name in "ab")
    path = write(tmp_path, GOOD.replace("preset: gpt2", f"layers: [{layer}]\n  dtype: fp32"))
    assert load_scenario(path, ["model.preset=gpt2-xl"]).model == PresetModel(preset="gpt2-xl")
    kept = load_scenario(path, [f"model.layers=[{layer}, {second}]"]).model
    assert isinstance(kept, LayersModel)
    assert (len(kept.layers), kept.dtype) == (2, "fp32")


def test_a_repaired_value_is_no_longer_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("micro_batch: 4", "micro_batch: 1e2"))
    train = load_scenario(path, ["train.micro_batch=100"]).train
    assert train is not None
    assert train.micro_batch == 100


BAD_OVERRIDES = [
    ("train.micro_batch=four", "must be a whole number; got 'four'"),
    ("train.micro_batch=4.0", "must be a whole number; got 4.0; write 4"),
    ("train.micro_batch=0", "must be at least 1; got 0"),
    ("train.micro_batch=1e3", "write 1.0e+3 or 1000; got 1e3"),
    ("train.micro_batch=[4", "not valid YAML"),
    ("train.micro_batch=a: 1", "write a mapping as {key: value}"),
    ("train.micro_batch=!!int 4", "tags are not accepted"),
    ("train.micro_batch=4 --- 5", "must be a whole number; got '4 --- 5'"),
    ("train.micro_batch=", "has no value"),
    ("train.micro_batch= # four", "has no value"),
    ("train.micro_batch", "has no '='; expected key=value"),
    ("=4", "has an empty part"),
    ("train..micro_batch=4", "has an empty part"),
    (".train=4", "has an empty part"),
    ("train.=4", "has an empty part"),
    ("train.micro_bach=4", "unknown key 'micro_bach'; accepted: seq_len, micro_batch"),
    ("trian.micro_batch=4", "did you mean 'train'?"),
    ("train.micro_batch.size=4", "train.micro_batch is 4, one value"),
    ("train.micro_batch[0]=4", "train.micro_batch is 4, one value"),
    ("cluster.topology.nodes=4", "cluster.topology is 'dgx-h100', one value"),
    ("cluster.topology=dgx-h101", "did you mean 'dgx-h100'?"),
    ("cluster={topology: dgx-h100, nodez: 2}", "cluster.nodez: unknown key 'nodez'"),
    ("model.preset=gtp2", "did you mean 'gpt2'?"),
    ("model.hf=gone.json", "gone.json: no such file"),
    ("parallel.bucket_cap=25 Mb", "counts bits"),
    ("parallel.order=tp-dp", "names each of tp, cp, ep, dp, pp once"),
    ("a" * 500 + "=4", "unknown key 'aaa"),
    (".".join(["a"] * 500) + "=4", "has 500 parts"),
]


@pytest.mark.parametrize(("override", "said"), BAD_OVERRIDES, ids=[text[:30] for text, _ in BAD_OVERRIDES])
def test_a_bad_override_is_one_line_that_names_it(tmp_path: Path, override: str, said: str) -> None:
    (only,) = complaint(write(tmp_path), override)
    assert only.startswith(f"override {override}"[:60])
    assert said in only
    assert only.count("; got ") <= 1


def test_all_bad_overrides_are_reported_together_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("nodes: 2", "nodes: 0"))
    lines = complaint(path, "train.seq_len=x", "parallel.tpp=1", "cluster.gpus_per_node=0")
    assert [line.split(": ")[0].removeprefix(f"{path}:") for line in lines] == [
        "1", "override train.seq_len=x", "override parallel.tpp=1", "override cluster.gpus_per_node=0",
    ]  # fmt: skip
    assert len(complaint(path, "train", "train.=4", "train.seq_len=[")) == 3
    assert complaint(path, "train.seq_len=4", "train.seq_len=5") == ["override train.seq_len=5: the key is given twice"]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"[a-z.\[\]0-9]{1,12}=[a-z0-9\[\]{},:&*#' ]{0,12}", fullmatch=True))
def test_any_override_gives_a_scenario_or_a_scenario_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.getbasetemp(), GOOD.replace("dgx-h100", "uniform"), "any.yaml")
    try:
        load_scenario(path, [text])
    except ScenarioError as error:
        said = str(error)
    else:
        return
    assert "override" in said


# --- sweeps ------------------------------------------------------------------------------------------


def test_a_sweep_is_every_combination_with_the_last_key_fastest() -> None:
    assert expand_sweep(["a=1,2", "b=x,y"]) == [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]
    assert expand_sweep([]) == [()]


def test_commas_inside_quotes_and_brackets_do_not_split() -> None:
    assert expand_sweep(["shape=[4,4],[2,[1,2]]"]) == [("shape=[4,4]",), ("shape=[2,[1,2]]",)]
    assert expand_sweep(["a='x,y',\"p,q\", z "]) == [("a='x,y'",), ('a="p,q"',), ("a=z",)]
    assert expand_sweep(["c={a: 1, b: '}'},2"]) == [("c={a: 1, b: '}'}",), ("c=2",)]
    assert expand_sweep(["cap=1 MiB,25 MiB"]) == [("cap=1 MiB",), ("cap=25 MiB",)]
    assert expand_sweep(["a=it's,b"]) == [("a=it's",), ("a=b",)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], "expected key=value1,value2"),
        (["=1,2"], "expected key=value1,value2"),
        (["a=1,,2"], "a value is empty"),
        (["a="], "a value is empty"),
        (["a=1,2,"], "a value is empty"),
        (["a=1", "a=2"], "a is given twice"),
        (["a=1,2,1"], "the value 1 is given twice"),
        (["a=[1,2"], "a bracket is not closed"),
        (["a=1]"], "a bracket is not closed"),
        (["a='x,y"], "a quote is not closed"),
        ([f"{key}={','.join(map(str, range(101)))}" for key in "abc"], "1,030,301 points; at most 1,000,000"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_sweep_says_why(arguments: list[str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        expand_sweep(arguments)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,3}", fullmatch=True), st.sets(st.integers(0, 99), min_size=1, max_size=4), max_size=4
    )
)
def test_a_sweep_has_as_many_different_points_as_the_product_of_its_values(axes: dict[str, set[int]]) -> None:
    points = expand_sweep([f"{key}={','.join(map(str, sorted(values)))}" for key, values in axes.items()])
    expected = 1
    for values in axes.values():
        expected *= len(values)
    assert len(set(points)) == len(points) == expected
    assert all([text.partition("=")[0] for text in point] == list(axes) for point in points)


# --- digest, models ----------------------------------------------------------------------------------


def test_the_digest_follows_the_content_and_not_the_spelling(tmp_path: Path) -> None:
    plain = scenario_digest(load_scenario(write(tmp_path)))
    respelt = GOOD.replace("{topology: dgx-h100, nodes: 2}", "\n  nodes: 2  # two\n  topology: 'dgx-h100'")
    assert scenario_digest(load_scenario(write(tmp_path, respelt))) == plain
    assert scenario_digest(load_scenario(write(tmp_path), ["train.grad_accumulation=1"])) == plain
    assert scenario_digest(load_scenario(write(tmp_path), ["parallel.bucket_cap=25600 KiB"])) == plain
    others = [["train.micro_batch=5"], ["cluster.topology=dgx-a100"], ["model.preset=gpt2-xl"], ["limits.memory=90%"]]
    digests = {scenario_digest(load_scenario(write(tmp_path), other)) for other in others}
    assert len(digests | {plain}) == 5


def test_the_digest_follows_the_files_that_a_scenario_points_to(tmp_path: Path) -> None:
    write(tmp_path, INLINE, "net.yaml")
    config = write(tmp_path, "{}", "config.json")
    text = "cluster: {topology: net.yaml}\nmodel: {hf: config.json}\ntrain: {seq_len: 8, micro_batch: 1}\n"
    path = write(tmp_path, text)
    seen = {scenario_digest(load_scenario(path))}
    config.write_text('{"a": 1}')
    seen.add(scenario_digest(load_scenario(path)))
    write(tmp_path, INLINE.replace("5 us", "6 us"), "net.yaml")
    seen.add(scenario_digest(load_scenario(path)))
    assert len(seen) == 3


def test_sizes_become_a_hugging_face_config(tmp_path: Path) -> None:
    sizes = (
        "{family: qwen, num_layers: 2, hidden_size: 64, num_attention_heads: 4, intermediate_size: 9, vocab_size: 99}"
    )
    model = load_scenario(write(tmp_path, GOOD.replace("\n  preset: gpt2", f" {sizes}"))).model
    assert isinstance(model, ArchitectureModel)
    assert json.loads(json.dumps(model.hf_config())) == {
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 9,
        "vocab_size": 99,
    }


def test_an_image_model_needs_no_sequence_length(tmp_path: Path) -> None:
    train = load_scenario(write(tmp_path, GOOD.replace("gpt2", "resnet-18").replace("  seq_len: 1024\n", ""))).train
    assert train is not None
    assert train.micro_batch == 4


@pytest.mark.parametrize(
    ("keys", "first_mib"), [("", 1), ("bucket_cap: 8 MiB", 8), ("bucket_cap: 8 MiB, first_bucket: 2 MiB", 2)]
)
def test_a_bucket_cap_that_is_given_is_the_first_buckets_too(tmp_path: Path, keys: str, first_mib: int) -> None:
    """As in PyTorch, where passing bucket_cap_mb removes the small first bucket (tests/test_real_ddp.py)."""
    parallel = load_scenario(write(tmp_path, GOOD + f"parallel: {{{keys}}}\n")).parallel
    assert parallel.first_bucket_bytes == first_mib * 2**20


def test_unknown_names_are_told_together_with_what_else_is_wrong(tmp_path: Path) -> None:
    text = "cluster: {topology: dgx-h10, nodes: 0}\nmodel: {preset: gpt-2}\ntrian: {seq_len: 1024}\n"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(tmp_path, text))
    told = str(caught.value)
    for words in ("cluster.nodes", "'dgx-h100'", "'gpt2'", "'train'"):
        assert words in told
