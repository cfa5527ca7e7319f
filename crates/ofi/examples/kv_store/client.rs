//! The client: reads values directly, and sends updates to the server.

use std::cell::Cell;
use std::future::Future;

use ofi::{Address, AsyncNode, FiAddr, RemoteWindow};

use super::server::{ANSWER, HELLO, LEAVE, PUT, hints};
use super::support::Outcome;
use super::table::{self, Found};

/// Retries when a lookup races with a write by the server.
const TRIES: usize = 1000;

pub struct Client {
    node: AsyncNode,
}

/// A client's view of a server.
pub struct Store<'a> {
    node: &'a AsyncNode,
    server: FiAddr,
    slots: usize,
    table: RemoteWindow,
    /// The number of the next request.
    next: Cell<u32>,
}

impl Client {
    pub fn open() -> Outcome<Self> {
        Ok(Self { node: AsyncNode::open(&hints())? })
    }

    pub fn name(&self) -> Outcome<Address> {
        Ok(self.node.name()?)
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.node.block_on(future)
    }

    /// Requests the server's table.
    pub async fn connect(&self, server: &Address) -> Outcome<Store<'_>> {
        let node = &self.node;
        let server = node.insert(server)?;
        let answer = node.recv_tagged_from(vec![0; 64], server, HELLO | ANSWER, 0);
        node.send_tagged(Vec::new(), server, HELLO).await?;
        let answer = answer.await?;
        let (slots, table) = answer.bytes().split_first_chunk().ok_or("a short answer")?;
        let slots = usize::try_from(u64::from_le_bytes(*slots))?;
        let table = RemoteWindow::from_bytes(table)?;
        if table.len != table::bytes(slots) as u64 {
            return Err("the table is not as long as its slots".into());
        }
        Ok(Store { node, server, slots, table, next: Cell::new(0) })
    }
}

impl Store<'_> {
    /// The value of a key. Takes one remote read, unless the server is writing the entry at that moment.
    pub async fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let range = table::range(key, self.slots);
        let there = self.table.slice(range.start as u64..range.end as u64)?;
        let mut buffer = vec![0; range.len()];
        for _ in 0..TRIES {
            buffer = self.node.read(buffer, self.server, there).await?.buffer;
            match table::search(&buffer, key) {
                Found::Value(_, value) => return Ok(Some(value.to_vec())),
                Found::Empty(_) | Found::Full => return Ok(None),
                Found::Torn => {}
            }
        }
        Err(format!("the slots of a key were being written each of {TRIES} times").into())
    }

    /// Stores a value. Other clients find it from now on.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        let slot = table::slot(key, value)?;
        let number = self.next.replace(self.next.get().wrapping_add(1));
        let tag = PUT | u64::from(number);
        let answer = self.node.recv_tagged_from(vec![0; 1], self.server, tag | ANSWER, 0);
        self.node.send_tagged(slot.to_vec(), self.server, tag).await?;
        match answer.await?.bytes() {
            [1] => Ok(()),
            _ => Err("the table has no room for the key".into()),
        }
    }

    /// Tells the server that there will be no more requests.
    pub async fn leave(self) -> Outcome {
        self.node.send_tagged(Vec::new(), self.server, LEAVE).await?;
        Ok(())
    }
}
