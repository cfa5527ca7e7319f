//! `ofi cp` in two processes: copies, interruptions at either end, keys, and foreign clients and servers.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use ofi::{Connection, Hints, Listener};

use super::copies::{Folder, LIMIT, MIB, OFI, Running, below, errors, len, ofi, serve, wait_for};

fn local(folder: &Folder) -> (Running, String) {
    serve(folder, &["--listen", "127.0.0.1:0"])
}

fn get(folder: &Folder, address: &str, file: &str, arguments: &[&str]) -> Output {
    let destination = folder.at("got");
    let mut command = ofi(&["get", address, file, destination.to_str().unwrap()]);
    command.args(arguments).output().expect("the client runs")
}

#[test]
fn files_of_every_length_arrive_whole_over_both_providers() {
    for (provider, arguments) in [("udp", &["--listen", "127.0.0.1:0"][..]), ("shm", &["-p", "shm"])] {
        let folder = Folder::new(provider);
        let (_server, address) = serve(&folder, arguments);
        for (place, size) in [0, 1, MIB - 1, MIB, 5 * MIB + 17].into_iter().enumerate() {
            let content = folder.fill(&format!("served/sub/{place}"), size);
            let output = get(&folder, &address, &format!("sub/{place}"), &["-p", provider]);
            assert!(output.status.success(), "{provider} {size}: {}", errors(&output));
            assert!(fs::read(folder.at(&format!("got/{place}"))).unwrap() == content, "{provider} {size}");
        }
        let again = get(&folder, &address, "sub/1", &["-p", provider]);
        assert!(!again.status.success() && errors(&again).contains("--force"), "{}", errors(&again));
        assert!(get(&folder, &address, "sub/1", &["-p", provider, "--force"]).status.success());
        assert_eq!(
            fs::read_dir(folder.at("got")).unwrap().count(),
            5,
            "temporary files are left beside the files"
        );
    }
}

#[test]
fn a_killed_client_goes_on_where_it_was() {
    let folder = Folder::new("client");
    let content = folder.fill("served/large", 160 * MIB);
    let (_server, address) = local(&folder);
    let mut command = ofi(&["get", &address, "large", folder.at("got").to_str().unwrap(), "-n", "2"]);
    let mut client = Running(command.spawn().unwrap());
    let journal = folder.at("got/large.ofi-journal");
    wait_for("some blocks", || len(&journal) > 600);
    client.kill();
    assert!(!folder.at("got/large").exists(), "the file exists before it is complete");
    let output = get(&folder, &address, "large", &[]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(errors(&output).contains("ofi: resuming: "), "{}", errors(&output));
    assert!(fs::read(folder.at("got/large")).unwrap() == content);
    assert!(!journal.exists());
}

#[test]
fn a_killed_server_comes_back_and_the_same_client_goes_on() {
    let folder = Folder::new("server");
    let content = folder.fill("served/large", 160 * MIB);
    let (mut server, address) = local(&folder);
    let mut command = ofi(&["get", &address, "large", folder.at("got").to_str().unwrap(), "-n", "2"]);
    let mut client = Running(command.spawn().unwrap());
    wait_for("some blocks", || len(&folder.at("got/large.ofi-journal")) > 600);
    server.kill();
    assert!(client.0.try_wait().unwrap().is_none(), "the client gave up");
    let place = address.rsplit("//").next().unwrap();
    let (_server, again) = serve(&folder, &["--listen", place]);
    assert_eq!(again, address);
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = client.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "the client did not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success());
    assert!(fs::read(folder.at("got/large")).unwrap() == content);
}

#[test]
fn nothing_outside_the_directory_is_handed_out_and_the_client_says_why() {
    let folder = Folder::new("paths");
    fs::write(folder.at("secret"), "secret").unwrap();
    symlink("../secret", folder.at("served/link")).unwrap();
    let (_server, address) = local(&folder);
    for file in ["../secret", "link", "/etc/passwd", "sub/../../secret", "sub", "nothing"] {
        let target = folder.at("got/target");
        let output = ofi(&["get", &address, file, target.to_str().unwrap()]).output().unwrap();
        assert!(
            !output.status.success() && errors(&output).contains("the server: "),
            "{file}: {}",
            errors(&output)
        );
        assert!(!target.exists());
    }
    assert_eq!(fs::read_dir(folder.at("got")).unwrap().count(), 0);
}

#[test]
fn clients_that_talk_nonsense_are_answered_or_dropped_and_others_are_served() {
    let folder = Folder::new("hostile");
    let content = folder.fill("served/file", 3 * MIB);
    let (_server, address) = local(&folder);
    let hints = Hints::new().provider("udp");
    let to = address.parse().unwrap();
    assert!(Connection::open(&hints, &to, b"another protocol", LIMIT).is_err());
    let connect = || Connection::open(&hints, &to, b"ofi-cp 2", LIMIT).expect("it accepts");
    let requests: [&[u8]; 6] = [
        b"",
        b"\xff\xfe\xb1",
        b"{\"read\":0}",
        b"{\"open\":\"../secret\"}",
        b"{\"read\":18446744073709551615}",
        b"{\"open\":{\"open\":[[[[[[[[[[",
    ];
    for request in requests {
        let connection = connect();
        connection.recv(vec![0; 16 << 10]).unwrap();
        connection.send(request.to_vec()).unwrap();
        for _ in 0..2 {
            let done = connection.wait(LIMIT).unwrap().expect("an answer");
            assert!(done.result.is_ok(), "{done:?}");
            if done.flags.contains(ofi::CompletionFlags::RECV) {
                assert!(done.bytes().starts_with(b"{\"refused\""), "{request:?}: {done:?}");
            }
        }
    }
    // A message too long for any request, and a client that requests data and does not receive it.
    let connection = connect();
    connection.send(vec![b'x'; MIB]).unwrap();
    let greedy = connect();
    greedy.send(b"{\"open\":\"file\"}".to_vec()).unwrap();
    for _ in 0..6 {
        greedy.send(b"{\"read\":0}".to_vec()).unwrap();
    }
    let output = get(&folder, &address, "file", &[]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(fs::read(folder.at("got/file")).unwrap() == content);
}

#[test]
fn a_key_lets_those_in_who_have_it() {
    let folder = Folder::new("key");
    let content = folder.fill("served/file", 2 * MIB);
    for (name, key) in [("key", "0123456789abcdef\n"), ("other", "another key of 16"), ("short", "short")] {
        fs::write(folder.at(name), key).unwrap();
    }
    let path = |name: &str| folder.at(name).to_str().unwrap().to_string();
    let (_server, address) = serve(&folder, &["--listen", "127.0.0.1:0", "--key", &path("key")]);
    for arguments in [&["--key", &path("other"), "--patience", "1"][..], &["--patience", "1"]] {
        let output = get(&folder, &address, "file", arguments);
        assert!(!output.status.success(), "{arguments:?}");
    }
    assert!(errors(&get(&folder, &address, "file", &["--key", &path("short")])).contains("16 bytes"));
    let output = get(&folder, &address, "file", &["--key", &path("key")]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(fs::read(folder.at("got/file")).unwrap() == content);
}

#[test]
fn a_file_that_changes_meanwhile_is_not_mixed() {
    let folder = Folder::new("changes");
    folder.fill("served/large", 160 * MIB);
    let (_server, address) = local(&folder);
    let mut command = ofi(&["get", &address, "large", folder.at("got").to_str().unwrap(), "-n", "2"]);
    let mut client = Running(command.stderr(Stdio::null()).spawn().unwrap());
    wait_for("some blocks", || len(&folder.at("got/large.ofi-journal")) > 600);
    let content = folder.fill("served/large", 3 * MIB);
    assert!(!client.0.wait().unwrap().success(), "the file changed during the copy");
    assert!(!folder.at("got/large").exists());
    let output = get(&folder, &address, "large", &[]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(fs::read(folder.at("got/large")).unwrap() == content);
}

/// Copies a directory into `got`, with everything below it.
fn get_all(folder: &Folder, address: &str, dir: &str, arguments: &[&str]) -> Output {
    let mut command = ofi(&["get", "-r", address, dir, folder.at("got").to_str().unwrap()]);
    command.args(arguments).output().expect("the client runs")
}

#[test]
fn a_directory_arrives_with_everything_below_it() {
    for (provider, arguments) in [("udp", &["--listen", "127.0.0.1:0"][..]), ("shm", &["-p", "shm"])] {
        let folder = Folder::new(&format!("tree-{provider}"));
        fs::create_dir_all(folder.at("served/tree/a/b/empty")).unwrap();
        for (path, size) in [("top", 3), ("a/none", 0), ("a/b/large", 6 * MIB + 1), ("a/b/one", MIB)] {
            folder.fill(&format!("served/tree/{path}"), size);
        }
        // More names than fit into one answer.
        (0..200).for_each(|number| drop(folder.fill(&format!("served/tree/a/{number:0>80}"), number)));
        let expected = below(&folder.at("served/tree"));
        fs::write(folder.at("secret"), "secret").unwrap();
        symlink(folder.at("secret"), folder.at("served/tree/a/link")).unwrap();
        symlink(folder.at("served"), folder.at("served/tree/up")).unwrap();
        let (_server, address) = serve(&folder, arguments);
        let output = get_all(&folder, &address, "tree", &["-p", provider]);
        assert!(output.status.success(), "{provider}: {}", errors(&output));
        assert!(errors(&output).contains("2 entries were not copied"), "{}", errors(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("tree: 204 files, "), "{output:?}");
        assert!(
            below(&folder.at("got")) == expected,
            "{provider}: the copy differs, or temporary files are left"
        );
        let again = get_all(&folder, &address, "tree", &["-p", provider]);
        assert!(!again.status.success() && errors(&again).contains("--force"), "{}", errors(&again));
        fs::write(folder.at("got/top"), "another").unwrap();
        assert!(get_all(&folder, &address, "tree/", &["-p", provider, "--force"]).status.success());
        assert!(below(&folder.at("got")) == expected, "{provider}");
        for bad in ["..", "tree/../..", "/", "nothing", "tree/top", "tree/a/link"] {
            let output = get_all(&folder, &address, bad, &["-p", provider]);
            let said = errors(&output);
            assert!(!output.status.success() && said.contains("the server: "), "{bad}: {said}");
        }
    }
}

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A file's permission bits and its time of modification.
fn properties(path: &Path) -> (u32, SystemTime) {
    let found = fs::metadata(path).unwrap();
    (found.mode() & 0o7777, found.modified().unwrap())
}

#[test]
fn modes_are_copied_less_the_umask_and_with_preserve_all_of_them_and_times() {
    let folder = Folder::new("modes");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::create_dir(folder.at("served/sub/shut")).unwrap();
    for (path, mode) in [("sub/program", 0o4775), ("sub/shut/secret", 0o600), ("sub/shut/open", 0o666)] {
        folder.fill(&format!("served/{path}"), 2 * MIB);
        permit(&folder.at(&format!("served/{path}")), mode);
        fs::File::open(folder.at(&format!("served/{path}"))).unwrap().set_modified(long_ago).unwrap();
    }
    permit(&folder.at("served/sub/shut"), 0o577);
    fs::File::open(folder.at("served/sub/shut")).unwrap().set_modified(long_ago).unwrap();
    let (_server, address) = local(&folder);
    let copy = |to: &str, preserve: bool| {
        let mut command = Command::new("sh");
        let preserve = if preserve { "--preserve" } else { "--quiet" };
        let to = folder.at(to);
        command.args(["-c", "umask 027; exec \"$@\"", "sh", OFI, "cp", "get", "-r", &address, "sub"]);
        let output = command.arg(&to).arg(preserve).env("FI_UDP_SHARED_MEMORY", "0").output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        ["program", "shut/secret", "shut/open", "shut"].map(|path| properties(&to.join(path)))
    };
    let usual = copy("got/usual", false);
    // The copied folder is always writable by its owner.
    assert_eq!(usual.map(|(mode, _)| mode), [0o750, 0o600, 0o640, 0o750]);
    assert!(usual.iter().all(|(_, time)| *time > long_ago + Duration::from_secs(1)));
    let all = copy("got/all", true);
    assert_eq!(all.map(|(mode, _)| mode), [0o775, 0o600, 0o666, 0o577], "all mode bits but set-user-ID");
    assert_eq!(all.map(|(_, time)| time), [long_ago; 4]);
    permit(&folder.at("got/all/shut"), 0o700);
}

#[test]
fn a_short_file_takes_one_round_trip() {
    let folder = Folder::new("short");
    let listener = Listener::open_at(&Hints::new().provider("udp"), "127.0.0.1", "0").unwrap();
    let address = listener.name().unwrap().to_string();
    let mut command = ofi(&["get", &address, "name", folder.at("got/file").to_str().unwrap(), "-n", "1"]);
    let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let incoming = listener.wait(LIMIT).unwrap().expect("a request");
    let connection = incoming.accept(b"ofi-cp 2", LIMIT).expect("it connects");
    let mut requests = Vec::new();
    connection.recv(vec![0; 16 << 10]).unwrap();
    while let Ok(Some(done)) = connection.wait(LIMIT) {
        if done.result.is_err() {
            break;
        }
        if done.flags.contains(ofi::CompletionFlags::RECV) {
            requests.push(String::from_utf8(done.bytes().to_vec()).unwrap());
            let kept = "{\"mode\":384,\"modified\":0,\"nanos\":0}";
            let opened = format!("{{\"opened\":{{\"len\":5,\"version\":\"1\",\"kept\":{kept}}}}}");
            let hash = blake3::hash(b"hello");
            let block = [&[0xb1][..], &0_u64.to_le_bytes(), hash.as_bytes(), b"hello"].concat();
            connection.send(opened.into_bytes()).unwrap();
            connection.send(block).unwrap();
            let _ = connection.recv(vec![0; 16 << 10]);
        }
    }
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(requests, ["{\"fetch\":\"name\"}"]);
    assert_eq!(fs::read(folder.at("got/file")).unwrap(), b"hello");
}

/// Long and short files alternate: a long message may complete after the short ones behind it, and all have
/// block 0.
#[test]
fn short_files_are_requested_ahead_and_not_mixed() {
    const FILES: usize = 64;
    let content = |number: usize| vec![number as u8; if number.is_multiple_of(2) { 900_000 } else { 5 }];
    let folder = Folder::new("ahead");
    let listener = Listener::open_at(&Hints::new().provider("udp"), "127.0.0.1", "0").unwrap();
    let address = listener.name().unwrap().to_string();
    let mut command = ofi(&["get", "-r", &address, ".", folder.at("got").to_str().unwrap(), "-n", "1"]);
    let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let entries: Vec<_> =
        (0..FILES).map(|number| format!("{{\"name\":\"{number:02}\",\"dir\":false}}")).collect();
    let listed =
        format!("{{\"listed\":{{\"entries\":[{}],\"more\":false,\"skipped\":0}}}}", entries.join(","));
    let (mut held, mut fetched) = (Vec::new(), 0);
    // The first connection is for the listing.
    for _ in 0..2 {
        let incoming = listener.wait(LIMIT).unwrap().expect("a request");
        let connection = incoming.accept(b"ofi-cp 2", LIMIT).expect("it connects");
        for _ in 0..8 {
            connection.recv(vec![0; 16 << 10]).unwrap();
        }
        while let Ok(Some(done)) = connection.wait(LIMIT) {
            if done.result.is_err() {
                break;
            }
            if !done.flags.contains(ofi::CompletionFlags::RECV) {
                continue;
            }
            let request = String::from_utf8(done.bytes().to_vec()).unwrap();
            let _ = connection.recv(vec![0; 16 << 10]);
            if request.starts_with("{\"list\"") {
                connection.send(listed.clone().into_bytes()).unwrap();
                continue;
            }
            let name = request.strip_prefix("{\"fetch\":\"").and_then(|rest| rest.strip_suffix("\"}"));
            held.push(name.unwrap_or_else(|| panic!("{request}")).parse::<usize>().unwrap());
            fetched += 1;
            // The server answers only when four files are requested.
            if fetched < 4 {
                continue;
            }
            for number in held.drain(..) {
                let content = content(number);
                let kept = "{\"mode\":384,\"modified\":0,\"nanos\":0}";
                let len = content.len();
                let opened = format!("{{\"opened\":{{\"len\":{len},\"version\":\"1\",\"kept\":{kept}}}}}");
                let hash = blake3::hash(&content);
                let head = [&[0xb1][..], &0_u64.to_le_bytes(), hash.as_bytes()].concat();
                connection.send(opened.into_bytes()).unwrap();
                connection.send([head, content].concat()).unwrap();
            }
        }
    }
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(fetched, FILES);
    for number in 0..FILES {
        assert!(fs::read(folder.at(&format!("got/{number:02}"))).unwrap() == content(number), "{number}");
    }
}

#[test]
fn a_directory_that_was_cut_goes_on_with_each_file() {
    let folder = Folder::new("tree-cut");
    for name in ["a", "b", "c", "d", "sub/e"] {
        folder.fill(&format!("served/{name}"), 40 * MIB);
    }
    let (_server, address) = local(&folder);
    let mut command = ofi(&["get", "-r", &address, ".", folder.at("got").to_str().unwrap(), "-n", "2"]);
    let mut client = Running(command.spawn().unwrap());
    let there = |name: &str| folder.at(&format!("got/{name}")).exists();
    let whole = || ["a", "b", "c", "d", "sub/e"].into_iter().filter(|name| there(name)).collect::<Vec<_>>();
    let in_part = || ["a", "b", "c", "d", "sub/e"].iter().any(|name| there(&format!("{name}.ofi-part")));
    wait_for("a file, and a part of another", || !whole().is_empty() && in_part());
    client.kill();
    let before: Vec<_> = whole()
        .into_iter()
        .map(|name| (name, fs::metadata(folder.at(&format!("got/{name}"))).unwrap().ino()))
        .collect();
    assert!(!before.is_empty() && before.len() < 5, "the client was not killed in the middle: {before:?}");
    // A copied file that has changed at the server is fetched again, even without --force.
    let changed = before[0].0;
    folder.fill(&format!("served/{changed}"), 2 * MIB);
    let output = get_all(&folder, &address, ".", &[]);
    assert!(output.status.success(), "{}", errors(&output));
    let resumed = format!("ofi: resuming: {} of 5 files are here", before.len());
    assert!(errors(&output).contains(&resumed), "{}", errors(&output));
    assert!(below(&folder.at("got")) == below(&folder.at("served")));
    for (name, inode) in before {
        let now = fs::metadata(folder.at(&format!("got/{name}"))).unwrap().ino();
        assert!((now == inode) == (name != changed), "{name}: only the changed file is fetched again");
    }
}

#[test]
fn a_link_in_the_destination_is_not_followed() {
    let folder = Folder::new("tree-link");
    folder.fill("served/sub/file", 100);
    fs::create_dir(folder.at("outside")).unwrap();
    symlink(folder.at("outside"), folder.at("got/sub")).unwrap();
    let (_server, address) = local(&folder);
    for arguments in [&[][..], &["--force"]] {
        let output = get_all(&folder, &address, ".", arguments);
        assert!(!output.status.success() && errors(&output).contains("link"), "{}", errors(&output));
    }
    assert_eq!(fs::read_dir(folder.at("outside")).unwrap().count(), 0);
}

/// A hostile server sends names that lead out of the folder, unsorted listings, and endless ones.
#[test]
fn names_and_lists_that_a_server_makes_up_are_refused() {
    let listed = |entries: &str, more: bool| {
        format!("{{\"listed\":{{\"entries\":[{entries}],\"more\":{more},\"skipped\":0}}}}")
    };
    let entry = |name: &str, dir: bool| format!("{{\"name\":\"{name}\",\"dir\":{dir}}}");
    let mut answers: Vec<String> = ["../evil", "..", "/tmp/evil", ".", "a/../../evil", "a\\u0000", ""]
        .iter()
        .flat_map(|name| [listed(&entry(name, false), false), listed(&entry(name, true), false)])
        .collect();
    answers.push(listed("", true));
    answers.push(listed(&[entry("b", false), entry("a", false)].join(","), false));
    answers.push(listed(&[entry("a", false), entry("a", true)].join(","), false));
    answers.push(listed(&entry("a", true), false)); // without end: a/a/a...
    answers.push("{\"opened\":{\"len\":1,\"version\":\"\"}}".into());
    answers.push("nonsense".into());
    let folder = Folder::new("tree-hostile");
    let hints = Hints::new().provider("udp");
    let listener = Listener::open_at(&hints, "127.0.0.1", "0").unwrap();
    let address = listener.name().unwrap().to_string();
    for answer in answers {
        let mut command = ofi(&["get", "-r", &address, ".", folder.at("got/in").to_str().unwrap()]);
        let client =
            command.args(["--patience", "1"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let incoming = listener.wait(LIMIT).unwrap().expect("a request");
        let connection = incoming.accept(b"ofi-cp 2", LIMIT).expect("it connects");
        connection.recv(vec![0; 16 << 10]).unwrap();
        while let Ok(Some(done)) = connection.wait(Duration::from_millis(500)) {
            if done.result.is_err() {
                break;
            }
            let asks = done.flags.contains(ofi::CompletionFlags::RECV);
            if asks
                && (connection.recv(vec![0; 16 << 10]).is_err()
                    || connection.send(answer.clone().into_bytes()).is_err())
            {
                break;
            }
        }
        let output = client.wait_with_output().unwrap();
        let said = errors(&output);
        assert!(!output.status.success() && said.contains("data is damaged"), "{answer}: {said}");
        assert!(!folder.at("got/in").exists() && below(&folder.at("got")).is_empty(), "{answer}");
    }
    assert!(!folder.at("evil").exists() && !Path::new("/tmp/evil").exists());
}
