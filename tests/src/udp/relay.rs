//! A relay between two sockets that loses, duplicates, delays and refuses datagrams, in place of a real network's
//! faults.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi_rdm::RxPrediction;
use ofi_testkit::net::Random;

/// The treatment of datagrams, per 1,000 each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Lost.
    pub loss: u32,
    /// Duplicated.
    pub duplicate: u32,
    /// Delayed until after the next.
    pub reorder: u32,
    /// Preceded by a forgery with the same head and other bytes, from another address.
    pub forge: u32,
    /// Longer ones are lost.
    pub longest: usize,
}

/// A relay between two peers, each of which sends to its own side. Ends on drop.
pub struct Relay {
    /// The first peer's address for the second, and the second's for the first.
    pub sides: [SocketAddr; 2],
    over: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay between the peers at these addresses.
    ///
    /// # Panics
    /// If there are no sockets.
    pub fn between(peers: [SocketAddr; 2], weather: Weather) -> Self {
        let sockets = peers.map(|peer| {
            let socket = UdpSocket::bind(SocketAddr::new(peer.ip(), 0)).expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time-out");
            Arc::new(socket)
        });
        let sides = sockets.each_ref().map(|socket| socket.local_addr().expect("its address"));
        let (over, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..2)
            .map(|way| {
                // Datagrams of the first peer arrive at side 0 and leave from side 1, whose address the second peer
                // has.
                let (from, to) = (Arc::clone(&sockets[way]), Arc::clone(&sockets[1 - way]));
                let (over, lost) = (Arc::clone(&over), Arc::clone(&lost));
                let (sender, receiver) = (peers[way], peers[1 - way]);
                std::thread::spawn(move || {
                    let mut random = Random(0x5EED + way as u64);
                    let stranger = UdpSocket::bind(SocketAddr::new(receiver.ip(), 0)).expect("a socket");
                    let mut held: Option<Vec<u8>> = None;
                    let mut buffer = vec![0; 65_536];
                    let mut since = Instant::now();
                    while !over.load(Ordering::Relaxed) {
                        let Ok((len, source)) = from.recv_from(&mut buffer) else { continue };
                        if source != sender {
                            continue;
                        }
                        if len > weather.longest || random.chance(weather.loss) {
                            lost.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        let send = |bytes: &[u8]| _ = to.send_to(bytes, receiver);
                        if random.chance(weather.reorder) && held.is_none() {
                            (held, since) = (Some(buffer[..len].to_vec()), Instant::now());
                            continue;
                        }
                        if weather.forge > 0 && random.chance(weather.forge) {
                            let other = |(at, byte): (usize, &u8)| {
                                if at < RxPrediction::HEAD { *byte } else { !byte }
                            };
                            let forged: Vec<u8> = buffer[..len].iter().enumerate().map(other).collect();
                            let _ = stranger.send_to(&forged, receiver);
                        }
                        send(&buffer[..len]);
                        if random.chance(weather.duplicate) {
                            send(&buffer[..len]);
                        }
                        if since.elapsed() > Duration::ZERO
                            && let Some(bytes) = held.take()
                        {
                            send(&bytes);
                        }
                    }
                })
            })
            .collect();
        Self { sides, over, lost, threads }
    }

    /// Datagrams lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Its panic has been printed; a second one during unwinding would end the process.
            let _ = thread.join();
        }
    }
}
