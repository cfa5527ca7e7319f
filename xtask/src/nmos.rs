//! `cargo xtask nmos`: our NMOS Node in a registry that others wrote, Streampunk's ledger, from npm.

use std::path::PathBuf;

use crate::step::{Report, answers, cargo, command, not_run, run, target_dir};

/// The package. One of its dependencies is named by an address of git: npm's copy of it stands in.
const PACKAGE: &str = r#"{
  "name": "nmos-registry", "private": true,
  "dependencies": { "nmos-ledger": "1.0.20" },
  "overrides": { "mdns-js": "npm:mdns-js@1.0.3" }
}
"#;
const WHAT: &str = "NMOS beside a registry of others";

/// Installs the registry below `target/` once, and runs the test with it.
pub fn test(report: &mut Report) {
    report.add(WHAT, || {
        if !answers("node", &["--version"]) || !answers("npm", &["--version"]) {
            return not_run(WHAT, "no node with npm (apt-get install npm)");
        }
        let ledger = match installed() {
            Ok(ledger) => ledger,
            Err(why) => return not_run(WHAT, &why),
        };
        let mut tests = cargo(&["test", "--quiet", "--package", "mxl-nmos", "--test", "ledger"]);
        run(tests.env("OFI_NMOS_LEDGER", ledger))
    });
}

/// The registry's program.
///
/// # Errors
/// The reason why there is none.
fn installed() -> Result<PathBuf, String> {
    let home = target_dir("nmos");
    let (complete, manifest) = (home.join("complete"), home.join("package.json"));
    let program = home.join("node_modules/nmos-ledger/bin/nmos-ledger");
    if std::fs::read_to_string(&complete).is_ok_and(|found| found == PACKAGE) {
        return Ok(program);
    }
    std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    std::fs::write(&manifest, PACKAGE).map_err(|error| format!("{}: {error}", manifest.display()))?;
    // Nothing that it brings is run at its installation.
    let mut npm = command("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]).current_dir(&home);
    run(&mut npm)
        .map_err(|why| format!("nmos-ledger could not be installed ({why}); is npm's registry reachable?"))?;
    std::fs::write(&complete, PACKAGE).map_err(|error| format!("{}: {error}", complete.display()))?;
    Ok(program)
}
