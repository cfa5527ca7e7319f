//! A rendezvous over sockets: one process hosts it, and the others connect as clients.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, Result};

use super::stream::{BootstrapListener, Stream};
use super::wire::{self, ParseResult};
use super::{MAX_CONTRIBUTION_LEN, Meeting, Party};

/// The time that a client has to send its request and receive its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of clients, beyond the expected ones, whose requests are incomplete.
const MAX_UNEXPECTED_CLIENTS: usize = 64;
/// Bytes per read.
const CHUNK: usize = 4_096;

/// Hosts the rendezvous if no process does; otherwise connects to its host. Retries if the host ends without answering.
pub fn meet(party: &Party<'_>) -> Result<Meeting> {
    loop {
        if let Some(listener) =
            BootstrapListener::open(party.place).map_err(|error| unusable(party, &error))?
        {
            return host(party, &listener);
        }
        let reached = Stream::connect(party.place, party.left(Duration::from_secs(1)));
        if let Some(stream) = reached.map_err(|error| unusable(party, &error))?
            && let Some(answer) = ask(party, stream)?
        {
            let reason = |why| {
                let advice = "start all of them with the same count";
                let subject = format!("the rendezvous at {}", party.place);
                Error::wanted(Errno::EINVAL, subject, format!("{} processes", party.count), why, advice)
            };
            return answer.map_err(reason);
        }
        party.pause(|| "no process that has opened it".into())?;
    }
}

fn unusable(party: &Party<'_>, error: &std::io::Error) -> Error {
    Error::wanted(
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        "the place of a rendezvous",
        "one that this process can open or reach",
        format!("{}: {error}", party.place),
        "give all processes the same place, and the right to use it",
    )
}

/// The state of a client.
enum Client {
    /// Its request is incomplete.
    Arriving { stream: Stream, arrived: Vec<u8>, since: Instant },
    /// The request waits for the other processes.
    Waiting { stream: Stream, contribution: Vec<u8> },
}

fn host(party: &Party<'_>, listener: &BootstrapListener) -> Result<Meeting> {
    let mut clients: Vec<Client> = Vec::new();
    let waiting =
        |clients: &[Client]| clients.iter().filter(|client| matches!(client, Client::Waiting { .. })).count();
    loop {
        while let Some(stream) = listener.accept().map_err(|error| unusable(party, &error))? {
            if clients.len() - waiting(&clients) >= party.count + MAX_UNEXPECTED_CLIENTS {
                let oldest = clients.iter().position(|client| matches!(client, Client::Arriving { .. }));
                oldest.map(|oldest| clients.remove(oldest));
            }
            clients.push(Client::Arriving { stream, arrived: Vec::new(), since: Instant::now() });
        }
        let mut slots = party.count - 1 - waiting(&clients);
        clients = clients.into_iter().filter_map(|client| advance(party, client, &mut slots)).collect();
        let there = waiting(&clients);
        if there + 1 == party.count {
            return Ok(answer_all(party, clients));
        }
        party.pause(|| format!("{}", there + 1))?;
    }
}

/// Advances a client by the bytes received so far. `None` if it is gone or was refused.
fn advance(party: &Party<'_>, client: Client, slots: &mut usize) -> Option<Client> {
    match client {
        Client::Waiting { mut stream, contribution } => match read(&mut stream, &mut Vec::new()) {
            Reading::Nothing => Some(Client::Waiting { stream, contribution }),
            // It disconnected or violates the protocol: another client may take its slot.
            Reading::Some | Reading::Ended => {
                *slots += 1;
                None
            }
        },
        Client::Arriving { mut stream, mut arrived, since } => {
            let ended = read(&mut stream, &mut arrived) == Reading::Ended;
            match wire::take_request(&arrived) {
                ParseResult::More if !ended && since.elapsed() < REQUEST_TIMEOUT => {
                    Some(Client::Arriving { stream, arrived, since })
                }
                ParseResult::More | ParseResult::Wrong => None,
                ParseResult::Whole(_) if ended => None,
                ParseResult::Whole(request) if request.count != party.count => {
                    let why = format!("{} here, {} there", party.count, request.count);
                    write(&mut stream, &wire::refusal(&why));
                    None
                }
                ParseResult::Whole(_) if *slots == 0 => {
                    write(&mut stream, &wire::refusal("more than that"));
                    None
                }
                ParseResult::Whole(request) => {
                    *slots -= 1;
                    Some(Client::Waiting { stream, contribution: request.contribution })
                }
            }
        }
    }
}

fn answer_all(party: &Party<'_>, clients: Vec<Client>) -> Meeting {
    let (mut streams, mut said) = (Vec::new(), vec![party.own.to_vec()]);
    for client in clients {
        if let Client::Waiting { stream, contribution } = client {
            streams.push(stream);
            said.push(contribution);
        }
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        write(stream, &wire::answer(1 + index, &said));
    }
    Meeting { rank: 0, said }
}

/// The result of a read.
#[derive(PartialEq, Eq)]
enum Reading {
    Nothing,
    Some,
    Ended,
}

/// Reads the available bytes, up to slightly more than the longest request.
fn read(stream: &mut Stream, arrived: &mut Vec<u8>) -> Reading {
    let mut found = Reading::Nothing;
    while arrived.len() <= 2 * MAX_CONTRIBUTION_LEN {
        let mut chunk = [0; CHUNK];
        match stream.read(&mut chunk) {
            Ok(0) => return Reading::Ended,
            Ok(count) => arrived.extend(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return found,
            Err(_) => return Reading::Ended,
        }
        found = Reading::Some;
    }
    found
}

/// Writes to a client. A client that does not read in time is disconnected and loses the rest.
fn write(stream: &mut Stream, mut bytes: &[u8]) {
    let since = Instant::now();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && since.elapsed() < REQUEST_TIMEOUT => {
                std::thread::sleep(super::CHECK_INTERVAL);
            }
            Err(error) => {
                tracing::debug!(target: "ofi::rendezvous", %error, "a client did not read its answer");
                return;
            }
        }
    }
}

/// Sends a request to the host, and waits for the answer. `None` if the host ended before it answered.
fn ask(party: &Party<'_>, mut stream: Stream) -> Result<Option<Result<Meeting, String>>> {
    stream.set_nonblocking().map_err(|error| unusable(party, &error))?;
    write(&mut stream, &wire::request(party.count, party.own));
    let most = 16 + party.count * (4 + MAX_CONTRIBUTION_LEN);
    let mut arrived = Vec::new();
    loop {
        let mut chunk = [0; CHUNK];
        let ended = match stream.read(&mut chunk) {
            Ok(0) => true,
            Ok(count) => {
                arrived.extend(&chunk[..count]);
                false
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                party.pause(|| "a process that holds it and waits for others".into())?;
                continue;
            }
            Err(error) => error.kind() != ErrorKind::Interrupted,
        };
        match wire::take_answer(&arrived, party.count) {
            ParseResult::Whole(answer) => return Ok(Some(answer)),
            ParseResult::More if !ended && arrived.len() <= most => {}
            ParseResult::More if ended => return Ok(None),
            ParseResult::More | ParseResult::Wrong => {
                return Err(Error::wanted(
                    Errno::EPROTO,
                    format!("the rendezvous at {}", party.place),
                    "a process of this library",
                    "another program",
                    "choose a place that no other program uses",
                ));
            }
        }
    }
}
