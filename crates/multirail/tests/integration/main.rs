//! Agents and their rails, in one process and in several.

mod abandon;
mod appearing;
mod costs;
mod dead;
mod devices;
mod emulated;
mod examples;
mod fenced;
mod flooded;
mod fork;
mod found;
mod given_up;
mod greeters;
mod kept;
mod local;
mod mute;
mod peers;
mod poured;
mod prepared;
mod processes;
mod reopened;
mod sessions;
mod sharing;
mod silent;
mod stopped;
mod storm;
mod strangers;
mod support;
mod unread;
mod waits;

use emulated::{alice, bob};
use mute::cut;
use processes::{cut_rail, owner};
use stopped::stopped;
use storm::{owner as storm_owner, scribbler, storm};

ofi_testkit::roles!(alice, bob, cut, cut_rail, owner, scribbler, stopped, storm, storm_owner);
