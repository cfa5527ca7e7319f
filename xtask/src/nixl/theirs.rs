//! NIXL's own tests and examples in Python, on our backend. NIXL's wheels do not have them: they come from a checkout,
//! or from GitHub, at the version of the wheel.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::wheel::Environment;
use super::{WHEELS, cuda};
use crate::step::{Outcome, Report, answers, command, not_run, output, run, target_dir};

/// A folder with NIXL's sources. Without it they are fetched.
const SETTING: &str = "OFI_NIXL_SOURCES";
const REPOSITORY: &str = "https://github.com/ai-dynamo/nixl";
/// Seconds for fetching them.
const FETCH_S: &str = "30";
/// A file that the sources have.
const TESTS: &str = "test/python/test_nixl_api.py";
/// What `tests/nixl/theirs.py` runs.
const CASES: [&str; 4] = ["tests", "basic", "expanded", "partial"];
const NAME: &str = "NIXL's own tests in Python";

/// Where NIXL's sources are.
#[derive(Debug, PartialEq, Eq)]
enum Sources {
    At(PathBuf),
    /// They cannot be fetched, for this reason.
    NotFetched(String),
}

/// Runs all on OFI, and those that take the name of a backend on NIXL's own LIBFABRIC over our library.
pub fn test(report: &mut Report, installed: &Environment) {
    let mut found = None;
    report.add("NIXL's sources, and the packages that its tests need", || {
        match sources(std::env::var_os(SETTING), fetched)? {
            Sources::At(folder) => found = Some(folder),
            Sources::NotFetched(why) => return not_run(NAME, &why),
        }
        installed.add(&packages()).inspect_err(|_| found = None)?;
        Ok(Outcome::Passed)
    });
    let Some(sources) = found else { return };
    let sources = &sources.to_string_lossy();
    let etcd = if answers("etcd", &["--version"]) {
        Some("partial-etcd")
    } else {
        report.add(NAME, || not_run("NIXL's example with etcd", "no etcd (apt-get install etcd-server)"));
        None
    };
    for case in CASES.into_iter().chain(etcd) {
        report.add_retried(&format!("{NAME} on OFI: {case}"), || {
            run(&mut installed.program(&["tests/nixl/theirs.py", "OFI", sources, case]))
        });
    }
    report.add_retried(&format!("{NAME} on LIBFABRIC over libfabric.so.1 of the wheel"), || {
        let mut program = installed.program(&["tests/nixl/theirs.py", "LIBFABRIC", sources, "tests"]);
        let library =
            output(&mut installed.program(&["-c", "import ofi_nixl; print(ofi_nixl.library_dir())"]))?;
        run(program.env("LD_LIBRARY_PATH", format!("{}:{}", library.trim(), cuda(installed.python())?)))
    });
}

/// The packages that the tests need besides.
fn packages() -> [String; 3] {
    ["pytest".into(), "pytest-timeout".into(), format!("nixl=={}", version())]
}

/// The version of NIXL's wheel.
fn version() -> &'static str {
    WHEELS[0].split_once("==").map_or("", |(_, version)| version)
}

/// The sources in a given folder, or else those that can be fetched.
///
/// # Errors
/// The folder has no such sources.
fn sources(
    given: Option<OsString>,
    fetch: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<Sources, String> {
    let folder = match given {
        Some(given) => {
            std::path::absolute(&given).map_err(|error| format!("{SETTING}={}: {error}", given.display()))?
        }
        None => match fetch() {
            Ok(folder) => folder,
            Err(why) => return Ok(Sources::NotFetched(why)),
        },
    };
    if !folder.join(TESTS).is_file() {
        return Err(format!("{} has no {TESTS}", folder.display()));
    }
    Ok(Sources::At(folder))
}

/// The folder of the sources, which are fetched once, complete or not at all.
///
/// # Errors
/// The reason why they cannot be fetched.
fn fetched() -> Result<PathBuf, String> {
    kept(target_dir("nixl").join(format!("sources-{}", version())), clone)
}

/// A folder of sources, fetched into one beside it unless the folder has them. One without tests is replaced.
///
/// # Errors
/// The reason why they cannot be fetched, or the folder not replaced.
fn kept(folder: PathBuf, fetch: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    if folder.join(TESTS).is_file() {
        return Ok(folder);
    }
    let part = folder.with_file_name("sources.part");
    for old in [&part, &folder] {
        match std::fs::remove_dir_all(old) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(format!("{}: {error}", old.display()));
            }
            _ => {}
        }
    }
    fetch(&part)?;
    std::fs::rename(&part, &folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Clones the sources into `part`.
fn clone(part: &Path) -> Result<(), String> {
    let mut git = command("timeout");
    git.args(["--kill-after=5", FETCH_S, "git", "-c", "advice.detachedHead=false"]);
    git.args(["clone", "--quiet", "--depth", "1", "--branch", &format!("v{}", version()), REPOSITORY])
        .arg(part);
    // It would ask for a name and a password where GitHub knows no such repository.
    run(git.env("GIT_TERMINAL_PROMPT", "0")).map(drop).map_err(|why| {
        format!("{REPOSITORY} cannot be fetched ({why}); {SETTING} may name a folder with these sources")
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn only_sources_that_cannot_be_fetched_are_no_failure() {
        let unfetched = || Err("no network".to_string());
        assert_eq!(sources(None, unfetched), Ok(Sources::NotFetched("no network".into())));
        let folder = std::env::temp_dir().join(format!("xtask-theirs-{}", std::process::id()));
        for wrong in [folder.as_os_str(), OsStr::new("")] {
            let error = sources(Some(wrong.into()), unfetched).unwrap_err();
            assert!(error.contains(SETTING) || error.contains("has no test/python/"), "{error}");
        }
        assert!(sources(None, || Ok(folder.clone())).is_err());
        let tests = folder.join("test/python");
        std::fs::create_dir_all(&tests).unwrap();
        std::fs::write(tests.join("test_nixl_api.py"), "").unwrap();
        assert_eq!(sources(Some(folder.clone().into()), unfetched), Ok(Sources::At(folder.clone())));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Regression test: a folder without tests was never fetched again.
    #[test]
    fn sources_are_fetched_again_unless_they_have_tests() {
        let root = std::env::temp_dir().join(format!("xtask-kept-{}", std::process::id()));
        let folder = root.join("sources-1");
        std::fs::create_dir_all(folder.join("empty")).unwrap();
        let fetch = |part: &Path| {
            std::fs::create_dir_all(part.join("test/python")).unwrap();
            std::fs::write(part.join(TESTS), "").map_err(|error| error.to_string())
        };
        assert_eq!(kept(folder.clone(), fetch), Ok(folder.clone()));
        assert!(folder.join(TESTS).is_file() && !folder.join("empty").exists());
        assert_eq!(kept(folder.clone(), |_| Err("no network".into())), Ok(folder.clone()));
        std::fs::remove_file(folder.join(TESTS)).unwrap();
        assert_eq!(kept(folder, |_| Err("no network".into())), Err("no network".into()));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
