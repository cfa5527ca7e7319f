//! `mxl-gateway`: both roles in processes of their own, which are killed and started again.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, Format, GrainReader, SampleReader, Uuid, Wait};
use mxl_fabrics::gateway::wire::ControlRequest;
use mxl_fabrics::{Provider, Target};
use rustix::process::{Pid, Signal, kill_process};

use super::common::{ANY, Folder, LONG, Running, byte_of, camera, microphone};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mxl-gateway");

/// A role of the program, and what it has said.
pub struct Gateway {
    pub running: Running,
    said: Arc<Mutex<String>>,
}

impl Gateway {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = Arc::<Mutex<String>>::default();
        let to = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                println!("{line}");
                *to.lock().unwrap() += &(line + "\n");
            }
        });
        Self { running: Running(child), said }
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said this.
    pub fn wait(&self, what: &str) {
        until(what, || self.said().contains(what).then_some(()));
    }

    /// The address at which it serves.
    pub fn address(&self) -> String {
        self.wait("serves ");
        let said = self.said();
        let (_, rest) = said.split_once("mxl://").unwrap();
        rest.split('/').next().unwrap().to_owned()
    }
}

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LONG, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn command(role: &str, domain: &Folder) -> Command {
    let mut program = Command::new(PROGRAM);
    program.args([role, "-d"]).arg(domain.path());
    program
}

pub fn serve(domain: &Folder, at: &str, arguments: &[&str]) -> Gateway {
    let mut program = command("serve", domain);
    program.args(["--listen", at]).args(arguments);
    Gateway::start(program)
}

pub fn mirror(domain: &Folder, uri: &str, arguments: &[&str]) -> Gateway {
    let mut program = command("mirror", domain);
    program.args(arguments).arg(uri);
    Gateway::start(program)
}

fn list(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(PROGRAM).arg("list").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// A thread that writes a flow. It ends with this value, and so does the flow.
pub struct Writing {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writing {
    pub fn start(folder: &Folder, definition: &FlowDefinition) -> Self {
        let (domain, definition) = (folder.domain(), definition.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let hints = BatchHints::default();
        let thread = if let Format::Audio(_) = definition.format {
            let mut writer = domain.create_samples(&definition, &hints).unwrap().writer;
            std::thread::spawn(move || {
                let mut index = 48_000;
                while !ends.load(Ordering::Relaxed) {
                    let mut batch = writer.open(index + 480, 480).unwrap();
                    let samples: Vec<f32> = (index..index + 480).map(sample_of).collect();
                    for channel in 0..2 {
                        batch.write_channel(channel, &samples).unwrap();
                    }
                    batch.commit().unwrap();
                    index += 480;
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        } else {
            let writer = domain.create_grains(&definition, &hints).unwrap().writer;
            std::thread::spawn(move || {
                let mut index = 1000;
                while !ends.load(Ordering::Relaxed) {
                    let mut grain = writer.open(index).unwrap();
                    let bytes: Vec<u8> = (0..grain.len()).map(|at| byte_at(index, at)).collect();
                    grain.write(0, &bytes).unwrap();
                    // In two parts, as a device of low latency does.
                    let half = grain.info().total_slices / 2;
                    grain.commit_slices(half).unwrap();
                    std::thread::sleep(Duration::from_millis(4));
                    grain.commit().unwrap();
                    index += 1;
                    std::thread::sleep(Duration::from_millis(6));
                }
            })
        };
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn byte_at(index: u64, at: usize) -> u8 {
    byte_of(index).wrapping_add((at / 512) as u8)
}

/// Exact in 24 bits.
fn sample_of(index: u64) -> f32 {
    (index % 1_000_003) as f32
}

pub fn grains(folder: &Folder, id: Uuid) -> GrainReader {
    until("a flow of grains", || folder.domain().read_grains(id).ok())
}

/// Reads until `count` further grains have arrived, each checked byte for byte.
pub fn arrive(reader: &GrainReader, count: u32) {
    let (mut right, mut last) = (0, reader.head());
    until("grains", || {
        let head = reader.head();
        if head > last
            && let Ok(grain) = reader.read(head, Wait::For(Duration::from_millis(50)))
            // On a busy machine a grain may be overwritten at either end: it is flagged, or not copied.
            && let Ok(bytes) = grain.to_vec()
            && !grain.info().is_invalid()
        {
            let wrong = bytes.iter().enumerate().find(|(at, byte)| **byte != byte_at(head, *at));
            assert_eq!(wrong, None, "grain {head}");
            (right, last) = (right + 1, head);
        }
        (right >= count).then_some(())
    });
}

/// Reads until `count` further batches have arrived, each sample checked.
fn sound(reader: &SampleReader, count: u32) {
    let (mut right, mut last) = (0, reader.head());
    let mut samples = vec![0_f32; 480];
    until("samples", || {
        let head = reader.head();
        if head >= last + 480 {
            let read = reader.read(head, 480, Wait::Not).and_then(|batch| {
                batch.read_channel(1, &mut samples)?;
                Ok(batch.still_valid())
            });
            // What was lost is silence: such a batch does not count.
            if matches!(read, Ok(true)) && samples.iter().all(|sample| *sample != 0.0) {
                for (sample, index) in samples.iter().zip(head - 480..) {
                    assert_eq!(sample.to_bits(), sample_of(index).to_bits(), "sample {index} of {head}");
                }
                right += 1;
            }
            last = head;
        }
        (right >= count).then_some(())
    });
}

#[test]
fn grains_and_samples_arrive_byte_for_byte() {
    let (near, far) = (Folder::new(), Folder::new());
    let (picture, audio) = (camera(), microphone(2));
    let _writing = [Writing::start(&near, &picture), Writing::start(&near, &audio)];
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let uri = format!("mxl://{}/?id={}&id={}", serving.address(), picture.id, audio.id);
    let _mirroring = mirror(&far, &uri, &[]);
    let there = grains(&far, picture.id);
    arrive(&there, 50);
    sound(&until("a flow of samples", || far.domain().read_samples(audio.id).ok()), 50);
    assert_eq!(
        far.domain().definition_text(picture.id).unwrap(),
        near.domain().definition_text(picture.id).unwrap()
    );
}

#[test]
fn flows_are_listed() {
    let near = Folder::new();
    let (picture, hidden) = (camera(), microphone(2));
    let _writing = [Writing::start(&near, &picture), Writing::start(&near, &hidden)];
    let (id, hidden) = (picture.id.to_string(), hidden.id.to_string());
    let serving = serve(&near, "127.0.0.1:0", &["--allow", &id]);
    let uri = format!("mxl://{}/", serving.address());
    let (is_fine, table) = list(&[&uri]);
    assert!(
        is_fine && table.contains(&id) && table.contains("video/v210") && table.contains("camera"),
        "{table}"
    );
    assert!(!table.contains(&hidden), "{table}");
    let (is_fine, json) = list(&[&format!("{uri}?id={id}"), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(is_fine && json[0]["active"] == true && json[0]["rate"]["numerator"] == 50, "{json}");
    assert!(json[0]["groups"][0].as_str().unwrap().contains("camera"), "{json}");
    // A flow that is not allowed looks like one that is not there.
    let (is_fine, why) = list(&[&format!("{uri}?id={hidden}")]);
    assert!(!is_fine && why.contains(&hidden), "{why}");
}

#[test]
fn a_killed_serving_side_comes_back() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let address = serving.address();
    let _mirroring = mirror(&far, &format!("mxl://{address}/?id={}", picture.id), &[]);
    let there = grains(&far, picture.id);
    arrive(&there, 10);
    serving.running.kill();
    std::thread::sleep(Duration::from_millis(300));
    let _serving = serve(&near, &address, &[]);
    arrive(&there, 20);
    assert!(there.is_current(), "the local flow was not kept");
}

#[test]
fn a_killed_mirror_comes_back_to_its_flow() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let uri = format!("mxl://{}/?id={}", serving.address(), picture.id);
    let mirroring = mirror(&far, &uri, &[]);
    let there = grains(&far, picture.id);
    arrive(&there, 10);
    mirroring.running.kill();
    let _mirroring = mirror(&far, &uri, &[]);
    arrive(&there, 20);
    assert!(there.is_current(), "the local flow was not kept");
    // The former target is dropped.
    serving.wait("whose mirror is gone");
    arrive(&there, 5);
}

#[test]
fn a_flow_that_is_created_again_is_followed() {
    let (near, picture) = (Folder::new(), camera());
    let writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let uri = format!("mxl://{}/?id={}", serving.address(), picture.id);
    // Two mirrors: both are targets of one initiator.
    let far = [Folder::new(), Folder::new()];
    let mirroring = far.each_ref().map(|far| mirror(far, &uri, &[]));
    let there = far.each_ref().map(|far| grains(far, picture.id));
    there.iter().for_each(|there| arrive(there, 10));
    // The same definition: the mirrors keep their flows.
    drop(writing);
    let writing = Writing::start(&near, &picture);
    for there in &there {
        arrive(there, 10);
        assert!(there.is_current());
    }
    // Another definition.
    drop(writing);
    let taller = taller(&picture);
    let _writing = Writing::start(&near, &taller);
    for ((far, mirroring), there) in far.iter().zip(&mirroring).zip(&there) {
        until("the new flow", || {
            let text = far.domain().definition_text(picture.id).ok()?;
            (text == taller.to_json().as_bytes()).then_some(())
        });
        mirroring.wait("has changed");
        arrive(&grains(far, picture.id), 10);
        assert!(!there.is_current());
    }
}

#[test]
fn a_flow_that_is_back_with_its_host_is_kept() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let address = serving.address();
    let uri = format!("mxl://{address}/?id={}", picture.id);
    let mirroring = mirror(&far, &uri, &["--keep", "4"]);
    let there = grains(&far, picture.id);
    arrive(&there, 5);
    // The flow ends, and so does its host, for longer than an absent flow is kept.
    drop(writing);
    mirroring.wait("waits for it");
    serving.running.kill();
    std::thread::sleep(Duration::from_millis(4200));
    let _writing = Writing::start(&near, &picture);
    let _serving = serve(&near, &address, &[]);
    arrive(&there, 5);
    assert!(there.is_current() && !mirroring.said().contains("is removed"), "{}", mirroring.said());
}

#[test]
fn what_was_opened_for_a_wrong_target_is_closed() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let other = Target::open(&far.domain(), &taller(&picture), Provider::Tcp, ANY, None).unwrap();
    let mut stranger = TcpStream::connect(serving.address()).unwrap();
    stranger.set_read_timeout(Some(LONG)).unwrap();
    let mut replies = BufReader::new(stranger.try_clone().unwrap());
    let info = Box::new(other.info().clone());
    let requests =
        [ControlRequest::Follow { id: picture.id }, ControlRequest::Target { id: picture.id, info }];
    for (request, answer) in requests.iter().zip(["\"definition\"", "\"refused\""]) {
        stranger.write_all(request.to_line().as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        assert!(reply.contains(answer), "{reply}");
    }
    // The flow's files are not mapped without a target.
    let maps = format!("/proc/{}/maps", serving.running.0.id());
    let id = picture.id.to_string();
    until("the flow's end", || (!std::fs::read_to_string(&maps).unwrap().contains(&id)).then_some(()));
}

/// The same flow with pictures of another height.
fn taller(picture: &FlowDefinition) -> FlowDefinition {
    let mut taller = picture.clone();
    if let Format::Video(video) = &mut taller.format {
        video.height = 60;
    }
    taller
}

#[test]
fn what_a_killed_mirror_has_left_of_another_definition_is_replaced() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let uri = format!("mxl://{}/?id={}", serving.address(), picture.id);
    let mirroring = mirror(&far, &uri, &[]);
    arrive(&grains(&far, picture.id), 5);
    mirroring.running.kill();
    drop(writing);
    let taller = taller(&picture);
    let _writing = Writing::start(&near, &taller);
    let _mirroring = mirror(&far, &uri, &[]);
    until("the new flow", || (far.domain().definition(picture.id).ok()? == taller).then_some(()));
    arrive(&grains(&far, picture.id), 5);
}

#[test]
fn a_flow_that_a_program_of_this_host_writes_is_left_alone() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = [Writing::start(&near, &picture), Writing::start(&far, &taller(&picture))];
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let mirroring = mirror(&far, &format!("mxl://{}/?id={}", serving.address(), picture.id), &[]);
    mirroring.wait("a program of this host writes flow");
    assert_eq!(far.domain().definition(picture.id).unwrap(), taller(&picture));
    arrive(&grains(&far, picture.id), 5);
}

#[test]
fn strangers_do_not_disturb() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let address = serving.address();
    let _mirroring = mirror(&far, &format!("mxl://{address}/?id={}", picture.id), &[]);
    let there = grains(&far, picture.id);
    arrive(&there, 5);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 3000], b"{}\n", &[b'['; 600_000]] {
        let mut stranger = TcpStream::connect(&address).unwrap();
        let _ = stranger.write_all(garbage);
        let _ = stranger.write_all(b"\n");
        let mut answer = Vec::new();
        stranger.set_read_timeout(Some(LONG)).unwrap();
        let _ = stranger.shutdown(Shutdown::Write);
        let _ = stranger.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("\"refused\""), "{answer}");
    }
    // Half a line, and nothing; and more connections than are served.
    let mut silent: Vec<_> = (0..80).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    for stranger in &mut silent {
        let _ = stranger.write_all(b"{\"version\":1,");
    }
    arrive(&there, 20);
    until("the end of the silent", || {
        let (is_fine, _) = list(&[&format!("mxl://{address}/")]);
        is_fine.then_some(())
    });
    arrive(&there, 5);
    // A flow that is not followed is not sent.
    let mut stranger = TcpStream::connect(&address).unwrap();
    let request = format!(
        "{{\"version\":1,\"request\":\"target\",\"id\":\"{}\",\"target\":{{\"addressFormat\":2,\"fabricAddress\":\
         \"AgATiH8AAAEAAAAAAAAAAA==\",\"id\":\"1\",\"provider\":\"tcp\",\"regions\":[]}}}}\n",
        picture.id
    );
    stranger.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(&stranger).read_line(&mut answer).unwrap();
    assert!(answer.contains("refused") && answer.contains("not followed"), "{answer}");
}

#[test]
fn an_unknown_flow_is_named_and_awaited() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let address = serving.address();
    let uri = format!("mxl://{address}/?id={}", picture.id);
    let (is_fine, why) = list(&[&uri]);
    assert!(!is_fine && why.contains(&format!("no flow {}", picture.id)), "{why}");
    let mirroring = mirror(&far, &uri, &[]);
    mirroring.wait(&format!("no flow {}", picture.id));
    let _writing = Writing::start(&near, &picture);
    arrive(&grains(&far, picture.id), 5);
}

#[test]
fn all_flows_are_mirrored_and_removed_when_they_have_ended() {
    let (near, far) = (Folder::new(), Folder::new());
    let (first, second) = (camera(), microphone(2));
    let _first = Writing::start(&near, &first);
    let serving = serve(&near, "127.0.0.1:0", &["--allow", "all"]);
    let mut mirroring = mirror(&far, &format!("mxl://{}/", serving.address()), &["--keep", "1"]);
    arrive(&grains(&far, first.id), 5);
    let later = Writing::start(&near, &second);
    sound(&until("the second flow", || far.domain().read_samples(second.id).ok()), 5);
    drop(later);
    until("the end of the second flow", || {
        matches!(far.domain().definition(second.id), Err(mxl::Error::NotFound(_))).then_some(())
    });
    // Its end is clean.
    let pid = Pid::from_child(&mirroring.running.0);
    kill_process(pid, Signal::TERM).unwrap();
    let status = until("the end", || mirroring.running.0.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert!(far.domain().flows().unwrap().is_empty());
}

#[test]
fn wrong_values_are_told() {
    let near = Folder::new();
    for (role, arguments, why) in [
        ("serve", &["--listen", "nowhere"][..], "--listen nowhere"),
        ("serve", &["--allow", "camera"], "neither all nor a flow's id"),
        ("serve", &["--key", "/nonexistent"], "--key /nonexistent"),
        ("mirror", &[], "URI"),
        ("mirror", &["mxl:///dev/shm/studio"], "no host"),
        ("mirror", &["mxl://b/dev/shm/studio"], "without a path"),
        ("mirror", &["mxl://b:0/"], "HOST:PORT"),
        ("mirror", &["-p", "pigeon", "mxl://b/"], "pigeon"),
    ] {
        let output = command(role, &near).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{role} {arguments:?}: {said}");
        assert!(said.contains(why), "{role} {arguments:?}: {said}");
    }
    // Nobody listens.
    let (is_fine, why) = list(&["mxl://127.0.0.1:9/"]);
    assert!(!is_fine && why.contains("127.0.0.1:9: "), "{why}");
    // Two ends of different providers.
    let (far, picture) = (Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &["-p", "udp"]);
    let mirroring = mirror(&far, &format!("mxl://{}/", serving.address()), &[]);
    mirroring.wait("flows are sent over udp here, not over tcp");
}

#[test]
fn a_key_encrypts_flows_over_udp_and_tcp() {
    for provider in ["udp", "tcp"] {
        let (near, far, picture) = (Folder::new(), Folder::new(), camera());
        let _writing = Writing::start(&near, &picture);
        let key = near.path().join("key");
        std::fs::write(&key, "0123456789abcdef\n").unwrap();
        let both = ["-p", provider, "--key", key.to_str().unwrap()];
        let serving = serve(&near, "127.0.0.1:0", &both);
        let _mirroring = mirror(&far, &format!("mxl://{}/", serving.address()), &both);
        arrive(&grains(&far, picture.id), 5);
    }
}

/// Runs `command` in the network namespace of a process.
fn within(process: &Running, command: &[&str]) -> Command {
    let mut program = Command::new("nsenter");
    program.args(["-t", &process.0.id().to_string(), "-n"]).args(command);
    program
}

/// A process with a network namespace of its own. `None` if that is not permitted.
fn namespace() -> Option<Running> {
    let mut program = Command::new("unshare");
    program.args(["--net", "sh", "-c", "echo ready; exec sleep 600"]);
    let child = program.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut there = Running(child);
    let mut line = String::new();
    BufReader::new(there.0.stdout.take()?).read_line(&mut line).ok()?;
    (line == "ready\n").then_some(there)
}

/// Two namespaces joined by a veth pair: `10.99.9.1` and `10.99.9.2`.
fn namespaces() -> Option<(Running, Running)> {
    let (a, b) = (namespace()?, namespace()?);
    let other = b.0.id().to_string();
    let link = ["ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &other];
    let commands = [
        (&a, &link[..]),
        (&a, &["ip", "address", "add", "10.99.9.1/24", "dev", "near"]),
        (&a, &["ip", "link", "set", "near", "up"]),
        (&b, &["ip", "address", "add", "10.99.9.2/24", "dev", "far"]),
        (&b, &["ip", "link", "set", "far", "up"]),
    ];
    for (process, command) in commands {
        let output = within(process, command).output().ok()?;
        if !output.status.success() {
            println!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
    }
    Some((a, b))
}

#[test]
fn flows_go_from_one_namespace_to_another_and_on_after_a_cut() {
    let Some((a, b)) = namespaces() else {
        println!("NOT RUN: flows_go_from_one_namespace_to_another_and_on_after_a_cut: no network namespaces");
        return;
    };
    let (near, far) = (Folder::new(), Folder::new());
    let (picture, audio) = (camera(), microphone(2));
    let _writing = [Writing::start(&near, &picture), Writing::start(&near, &audio)];
    let folder = near.path().to_str().unwrap();
    let serving = within(&a, &[PROGRAM, "serve", "-d", folder, "--listen", "10.99.9.1"]);
    let serving = Gateway::start(serving);
    assert_eq!(serving.address(), "10.99.9.1:7480");
    let folder = far.path().to_str().unwrap();
    let mirroring = within(&b, &[PROGRAM, "mirror", "-d", folder, "mxl://10.99.9.1/"]);
    let _mirroring = Gateway::start(mirroring);
    let there = grains(&far, picture.id);
    arrive(&there, 20);
    sound(&until("a flow of samples", || far.domain().read_samples(audio.id).ok()), 20);
    for state in ["down", "up"] {
        assert!(within(&a, &["ip", "link", "set", "near", state]).status().unwrap().success());
        std::thread::sleep(Duration::from_secs(1));
    }
    arrive(&there, 20);
    assert!(there.is_current());
}
