//! Rendezvous: processes that were started separately exchange their addresses or other initial data. All processes
//! make the same call with the same place. Each contributes some bytes and gets the contributions of all, in the same
//! order. The processes may start in any order: the first to arrive opens the place, and the others connect to it.
//!
//! ```
//! use std::time::Duration;
//!
//! use ofi::{Hints, Node, rendezvous::Place};
//!
//! # let folder = std::env::temp_dir().join(format!("ofi-meeting-{}", std::process::id()));
//! # let at = format!("unix:{}", folder.display());
//! // `10.0.0.1:7000` for processes of several hosts
//! let place: Place = at.parse()?;
//! let run = |place: Place| -> ofi::Result<String> {
//!     let node = Node::open(&Hints::new().provider("shm"))?;
//!     let group = node.meet(&place, 2, Duration::from_secs(10))?;
//!     let other = group.peers[1 - group.rank];
//!     node.recv(vec![0; 64])?;
//!     node.send(format!("hello from rank {}", group.rank).into_bytes(), other)?;
//!     loop {
//!         let done = node.wait(Duration::from_secs(10))?.expect("a completion").into_result()?;
//!         if done.kind() == ofi::CompletionKind::Receive {
//!             return Ok(String::from_utf8_lossy(done.bytes()).into_owned());
//!         }
//!     }
//! };
//! let other = std::thread::spawn({
//!     let place = place.clone();
//!     move || run(place)
//! });
//! let mut heard = [run(place)?, other.join().expect("no panic")?];
//! heard.sort();
//! assert_eq!(heard, ["hello from rank 0", "hello from rank 1"]);
//! # Ok::<(), ofi::Error>(())
//! ```
//!
//! A place has no key: anyone who can reach a TCP address may take part, and a stranger may take a process's place.
//! Input is bounded and checked, and malformed requests are rejected. Use an address in a trusted network, or a socket
//! in a folder that only its user can enter.

mod clients;
mod folder;
mod place;
mod stream;
mod wire;

use std::time::{Duration, Instant};

use ofi_api::{Address, Errno, Error, FiAddr, Result};

pub use self::place::Place;
use crate::node::Node;
use crate::threading::Level;

/// The maximum number of processes of a meeting.
pub const MAX_PROCESSES: usize = 4_096;
/// The maximum length of one process's contribution, in bytes.
pub const MAX_CONTRIBUTION_LEN: usize = 4_096;

/// Pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The result of a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The number of this process among all: `0..count`.
    pub rank: usize,
    /// The contributions of all processes by rank, including this one's.
    pub said: Vec<Vec<u8>>,
}

/// The nodes that took part in a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The number of this process among them: `0..count`.
    pub rank: usize,
    /// All nodes by rank, including this one, as numbers for operations of this node.
    pub peers: Vec<FiAddr>,
}

/// Meets `count - 1` other processes at `place`, and contributes `own`. All of them have to arrive within `limit`.
///
/// # Errors
/// `FI_ETIMEDOUT`, with the number of processes that arrived; `FI_EINVAL` if they disagree about `count`, for a `count`
/// of 0 or above [`MAX_PROCESSES`], and for more than [`MAX_CONTRIBUTION_LEN`] bytes; the system's error if the place
/// cannot be used.
pub fn meet(place: &Place, count: usize, own: &[u8], limit: Duration) -> Result<Meeting> {
    let refuse = |subject: &str, wanted: String, found: usize| {
        let advice = "see the module ofi::rendezvous";
        Err(Error::wanted(Errno::EINVAL, subject, wanted, found.to_string(), advice))
    };
    if !(1..=MAX_PROCESSES).contains(&count) {
        return refuse("the processes of a rendezvous", format!("1 to {MAX_PROCESSES}"), count);
    }
    if own.len() > MAX_CONTRIBUTION_LEN {
        return refuse(
            "the contribution of a process",
            format!("{MAX_CONTRIBUTION_LEN} bytes at most"),
            own.len(),
        );
    }
    let party = Party { place, count, own, limit, deadline: Instant::now().checked_add(limit) };
    match place {
        Place::Folder(folder) => folder::meet(&party, folder),
        Place::Tcp(_) | Place::Unix(_) => clients::meet(&party),
    }
}

/// One process's view of a meeting.
struct Party<'a> {
    place: &'a Place,
    count: usize,
    own: &'a [u8],
    limit: Duration,
    /// `None` if the deadline exceeds the clock's range.
    deadline: Option<Instant>,
}

impl Party<'_> {
    /// Sleeps briefly.
    ///
    /// # Errors
    /// `FI_ETIMEDOUT` after the deadline; `found` describes the situation.
    fn pause(&self, found: impl FnOnce() -> String) -> Result<()> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::wanted(
                Errno::ETIMEDOUT,
                format!("the rendezvous at {}", self.place),
                format!("{} processes within {:?}", self.count, self.limit),
                found(),
                "start all of them with the same place and count, and check that they reach it",
            ));
        }
        std::thread::sleep(CHECK_INTERVAL);
        Ok(())
    }

    /// The remaining time, at most `most`.
    fn left(&self, most: Duration) -> Duration {
        let left = self.deadline.map_or(most, |deadline| deadline.saturating_duration_since(Instant::now()));
        left.min(most).max(Duration::from_millis(1))
    }
}

impl<L: Level> Node<L> {
    /// Meets the nodes of `count - 1` other processes at `place`, and inserts all of them.
    ///
    /// # Errors
    /// As [`meet`]; `FI_EINVAL` for an address of another transport than this node's.
    pub fn meet(&self, place: &Place, count: usize, limit: Duration) -> Result<Peers> {
        let Meeting { rank, said } = meet(place, count, self.name()?.to_string().as_bytes(), limit)?;
        let insert = |said: &Vec<u8>| {
            let text = String::from_utf8_lossy(said);
            self.insert(&text.parse::<Address>()?)
        };
        Ok(Peers { rank, peers: said.iter().map(insert).collect::<Result<_>>()? })
    }
}
