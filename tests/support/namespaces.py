"""Two machines in one: network namespaces with a cable between them, which can be cut."""

import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex


class Impossible(Exception):
    """Network namespaces cannot be made here, and why."""


@dataclass(frozen=True)
class Machine:
    """A namespace with one network interface besides its own loopback."""

    namespace: str
    interface: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs a command on this machine."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def cut(self) -> None:
        """Take the network down: nothing that others send arrives, and they are not told."""
        _ip("-n", self.namespace, "link", "set", self.interface, "down")


@contextmanager
def two_machines() -> Generator[tuple[Machine, Machine], None, None]:
    """They reach each other, and nothing else."""
    name = token_hex(3)
    machines = tuple(Machine(f"corollout-{name}-{i}", f"co{name}{i}", f"10.77.0.{i + 1}") for i in range(2))
    try:
        for machine in machines:
            _ip("netns", "add", machine.namespace)
        first, second = machines
        _ip("-n", first.namespace, "link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
        _ip("-n", first.namespace, "link", "set", second.interface, "netns", second.namespace)
        for machine in machines:
            _ip("-n", machine.namespace, "address", "add", f"{machine.address}/24", "dev", machine.interface)
            for interface in ("lo", machine.interface):
                _ip("-n", machine.namespace, "link", "set", interface, "up")
        yield first, second
    finally:
        for machine in machines:
            subprocess.run(["ip", "netns", "delete", machine.namespace], capture_output=True, check=False)


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Impossible("iproute2 is not installed: there is no command ip") from None
    if done.returncode:
        raise Impossible(f"ip {' '.join(words)}: {done.stderr.strip()}")
