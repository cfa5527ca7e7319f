//! Statistics for other programs of the same user: `ofi top`, `ofi stats`.
//!
//! A `multirail` agent has its own section beside the endpoints of its rails, with histograms.
//!
//! Off unless `FI_EXPORT_STATISTICS` is set. Then the first endpoint or shared receive context that opens starts one
//! thread, which serves a socket in a directory that only this user may enter (`socket`). A reader gets one text
//! (`snapshot`), and the connection ends.
//!
//! Reading counters takes the lock of their endpoint, which otherwise only the application's thread takes. So they are
//! read only on request, and at most once per `TEXT_LIFETIME`: readers in between get the same text. A reader that does
//! not take its text within `READER_TIMEOUT` is dropped.

mod snapshot;
mod socket;

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

use ofi_api::Statistic;
use tracing::warn;

use crate::fork::Born;
use crate::settings;

pub use snapshot::{About, Histogram};
pub use socket::directory;

/// The time for which a text is reused.
const TEXT_LIFETIME: Duration = Duration::from_secs(1);
/// The time within which a reader must take its text.
const READER_TIMEOUT: Duration = Duration::from_secs(2);

/// A source of counters for the statistics.
pub trait Counted: Send + Sync {
    /// At this moment.
    fn counts(&self) -> Vec<Statistic>;

    /// The histograms of durations at this moment.
    fn histograms(&self) -> Vec<Histogram> {
        Vec::new()
    }

    /// Its names.
    fn about(&self) -> About;
}

/// The exported objects, and the process that exports them.
struct Exported {
    born: Born,
    members: Vec<Weak<dyn Counted>>,
}

static EXPORTED: Mutex<Option<Exported>> = Mutex::new(None);

/// The list. `None` if it stays locked: after fork(2), the thread that locked it may not exist here.
fn exported() -> Option<MutexGuard<'static, Option<Exported>>> {
    for _ in 0..100 {
        match EXPORTED.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Exports a newly opened source of counters, if the setting says so.
pub fn opened(counted: &Arc<dyn Counted>) {
    if !settings::exports_statistics() {
        return;
    }
    let Some(mut exported) = exported() else {
        return warn!(target: "ofi::core::core", "an endpoint's statistics are not exported: their list is locked");
    };
    let members = match &mut *exported {
        Some(exported) if exported.born.is_here() => &mut exported.members,
        // The first of this process.
        _ => {
            if let Err(error) = start() {
                return warn!(target: "ofi::core::core", "statistics are not exported: {error}");
            }
            &mut exported.insert(Exported { born: Born::here(), members: Vec::new() }).members
        }
    };
    // Pruned only when it would grow, and so rarely.
    if members.len() == members.capacity() {
        members.retain(|known| known.strong_count() > 0);
    }
    members.push(Arc::downgrade(counted));
}

/// Starts the thread that answers.
fn start() -> io::Result<()> {
    let listener = socket::listen(&socket::directory()?)?;
    let builder = std::thread::Builder::new().name("ofi-statistics".into()).stack_size(256 << 10);
    builder.spawn(move || serve(&listener)).map(|_| ())
}

/// Serves readers, one after the other, for the life of the process.
fn serve(listener: &UnixListener) {
    let mut last: Option<(Instant, String)> = None;
    loop {
        let Ok((reader, _)) = listener.accept() else {
            // Out of descriptors or memory: pause.
            std::thread::sleep(TEXT_LIFETIME);
            continue;
        };
        let text = match last.take() {
            Some((at, text)) if at.elapsed() < TEXT_LIFETIME => (at, text),
            _ => (Instant::now(), snapshot::text(&members())),
        };
        // A reader that disconnects is not an error of this process.
        let _ = socket::send(&reader, text.1.as_bytes(), READER_TIMEOUT);
        hang_up(&reader);
        last = Some(text);
    }
}

fn hang_up(reader: &UnixStream) {
    let _ = reader.shutdown(std::net::Shutdown::Both);
}

/// The currently open sources.
fn members() -> Vec<Arc<dyn Counted>> {
    let Some(exported) = exported() else { return Vec::new() };
    exported.iter().flat_map(|exported| &exported.members).filter_map(Weak::upgrade).collect()
}

#[cfg(test)]
mod tests;
