//! A passive endpoint: a listening identifier of rdma_cm.
//!
//! A request arrives with its own identifier, which is kept with the request (`RequestData`). Accepting takes it out,
//! and a rejection uses it. If it is dropped, the kernel rejects the request.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ofi_api::{Address, Errno, Error, Info, Result};
use ofi_core::cm::packet::{Kind, Packet};
use ofi_core::transport::{Port, RequestData};
use rustc_hash::FxHashMap;

use super::private;
use crate::errors::failed;
use crate::rc::CmEventKind;
use crate::rc::msg::{Channel, Identifier};
use crate::{address, devices};

/// The identifier of an unanswered request.
pub struct PendingIdentifier(Mutex<Option<Box<dyn Identifier>>>);

impl PendingIdentifier {
    /// Takes the identifier, to answer.
    pub fn take(&self) -> Option<Box<dyn Identifier>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Requests by their cookies, which this port assigns because rdma_cm has identifiers instead.
type Requests = FxHashMap<u64, (Weak<PendingIdentifier>, Option<Arc<PendingIdentifier>>)>;

/// A passive endpoint: its listening identifier and event channel.
pub struct MsgPort {
    // The listener is dropped first: its events arrive on the channel.
    listener: Box<dyn Identifier>,
    channel: Arc<dyn Channel>,
    address: Address,
    requests: Mutex<Requests>,
    lost: OnceLock<Errno>,
}

impl MsgPort {
    /// Listens at `name`, at the info's source address, or, without either, at a free port of the info's device.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`; `FI_ENODEV` if there is no such device.
    pub fn open(info: &Info, name: Option<&Address>) -> Result<Self> {
        let wanted = match name.or(info.src_addr.as_ref()) {
            Some(given) => address::socket(given)?,
            None => {
                let own = devices::of_info(info)?.into_iter().map(|own| SocketAddr::new(own.ip, 0));
                let mut own = own.filter(|&source| address::fits(source, Some(info.addr_format)));
                own.next().ok_or_else(|| {
                    let found = format!("none of {}", info.addr_format);
                    let wanted = "an address of the info's device in its addr_format";
                    let advice = "open it with an info of getinfo, which has a source address";
                    Error::wanted(Errno::EADDRNOTAVAIL, "a passive endpoint", wanted, found, advice)
                })?
            }
        };
        let failed = |error: ibv::Error| failed(&error);
        let channel = devices::channel_at(wanted.ip()).map_err(failed)?;
        let listener = Arc::clone(&channel).bind(wanted).map_err(failed)?;
        // The core has its own limit of unanswered requests.
        listener.listen(ibv::MAX_BACKLOG).map_err(failed)?;
        let address = address::canonical(listener.local_address().unwrap_or(wanted)).into();
        Ok(Self { listener, channel, address, requests: Mutex::default(), lost: OnceLock::new() })
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device is lost.
    fn lose(&self, errno: Errno) {
        tracing::error!(target: "ofi::verbs::ep_ctrl", address = %self.address, %errno, "a passive endpoint is lost with its device");
        let _ = self.lost.set(errno);
    }

    /// Processes a request. Returns the peer's address, and the packet for the core.
    fn take(&self, id: Box<dyn Identifier>, private_data: &[u8]) -> Option<(Address, Vec<u8>)> {
        let from: Address = address::canonical(id.peer_address()?).into();
        let Some(data) = private::parse(private_data) else {
            tracing::warn!(target: "ofi::verbs::ep_ctrl", %from, "refused a request of another program: its private data is shorter than its length field says");
            let _ = id.reject(&private::encode(b"private data of another program"));
            return None;
        };
        let cookie = getrandom::u64().ok()?;
        let packet = Packet::new(Kind::Request, cookie, data).encode();
        let asked = Arc::new(PendingIdentifier(Mutex::new(Some(id))));
        let mut requests = self.requests();
        requests.retain(|_, (asked, _)| asked.strong_count() > 0);
        requests.insert(cookie, (Arc::downgrade(&asked), Some(asked)));
        Some((from, packet))
    }
}

impl Port for MsgPort {
    fn address(&self) -> &Address {
        &self.address
    }

    fn send(&self, _to: &Address, packet: &[u8]) -> Result<()> {
        // The accepting endpoint reports the acceptance.
        let Some(Packet { kind: Kind::Reject, cookie, data, .. }) = Packet::parse(packet) else {
            return Ok(());
        };
        let request = self.requests().remove(&cookie);
        let id = request.and_then(|(asked, _)| asked.upgrade()).and_then(|asked| asked.take());
        id.map_or(Ok(()), |id| id.reject(&private::encode(data)).map_err(|error| failed(&error)))
    }

    fn receive(&self) -> Option<(Address, Vec<u8>)> {
        while self.lost.get().is_none() {
            let event = match Arc::clone(&self.channel).next() {
                Ok(event) => event?,
                Err(error) => {
                    self.lose(Errno::from_raw(error.errno));
                    break;
                }
            };
            if event.kind == CmEventKind::DeviceRemoved && event.id == self.listener.number() {
                self.lose(Errno::ENODEV);
                break;
            }
            if event.kind != CmEventKind::Request {
                continue; // the end of an unanswered request: accepting it will fail
            }
            let request = event.request.and_then(|id| self.take(id, &event.private_data));
            if request.is_some() {
                return request;
            }
        }
        None
    }

    fn lost(&self) -> Option<Errno> {
        self.lost.get().copied()
    }

    fn held(&self, cookie: u64) -> Option<RequestData> {
        self.requests().get_mut(&cookie)?.1.take().map(|asked| asked as RequestData)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.channel.fd())
    }
}
