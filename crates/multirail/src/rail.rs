//! A rail: a domain, an endpoint, a queue and an address vector of one provider, with the receives for its messages.
//!
//! The endpoint is closed before the memory of its operations is freed.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use ofi::raw::{
    AvAttr, BindFlags, Call, Caps, CompletionFlags, CompletionQueue, Context, CqAttr, CqBuffer, CqFormat,
    CqTaggedEntry, Desc, Domain, Endpoint, EpOption, EpType, Fabric, GetinfoFlags, Lent, MrMode, OpFlags,
    Piece, ReceiveOp, RemotePiece, RmaOp, SendOp, Threading, Version, WaitObj,
};
use ofi::{AddrFormat, Address, Buffer, Errno, Error, FiAddr, Hints, Info, RawBuffer, Result};
use ofi_core::slots::{SlotId, Slots};

use crate::engine::{Access, Core, OpId, Piece as Descriptor, RailSpec, Time, Way};
use crate::region::{Guard, Usable};
use crate::wire::message::MESSAGE;
use crate::wire::{MAX_ADDRESS_LEN, RailInfo};

/// Receives that wait for messages.
const RECEIVES: usize = 64;
/// Entries of one queue read.
const BATCH: usize = 32;

/// Interval at which a rail is asked whether its device is lost.
const LOSS_INTERVAL: Time = Time::from_millis(100);
/// A device that is lost sooner after it came back is left alone for [`PAUSE`], at first and at most.
const SOON: Time = Time::from_secs(60);
const PAUSE: (Time, Time) = (Time::from_secs(10), Time::from_secs(3600));

/// Initial and maximum time for which a rail is left alone whose queue cannot be read.
const REST: (Time, Time) = (Time::from_millis(500), Time::from_secs(30));

/// Counters of a rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailCounts {
    /// Reads and writes that were posted.
    pub accesses: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Times that the rail had no room.
    pub full: u64,
}

/// How a rail fences late writes of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutting {
    /// By closing the session's own registration. Registrations are entries in a table.
    Table,
    /// The same, but registrations are the device's, and pin the memory a second time.
    Pinned,
    /// By ending the connection to the peer.
    Connection,
}

/// What a read of a rail's queue has found.
#[derive(Clone, Copy)]
pub(crate) struct Polled {
    pub(crate) had_news: bool,
    /// The queue may have more entries.
    pub(crate) may_have_more: bool,
}

/// Memory of a region, and its description for a rail.
struct RailMemory {
    range: Usable,
    desc: [Desc; 1],
}

/// One rail.
pub(crate) struct Rail {
    pub(crate) spec: RailSpec,
    pub(crate) counts: RailCounts,
    pub(crate) info: Info,
    needs_desc: bool,
    endpoint: Option<Arc<dyn Endpoint>>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    av: Arc<dyn ofi::raw::AddressVector>,
    pub(crate) domain: Arc<dyn Domain>,
    _fabric: Arc<dyn Fabric>,
    receives: Vec<Option<RawBuffer>>,
    unposted: VecDeque<usize>,
    /// The buffer of one queue read.
    entries: Box<[CqTaggedEntry; BATCH]>,
    /// Messages in flight, with their operations: the context is the slot here.
    sends: Slots<(OpId, RawBuffer)>,
    /// The queue could not be read: the error, the time until which it is left alone, and for how long.
    failed: Option<(Errno, Time, Time)>,
    /// That receives cannot be posted was logged.
    is_short_logged: bool,
    device: DeviceState,
}

/// Whether a rail still has its device.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceState {
    /// When the endpoint is asked next, if it has a device of its own.
    ask_at: Option<Time>,
    /// When it was first asked.
    opened: Time,
    /// The device is lost, and is not opened again before this time.
    lost: Option<Time>,
    /// How long it is left alone after a loss.
    pause: Time,
    /// It has come back: a later rail has it.
    is_replaced: bool,
}

/// The infos that can be rails, of those that getinfo returns for `hints`.
pub(crate) fn infos(hints: &Hints) -> Result<Vec<Info>> {
    let mut hints = hints.clone();
    let wanted = &mut hints.info;
    wanted.ep_attr.ep_type = EpType::Rdm;
    if wanted.caps.is_empty() {
        wanted.caps = Caps::MSG | Caps::RMA;
    }
    wanted.domain_attr.threading = Threading::Safe;
    wanted.domain_attr.mr_mode |= MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY | MrMode::LOCAL;
    ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints))
}

impl Rail {
    /// Opens the rail of the first info that getinfo returns for `hints`.
    pub(crate) fn open(hints: &Hints, shared_memory: bool) -> Result<Self> {
        let info = infos(hints)?.into_iter().next().ok_or_else(|| Error::new(Errno::ENODATA))?;
        Self::of_info(&info, shared_memory)
    }

    /// Opens the rail of an info.
    pub(crate) fn of_info(info: &Info, shared_memory: bool) -> Result<Self> {
        let fabric = ofi::open_fabric(info)?;
        let domain = fabric.open_domain(info)?;
        let endpoint = domain.open_endpoint(info)?;
        let attr = CqAttr { size: 0, format: CqFormat::Tagged, wait_obj: WaitObj::Fd, wait_set: None };
        let cq = domain.open_cq(&attr)?;
        let av = domain.open_av(&AvAttr { av_type: info.domain_attr.av_type, ..AvAttr::default() })?;
        endpoint.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV)?;
        endpoint.bind_av(&av)?;
        if !shared_memory && info.fabric_attr.prov_name != "shm" {
            match endpoint.set_option(EpOption::SharedMemoryPermitted, 0) {
                Err(error) if error != Errno::ENOPROTOOPT => return Err(error),
                _ => {} // a provider without the option does not use shared memory
            }
        }
        endpoint.enable()?;
        let name = endpoint.name()?;
        if name.bytes().len() > MAX_ADDRESS_LEN {
            return Err(Error::wanted(
                Errno::EMSGSIZE,
                "the address of a rail",
                format!("at most {MAX_ADDRESS_LEN} bytes"),
                format!("{} bytes", name.bytes().len()),
                "choose a shorter name for the endpoint",
            ));
        }
        let provider = info.fabric_attr.prov_name.clone();
        tracing::info!(
            target: "multirail",
            provider,
            domain = info.domain_attr.name,
            device = info.nic.as_ref().map(|nic| nic.device_attr.name.as_str()),
            address = %name,
            "a rail is open"
        );
        let speed = info.nic.as_ref().map_or(0, |nic| nic.link_attr.speed);
        let spec = RailSpec {
            info: RailInfo { provider, format: name.format().as_c(), address: name.bytes().to_vec() },
            bandwidth: (speed > 0).then_some(speed as f64 / 8.0),
            wide_data: info.domain_attr.cq_data_size >= 8,
            severs: endpoint.severs(),
            operations: u32::try_from(info.tx_attr.size).unwrap_or(u32::MAX),
        };
        let mut rail = Self {
            spec,
            counts: RailCounts::default(),
            info: info.clone(),
            needs_desc: info.domain_attr.mr_mode.contains(MrMode::LOCAL),
            endpoint: Some(endpoint),
            cq,
            av,
            domain,
            _fabric: fabric,
            receives: (0..RECEIVES).map(|_| Some(vec![0_u8; MESSAGE].into_raw())).collect(),
            unposted: (0..RECEIVES).collect(),
            entries: Box::new([CqTaggedEntry::EMPTY; BATCH]),
            sends: Slots::default(),
            failed: None,
            is_short_logged: false,
            device: DeviceState::default(),
        };
        rail.device.ask_at = rail.has_device().then_some(Time::ZERO);
        rail.post_receives()?;
        Ok(rail)
    }

    fn endpoint(&self) -> Result<&Arc<dyn Endpoint>> {
        self.endpoint.as_ref().ok_or_else(|| Error::new(Errno::EOPBADSTATE))
    }

    /// Whether the rail is left alone, since its queue could not be read.
    #[inline]
    pub(crate) fn rests(&self, now: Time) -> bool {
        self.failed.is_some_and(|(_, until, _)| now < until)
    }

    /// Whether the device is lost, and may be opened again now.
    pub(crate) fn is_missed(&self, now: Time) -> bool {
        !self.device.is_replaced && self.device.lost.is_some_and(|until| until <= now)
    }

    /// This rail was opened in the place of `lost`, whose device is back.
    pub(crate) fn replaces(&mut self, lost: &mut Self) {
        lost.device.is_replaced = true;
        self.device.pause = lost.device.pause;
    }

    /// Asks the endpoint whether its device is lost. The thread that drives the rail does so, because the endpoint's
    /// lock is biased to it.
    #[cold]
    fn ask_for_device(&mut self, now: Time) {
        let DeviceState { opened, lost, ask_at, pause, .. } = &mut self.device;
        if *ask_at == Some(Time::ZERO) {
            *opened = now;
        }
        *ask_at = Some(now + LOSS_INTERVAL);
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.is_lost()) {
            let is_soon = !pause.is_zero() && now < *opened + SOON; // the first loss costs no pause
            *pause = if is_soon { (2 * *pause).min(PAUSE.1) } else { PAUSE.0 };
            *lost = Some(now + if is_soon { *pause } else { Time::ZERO });
            *ask_at = None;
        }
    }

    /// Whether it has a device of its own, which can be lost and come back.
    pub(crate) fn has_device(&self) -> bool {
        matches!(&*self.spec.info.provider, "efa" | "verbs")
    }

    /// Why the queue could not be read when it was last tried, and when it is tried again.
    pub(crate) fn failure(&self) -> Option<(Errno, Time)> {
        self.failed.map(|(errno, until, _)| (errno, until))
    }

    /// The queue cannot be read: the rail is left alone for some time, which doubles.
    #[cold]
    pub(crate) fn fail(&mut self, error: Error, now: Time) {
        let rest = self.failed.map_or(REST.0, |(_, _, rest)| (2 * rest).min(REST.1));
        self.failed = Some((error.errno(), now + rest, rest));
        self.counts.failed += 1;
        let (provider, domain) = (&self.spec.info.provider, &self.info.domain_attr.name);
        tracing::warn!(target: "multirail", provider, domain, %error, ?rest, "the queue of a rail cannot be read");
    }

    #[cold]
    fn recovered(&mut self) {
        self.failed = None;
        let (provider, domain) = (&self.spec.info.provider, &self.info.domain_attr.name);
        tracing::info!(target: "multirail", provider, domain, "the queue of a rail can be read again");
    }

    /// Whether receives could not be posted yet.
    pub(crate) fn is_short(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// The rail's queue.
    pub(crate) fn queue(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.cq)
    }

    fn post_receives(&mut self) -> Result<()> {
        while let Some(&index) = self.unposted.front() {
            let Some(raw) = &self.receives[index] else { break };
            let pieces = [Piece::new(raw.addr(), raw.len())];
            // SAFETY: the buffer belongs to this table until the receive has ended, or the endpoint is closed.
            let lent = unsafe { Lent::new(&pieces, &[]) };
            // The context of a receive is used only if the entry is marked as a receive.
            let op = ReceiveOp {
                flags: OpFlags::COMPLETION,
                call: Call::Msg,
                ..ReceiveOp::new(lent, Context(index + 1))
            };
            match self.endpoint()?.receive(&op) {
                Ok(()) => drop(self.unposted.pop_front()),
                Err(error) if error.is_again() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Posts receives. Those that the rail refuses are tried again: the queue can be read without them.
    fn refill(&mut self) {
        match self.post_receives() {
            Ok(()) if self.unposted.is_empty() => self.is_short_logged = false,
            Ok(()) => {}
            Err(error) => self.refused_receives(&error),
        }
    }

    #[cold]
    fn refused_receives(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.is_short_logged, true) {
            let (provider, domain) = (&self.spec.info.provider, &self.info.domain_attr.name);
            let unposted = self.unposted.len();
            tracing::warn!(target: "multirail", provider, domain, %error, unposted, "a rail takes no receives");
        }
    }

    /// Inserts a peer's address.
    pub(crate) fn insert(&self, format: u32, address: &[u8]) -> Result<u64, Errno> {
        let format = AddrFormat::from_c(format).ok_or(Errno::EINVAL)?;
        let inserted = self.av.insert(&[Address::new(format, address)]).pop();
        let inserted: Result<FiAddr> = inserted.ok_or(Errno::EINVAL)?;
        inserted.map(|addr| addr.0).map_err(|error| error.errno())
    }

    /// Removes a peer's address.
    pub(crate) fn remove(&self, addr: u64) {
        if let Err(error) = self.av.remove(&[FiAddr(addr)]) {
            tracing::warn!(target: "multirail", %error, "an address that cannot be removed");
        }
    }

    /// Sends a message. On `FI_EAGAIN` it returns the bytes.
    pub(crate) fn send(&mut self, op: OpId, addr: u64, bytes: Vec<u8>) -> Result<(), (Error, Vec<u8>)> {
        let endpoint = match self.endpoint() {
            Ok(endpoint) => Arc::clone(endpoint),
            Err(error) => return Err((error, bytes)),
        };
        let raw = bytes.into_raw();
        let pieces = [Piece::new(raw.addr(), raw.len())];
        let slot = self.sends.insert((op, raw));
        // SAFETY: the buffer belongs to the table until the send has ended, or the endpoint is closed.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        let send = SendOp {
            flags,
            call: Call::Msg,
            ..SendOp::new(lent, FiAddr(addr), Context(slot.to_wire() as usize))
        };
        match endpoint.send(&send) {
            Ok(()) => {
                self.counts.sent += 1;
                Ok(())
            }
            Err(error) => {
                let bytes = match self.sends.remove(slot) {
                    // SAFETY: taken apart above, and not posted.
                    Some((_, raw)) => unsafe { Vec::from_raw(raw) },
                    None => Vec::new(),
                };
                self.counts.full += u64::from(error.is_again());
                Err((error, bytes))
            }
        }
    }

    /// Posts accesses in order: `access`, which moves the first of `pieces` or a part of it, then one for each further
    /// piece, to which `access` advances. `more`: another access follows at once. On an error `access` is the one that
    /// was refused, and those before it are posted.
    #[inline(always)] // called in a loop that keeps most of its values in place
    pub(crate) fn access(
        &mut self,
        access: &mut Access,
        pieces: &[Descriptor],
        guard: &Guard,
        more: bool,
    ) -> Result<()> {
        let endpoint = self.endpoint.as_deref().ok_or_else(|| Error::new(Errno::EOPBADSTATE))?;
        let mut flags = OpFlags::COMPLETION | OpFlags::MORE;
        flags.set(OpFlags::DELIVERY_COMPLETE, access.way == Way::Write);
        flags.set(OpFlags::REMOTE_CQ_DATA, access.data.is_some());
        let (mut memory, mut known) = (self.memory(guard, access.region)?, access.region);
        let mut pairs = pieces.windows(2);
        loop {
            let next = pairs.next();
            if access.region != known {
                (memory, known) = (self.memory(guard, access.region)?, access.region);
            }
            let addr = memory.range.at(access.local, access.len);
            let pieces = [Piece::new(addr.ok_or_else(|| Error::new(Errno::EFAULT))?, access.len as usize)];
            let descs = if self.needs_desc { &memory.desc[..] } else { &[] };
            // SAFETY: the plan of the access's transfer keeps the region, and the engine keeps the plan until the
            // access has ended, `abandon` has succeeded, or the endpoint is closed; this program writes region memory
            // by copies only, as the documentation of regions states.
            let lent = unsafe { Lent::new(&pieces, descs) };
            let remote = [RemotePiece { addr: access.remote, len: access.len as usize, key: access.key }];
            flags.set(OpFlags::MORE, more || next.is_some());
            let op = RmaOp {
                buf: lent,
                remote: &remote,
                peer: FiAddr(access.addr),
                context: Context(access.op.to_bits() as usize),
                data: access.data.unwrap_or(0),
                flags,
                call: Call::Msg,
            };
            let posted = match access.way {
                Way::Write => endpoint.write(&op),
                Way::Read => endpoint.read(&op),
            };
            if let Err(error) = posted {
                self.counts.full += u64::from(error.is_again());
                return Err(error);
            }
            self.counts.accesses += 1;
            self.counts.bytes += access.len;
            let Some([this, next]) = next else { return Ok(()) };
            access.follow(this, next);
        }
    }

    /// The memory of a plan's region, as this rail uses it.
    #[inline]
    fn memory(&self, guard: &Guard, region: u32) -> Result<RailMemory> {
        let region = guard.get(region as usize).ok_or_else(|| Error::new(Errno::ECANCELED))?;
        // Device memory that the NIC does not register goes through host memory.
        let unable = if region.device().is_some() { Errno::EOPNOTSUPP } else { Errno::EFAULT };
        let range = region.usable(&self.domain).ok_or_else(|| Error::new(unable))?;
        let desc = if self.needs_desc { region.desc(self.index(region)?)? } else { Desc::NONE };
        Ok(RailMemory { range, desc: [desc] })
    }

    /// Abandons an access in flight: its memory is no longer used, and its completion still follows.
    pub(crate) fn abandon(&self, op: OpId) -> Result<()> {
        self.endpoint()?.abandon(Context(op.to_bits() as usize))
    }

    /// Ends the connection to a peer, on a rail with one connection per peer.
    pub(crate) fn sever(&self, addr: u64) -> Result<()> {
        self.endpoint()?.sever(FiAddr(addr))
    }

    /// How this rail fences late writes of one peer.
    pub(crate) fn shutting(&self) -> Shutting {
        // Registrations of efa are a device's although operations need no descriptor.
        let is_device = self.needs_desc || self.spec.info.provider == "efa";
        match (self.spec.severs, is_device) {
            (true, _) => Shutting::Connection,
            (false, true) => Shutting::Pinned,
            (false, false) => Shutting::Table,
        }
    }

    fn index(&self, region: &crate::region::Inner) -> Result<usize> {
        region.rail_of(&self.domain).ok_or_else(|| Error::new(Errno::EDOMAIN))
    }

    /// Drives the rail and passes its events to the engine.
    #[inline]
    pub(crate) fn poll(&mut self, core: &mut Core<Guard>, now: Time) -> Result<Polled> {
        let polled = self.read_queue(core, now);
        if self.device.ask_at.is_some_and(|at| at <= now) {
            self.ask_for_device(now);
        }
        if self.failed.is_some() && polled.is_ok() {
            self.recovered();
        }
        polled
    }

    fn read_queue(&mut self, core: &mut Core<Guard>, now: Time) -> Result<Polled> {
        /// A completion with one of these flags is not one of our accesses.
        const OTHERS: CompletionFlags = PEERS.union(CompletionFlags::SEND);
        /// A message or a write of a peer is mostly followed by others, so the queue is read once more.
        const PEERS: CompletionFlags = CompletionFlags::REMOTE_WRITE.union(CompletionFlags::RECV);
        let read = self.cq.read(&mut CqBuffer::new(&mut self.entries[..]));
        match read {
            Ok(count) => {
                let (mut at, mut is_met) = (0, false);
                while at < count {
                    let CqTaggedEntry { op_context, flags, len, data, .. } = self.entries[at];
                    at += 1;
                    if op_context.is_null() || flags.intersects(OTHERS) {
                        is_met |= flags.intersects(PEERS);
                        self.take(op_context, flags, Ok((len, data)), core, now);
                        continue;
                    }
                    let op = OpId::from_bits(op_context.0 as u64);
                    // The accesses of a row mostly end in their order.
                    let is_next = |(entry, nth): &(&CqTaggedEntry, usize)| {
                        entry.op_context.0 == op_context.0 + nth && !entry.flags.intersects(OTHERS)
                    };
                    let follow = self.entries[at..count].iter().zip(1..op.left_in_row() as usize);
                    let follow = follow.take_while(is_next).count();
                    core.ended_in_row(op, follow as u32 + 1, now);
                    at += follow;
                }
                self.refill();
                Ok(Polled { had_news: count > 0, may_have_more: is_met || count == BATCH })
            }
            Err(error) if error.is_again() => {
                if self.is_short() {
                    self.refill();
                }
                Ok(Polled { had_news: false, may_have_more: false })
            }
            Err(error) if error == Errno::EAVAIL => {
                let error = match self.cq.read_error() {
                    // Another thread of the provider has taken it.
                    Err(error) if error.is_again() => {
                        return Ok(Polled { had_news: false, may_have_more: false });
                    }
                    error => error?,
                };
                self.counts.failed += 1;
                self.take(error.op_context, error.flags, Err(error.err), core, now);
                self.refill();
                Ok(Polled { had_news: true, may_have_more: true })
            }
            Err(error) => Err(error),
        }
    }

    fn take(
        &mut self,
        context: Context,
        flags: CompletionFlags,
        result: Result<(usize, u64), Errno>,
        core: &mut Core<Guard>,
        now: Time,
    ) {
        if context.is_null() || flags.contains(CompletionFlags::REMOTE_WRITE) {
            if let Ok((_, data)) = result
                && flags.contains(CompletionFlags::REMOTE_CQ_DATA)
            {
                core.arrived(data);
            }
            return;
        }
        if flags.contains(CompletionFlags::RECV) {
            let index = context.0 - 1;
            let Some(Some(raw)) = self.receives.get(index) else { return };
            if let Ok((len, _)) = result {
                self.counts.received += 1;
                // SAFETY: the receive has ended, so the buffer belongs to the table alone; it is initialised, since it
                // comes from a vector.
                let bytes = unsafe { std::slice::from_raw_parts(raw.addr(), len.min(raw.len())) };
                core.message(bytes, now);
            }
            self.unposted.push_back(index);
            return;
        }
        let result = result.map(|_| ());
        if flags.contains(CompletionFlags::SEND) {
            if let Some((op, raw)) = self.sends.remove(SlotId::from_wire(context.0 as u64)) {
                // SAFETY: the send has ended.
                drop(unsafe { Vec::<u8>::from_raw(raw) });
                core.ended(op, result, now);
            }
            return;
        }
        core.ended(OpId::from_bits(context.0 as u64), result, now);
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        // Closing the endpoint ends all operations; only then is their memory freed.
        drop(self.endpoint.take());
        let RailCounts { accesses, bytes, sent, received, failed, full } = self.counts;
        let (provider, domain) = (&self.spec.info.provider, &self.info.domain_attr.name);
        tracing::info!(
            target: "multirail",
            provider, domain, accesses, bytes, sent, received, failed, full, "a rail is closed"
        );
        for raw in self.receives.iter_mut().filter_map(Option::take) {
            // SAFETY: of a vector, taken apart in `of_info`; the endpoint is closed.
            drop(unsafe { Vec::<u8>::from_raw(raw) });
        }
        for id in self.sends.ids(|_| true) {
            if let Some((_, raw)) = self.sends.remove(id) {
                // SAFETY: as above.
                drop(unsafe { Vec::<u8>::from_raw(raw) });
            }
        }
    }
}
