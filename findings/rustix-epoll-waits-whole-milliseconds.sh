#!/usr/bin/env bash
# rustix 1.1.6: epoll's wait takes nanoseconds, and waits whole milliseconds unless a crate feature is on.
#
# A good guess: rustix::event::epoll::wait takes a Timespec, so a wait of 100 us lasts about 100 us on a kernel with
# epoll_pwait2 (Linux 5.11). But without the crate feature linux_5_11, the kernel is not asked for it: the time is
# rounded up to milliseconds for the old call, so 100 us become 1 ms, and 1.1 ms become 2 ms. The documentation of wait
# names the feature only for the longest waits, and the README lists it under optimizations.
# Whoever waits for less than a millisecond has to turn the feature on. As features add up over a build, another crate
# that turns it on changes these waits as well.
#
# Version: rustix 1.1.6 of crates.io, its own system calls (not libc's), x86-64, Linux 6.18.
# Seen: without the feature: 100 us took 1059 us, 1100 us took 2032 us; with it: 133 us and 1160 us (the shortest of
# 200 waits). Checked: whole milliseconds without it, and less than the next one with it.
# This script needs cargo, crates.io, and Linux 5.11. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "waits"
version = "0.0.0"
edition = "2021"

[features]
fine = ["rustix/linux_5_11"]

[dependencies]
rustix = { version = "=1.1.6", features = ["event"] }

[workspace]
TOML
cat >"$folder/src/main.rs" <<'RUST'
use rustix::event::{epoll, Timespec};
use std::time::{Duration, Instant};

fn main() {
    let feature = if cfg!(feature = "fine") { "with linux_5_11" } else { "without" };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    for micros in [100, 1100] {
        let timeout = Timespec { tv_sec: 0, tv_nsec: micros * 1000 };
        let wait = |_| {
            let mut events = Vec::<epoll::Event>::with_capacity(1);
            let start = Instant::now();
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).expect("wait");
            start.elapsed()
        };
        let shortest: Duration = (0..200).map(wait).min().expect("waits");
        eprintln!("{feature}: {micros} us took {} us", shortest.as_micros());
        println!("{feature}: {micros} us took at least {} ms", shortest.as_millis());
    }
}
RUST

unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET
export CARGO_TARGET_DIR=$folder/target
for features in '' fine; do
    cargo run --quiet --manifest-path "$folder/Cargo.toml" --features "$features"
done >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'WANTED'
without: 100 us took at least 1 ms
without: 1100 us took at least 2 ms
with linux_5_11: 100 us took at least 0 ms
with linux_5_11: 1100 us took at least 1 ms
WANTED
