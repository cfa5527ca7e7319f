//! The example `kv_store`: its table, and its server in another process.

use ofi_testkit::process::{Child, Line};

mod support {
    pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;
}
#[path = "../../../crates/ofi/examples/kv_store/client.rs"]
mod client;
#[path = "../../../crates/ofi/examples/kv_store/server.rs"]
mod server;
#[path = "../../../crates/ofi/examples/kv_store/table.rs"]
mod table;

use client::Client;
use server::Server;
use table::{Found, PROBES, SLOT, search, slot};

/// Serves a table until clients have left. Arguments: the number of slots, and of clients.
pub fn serve(line: &mut Line, arguments: &[String]) {
    let server = Server::open(arguments[0].parse().unwrap(), None).unwrap();
    line.say(server.name().unwrap());
    line.say(server.run(arguments[1].parse().unwrap()).unwrap());
}

fn start(slots: usize, clients: usize) -> (Child, ofi::Address) {
    let mut child = Child::start("serve", &[&slots.to_string(), &clients.to_string()]);
    let server = child.line.hear().parse().unwrap();
    (child, server)
}

/// A client that stores its own keys, and changes a shared one often.
pub fn put_and_leave(_: &mut Line, arguments: &[String]) {
    let client = Client::open().unwrap();
    client.block_on(async {
        let store = client.connect(&arguments[0].parse().unwrap()).await.unwrap();
        for round in 0..200u64 {
            store.put(b"shared", &[round as u8; 64]).await.unwrap();
            store.put(format!("{}/{round}", arguments[1]).as_bytes(), &round.to_le_bytes()).await.unwrap();
        }
        store.leave().await.unwrap();
    });
}

#[test]
fn two_processes_store_and_find() {
    let (mut server, address) = start(1000, 1);
    let client = Client::open().unwrap();
    assert_ne!(client.name().unwrap(), address);
    client.block_on(async {
        let store = client.connect(&address).await.unwrap();
        assert_eq!(store.get(b"key").await.unwrap(), None);
        store.put(b"key", b"first").await.unwrap();
        assert_eq!(store.get(b"key").await.unwrap().unwrap(), b"first");
        store.put(b"key", b"").await.unwrap();
        assert_eq!(store.get(b"key").await.unwrap().unwrap(), b"");
        for number in 0..200u32 {
            store.put(&number.to_le_bytes(), &[number as u8; 64]).await.unwrap();
        }
        for number in 0..200u32 {
            assert_eq!(store.get(&number.to_le_bytes()).await.unwrap().unwrap(), [number as u8; 64]);
        }
        assert!(store.put(b"", b"value").await.is_err() && store.put(b"k", &[0; 65]).await.is_err());
        store.leave().await.unwrap();
    });
    server.line.expect("202");
    server.finish();
}

#[test]
fn a_reader_never_sees_half_a_value() {
    let (mut server, address) = start(2000, 3);
    let name = address.to_string();
    let writers = ["a", "b"].map(|which| Child::start("put_and_leave", &[&name, which]));
    let client = Client::open().unwrap();
    client.block_on(async {
        let store = client.connect(&address).await.unwrap();
        while store.get(b"a/199").await.unwrap().is_none() || store.get(b"b/199").await.unwrap().is_none() {
            if let Some(value) = store.get(b"shared").await.unwrap() {
                assert!(value.len() == 64 && value.iter().all(|&byte| byte == value[0]), "{value:?}");
            }
        }
        store.leave().await.unwrap();
    });
    writers.into_iter().for_each(Child::finish);
    server.line.expect("800");
    server.finish();
}

#[test]
fn a_full_table_says_so() {
    let (server, address) = start(1, 1); // one slot, and those that a search probes behind it
    let client = Client::open().unwrap();
    client.block_on(async {
        let store = client.connect(&address).await.unwrap();
        for key in 0..PROBES as u8 {
            store.put(&[key], b"value").await.unwrap();
        }
        assert!(store.put(&[PROBES as u8], b"value").await.unwrap_err().to_string().contains("no room"));
        store.put(&[0], b"other").await.unwrap();
        assert_eq!(store.get(&[0]).await.unwrap().unwrap(), b"other");
        assert_eq!(store.get(&[PROBES as u8]).await.unwrap(), None);
        store.leave().await.unwrap();
    });
    server.finish();
}

#[test]
fn torn_and_forged_slots_are_noticed() {
    let mut slots = [slot(b"key", b"value").unwrap(), [0; SLOT]].concat();
    assert_eq!(search(&slots, b"key"), Found::Value(0, b"value"));
    assert_eq!(search(&slots, b"other"), Found::Empty(1));
    assert_eq!(search(&slots[..SLOT], b"other"), Found::Full);
    for at in 0..SLOT {
        slots[at] ^= 1;
        assert_eq!(search(&slots, b"key"), Found::Torn, "byte {at}");
        slots[at] ^= 1;
    }
}
