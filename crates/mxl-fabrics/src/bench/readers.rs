//! Readers of a flow, each a process of its own: this program once more.
//!
//! Each is ready, hears of one commit after the other, and prints when it heard of each. The bare futex is a word of a
//! file in the domain's directory.
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

/// A reader that hears nothing for so long gives up.
const LONG: Duration = Duration::from_secs(10);

/// How a reader hears of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    Futex,
    Blocked,
    Polling,
}

impl Way {
    /// As an argument.
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
    /// That of the domain in this directory.
    ///
    /// # Errors
    /// A file that cannot be made or mapped.
    pub fn open(domain: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(domain.join("word")).map_err(system("open the shared word"))?;
        file.set_len(4096).map_err(system("make the shared word"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map, which concerns nothing else.
        let map = unsafe { mmap(ptr::null_mut(), 4096, access, MapFlags::SHARED, &file, 0) };
        let map = map.map_err(|error| Error::Argument(format!("map the shared word: {error}")))?;
        Ok(Self(map.cast()))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the map is there as long as this, and is used as this atomic only.
        unsafe { &*self.0 }
    }

    /// Sets it, and wakes those who wait for it.
    pub fn set(&self, value: u32) {
        self.word().store(value, Ordering::Release);
        // It fails for no word of ours; a reader that was not woken says so itself.
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
            // It returns for many reasons, and the word is looked at again after each.
            let _ = futex::wait(self.word(), futex::Flags::empty(), there, Some(&limit));
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: the map of `open`; nothing refers to it any more.
        let _ = unsafe { munmap(self.0.cast(), 4096) };
    }
}

/// Commits that readers are to hear of.
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
    /// One that does not become ready: why, it has said itself.
    pub fn start(domain: &Path, cores: (usize, usize), task: Task, readers: usize) -> Result<Self> {
        let (first, count) = (task.first.to_string(), task.count.to_string());
        let arguments = ["--way", task.way.name(), "--first", &first, "--commits", &count];
        let start = |_| pair::start(Role::Reader, domain, cores, &arguments);
        let mut readers = (0..readers).map(start).collect::<Result<Vec<_>>>()?;
        for (_, out) in &mut readers {
            let mut line = String::new();
            out.read_line(&mut line).map_err(system("hear whether a reader is ready"))?;
            if line != READY {
                return Err(Error::Argument("a reader did not start: see the lines above".into()));
            }
        }
        Ok(Self(readers))
    }

    /// When each heard of each commit, in nanoseconds of TAI; `None` of a grain that was overwritten before.
    ///
    /// # Errors
    /// One that heard nothing any more.
    pub fn end(self) -> Result<Vec<Vec<Option<u64>>>> {
        let heard = self.0.into_iter().map(|(_running, mut out)| {
            let mut said = String::new();
            out.read_to_string(&mut said).map_err(system("read what a reader heard"))?;
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
/// A core that is not there, a flow that cannot be read, nothing heard for ten seconds.
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
