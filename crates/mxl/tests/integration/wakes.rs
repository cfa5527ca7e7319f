//! The system calls of a reader: the test counts those of a traced process.
#![allow(unsafe_code)]

use std::time::Duration;

use mxl::{BatchHints, GrainReader, GrainWriter, Wait};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid};

use super::common::{Folder, SOON, camera};

/// System calls of a read that slept.
#[derive(Debug, PartialEq, Eq)]
struct Calls {
    /// Before the first sleep.
    before: Vec<i64>,
    /// After the last sleep.
    after: Vec<i64>,
}

fn write(writer: &GrainWriter, index: u64) {
    writer.open(index).unwrap().commit().unwrap();
}

/// A traced reader process: its calls between the first `getppid` and the second are those of `read`. `read`
/// returns whether the result was the expected one.
fn traced(read: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child allocates nothing and takes no lock: it reads existing maps, and ends.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let traced = ptrace::traceme().and_then(|()| raise(Signal::SIGSTOP));
            getppid();
            let is_right = read();
            getppid();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!(traced.is_ok() && is_right))) }
        }
        ForkResult::Parent { child } => child,
    };
    assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Stopped(child, Signal::SIGSTOP));
    let kind = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(child, kind).unwrap();
    child
}

/// Continues to the start of the next system call, and returns its number; `meanwhile` runs while the process does.
/// `None` when the process has ended successfully.
fn step(child: Pid, meanwhile: impl FnOnce()) -> Option<i64> {
    ptrace::syscall(child, None).unwrap();
    meanwhile();
    loop {
        match waitpid(child, None).unwrap() {
            WaitStatus::PtraceSyscall(_) => {}
            ended => {
                assert_eq!(ended, WaitStatus::Exited(child, 0), "the read returned the wrong grain");
                return None;
            }
        }
        let info = ptrace::syscall_info(child).unwrap();
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            // SAFETY: at the start of a call the kernel has filled in this field.
            return Some(unsafe { info.u.entry.nr } as i64);
        }
        ptrace::syscall(child, None).unwrap();
    }
}

/// Reads grain `index` in a separate process, which sleeps until the grain is written.
fn calls(reader: &GrainReader, writer: &GrainWriter, index: u64) -> Calls {
    let child = traced(|| reader.read(index, SOON).is_ok());
    let (mut marks, mut sleeps) = (0, 0);
    let mut calls = Calls { before: Vec::new(), after: Vec::new() };
    let mut next = step(child, || ());
    while let Some(number) = next {
        let was_awake = sleeps == 0;
        match number {
            libc::SYS_getppid => marks += 1,
            libc::SYS_futex if marks == 1 => {
                sleeps += 1;
                calls.after.clear();
            }
            // If the clock is not in memory that the kernel shares, reading it is a call.
            libc::SYS_clock_gettime => {}
            number if marks == 1 && was_awake => calls.before.push(number),
            number if marks == 1 => calls.after.push(number),
            _ => {}
        }
        next = step(child, || {
            if was_awake && sleeps == 1 {
                // Longer than the interval at which a reader records its reads.
                std::thread::sleep(Duration::from_millis(30));
                // The child cannot return from its sleep before this, as it stops at the end of the call.
                write(writer, index);
            }
        });
    }
    assert!(marks == 2 && sleeps > 0, "{marks} marks, {sleeps} sleeps");
    calls
}

#[test]
fn a_reader_says_that_it_reads_before_it_sleeps_and_calls_nothing_after_the_wake_up() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let reader = folder.domain().read_grains(camera.id).unwrap();
    write(&writer, 1);
    let said = Calls { before: vec![libc::SYS_utimensat], after: Vec::new() };
    for index in 2..5 {
        assert_eq!(calls(&reader, &writer, index), said, "grain {index}");
    }
}

/// Defect k: the SDK asks the file system whenever a grain is not available yet, and records every read by a call.
#[test]
fn reads_of_what_is_there_and_polls_for_what_is_not_seldom_call_the_kernel() {
    const READS: u64 = 10_000;
    let (folder, camera) = (Folder::new(), camera());
    let writer = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let reader = folder.domain().read_grains(camera.id).unwrap();
    (1..=5).for_each(|index| write(&writer, index));
    for (index, is_there) in [(3, true), (6, false)] {
        let read = || match reader.read(index, Wait::Not) {
            Ok(grain) => is_there && grain.still_valid(),
            Err(error) => !is_there && error.is_early(),
        };
        let child = traced(|| (0..READS).all(|_| read()));
        let (mut marks, mut calls) = (0, 0);
        while let Some(number) = step(child, || ()) {
            match number {
                libc::SYS_getppid => marks += 1,
                libc::SYS_clock_gettime => {}
                _ if marks == 1 => calls += 1,
                _ => {}
            }
        }
        assert_eq!(marks, 2);
        // Once in a millisecond, at most, and the reads take one or two milliseconds.
        assert!(calls < READS / 100, "{calls} system calls in {READS} reads of grain {index}");
    }
}
