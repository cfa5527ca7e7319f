//! The sockets that a meeting is held over, of either kind.

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
    /// Goes to where a process holds the meeting; `None` if nobody is there (yet).
    ///
    /// # Errors
    /// Why the place cannot be reached.
    pub fn connect(place: &Place, limit: Duration) -> io::Result<Option<Self>> {
        let stream = match place {
            Place::Tcp(address) => TcpStream::connect_timeout(address, limit).map(Self::Tcp),
            Place::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Place::Folder(_) => Err(ErrorKind::Unsupported.into()),
        };
        match stream {
            // A socket of this host that was given the very port that it asked for is connected to itself.
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

/// Whether nobody is there, or is reached at the moment: that may change.
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

/// Where the others come to.
pub enum Door {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf, _lock: File },
}

impl Door {
    /// Opens the place, if it is this host's and no other process has it open.
    ///
    /// # Errors
    /// Why it cannot be opened by anybody.
    pub fn open(place: &Place) -> io::Result<Option<Self>> {
        let door = match place {
            Place::Tcp(address) => match TcpListener::bind(address) {
                Ok(listener) => Self::Tcp(listener),
                Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            },
            Place::Unix(path) => {
                // A socket outlives its process in the file system, and a lock does not: so it says which of two it is.
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
        match &door {
            Self::Tcp(listener) => listener.set_nonblocking(true)?,
            Self::Unix { listener, .. } => listener.set_nonblocking(true)?,
        }
        Ok(Some(door))
    }

    /// The next one that comes; `None` if there is none now.
    ///
    /// # Errors
    /// As `accept(2)`, for what does not pass.
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

impl Drop for Door {
    fn drop(&mut self) {
        if let Self::Unix { path, .. } = self {
            let _ = std::fs::remove_file(path); // the next to open it would do so
        }
    }
}
