#!/usr/bin/env bash
# rustls 0.23 without default features: Cargo.lock names ring, cc and crates for Windows, and none of them is built.
#
# A good guess: a program whose TLS is rustls with another crypto provider (rustls-graviola, pure Rust) has no ring in
# its Cargo.lock, so a look at that file tells whether a C compiler is needed. But feature `alloc` of rustls-webpki,
# which rustls turns on, names `ring?/alloc`. Cargo resolves such a weak feature as if the optional dependency were
# wanted, and leaves it out only when it builds: `cargo tree` is right, Cargo.lock (and what `cargo vendor` fetches) is
# not.
#
# Versions: rustls 0.23.46, rustls-graviola 0.4.0, rustls-webpki 0.103.17, from crates.io; cargo of this machine.
# Seen: in the lock file: cc ring; in the build for this host: rustls rustls-graviola rustls-webpki.
# This script needs cargo and crates.io, and compiles nothing. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
echo 'fn main() {}' >"$folder/src/main.rs"
cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "program"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
rustls = { version = "=0.23.46", default-features = false, features = ["std"] }
rustls-graviola = "=0.4.0"
rustls-webpki = { version = "=0.103.17", default-features = false }
TOML
cd "$folder"
cargo generate-lockfile --quiet
wanted='^(cc|ring|rustls|rustls-graviola|rustls-webpki)$'
{
    echo "lock: $(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.lock | grep -E "$wanted" | sort -u | tr '\n' ' ')"
    echo "built: $(cargo tree --quiet --edges normal,build --prefix none --format '{p}' | cut -d' ' -f1 | grep -E "$wanted" | sort -u | tr '\n' ' ')"
} >seen
cat seen
diff - seen <<'WANTED'
lock: cc ring rustls rustls-graviola rustls-webpki 
built: rustls rustls-graviola rustls-webpki 
WANTED
