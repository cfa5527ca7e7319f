//! The messages of the two processes on the control connection: one JSON value per line.
//!
//! The client takes the times: it starts jobs, and the server answers. C's program has its own, incompatible control
//! protocol.

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
    /// To the second process of a run of both sides: the endpoint to open.
    Setup(Setup),
    /// The first message of each side.
    Hello(Hello),
    /// From the client: run this job.
    Start(Job),
    /// From the server: prepared.
    Ready {
        /// For remote access: the key of the memory, and the address of its first byte.
        region: Option<(u64, u64)>,
    },
    /// From the client: remote accesses, which the server does not see, continue.
    Working,
    /// From the server: the job is done. If data was checked, all of it was as expected.
    Done,
    /// From either side: cannot continue.
    Failed {
        /// The reason, for people.
        why: String,
        /// The exit code.
        code: u8,
    },
    /// From the client: there are no more jobs.
    Bye,
}

/// The endpoint to open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Names of provider, fabric and domain; any if empty.
    pub names: [String; 3],
    /// The local address to request.
    pub source: Option<String>,
    /// Endpoint type, as C's number.
    pub ep_type: u32,
    /// Kind of messages.
    pub kind: Kind,
    /// Whether remote memory access is needed.
    pub rma: bool,
    /// The threading level; the default is that the application serialises calls.
    pub threading: Option<Level>,
    /// The core to run on.
    pub core: Option<usize>,
    /// Whether both sides share one core, so that waiting must yield it.
    pub crowded: bool,
}

/// A description of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol.
    pub speaks: u32,
    /// The boot id of the host, which tells whether both are on one host; empty if unknown.
    pub host: String,
    /// Provider's name.
    pub provider: String,
    /// The endpoint's protocol, as C's number.
    pub protocol: u32,
    /// Kind of messages.
    pub kind: Kind,
    /// Format of the address, as C's number.
    pub format: u32,
    /// Bytes of the address.
    pub address: Vec<u8>,
}

impl Hello {
    /// The address, if the headers define its format.
    pub fn address(&self) -> Option<Address> {
        AddrFormat::from_c(self.format).map(|format| Address::new(format, &self.address))
    }
}

/// One measurement, or one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The task.
    pub task: Task,
    /// Bytes of a message or access.
    pub size: usize,
    /// Batches, each of which is timed separately.
    pub batches: u64,
    /// Rounds, messages or accesses of a batch.
    pub rounds: u64,
    /// Operations in flight.
    pub window: usize,
    /// The owner of the memory.
    pub memory: Memory,
    /// Whether the server should also print its figures.
    pub shown: bool,
}

/// The task of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One message in each direction.
    PingPong,
    /// Messages to the server, `window` in flight.
    Stream,
    /// `window` messages at once to the server, and as many back; all contents are checked.
    Check,
    /// Writes into the server's memory.
    Write,
    /// Reads from the server's memory.
    Read,
}

/// Maximum operations in flight.
pub const MAX_WINDOW: usize = 1024;

/// Maximum memory of one side, in bytes.
pub const MAX_MEMORY: usize = 4 << 30;

impl Job {
    /// Total number of messages, accesses or rounds.
    pub fn total(&self) -> u64 {
        self.batches.saturating_mul(self.rounds)
    }

    /// Whether a peer may request this.
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
