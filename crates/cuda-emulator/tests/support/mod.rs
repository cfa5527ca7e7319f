//! Runs a test again in a process whose `libcuda.so.1` is the emulator.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in processes that run on the emulator.
pub const INSIDE: &str = "CUDA_EMULATOR_TEST";

/// The emulator's library.
pub fn emulator() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().and_then(Path::parent).unwrap();
    let found = [folder.join("libcuda_emulator.so"), folder.join("deps/libcuda_emulator.so")];
    found.into_iter().find(|path| path.exists()).expect("libcuda_emulator.so is beside this program")
}

/// A command that runs this program again on the emulator, for one test.
pub fn again(test: &str) -> Command {
    let folder = std::env::temp_dir().join(format!("cuda-emulator-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join("libcuda.so.1");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(emulator(), &link).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").env("LD_LIBRARY_PATH", folder);
    command
}

/// Whether this process runs on the emulator; otherwise runs one with these settings, which must pass.
pub fn is_inside(test: &str, settings: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = again(test).envs(settings.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    false
}

/// Runs a test in a process that finds no driver: the loader finds this file in place of a driver, even on a host with
/// one, and refuses it.
pub fn without_driver(test: &str) {
    let mut command = again(test);
    let folder = std::env::temp_dir().join(format!("no-driver-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("libcuda.so.1"), "no library").unwrap();
    let output = command.env("LD_LIBRARY_PATH", &folder).output().unwrap();
    let _ = std::fs::remove_dir_all(folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
