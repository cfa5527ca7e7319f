//! The command lines in the documents use only options that the programs have.

use super::documents::{Helps, Program, check, commands};

const PROGRAMS: [Program; 7] = [
    ("ofi", env!("CARGO_BIN_EXE_ofi")),
    ("fi_info", env!("CARGO_BIN_EXE_fi_info")),
    ("fi_pingpong", env!("CARGO_BIN_EXE_fi_pingpong")),
    ("fi_dump", env!("CARGO_BIN_EXE_fi_dump")),
    ("fi_write_demo", env!("CARGO_BIN_EXE_fi_write_demo")),
    ("mr-topo", env!("CARGO_BIN_EXE_mr-topo")),
    ("mr-bench", env!("CARGO_BIN_EXE_mr-bench")),
];

#[test]
fn every_documented_option_exists() {
    check(&PROGRAMS, 60);
}

#[test]
fn an_option_that_does_not_exist_is_found() {
    let text = "`ofi cp get --patience 5` and\n```sh\nA=1 ofi cp serve . --nothing # no\ncargo run --bin mr-topo -- -z\nls\n```\n";
    let found: Vec<_> =
        commands(text).iter().filter_map(|command| Helps::default().unknown(&PROGRAMS, command)).collect();
    assert_eq!(found, [vec![], vec!["--nothing".to_string()], vec!["-z".to_string()]]);
}
