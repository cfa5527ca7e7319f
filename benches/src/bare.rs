//! The limit of a network for bare UDP sockets: one sends batches of datagrams in one call (UDP_SEGMENT) from a 1 MiB
//! message, the other receives batches in one call (UDP_GRO) into a 1 MiB message. There are no acknowledgements,
//! retransmissions or ordering.

use std::{
    env,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use crate::{Error, Figures, Result, link::Link, ours::Role, worker::ADDRESS};

/// Bytes of a datagram that fits a path of 1,500 under IPv4.
pub const SEGMENT: usize = 1_472;
/// Datagrams per batch.
pub const ROW: usize = 44;
/// Time for which the receiver counts.
const TIME: Duration = Duration::from_millis(1_000);
/// The socket buffer requested by sender and receiver, as with `FI_UDP_SOCKET_BUFFER`.
const BUFFER: i32 = 8 << 20;
/// Size of the message that batches are repeatedly sent from and received into.
const MESSAGE: usize = 1 << 20;

/// This worker's address, with `port`.
///
/// # Errors
/// The address in the environment is invalid.
pub fn own_address(port: u16) -> Result<SocketAddr> {
    let ip = match env::var(ADDRESS) {
        Ok(text) => text.parse().map_err(|_| Error::Link(format!("{ADDRESS}={text} is not an address")))?,
        Err(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
    };
    Ok(SocketAddr::new(ip, port))
}

/// Sets an integer option. Whether that succeeded.
pub fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) -> bool {
    let (from, len) = (std::ptr::from_ref(&value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: `value` is an int, which all options used here are.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, from, len) == 0 }
}

/// Runs one side, with a [`Link`] to the other as standard input. The client sends, and prints the server's figure.
///
/// # Errors
/// Sockets or segmentation offload are missing.
pub fn main(role: Role, copies: bool) -> Result<()> {
    let mut link = Link::from_stdin()?;
    let socket = UdpSocket::bind(own_address(0)?).map_err(Error::io("binding a socket"))?;
    socket.set_nonblocking(true).map_err(Error::io("setting a socket up"))?;
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if !set(&socket, libc::SOL_SOCKET, forced, BUFFER) {
            set(&socket, libc::SOL_SOCKET, plain, BUFFER);
        }
    }
    let option = if role == Role::Client { (libc::UDP_SEGMENT, SEGMENT as i32) } else { (libc::UDP_GRO, 1) };
    if !set(&socket, libc::SOL_UDP, option.0, option.1) {
        return Err(Error::Link("the kernel does not support segmentation offload for UDP".into()));
    }
    let own = socket.local_addr().map_err(Error::io("naming a socket"))?;
    let other: SocketAddr = link.exchange(&own)?;
    socket.connect(other).map_err(Error::io("connecting a socket"))?;
    let _: bool = link.exchange(&true)?;
    match role {
        Role::Server => link.send(&receive(&socket, copies)?),
        Role::Client => {
            send(&socket)?;
            let rate: f64 = link.recv()?;
            let figures = Figures::from_rate(MESSAGE, rate / MESSAGE as f64);
            println!("{}", serde_json::to_string(&figures).map_err(|error| Error::Link(error.to_string()))?);
            Ok(())
        }
    }
}

fn send(socket: &UdpSocket) -> Result<()> {
    let message = vec![1u8; MESSAGE];
    let mut rows = message.chunks_exact(ROW * SEGMENT).cycle();
    let begin = Instant::now();
    // Longer than the receiver counts.
    while begin.elapsed() < TIME + TIME / 2 {
        match socket.send(rows.next().unwrap_or(&message[..SEGMENT])) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // The receiver has counted enough.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => break,
            Err(error) => return Err(Error::io("sending a row")(error)),
        }
    }
    Ok(())
}

/// Received bytes per second.
fn receive(socket: &UdpSocket, copies: bool) -> Result<f64> {
    let mut row = vec![0u8; 65_536];
    let mut message = vec![0u8; MESSAGE + row.len()];
    let (mut begin, mut bytes, mut place) = (None, 0u64, 0);
    let start = Instant::now();
    loop {
        let now = Instant::now();
        let since = *begin.get_or_insert(now);
        if now - since >= TIME {
            return Ok(bytes as f64 / (now - since).as_secs_f64());
        }
        if bytes == 0 {
            begin = None;
            if now - start > 5 * TIME {
                return Err(Error::Link("nothing came".into()));
            }
        }
        for _ in 0..32 {
            let into = if copies { &mut row[..] } else { &mut message[place..] };
            match socket.recv(into) {
                Ok(len) => {
                    bytes += len as u64;
                    if copies {
                        message[place..place + len].copy_from_slice(&row[..len]);
                    }
                    place = (place + len) % MESSAGE;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Error::io("receiving a row")(error)),
            }
        }
        std::hint::black_box(&message);
    }
}
