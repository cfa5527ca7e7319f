//! Readers of a flow, each a separate process of this program.
//!
//! Each reports that it is ready, waits for one commit after another, and prints the time at which it noticed
//! each.
//! The bare futex is a word of a file in the domain's directory.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ChildStdout;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use mxl::{Domain, FlowDefinition, Wait};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{Timespec, futex};
use serde_json::{Value, json};

use super::cores::pin;
use super::pair::{self, Role, Running, system};
use crate::{Error, Result};

/// Time for which a reader waits for a commit before it gives up.
const LONG: Duration = Duration::from_secs(10);

/// The way in which a reader notices a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    Futex,
    Blocked,
    Polling,
}

impl Way {
    /// The name as an argument.
    fn name(self) -> &'static str {
        match self {
            Self::Futex => "futex",
            Self::Blocked => "blocked",
            Self::Polling => "polling",
        }
    }
}

/// A word of memory that the processes share.
pub struct Word(*mut AtomicU32);

impl Word {
    /// Opens the word of the domain in this directory.
    ///
    /// # Errors
    /// A file that cannot be created or mapped.
    pub fn open(domain: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(domain.join("word")).map_err(system("open the shared word"))?;
        file.set_len(4096).map_err(system("resize the shared word"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which affects no other memory.
        let map = unsafe { mmap(ptr::null_mut(), 4096, access, MapFlags::SHARED, &file, 0) };
        let map = map.map_err(|error| Error::Argument(format!("map the shared word: {error}")))?;
        Ok(Self(map.cast()))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as this, and is used as this atomic only.
        unsafe { &*self.0 }
    }

    /// Sets the word, and wakes its waiters.
    pub fn set(&self, value: u32) {
        self.word().store(value, Ordering::Release);
        // The call cannot fail for our word. A reader that was not woken reports that itself.
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
    }

    fn wait_for(&self, value: u32) -> Result<()> {
        let (end, limit) = (Instant::now() + LONG, Timespec { tv_sec: 1, tv_nsec: 0 });
        loop {
            let there = self.word().load(Ordering::Acquire);
            if there >= value {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Error::Argument("the writer stopped".into()));
            }
            // The call returns for many reasons, and the word is checked again after each.
            let _ = futex::wait(self.word(), futex::Flags::empty(), there, Some(&limit));
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`; nothing refers to it any more.
        let _ = unsafe { munmap(self.0.cast(), 4096) };
    }
}

/// Commits that readers wait for.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub way: Way,
    pub first: u64,
    pub count: u64,
}

/// Reader processes that are ready.
pub struct Readers(Vec<(Running, BufReader<ChildStdout>)>);

impl Readers {
    /// Starts `readers` processes.
    ///
    /// # Errors
    /// A process that does not become ready. It has printed the reason.
    pub fn start(domain: &Path, cores: (usize, usize), task: Task, readers: usize) -> Result<Self> {
        let (first, count) = (task.first.to_string(), task.count.to_string());
        let arguments = ["--way", task.way.name(), "--first", &first, "--commits", &count];
        let start = |_| pair::start(Role::Reader, domain, cores, &arguments);
        let mut readers = (0..readers).map(start).collect::<Result<Vec<_>>>()?;
        for (_, out) in &mut readers {
            let mut line = String::new();
            out.read_line(&mut line).map_err(system("wait for a reader to be ready"))?;
            if line != READY {
                return Err(Error::Argument("a reader did not start: see the lines above".into()));
            }
        }
        Ok(Self(readers))
    }

    /// The time at which each reader noticed each commit, in nanoseconds of TAI. `None` for a grain that was
    /// overwritten before.
    ///
    /// # Errors
    /// A reader that noticed no further commit.
    pub fn end(self) -> Result<Vec<Vec<Option<u64>>>> {
        let heard = self.0.into_iter().map(|(_running, mut out)| {
            let mut said = String::new();
            out.read_to_string(&mut said).map_err(system("read a reader's results"))?;
            let said: Vec<Value> = serde_json::from_str(&said)
                .map_err(|_| Error::Argument("a reader failed: see the lines above".into()))?;
            Ok(said.iter().map(Value::as_u64).collect())
        });
        heard.collect()
    }
}

const READY: &str = "ready\n";

/// A reader's process.
///
/// # Errors
/// A core that does not exist, a flow that cannot be read, no commit for ten seconds.
pub fn hear(domain: &Domain, definition: &FlowDefinition, task: Task, core: usize) -> Result<()> {
    pin(core)?;
    let word = Word::open(domain.path())?;
    let reader = domain.read_grains(definition.id)?;
    let mut heard = Vec::with_capacity(task.count as usize);
    print!("{READY}");
    for at in 0..task.count {
        let read = |wait| reader.read(task.first + at, wait).map(drop);
        let returned = match task.way {
            Way::Futex => {
                word.wait_for(at as u32 + 1)?;
                Ok(())
            }
            Way::Blocked => read(Wait::For(LONG)),
            Way::Polling => read(Wait::Busy(LONG)),
        };
        let now = mxl::time::now();
        match returned {
            Ok(()) => heard.push(Some(now)),
            Err(mxl::Error::TooLate { .. }) => heard.push(None),
            Err(error) => return Err(error.into()),
        }
    }
    println!("{}", json!(heard));
    Ok(())
}
