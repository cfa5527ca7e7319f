//! `mxl-fabrics-info`, run by a user who looks for an address.

use std::process::{Command, Output};

fn info(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mxl-fabrics-info")).args(arguments).output().unwrap()
}

#[test]
fn the_program_lists_chooses_and_says_what_is_wrong() {
    let all = info(&["--json"]);
    assert!(all.status.success());
    let all: serde_json::Value = serde_json::from_slice(&all.stdout).unwrap();
    let all = all.as_array().unwrap();
    let over = |name: &str| all.iter().filter(|entry| entry["provider"] == name).count();
    assert!(over("shm") == 1 && over("tcp") > 0, "{all:?}");

    let home = info(&["-p", "tcp", "-n", "127.0.0.1", "-v", "-d", "/tmp"]);
    let home = String::from_utf8(home.stdout).unwrap();
    assert!(home.starts_with("interface tcp-0\n") && home.contains("node:          127.0.0.1\n"), "{home}");
    assert_eq!(home.matches("interface ").count(), 1, "{home}");

    let none = info(&["-n", "203.0.113.77"]);
    assert!(none.status.code() == Some(1) && none.stdout.is_empty(), "{none:?}");
    let why = String::from_utf8_lossy(&none.stderr);
    assert!(why.contains("No matching interfaces") && why.contains("127.0.0.1"), "{why}");
    // Programs get an empty list, and the status.
    let none = info(&["-n", "203.0.113.77", "--json"]);
    assert!(none.status.code() == Some(1) && none.stdout == b"[]\n", "{none:?}");
    // The user's own setting stands in the way.
    let mut refused = Command::new(env!("CARGO_BIN_EXE_mxl-fabrics-info"));
    let refused = refused.args(["-p", "tcp"]).env("FI_PROVIDER", "shm").output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && why.contains("tcp: FI_PROVIDER"), "{refused:?}");

    for (wrong, why) in [(["-p", "pigeon"], "pigeon"), (["-d", "/no/such/domain"], "not a directory")] {
        let refused = info(&wrong);
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
    }
}
