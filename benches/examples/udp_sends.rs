//! Compares io_uring with sendmsg(2) and sendmmsg(2) for sending a provider's datagrams, on this host's
//! kernel and network.
//!
//! ```text
//! cargo run --release -p ofi-benches --example udp_sends                     # over loopback, a thread receives
//! cargo run --release -p ofi-benches --example udp_sends -- receive ADDRESS  # in one network namespace, or on one host,
//! cargo run --release -p ofi-benches --example udp_sends -- to ADDRESS       # and from another
//! ```
//!
//! Each row is a batch that an endpoint typically sends at once, each column a way to send it. Figures are
//! the time per message, the best of three interleaved rounds. `docs/tuning.md`, "The driver", has such a
//! table.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};

/// The duration of one measurement in a round.
const TIME: Duration = Duration::from_millis(300);
const ROUNDS: usize = 3;
/// The buffer size of both sockets, in bytes.
const BUFFER: libc::c_int = 8 << 20;
/// Messages that the receiver gets with one call.
const TAKEN: usize = 8;
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The number of messages sent at once, the bytes of each, and the bytes of the datagrams into which the
/// kernel segments it (UDP_SEGMENT).
struct Shape {
    label: &'static str,
    messages: usize,
    len: usize,
    segment: Option<u16>,
}

const SHAPES: [Shape; 6] = [
    Shape { label: "1 of 64 B", messages: 1, len: 64, segment: None },
    Shape { label: "16 of 64 B", messages: 16, len: 64, segment: None },
    Shape { label: "16 of 1,452 B", messages: 16, len: 1_452, segment: None },
    Shape { label: "1 of 44 x 1,452 B", messages: 1, len: 44 * 1_452, segment: Some(1_452) },
    Shape { label: "1 of 65,000 B", messages: 1, len: 65_000, segment: None },
    Shape { label: "4 of 65,000 B", messages: 4, len: 65_000, segment: None },
];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Calls,
    Ring,
    RegisteredFile,
    ZeroCopy,
    KernelThread,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Calls, "sendmsg, sendmmsg"),
    (Way::Ring, "io_uring"),
    (Way::RegisteredFile, "registered socket"),
    (Way::ZeroCopy, "SENDMSG_ZC"),
    (Way::KernelThread, "SQPOLL"),
];

/// Messages ready to be sent. The headers point to heap memory of the other fields.
struct Batch {
    headers: Vec<libc::mmsghdr>,
    _name: Box<libc::sockaddr_storage>,
    _bytes: Vec<Vec<u8>>,
    _vectors: Vec<libc::iovec>,
    _controls: Vec<SegmentControl>,
}

/// The control message that has the kernel segment a message (udp(7)).
#[derive(Clone, Copy)]
#[repr(C)]
struct SegmentControl {
    header: libc::cmsghdr,
    segment: u16,
    _padding: [u16; 3],
}

impl SegmentControl {
    const fn new() -> Self {
        let cmsg_len = size_of::<libc::cmsghdr>() + size_of::<u16>();
        let header = libc::cmsghdr { cmsg_len, cmsg_level: libc::SOL_UDP, cmsg_type: libc::UDP_SEGMENT };
        Self { header, segment: 0, _padding: [0; 3] }
    }
}

fn zeroed_header() -> libc::mmsghdr {
    // SAFETY: integers and pointers, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}

impl Batch {
    fn new(shape: &Shape, to: SocketAddr) -> Self {
        let SocketAddr::V4(to) = to else { panic!("wanted an IPv4 address, found {to}") };
        // SAFETY: all zeros are a valid `sockaddr_storage`.
        let mut name: Box<libc::sockaddr_storage> = Box::new(unsafe { std::mem::zeroed() });
        let v4 = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: to.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
            sin_zero: [0; 8],
        };
        // SAFETY: a `sockaddr_storage` has room for any socket address.
        unsafe { (&raw mut *name).cast::<libc::sockaddr_in>().write(v4) };
        let mut bytes = vec![vec![0x5A_u8; shape.len]; shape.messages];
        let mut vectors: Vec<libc::iovec> = bytes
            .iter_mut()
            .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
            .collect();
        let mut controls = vec![SegmentControl::new(); shape.messages];
        let headers = vectors.iter_mut().zip(&mut controls).map(|(vector, control)| {
            let mut all = zeroed_header();
            let header = &mut all.msg_hdr;
            header.msg_name = (&raw mut *name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            (header.msg_iov, header.msg_iovlen) = (vector, 1);
            if let Some(segment) = shape.segment {
                header.msg_control = (&raw mut *control).cast();
                header.msg_controllen = size_of::<SegmentControl>();
                control.segment = segment;
            }
            all
        });
        Self {
            headers: headers.collect(),
            _name: name,
            _bytes: bytes,
            _vectors: vectors,
            _controls: controls,
        }
    }
}

/// A ring for this way to send; `None` if the kernel does not support it.
fn ring(way: Way, socket: &UdpSocket) -> Option<IoUring> {
    let mut builder = IoUring::<squeue::Entry, cqueue::Entry>::builder();
    match way {
        Way::KernelThread => builder.setup_sqpoll(1_000),
        _ => builder.setup_single_issuer().setup_defer_taskrun(),
    };
    let ring = builder.build(64).ok()?;
    if matches!(way, Way::RegisteredFile | Way::KernelThread) {
        ring.submitter().register_files(&[socket.as_raw_fd()]).ok()?;
    }
    Some(ring)
}

/// Sends the batch by system calls. Returns the number of messages sent.
fn call(socket: &UdpSocket, batch: &mut Batch) -> usize {
    let fd = socket.as_raw_fd();
    let sent = match &mut batch.headers[..] {
        // SAFETY: the header points to memory of the batch.
        [one] => isize::signum(unsafe { libc::sendmsg(fd, &one.msg_hdr, FLAGS) }),
        // SAFETY: as above.
        many => unsafe { libc::sendmmsg(fd, many.as_mut_ptr(), many.len() as u32, FLAGS) as isize },
    };
    sent.max(0) as usize
}

/// Sends the batch by the ring, and waits until the kernel no longer needs its memory. Returns the number of
/// messages sent.
fn submit(way: Way, ring: &mut IoUring, socket: &UdpSocket, batch: &Batch) -> usize {
    let fd = Fd(socket.as_raw_fd());
    let messages = batch.headers.len();
    for header in &batch.headers {
        let header = &raw const header.msg_hdr;
        let flags = FLAGS as u32;
        let entry = match way {
            Way::Calls => unreachable!("has no ring"),
            Way::Ring => {
                opcode::SendMsg::new(fd, header).flags(flags).build().flags(squeue::Flags::SKIP_SUCCESS)
            }
            Way::RegisteredFile => {
                opcode::SendMsg::new(Fixed(0), header).flags(flags).build().flags(squeue::Flags::SKIP_SUCCESS)
            }
            Way::ZeroCopy => opcode::SendMsgZc::new(fd, header).flags(flags).build(),
            Way::KernelThread => opcode::SendMsg::new(Fixed(0), header).flags(flags).build(),
        };
        // SAFETY: the header and the memory it points to live until this function has seen the end of the
        // operation.
        unsafe { ring.submission().push(&entry) }.expect("room: a batch is shorter than the ring");
    }
    ring.submit().expect("io_uring_enter");
    let (mut failed, mut ended) = (0, 0);
    // With SKIP_SUCCESS only failures have completions, and they are there when the call returns: no wait is
    // needed.
    let awaited = match way {
        Way::ZeroCopy => 2 * messages,
        Way::KernelThread => messages,
        _ => 0,
    };
    loop {
        for done in ring.completion() {
            let notice = cqueue::notif(done.flags());
            failed += usize::from(!notice && done.result() < 0);
            // A zero-copy send without a later notification ends here.
            ended += if way == Way::ZeroCopy && !notice && !cqueue::more(done.flags()) { 2 } else { 1 };
        }
        if ended >= awaited {
            return messages - failed.min(messages);
        }
        if way == Way::ZeroCopy {
            ring.submit_and_wait(1).expect("io_uring_enter");
        }
    }
}

/// Nanoseconds per message, with the batch sent repeatedly.
fn measure(way: Way, socket: &UdpSocket, batch: &mut Batch) -> Option<f64> {
    let mut ring = if way == Way::Calls { None } else { Some(ring(way, socket)?) };
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        for _ in 0..16 {
            sent += match &mut ring {
                Some(ring) => submit(way, ring, socket, batch),
                None => call(socket, batch),
            };
        }
    }
    (sent > 0).then(|| start.elapsed().as_secs_f64() * 1e9 / sent as f64)
}

fn set(socket: &UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is as long as stated.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
}

/// Receives datagrams without end.
fn receive(socket: &UdpSocket) -> ! {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER);
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    let mut bytes = vec![vec![0u8; 65_536]; TAKEN];
    let mut vectors: Vec<libc::iovec> = bytes
        .iter_mut()
        .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
        .collect();
    let mut headers: Vec<libc::mmsghdr> = (0..TAKEN).map(|_| zeroed_header()).collect();
    for (header, vector) in headers.iter_mut().zip(&mut vectors) {
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (vector, 1);
    }
    loop {
        let (fd, count) = (socket.as_raw_fd(), TAKEN as u32);
        // SAFETY: the headers point to the vectors and buffers above.
        unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
    }
}

fn send(to: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER);
    let titles: Vec<&str> = WAYS.iter().map(|(_, title)| *title).collect();
    println!("| nanoseconds a message | {} |\n|---|{}", titles.join(" | "), "---|".repeat(WAYS.len()));
    for shape in &SHAPES {
        let mut batch = Batch::new(shape, to);
        let mut best = [f64::INFINITY; WAYS.len()];
        for _ in 0..ROUNDS {
            for ((way, _), best) in WAYS.iter().zip(&mut best) {
                *best = best.min(measure(*way, &socket, &mut batch).unwrap_or(f64::INFINITY));
            }
        }
        let cells = best.map(|best| if best.is_finite() { format!("{best:.0}") } else { "-".to_owned() });
        println!("| {} | {} |", shape.label, cells.join(" | "));
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |text: &str| text.parse::<SocketAddr>().map_err(std::io::Error::other);
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.set_nonblocking(true)?;
            let to = socket.local_addr()?;
            std::thread::spawn(move || receive(&socket));
            send(to)
        }
        ["receive", own] => receive(&UdpSocket::bind(address(own)?)?),
        ["to", other] => send(address(other)?),
        _ => Err(std::io::Error::other("the arguments must be none, `receive ADDRESS` or `to ADDRESS`")),
    }
}
