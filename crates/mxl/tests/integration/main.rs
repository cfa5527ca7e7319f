//! Domains, flows, their readers and writers.

#[path = "../common/mod.rs"]
mod common;
mod cpp_domain;
mod disk;
mod domain;
mod fork;
mod grain_window;
mod grains;
mod limits;
mod old_kernel;
mod on_demand;
mod processes;
mod samples;
mod strange_files;
mod stream;
mod truncated;
mod uri;
mod wakes;
