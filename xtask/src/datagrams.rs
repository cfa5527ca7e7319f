//! Datagrams between C's provider `udp` and ours, in both directions.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::StepResult;
use crate::patience::patient;
use crate::step::{Outcome, answers, command, not_run, root};
use crate::stock::{NO_HEADERS, Stock, pingpong};

/// Runs the same program, `fi_pingpong`, on both libraries, over IPv4 and IPv6.
pub fn pingpongs(folder: &Path, stock: &Stock) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs("datagrams between C's udp and ours");
    }
    let ours = || stock.pingpong_on(folder);
    let theirs = || stock.pingpong();
    // `-c` checks every byte.
    let four = ["-p", "udp", "-e", "dgram", "-I", "50", "-c"];
    let six = [&four[..], &["-6"]].concat();
    for args in [&four[..], &six] {
        let failed = |which: &str, why: String| format!("{which}, {}: {why}", args.join(" "));
        pingpong(args, &theirs, &ours).map_err(|why| failed("C serves, we ask", why))?;
        pingpong(args, &ours, &theirs).map_err(|why| failed("we serve, C asks", why))?;
    }
    Ok(Outcome::Passed)
}

/// One side sends to a group, the other receives. C supports only IPv4 groups.
pub fn multicast(folder: &Path, stock: &Stock) -> StepResult {
    const NAME: &str = "a multicast group of C's udp and ours";
    const NAMESPACES: [&str; 4] = ["-Urnpf", "--kill-child", "--mount-proc", "--"];
    // C's socket receives from a group only if it is bound to the group's address. Ours has the group's address besides
    // its own.
    const RECEIVERS: [&str; 2] = ["239.77.1.2", "127.0.0.1"];
    if !stock.compiles("#include <rdma/fabric.h>") {
        return not_run(NAME, NO_HEADERS);
    }
    if !answers("unshare", &[&NAMESPACES[..], &["ip", "link"]].concat()) {
        return not_run(NAME, "no namespaces without privileges, or no ip (apt-get install iproute2)");
    }
    let source = root().join("tests/capi/udp/multicast.c");
    let program = stock.output(folder, &source);
    stock.program(&[&source], &program, &[])?;
    let (theirs, ours) = (stock.command(&program), stock.command_on(folder, &program));
    for (sender, receiver, address) in [(&theirs, &ours, RECEIVERS[1]), (&ours, &theirs, RECEIVERS[0])] {
        let mut script = command("unshare");
        script.args(NAMESPACES).arg(root().join("tests/capi/udp/multicast.sh"));
        script.args([libraries(sender), libraries(receiver), address.into()]);
        script.arg(receiver.get_program()).args(receiver.get_args());
        patient(script.stderr(Stdio::inherit())).map_err(|why| format!("received at {address}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// The library path of a command; empty for the system's default.
fn libraries(command: &Command) -> OsString {
    let path = command.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH");
    path.and_then(|(_, value)| value).map(Into::into).unwrap_or_default()
}
