//! What the two processes tell each other over the control connection: one JSON value to a line.
//!
//! The side with the clock is the client: it starts jobs, the server answers. C's program has a control protocol of
//! its own; the two do not understand each other.

use ofi::raw::{AddrFormat, Address};
use serde::{Deserialize, Serialize};

use super::options::{Kind, Level, Memory};
use super::sizes;

/// The version of this protocol.
pub const SPEAKS: u32 = 2;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Message {
    /// To the second process of a run by itself: what to open.
    Setup(Setup),
    /// Each side's first word.
    Hello(Hello),
    /// The client: do this.
    Start(Job),
    /// The server: prepared.
    Ready {
        /// For remote access: the key of the memory, and the address of its first byte.
        region: Option<(u64, u64)>,
    },
    /// The client, of remote accesses, of which the server hears nothing: they go on.
    Working,
    /// The server: done, and all data was as expected if it was checked.
    Done,
    /// Either side: cannot go on.
    Failed {
        /// For people.
        why: String,
        /// The exit code that goes with it.
        code: u8,
    },
    /// The client: that was all.
    Bye,
}

/// What to open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Provider, fabric and domain by name; any if empty.
    pub names: [String; 3],
    /// The local address to ask for.
    pub source: Option<String>,
    /// Kind of endpoint, as a number of C.
    pub ep_type: u32,
    /// Kind of messages.
    pub kind: Kind,
    /// Whether remote memory access is needed.
    pub rma: bool,
    /// Who serialises calls; the application if nothing is said.
    pub threading: Option<Level>,
    /// Core to run on.
    pub core: Option<usize>,
    /// Whether both sides share one core, so that waiting must give it away.
    pub crowded: bool,
}

/// Who a side is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol.
    pub speaks: u32,
    /// The host's boot, so that both know whether they are on one host; empty if unknown.
    pub host: String,
    /// Provider's name.
    pub provider: String,
    /// What endpoints speak, as a number of C.
    pub protocol: u32,
    /// Kind of messages.
    pub kind: Kind,
    /// Format of the address, as a number of C.
    pub format: u32,
    /// Bytes of the address.
    pub address: Vec<u8>,
}

impl Hello {
    /// The address, if its format is one of the headers.
    pub fn address(&self) -> Option<Address> {
        AddrFormat::from_c(self.format).map(|format| Address::new(format, &self.address))
    }
}

/// One measurement, or one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What is done.
    pub task: Task,
    /// Bytes of a message or access.
    pub size: usize,
    /// Batches, each of which is timed by itself.
    pub batches: u64,
    /// Rounds, messages or accesses of a batch.
    pub rounds: u64,
    /// In flight at once.
    pub window: usize,
    /// Whose memory.
    pub memory: Memory,
    /// Whether the server should print its view too.
    pub shown: bool,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A message to and one fro.
    PingPong,
    /// Messages to the server, `window` in flight.
    Stream,
    /// `window` messages at once to the server, and as many back; all contents checked.
    Check,
    /// Writes into the server's memory.
    Write,
    /// Reads from the server's memory.
    Read,
}

/// Most that may be in flight.
pub const MAX_WINDOW: usize = 1024;

/// Most memory of one side.
pub const MAX_MEMORY: usize = 4 << 30;

impl Job {
    /// Messages, or accesses, or rounds in all.
    pub fn total(&self) -> u64 {
        self.batches.saturating_mul(self.rounds)
    }

    /// Whether a peer may ask for this.
    pub fn is_sane(&self) -> bool {
        self.size <= sizes::MAX
            && (1..=MAX_WINDOW).contains(&self.window)
            && self.size.saturating_mul(self.window) <= MAX_MEMORY
            && self.batches >= 1
            && self.rounds >= 1
            && self.batches.checked_mul(self.rounds).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job = Job {
        task: Task::Stream,
        size: 64,
        batches: 8,
        rounds: 1000,
        window: 64,
        memory: Memory::Application,
        shown: false,
    };

    #[test]
    fn a_message_survives_the_wire() {
        let messages = [
            Message::Start(JOB),
            Message::Ready { region: Some((u64::MAX, 4096)) },
            Message::Setup(Setup { source: Some("fi_shm://a".into()), ..Setup::default() }),
            Message::Bye,
        ];
        for message in messages {
            let line = serde_json::to_string(&message).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        }
    }

    #[test]
    fn a_peer_cannot_ask_for_the_moon() {
        assert!(JOB.is_sane());
        assert!(!Job { size: sizes::MAX, ..JOB }.is_sane());
        assert!(!Job { size: usize::MAX, window: 1, ..JOB }.is_sane());
        assert!(!Job { window: 0, ..JOB }.is_sane());
        assert!(!Job { batches: u64::MAX, ..JOB }.is_sane());
    }
}
