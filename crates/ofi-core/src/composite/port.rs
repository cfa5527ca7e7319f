//! A passive endpoint that is reachable over two transports.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ofi_api::{Address, Errno, Error, Info, Result};

use super::CompositeSpec;
use super::link::{Names, NearRequest, unwrap};
use crate::sys::WaitSet;
use crate::transport::{Port, RequestData, Transport};

/// The maximum number of requesters whose transport is remembered. For others it is found by trying both.
const MAX_REMEMBERED: usize = 1024;

/// The state for near endpoints.
struct NearPort<P: CompositeSpec> {
    /// Closed first, so that no peer finds a port that is gone.
    _meeting: P::Meeting,
    port: Box<dyn Port>,
    set: WaitSet,
}

/// Requesters by their far addresses. A requester over the near transport is stored with its near address, and with the
/// far address of this end that it called.
#[derive(Default)]
struct KnownRequesters {
    ways: HashMap<Address, Option<Names>>,
    /// Oldest first.
    order: VecDeque<Address>,
    /// The port's data of the last request.
    held: Option<RequestData>,
}

impl KnownRequesters {
    fn remember(&mut self, from: &Address, near: Option<Names>) {
        if self.ways.insert(from.clone(), near).is_some() {
            return;
        }
        self.order.push_back(from.clone());
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ways.remove(&oldest);
        }
    }
}

/// A passive endpoint that listens on a near and a far transport.
pub struct BothPort<P: CompositeSpec> {
    near: Option<NearPort<P>>,
    far: Box<dyn Port>,
    asked: Mutex<KnownRequesters>,
}

impl<P: CompositeSpec> BothPort<P> {
    /// See [`Transport::open_port`].
    pub fn open(info: &Info, name: Option<&Address>) -> Result<Self> {
        let far = P::Far::open_port(info, name)?;
        let near = P::near_info(info).and_then(|near| {
            let opened = Self::open_near(&near, name, far.as_ref());
            if let Err(error) = &opened {
                let address = far.address();
                tracing::warn!(target: "ofi::core::ep_ctrl", %address, %error, "shared memory is unavailable: local peers connect over the network");
            }
            opened.ok()
        });
        Ok(Self { near, far, asked: Mutex::default() })
    }

    fn open_near(info: &Info, name: Option<&Address>, far: &dyn Port) -> Result<NearPort<P>> {
        let near = P::passive_near(name, far.address()).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))?;
        let port = P::Near::open_port(info, Some(&near))?;
        let set = WaitSet::new()?;
        for fd in [port.wait_fd(), far.wait_fd()] {
            set.add(fd.ok_or_else(|| Error::new(Errno::ENOSYS))?)?;
        }
        Ok(NearPort { _meeting: P::meet(&near)?, port, set })
    }

    fn asked(&self) -> MutexGuard<'_, KnownRequesters> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes packets of the near transport.
    fn receive_near(&self) -> Option<(Address, Vec<u8>)> {
        let (near, bytes) = self.near.as_ref()?.port.receive()?;
        let Some((asked_for, packet)) = unwrap(&bytes) else {
            tracing::debug!(target: "ofi::core::ep_ctrl", from = %near, "dropped a packet without the address that was called");
            return None;
        };
        let packet = packet.to_vec();
        let mut fars = P::far_addresses(&near);
        // A requester with several addresses most likely called from the one that was called.
        let own = self.far.address();
        let at = fars.iter().position(|far| P::is_beside(far, own)).unwrap_or(0);
        let far = if fars.is_empty() { near.clone() } else { fars.swap_remove(at) };
        let mut asked = self.asked();
        // An address of another kind would not belong to this endpoint.
        let own = if asked_for.format() == own.format() { asked_for } else { own.clone() };
        asked.remember(&far, Some(Names { far: own, near: near.clone() }));
        asked.held = Some(NearRequest::held(Names { far: far.clone(), near }));
        Some((far, packet))
    }
}

impl<P: CompositeSpec> Port for BothPort<P> {
    fn address(&self) -> &Address {
        self.far.address()
    }

    fn address_towards(&self, from: &Address) -> Address {
        match self.asked().ways.get(from) {
            Some(Some(names)) => names.far.clone(),
            _ => self.far.address_towards(from),
        }
    }

    fn send(&self, to: &Address, packet: &[u8]) -> Result<()> {
        let Some(near) = &self.near else { return self.far.send(to, packet) };
        let way = self.asked().ways.get(to).cloned();
        match way {
            Some(Some(names)) => near.port.send(&names.near, packet),
            Some(None) => self.far.send(to, packet),
            // The requester called another port, or long ago.
            None => match P::near_names(to).iter().find_map(|name| match near.port.send(name, packet) {
                Err(error) if !error.is_again() => None,
                sent => Some(sent),
            }) {
                Some(sent) => sent,
                None => self.far.send(to, packet),
            },
        }
    }

    fn receive(&self) -> Option<(Address, Vec<u8>)> {
        if let Some(received) = self.receive_near() {
            return Some(received);
        }
        let (from, packet) = self.far.receive()?;
        let mut asked = self.asked();
        asked.remember(&from, None);
        asked.held = None;
        Some((from, packet))
    }

    fn held(&self, cookie: u64) -> Option<RequestData> {
        let near = self.asked().held.clone();
        near.or_else(|| self.far.held(cookie))
    }

    fn lost(&self) -> Option<Errno> {
        self.far.lost()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.near.as_ref().map_or_else(|| self.far.wait_fd(), |near| Some(near.set.fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_askers_are_remembered_and_the_oldest_goes_first() {
        let address = |number: usize| Address::from_text(&number.to_string());
        let mut asked = KnownRequesters::default();
        for number in 0..MAX_REMEMBERED + 2 {
            asked.remember(&address(number), None);
        }
        let names = Names { far: address(8), near: address(9) };
        asked.remember(&address(2), Some(names.clone()));
        assert_eq!((asked.ways.len(), asked.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert_eq!(asked.ways.get(&address(1)), None);
        assert_eq!(asked.ways.get(&address(2)), Some(&Some(names)));
    }
}
