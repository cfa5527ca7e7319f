//! Checks of the workspace as a whole: the compiler that it promises, the licences and sources of its dependencies,
//! dependencies that nobody uses.

use crate::StepResult;
use crate::step::{Outcome, Report, answers, cargo, not_run, output, run};

/// As the workspace's `rust-version`.
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// All of them.
pub fn check(report: &mut Report) {
    report.add("rust-version", rust_version);
    report.add("licences and sources", deny);
    report.add("unused dependencies", machete);
}

/// The oldest compiler that manifests promise compiles everything. Mostly that is the one that runs this.
fn rust_version() -> StepResult {
    let version = output(&mut cargo(&["--version"]))?;
    if is_of(&version, RUST) {
        return Ok(Outcome::Passed); // everything else here was compiled by it
    }
    let oldest = format!("+{RUST}");
    if !answers("cargo", &[&oldest, "--version"]) {
        let why =
            format!("this is {}, and rustup has no {RUST} (rustup toolchain install {RUST})", version.trim());
        return not_run("rust-version", &why);
    }
    // By rustup's cargo, which knows other compilers; the one that runs this does not.
    let args =
        [&*oldest, "check", "--workspace", "--all-targets", "--quiet", "--target-dir", "target/rust-version"];
    run(crate::step::command("cargo").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").args(args))
}

/// Whether `cargo 1.95.0 (…)` is of version `1.95`.
fn is_of(told: &str, version: &str) -> bool {
    let number = told.split_whitespace().nth(1).unwrap_or_default();
    number.strip_prefix(version).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// `deny.toml`. Advisories are left out: their list is on a host that CI does not reach.
fn deny() -> StepResult {
    if !answers("cargo-deny", &["--version"]) {
        return not_run("cargo-deny", "not installed (cargo install cargo-deny)");
    }
    run(&mut cargo(&["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]))
}

fn machete() -> StepResult {
    if !answers("cargo-machete", &["--version"]) {
        return not_run("cargo-machete", "not installed (cargo install cargo-machete)");
    }
    run(&mut cargo(&["machete"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::TOOLS;
    use crate::step::root;

    #[test]
    fn a_compiler_is_of_its_version_and_of_no_other() {
        for (told, is) in
            [("cargo 1.95.0 (abc)", true), ("cargo 1.950.0", false), ("cargo 1.9.5", false), ("", false)]
        {
            assert_eq!(is_of(told, "1.95"), is, "{told}");
        }
    }

    #[test]
    fn the_container_is_built_by_the_promised_compiler_and_has_every_tool() {
        let text = std::fs::read_to_string(root().join("Containerfile")).unwrap();
        assert!(text.contains(&format!("rust:{RUST}-")), "{text}");
        for tool in TOOLS {
            assert!(text.contains(&format!("target/release/{tool}")), "{tool}");
        }
        assert!(text.trim_end().ends_with("CMD [\"fi_pingpong\", \"--quick\"]"), "the main job");
    }
}
