//! The sockets of a rendezvous, TCP or Unix.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use super::Place;

/// One end of a connection.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to the process that listens at `place`. `None` if none listens yet. `limit` bounds a TCP connect.
    ///
    /// # Errors
    /// The system's error, if retrying is no use; `Unsupported` for a folder.
    pub fn connect(place: &Place, limit: Duration) -> io::Result<Option<Self>> {
        let stream = match place {
            Place::Tcp(address) => TcpStream::connect_timeout(address, limit).map(Self::Tcp),
            Place::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Place::Folder(_) => Err(ErrorKind::Unsupported.into()),
        };
        match stream {
            // A TCP socket that was given the port that it connects to is connected to itself.
            Ok(Self::Tcp(stream)) if stream.local_addr()? == stream.peer_addr()? => Ok(None),
            Ok(stream) => Ok(Some(stream)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

/// Whether an error means that no process listens or is reachable yet.
fn is_absence(error: &io::Error) -> bool {
    use ErrorKind::*;
    matches!(
        error.kind(),
        ConnectionRefused
            | ConnectionReset
            | ConnectionAborted
            | NotFound
            | TimedOut
            | WouldBlock
            | Interrupted
            | HostUnreachable
            | NetworkUnreachable
    )
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The listening socket of a rendezvous.
pub enum BootstrapListener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf, _lock: File },
}

impl BootstrapListener {
    /// Listens at `place`. `None` if it is on another host, or another process listens there.
    ///
    /// # Errors
    /// Other errors of the system; `Unsupported` for a folder.
    pub fn open(place: &Place) -> io::Result<Option<Self>> {
        let listener = match place {
            Place::Tcp(address) => match TcpListener::bind(address) {
                Ok(listener) => Self::Tcp(listener),
                Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            },
            Place::Unix(path) => {
                // A socket file outlives its process, but a lock does not: it shows whether the process is alive.
                let lock = File::create(path.with_added_extension("lock"))?;
                match lock.try_lock() {
                    Ok(()) => {}
                    Err(TryLockError::WouldBlock) => return Ok(None),
                    Err(TryLockError::Error(error)) => return Err(error),
                }
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                Self::Unix { listener: UnixListener::bind(path)?, path: path.clone(), _lock: lock }
            }
            Place::Folder(_) => return Err(ErrorKind::Unsupported.into()),
        };
        match &listener {
            Self::Tcp(listener) => listener.set_nonblocking(true)?,
            Self::Unix { listener, .. } => listener.set_nonblocking(true)?,
        }
        Ok(Some(listener))
    }

    /// The next connection; `None` if there is none now.
    ///
    /// # Errors
    /// As `accept(2)`, except for transient errors.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let stream = match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix { listener, .. } => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        };
        match stream {
            Ok(stream) => stream.set_nonblocking().map(|()| Some(stream)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for BootstrapListener {
    fn drop(&mut self) {
        if let Self::Unix { path, .. } = self {
            let _ = std::fs::remove_file(path); // while the lock is held, so the file is still ours
        }
    }
}
