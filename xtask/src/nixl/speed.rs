//! `cargo xtask nixl --speed`: two agents on NIXL's own backends and on ours, by turns, as one table. The programs are
//! in `benches/nixl`.

use std::fmt::Write;
use std::path::Path;

use super::{cuda, libraries, python};
use crate::nixl_plugin as plugin;
use crate::step::{Outcome, answers, command, not_run, run, target_dir};
use crate::{StepResult, capi};

/// A folder with C's `libfabric.so.1`, whose symbols have the version that the wheel's LIBFABRIC needs. Without it that
/// row is left out.
const SETTING: &str = "OFI_NIXL_LIBFABRIC";
const NAME: &str = "NIXL's backends beside OFI";
/// The rows: a name, NIXL's name of the backend, and its environment.
const ROWS: [(&str, &str, &str); 6] = [
    ("LIBFABRIC-tcp", "LIBFABRIC", "FI_PROVIDER=tcp"),
    ("UCX-tcp", "UCX", "UCX_TLS=tcp,self"),
    ("OFI-tcp", "OFI", "NIXL_OFI_RAILS=tcp NIXL_OFI_SHARED_MEMORY=0"),
    ("OFI-udp", "OFI", "NIXL_OFI_RAILS=udp NIXL_OFI_SHARED_MEMORY=0"),
    ("UCX-shm", "UCX", "UCX_TLS=sm,tcp,self"),
    ("OFI-shm", "OFI", "NIXL_OFI_RAILS=shm"),
];

/// Prints the tables: transfers that are driven by polls.
pub fn compare() -> StepResult {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return not_run(NAME, &why),
    };
    if !plugin::has_compiler() {
        return not_run(NAME, plugin::NO_COMPILER);
    }
    let linked = plugin::linked(&capi::compile(&["nixl-plugin"], true)?)?;
    let folder = linked.parent().unwrap_or(Path::new(".")).display();
    let theirs = std::env::var(SETTING).ok();
    let mut rows = String::new();
    for (name, backend, variables) in ROWS {
        let place = match (backend, &theirs) {
            ("LIBFABRIC", None) => continue,
            ("LIBFABRIC", Some(theirs)) => {
                format!("LD_LIBRARY_PATH={}", libraries(&python, Path::new(theirs))?)
            }
            ("OFI", _) => format!("LD_LIBRARY_PATH={} NIXL_PLUGIN_DIR={folder}", cuda(&python)?),
            _ => format!("LD_LIBRARY_PATH={}", cuda(&python)?),
        };
        let _ = writeln!(rows, "{name} {backend} {place} {variables}");
    }
    let file = target_dir("nixl").join("speed.conf");
    std::fs::write(&file, rows).map_err(|error| format!("{}: {error}", file.display()))?;
    // Another program on the cores changes the figures by more than the backends differ. In turns, because UCX has
    // threads beside the one that polls.
    let is_real_time = answers("chrt", &["-r", "1", "true"]);
    let mut program = command(if is_real_time { "chrt" } else { "env" });
    program.args(if is_real_time { &["-r", "1"][..] } else { &[] });
    program.arg(&python).arg("benches/nixl/compare.py").arg(&file).env("NIXL_LOG_LEVEL", "ERROR");
    run(&mut program)?;
    match theirs {
        Some(_) => Ok(Outcome::Passed),
        None => not_run(ROWS[0].0, &format!("{SETTING} names no folder of C's libfabric.so.1")),
    }
}
