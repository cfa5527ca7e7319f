//! Devices without notifications.

use std::sync::Arc;

use ofi_testkit::conformance::wait_objects;
use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

use super::EfaPair;

/// Endpoints on a device of their own.
struct Alone(String);

impl Kit for Alone {
    fn hints(&self) -> Hints {
        EfaPair.hints().domain(&self.0)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn device(name: &str) -> (Arc<SimulatedDevice>, Alone) {
    let device = SimulatedDevice::new(name, Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    (device, Alone(format!("{name}-rdm")))
}

#[test]
fn threads_that_wait_for_a_device_without_notifications_are_woken() {
    let (device, kit) = device("silent0");
    device.be_silent();
    let cases: [fn(&dyn Kit); 7] = [
        wait_objects::a_message_ends_a_blocking_read,
        wait_objects::an_error_ends_a_blocking_read,
        wait_objects::a_first_message_wakes_a_sleeping_receiver,
        wait_objects::the_descriptor_becomes_readable_for_every_event,
        wait_objects::no_wake_up_is_lost_between_blocking_reads,
        wait_objects::sleeping_both_ends_serves_remote_accesses,
        wait_objects::an_endpoint_that_comes_later_wakes_a_sleeper_too,
    ];
    cases.iter().for_each(|case| case(&kit));
}
