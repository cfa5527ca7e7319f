//! System calls of sockets: those of `rustix`, with the library's errors, and those that read and write memory which
//! the application lends.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use ofi_api::{Errno, Result};
use ofi_core::sys::failed;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// The library's error number.
pub fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// A stream socket that does not block.
///
/// # Errors
/// Errors of socket(2).
pub fn stream(v6: bool) -> Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed("socket"))
}

/// A socket bound to `address`.
///
/// # Errors
/// `FI_EADDRINUSE` and other errors of bind(2).
pub fn bound(address: SocketAddr) -> Result<OwnedFd> {
    // As C libfabric's: an earlier connection of this port may linger. Both sockets must say that it does not matter;
    // one of any port says it afterwards, because it would share a port otherwise.
    let socket = stream(address.is_ipv6())?;
    let reuse = |socket: &OwnedFd| sockopt::set_socket_reuseaddr(socket, true).map_err(failed("setsockopt"));
    if address.port() != 0 {
        reuse(&socket)?;
    }
    let socket = bind(socket, address)?;
    reuse(&socket)?;
    Ok(socket)
}

fn bind(socket: OwnedFd, address: SocketAddr) -> Result<OwnedFd> {
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true).map_err(failed("setsockopt"))?;
    }
    net::bind(&socket, &address).map_err(failed("bind"))?;
    Ok(socket)
}

/// A listening socket at `address`. Connections of an earlier one that linger do not matter.
///
/// # Errors
/// `FI_EADDRINUSE` and other errors of bind(2) and listen(2).
pub fn listen(address: SocketAddr) -> Result<OwnedFd> {
    let socket = stream(address.is_ipv6())?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed("setsockopt"))?;
    let socket = bind(socket, address)?;
    net::listen(&socket, BACKLOG).map_err(failed("listen"))?;
    Ok(socket)
}

/// As C libfabric's tcp. The kernel has a limit of its own (net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// Sets the options of every connection: packets are sent at once, and keepalive detects a dead peer while the
/// connection is idle. (While data is in flight, the endpoint checks: see `endpoint/silence.rs`.)
pub fn prepare(socket: BorrowedFd<'_>, patience: Duration) {
    // A socket that cannot have an option works without.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, (patience / 2).max(Duration::from_secs(1)));
    let _ = sockopt::set_tcp_keepintvl(socket, (patience / 8).max(Duration::from_secs(1)));
    let _ = sockopt::set_tcp_keepcnt(socket, 4);
}

/// Sets the options of an established connection: within a host there is nothing to pace. (With `bbr`, which paces, as
/// the host's default, messages of a mebibyte take twice as long over loopback; Linux 6.18.)
pub fn begin_stream(socket: BorrowedFd<'_>) {
    let ip = |address: Option<SocketAddr>| address.map(|address| address.ip());
    if ip(name(socket)) == ip(peer_name(socket)) {
        let _ = sockopt::set_tcp_congestion(socket, "reno"); // the kernel always has it
    }
}

/// Binds an outgoing socket to an address of this host, with a port that the kernel chooses when it connects.
///
/// # Errors
/// The error number of bind(2).
pub fn bind_source(socket: BorrowedFd<'_>, source: std::net::IpAddr) -> Result<(), Errno> {
    let (one, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    let from = std::ptr::from_ref(&one).cast();
    // SAFETY: `one` is an int, which this option takes. Where the kernel does not know it, ports are used up sooner.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, from, len)
    };
    net::bind(socket, &SocketAddr::new(source, 0)).map_err(errno)
}

/// Starts to connect. `true`: the connection is established already.
///
/// # Errors
/// The error number of connect(2).
pub fn connect(socket: BorrowedFd<'_>, to: SocketAddr) -> Result<bool, Errno> {
    match net::connect(socket, &to) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(errno(error)),
    }
}

/// Accepts the next connection of a listener, with its source address. `None` if none waits.
///
/// # Errors
/// Errors of accept4(2), such as that of a process with too many descriptors.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<(OwnedFd, SocketAddr)>, Errno> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match net::acceptfrom_with(listener, flags) {
            Ok((socket, from)) => {
                if let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) {
                    return Ok(Some((socket, from)));
                }
            }
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            // Connections that have ended before they were accepted.
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR | rustix::io::Errno::PROTO) => {}
            Err(error) => return Err(errno(error)),
        }
    }
}

/// The error of a socket, if it has one.
pub fn take_error(socket: BorrowedFd<'_>) -> Option<Errno> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => None,
        Ok(Err(error)) | Err(error) => Some(errno(error)),
    }
}

/// The address of a socket.
pub fn name(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok())
}

/// The address of the other end.
pub fn peer_name(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    net::getpeername(socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok())
}

/// Ends the sending direction.
pub fn end_sending(socket: BorrowedFd<'_>) {
    let _ = net::shutdown(socket, net::Shutdown::Write);
}

/// Sends bytes by one call. Returns how many went.
///
/// # Errors
/// The error number of send(2); `EAGAIN` if there is no room.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    net::send(socket, bytes, net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT).map_err(errno)
}

/// Receives bytes. 0: the peer sends no more.
///
/// # Errors
/// The error number of recv(2); `EAGAIN` if there are none.
pub fn receive(socket: BorrowedFd<'_>, to: &mut [u8]) -> Result<usize, Errno> {
    match net::recv(socket, to, net::RecvFlags::DONTWAIT) {
        Ok((_, len)) => Ok(len),
        Err(error) => Err(errno(error)),
    }
}

/// What was discarded of a peer.
pub struct Drained {
    /// Bytes.
    pub len: usize,
    /// The peer sends no more.
    pub is_over: bool,
}

/// Discards what a peer sends: the kernel would reset a connection that is closed with unread bytes, and the peer would
/// lose the bytes that it has not read.
pub fn drain(socket: BorrowedFd<'_>) -> Drained {
    let (mut bytes, mut len) = ([0; 4096], 0);
    for _ in 0..1024 {
        match receive(socket, &mut bytes) {
            Ok(0) => return Drained { len, is_over: true },
            Ok(got) => len += got,
            Err(errno) => return Drained { len, is_over: !is_full(errno) },
        }
    }
    Drained { len, is_over: false }
}

/// Whether a kernel call may be repeated later.
pub fn is_full(errno: Errno) -> bool {
    errno == Errno::EAGAIN || errno == Errno::EINTR
}

fn last_errno() -> Errno {
    Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Sends the bytes of all of `pieces`. Returns how many went.
///
/// # Errors
/// The error number of sendmsg(2); `EAGAIN` if there is no room.
///
/// # Safety
/// The pieces may be read during the call.
pub unsafe fn send_pieces(socket: BorrowedFd<'_>, pieces: &[libc::iovec]) -> Result<usize, Errno> {
    const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    if let [piece] = pieces {
        // The kernel has less to check.
        // SAFETY: the piece may be read, by the caller's promise.
        let sent = unsafe { libc::send(socket.as_raw_fd(), piece.iov_base, piece.iov_len, FLAGS) };
        return usize::try_from(sent).map_err(|_| last_errno());
    }
    // SAFETY: integers and pointers, for which all zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the message has pieces that may be read, which is the caller's promise, and nothing else.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, FLAGS) };
    usize::try_from(sent).map_err(|_| last_errno())
}

/// Receives into `pieces`. Returns how many bytes came; 0: the peer sends no more.
///
/// # Errors
/// The error number of readv(2); `EAGAIN` if there are none.
///
/// # Safety
/// The pieces may be written during the call.
pub unsafe fn receive_pieces(socket: BorrowedFd<'_>, pieces: &[libc::iovec]) -> Result<usize, Errno> {
    if let [piece] = pieces {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the piece may be written, by the caller's promise.
        let got = unsafe { libc::recv(socket.as_raw_fd(), piece.iov_base, piece.iov_len, flags) };
        return usize::try_from(got).map_err(|_| last_errno());
    }
    // SAFETY: the pieces may be written, by the caller's promise. The socket does not block.
    let got = unsafe { libc::readv(socket.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int) };
    usize::try_from(got).map_err(|_| last_errno())
}

/// The kernel's knowledge of a silent connection (tcp(7), `TCP_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The time for which the peer's host has acknowledged nothing.
    pub since: Duration,
    /// Whether it was asked for an acknowledgement since then, by a retransmission or a window probe.
    pub asked: bool,
}

fn tcp_info(socket: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    // SAFETY: integers, for which all zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let to = std::ptr::from_mut(&mut info).cast();
    // SAFETY: room for `len` bytes.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &mut len) };
    (rc == 0).then_some(info)
}

/// How long the other end of a connection has been silent; `None` if the kernel does not say.
pub fn silence(socket: BorrowedFd<'_>) -> Option<Silence> {
    let info = tcp_info(socket)?;
    let since = Duration::from_millis(info.tcpi_last_ack_recv.into());
    Some(Silence { since, asked: info.tcpi_retransmits > 0 || info.tcpi_probes > 1 })
}

/// A set of numbered descriptors, readable when one of them is ready.
pub struct Ready(OwnedFd);

/// Events of one call.
const EVENTS: usize = 64;

/// The events to wait for on a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes to read.
    pub read: bool,
    /// Room to write.
    pub write: bool,
}

impl Interest {
    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its number.
    pub number: u64,
    /// There is something to read, or an error.
    pub read: bool,
    /// There is room to write, or an error.
    pub write: bool,
    /// The connection has failed, or has ended in both directions: the descriptor stays ready.
    pub ended: bool,
}

impl Ready {
    /// An empty set.
    ///
    /// # Errors
    /// Errors of epoll_create1(2).
    pub fn new() -> Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self).map_err(failed("epoll_create1"))
    }

    /// Adds a descriptor, which leaves the set when it is closed.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    pub fn add(&self, fd: impl AsFd, number: u64, interest: Interest) -> Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(number), interest.flags()).map_err(failed("epoll_ctl"))
    }

    /// Adds a descriptor by its number in the process.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    ///
    /// # Safety
    /// It is open during the call.
    pub unsafe fn add_raw(&self, fd: RawFd, number: u64, interest: Interest) -> Result<()> {
        // SAFETY: the caller's promise.
        self.add(unsafe { BorrowedFd::borrow_raw(fd) }, number, interest)
    }

    /// Changes the events to wait for on a descriptor.
    pub fn change(&self, fd: impl AsFd, number: u64, interest: Interest) {
        let _ = epoll::modify(&self.0, fd, EventData::new_u64(number), interest.flags());
    }

    /// Collects the ready descriptors, without waiting.
    pub fn collect(&self, into: &mut Vec<Found>) {
        into.clear();
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.0, &mut events, Some(&now)) else { return };
        for event in events {
            let (flags, number) = (event.flags, event.data.u64());
            let ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let (read, write) =
                (ended || flags.contains(EventFlags::IN), ended || flags.contains(EventFlags::OUT));
            into.push(Found { number, read, write, ended });
        }
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// The set's own descriptor.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The number of bytes that the other end has not acknowledged.
pub fn unsent(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: writes an int, which this request does.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut bytes)) };
    if rc < 0 { 0 } else { usize::try_from(bytes).unwrap_or(0) }
}

/// Whether a socket is connected.
pub fn is_connected(socket: BorrowedFd<'_>) -> bool {
    peer_name(socket).is_some()
}

/// Whether a connection is established, and neither end has said its end.
pub fn is_open(socket: BorrowedFd<'_>) -> bool {
    const ESTABLISHED: u8 = 1;
    tcp_info(socket).is_some_and(|info| info.tcpi_state == ESTABLISHED)
}

/// Whether the other end has ended the connection, without taking what it has sent.
pub fn has_ended(socket: BorrowedFd<'_>) -> bool {
    let flags = net::RecvFlags::DONTWAIT | net::RecvFlags::PEEK;
    match net::recv(socket, &mut [0u8; 1][..], flags) {
        Ok((_, len)) => len == 0,
        Err(error) => !is_full(errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_within_a_host_paces_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        begin_stream(stream.as_fd());
        assert_eq!(sockopt::tcp_congestion(&stream).unwrap(), "reno");
    }
}
