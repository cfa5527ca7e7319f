//! A device that is removed and comes back, as after a reset, is found again. libibverbs finds devices in a folder that
//! takes the place of /sys, from which the test removes one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

const DIR: &str = "EFA_EMULATOR_DIR";

/// The devices by their names, in any order.
fn found() -> BTreeMap<String, ibv::Context> {
    let all = ibv::efa_contexts().unwrap();
    all.into_iter().map(|context| (context.name(), context)).collect()
}

/// Runs in a process of its own, with the emulator.
#[test]
fn with_two_devices() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let root = PathBuf::from(dir).join(format!("sysfs.{}", std::process::id()));
    let (listed, aside) = (root.join("class/infiniband_verbs/uverbs1"), root.join("aside"));
    let first = found();
    assert_eq!(first.keys().collect::<Vec<_>>(), ["efa_emu0", "efa_emu1"]);
    assert_eq!(found(), first, "each is opened once");
    std::fs::rename(&listed, &aside).unwrap();
    let left = found();
    assert_eq!(left.keys().collect::<Vec<_>>(), ["efa_emu0"], "the other one is gone");
    std::fs::rename(&aside, &listed).unwrap();
    let again = found();
    assert_eq!(again.keys().collect::<Vec<_>>(), ["efa_emu0", "efa_emu1"]);
    assert_eq!(again["efa_emu0"], first["efa_emu0"]);
    assert_ne!(again["efa_emu1"], first["efa_emu1"], "it is another device");
    assert!(again.values().all(|context| context.efa().unwrap().max_send > 0));
    println!("@done");
}

#[test]
fn a_device_that_comes_back_is_found() {
    // SAFETY: the name ends with a zero; the library runs only rdma-core's constructors.
    if unsafe { libc::dlopen(c"libefa.so.1".as_ptr(), libc::RTLD_NOW) }.is_null() {
        return println!("skipped: libefa.so.1 is not installed (Debian: ibverbs-providers)");
    }
    let program = std::env::args_os().next().map(PathBuf::from).unwrap();
    let folder = program.ancestors().nth(2).unwrap();
    let built = [folder.join("libefa_emulator.so"), folder.join("deps/libefa_emulator.so")];
    let emulator = built.into_iter().find(|path| path.exists()).expect("it is beside this program");
    let dir = std::env::temp_dir().join(format!("efa-coming-back-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "with_two_devices", "--nocapture"]);
    command.env("LD_PRELOAD", emulator).env(DIR, &dir).env("EFA_EMULATOR_DEVICES", "2");
    let output = command.output().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("@done"), "{text}");
}
