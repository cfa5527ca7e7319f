//! Messages: short ones inside a command, long ones announced and then pulled by the receiver.

mod pull;
mod receive;
mod send;

use ofi_api::Errno;
use ofi_core::transport::Upcalls;

use crate::Shm;
use crate::common::Common;
use crate::peer::Peer;

pub use receive::deliver;

impl Peer {
    /// The peer is attached: messages already in its ring count as sent.
    pub fn confirm<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        for id in std::mem::take(&mut self.initiated.unconfirmed) {
            self.finish(host, id, Ok(()));
        }
    }

    /// Takes back the messages in the ring: there is no peer.
    pub fn refuse<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H, errno: Errno) {
        self.lose(common, host, errno);
    }
}
