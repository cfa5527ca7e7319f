//! The streams of `ofi cp get`: connections that share the files and their blocks.
//!
//! A stream takes a file that has unrequested blocks, or begins the next one. So several streams share a long file, and
//! a stream requests several short files at a time, so that it does not wait a round trip for each. If a stream loses
//! its connection, its requested files and blocks become unrequested again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ofi::Connection;
use ofi::raw::{Address, Hints};
use ofi_progress_bar::Progress;

use super::keep::Keep;
use super::link::{End, Link};
use super::partial::Partial;
use super::place::{FileDestination, Trunk};
use super::tree::Finished;
use super::wire::{Answer, BLOCK, CopyRequest, FileId, GREETING, HEAD, MAX_FILE_LEN, Message, WINDOW, parse};
use crate::failure::{Failure, Result};
use crate::output;

/// Time limit of connecting, and of each message.
pub const LIMIT: Duration = Duration::from_secs(10);
/// Pause before a reconnect.
pub const PAUSE: Duration = Duration::from_millis(200);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server and its connection parameters.
pub struct Server {
    pub hints: Hints,
    pub address: Address,
    /// The address as the user wrote it.
    pub text: String,
}

impl Server {
    /// Connects. Messages of up to `len` bytes are received.
    ///
    /// # Errors
    /// The server is unreachable, or another program.
    pub fn connect(&self, len: usize) -> std::result::Result<Link, End> {
        let connected = Connection::open(&self.hints, &self.address, GREETING, LIMIT);
        let connection = connected.map_err(|refused| {
            let said = String::from_utf8_lossy(&refused.data).escape_default().to_string();
            let said = if said.is_empty() { said } else { format!(" (the peer: {said})") };
            Failure::Peer(format!("connecting to {}: {}{said}", self.text, refused.error))
        })?;
        if connection.greeting() != GREETING {
            let problem = "the peer does not run this version of ofi cp".to_string();
            return Err(End::Final(Failure::Peer(problem)));
        }
        let mut link = Link::new(connection);
        for _ in 0..WINDOW {
            link.receive(vec![0; len], LIMIT)?;
        }
        Ok(link)
    }
}

/// The destination of the files.
pub enum CopyTarget {
    /// One file. The place is taken when the copy begins.
    File(Mutex<Option<FileDestination>>),
    /// A tree. Paths are relative to its folder.
    Tree(Trunk, Finished),
}

/// A file to fetch.
pub struct Item {
    /// Path at the server.
    remote: String,
    /// Path below the target folder, in a tree.
    local: String,
    state: Mutex<CopyState>,
}

#[derive(Default)]
struct CopyState {
    /// The file's identity, as the first stream found it.
    id: Option<FileId>,
    /// Present while the file is being written.
    partial: Option<Arc<Partial>>,
    /// Whether it may replace an existing file, which an earlier run has copied.
    replaces: bool,
    /// Unrequested blocks.
    todo: Vec<u64>,
    /// Number of unwritten blocks.
    left: u64,
}

impl Item {
    /// A file with path `remote` at the server, and `local` below the folder of a tree.
    pub fn new(remote: String, local: String) -> Self {
        Self { remote, local, state: Mutex::default() }
    }
}

/// The state that the streams share.
pub struct Job {
    pub server: Server,
    pub target: CopyTarget,
    pub items: Vec<Item>,
    pub force: bool,
    pub quiet: bool,
    pub keep: Keep,
    pub patience: Duration,
    pub bar: Progress,
    /// Index of the next file that no stream has begun.
    next: AtomicUsize,
    /// Files whose streams lost their connection before beginning them.
    returned: Mutex<Vec<usize>>,
    /// Files with unrequested blocks.
    open: Mutex<Vec<usize>>,
    /// Number of files that are not in place yet.
    left: AtomicUsize,
    /// Total bytes of the files begun.
    bytes: AtomicU64,
    /// The time when the last block arrived, or the copy began.
    last: Mutex<Instant>,
    stop: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// The outstanding requests of a stream.
#[derive(Default)]
struct PendingRequests {
    /// Requested files whose answers are outstanding, oldest first.
    files: VecDeque<Asking>,
    /// The file of the requested blocks.
    item: Option<usize>,
    blocks: Vec<u64>,
}

/// A requested file.
#[derive(Clone, Copy)]
struct Asking {
    item: usize,
    /// Whether another stream has begun it.
    begun: bool,
    /// Whether its only block follows the answer.
    fetches: bool,
}

impl Job {
    /// Creates a job.
    pub fn new(
        server: Server,
        target: CopyTarget,
        items: Vec<Item>,
        (force, quiet, keep): (bool, bool, Keep),
        patience: Duration,
        bar: Progress,
    ) -> Self {
        Self {
            server,
            target,
            left: AtomicUsize::new(items.len()),
            items,
            force,
            quiet,
            keep,
            patience,
            bar,
            next: AtomicUsize::new(0),
            returned: Mutex::default(),
            open: Mutex::default(),
            bytes: AtomicU64::new(0),
            last: Mutex::new(Instant::now()),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Fetches all files over `streams` connections. Returns their total size, and the target.
    ///
    /// # Errors
    /// The reason why a file is missing or incomplete.
    pub fn run(self, streams: u16) -> Result<(u64, CopyTarget)> {
        std::thread::scope(|scope| {
            for _ in 0..streams {
                scope.spawn(|| self.stream());
            }
        });
        drop(self.bar);
        if self.left.load(Ordering::Acquire) == 0 {
            return Ok((self.bytes.into_inner(), self.target));
        }
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        Err(failure.unwrap_or_else(|| Failure::Peer("the copy ended early; run it again to resume".into())))
    }

    /// Fetches blocks until none is left. Reconnects when the connection is lost.
    fn stream(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut asked = PendingRequests::default();
            let Err(end) = self.fetch(&mut asked) else { return };
            self.give_back(asked);
            match end {
                End::Lost(_) if lock(&self.last).elapsed() < self.patience => std::thread::sleep(PAUSE),
                End::Lost(failure) | End::Final(failure) => return self.give_up(failure),
            }
        }
    }

    fn give_up(&self, failure: Failure) {
        self.stop.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(failure);
    }

    fn give_back(&self, asked: PendingRequests) {
        let unbegun = asked.files.iter().filter(|file| !file.begun).map(|file| file.item);
        lock(&self.returned).extend(unbegun);
        let Some(item) = asked.item else { return };
        if !asked.blocks.is_empty() {
            lock(&self.items[item].state).todo.extend(asked.blocks);
            let mut open = lock(&self.open);
            if !open.contains(&item) {
                open.push(item);
            }
        }
    }

    /// The next file for a stream, and whether another stream has begun it.
    fn pick(&self) -> Option<(usize, bool)> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(&item) = lock(&self.open).first() {
            return Some((item, true));
        }
        if let Some(item) = lock(&self.returned).pop() {
            return Some((item, false));
        }
        let next = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < self.items.len()).then_some(next + 1)
        });
        next.ok().map(|item| (item, false))
    }

    /// Takes an unrequested block.
    fn next_block(&self, item: usize) -> Option<u64> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = lock(&self.items[item].state);
        let block = state.todo.pop();
        if state.todo.is_empty() {
            lock(&self.open).retain(|&other| other != item);
        }
        block
    }

    /// Fetches over one connection.
    fn fetch(&self, asked: &mut PendingRequests) -> std::result::Result<(), End> {
        let mut link = self.server.connect(HEAD + BLOCK)?;
        loop {
            let Some((item, begun)) = self.pick() else {
                // Another stream may lose its connection and return blocks.
                if self.left.load(Ordering::Acquire) == 0 || self.stop.load(Ordering::Relaxed) {
                    link.finish(LIMIT);
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            *asked = PendingRequests::default();
            self.ask_file(item, begun, &mut link, asked)?;
            // Several at a time, except for the last ones, which the streams share.
            let left = self.items.len().saturating_sub(self.next.load(Ordering::Relaxed));
            for _ in 1..WINDOW.min(left / 8) {
                if begun || !lock(&self.open).is_empty() {
                    break;
                }
                let Some((item, begun)) = self.pick() else { break };
                self.ask_file(item, begun, &mut link, asked)?;
                if begun {
                    break;
                }
            }
            while !asked.files.is_empty() {
                self.take_file(&mut link, asked)?;
            }
        }
    }

    /// Requests a file.
    fn ask_file(
        &self,
        item: usize,
        begun: bool,
        link: &mut Link,
        asked: &mut PendingRequests,
    ) -> std::result::Result<(), End> {
        let name = self.items[item].remote.clone();
        let fetches = !begun && !self.is_known(item);
        asked.files.push_back(Asking { item, begun, fetches });
        Ok(self.ask(link, &if fetches { CopyRequest::Fetch(name) } else { CopyRequest::Open(name) })?)
    }

    /// Handles the answer to the oldest file request. If it was the only request, also fetches the file's blocks until
    /// all are requested: the server reads from the file that was requested last.
    fn take_file(&self, link: &mut Link, asked: &mut PendingRequests) -> std::result::Result<(), End> {
        let Some(&Asking { item, fetches, .. }) = asked.files.front() else { return Ok(()) };
        let (buffer, len) = link.next("opening the file", LIMIT)?;
        let id = match parse(&buffer[..len.min(buffer.len())]) {
            Ok(Message::Answer(Answer::Opened(id))) => id,
            Ok(Message::Answer(Answer::Refused(why))) => return Err(End::Final(super::told(&why))),
            Ok(Message::Answer(Answer::Listed { .. })) => {
                return Err(End::Final(Failure::Data("an answer without a request".into())));
            }
            Ok(Message::Block { .. }) => {
                return Err(End::Final(Failure::Data("a block before any request".into())));
            }
            Err(why) => return Err(End::Final(Failure::Data(why))),
        };
        link.receive(buffer, LIMIT)?;
        let partial = self.begin(item, &id).map_err(End::Final)?;
        asked.files.pop_front();
        asked.item = Some(item);
        if fetches && id.blocks() == 1 {
            match self.next_block(item) {
                Some(block) => asked.blocks.push(block), // the block is on its way
                // An earlier run has written it, or another stream has requested it.
                None => self.pass_over(link)?,
            }
        }
        // `None`: the file is already in place.
        let Some(partial) = partial else { return Ok(()) };
        loop {
            while asked.files.is_empty()
                && asked.blocks.len() < WINDOW
                && let Some(block) = self.next_block(item)
            {
                asked.blocks.push(block);
                self.ask(link, &CopyRequest::Read(block))?;
            }
            if asked.blocks.is_empty() {
                return Ok(());
            }
            let (buffer, len) = link.next("waiting for a block", LIMIT)?;
            match parse(&buffer[..len.min(buffer.len())]) {
                Ok(Message::Block { number, hash, payload }) => {
                    let place = asked.blocks.iter().position(|&block| block == number);
                    let Some(place) = place.filter(|_| payload.len() == id.block_len(number)) else {
                        let problem = format!("block {number} of {} bytes was not requested", payload.len());
                        return Err(End::Final(Failure::Data(problem)));
                    };
                    partial.write(number, &hash, payload).map_err(End::Final)?;
                    asked.blocks.swap_remove(place);
                    self.bar.advance(payload.len() as u64);
                    *lock(&self.last) = Instant::now();
                    self.written(item).map_err(End::Final)?;
                }
                Ok(Message::Answer(Answer::Refused(why))) => return Err(End::Final(super::told(&why))),
                Ok(Message::Answer(_)) => {
                    return Err(End::Final(Failure::Data("an answer without a request".into())));
                }
                // Request it again over another connection.
                Err(why) => return Err(End::Lost(Failure::Data(why))),
            }
            link.receive(buffer, LIMIT)?;
        }
    }

    /// Whether the journal records that an earlier run has put the file in place.
    fn is_known(&self, item: usize) -> bool {
        matches!(&self.target, CopyTarget::Tree(_, finished) if finished.knows(&self.items[item].local))
    }

    /// Receives and drops an unneeded block.
    fn pass_over(&self, link: &mut Link) -> std::result::Result<(), End> {
        let (buffer, len) = link.next("waiting for a block", LIMIT)?;
        match parse(&buffer[..len.min(buffer.len())]) {
            Ok(Message::Block { .. }) => {}
            Ok(Message::Answer(Answer::Refused(why))) => return Err(End::Final(super::told(&why))),
            Ok(Message::Answer(_)) => {
                return Err(End::Final(Failure::Data("an answer without a request".into())));
            }
            Err(why) => return Err(End::Lost(Failure::Data(why))),
        }
        Ok(link.receive(buffer, LIMIT)?)
    }

    fn ask(&self, link: &mut Link, request: &CopyRequest) -> Result<()> {
        let message = serde_json::to_vec(request).map_err(|error| Failure::Data(error.to_string()))?;
        link.send(message, 2 * WINDOW, LIMIT)
    }

    /// Begins the file, or checks that the first stream found the same file. `None` if it is already in place.
    fn begin(&self, number: usize, id: &FileId) -> Result<Option<Arc<Partial>>> {
        let item = &self.items[number];
        let mut state = lock(&item.state);
        if let Some(known) = &state.id {
            return match known == id {
                true => Ok(state.partial.clone()),
                false => {
                    let which = &item.remote;
                    Err(Failure::Data(format!("{which} changed at the server: run it again to start over")))
                }
            };
        }
        if id.len > MAX_FILE_LEN || id.version.len() > 256 {
            return Err(Failure::Data(format!(
                "{}: a file of {} bytes: at most {MAX_FILE_LEN} are copied",
                item.remote, id.len
            )));
        }
        self.bytes.fetch_add(id.len, Ordering::Relaxed);
        self.bar.grow(id.len);
        let place = match &self.target {
            CopyTarget::File(place) => lock(place).take(),
            CopyTarget::Tree(trunk, finished) => {
                let place = trunk.place(&item.local)?;
                let here = finished.here(&item.local, &place);
                if here == Some(id) {
                    state.id = Some(id.clone());
                    self.bar.advance(id.len);
                    self.left.fetch_sub(1, Ordering::AcqRel);
                    return Ok(None);
                }
                state.replaces = here.is_some();
                Some(place)
            }
        };
        let place = place.ok_or_else(|| Failure::Data("the file was begun twice".into()))?;
        let (partial, mut missing) = Partial::open(place, &item.remote, id)?;
        let bytes: u64 = missing.iter().map(|&block| id.block_len(block) as u64).sum();
        let here = id.len - bytes;
        self.bar.resume(here);
        if here > 0 && !self.quiet {
            output::tell(&format!("ofi: resuming: {here} of {} bytes are here", id.len));
        }
        // Blocks are taken from the end of the list; reversed, so that the file grows from its beginning.
        missing.reverse();
        let partial = Arc::new(partial);
        (state.id, state.partial) = (Some(id.clone()), Some(Arc::clone(&partial)));
        (state.left, state.todo) = (missing.len() as u64, missing);
        if state.left == 0 {
            self.finish(item, &mut state)?;
            return Ok(None);
        }
        lock(&self.open).push(number);
        Ok(Some(partial))
    }

    /// Records a written block. The last one gives the file its name.
    fn written(&self, item: usize) -> Result<()> {
        let item = &self.items[item];
        let mut state = lock(&item.state);
        state.left -= 1;
        if state.left == 0 { self.finish(item, &mut state) } else { Ok(()) }
    }

    fn finish(&self, item: &Item, state: &mut CopyState) -> Result<()> {
        let (Some(partial), Some(id)) = (state.partial.take(), &state.id) else { return Ok(()) };
        if let CopyTarget::Tree(_, finished) = &self.target {
            finished.record(&item.local, id, partial.inode()?)?;
        }
        partial.finish(self.force || state.replaces, self.keep, &id.kept)?;
        self.left.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
}
