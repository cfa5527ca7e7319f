//! How much may be under way: controllers behind one trait.

mod fixed;
mod reno;

use alloc::boxed::Box;
use core::fmt::Debug;

use crate::time::Instant;

pub use fixed::Fixed;
pub use reno::Reno;

/// Decides how many bytes of a session may be under way. Packets that carry acknowledgements alone are not counted.
pub trait Controller: Debug + Send {
    /// Bytes that may be under way.
    fn window(&self) -> u64;

    /// Bytes that may leave in a round trip, evenly; `None`: as fast as they go.
    fn pace(&self) -> Option<u64>;

    /// `bytes` that left at `sent` have arrived. `limited`: the window was what held the sender back.
    fn on_acked(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool);

    /// `bytes` that left at `sent` are lost. `queue`: round trips are longer than they were at best, so packets wait
    /// somewhere.
    fn on_lost(&mut self, now: Instant, sent: Instant, bytes: u64, queue: bool);

    /// Packets were marked on their way, as a queue is about to be full (RFC 3168), the youngest of those that have
    /// arrived left at `sent`.
    fn on_marked(&mut self, now: Instant, sent: Instant);

    /// Nothing has been heard for several probe timeouts.
    fn on_silence(&mut self, now: Instant);

    /// Something has been heard again. What left during the silence and is found to be lost tells nothing new.
    fn on_heard(&mut self, now: Instant);

    /// Packets now have `bytes` at most.
    fn set_packet_size(&mut self, bytes: u64);
}

/// Which controller sessions get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// [`Reno`]: shares a link fairly with TCP.
    #[default]
    Reno,
    /// The same, but what the window allows leaves at once.
    Bursts,
    /// [`Fixed`]: only credit counts. For networks that nobody else uses.
    Fixed,
}

impl Congestion {
    /// A controller of this kind, for packets of `packet` bytes.
    pub fn controller(self, packet: u64) -> Box<dyn Controller> {
        match self {
            Self::Reno => Box::new(Reno::new(packet, true)),
            Self::Bursts => Box::new(Reno::new(packet, false)),
            Self::Fixed => Box::new(Fixed),
        }
    }
}
