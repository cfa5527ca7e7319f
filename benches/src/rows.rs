//! The cost of a batch of packets at each end over a path of 1,500 bytes: both ends run in one thread, each timed
//! separately, alternating with bare sockets in the same thread. Neither end waits for the other, so the lowest tenth
//! of many short samples is meaningful even on a shared machine.

use std::{
    env,
    net::{Ipv4Addr, UdpSocket},
    os::unix::net::UnixStream,
    process::Command,
    time::{Duration, Instant},
};

use ofi::raw::{Caps, CqTaggedEntry, Piece, WaitObj};

use crate::{
    Error, Result,
    bare::{ROW, SEGMENT, set},
    link::Link,
    ours::{Job, Node, Test},
    sys,
};

/// Bytes of a message, and messages of a sample.
const MESSAGE: usize = 1 << 20;
const WINDOW: usize = 8;

/// Nanoseconds per byte of a sample, at the sender and at the receiver.
type Sample = [f64; 2];

/// In a network namespace of its own, whose loopback has an MTU of 1,500 bytes: takes `samples` of each kind in turn,
/// and prints a table.
///
/// # Errors
/// A missing requirement of this host, or an endpoint's error.
pub fn main(samples: usize, inside: bool, core: usize) -> Result<()> {
    if !inside {
        let this = env::current_exe().map_err(Error::io("finding this program"))?;
        let script = "ip link set lo mtu 1500 up && exec \"$@\"";
        let status = Command::new("unshare")
            .args(["-Urn", "sh", "-ec", script, "sh"])
            .arg(this)
            .args(["--cores", &core.to_string(), &core.to_string()])
            .args(["rows", "--inside", "--samples", &samples.to_string()])
            .status()
            .map_err(Error::io("starting unshare"))?;
        return if status.success() { Ok(()) } else { Err(Error::Stack(format!("unshare: {status}"))) };
    }
    sys::pin_current_thread(core).map_err(Error::io(format!("pinning to core {core}")))?;
    let ours = Ours::open()?;
    let mut bare = Bare::open()?;
    let mut taken: [Vec<Sample>; 2] = Default::default();
    for _ in 0..samples {
        taken[0].push(bare.sample()?);
        taken[1].push(ours.sample()?);
    }
    // By then the path's packet size is known, and the window has grown.
    taken.iter_mut().for_each(|samples| drop(samples.drain(..samples.len() / 10)));
    println!("| ns for 1,000 bytes, lower tenth (median) | sending | receiving |\n|---|---:|---:|");
    for (name, samples) in [("bare sockets", &taken[0]), ("1 MiB messages", &taken[1])] {
        let cell = |end: usize| {
            let mut times: Vec<f64> = samples.iter().map(|sample| sample[end] * 1e3).collect();
            times.sort_by(f64::total_cmp);
            format!("{:.1} ({:.1})", times[times.len() / 10], times[times.len() / 2])
        };
        println!("| {name} | {} | {} |", cell(0), cell(1));
    }
    Ok(())
}

fn per_byte(times: [Duration; 2]) -> Sample {
    times.map(|time| time.as_nanos() as f64 / (WINDOW * MESSAGE) as f64)
}

struct Bare {
    sockets: [UdpSocket; 2],
    memory: [Vec<u8>; 2],
}

impl Bare {
    fn open() -> Result<Self> {
        let open = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("binding a socket"));
        let sockets = [open()?, open()?];
        for (socket, other) in sockets.iter().zip(sockets.iter().rev()) {
            let name = other.local_addr().map_err(Error::io("naming a socket"))?;
            socket.connect(name).map_err(Error::io("connecting a socket"))?;
            socket.set_nonblocking(true).map_err(Error::io("setting a socket up"))?;
        }
        set(&sockets[0], libc::SOL_UDP, libc::UDP_SEGMENT, SEGMENT as i32);
        set(&sockets[1], libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(Self { sockets, memory: [vec![1; MESSAGE], vec![1; MESSAGE + 65_536]] })
    }

    /// Sends and receives a sample, one batch at a time.
    fn sample(&mut self) -> Result<Sample> {
        let Self { sockets, memory: [from, to] } = self;
        let mut times = [Duration::ZERO; 2];
        let (mut place, mut done) = (0, 0);
        let mut rows = from.chunks_exact(ROW * SEGMENT).cycle();
        while done < WINDOW * MESSAGE {
            let begin = Instant::now();
            let row = rows.next().unwrap_or(&from[..SEGMENT]);
            sockets[0].send(row).map_err(Error::io("sending a row"))?;
            let middle = Instant::now();
            let len = sockets[1].recv(&mut to[place..]).map_err(Error::io("receiving a row"))?;
            times = [times[0] + (middle - begin), times[1] + middle.elapsed()];
            (done, place) = (done + len, (place + len) % MESSAGE);
        }
        std::hint::black_box(to);
        Ok(times.map(|time| time.as_nanos() as f64 / done as f64))
    }
}

struct Ours {
    sender: Node,
    receiver: Node,
    pieces: [Piece; 2],
}

impl Ours {
    fn open() -> Result<Self> {
        let job = Job::new(Test::Stream, MESSAGE, 1).over_udp();
        let (a, b) = UnixStream::pair().map_err(Error::io("a socket pair"))?;
        let open = move |end| Node::open(Caps::empty(), &job, &mut Link::new(end)?, WaitObj::None);
        let other = std::thread::spawn(move || open(b));
        let sender = open(a)?;
        let receiver = other.join().map_err(|_| Error::Stack("opening the receiver".into()))??;
        let memory = [sender.memory(&job, MESSAGE)?, receiver.memory(&job, MESSAGE)?];
        let pieces = memory.map(|memory| Piece::new(memory.base, MESSAGE));
        Ok(Self { sender, receiver, pieces })
    }

    fn sample(&self) -> Result<Sample> {
        let mut entries = [CqTaggedEntry::EMPTY; WINDOW];
        let (mut times, mut left) = ([Duration::ZERO; 2], [WINDOW; 2]);
        for context in 0..WINDOW {
            self.receiver.receive(self.pieces[1], None, context)?;
        }
        let begin = Instant::now();
        for _ in 0..WINDOW {
            self.sender.send(self.pieces[0], None)?;
        }
        times[0] += begin.elapsed();
        while left != [0, 0] {
            let begin = Instant::now();
            left[0] -= self.sender.poll(&self.sender.tx, &mut entries)?;
            let middle = Instant::now();
            left[1] -= self.receiver.poll(&self.receiver.rx, &mut entries)?;
            times = [times[0] + (middle - begin), times[1] + middle.elapsed()];
        }
        Ok(per_byte(times))
    }
}
