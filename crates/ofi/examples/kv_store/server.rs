//! The server: the table's only writer.
//!
//! Requests and replies are tagged messages. The upper half of a tag is the kind, and the lower half the number that
//! the client gave the request; a reply has the number of its request.
//!
//! | kind | client | server's answer |
//! |---|---|---|
//! | `HELLO` | nothing | the table: slots (8 bytes), then a `RemoteWindow` |
//! | `PUT` | a slot, as in the table | 1 byte: stored, or no room |
//! | `LEAVE` | nothing | nothing |

use std::collections::VecDeque;

use ofi::{Address, AsyncNode, Caps, Done, FiAddr, Hints, MrAccess, Window};

use super::support::Outcome;
use super::table::{self, Found, SLOT};

pub const HELLO: u64 = 1 << 32;
pub const PUT: u64 = 2 << 32;
pub const LEAVE: u64 = 3 << 32;
/// Added to the tag of a request, gives the tag of its reply.
pub const ANSWER: u64 = 1 << 63;
/// The bits of a tag that hold the kind.
const KIND: u64 = 0xFF << 32;
/// The longest request.
const REQUEST: usize = 256;
/// The maximum number of clients at a time. Beyond it, the clients that have been silent longest must send `HELLO`
/// again.
const CLIENTS: usize = 1024;
/// Requests that may be in flight before the server polls.
const POSTED: usize = 64;

/// Names no provider: peers may be anywhere.
pub fn hints() -> Hints {
    Hints::new().caps(Caps::TAGGED | Caps::RMA | Caps::SOURCE | Caps::DIRECTED_RECV)
}

pub struct Server {
    node: AsyncNode,
    table: Window,
    slots: usize,
}

impl Server {
    /// A server with an empty table of `slots` slots, at an address of this host or at any.
    pub fn open(slots: usize, at: Option<(&str, &str)>) -> Outcome<Self> {
        let builder = AsyncNode::builder().hints(hints()).insert_senders(CLIENTS);
        let node = match at {
            Some((host, port)) => builder.listen(host, port).open_async()?,
            None => builder.open_async()?,
        };
        // Memory of the library: clients on this host map it and read it with plain copies, without involving this
        // process.
        let table = node.domain().alloc_window(table::bytes(slots), MrAccess::REMOTE_READ)?;
        Ok(Self { node, table, slots })
    }

    pub fn name(&self) -> Outcome<Address> {
        Ok(self.node.name()?)
    }

    /// Serves until the given number of clients has left. Returns the number of stored values.
    pub fn run(&self, clients: usize) -> Outcome<u64> {
        self.node.block_on(async {
            // Identical receives match in the order in which they were posted, so the first is always the next to
            // complete.
            let receive = || self.node.recv_tagged(vec![0; REQUEST], 0, !ANSWER);
            let mut receives: VecDeque<_> = (0..POSTED).map(|_| receive()).collect();
            let (mut left, mut puts) = (0, 0);
            while left < clients
                && let Some(next) = receives.pop_front()
            {
                // A bad request, such as one that is too long, must not stop the server.
                if let Ok(request) = next.await {
                    match request.tag.unwrap_or_default() & KIND {
                        HELLO => self.greet(&request).await?,
                        PUT => puts += u64::from(self.put(&request).await?),
                        LEAVE => left += 1,
                        _ => {}
                    }
                }
                receives.push_back(receive());
            }
            Ok(puts)
        })
    }

    async fn greet(&self, request: &Done<Vec<u8>>) -> Outcome {
        let Some(client) = request.source else { return Ok(()) };
        let mut answer = (self.slots as u64).to_le_bytes().to_vec();
        answer.extend(self.table.remote().to_bytes());
        self.answer(request, client, answer).await
    }

    /// Stores a key and its value. Returns whether there was room.
    async fn put(&self, request: &Done<Vec<u8>>) -> Outcome<bool> {
        let Some(client) = request.source else { return Ok(false) };
        let stored = self.store(request.bytes())?;
        self.answer(request, client, vec![stored.into()]).await?;
        Ok(stored)
    }

    fn store(&self, slot: &[u8]) -> Outcome<bool> {
        // Parsed as a client would, to check that it is complete and has a key.
        let (Some(key_len), SLOT) = (slot.get(8), slot.len()) else { return Ok(false) };
        let Some(key) = slot.get(16..16 + usize::from(*key_len)).filter(|key| !key.is_empty()) else {
            return Ok(false);
        };
        if !matches!(table::search(slot, key), Found::Value(..)) {
            return Ok(false);
        }
        let range = table::range(key, self.slots);
        let mut slots = vec![0; range.len()];
        self.table.read_into(range.start, &mut slots)?;
        let (Found::Value(number, _) | Found::Empty(number)) = table::search(&slots, key) else {
            return Ok(false);
        };
        self.table.write_from(range.start + number * SLOT, slot)?;
        Ok(true)
    }

    async fn answer(&self, request: &Done<Vec<u8>>, client: FiAddr, answer: Vec<u8>) -> Outcome {
        let tag = request.tag.unwrap_or_default() | ANSWER;
        // A client that is gone needs no answer.
        let _ = self.node.send_tagged(answer, client, tag).await;
        Ok(())
    }
}
