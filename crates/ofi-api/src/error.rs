//! Errors: a positive `FI_E*` number and, where there is room, the expected value, the actual one and advice.
//!
//! A hot path returns one of the constants (`Error::AGAIN`), which allocates nothing. Everything else
//! carries a [`Detail`]. Numbers are those of `rdma/fi_errno.h`, on Linux.

use std::fmt;
use std::num::NonZeroI32;

/// The result of an operation on this API.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error number of libfabric: positive, the system's numbers below 256 and libfabric's own from 256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Errno(NonZeroI32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)+) => {
        impl Errno {
            $(#[doc = concat!("`FI_", stringify!($name), "`: ", $text, ".")]
            pub const $name: Errno = Errno(NonZeroI32::new($value).expect("an errno is not zero"));)+

            /// Every number that `rdma/fi_errno.h` names, in ascending order.
            pub const ALL: &'static [Errno] = &[$(Errno::$name),+];

            /// C's name, such as `FI_EINVAL`; `FI_E?` for a system error that libfabric does not name.
            pub const fn name(self) -> &'static str {
                match self.0.get() {
                    $($value => concat!("FI_", stringify!($name)),)+
                    _ => "FI_E?",
                }
            }

            /// The meaning of the number, in a few words, without a full stop.
            pub const fn text(self) -> &'static str {
                match self.0.get() {
                    $($value => $text,)+
                    _ => "system error without a libfabric name",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not allowed";
    ENOENT = 2, "nothing of that name";
    EINTR = 4, "interrupted by a signal";
    EIO = 5, "input or output failed";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "not an open descriptor";
    EAGAIN = 11, "resource busy: make progress and try again";
    ENOMEM = 12, "not enough memory";
    EACCES = 13, "access denied";
    EFAULT = 14, "address outside the process";
    EBUSY = 16, "object still in use";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open descriptors";
    ENOSPC = 28, "no room left";
    ENOSYS = 38, "function not implemented";
    ENOMSG = 42, "no matching message";
    ENODATA = 61, "nothing matches the request";
    EPROTO = 71, "protocol violated";
    EOVERFLOW = 75, "value too large for its field";
    EMSGSIZE = 90, "message too long";
    ENOPROTOOPT = 92, "unknown option";
    EOPNOTSUPP = 95, "operation not supported by this object";
    EADDRINUSE = 98, "address already in use";
    EADDRNOTAVAIL = 99, "address not available";
    ENETDOWN = 100, "network is down";
    ENETUNREACH = 101, "network unreachable";
    ECONNABORTED = 103, "connection aborted locally";
    ECONNRESET = 104, "connection reset by the peer";
    ENOBUFS = 105, "no buffer space";
    EISCONN = 106, "already connected";
    ENOTCONN = 107, "not connected";
    ESHUTDOWN = 108, "endpoint already shut down";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTDOWN = 112, "host is down";
    EHOSTUNREACH = 113, "no route to the host";
    EALREADY = 114, "operation already under way";
    EINPROGRESS = 115, "operation started and not finished";
    EREMOTEIO = 121, "operation failed at the remote side";
    ECANCELED = 125, "operation cancelled";
    EKEYREJECTED = 129, "key rejected";
    EOTHER = 256, "unspecified error";
    ETOOSMALL = 257, "buffer too small for the answer";
    EOPBADSTATE = 258, "not allowed in the object's present state";
    EAVAIL = 259, "an error entry is waiting to be read";
    EBADFLAGS = 260, "flags not supported";
    ENOEQ = 261, "event queue missing or not usable";
    EDOMAIN = 262, "resource belongs to another domain";
    ENOCQ = 263, "completion queue missing or not usable";
    ECRC = 264, "checksum does not match";
    ETRUNC = 265, "message longer than the receive buffer";
    ENOKEY = 266, "memory key missing or already taken";
    ENOAV = 267, "address vector missing or not usable";
    EOVERRUN = 268, "queue overrun";
    ENORX = 269, "receiver has no buffer posted";
    ENOMR = 270, "no more memory registrations";
    EFIREWALLADDR = 271, "peer is behind a firewall";
}

impl Errno {
    /// `FI_EWOULDBLOCK`, the same number as [`Errno::EAGAIN`].
    pub const EWOULDBLOCK: Errno = Errno::EAGAIN;

    /// The error with this number; the sign is ignored, since C returns errors negated. Zero and `i32::MIN`, which are
    /// not errors, become [`Errno::EOTHER`].
    pub const fn from_raw(number: i32) -> Errno {
        match number.checked_abs() {
            Some(positive) => match NonZeroI32::new(positive) {
                Some(errno) => Errno(errno),
                None => Errno::EOTHER,
            },
            None => Errno::EOTHER,
        }
    }

    /// The positive number.
    pub const fn get(self) -> i32 {
        self.0.get()
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.get())
    }
}

/// Why a call failed: a number for programs, and usually a [`Detail`] for people.
///
/// Two errors are equal when their numbers are.
#[derive(Clone)]
pub struct Error {
    errno: Errno,
    detail: Option<Box<Detail>>,
}

/// The part of an error that people read. An empty string means "not given".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The subject of the error: an argument, a field, an object.
    pub subject: String,
    /// The values that would have been accepted.
    pub wanted: String,
    /// The actual value.
    pub found: String,
    /// Advice for the caller.
    pub advice: String,
    /// From getinfo: each hint that a provider refused.
    pub refusals: Vec<Refusal>,
}

impl Error {
    /// `FI_EAGAIN`: local resources are full; read the completion queues, then try again.
    pub const AGAIN: Error = Error::new(Errno::EAGAIN);
    /// `FI_EAVAIL`: the queue holds an error entry, which `readerr` takes.
    pub const AVAIL: Error = Error::new(Errno::EAVAIL);

    /// An error that is only a number. Allocates nothing.
    pub const fn new(errno: Errno) -> Error {
        Error { errno, detail: None }
    }

    /// An error about `what`.
    #[cold]
    pub fn with(errno: Errno, what: impl Into<String>) -> Error {
        Detail { subject: what.into(), ..Detail::default() }.into_error(errno)
    }

    /// An error with the subject, the expected value, the actual one, and advice.
    #[cold]
    pub fn wanted(
        errno: Errno,
        subject: impl Into<String>,
        wanted: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Error {
        Detail {
            subject: subject.into(),
            wanted: wanted.into(),
            found: found.into(),
            advice: advice.into(),
            refusals: Vec::new(),
        }
        .into_error(errno)
    }

    /// `FI_ENODATA` from getinfo, with every hint that was refused.
    #[cold]
    pub fn refused(refusals: Vec<Refusal>) -> Error {
        let advice = match refusals.is_empty() {
            true => "no provider was asked: check FI_PROVIDER and the provider name in the hints",
            false => "relax the hints below, or set FI_LOG_LEVEL=info to see the whole negotiation",
        };
        let subject = "getinfo: no provider satisfies the hints".into();
        Detail { subject, advice: advice.into(), refusals, ..Detail::default() }.into_error(Errno::ENODATA)
    }

    /// The error's number.
    pub const fn errno(&self) -> Errno {
        self.errno
    }

    /// The positive number of `rdma/fi_errno.h`. The C ABI returns its negation.
    pub const fn fi_errno(&self) -> i32 {
        self.errno.get()
    }

    /// The details beyond the number.
    pub fn detail(&self) -> Option<&Detail> {
        self.detail.as_deref()
    }

    /// From getinfo: each hint that a provider refused. Empty for other errors.
    pub fn refusals(&self) -> &[Refusal] {
        self.detail.as_ref().map_or(&[], |detail| &detail.refusals)
    }

    /// True for `FI_EAGAIN`: nothing is wrong, and the call may be repeated after progress.
    pub fn is_again(&self) -> bool {
        self.errno == Errno::EAGAIN
    }
}

impl Detail {
    /// Combines the detail with a number.
    pub fn into_error(self, errno: Errno) -> Error {
        Error { errno, detail: Some(Box::new(self)) }
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        self.errno == other.errno
    }
}

impl Eq for Error {}

impl PartialEq<Errno> for Error {
    fn eq(&self, other: &Errno) -> bool {
        self.errno == *other
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::new(errno)
    }
}

impl From<std::io::Error> for Error {
    /// Keeps the system's number; an error without one becomes `FI_EIO`.
    fn from(error: std::io::Error) -> Error {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Error::with(errno, error.to_string())
    }
}

impl From<Error> for std::io::Error {
    /// Keeps the kind of a system error, and the text.
    fn from(error: Error) -> std::io::Error {
        let kind = match error.fi_errno() {
            system @ 1..256 => std::io::Error::from_raw_os_error(system).kind(),
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

impl fmt::Display for Error {
    /// One line, for logs. `{:#}` puts each refusal on a line of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno.name() {
            "FI_E?" => write!(f, "errno {}: {}", self.errno.get(), self.errno)?,
            name => write!(f, "{name}: {}", self.errno)?,
        }
        let Some(detail) = &self.detail else { return Ok(()) };
        if !detail.subject.is_empty() {
            write!(f, ": {}", detail.subject)?;
        }
        if !detail.wanted.is_empty() {
            write!(f, ": wanted {}", detail.wanted)?;
        }
        if !detail.found.is_empty() {
            write!(f, ", found {}", detail.found)?;
        }
        if !detail.advice.is_empty() {
            write!(f, "; {}", detail.advice)?;
        }
        let between = if f.alternate() { "\n  " } else { "; " };
        detail.refusals.iter().try_for_each(|refusal| write!(f, "{between}{refusal}"))
    }
}

impl fmt::Debug for Error {
    /// As `{:#}` of [`fmt::Display`], because a `main` that returns the error prints its `Debug` form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

/// One hint that one provider refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The provider, such as `shm`.
    pub provider: String,
    /// The field of the hints, such as `tx_attr.inject_size`.
    pub field: &'static str,
    /// The value in the hints.
    pub wanted: String,
    /// The value that the provider supports.
    pub offered: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: wanted {}, offers {}", self.provider, self.field, self.wanted, self.offered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ascending_so_no_two_names_share_one() {
        assert!(Errno::ALL.is_sorted_by(|a, b| a < b));
        assert_eq!(Errno::ALL.len(), 58);
    }

    #[test]
    fn a_number_of_either_sign_is_the_same_error() {
        assert_eq!(Errno::from_raw(-22), Errno::EINVAL);
        assert_eq!(Errno::from_raw(22), Errno::EINVAL);
        assert_eq!(Errno::from_raw(0), Errno::EOTHER);
        assert_eq!(Errno::from_raw(i32::MIN), Errno::EOTHER);
    }

    #[test]
    fn a_bare_error_is_two_words_and_needs_no_more_in_a_result() {
        assert_eq!(size_of::<Error>(), 2 * size_of::<usize>());
        assert_eq!(size_of::<Result<usize>>(), 2 * size_of::<usize>());
    }

    #[test]
    fn the_text_says_what_was_wanted_found_and_advised() {
        let error = Error::wanted(Errno::EMSGSIZE, "inject", "at most 64 bytes", "100", "use send");
        let text = "FI_EMSGSIZE: message too long: inject: wanted at most 64 bytes, found 100; use send";
        assert_eq!(error.to_string(), text);
        assert_eq!(Error::AGAIN.detail(), None);
        assert_eq!(error, Errno::EMSGSIZE);
    }

    #[test]
    fn refusals_are_listed_in_one_line_or_one_to_a_line() {
        let refusal = Refusal {
            provider: "shm".into(),
            field: "tx_attr.inject_size",
            wanted: "8192".into(),
            offered: "at most 4096".into(),
        };
        let error = Error::refused(vec![refusal.clone(), refusal.clone()]);
        assert_eq!(error.fi_errno(), 61);
        assert_eq!(error.refusals(), &[refusal.clone(), refusal]);
        let line = "shm: tx_attr.inject_size: wanted 8192, offers at most 4096";
        assert!(
            error.to_string().ends_with(&format!("; {line}; {line}")) && !error.to_string().contains('\n')
        );
        for text in [format!("{error:#}"), format!("{error:?}")] {
            assert!(text.lines().count() == 3 && text.ends_with(&format!("\n  {line}\n  {line}")), "{text}");
        }
    }

    #[test]
    fn system_errors_keep_their_number() {
        let error = Error::from(std::io::Error::from_raw_os_error(32));
        assert_eq!(error.fi_errno(), 32);
        assert!(error.to_string().starts_with("errno 32: "));
        assert_eq!(std::io::Error::from(Error::AGAIN).kind(), std::io::ErrorKind::WouldBlock);
    }
}
