//! Messages: short ones inside a command, long ones announced and then pulled by the receiver.

mod pull;
mod receive;
mod send;

use ofi_api::Errno;
use ofi_core::transport::Host;

use crate::Shm;
use crate::common::Common;
use crate::lane::Lane;

pub use receive::deliver;

impl Lane {
    /// The peer is there: what was put into its ring before counts as sent.
    pub fn confirm<H: Host<Shm>>(&mut self, host: &mut H) {
        for id in std::mem::take(&mut self.initiated.unconfirmed) {
            self.finish(host, id, Ok(()));
        }
    }

    /// Takes back what the ring cannot carry any more: nobody is there.
    pub fn refuse<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H, errno: Errno) {
        self.lose(common, host, errno);
    }
}
