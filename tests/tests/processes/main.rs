//! What takes several processes, or whole endpoints: deaths, crashes, hostile peers, models, many peers.

mod budgets;
mod collectives;
mod come_and_go;
mod composite;
mod connection;
mod crash;
mod fork;
mod granted;
mod hostile;
mod kv_store;
mod many;
mod model;
mod model_shared;
mod multirail;
mod one_core;
mod peer_death;
mod shared_av;
mod shm;
mod soak;
mod stalled;
mod threads;
mod two_process;

use budgets::{reverse, sleepy};
use collectives::member as collective_member;
use composite::connected_near::accept;
use composite::nearby::{echo as nearby_echo, squat};
use connection::{caller, server, silent_caller, silent_server, slow_hearer};
use hostile::{closer, vandal};
use kv_store::{put_and_leave, serve};
use many::{churn, crowd, hub};
use ofi_tests::mesh::member;
use peer_death::{friend, pinger, same_name, survive, victim};
use shared_av::{changer, looker, sender};
use shm::short_of_room;
use two_process::{check_stream, counting, echo, idle_target, name_owner, sleeping_echo, target};

ofi_testkit::roles!(
    accept,
    caller,
    changer,
    check_stream,
    churn,
    closer,
    collective_member,
    counting,
    crowd,
    echo,
    friend,
    hub,
    idle_target,
    looker,
    member,
    name_owner,
    nearby_echo,
    pinger,
    put_and_leave,
    reverse,
    same_name,
    sender,
    serve,
    server,
    short_of_room,
    silent_caller,
    silent_server,
    sleeping_echo,
    sleepy,
    slow_hearer,
    squat,
    survive,
    target,
    vandal,
    victim,
);
