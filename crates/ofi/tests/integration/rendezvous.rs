//! A rendezvous of processes. Threads take their place here; `examples/allreduce.rs` uses processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ofi::Errno;
use ofi::rendezvous::{MAX_CONTRIBUTION_LEN, MAX_PROCESSES, Meeting, Place, meet};

const LIMIT: Duration = Duration::from_secs(20);

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ofi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A free port of this host.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

fn run(place: &Place, count: usize, own: &str) -> std::thread::JoinHandle<ofi::Result<Meeting>> {
    let (place, own) = (place.clone(), own.to_string());
    std::thread::spawn(move || meet(&place, count, own.as_bytes(), LIMIT))
}

/// Lets `count` threads meet: all get the same list, each has a rank, and its own bytes are in the list.
fn all_meet(place: &Place, count: usize) {
    let running: Vec<_> = (0..count).map(|index| run(place, count, &format!("process {index}"))).collect();
    let meetings: Vec<Meeting> =
        running.into_iter().map(|thread| thread.join().expect("no panic").expect("a meeting")).collect();
    let mut ranks = vec![false; count];
    for (index, meeting) in meetings.iter().enumerate() {
        assert_eq!(meeting.said, meetings[0].said);
        assert_eq!(meeting.said[meeting.rank], format!("process {index}").into_bytes());
        assert!(!std::mem::replace(&mut ranks[meeting.rank], true), "two have rank {}", meeting.rank);
    }
}

#[test]
fn processes_meet_at_each_kind_of_place_and_again() {
    let folder = Folder::new("meetings");
    let unix = Place::Unix(folder.0.join("socket"));
    for place in [Place::Tcp(free()), unix] {
        for count in [1, 2, 7, 3] {
            all_meet(&place, count);
        }
    }
    for count in [1, 2, 7] {
        let own = folder.0.join(format!("of {count}"));
        std::fs::create_dir(&own).expect("a folder");
        all_meet(&Place::Folder(own), count);
    }
}

#[test]
fn an_endless_limit_is_kept() {
    let folder = Folder::new("endless");
    for place in [Place::Tcp(free()), Place::Unix(folder.0.join("socket")), Place::Folder(folder.0.clone())] {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meet(&place, 2, b"other", Duration::MAX));
            let own = meet(&place, 2, b"own", Duration::MAX).expect("a meeting");
            assert_eq!(other.join().expect("no panic").expect("a meeting").said, own.said);
        });
    }
}

#[test]
fn one_that_does_not_come_is_missed_in_time() {
    let folder = Folder::new("lonely");
    let start = Instant::now();
    for place in [Place::Tcp(free()), Place::Unix(folder.0.join("socket")), Place::Folder(folder.0.clone())] {
        let error = meet(&place, 3, b"here", Duration::from_millis(100)).expect_err("nobody came");
        assert_eq!(error.errno(), Errno::ETIMEDOUT);
        assert!(error.to_string().contains("3 processes"), "{error}");
    }
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn processes_that_disagree_are_told() {
    let place = Place::Tcp(free());
    let host = run(&place, 2, "host");
    // Waits until the host listens. Before that, another could become the host.
    while TcpStream::connect(place.to_string()).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = meet(&place, 3, b"one of three", LIMIT).expect_err("two, not three");
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("2 here, 3 there"), "{error}");
    let guest = meet(&place, 2, b"guest", LIMIT).expect("a meeting");
    assert_eq!(host.join().expect("no panic").expect("a meeting").said, guest.said);
}

#[test]
fn strangers_take_no_seat_and_a_guest_that_goes_gives_its_up() {
    let address = free();
    let place = Place::Tcp(address);
    let host = run(&place, 3, "host");
    let connect = || loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut nonsense = connect();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("room");
    assert_eq!(nonsense.read(&mut [0; 16]).unwrap_or(0), 0, "the stranger was accepted");
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    silent.truncate(100);
    // Sends the whole request of a guest, and leaves.
    let mut request = b"ofi rendezvous 1".to_vec();
    request.extend([3, 0, 0, 0, 4, 0, 0, 0]);
    request.extend(b"gone");
    let mut gone = connect();
    gone.write_all(&request).expect("room");
    drop(gone);
    let guests = [run(&place, 3, "guest"), run(&place, 3, "guest")];
    let met = host.join().expect("no panic").expect("a meeting");
    assert_eq!(met.said, [&b"host"[..], b"guest", b"guest"]);
    for guest in guests {
        assert_eq!(guest.join().expect("no panic").expect("a meeting").said, met.said);
    }
}

#[test]
fn a_used_folder_is_refused() {
    let folder = Folder::new("used");
    let place = Place::Folder(folder.0.clone());
    all_meet(&place, 2);
    let error = meet(&place, 2, b"late", LIMIT).expect_err("it is full");
    assert_eq!(error.errno(), Errno::EINVAL);
    std::fs::remove_file(folder.0.join("1")).expect("a file");
    std::fs::write(folder.0.join("0"), "something else").expect("a file");
    let error = meet(&place, 2, b"late", LIMIT).expect_err("a stranger's file");
    assert!(error.to_string().contains("something else"), "{error}");
}

#[test]
fn bounds_are_told() {
    let place = Place::Tcp(free());
    for (count, len) in [(0, 0), (MAX_PROCESSES + 1, 0), (1, MAX_CONTRIBUTION_LEN + 1)] {
        let error = meet(&place, count, &vec![0; len], LIMIT).expect_err("out of bounds");
        assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    }
    let nowhere = Place::Unix("/nonexistent/socket".into());
    let error = meet(&nowhere, 2, b"", LIMIT).expect_err("no such folder");
    assert_eq!(error.errno(), Errno::ENOENT, "{error}");
}
