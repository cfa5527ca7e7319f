//! The system calls of this crate that the standard library lacks.

use std::io;
use std::mem::size_of_val;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use ofi::raw::Address;

/// Room for 1,024 cores, the size of the C library's `cpu_set_t`.
type CpuSet = [u64; 16];

/// The cores that the calling thread may run on, in ascending order.
///
/// # Errors
/// The system's error.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let mut set: CpuSet = [0; 16];
    // SAFETY: `set` has as many writable bytes as the call is told, and thread 0 means the caller.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), set.as_mut_ptr().cast()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |core: &usize| set[core / 64] & (1 << (core % 64)) != 0;
    Ok((0..64 * set.len()).filter(has).collect())
}

/// Pins the calling thread, and the threads that it starts later, to `core`.
///
/// # Errors
/// `EINVAL` for a core that does not exist or is not allowed.
pub fn pin(core: usize) -> io::Result<()> {
    let mut set: CpuSet = [0; 16];
    let word = set.get_mut(core / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    *word = 1 << (core % 64);
    // SAFETY: `set` has as many readable bytes as the call is told, and thread 0 means the caller.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A TCP connection from local port `from` to `to`.
///
/// # Errors
/// The system's error; `EINPROGRESS` if there is no answer within `limit`.
pub fn connect_from(from: u16, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let (family, any) = match to {
        SocketAddr::V4(_) => (libc::AF_INET, SocketAddr::from(([0; 4], from))),
        SocketAddr::V6(_) => (libc::AF_INET6, SocketAddr::from(([0_u16; 8], from))),
    };
    // SAFETY: takes three numbers and no memory.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and has no other owner.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    stream.set_write_timeout(Some(limit))?; // this also limits the connect: socket(7)
    reuse_address(&stream)?;
    // An address of the library has the bytes of C's `struct sockaddr`.
    let (any, to) = (Address::from(any), Address::from(to));
    // SAFETY: the bytes are readable for as long as the call is told; the kernel copies them, whatever their alignment.
    let rc = unsafe { libc::bind(fd, any.bytes().as_ptr().cast(), any.bytes().len() as libc::socklen_t) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let rc = unsafe { libc::connect(fd, to.bytes().as_ptr().cast(), to.bytes().len() as libc::socklen_t) };
    if rc == 0 { Ok(stream) } else { Err(io::Error::last_os_error()) }
}

/// Allows binding the port although the system still remembers connections of an earlier run.
fn reuse_address(socket: &impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let fd = socket.as_fd().as_raw_fd();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
    // SAFETY: `on` has as many readable bytes as the call is told.
    let rc = unsafe {
        libc::setsockopt(fd, level, option, (&raw const on).cast(), size_of_val(&on) as libc::socklen_t)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_be_kept_on_a_core_that_it_may_run_on() {
        std::thread::spawn(|| {
            let allowed = allowed_cores().unwrap();
            let core = *allowed.last().unwrap();
            pin(core).unwrap();
            assert_eq!(allowed_cores().unwrap(), [core]);
        })
        .join()
        .unwrap();
        assert_eq!(pin(5_000).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_connection_comes_from_the_port_that_was_asked_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let stream = connect_from(free, listener.local_addr().unwrap(), Duration::from_secs(5)).unwrap();
        assert_eq!(stream.local_addr().unwrap().port(), free);
        assert_eq!(listener.accept().unwrap().1.port(), free);
    }
}
