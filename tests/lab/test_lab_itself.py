"""The lab builds what it says, runs programs on its hosts, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.errors import ScenarioError
from simulator.lab import measuring
from simulator.lab.fabric import PAYLOAD_SHARE, ShapedFabric, address, build_commands, flat, two_level
from simulator.lab.model import Way, network_of, stated_rate
from simulator.lab.shaped import TOOLS, LabError, leftovers, open_lab
from simulator.network.routes import Routes

ROOT = Path(__file__).resolve().parents[2]
#: Generous: the machine may be busy.
PATIENCE_S = 60.0
lab = [pytest.mark.lab, pytest.mark.usefixtures("lab_here")]

# ------------------------------------------------------------------------------------------------- what is built


def test_payload_gets_the_share_of_a_frame_that_is_not_headers() -> None:
    """DESIGN of the lab: wire rate x 0.956 = payload rate."""
    assert pytest.approx(0.956, abs=0.0005) == PAYLOAD_SHARE
    assert stated_rate(400e6) == pytest.approx(47.8e6, rel=1e-3)


def test_both_ends_of_every_cable_are_shaped() -> None:
    """3 + 3 hosts have 6 cables and one uplink between the bridges: 14 ends."""
    commands = [" ".join(command) for command in build_commands(two_level(3, 800e6, 200e6), "1")]
    devices = [line for line in commands if " qdisc add " in line and " htb " in line]
    assert len(devices) == 14
    assert sum(" match u16 0x0000 0xff80 at 2 flowid 1:10" in line for line in commands) == 14
    assert sum(" rate 800000000bit ceil 800000000bit" in line for line in commands) == 12
    assert sum(" rate 200000000bit ceil 200000000bit" in line for line in commands) == 2


def test_names_fit_an_interface_and_are_of_one_lab() -> None:
    """Names of interfaces have at most 15 characters (IFNAMSIZ); the longest tag is that of process 4,194,304."""
    commands = build_commands(two_level(32, 800e6, 200e6), "400000ff")
    names = {word for command in commands for word in command if word.startswith("cs400000ff")}
    assert len(names) == 64 + 2 + 2
    assert max(map(len, names)) <= 15


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: flat(0, 400e6), "hosts per side [0]: expected one or two numbers of at least 1"),
        (lambda: flat(65, 400e6), "together at most 64"),
        (lambda: flat(2, 400), "host rate 0.0004 Mbit/s: expected 1 to 10000 Mbit/s"),
        (lambda: two_level(2, 400e6, 4e12), "uplink rate 4e+06 Mbit/s"),
        (lambda: ShapedFabric(hosts_per_side=(2, 2), host_bit_per_s=1e8), "two sides need an uplink rate"),
        (lambda: network_of(flat(2, 1e8), Way(alpha_s=0, bytes_per_s=1), Way(alpha_s=0, bytes_per_s=1)), "across"),
    ],
)
def test_wrong_numbers_are_refused_with_what_is_accepted(make: object, said: str) -> None:
    with pytest.raises(ScenarioError) as error:
        make()  # type: ignore[operator]
    assert said in str(error.value)


def test_the_model_has_the_measured_numbers_on_every_way() -> None:
    near, across = Way(alpha_s=100e-6, bytes_per_s=95e6), Way(alpha_s=130e-6, bytes_per_s=24e6)
    routes = Routes(network_of(two_level(3, 800e6, 200e6), near, across))
    for ends, way in (((0, 1), near), ((4, 5), near), ((0, 3), across), ((5, 2), across)):
        table = routes.table(*([end] for end in ends))
        assert table.latency_s[0] == pytest.approx(way.alpha_s)
        assert table.solo_bytes_per_s[0] == pytest.approx(way.bytes_per_s)


# ------------------------------------------------------------------------------------------------ where it cannot be


def test_missing_tools_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    needs = r"needs ip, tc, unshare, nsenter, mount \(packages iproute2 and util-linux\)"
    with pytest.raises(LabError, match=needs), open_lab(flat(2, 400e6)):
        pass


def test_without_the_right_to_namespaces_it_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in TOOLS:
        (tmp_path / tool).write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2; exit 1\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "^lab: needs root or user namespaces: unshare: Operation not permitted$"
    with pytest.raises(LabError, match=said), open_lab(flat(2, 400e6)):
        pass


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "LOOKS_FOR_TORCH", "raise SystemExit(1)")
    with pytest.raises(LabError, match=r"needs torch .*: pip install 'clustersim\[real\]'"):
        measuring.needs_torch()


# --------------------------------------------------------------------------------------- programs, and the end


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


TALK = """
import socket, sys
if sys.argv[1] == "listen":
    server = socket.create_server((sys.argv[2], 7000))
    connection, peer = server.accept()
    print(peer[0], connection.recv(5).decode())
else:
    for _ in range(500):
        try:
            socket.create_connection((sys.argv[2], 7000), 5).sendall(b"hello"); break
        except OSError:
            import time; time.sleep(0.02)
"""


class TestPrograms:
    pytestmark = lab

    @pytest.mark.parametrize("fabric", [flat(2, 400e6), ShapedFabric(
        hosts_per_side=(1, 1), host_bit_per_s=8e8, uplink_bit_per_s=2e8)])  # fmt: skip
    def test_hosts_reach_each_other(self, fabric: ShapedFabric) -> None:
        with open_lab(fabric) as opened:
            listener, _ = opened.run([[*python(TALK), "listen", address(0)], [*python(TALK), "call", address(0)]])
        assert listener.out == f"{address(1)} hello\n"

    def test_a_host_sees_its_own_interface_only(self) -> None:
        with open_lab(flat(2, 400e6)) as opened:
            program = python("import socket; print(sorted(n for _, n in socket.if_nameindex() if n[:3] in 'lo eth'))")
            assert {ended.out for ended in opened.run([program, program])} == {"['eth0', 'lo']\n"}

    def test_a_failing_program_is_an_error_that_says_so_and_ends_the_others(self) -> None:
        with open_lab(flat(2, 400e6)) as opened:
            failing, waiting = python("raise SystemExit('no such model')"), python("import time; time.sleep(600)")
            with pytest.raises(LabError, match="host 1: exit 1: no such model"):
                opened.run([waiting, failing])
            assert opened.run([python("print(1)")])[0].out == "1\n"

    def test_a_program_that_never_ends_is_ended(self) -> None:
        with (
            open_lab(flat(1, 400e6)) as opened,
            pytest.raises(LabError, match=r"host 0: not done after 0\.5 s"),
        ):
            opened.run([python("import time; time.sleep(600)")], timeout_s=0.5)


#: Opens a lab, starts a program on it that would run for long, and says its tag.
OPENER = """
import sys
from simulator.lab.fabric import flat
from simulator.lab.shaped import open_lab
with open_lab(flat(2, 400e6)) as lab:
    print(lab.tag, flush=True)
    lab.run([[sys.executable, "-c", "import time; time.sleep(600)"]] * 2)
"""


def gone(tag: str) -> bool:
    """Whether nothing is left of a lab, after some time for the kernel to clean up."""
    until = time.monotonic() + PATIENCE_S
    while leftovers(tag) and time.monotonic() < until:
        time.sleep(0.05)
    return leftovers(tag) == ()


class TestNothingIsLeft:
    pytestmark = lab

    def test_after_it_is_closed(self) -> None:
        with open_lab(flat(2, 400e6)) as opened:
            assert any("process" in found for found in leftovers(opened.tag))
        assert leftovers(opened.tag) == ()

    def test_after_an_error_inside(self) -> None:
        with pytest.raises(ZeroDivisionError), open_lab(flat(2, 400e6)) as opened:
            _ = 1 / 0
        assert leftovers(opened.tag) == ()

    def test_without_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The way of an ordinary user: a user namespace in which it is root."""
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        try:
            with open_lab(flat(2, 400e6)) as opened:
                program = python("import os; print(open('/proc/self/uid_map').read().split()[2])")
                assert opened.run([program])[0].out == "1\n", "one user is mapped: this is a user namespace"
        except LabError as error:
            pytest.skip(str(error))
        assert leftovers(opened.tag) == ()

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_after_ctrl_c_and_after_being_killed(self, how: signal.Signals) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        opener = subprocess.Popen(
            [sys.executable, "-c", OPENER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
            env=environment, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )  # fmt: skip
        try:
            assert opener.stdout is not None
            tag = opener.stdout.readline().strip()
            assert tag, "the lab was opened"
            until = time.monotonic() + PATIENCE_S
            while sum("process" in found for found in leftovers(tag)) < 4 and time.monotonic() < until:
                time.sleep(0.05)  # unshare, process 1 and both programs
            assert sum("process" in found for found in leftovers(tag)) >= 4
            os.killpg(opener.pid, how)
            opener.wait(PATIENCE_S)
            assert gone(tag), leftovers(tag)
        finally:
            opener.kill()
            opener.wait()
            opener.stdout.close()
