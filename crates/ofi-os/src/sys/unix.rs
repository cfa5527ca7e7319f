//! Unix sockets under abstract names (no file, so nothing is left behind), and the descriptors that they carry.
//!
//! All sockets are non-blocking and close-on-exec. Incoming control messages are parsed here, because rustix can
//! represent neither the pid 0 of a sender in another pid namespace nor a path of 108 bytes.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use ofi_api::{Errno, Error, Result};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

use super::failed;

/// The maximum number of descriptors in one datagram. The kernel drops any that exceed the room for them.
pub const MAX_FDS: usize = 5;

/// The sender of a datagram, or the process at the other end, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id in this process's namespace; 0 if it is not visible here.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

/// A datagram that came in.
pub struct Datagram {
    /// Bytes of it in the buffer.
    pub len: usize,
    /// The abstract name of the socket it was sent from; empty for one that has none.
    pub from: Vec<u8>,
    /// The sender, if the socket asks for it ([`pass_credentials`]).
    pub credentials: Credentials,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A socket without a name.
///
/// # Errors
/// `FI_EMFILE`.
pub fn socket(kind: SocketType) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed("socket"))
}

fn address(name: &[u8]) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name).map_err(|_| {
        let longest = size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path) - 1;
        Error::wanted(
            Errno::EINVAL,
            "the name of an endpoint",
            format!("at most {longest} bytes"),
            name.len().to_string(),
            "choose a shorter one",
        )
    })
}

/// Gives a socket the abstract `name`; `false` if another one has it.
///
/// # Errors
/// `FI_EINVAL` for a name that is too long; the errors of bind(2).
pub fn bind(socket: &OwnedFd, name: &[u8]) -> Result<bool> {
    match net::bind(socket, &address(name)?) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(false),
        Err(errno) => Err(failed("bind")(errno)),
    }
}

/// Connects a socket to the one that has the abstract `name`; `false` if none has.
///
/// # Errors
/// `FI_EAGAIN` while its queue is full; `FI_EINVAL` for a name that is too long; the errors of connect(2).
pub fn connect(socket: &OwnedFd, name: &[u8]) -> Result<bool> {
    match net::connect(socket, &address(name)?) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        Err(rustix::io::Errno::AGAIN) => Err(Error::AGAIN),
        Err(errno) => Err(failed("connect")(errno)),
    }
}

/// Lets others connect.
///
/// # Errors
/// Errors of listen(2).
pub fn listen(socket: &OwnedFd) -> Result<()> {
    net::listen(socket, libc::SOMAXCONN).map_err(failed("listen"))
}

/// The next connection that waits at a listening socket.
pub fn accept(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
}

/// Makes the kernel report the sender of each datagram.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn pass_credentials(socket: &OwnedFd) -> Result<()> {
    net::sockopt::set_socket_passcred(socket, true).map_err(failed("setsockopt(SO_PASSCRED)"))
}

/// The process at the other end: for a connection made here, the one that called listen(2).
pub fn peer(socket: &OwnedFd) -> Option<Credentials> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a writable `ucred`, whose length is beside it.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some(Credentials { pid: who.pid, uid: who.uid })
}

/// Sends a datagram with at most [`MAX_FDS`] descriptors to the socket called `to`, or to the one that it is connected
/// to. Never blocks.
///
/// # Errors
/// `FI_ECONNREFUSED` if there is no such socket; `FI_EAGAIN` if it does not take more for now; `FI_EINVAL` for too many
/// descriptors.
pub fn send(socket: &OwnedFd, to: Option<&[u8]>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = fds.is_empty() || (fds.len() <= MAX_FDS && control.push(SendAncillaryMessage::ScmRights(fds)));
    if !fits {
        return Err(Error::with(
            Errno::EINVAL,
            format!("{} descriptors in one datagram; at most {MAX_FDS} fit", fds.len()),
        ));
    }
    let (pieces, flags) = ([IoSlice::new(bytes)], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let sent = match to {
        Some(name) => net::sendmsg_addr(socket, &address(name)?, &pieces, &mut control, flags),
        None => net::sendmsg(socket, &pieces, &mut control, flags),
    };
    use rustix::io::Errno as Os;
    match sent {
        Ok(_) => Ok(()),
        Err(Os::AGAIN | Os::NOBUFS | Os::TOOMANYREFS | Os::INTR) => Err(Error::AGAIN),
        Err(Os::CONNREFUSED) => Err(Error::new(Errno::ECONNREFUSED)),
        Err(errno) => Err(failed("sendmsg")(errno)),
    }
}

/// Room for [`MAX_FDS`] descriptors and credentials.
#[repr(C, align(8))]
struct Ancillary([u8; 128]);

/// Takes the next datagram, if there is one.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<Datagram> {
    // SAFETY: all zeroes is a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut ancillary = Ancillary([0; 128]);
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of_val(&address) as libc::socklen_t;
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    message.msg_controllen = ancillary.0.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer in the header is valid for the length beside it.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).ok()?;
    let mut datagram = Datagram {
        len,
        from: abstract_name(&address, message.msg_namelen as usize).to_vec(),
        credentials: Credentials { pid: 0, uid: u32::MAX },
        fds: Vec::new(),
    };
    // SAFETY: the kernel filled the header in.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: not null, so it points to a header in our buffer.
        let header = unsafe { &*next };
        // SAFETY: the data follow the header, in our buffer.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: computes a length.
        let len = header.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for index in 0..len / size_of::<RawFd>() {
                    // SAFETY: inside the data.
                    let fd = unsafe { data.cast::<RawFd>().wrapping_add(index).read_unaligned() };
                    // SAFETY: the kernel just made this descriptor for us.
                    datagram.fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                // SAFETY: inside the data.
                let who = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                datagram.credentials = Credentials { pid: who.pid, uid: who.uid };
            }
            _ => {}
        }
        // SAFETY: `next` is a header of this message.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Some(datagram)
}

/// Only an abstract name begins with a zero byte. A path, which anyone may choose, identifies no one. `len` comes from
/// the kernel, and exceeds the structure by one if a path fills it.
fn abstract_name(address: &libc::sockaddr_un, len: usize) -> &[u8] {
    // SAFETY: `c_char` and `u8` are as long, and valid whatever their bits.
    let path: &[u8; 108] = unsafe { &*(&raw const address.sun_path).cast() };
    let len = len.saturating_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path)).min(path.len());
    match &path[..len] {
        [0, name @ ..] => name,
        _ => &[],
    }
}

/// Whether a socket for datagrams has the abstract `name`.
pub fn is_bound(name: &[u8]) -> bool {
    if address(name).is_err() {
        return false;
    }
    let Ok(probe) = socket(SocketType::DGRAM) else { return true };
    connect(&probe, name).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn named(name: &str) -> (OwnedFd, String) {
        let name = format!("ofi-core test {name} {}", std::process::id());
        let here = socket(SocketType::DGRAM).unwrap();
        assert!(bind(&here, name.as_bytes()).unwrap());
        (here, name)
    }

    #[test]
    fn descriptors_and_names_arrive() {
        let (a, name) = named("a");
        let (b, other) = named("b");
        assert!(is_bound(name.as_bytes()) && !is_bound(b"ofi-core test nobody"));
        assert!(!bind(&socket(SocketType::DGRAM).unwrap(), name.as_bytes()).unwrap(), "it is taken");
        pass_credentials(&a).unwrap();
        send(&b, Some(name.as_bytes()), b"word", &[a.as_fd(), b.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let datagram = receive(&a, &mut buffer).unwrap();
        assert_eq!(&buffer[..datagram.len], b"word");
        assert_eq!(datagram.from, other.as_bytes());
        assert_eq!(datagram.credentials.pid, std::process::id() as i32);
        assert_eq!(datagram.fds.len(), 2);
        assert!(receive(&a, &mut buffer).is_none());
    }

    #[test]
    fn too_many_descriptors_and_too_long_names_are_refused() {
        let (a, name) = named("c");
        let error = send(&a, Some(name.as_bytes()), b"", &[a.as_fd(); MAX_FDS + 1]).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert_eq!(bind(&a, &[b'x'; 108]).unwrap_err().errno(), Errno::EINVAL);
        assert!(!is_bound(&[b'x'; 108]));
    }

    /// The kernel says then that the address is longer than the structure for it.
    #[test]
    fn a_path_that_fills_its_field_names_nobody() {
        let (a, name) = named("d");
        for len in [107, 108] {
            let mut path =
                std::env::temp_dir().join(format!("ofi-core-{}-", std::process::id())).into_os_string();
            while path.len() < len {
                path.push("x");
            }
            // SAFETY: all zeroes is a valid `sockaddr_un`.
            let mut from: libc::sockaddr_un = unsafe { std::mem::zeroed() };
            from.sun_family = libc::AF_UNIX as libc::sa_family_t;
            for (to, byte) in from.sun_path.iter_mut().zip(path.as_encoded_bytes()) {
                *to = *byte as libc::c_char;
            }
            let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len();
            let sender = UnixDatagram::unbound().unwrap();
            // SAFETY: `from` is valid for `len` bytes.
            let rc = unsafe { libc::bind(sender.as_raw_fd(), (&raw const from).cast(), len as u32) };
            assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
            send(&sender.into(), Some(name.as_bytes()), b"hello", &[]).unwrap();
            let datagram = receive(&a, &mut [0; 16]).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!((datagram.len, datagram.from.len()), (5, 0));
        }
    }
}
