//! The time of a flow's last read: readers touch its file `access`, and the writer's process notices and records it.
//!
//! A process that writes grains has one thread for all of its domains, because a user may have only few inotify
//! instances. The thread sleeps until a reader touches a file. Without a watcher, flows can still be written; only the
//! times of reads are missing.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::flow::Flow;
use super::{Error, time};

/// Flows by the number of the kernel's watch.
type Flows = HashMap<i32, Vec<Weak<Flow>>>;

#[derive(Debug)]
struct WatcherState {
    inotify: OwnedFd,
    stop: OwnedFd,
    flows: Mutex<Flows>,
}

impl WatcherState {
    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        loop {
            let mut sources =
                [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match rustix::event::poll(&mut sources, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "times of reads are no longer recorded"),
            }
            if !sources[1].revents().is_empty() {
                return;
            }
            let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
            while let Ok(event) = events.next() {
                self.touched(event.wd());
            }
        }
    }

    fn touched(&self, watch: i32) {
        for flow in self.flows().get(&watch).into_iter().flatten().filter_map(Weak::upgrade) {
            flow.last_read().store(time::now(), Ordering::Relaxed);
        }
    }
}

/// Records when flows are read.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<WatcherState>,
    thread: Option<JoinHandle<()>>,
    /// The process that started it. A forked child shares the descriptors, but does not have the thread.
    process: u32,
}

/// A watch of a flow. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watched {
    watcher: Arc<Watcher>,
    watch: i32,
    flow: Weak<Flow>,
}

impl Watcher {
    /// The process's watcher. `None`, with a warning, if the system refuses one.
    pub fn shared(domain: &Path) -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());
        let mut there = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = there.upgrade().filter(|watcher| watcher.is_here()) {
            return Some(watcher);
        }
        match Self::start(domain) {
            Ok(watcher) => {
                *there = Arc::downgrade(&watcher);
                Some(watcher)
            }
            Err(error) => {
                tracing::warn!(%error, "times of reads are not recorded");
                None
            }
        }
    }

    /// Whether this is the process that started it.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Starts the thread.
    fn start(domain: &Path) -> Result<Arc<Self>, Error> {
        let os = |call| move |error: rustix::io::Errno| Error::os(call, domain, error);
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(os("inotify"))?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(os("eventfd"))?;
        let shared = Arc::new(WatcherState { inotify, stop, flows: Mutex::default() });
        let run = shared.clone();
        let thread = std::thread::Builder::new().name("mxl-watcher".into()).spawn(move || run.run());
        let thread = thread.map_err(|error| Error::os("thread", domain, error))?;
        Ok(Arc::new(Self { shared, thread: Some(thread), process: std::process::id() }))
    }

    /// Watches a flow. A flow without the file `access`, such as one that the C++ SDK created, is accepted too.
    pub fn add(self: &Arc<Self>, flow: &Arc<Flow>) -> Option<Watched> {
        let path = flow.dir().join("access");
        let mut flows = self.shared.flows();
        let flags = WatchFlags::ACCESS | WatchFlags::ATTRIB | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(&self.shared.inotify, &path, flags) {
            Ok(watch) => {
                let flow = Arc::downgrade(flow);
                flows.entry(watch).or_default().push(flow.clone());
                Some(Watched { watcher: self.clone(), watch, flow })
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "times of reads are not recorded");
                None
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.watcher.is_here() {
            return;
        }
        let mut flows = self.watcher.shared.flows();
        let Some(list) = flows.get_mut(&self.watch) else { return };
        list.retain(|flow| !flow.ptr_eq(&self.flow));
        if list.is_empty() {
            flows.remove(&self.watch);
            // The kernel has removed the watch already if the flow was deleted.
            let _ = inotify::remove_watch(&self.watcher.shared.inotify, self.watch);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.is_here() {
            // The thread belongs to the parent, which ends it.
            return std::mem::forget(self.thread.take());
        }
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
