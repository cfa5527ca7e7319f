//! One endpoint of `tcp` with few and with very many peers: a ping to each by turns, and the memory of one that is
//! connected and idle. The peers are plain sockets of this process that speak C libfabric's protocol and echo what they
//! get, so that the figures are of the endpoint and the kernel alone.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, Caps, CompletionQueue, Context, CqAttr, CqBuffer,
    CqTaggedEntry, Domain, Endpoint, EpOption, EpType, FiAddr, GetinfoFlags, Hints, Lent, Piece, ReceiveOp,
    SendOp, Version,
};

use super::{Figure, figure};
use crate::{Error, Result, sys};

/// Peers of the two endpoints that are compared; fewer if the limit of descriptors does not permit more.
const FEW: usize = 100;
const MANY: usize = 10_000;
/// Descriptors that the process has for other things.
const SPARE: u64 = 100;
/// Distance between consecutive peers of a round: no peer lies beside the previous one in memory.
const STRIDE: usize = 61;
/// Bytes of a ping, and of its packet.
const LEN: usize = 64;
const PACKET: usize = 16 + LEN;
/// Pings of a measurement, and measurements, of which the shortest counts.
const PINGS: usize = 20_000;
const TIMES: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(20);

fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// An endpoint, and the peers that are connected to it.
struct Crowd {
    endpoint: Arc<dyn Endpoint>,
    queue: Arc<dyn CompletionQueue>,
    vector: Arc<dyn AddressVector>,
    _domain: Arc<dyn Domain>,
    peers: Vec<(TcpStream, FiAddr)>,
    buffers: Box<[[u8; LEN]; 2]>,
}

impl Crowd {
    fn open(room: usize) -> Result<Self> {
        let own = Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let hints = Hints::new().provider("tcp").ep_type(EpType::Rdm).caps(Caps::MSG).src_addr(own);
        let infos =
            ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints)).map_err(stack)?;
        let info = infos.first().ok_or_else(|| Error::Stack("no info".into()))?;
        let domain = ofi::open_fabric(info).and_then(|fabric| fabric.open_domain(info)).map_err(stack)?;
        let endpoint = domain.open_endpoint(info).map_err(stack)?;
        endpoint.set_option(EpOption::SharedMemoryPermitted, 0).map_err(stack)?;
        let queue = domain.open_cq(&CqAttr::default()).map_err(stack)?;
        let vector = domain.open_av(&AvAttr::default()).map_err(stack)?;
        endpoint.bind_cq(&queue, BindFlags::TRANSMIT | BindFlags::RECV).map_err(stack)?;
        endpoint.bind_av(&vector).map_err(stack)?;
        endpoint.enable().map_err(stack)?;
        let buffers = Box::new([[1; LEN]; 2]);
        Ok(Self { endpoint, queue, vector, _domain: domain, peers: Vec::with_capacity(room), buffers })
    }

    fn completions(&self) -> Result<usize> {
        let mut entries = [CqTaggedEntry::EMPTY; 2];
        match self.queue.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => Ok(count),
            Err(error) if error.is_again() => Ok(0),
            Err(error) => Err(stack(error)),
        }
    }

    /// Connects peers until there are `count`.
    fn grow(&mut self, count: usize) -> Result<()> {
        let name = self.endpoint.name().map_err(stack)?;
        let to = name.to_socket_addr().ok_or_else(|| Error::Stack("no address of IP".into()))?;
        for number in self.peers.len()..count {
            let port = u16::try_from(1000 + number).map_err(|_| Error::Stack("too many peers".into()))?;
            let mut request = vec![3, 0, 0, 8];
            request.extend([0; 20]);
            request.extend(1_u64.to_ne_bytes());
            request.extend([1, 0]);
            request.extend(port.to_be_bytes());
            request.extend(77_u32.to_be_bytes());
            let mut stream = TcpStream::connect(to).map_err(Error::io("connecting"))?;
            stream.set_nodelay(true).map_err(Error::io("setting a socket up"))?;
            stream.write_all(&request).map_err(Error::io("asking"))?;
            stream.set_nonblocking(true).map_err(Error::io("setting a socket up"))?;
            let (mut answer, begin) = ([0; 40], Instant::now());
            while stream.read(&mut answer).is_err() {
                self.completions()?;
                if begin.elapsed() > TIMEOUT {
                    return Err(Error::Stack("a peer is not accepted".into()));
                }
            }
            stream.set_nonblocking(false).map_err(Error::io("setting a socket up"))?;
            let address = Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            let address = self.vector.insert(std::slice::from_ref(&address)).remove(0).map_err(stack)?;
            self.peers.push((stream, address));
        }
        Ok(())
    }

    /// A ping to a peer, and its echo. Returns the time without the peer's own.
    fn ping(&mut self, peer: usize) -> Result<Duration> {
        let [from, into] = self.buffers.as_mut_slice() else { return Ok(Duration::ZERO) };
        let (from, into) =
            (Piece { addr: from.as_mut_ptr(), len: LEN }, Piece { addr: into.as_mut_ptr(), len: LEN });
        let (from, into) = ([from], [into]);
        let (stream, address) = &mut self.peers[peer];
        let begin = Instant::now();
        // SAFETY: the buffer lives as long as the endpoint, and nothing looks at it meanwhile.
        let sent = unsafe { Lent::new(&from, &[]) };
        // SAFETY: as above.
        let received = unsafe { Lent::new(&into, &[]) };
        self.endpoint.receive(&ReceiveOp::new(received, Context(1))).map_err(stack)?;
        self.endpoint.send(&SendOp::new(sent, *address, Context(2))).map_err(stack)?;
        let posted = begin.elapsed();
        let mut packet = [0; PACKET];
        stream.read_exact(&mut packet).map_err(Error::io("reading a ping"))?;
        stream.write_all(&packet).map_err(Error::io("echoing a ping"))?;
        let (begin, mut ended) = (Instant::now(), 0);
        while ended < 2 {
            ended += self.completions()?;
            if begin.elapsed() > TIMEOUT {
                return Err(Error::Stack("an echo does not arrive".into()));
            }
        }
        Ok(posted + begin.elapsed())
    }

    /// Microseconds of a ping, to each of the first `count` peers by turns.
    fn pings(&mut self, count: usize) -> Result<f64> {
        let mut least = f64::INFINITY;
        let mut peer = 0;
        for _ in 0..TIMES {
            let mut sum = Duration::ZERO;
            for _ in 0..PINGS.max(count) {
                sum += self.ping(peer)?;
                peer = (peer + STRIDE) % count;
            }
            least = least.min(sum.as_secs_f64() * 1e6 / PINGS.max(count) as f64);
        }
        Ok(least)
    }
}

/// Pings to few and to many peers, and the memory of those that are idle.
pub(super) fn peers() -> Result<Vec<Figure>> {
    let allowed = sys::raise_descriptors().map_err(Error::io("asking for descriptors"))?;
    // Both ends of each connection are in this process.
    let count = MANY.min(allowed.saturating_sub(SPARE) as usize / 2);
    if count <= FEW {
        return Err(Error::NotReady(format!("a limit of more than {allowed} descriptors")));
    }
    let resident = || sys::resident_bytes().map_err(Error::io("looking at the memory in use"));
    let mut crowd = Crowd::open(count)?;
    crowd.grow(FEW)?;
    let few = crowd.pings(FEW)?;
    let before = resident()?;
    crowd.grow(count)?;
    let each = resident()?.saturating_sub(before) as f64 / 1024.0 / (count - FEW) as f64;
    let many = crowd.pings(count)?;
    Ok(vec![
        figure("peers (10,000, or what the limit of descriptors permits)", count as f64, None),
        figure("KiB of a connected idle peer", each, Some(1.5)),
        figure(format!("a ping, {FEW} peers by turns, us"), few, None),
        figure("with all of them by turns, us", many, None),
        figure("as a multiple", many / few, Some(1.0 / 0.9)),
    ])
}
