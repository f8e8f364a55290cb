#!/usr/bin/env python3
"""Prints the licenses and copyright notices of the crates in the program.

    tools/packaging/third-party.py [OPTION OF CARGO...]

The options select the features, such as --no-default-features.
"""

import collections
import json
import pathlib
import subprocess
import sys

PROGRAM = "dataplane-runner"


def cargo(*words):
    """Returns the output of cargo."""
    return subprocess.run(["cargo", *words, "--locked"], check=True, capture_output=True, text=True).stdout


def main():
    options = sys.argv[1:]
    tree = cargo("tree", "--package", PROGRAM, "--edges", "normal", "--prefix", "none", "--format", "{p}", *options)
    used = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    packages = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    notices = collections.defaultdict(list)
    for package in packages:
        if package["source"] is None or (package["name"], f"v{package['version']}") not in used:
            continue
        name = f"{package['name']} {package['version']} ({package['license'] or 'see below'})"
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.name.upper().startswith(("LICEN", "COPYING", "COPYRIGHT", "NOTICE")))
        texts = [path.read_text(errors="replace").strip() for path in files if path.is_file()]
        if not texts:
            texts = ["The crate has no license file. Authors: " + (", ".join(package["authors"]) or "not named")]
        for text in texts:
            notices[text].append(name)
    print("The program contains these crates. Each license text follows the list of the crates that contain the text.")
    for text, names in sorted(notices.items(), key=lambda entry: entry[1]):
        print("\n" + "=" * 100)
        print("\n".join(sorted(names)))
        print("-" * 100 + "\n" + text)


if __name__ == "__main__":
    main()
