//! Bare UDP sockets on loopback: the cost of a datagram on this machine.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{Error, Figures, Result, figures::median, sys};

const BATCH: usize = 500;
const BATCHES: usize = 25;
const BYTES: usize = 64;
/// Time after which a reply counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The way in which the two threads wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// With non-blocking receives in a loop. Latency is one way.
    Spin,
    /// In a blocking receive. Latency is the round trip.
    Blocked,
}

/// Two threads on `cores`, which answer each other's datagrams.
pub fn measure(test: Test, cores: [usize; 2]) -> Result<Figures> {
    let (ping, pong) = (open(test)?, open(test)?);
    let address = |socket: &UdpSocket| socket.local_addr().map_err(Error::io("naming a socket"));
    ping.connect(address(&pong)?).map_err(Error::io("connecting a socket"))?;
    pong.connect(address(&ping)?).map_err(Error::io("connecting a socket"))?;
    let pinned = |core| sys::pin_current_thread(core).map_err(Error::io(format!("pinning to core {core}")));
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            pinned(cores[0])?;
            (0..BATCH * BATCHES).try_for_each(|_| receive(&pong, test).and_then(|()| send(&pong)))
        });
        let asking = scope.spawn(move || {
            pinned(cores[1])?;
            let mut batches = Vec::with_capacity(BATCHES);
            for _ in 0..BATCHES {
                let start = Instant::now();
                for _ in 0..BATCH {
                    send(&ping)?;
                    receive(&ping, test)?;
                }
                batches.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
            }
            let round_trip = median(batches).unwrap_or(f64::NAN);
            let latency = if test == Test::Spin { round_trip / 2.0 } else { round_trip };
            Ok(Figures::from_latency(BYTES, latency))
        });
        match (asking.join(), answering.join()) {
            (Ok(figures), Ok(answered)) => answered.and(figures),
            _ => Err(Error::Link("a thread of the bare sockets panicked".into())),
        }
    })
}

fn open(test: Test) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("opening a socket"))?;
    match test {
        Test::Spin => socket.set_nonblocking(true),
        Test::Blocked => socket.set_read_timeout(Some(REPLY_TIMEOUT)),
    }
    .map_err(Error::io("setting a socket up"))?;
    Ok(socket)
}

fn send(socket: &UdpSocket) -> Result<()> {
    socket.send(&[1; BYTES]).map(drop).map_err(Error::io("sending a datagram"))
}

fn receive(socket: &UdpSocket, test: Test) -> Result<()> {
    let lost = || Error::Link("a datagram was lost".into());
    let mut looks = 0u32;
    let mut since = None;
    loop {
        match socket.recv(&mut [0; 2 * BYTES]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                looks += 1;
                // A blocking receive returns here after its timeout; a spinning one reads the clock at intervals.
                let over = test == Test::Blocked
                    || looks.is_multiple_of(1 << 16)
                        && since.get_or_insert_with(Instant::now).elapsed() > REPLY_TIMEOUT;
                if over {
                    return Err(lost());
                }
            }
            Err(error) => return Err(Error::io("receiving a datagram")(error)),
        }
    }
}
