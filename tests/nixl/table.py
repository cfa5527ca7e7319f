"""Compares the virtual table of a backend of NIXL's with that of ours, function by function.

    table.py THEIRS OURS

Both are libraries with their symbols. THEIRS is a plug-in of NIXL's wheel that was built with NIXL's own headers, OURS
libplugin_OFI.so, which was built with shim/include/nixl_backend.h: a slot that moved would make NIXL call another
function. Prints the number of slots.
"""

import os
import re
import subprocess
import sys

# Slots that our declaration names otherwise.
RENAMED = {"prepMemView": "view", "releaseMemView": "releaseView", "remoteView": "view", "localView": "view"}
BASE = "nixlBackendEngine"
# The type's description, before the functions.
HEAD = 16


def lines(*words):
    english = os.environ | {"LC_ALL": "C"}
    return subprocess.run(words, check=True, capture_output=True, text=True, env=english).stdout.splitlines()


def tables(library):
    """The classes with their slots, each as the names that the function has; equal functions may share an address."""
    names, places = {}, {}
    for line in lines("nm", "--demangle", "--print-size", library):
        match = re.match(r"([0-9a-f]+) (?:([0-9a-f]+) )?[a-zA-Z] (.*)", line)
        if match:
            address, size, name = int(match[1], 16), int(match[2] or "0", 16), match[3]
            names.setdefault(address, set()).add(name)
            if name.startswith("vtable for "):
                places[name.removeprefix("vtable for ")] = (address, size)
    slots = {}
    for line in lines("readelf", "--relocs", "--wide", "--demangle", library):
        match = re.match(r"([0-9a-f]+) +[0-9a-f]+ +R_\w+_(?:RELATIVE|64|ABS64) +(.*)", line.strip())
        if match:
            # Either an address, or a symbol's value, its name and an addend.
            named = re.match(r"[0-9a-f]+ +(.*) \+ [0-9a-f]+$", match[2])
            slots[int(match[1], 16)] = {named[1]} if named else names.get(int(match[2], 16), set())
    return {
        name: [{plain(one) for one in slots.get(at, ())} for at in range(address + HEAD, address + size, 8)]
        for name, (address, size) in places.items()
    }


def plain(name):
    """A function's own name; a destructor is one by any class."""
    name = name.replace("(anonymous namespace)", "").split("(")[0].split("@")[0].split("::")[-1]
    return "~" if name.startswith("~") else RENAMED.get(name, name)


def main(theirs, ours):
    theirs, ours = tables(theirs), tables(ours)
    base = len(theirs[BASE])
    # The backend's class registers memory, and so does the base, by a pure function.
    wanted, found = (
        next(table for name, table in all.items() if name != BASE and any("registerMem" in slot for slot in table))
        for all in (theirs, ours)
    )
    if len(found) != base:
        sys.exit(f"NIXL's interface has {base} slots, and the declaration {len(found)}")
    # A class may have functions of its own behind those of the interface.
    for slot, (its, own) in enumerate(zip(wanted, found)):
        if not its & own:
            sys.exit(f"slot {slot} is {its} in NIXL's plug-in, and {own} in ours")
    print(f"{base} slots are the same")


main(*sys.argv[1:])
