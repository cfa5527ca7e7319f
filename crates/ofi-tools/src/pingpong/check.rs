//! The checked pass: verifies every byte of every message, and their order.
//!
//! In each round the client sends a window of messages at once, and the server as many back. The first half of the
//! slots receives, the second sends. Receives complete in the order in which they were posted, so slot `n` must hold
//! message `n`.

use std::time::{Duration, Instant};

use super::lent::Slots;
use super::message::Job;
use super::node::Node;
use super::pump::Pump;
use crate::failure::{Failure, Result};

/// The direction of a message; contents differ by direction.
#[derive(Clone, Copy)]
enum Way {
    To = 0,
    Fro = 1,
}

/// The client's part.
///
/// # Errors
/// Received data differs from the data sent.
pub fn lead(node: &Node, pump: &mut Pump<'_>, slots: &Slots, job: &Job) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    for round in 0..job.total() {
        for slot in 0..job.window {
            node.receive(slots.lend(slot), slot)?;
        }
        send_window(node, pump, slots, job, round, Way::To)?;
        receive_window(pump, slots, job, round, Way::Fro)?;
    }
    Ok(vec![begin.elapsed()])
}

/// The server's part; the first window of receives is already posted.
///
/// # Errors
/// As [`lead`].
pub fn follow(node: &Node, pump: &mut Pump<'_>, slots: &Slots, job: &Job) -> Result<()> {
    for round in 0..job.total() {
        receive_window(pump, slots, job, round, Way::To)?;
        if round + 1 < job.total() {
            for slot in 0..job.window {
                node.receive(slots.lend(slot), slot)?;
            }
        }
        send_window(node, pump, slots, job, round, Way::Fro)?;
    }
    Ok(())
}

fn send_window(
    node: &Node,
    pump: &mut Pump<'_>,
    slots: &Slots,
    job: &Job,
    round: u64,
    way: Way,
) -> Result<()> {
    for slot in 0..job.window {
        slots.fill(job.window + slot, seed(round, slot, way));
        pump.post(|| node.send(slots.lend(job.window + slot)))?;
    }
    pump.until((round + 1) * job.window as u64, 0)
}

fn receive_window(pump: &mut Pump<'_>, slots: &Slots, job: &Job, round: u64, way: Way) -> Result<()> {
    while pump.received < (round + 1) * job.window as u64 {
        pump.turn(|_| Ok(()))?;
    }
    let bytes = (round + 1) * (job.window * job.size) as u64;
    if pump.bytes != bytes {
        return Err(Failure::Data(format!(
            "messages of {} bytes: wanted {bytes} in all, found {}",
            job.size, pump.bytes
        )));
    }
    for slot in 0..job.window {
        slots.verify(slot, seed(round, slot, way)).map_err(|(at, wanted, found)| {
            let (size, number) = (job.size, round * job.window as u64 + slot as u64);
            Failure::Data(format!(
                "message {number} of {size} bytes: wanted {wanted:#04x} at byte {at}, found {found:#04x}"
            ))
        })?;
    }
    Ok(())
}

/// The seed of a message's contents, which depend on the round, the place in the window and the direction.
fn seed(round: u64, slot: usize, way: Way) -> u64 {
    (round << 20 | (slot as u64) << 1 | way as u64).wrapping_mul(0xD134_2543_DE82_EF95)
}
