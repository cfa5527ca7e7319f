//! `ofi cp get`: several connections fetch the blocks that are missing.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ofi::Connection;
use ofi::raw::{Address, Hints};

use super::Net;
use super::link::Link;
use super::partial::Partial;
use super::wire::{Answer, BLOCK, FileId, GREETING, HEAD, LONGEST_FILE, Message, Request, WINDOW, parse};
use crate::failure::{Failure, Result};
use crate::output;

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The server's address: HOST:PORT, or the address that it printed
    address: String,
    /// The file's path at the server
    file: String,
    /// Destination: a file, or a directory
    #[arg(default_value = ".")]
    destination: PathBuf,
    /// Number of parallel connections
    #[arg(short = 'n', long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// Give up after this many seconds without a block; run the command again to resume
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    #[command(flatten)]
    net: Net,
}

/// How long a connection may take to be made, or to bring the next message.
const LIMIT: Duration = Duration::from_secs(10);
/// The pause before a connection is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// What the streams share.
struct Job<'a> {
    options: &'a Options,
    hints: Hints,
    address: Address,
    destination: PathBuf,
    /// The file, from the first stream that has asked on.
    begun: OnceLock<(FileId, Partial)>,
    /// Held while the first stream begins.
    beginning: Mutex<()>,
    /// Blocks that nobody fetches.
    todo: Mutex<Vec<u64>>,
    /// Blocks that are not written.
    left: AtomicU64,
    bar: ProgressBar,
    /// When the last block came, or the copy began.
    last: Mutex<Instant>,
    stop: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// Why a stream ends early.
enum End {
    /// Another connection may do.
    Lost(Failure),
    /// Nothing will do.
    Final(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Lost(failure)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fetches the file.
///
/// # Errors
/// Why it is not there, or not whole.
pub fn run(options: &Options) -> Result<()> {
    let destination = place(&options.destination, &options.file)?;
    if destination.exists() && !options.force {
        return Err(Failure::Usage(format!("{} is there; --force replaces it", destination.display())));
    }
    let job = Job {
        options,
        hints: options.net.hints()?,
        address: super::address(&options.address)?,
        destination,
        begun: OnceLock::new(),
        beginning: Mutex::new(()),
        todo: Mutex::new(Vec::new()),
        left: AtomicU64::new(0),
        bar: bar(options.quiet),
        last: Mutex::new(Instant::now()),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        for _ in 0..options.streams {
            scope.spawn(|| job.stream());
        }
    });
    job.bar.finish_and_clear();
    let Job { begun, failure, left, .. } = job;
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (begun.into_inner(), failure) {
        (Some((id, partial)), _) if left.load(Ordering::Acquire) == 0 => {
            partial.finish(options.force)?;
            output::print(&format!("{}: {} bytes\n", options.file, id.len))
        }
        (_, Some(failure)) => Err(failure),
        _ => Err(Failure::Peer("the copy ended early; run it again to resume".into())),
    }
}

/// The file to write.
fn place(destination: &Path, file: &str) -> Result<PathBuf> {
    if !destination.is_dir() {
        return Ok(destination.into());
    }
    match Path::new(file).file_name() {
        Some(name) => Ok(destination.join(name)),
        None => Err(Failure::Usage(format!("{file:?} names no file"))),
    }
}

fn bar(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    const STYLE: &str = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    // Drawn on standard error if that is a terminal. The template is ours, and good.
    ProgressBar::new(0)
        .with_style(ProgressStyle::with_template(STYLE).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl Job<'_> {
    /// Fetches blocks until there are none left, over one connection after the other.
    fn stream(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut asked = Vec::new();
            let Err(end) = self.fetch(&mut asked) else { return };
            lock(&self.todo).append(&mut asked);
            let patience = Duration::from_secs(self.options.patience);
            match end {
                End::Lost(_) if lock(&self.last).elapsed() < patience => std::thread::sleep(PAUSE),
                End::Lost(failure) | End::Final(failure) => return self.give_up(failure),
            }
        }
    }

    fn give_up(&self, failure: Failure) {
        self.stop.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(failure);
    }

    /// Over one connection. `asked`: what is asked for and has not come.
    fn fetch(&self, asked: &mut Vec<u64>) -> std::result::Result<(), End> {
        let connected = Connection::open(&self.hints, &self.address, GREETING, LIMIT);
        let connection = connected.map_err(|refused| {
            let said = String::from_utf8_lossy(&refused.data).escape_default().to_string();
            let said = if said.is_empty() { said } else { format!(" (the peer: {said})") };
            Failure::Peer(format!("connecting to {}: {}{said}", self.options.address, refused.error))
        })?;
        if connection.greeting() != GREETING {
            let problem = "the peer does not run this version of ofi cp".to_string();
            return Err(End::Final(Failure::Peer(problem)));
        }
        let mut link = Link::new(connection);
        for _ in 0..WINDOW {
            link.receive(vec![0; HEAD + BLOCK], LIMIT)?;
        }
        self.ask(&mut link, &Request::Open(self.options.file.clone()))?;
        let (buffer, len) = link.next("opening the file", LIMIT)?;
        let id = match parse(&buffer[..len.min(buffer.len())]) {
            Ok(Message::Answer(Answer::Opened(id))) => id,
            Ok(Message::Answer(Answer::Refused(why))) => return Err(End::Final(told(&why))),
            Ok(Message::Block { .. }) => {
                return Err(End::Final(Failure::Data("a block before any request".into())));
            }
            Err(why) => return Err(End::Final(Failure::Data(why))),
        };
        link.receive(buffer, LIMIT)?;
        let (id, partial) = self.begin(id).map_err(End::Final)?;
        loop {
            while asked.len() < WINDOW
                && let Some(block) = self.next()
            {
                asked.push(block);
                self.ask(&mut link, &Request::Read(block))?;
            }
            if asked.is_empty() {
                // Others may lose theirs.
                if self.left.load(Ordering::Acquire) == 0 || self.stop.load(Ordering::Relaxed) {
                    link.finish(LIMIT);
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let (buffer, len) = link.next("waiting for a block", LIMIT)?;
            match parse(&buffer[..len.min(buffer.len())]) {
                Ok(Message::Block { number, hash, payload }) => {
                    let place = asked.iter().position(|&block| block == number);
                    let Some(place) = place.filter(|_| payload.len() == id.block_len(number)) else {
                        let problem = format!("block {number} of {} bytes was not asked for", payload.len());
                        return Err(End::Final(Failure::Data(problem)));
                    };
                    partial.write(number, &hash, payload).map_err(End::Final)?;
                    asked.swap_remove(place);
                    self.bar.inc(payload.len() as u64);
                    *lock(&self.last) = Instant::now();
                    self.left.fetch_sub(1, Ordering::AcqRel);
                }
                Ok(Message::Answer(Answer::Refused(why))) => return Err(End::Final(told(&why))),
                Ok(Message::Answer(Answer::Opened(_))) => {
                    return Err(End::Final(Failure::Data("an answer to no request".into())));
                }
                // Asked for again, over another connection.
                Err(why) => return Err(End::Lost(Failure::Data(why))),
            }
            link.receive(buffer, LIMIT)?;
        }
    }

    fn next(&self) -> Option<u64> {
        if self.stop.load(Ordering::Relaxed) { None } else { lock(&self.todo).pop() }
    }

    fn ask(&self, link: &mut Link, request: &Request) -> Result<()> {
        let message = serde_json::to_vec(request).map_err(|error| Failure::Data(error.to_string()))?;
        link.send(message, 2 * WINDOW, LIMIT)
    }

    /// The file that all streams fetch: the first of them says which.
    fn begin(&self, id: FileId) -> Result<(&FileId, &Partial)> {
        let _beginning = lock(&self.beginning);
        if let Some((known, partial)) = self.begun.get() {
            return match *known == id {
                true => Ok((known, partial)),
                false => {
                    Err(Failure::Data("the file changed at the server: run it again to start over".into()))
                }
            };
        }
        if id.len > LONGEST_FILE || id.version.len() > 256 {
            return Err(Failure::Data(format!(
                "a file of {} bytes: at most {LONGEST_FILE} are copied",
                id.len
            )));
        }
        let (partial, mut missing) = Partial::open(&self.destination, &self.options.file, &id)?;
        let bytes: u64 = missing.iter().map(|&block| id.block_len(block) as u64).sum();
        self.bar.set_length(id.len);
        self.bar.set_position(id.len - bytes);
        self.bar.reset_eta();
        if bytes < id.len && !self.options.quiet {
            output::tell(&format!("ofi: resuming: {} of {} bytes are here", id.len - bytes, id.len));
        }
        self.left.store(missing.len() as u64, Ordering::Release);
        // Taken from the end: the file grows from its beginning.
        missing.reverse();
        *lock(&self.todo) = missing;
        let (id, partial) = self.begun.get_or_init(|| (id, partial));
        Ok((id, partial))
    }
}

/// What the server says, with what a terminal would take amiss escaped.
fn told(why: &str) -> Failure {
    Failure::Peer(format!("the server: {}", why.escape_debug()))
}
