use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ofi_core::sys::wait_readable;

use super::*;

const BOUND: Duration = Duration::from_secs(5);

fn open(choice: Choice) -> Socket {
    Socket::new(([127, 0, 0, 1], 0).into(), 4 << 20, true, choice).unwrap()
}

/// Runs with each driver; with io_uring if the kernel permits it, which the output reports.
fn with_each(test: impl Fn(Choice)) {
    test(Choice::Calls);
    if open(Choice::Ring).ring().0 {
        test(Choice::Ring);
    } else {
        println!("NOT RUN: io_uring is not allowed here");
    }
}

/// Sends `bytes` to `to`.
fn send_one(from: &mut Socket, to: SocketAddr, bytes: &[u8]) {
    let (buffer, _) = from.next().unwrap();
    buffer[..bytes.len()].copy_from_slice(bytes);
    from.push(&Transmit { to, len: bytes.len(), count: 1, peer: None });
    while from.has_waiting() {
        from.flush();
    }
}

/// Receives one batch of at least one datagram within the bound.
fn receive(socket: &mut Socket) -> usize {
    let end = std::time::Instant::now() + BOUND;
    loop {
        let (got, _) = socket.receive();
        if got > 0 || std::time::Instant::now() > end {
            return got;
        }
    }
}

#[test]
fn what_icmp_says_is_taken_and_the_socket_is_quiet_again() {
    with_each(|choice| {
        let mut socket = open(choice);
        socket.receive();
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // Two errors: a call that reports one leaves the other in the queue.
        for _ in 0..2 {
            send_one(&mut socket, nobody, &[1]);
        }
        let end = std::time::Instant::now() + BOUND;
        while socket.refused.is_empty() && std::time::Instant::now() < end {
            socket.is_readable();
        }
        assert_eq!(socket.refused, [Report { to: nobody, is_port: true }]);
        socket.refused.clear();
        while socket.is_readable() && std::time::Instant::now() < end {
            socket.receive();
            socket.refused.clear();
        }
        assert!(!socket.is_readable(), "{choice:?}");
        // The socket still receives.
        let mut other = open(Choice::Calls);
        send_one(&mut other, socket.address, b"after");
        assert_eq!(receive(&mut socket), 1, "{choice:?}");
    });
}

#[test]
fn datagrams_of_all_lengths_arrive_whole_in_order_and_with_their_sender() {
    with_each(|choice| {
        let (mut one, mut other) = (open(choice), open(choice));
        let lengths = [1usize, 100, 1452, 1452, 1452, 300, 65_000, 9, 40_000, 1200, 1200];
        let end = std::time::Instant::now() + BOUND;
        for round in 0..40u8 {
            let value = |number: usize| round.wrapping_mul(11).wrapping_add(number as u8);
            for (number, &len) in lengths.iter().enumerate() {
                let (buffer, _) = one.next().unwrap();
                buffer[..len].fill(value(number));
                one.push(&Transmit { to: other.address, len, count: 1, peer: None });
            }
            while one.has_waiting() {
                one.flush();
            }
            let mut seen = 0;
            while seen < lengths.len() && std::time::Instant::now() < end {
                let (got, _) = other.receive();
                for index in 0..got {
                    let (bytes, from) = other.datagram(index);
                    assert_eq!((bytes.len(), from), (lengths[seen], Some(one.address)), "{choice:?} {seen}");
                    assert!(bytes.iter().all(|&byte| byte == value(seen)), "{choice:?} {seen}");
                    seen += 1;
                }
            }
            assert_eq!(seen, lengths.len(), "{choice:?}");
        }
        assert_eq!(other.receive(), (0, false), "{choice:?}");
    });
}

/// More datagrams at once than a ring has buffers.
#[test]
fn a_burst_that_is_longer_than_all_buffers_arrives() {
    with_each(|choice| {
        let (mut one, mut other) = (open(choice), open(choice));
        for len in [64, 30_000] {
            for _ in 0..100 {
                send_one(&mut one, other.address, &vec![7; len]);
            }
            let mut seen = 0;
            while seen < 100 {
                let got = receive(&mut other);
                assert!(got > 0, "{choice:?}: {seen} of 100 with {len} bytes");
                seen += got;
            }
        }
    });
}

/// After a call that found nothing, the next takes one datagram, and the one after it the others.
#[test]
fn what_comes_after_an_empty_look_comes_all_the_same() {
    with_each(|choice| {
        let (mut one, mut other) = (open(choice), open(choice));
        for _ in 0..20 {
            assert_eq!(other.receive(), (0, false), "{choice:?}");
            for number in 0..5u8 {
                send_one(&mut one, other.address, &[number]);
            }
            let mut seen = 0;
            while seen < 5 {
                assert!(other.is_readable(), "{choice:?}: {seen} of 5");
                let (got, _) = other.receive();
                for index in 0..got {
                    assert_eq!(other.datagram(index).0, [seen as u8], "{choice:?}");
                    seen += 1;
                }
            }
        }
    });
}

/// One thread polls now and then without sleeping, and others sleep on nested sets, as completion queues, event queues
/// and applications do. Each datagram wakes a sleeper or is received by the polling thread.
#[test]
fn a_sleeper_is_woken_while_another_thread_looks() {
    const ROUNDS: usize = 2_000;
    with_each(|choice| {
        let socket = open(choice);
        let (outer, outermost) = (WaitSet::new().unwrap(), WaitSet::new().unwrap());
        outer.add(socket.fd()).unwrap();
        outermost.add(outer.fd()).unwrap();
        let address = socket.address;
        let socket = Mutex::new(socket);
        let (seen, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let look = || {
            let mut socket = socket.lock().unwrap();
            let (got, _) = socket.receive();
            seen.fetch_add(got, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    look();
                    if seen.load(Ordering::SeqCst) % 3 == 0 {
                        std::thread::sleep(Duration::from_micros(30));
                    }
                }
            });
            let (look, socket, over) = (&look, &socket, &over);
            for fd in [outer.fd(), outermost.fd()] {
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        look();
                        if !socket.lock().unwrap().is_readable() {
                            // Waits without a limit: a missed datagram stays missed.
                            wait_readable(&[fd], Some(std::time::Instant::now() + BOUND));
                        }
                    }
                });
            }
            let mut sender = open(Choice::Calls);
            for round in 0..ROUNDS {
                send_one(&mut sender, address, &[round as u8; 100]);
                let end = std::time::Instant::now() + BOUND / 2;
                while seen.load(Ordering::SeqCst) <= round && std::time::Instant::now() < end {
                    std::thread::yield_now();
                }
                if seen.load(Ordering::SeqCst) <= round {
                    over.store(true, Ordering::SeqCst);
                    panic!("{choice:?}: datagram {round} woke nobody");
                }
            }
            over.store(true, Ordering::SeqCst);
            send_one(&mut sender, address, b"the end");
        });
    });
}

/// Sleepers are woken even if the thread that polled last never polls again.
#[test]
fn a_sleeper_is_woken_though_the_thread_that_received_never_looks_again() {
    with_each(|choice| {
        let mut sender = open(Choice::Calls);
        let mut socket = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let mut socket = open(choice);
                    send_one(&mut sender, socket.address, b"first");
                    assert_eq!(receive(&mut socket), 1);
                    socket
                })
                .join()
                .unwrap()
        });
        let outer = WaitSet::new().unwrap();
        outer.add(socket.fd()).unwrap();
        for round in 0..200 {
            assert!(!socket.is_readable(), "{choice:?} {round}");
            send_one(&mut sender, socket.address, b"next");
            assert!(
                wait_readable(&[outer.fd()], Some(std::time::Instant::now() + BOUND)),
                "{choice:?} {round}"
            );
            assert_eq!(receive(&mut socket), 1, "{choice:?} {round}");
        }
        assert_eq!(socket.ring().0, choice == Choice::Ring);
    });
}

/// A poll set that contains the socket is notified of each datagram by its sender, so the socket is added only when a
/// thread may sleep.
#[test]
fn a_socket_on_which_nobody_sleeps_is_in_no_set() {
    with_each(|choice| {
        let socket = open(choice);
        let watched = || {
            let told = format!("/proc/self/fdinfo/{}", socket.set.fd());
            let fd = socket.raw().as_raw_fd().to_string();
            let lines = std::fs::read_to_string(told).unwrap();
            let mut members = lines.lines().filter_map(|line| line.strip_prefix("tfd:"));
            members.any(|line| line.split_whitespace().next() == Some(&fd))
        };
        assert!(!watched(), "{choice:?}");
        let fd = socket.fd();
        assert!(watched() && socket.fd() == fd, "{choice:?}");
    });
}

/// Datagrams that one thread has read from the socket and not returned are available to any thread.
#[test]
fn threads_take_turns_and_nothing_is_lost_between() {
    const EACH: usize = 300;
    with_each(|choice| {
        let socket = Mutex::new(open(choice));
        let address = socket.lock().unwrap().address;
        let (seen, turn) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (socket, seen, turn) = (&socket, &seen, &turn);
                scope.spawn(move || {
                    let end = std::time::Instant::now() + 4 * BOUND;
                    while seen.load(Ordering::SeqCst) < 3 * EACH && std::time::Instant::now() < end {
                        // A turn lasts long enough for a ring to move.
                        if turn.load(Ordering::SeqCst) / 100 % 3 != number {
                            std::thread::yield_now();
                            continue;
                        }
                        let mut socket = socket.lock().unwrap();
                        let (got, _) = socket.receive();
                        for index in 0..got {
                            let (bytes, _) = socket.datagram(index);
                            assert_eq!(bytes, (seen.load(Ordering::SeqCst) as u32).to_ne_bytes());
                            seen.fetch_add(1, Ordering::SeqCst);
                            turn.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            let mut sender = open(Choice::Calls);
            for number in 0..3 * EACH as u32 {
                send_one(&mut sender, address, &number.to_ne_bytes());
                while (seen.load(Ordering::SeqCst) as u32) + 20 < number {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(seen.load(Ordering::SeqCst), 3 * EACH, "{choice:?}");
    });
}

#[test]
fn an_address_is_free_as_soon_as_its_socket_is_closed() {
    with_each(|choice| {
        for from_elsewhere in [false, true] {
            let mut socket = open(choice);
            socket.receive();
            let address = socket.address;
            if from_elsewhere {
                std::thread::scope(|scope| scope.spawn(move || drop(socket)).join().unwrap());
            } else {
                drop(socket);
            }
            UdpSocket::bind(address).unwrap_or_else(|error| panic!("{choice:?} {from_elsewhere}: {error}"));
        }
    });
}
