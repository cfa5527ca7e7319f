#!/usr/bin/env bash
# glibc 2.36: after a buffer of 2 MiB was freed, each calloc of 2 MiB makes some 130 KiB resident that nobody touches.
#
# A good guess: calloc of megabytes costs no memory until the pages are used, because malloc maps such buffers
# (M_MMAP_THRESHOLD is 128 KiB). So it is in a test that only allocates. But the first free of such a buffer raises the
# threshold above its size, and later ones come from the heap. There calloc clears what was left of the heap's end,
# which may have been used: up to M_TOP_PAD, 128 KiB, since the heap grows by that much more than was asked for.
# A program that keeps thousands of large, mostly unused buffers should map them itself, or set the threshold.
#
# Versions: glibc 2.36-9+deb12u14 of Debian 12; any C compiler.
# Seen: fresh: 6 KiB each; after a free: 135 KiB each; after a free, with a fixed threshold: 4 KiB each.
# This script needs cc. It fails if one of them is no longer below 16, or above 100.
set -eu
unset GLIBC_TUNABLES "${!MALLOC_@}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/calloc.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long resident_kib(void)
{
	long all = 0, resident = 0;
	FILE *statm = fopen("/proc/self/statm", "r");

	if (!statm || fscanf(statm, "%ld %ld", &all, &resident) != 2)
		exit(1);
	fclose(statm);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv)
{
	static void *volatile kept[100];
	long before;

	if (argc > 1) {
		void *volatile one = malloc(2 << 20);
		free(one);
	}
	before = resident_kib();
	for (int at = 0; at < 100; at++)
		kept[at] = calloc(1, 2 << 20);
	printf("%ld\n", (resident_kib() - before) / 100);
	return 0;
}
C
${CC:-cc} -O1 -o "$folder/calloc" "$folder/calloc.c"
fresh=$("$folder/calloc")
freed=$("$folder/calloc" freed)
fixed=$(MALLOC_MMAP_THRESHOLD_=1048576 "$folder/calloc" freed)
echo "fresh: $fresh KiB each; after a free: $freed KiB each; after a free, with a fixed threshold: $fixed KiB each"
[ "$fresh" -lt 16 ] && [ "$freed" -gt 100 ] && [ "$fixed" -lt 16 ]
