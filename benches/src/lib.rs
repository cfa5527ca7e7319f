//! Measurements beside the peers: this stack, libfabric and UCX, on one machine in one run.
//!
//! A run processes [`lines`]. For each line it takes pairs of short runs, ours and the peer's ([`pairs`]), between bare
//! cache-line bounces ([`bounce`]): a virtual machine's cores move about the host, and a figure means nothing without
//! their distance at that moment. Pairs whose bounces differ are dropped. [`table`] prints medians and verdicts.
//!
//! In the order of a run:
//! - [`lines`]: the comparisons and their bounds. [`targets`]: the type of a line.
//! - [`peers`]: installs libfabric and UCX from packages, runs their own benchmarks, parses their output.
//! - [`worker`], [`link`], [`ours`]: our side, as two pinned child processes of this same binary.
//! - [`spawn`]: pairs of pinned child processes, ours and theirs alike. [`sys`]: the system calls.
//! - [`pairs`], [`quiet`], [`bounce`], [`eventfd`], [`socket`]: interleaving, waiting for a quiet moment, the
//!   baselines.
//! - [`veth`], [`bare`]: the `veth` command, UDP between two namespaces at 1,500 bytes beside bare sockets.
//! - [`scale`]: the `scale` command, what thousands of regions, sessions, flows, ends and streams cost.
//! - `c_program`: programs in C of our own (`benches/c`), which run on the peers too.
//! - [`figures`], [`table`]: units, medians, printing.
//! - [`instructions`], [`budget`]: instruction counts under callgrind against `docs/hot-path.md`.
//! - [`counts`]: other counts of the same paths, by single-stepping. Both measure on all cores at once
//!   (`side_by_side`). [`markdown`]: the document's tables.

pub mod bare;
pub mod bounce;
pub mod budget;
mod c_program;
#[cfg(target_arch = "x86_64")]
pub mod counts;
pub mod error;
pub mod eventfd;
pub mod figures;
pub mod instructions;
pub mod lines;
pub mod link;
pub mod machine;
pub mod markdown;
pub mod ours;
pub mod pairs;
pub mod peers;
pub mod quiet;
pub mod report;
pub mod rows;
pub mod scale;
mod side_by_side;
pub mod socket;
pub mod spawn;
pub mod sweeps;
pub mod sys;
pub mod table;
pub mod targets;
pub mod veth;
pub mod worker;

pub use error::{Error, Result};
pub use figures::Figures;
