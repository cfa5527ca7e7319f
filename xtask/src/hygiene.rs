//! Checks of the workspace as a whole: the promised compiler version, the single error on systems other than Linux, the
//! licences and sources of dependencies, unused dependencies.

use crate::step::{Outcome, Report, answers, cargo, command, has_target, not_run, output, run, target_dir};
use crate::{StepResult, chores};

/// The workspace's `rust-version`.
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// A target that the stack does not support.
const OFF_LINUX: &str = "x86_64-apple-darwin";

/// All of them.
pub fn check(report: &mut Report) {
    report.add("rust-version", rust_version);
    report.add("off Linux", off_linux);
    report.add("licences and sources", deny);
    report.add("unused dependencies", machete);
}

/// Checks that the oldest compiler promised by the manifests compiles everything. Usually that is the compiler running
/// this.
fn rust_version() -> StepResult {
    let version = output(&mut cargo(&["--version"]))?;
    if is_of(&version, RUST) {
        return Ok(Outcome::Passed); // it has compiled everything else here
    }
    let oldest = format!("+{RUST}");
    if !answers("cargo", &[&oldest, "--version"]) {
        let why =
            format!("this is {}, and rustup has no {RUST} (rustup toolchain install {RUST})", version.trim());
        return not_run("rust-version", &why);
    }
    // Run by rustup's cargo, which knows other compilers, unlike the cargo that runs this.
    let args =
        [&*oldest, "check", "--workspace", "--all-targets", "--quiet", "--target-dir", "target/rust-version"];
    run(command("cargo").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").args(args))
}

/// On systems other than Linux, `ofi` fails with one error that states this, and with no other compile errors.
fn off_linux() -> StepResult {
    if !has_target(OFF_LINUX) {
        return not_run("off Linux", &format!("rustup has no {OFF_LINUX} (rustup target add {OFF_LINUX})"));
    }
    let mut check = cargo(&["check", "--package", "ofi", "--target", OFF_LINUX, "--target-dir"]);
    let ended = check.arg(target_dir("off-linux")).output().map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&ended.stderr);
    match &of_compiler(&text)[..] {
        [one] if one.contains("ofi needs Linux") => Ok(Outcome::Passed),
        other => Err(format!("wanted one error, \"ofi needs Linux\", found {other:?}")),
    }
}

/// The errors in cargo's output, without cargo's own summaries.
fn of_compiler(text: &str) -> Vec<&str> {
    let errors = text.lines().filter(|line| line.starts_with("error"));
    errors.filter(|line| !line.starts_with("error: could not compile")).collect()
}

/// Whether `cargo 1.95.0 (…)` is version `1.95`.
fn is_of(told: &str, version: &str) -> bool {
    let number = told.split_whitespace().nth(1).unwrap_or_default();
    number.strip_prefix(version).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Checks `deny.toml`. Advisories are left out: CI cannot reach the host of their list.
fn deny() -> StepResult {
    const CHECK: [&str; 6] = ["--log-level", "error", "check", "bans", "licenses", "sources"];
    match chores::deny() {
        Ok(deny) => run(command(deny).args(CHECK)),
        Err(why) => not_run("cargo-deny", &why),
    }
}

fn machete() -> StepResult {
    match chores::machete() {
        // Only the manifests of this repository: a build folder may hold unpacked packages of others.
        Ok(machete) => run(command(machete).args(["crates", "xtask", "tests", "benches", "fuzz"])),
        Err(why) => not_run("cargo-machete", &why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn cargo_s_summary_is_no_error_of_its_own() {
        let text = "warning: unused\nerror: ofi needs Linux\n --> lib.rs\nerror[E0425]: no `ppoll`\n\
                    error: could not compile `ofi-api` (lib) due to 2 previous errors\n";
        assert_eq!(of_compiler(text), ["error: ofi needs Linux", "error[E0425]: no `ppoll`"]);
    }

    /// A crate's metadata for crates.io and docs.rs, and the files that its licences require in the package.
    #[test]
    fn every_crate_that_is_published_tells_what_it_is_and_has_its_licences() {
        let mut published = 0;
        for entry in std::fs::read_dir(root().join("crates")).unwrap() {
            let folder = entry.unwrap().path();
            let text = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            let manifest: toml::Table = text.parse().unwrap();
            let package = manifest["package"].as_table().unwrap();
            if package.get("publish").and_then(toml::Value::as_bool) == Some(false) {
                continue;
            }
            published += 1;
            let shown = folder.display();
            for key in ["description", "repository", "license", "rust-version", "keywords", "categories"] {
                assert!(package.contains_key(key), "{shown}: {key}");
            }
            assert!(
                package["keywords"].as_array().unwrap().len() <= 5,
                "{shown}: crates.io takes five keywords"
            );
            let docs = package.get("metadata").and_then(|metadata| metadata.get("docs")?.get("rs"));
            let docs = docs.unwrap_or_else(|| panic!("{shown}: package.metadata.docs.rs"));
            assert!(
                docs.get("targets").is_some(),
                "{shown}: docs.rs would build for systems that are not Linux"
            );
            let shows_features = docs.get("all-features").is_some() || docs.get("features").is_some();
            assert!(shows_features || !manifest.contains_key("features"), "{shown}: docs.rs hides features");
            let readme = package.get("readme").and_then(toml::Value::as_str).unwrap_or("README.md");
            assert!(folder.join(readme).is_file(), "{shown}: {readme}");
            for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
                let read =
                    |path: &std::path::Path| std::fs::read_to_string(path.join(licence)).unwrap_or_default();
                assert_eq!(read(&folder), read(root()), "{shown}: {licence}");
            }
        }
        assert!(published > 15, "{published}");
    }

    #[test]
    fn the_container_is_built_by_the_promised_compiler_and_has_what_is_installed() {
        let text = std::fs::read_to_string(root().join("Containerfile")).unwrap();
        assert!(text.contains(&format!("rust:{RUST}-")), "{text}");
        assert!(
            text.contains("cargo xtask install --prefix /usr/local/ofi --libfabric --programs --mxl "),
            "{text}"
        );
        assert!(text.trim_end().ends_with("CMD [\"fi_pingpong\", \"--quick\"]"), "the main job");
    }
}
