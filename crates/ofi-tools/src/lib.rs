//! The programs: what this host offers and lacks, how fast it is, and what its endpoints do.
//!
//! Options, output and exit codes follow libfabric's programs of the same names, so that scripts written for those
//! work; what is added has a long option (`--json`, `--explain`, `--rma`). The programs in `src/bin` only call
//! [`info::main`], [`pingpong::main`] and [`dump::main`], which shows captures of provider `udp`; [`topo::main`] is
//! `mr-topo`, which shows what `multirail` sees of the machine, and [`bench::main`] is `mr-bench`, which measures its
//! transfers. [`cli::main`] is `ofi`, an operator's program.
//!
//! The ping-pong is on the raw layer of `ofi`, whose promises about memory are made in `pingpong/lent.rs`; system
//! calls that the standard library lacks are in `pingpong/sys.rs`. There is hardly other `unsafe` code.
#![deny(unsafe_code)] // allowed in the two files above, in `doctor/{ethtool,memory/map}.rs`, and where threading is promised

pub mod bench;
pub mod cli;
pub mod copy;
pub mod doctor;
pub mod dump;
mod exit;
mod failure;
pub mod info;
mod output;
pub mod pingpong;
mod progress;
pub mod stats;
pub mod top;
pub mod topo;
pub mod write_demo;
