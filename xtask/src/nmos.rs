//! `cargo xtask nmos`: our NMOS Node in a registry that others wrote, Streampunk's ledger, from npm.

use std::path::PathBuf;

use crate::chores::{self, Node};
use crate::step::{Report, cargo, command, not_run, run, target_dir};

/// The package. One of its dependencies is named by an address of git: npm's copy of it stands in.
const PACKAGE: &str = include_str!("nmos/package.json");
/// All that it needs, with versions and digests (`npm install --package-lock-only --ignore-scripts`).
const LOCK: &str = include_str!("nmos/package-lock.json");
const WHAT: &str = "NMOS beside a registry of others";

/// Installs the registry below `target/` once, and runs the test with it.
pub fn test(report: &mut Report) {
    report.add(WHAT, || {
        let found = chores::node().and_then(|node| Ok((installed(&node)?, node.node)));
        let (ledger, node) = match found {
            Ok(found) => found,
            Err(why) => return not_run(WHAT, &why),
        };
        let mut tests = cargo(&["test", "--quiet", "--package", "mxl-nmos", "--test", "ledger"]);
        run(tests.env("OFI_NMOS_LEDGER", ledger).env("OFI_NMOS_NODE", node))
    });
}

/// The registry's program.
///
/// # Errors
/// The reason why there is none.
fn installed(node: &Node) -> Result<PathBuf, String> {
    let home = target_dir("nmos");
    let complete = home.join("complete");
    let program = home.join("node_modules/nmos-ledger/bin/nmos-ledger");
    if std::fs::read_to_string(&complete).is_ok_and(|found| found == LOCK) {
        return Ok(program);
    }
    std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    for (name, text) in [("package.json", PACKAGE), ("package-lock.json", LOCK)] {
        let file = home.join(name);
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    // Nothing that it brings is run at its installation.
    let mut npm = command(&node.npm[0]);
    npm.args(&node.npm[1..])
        .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"])
        .current_dir(&home);
    run(&mut npm)
        .map_err(|why| format!("nmos-ledger could not be installed ({why}); is npm's registry reachable?"))?;
    std::fs::write(&complete, LOCK).map_err(|error| format!("{}: {error}", complete.display()))?;
    Ok(program)
}
