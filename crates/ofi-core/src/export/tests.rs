//! The text, the directory, and readers that do not behave.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use ofi_api::Statistic;

use super::*;

struct Fake;

impl Counted for Fake {
    fn counts(&self) -> Vec<Statistic> {
        vec![Statistic { name: "tx_messages", value: 7, help: "messages sent" }]
    }

    fn histograms(&self) -> Vec<Histogram> {
        let labels = vec![("rail", "0".into()), ("provider", "u\tp".into())];
        let (name, help) = ("access_seconds", "reads and writes");
        vec![Histogram { name, help, labels, sum_us: 9, buckets: vec![1, 0, 2] }]
    }

    fn about(&self) -> About {
        About { provider: "udp".into(), domain: "a\tb\nend".into(), kind: "RDM".into(), address: "x".into() }
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ofi-export-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn names_that_a_program_chose_cannot_break_a_line() {
    let text = snapshot::text(&[Arc::new(Fake)]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with(&format!("ofi-statistics\t1\t{}\t", std::process::id())), "{text}");
    assert_eq!(lines[1], "endpoint\tudp\ta\\tb\\nend\tRDM\tx");
    assert_eq!(lines[2], "tx_messages\t7\tmessages sent");
    let histogram = "histogram\taccess_seconds\trail=0;provider=u\\tp\t9\t1,0,2\treads and writes";
    assert_eq!(lines[3..], [histogram, "end"]);
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    let user = crate::sys::effective_user();
    let folder = folder("open");
    socket::prepare(&folder, user).unwrap();
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    socket::prepare(&folder, user).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711)).unwrap();
    let refused = socket::prepare(&folder, user).unwrap_err();
    assert!(refused.to_string().contains("chmod 700"), "{refused}");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(socket::prepare(&folder, user + 1).is_err(), "another user's");
    let link = folder.join("link");
    symlink(&folder, &link).unwrap();
    assert!(socket::prepare(&link, user).is_err(), "a link");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn sockets_that_were_left_behind_are_swept_and_living_ones_stay() {
    let folder = folder("sweep");
    socket::prepare(&folder, crate::sys::effective_user()).unwrap();
    let (dead, alive) = (folder.join("1.sock"), folder.join("2.sock"));
    drop(UnixListener::bind(&dead).unwrap());
    let _living = UnixListener::bind(&alive).unwrap();
    let _ours = socket::listen(&folder).unwrap();
    assert!(!dead.exists() && alive.exists());
    assert!(folder.join(format!("{}.sock", std::process::id())).exists());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_reader_that_takes_nothing_costs_its_patience_and_no_more() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let text = vec![b'x'; 8 << 20];
    let begin = Instant::now();
    let failed = socket::send(&ours, &text, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(failed.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{failed}");
    assert!(begin.elapsed() >= Duration::from_millis(50));
    drop(theirs);
    assert!(socket::send(&ours, &text, Duration::from_secs(60)).is_err(), "a reader that went away");
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).map(|_| all.len())
    });
    socket::send(&ours, &text, Duration::from_secs(60)).unwrap();
    drop(ours);
    assert_eq!(reader.join().unwrap().unwrap(), text.len());
}
