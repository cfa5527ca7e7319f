//! `ofi cp` between two network namespaces joined by a veth pair of 1,500 bytes, as close to two hosts as one
//! host permits: a long file, a directory of many short ones, and links that go down.

use std::fs;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use ofi_testkit::network::{Far, shell};
use ofi_testkit::process::{Child, Line};
use rustix::process::{Pid, Signal, kill_process};

use super::copies::{Folder, MIB, Running, below, errors, len, listening, ofi, ofi_under, wait_for};

const LARGE: usize = 96 * MIB;
const FILES: usize = 300;
const SERVER: &str = "10.99.7.2:7600";
/// Time limit of a copy.
const COPY_TIMEOUT: Duration = Duration::from_secs(55);

fn join_namespaces() -> Result<Far, String> {
    let far = Far::open()?;
    shell(&format!(
        "ip link add near type veth peer name far netns {}
         ip address add 10.99.7.1/24 dev near
         ip link set near up",
        far.pid()
    ))?;
    far.shell("ip address add 10.99.7.2/24 dev far; ip link set far up")?;
    Ok(far)
}

fn set(state: &str) {
    shell(&format!("ip link set near {state}")).expect("an interface of this test");
}

/// Takes the link down once `there` is true. The client is stopped meanwhile, so that it cannot finish
/// before.
fn cut(client: &Running, there: impl FnMut() -> bool) {
    wait_for("some blocks", there);
    let process = Pid::from_child(&client.0);
    kill_process(process, Signal::STOP).unwrap();
    set("down");
    kill_process(process, Signal::CONT).unwrap();
}

/// Bytes that have arrived over the link.
fn arrived() -> u64 {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap();
    let counts = table.lines().find_map(|line| line.trim().strip_prefix("near:")).expect("the link");
    counts.split_whitespace().next().unwrap().parse().unwrap()
}

fn start(folder: &Folder, arguments: &[&str], to: &str) -> Running {
    let mut command = ofi(&["get"]);
    command.args(arguments).arg(folder.at(to)).stdout(Stdio::null()).stderr(Stdio::piped());
    Running(command.spawn().unwrap())
}

/// Waits until a client has ended.
fn end(mut client: Running) -> Output {
    let limit = Instant::now() + COPY_TIMEOUT;
    while client.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < limit, "the client did not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, mut stderr) = (client.0.wait().unwrap(), Vec::new());
    std::io::Read::read_to_end(client.0.stderr.as_mut().unwrap(), &mut stderr).unwrap();
    Output { status, stdout: Vec::new(), stderr }
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", errors(output));
}

/// Runs in the near namespace.
pub fn near_end(line: &mut Line, _: &[String]) {
    let far = match join_namespaces() {
        Ok(far) => far,
        Err(why) => return line.say(format!("NOT RUN: {TEST}: {}", why.replace('\n', "; "))),
    };
    let folder = Folder::new("network");
    let large = folder.fill("served/large", LARGE);
    let served = folder.at("served");
    let command = ofi_under(&far.under(), &["serve", served.to_str().unwrap()]);
    let (_server, _) = listening(command, &["--listen", SERVER]);

    let before = arrived();
    good(&end(start(&folder, &[SERVER, "large"], "got/whole")));
    assert!(fs::read(folder.at("got/whole")).unwrap() == large);
    assert!(arrived() - before > LARGE as u64, "the file did not come over the link");
    line.say("a long file");

    for number in 0..FILES {
        folder.fill(&format!("served/sub/{number}"), number * 100);
    }
    good(&end(start(&folder, &["-r", SERVER, "sub"], "got/tree")));
    assert!(below(&folder.at("got/tree")) == below(&folder.at("served/sub")));
    line.say("a directory");

    // The link is down briefly: the same client resumes.
    let client = start(&folder, &[SERVER, "large"], "got/cut");
    cut(&client, || len(&folder.at("got/cut.ofi-journal")) > 600);
    assert!(!folder.at("got/cut").exists(), "the link went down too late");
    std::thread::sleep(Duration::from_secs(2));
    set("up");
    good(&end(client));
    assert!(fs::read(folder.at("got/cut")).unwrap() == large);
    line.say("a short cut");

    // The link is down for longer than the client's patience: the client reports an error, and the next one
    // fetches the missing blocks.
    let client = start(&folder, &[SERVER, "large", "--patience", "1"], "got/late");
    let journal = folder.at("got/late.ofi-journal");
    cut(&client, || len(&journal) > 1000);
    assert!(!folder.at("got/late").exists(), "the link went down too late");
    let output = end(client);
    // A warning of the log, which names the peer, comes before the program's own error.
    let said = errors(&output);
    assert!(!output.status.success() && said.lines().any(|line| line.starts_with("ofi: ")), "{said}");
    assert!(!folder.at("got/late").exists() && journal.exists());
    line.say("a long cut");
    set("up");
    let before = arrived();
    let output = end(start(&folder, &[SERVER, "large"], "got/late"));
    good(&output);
    assert!(fs::read(folder.at("got/late")).unwrap() == large);
    let resumed = errors(&output);
    let here = resumed.split("ofi: resuming: ").nth(1).and_then(|rest| rest.split(' ').next());
    let here: u64 = here.and_then(|here| here.parse().ok()).unwrap_or_else(|| panic!("{resumed}"));
    let came = arrived() - before;
    // Headers and resent packets are fewer bytes than the blocks that were already here.
    assert!(here > 0 && came > LARGE as u64 - here, "{came} bytes arrived, {here} were already here");
    assert!(!journal.exists());
    line.say("over");
}

const TEST: &str = "two_namespaces_copy_whatever_the_link_does";

#[test]
fn two_namespaces_copy_whatever_the_link_does() {
    if let Err(why) = shell("unshare -Urn true") {
        println!("NOT RUN: {TEST}: {why}");
        return;
    }
    let mut child = Child::start_under(&["unshare", "-Urn"], "near_end", &[], &[]);
    loop {
        let said = child.line.hear();
        println!("{said}");
        if said == "over" || said.starts_with("NOT RUN") {
            break;
        }
    }
    child.finish();
}
