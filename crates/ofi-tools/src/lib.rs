//! The programs: they list what this host offers, find settings that cost speed, measure, and show what endpoints do.
//!
//! Options, output and exit codes follow libfabric's programs of the same names, so that existing scripts work;
//! additions have long options (`--json`, `--explain`, `--rma`). The programs in `src/bin` only call functions of this
//! crate: [`info::main`]; [`pingpong::main`]; [`dump::main`], which shows captures of provider `udp`; [`topo::main`]
//! (`mr-topo`), which shows `multirail`'s view of the machine; [`bench::main`] (`mr-bench`), which measures its
//! transfers; and [`cli::main`] (`ofi`), an operator's program.
//!
//! The ping-pong uses the raw layer of `ofi`; its promises about memory are in `pingpong/lent.rs`. System calls that
//! the standard library lacks are in `pingpong/sys.rs`. There is hardly any other `unsafe` code.
#![deny(unsafe_code)] // allowed in the two files above, in `doctor/{ethtool,memory/map}.rs`, and where threading is promised

pub mod bench;
pub mod cli;
pub mod copy;
pub mod doctor;
pub mod dump;
pub mod efa_bench;
mod exit;
mod failure;
pub mod info;
mod output;
pub mod pingpong;
pub mod stats;
pub mod top;
pub mod topo;
pub mod write_demo;
