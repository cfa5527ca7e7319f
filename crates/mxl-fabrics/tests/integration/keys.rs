//! Flows with an authorization key: nobody connects without it, and nobody reads them from the network.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use mxl::{BatchHints, Wait};
use mxl_fabrics::{Error, Initiator, Key, Options, Provider, Received, Target};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};

use super::common::{ANY, Folder, LONG, Running, both, camera, command, microphone};

const PROVIDERS: [Provider; 3] = [Provider::Shm, Provider::Udp, Provider::Tcp];

fn with_key(key: Option<&str>) -> Options {
    let mut options = Options::default();
    options.key = key.map(Key::new);
    options
}

#[test]
fn flows_arrive_with_the_target_s_key_and_with_no_other() {
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let (picture, sound) = (camera(), microphone(2));
        let writer = near.domain().create_grains(&picture, &BatchHints::default()).unwrap().writer;
        let mut samples = near.domain().create_samples(&sound, &BatchHints::default()).unwrap().writer;
        let key = with_key(Some("the key of the studio"));
        let mut target = Target::open_with(&far.domain(), &picture, provider, ANY, None, &key).unwrap();
        let mut of_sound = Target::open_with(&far.domain(), &sound, provider, ANY, None, &key).unwrap();
        // Strangers greet without an answer.
        for other in [None, Some("the key of another studio")] {
            let id = picture.id;
            let mut stranger =
                Initiator::open_with(&near.domain(), id, provider, ANY, &with_key(other)).unwrap();
            stranger.add(target.info()).unwrap();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(700) {
                stranger.poll().unwrap();
                target.poll().unwrap();
            }
            assert!(!stranger.is_idle() && !target.is_connected(), "{provider}, key {other:?}");
            assert_eq!(target.stats().taken, 0, "{provider}, key {other:?}");
        }
        let open = |id| Initiator::open_with(&near.domain(), id, provider, ANY, &key).unwrap();
        let mut initiator = open(picture.id);
        initiator.add(target.info()).unwrap();
        for index in 50..60 {
            let mut grain = writer.open(index).unwrap();
            let bytes: Vec<u8> = (0..grain.len()).map(|at| (index as usize * 31 + at * 7) as u8).collect();
            grain.write(0, &bytes).unwrap();
            grain.commit().unwrap();
            both(&mut initiator, &mut target, |initiator, _| initiator.is_idle());
            initiator.send(index).unwrap();
            both(
                &mut initiator,
                &mut target,
                |_, received| matches!(received, Some(Received::Grain { index: of, invalid: false, .. }) if of == index),
            );
            let reader = far.domain().read_grains(picture.id).unwrap();
            assert_eq!(reader.read(index, Wait::Not).unwrap().to_vec().unwrap(), bytes, "{provider}");
        }
        let mut initiator = open(sound.id);
        initiator.add(of_sound.info()).unwrap();
        both(&mut initiator, &mut of_sound, |initiator, _| initiator.is_idle());
        let mut batch = samples.open(48_000, 480).unwrap();
        batch.write_channel(1, &[0.25_f32; 480]).unwrap();
        batch.commit().unwrap();
        initiator.send_samples(48_000, 480).unwrap();
        both(&mut initiator, &mut of_sound, |_, received| {
            received == Some(Received::Samples { index: 48_000, count: 480 })
        });
        let mut there = [0.0_f32; 480];
        let reader = far.domain().read_samples(sound.id).unwrap();
        reader.read(48_000, 480, Wait::Not).unwrap().read_channel(1, &mut there).unwrap();
        assert_eq!(there, [0.25; 480], "{provider}");
    }
}

#[test]
fn a_key_is_not_printed_and_a_wrong_one_is_refused() {
    let options = with_key(Some("the key of the studio"));
    assert!(!format!("{options:?}").contains("studio"));
    let folder = Folder::new();
    let long = with_key(Some(&"k".repeat(65)));
    for provider in PROVIDERS {
        let opened = Target::open_with(&folder.domain(), &camera(), provider, ANY, None, &long);
        assert!(matches!(opened, Err(Error::Argument(_) | Error::Stack { .. })), "{provider}");
    }
    let definition = camera();
    let _source = folder.domain().create_grains(&definition, &BatchHints::default()).unwrap();
    let (short, flow) = (folder.path().join("short"), definition.id.to_string());
    std::fs::write(&short, " fourteen bytes\n").unwrap();
    for (key, reason) in [(short.as_path(), "this one 14"), (Path::new("/nonexistent"), "/nonexistent")] {
        let arguments = ["-i", "-f", &flow, "--key", key.to_str().unwrap()];
        let output = command(&arguments, &folder).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--key") && said.contains(reason), "{said}");
    }
}

/// What passes on the loopback. `None` without the capability for it.
fn listen() -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let heard = socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll).ok()?;
    let limit = nix::sys::time::TimeVal::new(0, 20_000);
    setsockopt(&heard, sockopt::ReceiveTimeout, &limit).unwrap();
    Some(heard)
}

fn contains(packet: &[u8], wanted: &[u8]) -> bool {
    packet.windows(wanted.len()).any(|window| window == wanted)
}

/// Whether a flow's payload is read from the network while it goes from process to process.
fn is_heard(heard: &OwnedFd, provider: &str, arguments: &[&str], encryption: &str) -> bool {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let file = far.path().join("flow.json");
    std::fs::write(&file, definition.to_json()).unwrap();
    let (info, id) = (far.path().join("info.json"), definition.id.to_string());
    let at = format!("@{}", info.display());
    let start = |own: &[&str], folder: &Folder| {
        let all = [&["-p", provider, "-n", "127.0.0.1"], own, arguments].concat();
        let mut program = command(&all, folder);
        // Between two hosts there is no shared memory.
        program.env("FI_UDP_SHARED_MEMORY", "0").env("FI_TCP_SHARED_MEMORY", "0");
        program.env("FI_UDP_ENCRYPTION", encryption);
        Running(program.spawn().unwrap())
    };
    let _receiving = start(&["-f", file.to_str().unwrap(), "-t", info.to_str().unwrap()], &far);
    let begin = Instant::now();
    while !std::fs::read_to_string(&info).is_ok_and(|text| text.ends_with('}')) {
        assert!(begin.elapsed() < LONG, "no target info");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _sending = start(&["-i", "-f", &id, "-t", &at], &near);
    // Of this flow alone: tests run side by side.
    let marked = format!("{id} is secret. ").into_bytes();
    let mut packet = vec![0; 1 << 17];
    let (mut was_heard, mut arrived) = (false, 0);
    for index in 100.. {
        let mut grain = writer.open(index).unwrap();
        let bytes: Vec<u8> = marked.iter().copied().cycle().take(grain.len()).collect();
        grain.write(0, &bytes).unwrap();
        grain.commit().unwrap();
        while let Ok(len) = recv(heard.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            was_heard |= contains(&packet[..len], &marked);
        }
        // All packets of the first ones have passed when later ones are there.
        if let Ok(reader) = far.domain().read_grains(definition.id)
            && let Ok(grain) = reader.read(reader.head(), Wait::Not)
            && !grain.info().is_invalid()
            && grain.to_vec().is_ok_and(|there| there == bytes)
        {
            arrived += 1;
        }
        if arrived == 5 {
            break;
        }
        assert!(begin.elapsed() < LONG, "{arrived} grains arrived");
    }
    was_heard
}

#[test]
fn sealed_flows_are_not_read_from_the_network() {
    let Some(heard) = listen() else {
        println!("NOT RUN: sealed_flows_are_not_read_from_the_network: no packet socket (CAP_NET_RAW)");
        return;
    };
    let folder = Folder::new();
    let key = folder.path().join("key");
    std::fs::write(&key, "the key of the studio\n").unwrap();
    let key = ["--key", key.to_str().unwrap()];
    for provider in ["udp", "tcp"] {
        assert!(is_heard(&heard, provider, &[], "auto"), "{provider}: the test hears nothing");
        assert!(!is_heard(&heard, provider, &key, "auto"), "{provider}: with a key");
    }
    assert!(!is_heard(&heard, "udp", &[], "required"), "with encryption, without a key");
}
