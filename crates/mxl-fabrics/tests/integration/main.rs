//! Flows between processes and hosts: initiators, targets, and the programs.

mod again;
mod alone;
mod bench;
mod common;
mod demo;
mod documented;
#[path = "../../../ofi-tools/tests/integration/common/documents.rs"]
mod documents;
mod driven;
mod elsewhere;
mod engine;
mod flooded;
mod fork;
mod gateway;
mod hostile;
#[path = "common/hostile_target.rs"]
mod hostile_target;
mod hostile_targets;
mod info;
mod keys;
mod local;
mod merge;
mod messages;
#[cfg(feature = "nmos")]
mod nmos;
mod parted;
mod processes;
mod progress;
#[cfg(feature = "nmos")]
#[path = "../../../mxl-nmos/tests/common/registry.rs"]
mod registry;
mod sdk;
mod sdk_flood;
mod stopped;
mod strangers;
mod truncated;
mod web;

use stopped::receiver;

ofi_testkit::roles!(receiver);
