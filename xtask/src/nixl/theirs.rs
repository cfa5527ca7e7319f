//! NIXL's own tests and examples in Python, on our backend. NIXL's wheels do not have them: they come from a checkout,
//! or from GitHub, at the version of the wheel.

use std::path::{Path, PathBuf};

use super::wheel::Environment;
use super::{WHEELS, cuda};
use crate::step::{Report, answers, command, not_run, output, run, target_dir};

/// A folder with NIXL's sources. Without it they are fetched.
const SETTING: &str = "OFI_NIXL_SOURCES";
const REPOSITORY: &str = "https://github.com/ai-dynamo/nixl";
/// What `tests/nixl/theirs.py` runs.
const CASES: [&str; 4] = ["tests", "basic", "expanded", "partial"];
const NAME: &str = "NIXL's own tests in Python";

/// Runs all on OFI, and those that take the name of a backend on NIXL's own LIBFABRIC over our library.
pub fn test(report: &mut Report, installed: &Environment) {
    let sources = match sources().and_then(|sources| installed.add(&packages()).map(|()| sources)) {
        Ok(sources) => sources,
        Err(why) => return report.add(NAME, || not_run(NAME, &why)),
    };
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

/// The folder with NIXL's sources.
///
/// # Errors
/// The reason why there is none.
fn sources() -> Result<PathBuf, String> {
    let (folder, is_given) = match std::env::var_os(SETTING) {
        Some(folder) => (PathBuf::from(folder), true),
        None => (target_dir("nixl").join(format!("sources-{}", version())), false),
    };
    let has_tests = |folder: &Path| folder.join("test/python/test_nixl_api.py").is_file();
    if !is_given && !has_tests(&folder) {
        let _ = std::fs::remove_dir_all(&folder);
        let mut git = command("timeout");
        git.args(["--kill-after=5", "120", "git", "clone", "--quiet", "--depth", "1"]);
        git.args(["--branch", &format!("v{}", version()), REPOSITORY]).arg(&folder);
        run(&mut git).map_err(|why| {
            format!("{REPOSITORY} cannot be fetched ({why}); {SETTING} may name a folder with these sources")
        })?;
    }
    if !has_tests(&folder) {
        return Err(format!("{} has no test/python/test_nixl_api.py", folder.display()));
    }
    Ok(folder)
}
