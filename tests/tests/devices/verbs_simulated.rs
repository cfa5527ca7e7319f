//! The conformance suite over provider `verbs`' reliable datagrams, on a simulated fabric whose receivers are
//! not always ready, and which reports completions late. Tests that need a real device are in `verbs.rs`.

use std::sync::{Arc, LazyLock, Once};

use ofi::raw::{AddrFormat, Caps, EpType, Hints, Mode};
use ofi_testkit::Kit;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};

#[path = "../../verbs/atomics.rs"]
mod atomics;
#[path = "../../verbs/awaited.rs"]
mod awaited;
#[path = "../../verbs/connected.rs"]
mod connected;
#[path = "../../verbs/costs.rs"]
mod costs;
#[path = "../../verbs/device_events.rs"]
mod device_events;
#[path = "../../verbs/least.rs"]
mod least;
#[path = "../../verbs/lockable.rs"]
mod lockable;
#[path = "../../verbs/logs.rs"]
mod logs;
#[path = "../../verbs/native.rs"]
mod native;
#[path = "../../verbs/raw.rs"]
mod raw;
#[path = "../../verbs/room.rs"]
pub mod room;
#[path = "../../verbs/safe.rs"]
pub mod safe;
#[path = "../../verbs/settings.rs"]
pub mod settings;
#[path = "../../verbs/shared_receive.rs"]
mod shared_receive;
#[path = "../../verbs/sources.rs"]
mod sources;
