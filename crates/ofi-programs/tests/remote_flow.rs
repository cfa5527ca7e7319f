//! The commands of the page on media flows that send a picture from one network namespace to another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = env!("CARGO_BIN_EXE_ofi-programs");
const PROGRAMS: [&str; 3] = ["mxl-generate", "mxl-gateway", "mxl-view"];
/// The page waits this long for the flow.
const PAUSE: &str = "sleep 5\n";
/// The test waits until a picture is there, since a debug build on a busy machine takes longer.
const UNTIL_PICTURE: &str =
    "for try in $(seq 60); do mxl-view -d /dev/shm/b -f 5fbec3b1-1b0f-417d-9059-8b94a47197ed -o early.png && break
    sleep 1; done\n";

/// A folder beside the file, since hard links stay within a file system. It is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = PathBuf::from(FILE).with_file_name(format!("remote-flow-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for name in PROGRAMS {
            fs::hard_link(FILE, path.join(name)).unwrap();
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The shell block of the page.
fn block() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mxl.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("A remote flow in one command\n"));
    let block = section.unwrap().split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(block.contains(PAUSE), "{block}");
    block.replace(PAUSE, UNTIL_PICTURE)
}

/// `sh` with namespaces of its own, whose processes end with it.
fn apart(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-ec",
        script,
    ]);
    command
}

#[test]
fn the_page_sends_a_picture_between_two_namespaces() {
    // Names of namespaces are files below /run, and domains are below /dev/shm: of this test alone.
    let prepare =
        "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm; ip netns add try; ip netns delete try; ";
    let tried = apart(prepare).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        println!("NOT RUN: the_page_sends_a_picture_between_two_namespaces: no namespaces: {tried:?}");
        return;
    }
    let folder = Folder::new();
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap_or_default());
    let script = [prepare, &block()].concat();
    let output = apart(&script).current_dir(&folder.0).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("5fbec3b1-1b0f-417d-9059-8b94a47197ed  video/v210 "), "{said}");
    let picture = fs::read(folder.0.join("frame.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.len() > 1000, "{} bytes", picture.len());
}
