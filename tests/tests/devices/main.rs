//! Provider `efa` and provider `verbs` on simulated devices.

mod dmabuf;
mod efa;
mod efa_death;
mod efa_losses;
mod efa_model;
mod efa_neighbours;
mod efa_runt;
#[path = "../../model/mod.rs"]
mod model;
mod mxl_reordered;
#[path = "../../near.rs"]
mod near;
#[path = "../../steady.rs"]
mod steady;
mod verbs_connected_model;
mod verbs_datagrams;
mod verbs_many;
mod verbs_model;
mod verbs_simulated;

use efa::options::{sized as efa_sized, unsolicited};
use efa_death::victim;
use efa_losses::flaky;
use verbs_datagrams::joins::unanswered;
use verbs_datagrams::naming::{asks, finds, holds, serves};
use verbs_many::{hub, server};
use verbs_simulated::room::room;
use verbs_simulated::safe::{served, waited};
use verbs_simulated::settings::{refused, sized};
use verbs_simulated::timers::{timed, unusable};

ofi_testkit::roles!(
    asks,
    efa_sized,
    finds,
    flaky,
    holds,
    hub,
    refused,
    room,
    served,
    server,
    serves,
    sized,
    timed,
    unanswered,
    unsolicited,
    unusable,
    victim,
    waited,
);
