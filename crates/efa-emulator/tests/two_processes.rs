//! Two processes that communicate over emulated devices, through the libibverbs and libefa of this host: the emulator
//! serves the calls of `ibv`.
//!
//! A test starts this program twice more with `LD_PRELOAD`, and gives each process the other's address.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibv::{
    Access, AddressHandle, AsyncEvents, CompletionChannel, CompletionQueue, Context, EfaCompletion,
    EfaCompletionQueue, EfaOpcode, Gid, MemoryRegion, Opcode, Payload, ProtectionDomain, Remote, Segment,
    SrdAttr, SrdPeer, SrdQueuePair, UdAttr, UdPeer, UdQueuePair,
};

const LONG: Duration = Duration::from_secs(50);
const ROLE: &str = "EFA_TEST_ROLE";
const SCENARIO: &str = "EFA_TEST_SCENARIO";
const MEMORY: usize = 2 << 20;
const SLOT: usize = 9000;
const RECEIVES: u64 = 64;

/// The path of this program. /proc/self/exe is the loader if the program was started through one.
fn program() -> PathBuf {
    std::env::args_os().next().map(PathBuf::from).unwrap()
}

/// The emulator, which cargo builds beside this program.
fn emulator() -> PathBuf {
    let program = program();
    let folder = program.ancestors().nth(2).unwrap();
    let found = [folder.join("libefa_emulator.so"), folder.join("deps/libefa_emulator.so")];
    found.into_iter().find(|path| path.exists()).expect("libefa_emulator.so is beside this program")
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("efa-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn libraries() -> bool {
    // SAFETY: the name ends with a zero; the library runs only rdma-core's constructors.
    let found = unsafe { libc::dlopen(c"libefa.so.1".as_ptr(), libc::RTLD_NOW) };
    if found.is_null() {
        println!("skipped: libefa.so.1 is not installed (Debian: ibverbs-providers)");
    }
    !found.is_null()
}

fn start(scenario: &str, role: &str, dir: &Path, set: &[(&str, &str)]) -> Child {
    // `cargo xtask efa --test` runs this with other libraries, and with the C library that these need.
    let mut command = match std::env::var_os("EFA_TEST_LOADER") {
        Some(loader) => {
            let mut command = Command::new(loader);
            command.arg(program());
            command
        }
        None => Command::new(program()),
    };
    command
        .args(["--exact", "role", "--nocapture"])
        .env("LD_PRELOAD", emulator())
        .env("EFA_EMULATOR_DIR", dir)
        .env(ROLE, role)
        .env(SCENARIO, scenario)
        .envs(set.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a scenario in two processes, with these settings in both. Returns their results.
fn pair(scenario: &str, set: &[(&str, &str)]) -> Vec<String> {
    if !libraries() {
        return Vec::new();
    }
    let dir = Folder::new(scenario);
    let mut both = ["a", "b"].map(|role| start(scenario, role, &dir.0, set));
    let mut outputs = both.each_mut().map(|child| BufReader::new(child.stdout.take().unwrap()));
    let next = |output: &mut BufReader<_>, word: &str| loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "{scenario}: ended before it said {word}");
        // The test harness prints before the first line.
        if let Some((_, rest)) = line.trim().split_once(word) {
            return rest.trim().to_string();
        }
    };
    let addresses = outputs.each_mut().map(|output| next(output, "@address"));
    for (child, address) in both.iter_mut().zip(addresses.iter().rev()) {
        writeln!(child.stdin.as_mut().unwrap(), "{address}").unwrap();
    }
    let said: Vec<String> = outputs.iter_mut().map(|output| next(output, "@done")).collect();
    for child in &mut both {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "{scenario}");
    }
    said
}

/// The device objects of a process, and its peer.
struct Setup {
    cq: Arc<EfaCompletionQueue>,
    qp: Arc<SrdQueuePair>,
    pd: Arc<ProtectionDomain>,
    region: MemoryRegion,
    memory: *mut u8,
    handle: Arc<AddressHandle>,
    peer: (u32, u32, Remote),
    receives: u64,
}

const QKEY: u32 = 0x1234_5678;

/// A file in memory, mapped here for the checks and registered by its descriptor.
fn of_dmabuf(pd: &Arc<ProtectionDomain>) -> (*mut u8, MemoryRegion) {
    const OFFSET: usize = 4096 + 64;
    // SAFETY: a name that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), 0) };
    // SAFETY: new, and owned by nothing else.
    let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len((OFFSET + MEMORY) as u64).unwrap();
    let (len, protection) = (OFFSET + MEMORY, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, at an address that the kernel chooses; it is never unmapped.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    let memory = base.cast::<u8>().wrapping_add(OFFSET);
    let from = |offset: usize, len| {
        let dmabuf = (file.as_fd(), offset as u64);
        MemoryRegion::of_dmabuf(pd, dmabuf, len, memory as u64, Access::RemoteReadWrite)
    };
    assert_eq!(from(OFFSET, MEMORY + 1).err().map(|error| error.errno), Some(libc::EINVAL), "beyond its end");
    (memory, from(OFFSET, MEMORY).unwrap())
}

impl Setup {
    /// Never dropped: the peer may still need this end after it has finished.
    fn new(unsolicited: bool) -> &'static mut Self {
        let contexts = ibv::efa_contexts().unwrap();
        // Each process uses another one of several devices.
        let place = match (&*std::env::var(SCENARIO).unwrap(), &*std::env::var(ROLE).unwrap()) {
            ("several", role) => {
                let gids: HashSet<_> = contexts.iter().map(|context| context.gids(1).unwrap()[0].0).collect();
                assert_eq!((contexts.len(), gids.len()), (3, 3));
                if role == "a" { 1 } else { 2 }
            }
            _ => 0,
        };
        let context: Context = contexts[place];
        let pd = ProtectionDomain::new(context).unwrap();
        let cq = EfaCompletionQueue::new(context, 4096, None).unwrap();
        let attr = SrdAttr {
            pd: Arc::clone(&pd),
            send_cq: Arc::clone(&cq),
            receive_cq: Arc::clone(&cq),
            sends: 256,
            receives: RECEIVES as u32,
            send_pieces: 2,
            receive_pieces: 1,
            inline: context.efa().unwrap().max_inline_long.into(),
            unsolicited,
            service_level: 0,
        };
        let qp = SrdQueuePair::new(attr).unwrap();
        qp.activate(QKEY, Some(if std::env::var(SCENARIO).unwrap() == "refused" { 1 } else { 7 })).unwrap();
        let (memory, region) = match &*std::env::var(SCENARIO).unwrap() {
            "dmabuf" => of_dmabuf(&pd),
            _ => {
                // Never freed: the device may use it as long as the process lives.
                let memory = Box::leak(vec![0u8; MEMORY].into_boxed_slice()).as_mut_ptr();
                // SAFETY: leaked memory, which is only accessed by raw pointers.
                let region = unsafe { MemoryRegion::new(&pd, memory, MEMORY, Access::RemoteReadWrite) };
                (memory, region.unwrap())
            }
        };
        let gid = context.gids(1).unwrap()[0];
        let mine = u128::from_be_bytes(gid.0);
        println!("@address {mine:x} {:x} {QKEY:x} {:x} {:x}", qp.number(), memory as u64, region.rkey());
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).unwrap();
        let peer: Vec<u128> =
            line.split(' ').map(|word| u128::from_str_radix(word.trim(), 16).unwrap()).collect();
        let handle = AddressHandle::new(&pd, Gid(peer[0].to_be_bytes())).unwrap();
        let remote = Remote { addr: peer[3] as u64, rkey: peer[4] as u32 };
        let peer = (peer[1] as u32, peer[2] as u32, remote);
        Box::leak(Box::new(Self { cq, qp, pd, region, memory, handle, peer, receives: 0 }))
    }

    fn peer(&self) -> SrdPeer<'_> {
        SrdPeer { ah: &self.handle, qp: self.peer.0, qkey: self.peer.1 }
    }

    fn segment(&self, at: usize, len: usize) -> Segment {
        assert!(at + len <= MEMORY);
        Segment { addr: self.memory.wrapping_add(at), len: len as u32, lkey: self.region.lkey() }
    }

    /// Posts a receive into the next of the first slots. Its id is the slot's number.
    fn post_receive(&mut self) {
        let slot = self.receives % RECEIVES;
        // SAFETY: the slot is registered, and read only after the receive has ended.
        unsafe { self.qp.receive(slot, &[self.segment(slot as usize * SLOT, SLOT)]) }.unwrap();
        self.receives += 1;
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= MEMORY);
        // SAFETY: the memory is never freed, and the bytes read here have arrived.
        unsafe { std::slice::from_raw_parts(self.memory.wrapping_add(at), len) }
    }

    fn fill(&self, at: usize, len: usize, with: u64) {
        assert!(at + len <= MEMORY);
        for index in 0..len {
            // SAFETY: inside the memory; no request reads there meanwhile.
            unsafe { self.memory.wrapping_add(at + index).write(pattern(with, index)) };
        }
    }

    fn wait(&self, mut until: impl FnMut(&EfaCompletion) -> bool) {
        let (begin, mut done) = (Instant::now(), false);
        while !done {
            let found = self.cq.poll(|completion| done |= until(completion)).unwrap();
            assert!(begin.elapsed() < LONG, "no completion for too long");
            if found == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Posts one request and waits for its completion. Returns the device's status.
    fn one(&self, ask: impl FnOnce(&mut ibv::SrdRequests<'_>)) -> u32 {
        let mut batch = self.qp.requests();
        ask(&mut batch);
        batch.submit().unwrap();
        let mut status = u32::MAX;
        self.wait(|completion| {
            let mine = completion.id == ONE;
            if mine {
                status = completion.vendor;
            }
            mine
        });
        status
    }
}

/// The id of a single request.
const ONE: u64 = 1 << 40;
/// Ids of sends are above those of receives.
const SENDS: u64 = 1 << 20;

fn pattern(with: u64, index: usize) -> u8 {
    (with.wrapping_mul(167) as usize + index * 13 + index / 251) as u8
}

/// One of the two processes. When `cargo test` runs it as a test, it does nothing.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let first = role == "a";
    let said = match &*std::env::var(SCENARIO).unwrap() {
        "messages" | "disorder" | "hurry" | "several" => messages(),
        "remote" | "dmabuf" => remote(first),
        "datagrams" => datagrams(),
        "refused" => refused(first),
        "gone" => gone(first),
        "restricted" => restricted(),
        "silent" => silent(),
        "event" => event(),
        "forks" => forks(),
        other => panic!("no scenario {other}"),
    };
    println!("@done {said}");
    // The peer may still need answers.
    let mut rest = String::new();
    let _ = std::io::stdin().lock().read_line(&mut rest);
}

/// Both send numbered datagrams until each has received several. Each received datagram is whole, and follows the room
/// for the routing header.
fn datagrams() -> String {
    const RECEIVES: usize = 16;
    let context = ibv::efa_contexts().unwrap()[0];
    let pd = ProtectionDomain::new(context).unwrap();
    let channel = CompletionChannel::new(context).unwrap();
    let cq = CompletionQueue::new(&channel, 256).unwrap();
    let attr = UdAttr {
        pd: Arc::clone(&pd),
        cq: Arc::clone(&cq),
        sends: 16,
        receives: RECEIVES as u32,
        port: 1,
        qkey: QKEY,
    };
    let qp = UdQueuePair::new(attr).unwrap();
    let memory = Box::leak(vec![0u8; MEMORY].into_boxed_slice()).as_mut_ptr();
    // SAFETY: leaked memory, which is only accessed by raw pointers.
    let region = unsafe { MemoryRegion::new(&pd, memory, MEMORY, Access::Local) }.unwrap();
    let segment = |at: usize, len: usize| Segment {
        addr: memory.wrapping_add(at),
        len: len as u32,
        lkey: region.lkey(),
    };
    let receive = |slot: usize| {
        // SAFETY: the slot is registered, and read only after the receive has ended.
        unsafe { qp.receive(slot as u64, segment(slot * SLOT, SLOT)) }.unwrap();
    };
    (0..RECEIVES).for_each(receive);
    let own = u128::from_be_bytes(context.gids(1).unwrap()[0].0);
    println!("@address {own:x} {:x} {QKEY:x} 0 0", qp.number());
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let peer: Vec<u128> =
        line.split(' ').map(|word| u128::from_str_radix(word.trim(), 16).unwrap()).collect();
    let handle = AddressHandle::new(&pd, Gid(peer[0].to_be_bytes())).unwrap();
    let to = |qkey: u32| UdPeer { handle: &handle, qp: peer[1] as u32, qkey };
    let (area, begin) = (RECEIVES * SLOT, Instant::now());
    let (mut number, mut seen, mut under_way) = (0_u32, HashSet::new(), false);
    // Datagrams are lost until the peer has receives, so both continue for a while after the last one that they need.
    let mut more = 200;
    while seen.len() < 20 || more > 0 {
        assert!(begin.elapsed() < LONG, "{number} sent, {} arrived", seen.len());
        if !under_way {
            let len = (number as usize * 97) % 8900;
            for index in 0..len {
                // SAFETY: inside the memory; no request reads there meanwhile.
                unsafe { memory.wrapping_add(area + index).write(pattern(u64::from(number), index)) };
            }
            // A datagram for another key is lost, too.
            let qkey = if number % 5 == 4 { QKEY ^ 1 } else { QKEY };
            // SAFETY: the slot is used again when the request has ended.
            unsafe { qp.send(SENDS, segment(area, len), to(qkey), Some(number)) }.unwrap();
            (number, under_way) = (number + 1, true);
        }
        let mut came = Vec::new();
        cq.poll(|entry| came.push(entry)).unwrap();
        for entry in came {
            assert_eq!(entry.status, ibv::Status::SUCCESS, "{entry:?}");
            if entry.id == SENDS {
                (under_way, more) = (false, if seen.len() < 20 { more } else { more - 1 });
                continue;
            }
            assert_eq!(entry.opcode, Opcode::Receive);
            let told = entry.data.unwrap();
            let (slot, len) = (entry.id as usize, (told as usize * 97) % 8900);
            assert_eq!(entry.len, ibv::GRH + len);
            assert_ne!(told % 5, 4, "of another key");
            for index in 0..len {
                // SAFETY: inside the memory, and the bytes have arrived.
                let byte = unsafe { memory.wrapping_add(slot * SLOT + ibv::GRH + index).read() };
                assert_eq!(byte, pattern(u64::from(told), index), "datagram {told}");
            }
            assert!(seen.insert(told), "datagram {told} came twice");
            receive(slot);
        }
        std::thread::yield_now();
    }
    // Never destroyed: the peer may still send.
    std::mem::forget((qp, handle));
    "whole".into()
}

/// Both send and receive: each message arrives once, whole, with its number.
fn messages() -> String {
    const COUNT: u64 = 600;
    let setup = Setup::new(false);
    let most_inline = setup.qp.attr().inline as usize;
    (0..RECEIVES).for_each(|_| setup.post_receive());
    let len = |number: u64| (number * 97 % 8900) as usize;
    let (mut sent, mut ended, mut in_order, mut last) = (0, 0, true, 0);
    let mut free: Vec<u64> = (0..32).collect();
    let mut seen = HashMap::new();
    let area = RECEIVES as usize * SLOT;
    let begin = Instant::now();
    while ended < COUNT || seen.len() < COUNT as usize {
        assert!(begin.elapsed() < LONG, "{sent} sent, {ended} ended, {} arrived", seen.len());
        if sent < COUNT
            && let Some(place) = free.pop()
        {
            let (number, slot) = (sent, area + place as usize * SLOT);
            let len = len(number);
            setup.fill(slot, len, number);
            let mut batch = setup.qp.requests();
            let (half, inline) = (len / 2, len <= most_inline);
            let pieces = [setup.segment(slot, half), setup.segment(slot + half, len - half)];
            let what =
                if inline { Payload::Inline(setup.bytes(slot, len)) } else { Payload::Segments(&pieces) };
            // SAFETY: a slot is reused only when its request has ended.
            unsafe { batch.send(SENDS + place, setup.peer(), what, Some(number as u32)) }.unwrap();
            batch.submit().unwrap();
            sent += 1;
        }
        let mut came = Vec::new();
        setup
            .cq
            .poll(|completion| {
                assert_eq!(completion.vendor, 0, "{completion:?}");
                match completion.opcode {
                    EfaOpcode::Receive => came.push(*completion),
                    _ => {
                        ended += 1;
                        free.push(completion.id - SENDS);
                    }
                }
            })
            .unwrap();
        if came.is_empty() {
            std::thread::yield_now();
        }
        for completion in came {
            let number = u64::from(completion.immediate.unwrap());
            assert_eq!(completion.len as usize, len(number));
            assert_eq!(completion.source_qp, setup.peer.0);
            assert_eq!(completion.source_ah, Some(setup.handle.efa_number().unwrap()));
            let bytes = setup.bytes(completion.id as usize * SLOT, completion.len as usize);
            assert!(
                bytes.iter().enumerate().all(|(index, byte)| *byte == pattern(number, index)),
                "{number}"
            );
            assert_eq!(seen.insert(number, ()), None, "{number} arrived twice");
            in_order &= number >= last;
            last = number;
            // Reposts the slot of this receive.
            setup.receives = completion.id;
            setup.post_receive();
        }
    }
    if in_order { "in order".into() } else { "out of order".into() }
}

/// The first process reads and writes the second's memory.
fn remote(first: bool) -> String {
    let unsolicited = ibv::efa_contexts().unwrap()[0].efa().unwrap().unsolicited;
    let setup = Setup::new(unsolicited);
    let write = setup.cq.context().efa().unwrap().write;
    let (from, len) = (1 << 20, 700_000);
    setup.fill(from, len, if first { 1 } else { 2 });
    setup.post_receive();
    let hello = || {
        let status = setup.one(|batch| {
            // SAFETY: the data is inline.
            unsafe { batch.send(ONE, setup.peer(), Payload::Inline(b"go"), None) }.unwrap();
        });
        assert_eq!(status, 0);
    };
    if !first {
        hello();
        if write {
            // The write below announces itself by immediate data, without a receive if libefa supports that.
            setup.wait(|completion| {
                let came = completion.opcode == EfaOpcode::WriteArrived;
                if came {
                    assert_eq!((completion.immediate, completion.len), (Some(0xfeed), 300_001));
                    assert_eq!(completion.unsolicited, unsolicited);
                }
                came
            });
            assert!(
                setup.bytes(0x1000, 300_001).iter().enumerate().all(|(at, byte)| *byte == pattern(1, at))
            );
        }
        return format!("write {write}, unsolicited {unsolicited}");
    }
    setup.wait(|completion| completion.opcode == EfaOpcode::Receive);
    let at = |offset: u64| Remote { addr: setup.peer.2.addr + offset, rkey: setup.peer.2.rkey };
    let read = |to: &[Segment], from: Remote| {
        setup.one(|batch| {
            // SAFETY: registered memory, which is read only after the request has ended.
            unsafe { batch.read(ONE, setup.peer(), to, from) }.unwrap();
        })
    };
    assert_eq!(read(&[setup.segment(0, len)], at(from as u64)), 0);
    assert!(setup.bytes(0, len).iter().enumerate().all(|(at, byte)| *byte == pattern(2, at)));
    let piece = [setup.segment(0, 100)];
    let wrong = Remote { rkey: setup.peer.2.rkey ^ 1, ..setup.peer.2 };
    assert_eq!(read(&piece, wrong), 7, "an invalid key");
    assert_eq!(read(&piece, at(MEMORY as u64 - 99)), 7, "one byte beyond");
    assert_eq!(read(&piece, Remote { addr: u64::MAX - 10, rkey: setup.peer.2.rkey }), 7);
    if write {
        let status = setup.one(|batch| {
            let from = [setup.segment(from, 300_001)];
            // SAFETY: registered memory that nothing changes meanwhile.
            unsafe { batch.write(ONE, setup.peer(), &from, at(0x1000), Some(0xfeed)) }.unwrap();
        });
        assert_eq!(status, 0);
    } else {
        let mut batch = setup.qp.requests();
        // SAFETY: registered memory that nothing changes meanwhile.
        let refused = unsafe { batch.write(ONE, setup.peer(), &piece, at(0), None) }.unwrap_err();
        assert_eq!(refused.errno, libc::EOPNOTSUPP);
    }
    format!("write {write}, unsolicited {unsolicited}")
}

/// The requests of the first process are refused, each with the status for its reason.
fn refused(first: bool) -> String {
    let setup = Setup::new(false);
    if !first {
        // One short receive: a send of the first process is too long for it, and the next one finds no receive.
        let slot = [setup.segment(0, 16)];
        // SAFETY: registered memory, which is not read.
        unsafe { setup.qp.receive(0, &slot) }.unwrap();
        setup.wait(|completion| completion.opcode == EfaOpcode::Receive);
        return "refused".into();
    }
    let send = |peer: SrdPeer<'_>, from: &[Segment]| {
        setup.one(|batch| {
            // SAFETY: registered memory that nothing changes meanwhile.
            unsafe { batch.send(ONE, peer, Payload::Segments(from), None) }.unwrap();
        })
    };
    let good = [setup.segment(0, 100)];
    assert_eq!(send(SrdPeer { qp: setup.peer.0 ^ 1, ..setup.peer() }, &good), 9, "no such queue pair");
    assert_eq!(send(SrdPeer { qkey: QKEY + 1, ..setup.peer() }, &good), 9, "wrong key");
    let wrong = Segment { lkey: setup.region.lkey() ^ 1, ..good[0] };
    assert_eq!(send(setup.peer(), &[wrong]), 5, "memory that is not registered");
    assert_eq!(send(setup.peer(), &[setup.segment(0, 8929)]), 6, "longer than the MTU");
    let end = setup.one(|batch| {
        let peer = SrdPeer { ah: &setup.handle, ..setup.peer() };
        // SAFETY: registered memory, which the failing read does not write.
        unsafe { batch.read(ONE, peer, &[setup.segment(0, 8)], Remote { addr: 0, rkey: 0 }) }.unwrap();
    });
    assert!(end == 7 || end == 14, "memory that does not exist, or a peer without our address: {end}");
    let begin = Instant::now();
    let status = loop {
        match send(setup.peer(), &good) {
            10 if begin.elapsed() < LONG => {} // the peer has not posted its receive
            status => break status,
        }
    };
    assert_eq!(status, 11, "a receive that is too short");
    assert_eq!(send(setup.peer(), &good), 10, "no receive");
    // A queue pair in the error state flushes all requests, and accepts no more.
    setup.post_receive();
    setup.qp.stop().unwrap();
    setup.wait(|completion| completion.opcode == EfaOpcode::Receive && completion.vendor == 1);
    let elsewhere = AddressHandle::new(&setup.pd, Gid([0xfe; 16])).unwrap();
    assert_ne!(elsewhere.efa_number().unwrap(), setup.handle.efa_number().unwrap());
    "refused".into()
}

/// The second process exits at once; the first gets an error.
fn gone(first: bool) -> String {
    let setup = Setup::new(false);
    if !first {
        std::process::abort();
    }
    let status = setup.one(|batch| {
        // SAFETY: the data is inline.
        unsafe { batch.send(ONE, setup.peer(), Payload::Inline(b"?"), None) }.unwrap();
    });
    assert!([13, 15].contains(&status), "{status}");
    status.to_string()
}

/// A device with few abilities.
fn restricted() -> String {
    let setup = Setup::new(false);
    let info = setup.cq.context().efa().unwrap();
    assert!(!info.read && !info.write && !info.unsolicited && info.source_gid);
    let mut batch = setup.qp.requests();
    // SAFETY: refused before a request is posted.
    let read = unsafe { batch.read(ONE, setup.peer(), &[setup.segment(0, 8)], setup.peer.2) };
    assert_eq!(read.unwrap_err().errno, libc::EOPNOTSUPP);
    drop(batch);
    // The third request fails because of the settings.
    let mut found = Vec::new();
    for _ in 0..2 {
        found.push(setup.one(|batch| {
            let nowhere = SrdPeer { qp: setup.peer.0 ^ 1, ..setup.peer() };
            // SAFETY: the data is inline.
            unsafe { batch.send(ONE, nowhere, Payload::Inline(b"?"), None) }.unwrap();
        }));
    }
    format!("{found:?}")
}

/// A device that reports an event with its second request.
fn event() -> String {
    let setup = Setup::new(false);
    let events = AsyncEvents::new(setup.cq.context()).unwrap();
    let nowhere = SrdPeer { qp: setup.peer.0 ^ 1, ..setup.peer() };
    let mut found = Vec::new();
    for _ in 0..2 {
        setup.one(|batch| {
            // SAFETY: the data is inline.
            unsafe { batch.send(ONE, nowhere, Payload::Inline(b"?"), None) }.unwrap();
        });
        found.push(events.next().unwrap());
    }
    format!("{found:?}")
}

/// Registered memory in a forked child: the protection from forks, and whether the child has the pages.
fn forks() -> String {
    let is_asked = std::env::var_os("RDMAV_FORK_SAFE").is_none();
    let asked = is_asked.then(|| ibv::make_fork_safe().unwrap());
    let setup = Setup::new(false);
    let safety = ibv::fork_safety().unwrap();
    assert!(asked.is_none_or(|asked| asked == safety));
    let page = setup.memory.addr().next_multiple_of(4096);
    // SAFETY: the child makes two system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut resident = 0;
        // SAFETY: a byte for one page. Memory that is not mapped is an error.
        let found = unsafe { libc::mincore(page as *mut libc::c_void, 4096, &raw mut resident) };
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(found == 0)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    format!("{safety:?} {}", libc::WEXITSTATUS(status))
}

/// Devices that neither receive nor send packets.
fn silent() -> String {
    let setup = Setup::new(false);
    let begin = Instant::now();
    let status = setup.one(|batch| {
        // SAFETY: the data is inline.
        unsafe { batch.send(ONE, setup.peer(), Payload::Inline(b"?"), None) }.unwrap();
    });
    assert!(begin.elapsed() >= Duration::from_millis(300));
    status.to_string()
}

#[test]
fn a_device_that_falls_silent_is_given_up() {
    let set = [("EFA_EMULATOR_LOSE_AFTER", "0"), ("EFA_EMULATOR_TIMEOUT_MS", "300")];
    for said in pair("silent", &set) {
        assert_eq!(said, "15", "an unreachable peer");
    }
}

#[test]
fn an_event_of_the_device_is_reported() {
    for said in pair("event", &[("EFA_EMULATOR_EVENT", "10@2")]) {
        assert_eq!(said, "[None, Some(PortError(1))]");
    }
}

/// By this library's call, and by libibverbs itself.
#[test]
fn registered_pages_stay_out_of_children_unless_the_kernel_copies_them() {
    for set in [&[][..], &[("RDMAV_FORK_SAFE", "1")]] {
        for said in pair("forks", set) {
            assert!(["Enabled 0", "Unneeded 1"].contains(&&*said), "{said}");
        }
    }
}

#[test]
fn messages_come_once_and_whole() {
    pair("messages", &[]);
}

#[test]
fn disorder_and_missing_receives_lose_nothing() {
    let set = [("EFA_EMULATOR_REORDER", "20"), ("EFA_EMULATOR_RNR", "5"), ("EFA_EMULATOR_SEED", "7")];
    for said in pair("disorder", &set) {
        assert_eq!(said, "out of order");
    }
}

#[test]
fn a_message_misses_its_receive_no_more_often_than_it_is_set() {
    pair("messages", &[("EFA_EMULATOR_RNR", "100"), ("EFA_EMULATOR_RNR_TIMES", "3")]);
}

#[test]
fn remote_memory_is_read_and_written_within_its_bounds() {
    for said in pair("remote", &[]) {
        if said.contains("write false") {
            println!("NOT RUN: remote writes: this libefa has none (rdma-core 50 and newer do)");
        }
    }
}

#[test]
fn memory_behind_a_descriptor_is_read_and_written() {
    pair("dmabuf", &[]);
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    for said in pair("datagrams", &[("EFA_EMULATOR_REORDER", "20"), ("EFA_EMULATOR_RNR", "10")]) {
        assert_eq!(said, "whole");
    }
}

#[test]
fn what_is_wrong_has_its_status() {
    for said in pair("refused", &[]) {
        assert_eq!(said, "refused");
    }
}

#[test]
fn a_process_has_several_devices_that_reach_those_of_others() {
    // Each process checks its devices and its messages.
    pair("several", &[("EFA_EMULATOR_DEVICES", "3")]);
}

#[test]
fn a_device_has_the_capabilities_and_failures_of_its_settings() {
    let set = [("EFA_EMULATOR_CAPS", "sgid,rnr"), ("EFA_EMULATOR_FAIL", "12@2")];
    for said in pair("restricted", &set) {
        assert_eq!(said, "[9, 12]");
    }
}

#[test]
fn a_peer_that_is_gone_ends_what_it_was_asked() {
    if !libraries() {
        return;
    }
    let dir = Folder::new("gone");
    let mut both = ["a", "b"].map(|role| start("gone", role, &dir.0, &[]));
    let mut outputs = both.each_mut().map(|child| BufReader::new(child.stdout.take().unwrap()));
    let mut addresses = Vec::new();
    for output in &mut outputs {
        let mut line = String::new();
        while !line.contains("@address") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0);
        }
        addresses.push(line.trim().split_once("@address ").unwrap().1.to_string());
    }
    writeln!(both[1].stdin.as_mut().unwrap(), "{}", addresses[0]).unwrap();
    assert!(!both[1].wait().unwrap().success(), "aborted");
    writeln!(both[0].stdin.as_mut().unwrap(), "{}", addresses[1]).unwrap();
    drop(both[0].stdin.take());
    assert!(both[0].wait().unwrap().success());
}
