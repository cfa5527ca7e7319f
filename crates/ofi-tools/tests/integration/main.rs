//! The programs, as their users run them.

#[path = "common/copies.rs"]
mod copies;
mod cp;
mod cp_network;
mod doctor;
mod documented;
#[path = "common/documents.rs"]
mod documents;
mod fi_dump;
mod fi_info;
mod fi_pingpong;
mod fi_write_demo;
mod logs;
mod mr_bench;
mod mr_topo;
mod stats;

use cp_network::near_end;

ofi_testkit::roles!(near_end);
