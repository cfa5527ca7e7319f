//! Congestion controllers behind one trait. They decide how much may be in flight.

mod fixed;
mod reno;

use alloc::boxed::Box;
use core::fmt::Debug;

use crate::time::Instant;

pub use fixed::Fixed;
pub use reno::Reno;

/// Decides how many bytes of a session may be in flight. Packets that only acknowledge are not counted.
pub trait Controller: Debug + Send {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Bytes that may leave per round trip, evenly spaced. `None`: no pacing.
    fn pace(&self) -> Option<u64>;

    /// `bytes` sent at `sent` were acknowledged. `limited`: the window, not the application, limited the sender.
    fn on_acked(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool);

    /// `bytes` sent at `sent` were lost. `queue`: the round-trip time is above its minimum, so there is a queue of
    /// packets on the path.
    fn on_lost(&mut self, now: Instant, sent: Instant, bytes: u64, queue: bool);

    /// Packets were marked on the path because a queue is nearly full (RFC 3168). `sent` is the time at which the
    /// youngest marked packet that arrived was sent.
    fn on_marked(&mut self, now: Instant, sent: Instant);

    /// The peer was silent for several probe timeouts.
    fn on_silence(&mut self, now: Instant);

    /// The peer was heard again. Losses of packets sent during the silence carry no new information.
    fn on_heard(&mut self, now: Instant);

    /// The packet size is now `bytes` at most.
    fn set_packet_size(&mut self, bytes: u64);
}

/// The congestion controller of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// [`Reno`]: shares a link fairly with TCP.
    #[default]
    Reno,
    /// [`Reno`] without pacing: everything that the window allows is sent at once.
    Bursts,
    /// [`Fixed`]: only the receiver's credit limits the sender. For networks without other traffic.
    Fixed,
}

impl Congestion {
    /// Creates a controller of this kind for packets of `packet` bytes.
    pub fn controller(self, packet: u64) -> Box<dyn Controller> {
        match self {
            Self::Reno => Box::new(Reno::new(packet, true)),
            Self::Bursts => Box::new(Reno::new(packet, false)),
            Self::Fixed => Box::new(Fixed),
        }
    }
}
