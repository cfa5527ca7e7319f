//! Runs every example that needs no arguments, as a user does: it must succeed, and print something, over the provider
//! that it is written for and over the others of this host. `cargo xtask efa --test` runs them over `efa`, and
//! `cargo xtask rdma` over `verbs` (`tests/verbs/examples.sh`). Examples of several processes (`two_hosts`, `echo`)
//! have their own tests.

use std::process::Command;

/// Runs an example. `cargo test` builds examples beside the tests.
fn runs(name: &str) {
    let tests = std::env::current_exe().expect("this program");
    let built = tests.ancestors().nth(2).expect("the build folder").join("examples").join(name);
    assert!(built.exists(), "{} does not exist (build it: cargo build -p ofi --examples)", built.display());
    // The examples on tokio have listeners at addresses of `udp`.
    let providers = if name.starts_with("tokio") { &[None][..] } else { &[None, Some("shm"), Some("udp")] };
    for &provider in providers {
        let mut example = Command::new(&built);
        // Some examples name a provider, and the others take the first.
        example.envs(provider.map(|provider| ("OFI_EXAMPLE_PROVIDER", provider)));
        example.envs(provider.map(|provider| ("FI_PROVIDER", provider)));
        if name == "serve_reads" {
            example.args(provider);
        }
        let output = example.output().expect("the example");
        assert!(output.status.success(), "{provider:?}: {output:?}");
        assert!(!output.stdout.is_empty(), "{provider:?}: {output:?}");
    }
}

macro_rules! examples {
    ($($name:ident)+) => { $(#[test] fn $name() { runs(stringify!($name)); })+ };
}

examples! {
    allreduce
    async_connections
    atomic_counter
    connections
    counters_and_triggers
    hello
    kv_store
    many_peers
    message_pingpong
    publish_subscribe
    rma_with_data
    scalable_endpoint
    serve_reads
    shared_contexts
    tagged_matching
}

#[test]
#[cfg(feature = "tokio")]
fn tokio_node() {
    runs("tokio_node");
}

#[test]
#[cfg(feature = "tokio")]
fn tokio_server() {
    runs("tokio_server");
}

#[test]
fn no_example_is_left_out() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let tested = std::fs::read_to_string(here.join("tests/integration/examples.rs")).expect("this file");
    let index = std::fs::read_to_string(here.join("examples/README.md")).expect("the index");
    for entry in std::fs::read_dir(here.join("examples")).expect("examples").flatten() {
        let name = entry.file_name().to_string_lossy().trim_end_matches(".rs").to_string();
        if name == "support" || name == "README.md" {
            continue;
        }
        assert!(
            index.contains(&format!("`{name}`")),
            "{name} is not in the table of examples/README.md: add a row that says what it shows"
        );
        // An example of several files may be longer.
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        assert!(text.lines().count() <= 100, "{name} is longer than a page: show less, or split it");
        let apart = ["two_hosts", "echo", "tokio_node", "tokio_server"].contains(&name.as_str());
        assert!(apart || tested.contains(&format!("\n    {name}\n")), "no test runs {name}");
    }
}
