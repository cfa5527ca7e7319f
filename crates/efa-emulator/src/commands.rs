//! The kernel's commands, which libibverbs writes to the device's file (`ib_user_verbs.h`, `efa-abi.h`). Newer commands
//! use ioctl, which the emulator refuses as unknown: libibverbs then writes these.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::device::{
    Channel, CompletionQueue, Device, DeviceRegion, PeerHandle, QUEUE_PAIRS, QueuePair, RECEIVE_DOORBELL,
    Ring, SEND_DOORBELL, State,
};
use crate::formats::{INLINE, LONG_REQUEST, RECEIVE, REQUEST};
use crate::memory::poke;
use crate::settings::cap;

/// Limits of the device: those of real devices, as far as they are known.
mod limit {
    pub const SENDS: u32 = 4096;
    pub const RECEIVES: u32 = 32_768;
    pub const SEND_PIECES: u32 = 2;
    pub const RECEIVE_PIECES: u32 = 4;
    pub const RDMA: u32 = 1 << 30;
    pub const COMPLETIONS: u32 = 65_536;
    pub const HANDLES: usize = 32_768;
}

/// The bytes of a command.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], i32> {
        let bytes = self.0.get(at..at + N).ok_or(libc::EINVAL)?;
        Ok(std::array::from_fn(|index| bytes[index]))
    }

    fn u8(&self, at: usize) -> Result<u8, i32> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn u32(&self, at: usize) -> Result<u32, i32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, i32> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// A field that older libraries do not send.
    fn u16_or_zero(&self, at: usize) -> u16 {
        self.array(at).map_or(0, u16::from_ne_bytes)
    }
}

/// The bytes of an answer.
#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    fn u8s(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u16s(mut self, numbers: &[u16]) -> Self {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    fn u32s(mut self, numbers: &[u32]) -> Self {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    fn u64s(mut self, numbers: &[u64]) -> Self {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }
}

impl Device {
    /// Executes a command that was written to the device's file.
    ///
    /// # Errors
    /// The error number for the program.
    pub fn command(&mut self, file: RawFd, bytes: &[u8]) -> Result<(), i32> {
        let all = Input(bytes);
        let (command, sizes) = (all.u32(0)?, all.u32(4)?);
        let extended = command & 1 << 31 != 0;
        let (in_words, out_words) = (sizes as u16 as usize, (sizes >> 16) as usize);
        // The address of the answer is in the header of an extended command. In other commands it is the first field,
        // if there is an answer.
        let (body, room, place) = if extended {
            let (more_in, more_out) = (all.u16_or_zero(16) as usize, all.u16_or_zero(18) as usize);
            if bytes.len() != 24 + 8 * (in_words + more_in) {
                return Err(libc::EINVAL);
            }
            (&bytes[24..], 8 * (out_words + more_out), all.u64(8)?)
        } else {
            if bytes.len() != 4 * in_words {
                return Err(libc::EINVAL);
            }
            (&bytes[8..], 4 * out_words, all.u64(8).unwrap_or(0))
        };
        let input = Input(body);
        // Objects of a device that is gone can be destroyed, as in the kernel.
        if self.is_gone && !matches!(command & 0xff, 4 | 8 | 13 | 20 | 27) {
            return Err(libc::EIO);
        }
        let output = match (extended, command & 0xff) {
            (false, 0) => self.get_context()?,
            (false, 1) => self.query_device(),
            (true, 1) => self.query_device_ex(8 * out_words),
            (false, 2) => self.query_port(input.u8(8)?)?,
            (false, 3) => self.alloc_domain(file)?,
            (false, 4) => return self.free_domain(file, input.u32(0)?),
            (false, 5) => self.create_handle(file, &input)?,
            (false, 8) => return self.handles.remove(&input.u32(0)?).map(|_| ()).ok_or(libc::EINVAL),
            (false, 9) => self.register(file, &input)?,
            (false, 13) => return self.remove_region(input.u32(0)?).then_some(()).ok_or(libc::EINVAL),
            (false, 17) => self.create_channel()?,
            (false, 18) => self.create_queue(file, &input)?,
            (false, 20) => self.destroy_queue(input.u32(8)?)?,
            (false, 24) => self.create_pair(file, &input)?,
            (false, 25) => self.query_pair(input.u32(8)?)?,
            (false, 26) => return self.modify_pair(&input),
            (false, 27) => self.destroy_pair(input.u32(8)?)?,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let answer = &output.0[..output.0.len().min(room)];
        if poke(place, answer) { Ok(()) } else { Err(libc::EFAULT) }
    }

    fn get_context(&mut self) -> Result<Output, i32> {
        let (program, device) = pipe()?;
        let file = program.as_raw_fd();
        std::mem::forget(program); // the program closes it
        self.reports.push(file);
        self.channels.insert(file, Channel { read: duplicate(file)?, write: device });
        // Follows the part common to all devices: efa_ibv_alloc_ucontext_resp.
        let answer = Output::default().u32s(&[file as u32, 1, 0, 0b11]).u16s(&[1, INLINE as u16]);
        let answer = answer.u32s(&[limit::SENDS * REQUEST as u32]).u16s(&[64, 32]);
        Ok(answer.u16s(&[self.settings.inline as u16, 0]))
    }

    fn query_device(&self) -> Output {
        let guid: [u8; 8] = std::array::from_fn(|byte| self.gid[8 + byte]);
        let answer = Output::default().u64s(&[0]).u8s(&guid).u8s(&guid).u64s(&[1 << 40, !0xfff]);
        let pairs = QUEUE_PAIRS as u32;
        answer
            .u32s(&[crate::VENDOR, crate::PART, 0, pairs, limit::SENDS, 0, limit::SEND_PIECES, 1, 1024])
            .u32s(&[limit::COMPLETIONS, self.settings.regions as u32, 256])
            // The limits of outstanding reads and atomics, and so on up to multicast groups.
            .u32s(&[0; 14])
            .u32s(&[limit::HANDLES as u32, 0, 0, 0, 0, 0])
            .u16s(&[1])
            .u8s(&[0, 1, 0, 0, 0, 0])
    }

    fn query_device_ex(&self, core: usize) -> Output {
        let mut answer = self.query_device().u32s(&[0, core as u32]);
        answer.0.resize(core.max(answer.0.len()), 0);
        // efa_ibv_ex_query_device_resp.
        answer
            .u32s(&[0, limit::SENDS, limit::RECEIVES])
            .u16s(&[limit::SEND_PIECES as u16, limit::RECEIVE_PIECES as u16])
            .u32s(&[limit::RDMA, self.settings.caps])
    }

    fn query_port(&self, port: u8) -> Result<Output, i32> {
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let answer = Output::default().u32s(&[0, self.settings.mtu, 0, 0, 1]).u16s(&[1, 0, 0]);
        // Active, MTU 4,096 twice, ..., 4 lanes of 25 Gbit/s, link up, link layer not specified.
        Ok(answer.u8s(&[4, 5, 5, 0, 1, 0, 0, 0, 2, 32, 5, 0, 0, 0]))
    }

    fn alloc_domain(&mut self, file: RawFd) -> Result<Output, i32> {
        let domain = self.number();
        self.domains.insert(domain, file);
        Ok(Output::default().u32s(&[domain, 0]).u16s(&[domain as u16, 0]))
    }

    /// Checks that a domain belongs to that file.
    pub fn owned(&self, file: RawFd, domain: u32) -> Result<u32, i32> {
        self.domains.get(&domain).filter(|owner| **owner == file).map(|_| domain).ok_or(libc::EINVAL)
    }

    fn free_domain(&mut self, file: RawFd, domain: u32) -> Result<(), i32> {
        self.owned(file, domain)?;
        let used = self.regions.values().any(|region| region.domain == domain)
            || self.pairs.values().any(|pair| pair.domain == domain)
            || self.handles.values().any(|handle| handle.domain == domain);
        if used {
            return Err(libc::EBUSY);
        }
        self.domains.remove(&domain);
        Ok(())
    }

    fn create_handle(&mut self, file: RawFd, input: &Input<'_>) -> Result<Output, i32> {
        let (domain, gid) = (self.owned(file, input.u32(16)?)?, input.array::<16>(24)?);
        let (is_global, port) = (input.u8(24 + 29)?, input.u8(24 + 30)?);
        if is_global == 0 || port != 1 {
            return Err(libc::EINVAL);
        }
        let number = self.handle_for(domain, &gid).or_else(|| {
            let used: Vec<u16> = self.handles.values().map(|handle| handle.number).collect();
            (0..limit::HANDLES as u16).find(|number| !used.contains(number))
        });
        let number = number.ok_or(libc::ENOMEM)?;
        let handle = self.number();
        self.handles.insert(handle, PeerHandle { domain, gid, number });
        Ok(Output::default().u32s(&[handle, 0]).u16s(&[number, 0]))
    }

    fn register(&mut self, file: RawFd, input: &Input<'_>) -> Result<Output, i32> {
        let (start, len, named) = (input.u64(8)?, input.u64(16)?, input.u64(24)?);
        let (domain, access) = (self.owned(file, input.u32(32)?)?, input.u32(36)?);
        if start.checked_add(len).is_none() || named.checked_add(len).is_none() {
            return Err(libc::EINVAL);
        }
        if !present(start, len) {
            return Err(libc::EFAULT);
        }
        let key = self.add_region(DeviceRegion { domain, start, len, named, access })?;
        Ok(Output::default().u32s(&[key, key, key]))
    }

    /// Adds a registration. Returns its key.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many, `EOPNOTSUPP` for rights that the device does not have.
    pub fn add_region(&mut self, region: DeviceRegion) -> Result<u32, i32> {
        // Local and remote writes, remote reads, and optional flags that a device may ignore; the device has no atomics
        // and no windows.
        let known = 0b111 | 0x3ff0_0000;
        if region.access & !known != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if self.regions.len() >= self.settings.regions {
            return Err(libc::ENOMEM);
        }
        // 24 bits. The low bits change each time, so that the key of a closed region is not reused soon.
        let mut key;
        loop {
            key = (self.number() << 6 | (self.random.fresh() & 0x3f) as u32) & 0xff_ffff;
            if key != 0 && !self.regions.contains_key(&key) {
                break;
            }
        }
        self.regions.insert(key, region);
        Ok(key)
    }

    /// Removes a registration. `false` if there is none with that key.
    pub fn remove_region(&mut self, key: u32) -> bool {
        self.mapped.remove(&key);
        self.regions.remove(&key).is_some()
    }

    fn create_channel(&mut self) -> Result<Output, i32> {
        let (program, device) = pipe()?;
        let file = program.as_raw_fd();
        let read = duplicate(file)?;
        std::mem::forget(program); // the program closes it
        self.channels.insert(file, Channel { read, write: device });
        Ok(Output::default().u32s(&[file as u32]))
    }

    fn create_queue(&mut self, file: RawFd, input: &Input<'_>) -> Result<Output, i32> {
        let (name, entries, channel) = (input.u64(8)?, input.u32(16)?, input.u32(24)? as RawFd);
        // efa_ibv_create_cq.
        let (entry, parts, flags) = (input.u32(36)?, input.u16_or_zero(40), input.u8(42)?);
        let sized = entry == 16 || entry == 32;
        if !sized || parts != 1 || entries == 0 || entries > limit::COMPLETIONS || flags & !0b111 != 0 {
            return Err(libc::EINVAL);
        }
        let channel = (channel >= 0).then_some(channel);
        if channel.is_some_and(|channel| !self.channels.contains_key(&channel)) {
            return Err(libc::EBADF);
        }
        let entries = entries.next_power_of_two();
        let (key, ring) = self.map((entries * entry) as usize)?;
        let (doorbell_key, doorbell) = self.map(4)?;
        let number = self.number();
        let len = ring.len() as u64;
        let queue = CompletionQueue {
            owner: file,
            ring,
            doorbell,
            entries,
            entry: entry as usize,
            written: 0,
            channel,
            name,
            events: 0,
            told: 0,
        };
        self.queues.insert(number, queue);
        // efa_ibv_create_cq_resp; bit 0 means that there is a doorbell.
        let answer = Output::default().u32s(&[number, entries, 1, 0]).u64s(&[key, len]);
        Ok(answer.u16s(&[number as u16, 0]).u32s(&[0]).u64s(&[doorbell_key]))
    }

    fn destroy_queue(&mut self, number: u32) -> Result<Output, i32> {
        let used = self.pairs.values().any(|pair| pair.send_queue == number || pair.receive_queue == number);
        if used {
            return Err(libc::EBUSY);
        }
        let queue = self.queues.remove(&number).ok_or(libc::EINVAL)?;
        let maps = [&queue.ring, &queue.doorbell];
        self.maps.retain(|_, shared| !maps.iter().any(|gone| Arc::ptr_eq(gone, shared)));
        let channel = queue.channel.and_then(|channel| self.channels.get(&channel));
        let unread = channel.map_or(0, |channel| take_back(channel, queue.name));
        Ok(Output::default().u32s(&[queue.events.saturating_sub(unread), 0]))
    }

    fn create_pair(&mut self, file: RawFd, input: &Input<'_>) -> Result<Output, i32> {
        let domain = self.owned(file, input.u32(16)?)?;
        let (send_queue, receive_queue) = (input.u32(20)?, input.u32(24)?);
        let limits: [u32; 5] =
            [input.u32(32)?, input.u32(36)?, input.u32(40)?, input.u32(44)?, input.u32(48)?];
        let (kind, shared_receives) = (input.u8(53)?, input.u8(54)?);
        // efa_ibv_create_qp; fields after its first 16 bytes came with rdma-core 53.
        let (receive_bytes, send_bytes, driver) = (input.u32(60)?, input.u32(64)?, input.u32(68)?);
        let flags = input.u16_or_zero(72);
        for queue in [send_queue, receive_queue] {
            self.queues.get(&queue).filter(|queue| queue.owner == file).ok_or(libc::EINVAL)?;
        }
        let inline = self.settings.inline.max(INLINE);
        let most = [limit::SENDS, limit::RECEIVES, limit::SEND_PIECES, limit::RECEIVE_PIECES, inline];
        if limits.iter().zip(most).any(|(asked, most)| *asked > most) || shared_receives != 0 {
            return Err(libc::EINVAL);
        }
        let datagrams = kind == UD;
        if !datagrams && (kind != DRIVER || driver != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let unsolicited = flags & 1 != 0;
        let may = self.settings.caps & cap::UNSOLICITED != 0 && !datagrams;
        if flags & !1 != 0 || unsolicited && !may {
            return Err(libc::EOPNOTSUPP);
        }
        // libefa makes the queue's places longer for more inline bytes; it names only the queue's size.
        let is_long = inline > INLINE && u64::from(send_bytes) == LONG_REQUEST as u64 * u64::from(limits[0]);
        let request = if is_long { LONG_REQUEST } else { REQUEST };
        let (sends, receives) = (send_bytes / request as u32, receive_bytes / RECEIVE as u32);
        if send_bytes > limit::SENDS * REQUEST as u32 || receives > limit::RECEIVES * limit::RECEIVE_PIECES {
            return Err(libc::EINVAL);
        }
        if limits[4] > INLINE && !is_long {
            return Err(libc::EINVAL);
        }
        let number = self.pair_number().ok_or(libc::ENOMEM)?;
        let (send_key, doorbell) = self.map(4)?;
        let receive_key = self.name(&doorbell);
        let (sends_key, sends_ring) = self.map(send_bytes as usize)?;
        let (receives_key, receives_ring) = self.map(receive_bytes as usize)?;
        let receives_len = receives_ring.len() as u64;
        let ring =
            |shared, entries, entry| Ring { shared: Some(shared), entries, entry, posted: 0, taken: 0 };
        let pair = QueuePair {
            owner: file,
            domain,
            state: State::Reset,
            qkey: 0,
            rnr_retry: 7,
            send_queue,
            receive_queue,
            unsolicited,
            datagrams,
            doorbell,
            sends: ring(sends_ring, sends.max(1), request),
            receives: ring(receives_ring, receives.max(1), RECEIVE),
            limits,
        };
        self.pairs.insert(number, pair);
        let number = u32::from(number);
        let answer = Output::default().u32s(&[number, number]).u32s(&limits).u32s(&[0]);
        // efa_ibv_create_qp_resp.
        let answer = answer.u32s(&[0, RECEIVE_DOORBELL as u32, SEND_DOORBELL as u32, 0]);
        Ok(answer.u64s(&[receives_key, receives_len, receive_key, send_key, sends_key]).u32s(&[0, 0]))
    }

    /// A number that is free in libefa's table and was not used recently.
    fn pair_number(&mut self) -> Option<u16> {
        let places = QUEUE_PAIRS as u16;
        let from = self.number() as u16;
        let place = (0..places).map(|step| from.wrapping_add(step) % places);
        let place = { place }.find(|place| !self.pairs.keys().any(|used| used % places == *place))?;
        Some((self.random.fresh() as u16 & 0xff) * places + place)
    }

    fn query_pair(&self, number: u32) -> Result<Output, i32> {
        let pair = u16::try_from(number).ok().and_then(|number| self.pairs.get(&number));
        let pair = pair.ok_or(libc::EINVAL)?;
        let state = match pair.state {
            State::Reset => 0,
            State::Init => 1,
            State::Receiving => 2,
            State::Sending => 3,
            State::Error => 6,
        };
        let answer = Output::default().u8s(&[0; 64]).u32s(&pair.limits).u32s(&[pair.qkey, 0, 0, 0, 0]);
        Ok(answer
            .u16s(&[0, 0])
            .u8s(&[state, state, 5, 0, 0, 0, 0, 0, 1, 0, 0, pair.rnr_retry, 0, 0, 1])
            .u8s(&[0; 5]))
    }

    fn modify_pair(&mut self, input: &Input<'_>) -> Result<(), i32> {
        let (number, mask, qkey) = (input.u32(64)?, input.u32(68)?, input.u32(72)?);
        let (state, rnr_retry) = (input.u8(96)?, input.u8(107)?);
        let number = u16::try_from(number).map_err(|_| libc::EINVAL)?;
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        if mask & MASK_RNR != 0 {
            if self.settings.caps & cap::RNR_RETRY == 0 || rnr_retry > 7 {
                return Err(libc::EOPNOTSUPP);
            }
            pair.rnr_retry = rnr_retry;
        }
        if mask & MASK_QKEY != 0 {
            pair.qkey = qkey;
        }
        if mask & 1 == 0 {
            return Ok(());
        }
        pair.state = match (pair.state, state) {
            (_, 0) => State::Reset,
            (State::Reset | State::Init, 1) => State::Init,
            (State::Init, 2) => State::Receiving,
            (State::Receiving | State::Sending, 3) => State::Sending,
            (_, 6) => State::Error,
            _ => return Err(libc::EINVAL),
        };
        match pair.state {
            State::Error => self.flush(number),
            State::Reset => self.forget(number),
            _ => {}
        }
        Ok(())
    }

    fn destroy_pair(&mut self, number: u32) -> Result<Output, i32> {
        let number = u16::try_from(number).map_err(|_| libc::EINVAL)?;
        let pair = self.pairs.remove(&number).ok_or(libc::EINVAL)?;
        let rings = [pair.sends.shared.as_ref(), pair.receives.shared.as_ref(), Some(&pair.doorbell)];
        self.maps.retain(|_, shared| !rings.iter().flatten().any(|gone| Arc::ptr_eq(gone, shared)));
        self.forget(number);
        Ok(Output::default().u32s(&[0]))
    }

    /// Discards a queue pair's requests in flight.
    pub fn forget(&mut self, number: u16) {
        self.requests.retain(|_, pending| pending.pair != number);
    }

    /// Called when the program has closed the device's file: removes the objects created through it.
    pub fn close(&mut self, file: RawFd) {
        self.open.retain(|open| *open != file);
        let pairs: Vec<u16> =
            self.pairs.iter().filter(|(_, pair)| pair.owner == file).map(|(number, _)| *number).collect();
        for number in pairs {
            let _ = self.destroy_pair(u32::from(number));
        }
        let queues: Vec<u32> =
            self.queues.iter().filter(|(_, queue)| queue.owner == file).map(|(number, _)| *number).collect();
        for number in queues {
            let _ = self.destroy_queue(number);
        }
        let mine: Vec<u32> =
            self.domains.iter().filter(|(_, owner)| **owner == file).map(|(domain, _)| *domain).collect();
        self.domains.retain(|domain, _| !mine.contains(domain));
        self.regions.retain(|_, region| !mine.contains(&region.domain));
        self.mapped.retain(|key, _| self.regions.contains_key(key));
        self.handles.retain(|_, handle| !mine.contains(&handle.domain));
    }
}

/// `IBV_QPT_UD`.
const UD: u8 = 4;
/// `IBV_QPT_DRIVER`.
const DRIVER: u8 = 255;
const MASK_QKEY: u32 = 1 << 6;
const MASK_RNR: u32 = 1 << 11;

/// A pipe: its read end, and its write end, which does not block the device.
fn pipe() -> Result<(OwnedFd, OwnedFd), i32> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(libc::EMFILE);
    }
    // SAFETY: made above, and owned by nothing else.
    let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: no memory is involved.
    unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    Ok((read, write))
}

fn duplicate(file: RawFd) -> Result<OwnedFd, i32> {
    // SAFETY: no memory is involved.
    let copy = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(libc::EMFILE);
    }
    // SAFETY: made above, and owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Removes events of a destroyed queue from its channel. Returns their number.
fn take_back(channel: &Channel, name: u64) -> u32 {
    let (mut found, mut others) = (0, Vec::new());
    loop {
        let mut waiting = libc::pollfd { fd: channel.read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        if unsafe { libc::poll(&mut waiting, 1, 0) } != 1 || waiting.revents & libc::POLLIN == 0 {
            break;
        }
        let mut event = [0; 8];
        // SAFETY: room for eight bytes. A program that reads at the same time may take the event first: it does not
        // destroy the queue then.
        if unsafe { libc::read(waiting.fd, event.as_mut_ptr().cast(), 8) } != 8 {
            break;
        }
        if u64::from_ne_bytes(event) == name { found += 1 } else { others.push(event) }
    }
    for event in others {
        // SAFETY: the event has eight bytes.
        unsafe { libc::write(channel.write.as_raw_fd(), event.as_ptr().cast(), 8) };
    }
    found
}

/// Whether memory is mapped, by its first and its last byte. A real device pins every page.
fn present(start: u64, len: u64) -> bool {
    let mut byte = [0];
    len == 0 || crate::memory::peek(start, &mut byte) && crate::memory::peek(start + len - 1, &mut byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::settings::Settings;

    /// Every command is answered or refused, here with an unmapped answer address.
    #[test]
    fn commands_of_any_bytes_are_refused_or_answered() {
        let dir = std::env::temp_dir().join(format!("efa-commands-{}", std::process::id()));
        let set = |name: &str| (name == "EFA_EMULATOR_DIR").then(|| dir.display().to_string());
        let mut device = Device::new(Settings::read(set).unwrap().unwrap()).unwrap();
        let mut random = Random::new(3);
        let file = 5;
        for _ in 0..5_000 {
            let words = random.fresh() as usize % 40;
            let mut bytes = vec![0; 8 + 4 * words];
            for byte in bytes.iter_mut().skip(16) {
                // Mostly small numbers, like those of handles and sizes.
                *byte = if random.chance(70) { 0 } else { (random.fresh() % 9) as u8 };
            }
            bytes[0] = (random.fresh() % 40) as u8;
            bytes[3] = if random.chance(10) { 0x80 } else { 0 };
            bytes[4] = if random.chance(90) { bytes.len() as u8 / 4 } else { random.fresh() as u8 };
            let _ = device.command(file, &bytes);
        }
        device.close(file);
        assert!(device.pairs.is_empty() && device.queues.is_empty() && device.domains.is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
