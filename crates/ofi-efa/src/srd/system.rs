//! EFA devices of this host, through rdma-core.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Once, PoisonError};

use ibv::{
    AddressHandle, AsyncEvent, AsyncEvents, CompletionChannel, Context, EfaCompletion, EfaCompletionQueue,
    EfaOpcode, ForkSafety, MemoryRegion, Payload, ProtectionDomain, SrdAttr, SrdPeer, SrdQueuePair,
};
use ofi_api::{BusAttr, DeviceAttr, Dmabuf, Errno, Error, LinkAttr, LinkState, Nic, Result};
use rustc_hash::FxHashMap;

use super::attached::Attached;
use super::handles::Handles;
use super::{
    Access, Action, Completion, Device, DeviceLimits, From, Gid, QueuePair, Region, Segment, Sizes, Status,
    To, WorkRequest,
};
use crate::settings;

/// The device's number of retries to a receiver that is not ready, as in C libfabric. After them, the endpoint backs
/// off and resends.
const RNR_RETRY: u8 = 3;

/// The devices that were opened.
static OPENED: Mutex<Vec<(Context, Arc<dyn Device>)>> = Mutex::new(Vec::new());

/// All EFA devices that this host has now, or what is missing.
pub fn all() -> Result<Vec<Arc<dyn Device>>, String> {
    static PROTECTED: Once = Once::new();
    PROTECTED.call_once(protect_from_forks); // before any memory is registered
    let contexts = ibv::efa_contexts().map_err(|error| error.to_string())?;
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut open = |context: Context| -> Result<Arc<dyn Device>> {
        if let Some((_, device)) = opened.iter().find(|(known, _)| *known == context) {
            return Ok(Arc::clone(device));
        }
        let device = System::open(context)?;
        opened.push((context, Arc::clone(&device)));
        Ok(device)
    };
    usable(contexts.into_iter().map(|context| (context.name(), open(context))))
}

/// The devices that could be opened. Others are named in the log.
///
/// # Errors
/// The first failure, if there are no others.
fn usable<T>(devices: impl Iterator<Item = (String, Result<T>)>) -> Result<Vec<T>, String> {
    let (mut opened, mut failure) = (Vec::new(), None);
    for (device, result) in devices {
        match result {
            Ok(one) => opened.push(one),
            Err(error) => {
                tracing::warn!(target: "ofi::efa::fabric", device, %error, "a device cannot be used");
                failure.get_or_insert_with(|| error.to_string());
            }
        }
    }
    match failure {
        Some(why) if opened.is_empty() => Err(why),
        _ => Ok(opened),
    }
}

/// Protects registered memory from forks, if the user asks for it and the kernel does not do so.
fn protect_from_forks() {
    let safety = if settings::FORK_SAFE.get() { ibv::make_fork_safe() } else { ibv::fork_safety() };
    match safety {
        Ok(ForkSafety::Disabled) => tracing::info!(
            target: "ofi::efa::fabric",
            "a fork may leave the device with pages of the child: set FI_EFA_FORK_SAFE=1 if the program forks"
        ),
        Ok(safety) => tracing::debug!(target: "ofi::efa::fabric", ?safety, "protection from forks"),
        Err(error) if settings::FORK_SAFE.get() => {
            tracing::warn!(target: "ofi::efa::fabric", %error, "FI_EFA_FORK_SAFE has no effect");
        }
        Err(_) => {} // no libibverbs, and so no device
    }
}

fn failed(error: &ibv::Error) -> Error {
    Error::with(Errno::from_raw(error.errno), error.to_string())
}

/// A device.
struct System {
    name: String,
    pd: Arc<ProtectionDomain>,
    gid: Gid,
    limits: DeviceLimits,
    rnr_retry: Option<u8>,
    attached: Arc<Attached>,
    handles: Arc<Handles<AddressHandle>>,
}

impl System {
    fn open(context: Context) -> Result<Arc<dyn Device>> {
        let failed = |error: ibv::Error| failed(&error);
        let info = context.efa().map_err(failed)?;
        let port = context.port(1).map_err(failed)?;
        let gids = context.gids(1).map_err(failed)?;
        let gid = gids
            .first()
            .ok_or_else(|| {
                Error::with(Errno::ENODEV, "the device has no GID; check the driver (ibv_devinfo -v)")
            })?
            .0;
        let limits = DeviceLimits {
            mtu: port.max_message,
            sends: info.max_send as usize,
            receives: info.max_receive as usize,
            inline: info.max_inline.into(),
            inline_long: info.max_inline_long.into(),
            rdma: info.max_rdma as usize,
            read: info.read,
            write: info.write,
            unsolicited: info.unsolicited && info.write,
        };
        let pd = ProtectionDomain::new(context).map_err(failed)?;
        let rnr_retry = info.rnr_retry.then_some(RNR_RETRY);
        let (attached, handles) = (Arc::default(), Arc::default());
        Ok(Arc::new(Self { name: context.name(), pd, gid, limits, rnr_retry, attached, handles }))
    }
}

// SAFETY: the driver registers the memory that it is given, and reports the limits of the device.
unsafe impl Device for System {
    fn name(&self) -> &str {
        &self.name
    }

    fn gid(&self) -> Gid {
        self.gid
    }

    fn limits(&self) -> DeviceLimits {
        self.limits
    }

    fn nic(&self) -> Nic {
        let context = self.pd.context();
        let path = context.path();
        let read = |name: &str| std::fs::read_to_string(format!("{path}/device/{name}")).unwrap_or_default();
        let mut nic = Nic { numa_node: read("numa_node").trim().parse().ok(), ..Nic::default() };
        if let Ok(info) = context.query() {
            nic.device_attr = DeviceAttr {
                name: self.name.clone(),
                device_id: format!("{:#06x}", info.part),
                device_version: info.version.to_string(),
                vendor_id: format!("{:#06x}", info.vendor),
                driver: "efa".into(),
                firmware: info.firmware,
            };
        }
        let link = std::fs::read_link(format!("{path}/device")).unwrap_or_default();
        let last = link.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        nic.bus_attr = last.parse().map_or(BusAttr::Unknown, BusAttr::Pci);
        if let Ok(port) = context.port(1) {
            nic.link_attr = LinkAttr {
                address: std::net::Ipv6Addr::from(self.gid).to_string(),
                mtu: port.max_message,
                speed: usize::try_from(port.speed).unwrap_or(usize::MAX),
                state: if port.active { LinkState::Up } else { LinkState::Down },
                network_type: "EFA".into(),
            };
        }
        nic
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>> {
        // SAFETY: the caller's promise.
        let region = unsafe { MemoryRegion::new(&self.pd, addr, len, access) };
        Ok(Box::new(RegisteredMemory(region.map_err(|error| failed(&error))?)))
    }

    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Region>> {
        let region = MemoryRegion::of_dmabuf(&self.pd, (dmabuf.fd, dmabuf.offset), len, iova, access);
        Ok(Box::new(RegisteredMemory(region.map_err(|error| failed(&error))?)))
    }

    fn asks_again(&self) -> bool {
        self.rnr_retry.is_some()
    }

    fn open(&self, sizes: Sizes, rnr_retry: Option<u8>) -> Result<Box<dyn QueuePair>> {
        let Sizes { sends, receives, inline, unsolicited } = sizes;
        let failed = |error: ibv::Error| failed(&error);
        let context = self.pd.context();
        // Writes with data arrive without receives.
        let size = (sends + 2 * receives) as u32;
        let notified = CompletionChannel::new(context)
            .and_then(|channel| Ok((EfaCompletionQueue::new(context, size, Some(&channel))?, Some(channel))));
        // Older kernel modules have no notifications.
        let (cq, channel) = match notified {
            Ok(notified) => notified,
            Err(error) => {
                let Ok(cq) = EfaCompletionQueue::new(context, size, None) else { return Err(failed(error)) };
                tracing::info!(
                    target: "ofi::efa::ep_ctrl", device = self.name, %error,
                    "the device has no notifications: threads that wait for a queue poll it every millisecond"
                );
                (cq, None)
            }
        };
        let attr = SrdAttr {
            pd: Arc::clone(&self.pd),
            send_cq: Arc::clone(&cq),
            receive_cq: Arc::clone(&cq),
            sends: sends as u32,
            receives: receives as u32,
            send_pieces: 1,
            receive_pieces: 1,
            inline: inline as u32,
            unsolicited,
            service_level: 0,
        };
        let qp = SrdQueuePair::new(attr).map_err(failed)?;
        let random = getrandom::u32().map_err(|error| Error::with(Errno::EIO, error.to_string()))?;
        let qkey = random & 0x7FFF_FFFF;
        qp.activate(qkey, self.rnr_retry.map(|usual| rnr_retry.unwrap_or(usual))).map_err(failed)?;
        let qpn = u16::try_from(qp.number()).map_err(|_| {
            Error::with(
                Errno::EIO,
                format!(
                    "the device chose queue pair {}, but an EFA address has only 16 bits for it",
                    qp.number()
                ),
            )
        })?;
        Ok(Box::new(Queue {
            qp,
            cq,
            channel,
            pd: Arc::clone(&self.pd),
            qpn,
            qkey,
            events: AsyncEvents::new(context).map_err(failed)?,
            handles: Peers::new(&self.attached, &self.handles),
        }))
    }
}

struct RegisteredMemory(MemoryRegion);

// SAFETY: the registration ends with the value that holds it.
unsafe impl Region for RegisteredMemory {
    fn lkey(&self) -> u32 {
        self.0.lkey()
    }

    fn rkey(&self) -> u32 {
        self.0.rkey()
    }
}

/// A queue pair. It is declared before the objects that it uses, so that it is dropped first.
struct Queue {
    qp: Arc<SrdQueuePair>,
    cq: Arc<EfaCompletionQueue>,
    channel: Option<Arc<CompletionChannel>>,
    pd: Arc<ProtectionDomain>,
    qpn: u16,
    qkey: u32,
    events: AsyncEvents,
    handles: Peers,
}

/// The remote devices of a queue pair.
struct Peers {
    /// The handles by their numbers, which the device chooses.
    ways: Vec<Option<Arc<AddressHandle>>>,
    numbers: FxHashMap<Gid, u16>,
    attached: Arc<Attached>,
    shared: Arc<Handles<AddressHandle>>,
}

impl Peers {
    fn new(attached: &Arc<Attached>, shared: &Arc<Handles<AddressHandle>>) -> Self {
        let (attached, shared) = (Arc::clone(attached), Arc::clone(shared));
        Self { ways: Vec::new(), numbers: FxHashMap::default(), attached, shared }
    }

    /// The address of a sender's device that only another queue pair has attached.
    fn of_others(&self, number: u16) -> Option<Gid> {
        let is_own = matches!(self.ways.get(usize::from(number)), Some(Some(_)));
        if is_own { None } else { self.attached.gid(number) }
    }

    fn peer(&self, to: To) -> Result<SrdPeer<'_>> {
        match self.ways.get(usize::from(to.handle)) {
            Some(Some(ah)) => Ok(SrdPeer { ah, qp: to.qpn.into(), qkey: to.qkey }),
            _ => Err(Error::new(Errno::EADDRNOTAVAIL)),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.numbers.values().for_each(|&number| self.attached.remove(number));
    }
}

fn piece(segment: Segment) -> ibv::Segment {
    ibv::Segment { addr: segment.addr, len: segment.len as u32, lkey: segment.lkey }
}

// SAFETY: the driver keeps the promises; the queue pair is destroyed on drop.
unsafe impl QueuePair for Queue {
    fn qpn(&self) -> u16 {
        self.qpn
    }

    fn qkey(&self) -> u32 {
        self.qkey
    }

    fn attach(&mut self, gid: &Gid) -> Result<u16> {
        if let Some(number) = self.handles.numbers.get(gid) {
            return Ok(*number);
        }
        let make = || AddressHandle::new(&self.pd, ibv::Gid(*gid)).map_err(|error| failed(&error));
        let handle = self.handles.shared.get(gid, make)?;
        let number = handle.efa_number().map_err(|error| failed(&error))?;
        let ways = &mut self.handles.ways;
        ways.resize(ways.len().max(usize::from(number) + 1), None);
        ways[usize::from(number)] = Some(handle);
        self.handles.numbers.insert(*gid, number);
        self.handles.attached.add(number, *gid);
        Ok(number)
    }

    unsafe fn post(&mut self, requests: &[WorkRequest]) -> Result<()> {
        let mut batch = self.qp.requests();
        for &WorkRequest { id, to, action } in requests {
            let peer = self.handles.peer(to)?;
            let added = match action {
                Action::Send { from, inline: false, data } => {
                    let segment = [piece(from)];
                    // SAFETY: the caller's promise.
                    unsafe { batch.send(id, peer, Payload::Segments(&segment), data.map(as_c_has_it)) }
                }
                Action::Send { from, inline: true, data } => {
                    // SAFETY: as above.
                    let bytes = unsafe { std::slice::from_raw_parts(from.addr, from.len) };
                    // SAFETY: as above.
                    unsafe { batch.send(id, peer, Payload::Inline(bytes), data.map(as_c_has_it)) }
                }
                // SAFETY: as above.
                Action::Read { into, at } => unsafe { batch.read(id, peer, &[piece(into)], at) },
                // SAFETY: as above.
                Action::Write { from, at, data } => unsafe {
                    batch.write(id, peer, &[piece(from)], at, data.map(as_c_has_it))
                },
            };
            added.map_err(|error| failed(&error))?;
        }
        batch.submit().map_err(|error| failed(&error))
    }

    fn is_lost(&mut self) -> bool {
        while let Ok(Some(event)) = self.events.next() {
            tracing::info!(target: "ofi::efa::ep_ctrl", ?event, "a device reports an event");
            if event == AsyncEvent::DeviceFatal || event.failed_pair() == Some(self.qp.number()) {
                return true;
            }
        }
        false
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.events.fds().into()
    }

    fn stop(&mut self) {
        if let Err(error) = self.qp.stop() {
            tracing::error!(target: "ofi::efa::ep_ctrl", %error, "a queue pair cannot be stopped");
        }
    }

    unsafe fn receive(&mut self, receives: &[(u64, Segment)]) -> Result<()> {
        for some in receives.chunks(SrdQueuePair::RECEIVES) {
            let mut pieces = [(0, piece(some[0].1)); SrdQueuePair::RECEIVES];
            for (to, &(id, into)) in pieces.iter_mut().zip(some) {
                *to = (id, piece(into));
            }
            // SAFETY: the caller's promise.
            unsafe { self.qp.receive_all(&pieces[..some.len()]) }.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn poll(&mut self, into: &mut VecDeque<Completion>) -> Result<usize> {
        let handles = &self.handles;
        let polled = self.cq.poll(|entry| into.push_back(completion(entry, handles)));
        polled.map_err(|error| failed(&error))
    }

    fn arm(&mut self) -> Result<()> {
        self.cq.arm().map_err(|error| failed(&error))
    }

    fn quiet(&mut self) {
        self.cq.quiet();
    }

    fn fd(&self) -> Option<RawFd> {
        self.channel.as_ref().map(|channel| channel.fd())
    }
}

/// Converts immediate data between its value and the form that C's provider has on the wire. C's provider passes its
/// value to libibverbs as if it were in network order (`efa_rma.c`, `efa_cq.c` of libfabric 2.x), so the bytes travel
/// reversed.
fn as_c_has_it(data: u32) -> u32 {
    u32::from_be(data)
}

fn completion(entry: &EfaCompletion, handles: &Peers) -> Completion {
    let id = entry.id;
    let immediate = entry.immediate.map(as_c_has_it);
    let done = entry.status == ibv::Status::SUCCESS;
    match (entry.opcode, done) {
        (EfaOpcode::Receive | EfaOpcode::WriteArrived, false) => Completion::Returned { id },
        (EfaOpcode::Receive | EfaOpcode::WriteArrived, true) => {
            let handle = entry.source_ah;
            let told = entry.source_gid.map(|gid| gid.0);
            let gid = told.or_else(|| handles.of_others(handle?));
            let from = From { handle, gid, qpn: entry.source_qp as u16 };
            let len = entry.len as usize;
            match entry.opcode {
                EfaOpcode::WriteArrived => {
                    let (id, data) = ((!entry.unsolicited).then_some(id), immediate.unwrap_or(0));
                    Completion::Written { id, len, data, from }
                }
                _ => Completion::Received { id, len, data: immediate, from },
            }
        }
        _ => Completion::Sent { id, status: status(entry, done) },
    }
}

/// Translates the device's error numbers (`enum efa_io_comp_status` of its driver).
fn status(entry: &EfaCompletion, done: bool) -> Status {
    match entry.vendor {
        _ if done => Status::Done,
        1 => Status::Flushed,
        7 => Status::BadAddress,
        9 => Status::NoDestination,
        10 => Status::NotReady,
        13 | 15 => Status::Unresponsive,
        14 => Status::UnknownPeer,
        other => Status::Failed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_opened_leaves_the_others() {
        let bad = |name: &str| (name.to_owned(), Err(Error::with(Errno::EIO, "it is broken")));
        let good = |name: &str| (name.to_owned(), Ok(name.len()));
        assert_eq!(usable([bad("efa_0"), good("efa_10"), bad("efa_2")].into_iter()), Ok(vec![6]));
        let why = usable::<usize>([bad("efa_0")].into_iter()).unwrap_err();
        assert!(why.contains("it is broken"), "{why}");
        assert_eq!(usable::<()>(std::iter::empty()), Ok(Vec::new()));
    }
}
