//! The record ring and its bell between two processes, each of which can write only its own memory.
#![cfg(all(not(loom), target_os = "linux"))]

use std::{
    env,
    fs::File,
    io::Write,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    process::{Command, ExitStatus},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use ofi_ring::{
    doorbell::{DoorbellSender, Sleeper, Wake},
    membarrier::{self, Support},
    record::{Consumer, Producer, ReserveError},
};

use super::common::{Mapping, PAGE, Stream, memfd};

const RECORDS: u64 = 1_000_000;
const LINES: usize = 256;

/// The offsets of the words in the receiver's page.
const HEAD: usize = 0;
const ATTENTION: usize = 128;
const SLEEPING: usize = 256;

/// Tells the child the descriptors of the lines, of the receiver's page, of the hint and of the event.
const FDS: &str = "OFI_RING_TEST_FDS";

#[test]
fn a_million_records_cross_processes_whole_and_in_order() {
    let (lines, page, hint) = (memfd(LINES * 64), memfd(PAGE), memfd(PAGE));
    // SAFETY: a call without memory.
    let event = unsafe { libc::eventfd(0, 0) };
    assert!(event >= 0);
    // SAFETY: it has just been opened, and no other code knows it.
    let event = unsafe { OwnedFd::from_raw_fd(event) };
    let theirs = Mapping::new(lines.as_fd(), LINES * 64, false);
    let ours = Mapping::new(page.as_fd(), PAGE, true);

    let support = membarrier::register();
    let attention: *const AtomicU32 = ours.word(ATTENTION);
    // SAFETY: mapped to the end of the test, and accessed atomically only.
    let attention = unsafe { &*attention };
    attention.store(u32::from(support == Support::Missing), Ordering::Relaxed);
    // SAFETY: the mappings live longer, and there is one consumer.
    let mut consumer = unsafe { Consumer::new(theirs.lines(LINES), ours.word(HEAD)) };
    // SAFETY: the mapping lives longer.
    let mut sleeper = unsafe { Sleeper::new(ours.word(SLEEPING), support) };

    let fds = [&lines, &page, &hint, &event].map(|fd| fd.as_raw_fd().to_string()).join(",");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "process::sender", "--ignored", "--test-threads=1"])
        .env(FDS, fds)
        .spawn()
        .unwrap();

    let mut stream = Stream::new(1, LINES);
    let (mut received, mut idle, mut sleeps) = (0, 0, 0_u64);
    while received < RECORDS {
        if let Some(record) = consumer.peek().unwrap() {
            stream.check(&record);
            consumer.advance(&record);
            (received, idle) = (received + 1, 0);
            continue;
        }
        consumer.flush();
        idle += 1;
        if idle < 50 {
            thread::yield_now(); // lets the sender run on a busy machine
            continue;
        }
        idle = 0;
        sleeper.attend(attention);
        sleeper.arm().unwrap();
        if consumer.peek().unwrap().is_none() {
            sleep(event.as_fd(), || child.try_wait().unwrap());
            sleeps += 1;
        }
        sleeper.disarm();
        sleeper.unattend(attention);
    }
    assert!(consumer.peek().unwrap().is_none());
    consumer.flush();
    assert!(child.wait().unwrap().success());
    println!("{sleeps} sleeps");
    assert!(sleeps > 0);
}

/// Waits for the event, and takes it.
fn sleep(event: BorrowedFd<'_>, child: impl FnOnce() -> Option<ExitStatus>) {
    let mut poll = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one element, which lives through the call.
    let ready = unsafe { libc::poll(&mut poll, 1, 20_000) };
    assert_eq!(ready, 1, "a wake-up was lost; the sender: {:?}", child());
    let mut count = 0_u64;
    // SAFETY: eight writable bytes.
    let read = unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
    assert_eq!(read, 8);
}

/// Runs as the other process; not a test of its own.
#[test]
#[ignore = "run by the test above"]
fn sender() {
    let Ok(fds) = env::var(FDS) else { return };
    let fds: Vec<OwnedFd> = fds
        .split(',')
        // SAFETY: inherited for this, and no other code here knows them.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) })
        .collect();
    let [lines, page, hint, event] = fds.try_into().unwrap();
    let mut event = File::from(event);
    let ours = Mapping::new(lines.as_fd(), LINES * 64, true);
    let theirs = Mapping::new(page.as_fd(), PAGE, false);
    let hints = Mapping::new(hint.as_fd(), PAGE, true);
    // SAFETY: the mappings live longer, and there is one producer.
    let mut producer = unsafe { Producer::new(ours.lines(LINES), theirs.word(HEAD)) };
    let support = membarrier::register();
    // SAFETY: the mappings live longer.
    let bell =
        unsafe { DoorbellSender::new(theirs.word(ATTENTION), theirs.word(SLEEPING), hints.word(0), support) };
    let mut stream = Stream::new(1, LINES);
    for sent in 0..RECORDS {
        while let Err(error) = stream.send(&mut producer) {
            assert_eq!(error, ReserveError::Full);
            thread::yield_now();
        }
        if bell.ring() == Wake::Needed {
            event.write_all(&1_u64.to_ne_bytes()).unwrap();
        }
        if sent % 10_000 == 0 {
            thread::sleep(Duration::from_micros(200)); // lets the receiver fall asleep
        }
    }
    while !producer.is_drained() {
        thread::yield_now();
    }
}
