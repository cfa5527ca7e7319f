//! Links to the one file, as they are installed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const FILE: &str = env!("CARGO_BIN_EXE_ofi-programs");
const NAMES: [&str; 14] = [
    "ofi",
    "fi_info",
    "fi_pingpong",
    "fi_dump",
    "fi_write_demo",
    "mr-topo",
    "mr-bench",
    "mxl-info",
    "mxl-generate",
    "mxl-view",
    "mxl-fabrics-info",
    "mxl-fabrics-demo",
    "mxl-gateway",
    "mxl-bench",
];

/// A folder beside the file, since hard links stay within a file system, with a link by each name.
fn links(test: &str) -> PathBuf {
    let folder = PathBuf::from(FILE).with_file_name(format!("links-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for name in NAMES {
        fs::hard_link(FILE, folder.join(name)).unwrap();
    }
    folder
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_link_runs_the_program_that_it_is_named_after() {
    let folder = links("names");
    for name in NAMES {
        let output = Command::new(folder.join(name)).arg("--help").output().unwrap();
        let usage = format!("Usage: {name}");
        assert!(output.status.success() && text(&output).contains(&usage), "{name}: {output:?}");
    }
    // The caller's name for the program is no name of one of ours: the file's counts.
    let output = Command::new(folder.join("fi_info")).arg0("renamed").arg("--version").output().unwrap();
    assert!(output.status.success() && text(&output).contains("fi_info"), "{output:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_that_starts_itself_again_remains_that_program() {
    let folder = links("again");
    // The demo runs a second process of itself.
    let demo = ["--ladder", "--page-size=64K", "--pages=1", "--provider", "shm"];
    let output = Command::new(folder.join("fi_write_demo")).args(demo).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_program_has_a_man_page_and_completions() {
    let folder = PathBuf::from(FILE).with_file_name(format!("pages-{}", std::process::id()));
    let output = Command::new(FILE).arg("pages").arg(&folder).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for name in NAMES {
        for file in [format!("man/man1/{name}.1"), format!("bash/{name}.bash"), format!("fish/{name}.fish")] {
            let page =
                fs::read_to_string(folder.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(page.contains(name), "{file}");
        }
        assert!(folder.join(format!("zsh/_{name}")).exists(), "{name}");
    }
    assert!(folder.join("man/man1/mxl-gateway-mirror.1").exists());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn another_name_lists_the_programs() {
    let output = Command::new(FILE).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(NAMES.iter().all(|name| text(&output).contains(name)), "{output:?}");
}
