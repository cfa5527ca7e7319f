//! The effects of requests on memory and on the other end's receives.

use std::collections::BTreeMap;

use ofi_verbs::rc::{Access, Remote, Segment, Status, Work};

use super::{
    Bytes, Endpoint, Executed, FOR_EVER, Fabric, Got, LOCAL_PROTECTION, Pair, Reading, Receive, Receives,
    Request, Stage, What,
};

/// The receive at the other end is too short.
const REMOTE_INVALID: Status = Status::from_raw(9);

/// A copy by the device, which does not count as one of the library's ([`ofi_core::copy::counted`]).
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, and the two do not overlap.
pub unsafe fn device_copy(from: *const u8, to: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to_nonoverlapping(to, len) };
    }
}

impl Fabric {
    /// The memory that accesses name by this address, under this key of a registration.
    fn real(&self, addr: u64, key: u32) -> *mut u8 {
        let at_address = || std::ptr::with_exposed_provenance_mut(addr as usize);
        self.mapped.get(&key).map_or_else(at_address, |mapped| mapped.at(addr))
    }

    /// The memory of segments that this end owns.
    pub(super) fn real_all(&self, segments: &[Segment]) -> Vec<Segment> {
        let real = |segment: &Segment| match segment.len {
            0 => *segment,
            _ => Segment { addr: self.real(segment.addr.addr() as u64, segment.lkey), ..*segment },
        };
        segments.iter().map(real).collect()
    }

    /// A place that a peer may access, by the address of its memory.
    pub(super) fn real_place(&self, at: Remote) -> Remote {
        Remote { addr: self.real(at.addr, at.rkey).expose_provenance() as u64, ..at }
    }

    /// Reads the bytes at a registered place.
    pub(super) fn take(&self, at: Remote, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = self.real(at.addr, at.rkey);
        // SAFETY: registered memory of this process; the caller has checked that it has `len` bytes.
        unsafe { device_copy(from, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Executes the next request of a queue pair. Whether the next one may follow.
    pub(super) fn execute(&mut self, pair: &mut Pair) -> bool {
        if pair.stage != Stage::Ready || self.steps < pair.wait {
            return false;
        }
        let reads = pair.executed.iter().any(|executed| executed.read.is_some());
        let Some(request) = pair.posted.pop_front_if(|request| !(request.how.fence && reads)) else {
            return false;
        };
        let mut read = None;
        let status = match self.arrive(pair, &request, &mut read) {
            Some(status) => status,
            None => {
                pair.posted.push_front(request);
                return false;
            }
        };
        let late = self.chance(self.plan.late);
        let due = self.steps + if late { self.draw() % 300 } else { 0 };
        let Request { id, number, how, .. } = request;
        pair.executed.push_back(Executed { due, id, number, status, quiet: how.quiet, read });
        if status != Status::SUCCESS {
            flush(pair);
            return false;
        }
        true
    }

    /// The result of a request at the other end; `None`: it is retried.
    fn arrive(&mut self, pair: &mut Pair, request: &Request, read: &mut Option<Reading>) -> Option<Status> {
        let (number, other) = match pair.other.and_then(|qp| Some((qp, self.pairs.get(&qp)?))) {
            Some((qp, other)) if other.stage == Stage::Ready => (qp, other.endpoint),
            _ => return self.unanswered(pair),
        };
        let is_cut = |endpoint| self.endpoints.get(&endpoint).is_none_or(|it: &Endpoint| it.vanished);
        if is_cut(pair.endpoint) || is_cut(other) {
            return self.unanswered(pair);
        }
        let bytes = match &request.what {
            What::Send(bytes, _) | What::Write(bytes, ..) => match bytes {
                Bytes::Inline(bytes) => bytes.clone(),
                Bytes::At(segments) if self.owns_all(segments) => gather(&self.real_all(segments)),
                Bytes::At(_) => return Some(LOCAL_PROTECTION),
            },
            What::Read(..) | What::Change(..) => Vec::new(),
        };
        match &request.what {
            &What::Send(_, data) => {
                let Some((id, into)) = self.receive_at(number) else { return self.not_ready(pair) };
                pair.tried = 0;
                place(pair);
                let is_there = self.owns_all(&into);
                let into = self.real_all(&into);
                let it = self.endpoints.get_mut(&other)?;
                if bytes.len() > total(&into) || !is_there {
                    let status = if is_there { Status::TOO_LONG } else { LOCAL_PROTECTION };
                    it.push(number, id, status, Ok(Got::NOTHING));
                    self.fail(number);
                    return Some(REMOTE_INVALID);
                }
                put(&into, &bytes);
                it.push(number, id, Status::SUCCESS, Ok(Got { len: bytes.len(), data, written: false }));
            }
            &What::Write(_, at, data) => {
                let len = bytes.len();
                if !self.allows(at, len, true) {
                    self.fail(number);
                    return Some(Status::REMOTE_ACCESS);
                }
                let receive = match data.map(|_| self.receive_at(number)) {
                    Some(None) => return self.not_ready(pair),
                    receive => receive.flatten(),
                };
                place(pair);
                if len > 0 {
                    pair.unplaced = Some((self.steps + self.draw() % 300, self.real_place(at), bytes));
                }
                if receive.is_some() || !self.chance(self.plan.unplaced) {
                    place(pair);
                }
                if let Some((id, _)) = receive {
                    pair.tried = 0;
                    let it = self.endpoints.get_mut(&other)?;
                    it.push(number, id, Status::SUCCESS, Ok(Got { len, data, written: true }));
                }
            }
            What::Change(into, work) => {
                let (Work::FetchAdd(at, _) | Work::CompareSwap { at, .. }) = *work else {
                    return Some(LOCAL_PROTECTION);
                };
                if !self.changes(at) {
                    self.fail(number);
                    return Some(Status::REMOTE_ACCESS);
                }
                place(pair);
                let was = self.take(at, 8);
                let old = was.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                let new = match *work {
                    Work::FetchAdd(_, add) => old.wrapping_add(add),
                    Work::CompareSwap { expected, new, .. } if old == expected => new,
                    _ => old,
                };
                pair.unplaced = Some((0, self.real_place(at), new.to_ne_bytes().to_vec()));
                place(pair);
                *read = Some((into.clone(), was, None)); // after a lost answer, the same answer is sent again
            }
            &What::Read(ref into, at) => {
                let len = total(into);
                if !self.allows(at, len, false) {
                    self.fail(number);
                    return Some(Status::REMOTE_ACCESS);
                }
                place(pair);
                // After a lost answer, the memory is read again, with its contents at that time.
                let again = self.draw().is_multiple_of(2).then_some(at);
                *read = Some((into.clone(), self.take(at, len), again));
            }
        }
        Some(Status::SUCCESS)
    }

    /// A receive of a queue pair, unless the pair is drawn to be not ready.
    fn receive_at(&mut self, qp: u32) -> Option<Receive> {
        if self.chance(self.plan.not_ready) {
            return None;
        }
        pop_receive(&mut self.endpoints, self.pairs.get_mut(&qp)?)
    }

    /// The other end has no receive: the request is retried.
    fn not_ready(&mut self, pair: &mut Pair) -> Option<Status> {
        pair.tried = pair.tried.saturating_add(1);
        pair.wait = self.steps + 1 + self.draw() % 20;
        (pair.tries != FOR_EVER && pair.tried > pair.tries).then_some(Status::NO_RECEIVE)
    }

    /// Whether a peer may change the number at this place.
    fn changes(&self, at: Remote) -> bool {
        let access = self.registered.get(&at.rkey).map(|&(.., access)| access);
        access == Some(Access::RemoteAtomic) && at.addr.is_multiple_of(8) && self.allows(at, 8, true)
    }

    /// The other end does not answer: the request is retried for a while.
    fn unanswered(&mut self, pair: &mut Pair) -> Option<Status> {
        let limit = *pair.given_up.get_or_insert(self.steps.saturating_add(self.plan.patience));
        (self.steps >= limit).then_some(Status::RETRY_EXCEEDED)
    }
}

/// A receive of a queue pair.
pub(super) fn pop_receive(endpoints: &mut BTreeMap<u64, Endpoint>, pair: &mut Pair) -> Option<Receive> {
    match &mut pair.receives {
        Receives::Of(endpoint) => endpoints.get_mut(endpoint)?.receives.pop_front(),
        Receives::Own(posted, _) => posted.pop_front(),
    }
}

pub fn total(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
}

/// Reads registered memory that is lent until its request has ended.
pub(super) fn gather(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(total(segments));
    for segment in segments.iter().filter(|segment| segment.len > 0) {
        // SAFETY: the caller's promise.
        bytes.extend(unsafe { std::slice::from_raw_parts(segment.addr, segment.len as usize) });
    }
    bytes
}

/// Writes bytes into registered memory that is long enough, and lent until its request or receive has ended.
pub fn put(segments: &[Segment], mut bytes: &[u8]) {
    for segment in segments {
        let (here, rest) = bytes.split_at(bytes.len().min(segment.len as usize));
        // SAFETY: the caller's promise; `here` is as long as the segment at most.
        unsafe { device_copy(here.as_ptr(), segment.addr, here.len()) };
        bytes = rest;
    }
}

/// Makes a reported write visible in memory.
pub(super) fn place(pair: &mut Pair) {
    if let Some((_, at, bytes)) = pair.unplaced.take() {
        put_at(at, &bytes);
    }
}

/// Writes to memory whose registration allows it.
pub(super) fn put_at(at: Remote, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut(at.addr as usize);
    // SAFETY: memory of this process whose registration was checked when the request was executed; deregistration
    // places a write that waits first.
    unsafe { device_copy(bytes.as_ptr(), to, bytes.len()) };
}

/// Completes the unexecuted requests as flushed.
pub(super) fn flush(pair: &mut Pair) {
    pair.stage = Stage::Failed;
    for Request { id, number, .. } in pair.posted.drain(..) {
        let status = Status::FLUSHED;
        pair.executed.push_back(Executed { due: 0, id, number, status, quiet: false, read: None });
    }
}
