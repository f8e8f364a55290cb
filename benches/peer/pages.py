"""Raises the number of huge pages during a benchmark, and restores the previous number at the end."""

import atexit
import os
from pathlib import Path

from measure import HUGE_PAGE_KIB, fail, free_huge_pages, note

COUNT = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE_PAGE_KIB}kB/nr_hugepages")


def need(pages):
    """Ensures that at least this many huge pages are free. The end of the script restores the previous number."""
    free = free_huge_pages()
    if free >= pages:
        return
    before = int(COUNT.read_text()) if COUNT.exists() else 0
    wanted = before + pages - free
    remedy = f"sysctl vm.nr_hugepages={wanted}"
    if os.geteuid() != 0:
        fail(f"{pages} free huge pages of {HUGE_PAGE_KIB} KiB are required, but only {free} are free; help: run sudo {remedy}, or run this script as root")
    COUNT.write_text(f"{wanted}\n")
    raised = int(COUNT.read_text())

    def restore():
        # Do not overwrite a later change by another program.
        if int(COUNT.read_text()) == raised:
            COUNT.write_text(f"{before}\n")

    atexit.register(restore)
    note(f"huge pages: raised from {before} to {raised} until the end of this script")
    if free_huge_pages() < pages:
        fail(f"not enough memory for {pages} huge pages of {HUGE_PAGE_KIB} KiB; help: free memory, then run {remedy}")
