//! Providers `udp` and `tcp` within one host: which peers are reached over shared memory, which are not, and what
//! happens when they exit.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::mesh::{Mesh, NAMING};
use ofi_tests::{Naming, open, opening, parse};

/// An unused user id.
const USER: libc::uid_t = 47_110;
/// Messages of one exchange.
const COUNT: u64 = 20;

/// A provider over sockets.
#[derive(Clone, Copy)]
pub struct Provider {
    pub name: &'static str,
    /// Its endpoints with shared memory, and without.
    pub near: Naming,
    pub far: Naming,
    /// The setting that turns shared memory off.
    pub setting: &'static str,
    /// The statistic that counts what was begun over sockets.
    pub begun: &'static str,
}

pub const PROVIDERS: [Provider; 2] = [
    Provider {
        name: "udp",
        near: Naming::Nearby,
        far: Naming::Udp,
        setting: "FI_UDP_SHARED_MEMORY",
        begun: "udp_sessions_begun",
    },
    Provider {
        name: "tcp",
        near: Naming::NearbyTcp,
        far: Naming::Tcp,
        setting: "FI_TCP_SHARED_MEMORY",
        begun: "connections",
    },
];

/// Moves to a new network namespace, and brings its loopback device up.
fn leave_the_network() {
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: all zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: the call takes a pointer to an `ifreq`.
    let done = unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw mut request) };
    assert_eq!(done, 0, "the loopback device");
    // SAFETY: our own descriptor.
    unsafe { libc::close(socket) };
}

pub fn become_another_user() {
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::setresuid(USER, USER, USER) }, 0);
    // A change of the user clears the parent-death signal, so it is set again.
    // SAFETY: asks for a signal, touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Whether this process may change users and networks.
pub fn is_root() -> bool {
    // SAFETY: takes no pointers.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: only root may change users and networks");
    }
    root
}

/// Sends each message back. Arguments: its naming, its place (user or network), and optionally its address.
pub fn echo(line: &mut Line, arguments: &[String]) {
    match arguments[1].as_str() {
        "other-user" => become_another_user(),
        "other-network" => leave_the_network(),
        _ => {}
    }
    let mut opening = opening(Naming::from_argument(&arguments[0]));
    if let Some(name) = arguments.get(2) {
        opening = opening.name(&parse(name));
    }
    let side = opening.open();
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    let into = Memory::new(1 << 20);
    loop {
        side.receive(&into).tag_ignoring(0, u64::MAX).context(1).post().unwrap();
        let entry = loop {
            side.poll();
            if let Some(event) = side.next_of(1) {
                break event.done();
            }
            if line.has_news() {
                let Some(_) = line.try_hear() else { return };
                line.say(format!("{} {}", side.statistic("peers_local"), side.statistic("peers_remote")));
            }
            std::thread::yield_now();
        };
        let back = side.out(to, into.slice(..entry.len)).tag(entry.tag).context(2);
        wait::drive(&[&side], "room", || back.send().ok());
        wait::drive(&[&side], "the answer to go", || side.next_of(2)).done();
    }
}

/// Listens, as another user, on the socket name that announces an endpoint reachable over shared memory.
pub fn squat(line: &mut Line, arguments: &[String]) {
    become_another_user();
    let name = SocketAddr::from_abstract_name(format!("ofi-near/{}", arguments[0])).unwrap();
    let _listener = UnixListener::bind_addr(&name).unwrap();
    line.say("listening");
    let _ = line.try_hear();
}

struct Scene {
    side: TestEndpoint,
    child: Child,
    to: FiAddr,
    name: String,
}

impl Scene {
    /// An endpoint here, and another process that echoes messages.
    fn new(here: Naming, there: Naming, place: &str) -> Self {
        Self::with(here, Child::start("nearby_echo", &[there.as_str(), place]))
    }

    fn with(here: Naming, mut child: Child) -> Self {
        let side = open(here);
        let name = child.line.hear();
        child.line.say(side.name());
        let to = side.insert_address(&parse(&name));
        Self { side, child, to, name }
    }

    /// Restarts the other process under the same address.
    fn restart(&mut self, there: Naming) {
        self.child.kill();
        self.child = Child::start("nearby_echo", &[there.as_str(), "here", &self.name]);
        assert_eq!(self.child.line.hear(), self.name);
        self.child.line.say(self.side.name());
    }

    /// Sends messages of these lengths, and checks that each comes back, in order.
    fn exchange(&self, lengths: &[usize]) {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let (from, into) = (Memory::patterned(longest, 5), Memory::new(longest));
        for (tag, &len) in (0..COUNT).flat_map(|round| lengths.iter().map(move |len| (round, len))) {
            self.side.receive(&into).tag_ignoring(0, u64::MAX).context(1).post().unwrap();
            let out = self.side.out(self.to, from.slice(..len)).tag(tag).context(2);
            wait::drive(&[&self.side], "room", || out.send().ok());
            wait::drive(&[&self.side], "the message to go", || self.side.next_of(2)).done();
            let entry = wait::drive(&[&self.side], "the answer", || self.side.next_of(1)).done();
            assert_eq!((entry.len, entry.tag), (len, tag), "answers come in order");
            into.check(len, 5);
        }
    }

    /// The numbers of peers that this endpoint sends to over shared memory, and over sockets.
    fn here(&self) -> (u64, u64) {
        (self.side.statistic("peers_local"), self.side.statistic("peers_remote"))
    }

    /// The same numbers in the other process.
    fn there(&mut self) -> String {
        self.child.line.say("peers?");
        // Its last answer completes when this end has acknowledged it, so this end has to poll.
        let line = &mut self.child.line;
        wait::drive(&[&self.side], "the other process's report", || line.has_news().then_some(()));
        line.hear()
    }

    /// Waits until this end notices that the peer is gone: over shared memory by itself, over sockets when an
    /// operation fails.
    fn notice(&self) {
        if self.here() == (0, 1) {
            let out = self.side.out(self.to, ()).tag(9).msg(OpFlags::DELIVERY_COMPLETE).context(3);
            wait::drive(&[&self.side], "room", || out.send().ok());
            wait::drive(&[&self.side], "a failure", || self.side.next_of(3)).failed();
        }
        wait::drive(&[&self.side], "the end of the path", || (self.here() == (0, 0)).then_some(()));
    }
}

const LENGTHS: [usize; 3] = [0, 64, 300_000];

#[test]
fn peers_of_one_host_meet_over_shared_memory() {
    for Provider { near, begun, .. } in PROVIDERS {
        let mut scene = Scene::new(near, near, "here");
        scene.exchange(&LENGTHS);
        assert_eq!((scene.here(), scene.there().as_str()), ((1, 0), "1 0"));
        assert!(scene.side.statistic("shm_bulk_bytes") >= 300_000, "{}", scene.side.report());
        assert_eq!(scene.side.statistic(begun), 0, "{}", scene.side.report());
    }
}

#[test]
fn a_peer_without_shared_memory_is_reached_over_sockets() {
    for Provider { near, far, begun, .. } in PROVIDERS {
        for (here, there) in [(near, far), (far, near)] {
            let mut scene = Scene::new(here, there, "here");
            scene.exchange(&LENGTHS);
            assert_eq!(scene.side.statistic("peers_local"), 0, "{}", scene.side.report());
            assert_eq!(scene.side.statistic(begun), 1, "{}", scene.side.report());
            assert!(scene.there().starts_with("0 "));
        }
    }
}

/// As an endpoint of C libfabric does.
#[test]
fn a_listener_that_announces_no_endpoint_is_called_over_tcp() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let side = open(Naming::NearbyTcp);
    let to = side.insert_address(&Address::from(listener.local_addr().unwrap()));
    wait::drive(&[&side], "room", || side.out(to, ()).inject().send().ok());
    wait::drive(&[&side], "a call", || listener.accept().ok());
    assert_eq!((side.statistic("peers_local"), side.statistic("peers_remote")), (0, 1));
}

#[test]
fn the_setting_leaves_shared_memory_out() {
    for Provider { near, setting, .. } in PROVIDERS {
        let child = Child::start_with("nearby_echo", &[near.as_str(), "here"], &[(setting, "0")]);
        let scene = Scene::with(near, child);
        scene.exchange(&LENGTHS);
        assert_eq!(scene.here(), (0, 1));
    }
}

#[test]
fn a_peer_of_another_user_is_reached_over_sockets() {
    for Provider { near, .. } in PROVIDERS.into_iter().filter(|_| is_root()) {
        let mut scene = Scene::new(near, near, "other-user");
        scene.exchange(&LENGTHS);
        assert_eq!((scene.here(), scene.there().as_str()), ((0, 1), "0 1"));
    }
}

#[test]
fn another_user_at_the_door_is_not_believed() {
    for Provider { name, near, far, .. } in PROVIDERS.into_iter().filter(|_| is_root()) {
        let (a, b) = (open(near), open(far));
        let door = format!("{name}/{}", b.name().to_socket_addr().unwrap());
        let mut squatter = Child::start("squat", &[&door]);
        squatter.line.expect("listening");
        let pair = Pair::of(a, b);
        pair.warm_up();
        assert_eq!((pair.a.statistic("peers_local"), pair.a.statistic("peers_remote")), (0, 1));
        squatter.finish();
    }
}

#[test]
fn the_same_address_in_another_network_is_somebody_else() {
    if !is_root() {
        return;
    }
    let scene = Scene::new(Naming::Nearby, Naming::Nearby, "other-network");
    wait::drive(&[&scene.side], "room", || scene.side.out(scene.to, ()).inject().send().ok());
    assert_eq!(scene.here(), (0, 1), "no process of this network has the address");
}

#[test]
fn a_peer_that_dies_and_comes_back_is_met_anew_as_it_is_then() {
    for Provider { near, far, .. } in PROVIDERS {
        let mut scene = Scene::new(near, near, "here");
        scene.exchange(&LENGTHS);
        for there in [near, far, near] {
            scene.child.kill();
            scene.notice();
            scene.restart(there);
            scene.exchange(&LENGTHS);
            let is_near = there == near;
            assert_eq!(scene.here(), (is_near.into(), (!is_near).into()), "{there:?}");
        }
    }
}

#[test]
fn what_is_outstanding_with_a_dead_neighbour_ends_with_an_error() {
    let scene = &mut Scene::new(Naming::Nearby, Naming::Nearby, "here");
    scene.exchange(&LENGTHS);
    scene.child.stop(); // so that it does not receive the message
    let large = Memory::patterned(16 << 20, 1);
    let out = scene.side.out(scene.to, &large).tag(1).context(7);
    wait::drive(&[&scene.side], "room", || out.send().ok());
    scene.child.kill();
    let start = Instant::now();
    let error = wait::drive(&[&scene.side], "the end", || scene.side.next_of(7)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(scene.here(), (0, 0), "the next message chooses its transport again");
}

/// The first end sends over a socket, as its peer does not exist yet. The peer, opened later, finds the first
/// end on this host, and uses shared memory.
#[test]
fn ends_that_decide_differently_hear_each_other() {
    PROVIDERS.into_iter().for_each(|provider| decide_differently(provider.near));
}

fn decide_differently(naming: Naming) {
    let b = open(naming);
    let name = b.name();
    drop(b);
    let a = open(naming);
    let to_b = a.insert_address(&name);
    for tag in 0..COUNT {
        wait::drive(&[&a], "room", || a.out(to_b, ()).tag(tag).inject().send().ok());
    }
    assert_eq!(a.statistic("peers_remote"), 1);
    let b = opening(naming).name(&name).open();
    let to_a = b.insert(&a);
    for tag in 0..COUNT {
        wait::drive(&[&a, &b], "room", || b.out(to_a, ()).tag(tag).inject().send().ok());
    }
    assert_eq!((b.statistic("peers_local"), b.statistic("peers_remote")), (1, 0));
    for (side, from) in [(&a, to_b), (&b, to_a)] {
        for tag in 0..COUNT {
            side.receive(()).tag_ignoring(0, u64::MAX).from(from).context(1).post().unwrap();
            let entry = wait::drive(&[&a, &b], "a message", || side.next_of(1)).done();
            assert_eq!(entry.tag, tag, "each direction in order");
        }
    }
}

#[test]
fn whether_shared_memory_is_permitted_is_said_before_enable() {
    for Provider { near, .. } in PROVIDERS {
        let side = opening(near).open_disabled().unwrap();
        assert_eq!(side.ep.option(EpOption::SharedMemoryPermitted), Ok(1));
        let wrong = side.ep.set_option(EpOption::SharedMemoryPermitted, 2).unwrap_err();
        assert_eq!(wrong.errno(), Errno::EINVAL);
        side.ep.set_option(EpOption::SharedMemoryPermitted, 0).unwrap();
        side.ep.enable().unwrap();
        assert_eq!(side.ep.option(EpOption::SharedMemoryPermitted), Ok(0));
        let late = side.ep.set_option(EpOption::SharedMemoryPermitted, 1).unwrap_err();
        assert_eq!(late.errno(), Errno::EINVAL);
    }
    let only = open(Naming::Names);
    only.ep.set_option(EpOption::SharedMemoryPermitted, 1).unwrap();
    let only = opening(Naming::Names).open_disabled().unwrap();
    let error = only.ep.set_option(EpOption::SharedMemoryPermitted, 0).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP);
}

#[test]
fn members_over_two_transports_are_killed_at_random_under_load() {
    for naming in [Naming::Nearby, Naming::NearbyTcp, Naming::Crossed] {
        // After a death the next messages go over a socket. These fail as soon as the mesh expects it.
        let environment = [(NAMING, naming.as_str()), ("FI_UDP_PEER_TIMEOUT_MS", "900")];
        let mut mesh = Mesh::start(4, &environment);
        for kill in 0..8 {
            std::thread::sleep(Duration::from_millis(100 + 37 * kill));
            mesh.replace(kill as usize % 4);
        }
        mesh.expect_progress();
        assert!(mesh.end().iter().all(|report| report.done > 0), "{naming:?}");
    }
}
