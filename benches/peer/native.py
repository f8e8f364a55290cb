"""Builds the DPDK programs of the benchmarks for this processor, from Debian's source package. The build is cached under target/."""

import os
import subprocess
import sys
from pathlib import Path

from measure import REPO, fail, note, output

# Build only the measured programs. A full build of DPDK takes 15 minutes longer.
OPTIONS = [
    *["-Dplatform=native", "-Dbuildtype=release", "-Ddefault_library=static", "-Dtests=false", "-Denable_docs=false"],
    *["-Denable_drivers=bus/vdev,mempool/ring,net/null,net/pcap,net/ring", "-Denable_apps=test-pmd"],
    "-Dexamples=l3fwd,l3fwd-graph,ip_pipeline",
]
# Changes of the examples, as sed scripts.
CHANGES = {
    # l3fwd requires checksum offload. Software ports lack this offload, and l3fwd does not use the result. Remove the flag.
    "l3fwd": r"/\.offloads = RTE_ETH_RX_OFFLOAD_CHECKSUM,/d",
    # Each built-in route of l3fwd-graph uses a different port. Change all routes to the only port.
    "l3fwd-graph": r"s/\({RTE_IPV4(198, 18, [0-7], 0), 24, \)[0-7]}/\10}/g",
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")) / "peers"


def run(log, *command, cwd):
    with open(log, "a") as file:
        if subprocess.run([str(word) for word in command], cwd=cwd, stdout=file, stderr=subprocess.STDOUT).returncode != 0:
            fail(f"{' '.join(map(str, command))} failed: see {log}")


def sources(folder):
    """Returns options for apt that add the source packages of this machine's archives. The package lists of the machine stay unchanged."""
    wanted = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = []
    for line in (output("apt-get", "indextargets", "--format", wanted, "Created-By: Packages") or "").splitlines():
        uri, release, component, origin = line.split()[:4]
        if origin == "Debian":
            lines.append(f"deb-src [signed-by={KEYRING}] {uri} {release} {component}")
    if not lines:
        fail("apt has no Debian archive with the source package of dpdk; help: check /etc/apt/sources.list.d")
    (folder / "sources.list").write_text("\n".join(sorted(set(lines))) + "\n")
    (folder / "lists").mkdir(exist_ok=True)
    options = {"SourceList": folder / "sources.list", "SourceParts": "/dev/null"}
    return [*(f"-oDir::Etc::{key}={value}" for key, value in options.items()), f"-oDir::State::Lists={folder / 'lists'}"]


def build():
    """Builds the installed version of DPDK unless it is already built. Returns the directory of the build."""
    version = output("dpkg-query", "--show", "--showformat=${source:Version}", "dpdk-dev")
    if not version:
        fail("dpdk-dev is not installed; help: run tools/setup build bench")
    folder = target() / f"native-{version}"
    made, done = folder / "build", folder / "done"
    recipe = "\n".join([*OPTIONS, *CHANGES.values()])
    if done.exists() and done.read_text() == recipe:
        return made
    subprocess.run([str(REPO / "tools/setup"), "bench-native"], check=True, stdout=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    note(f"building DPDK {version} for this processor, once, which takes about ten minutes; see {log}")
    options = sources(folder)
    run(log, "apt-get", *options, "update", cwd=folder)
    source = folder / f"dpdk-{version.partition('-')[0]}"
    if not source.exists():
        run(log, "apt-get", *options, "source", f"dpdk={version}", cwd=folder)
    for example, change in CHANGES.items():
        run(log, "sed", "-i", change, f"examples/{example}/main.c", cwd=source)
    again = ["--reconfigure"] if (made / "build.ninja").exists() else []
    run(log, "meson", "setup", *again, *OPTIONS, made, source, cwd=folder)
    run(log, "ninja", "-C", made, cwd=folder)
    done.write_text(recipe)
    return made
