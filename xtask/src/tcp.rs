//! `cargo xtask tcp`: provider `tcp` of C's libfabric and ours in conversation, with each of them as the server.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::StepResult;
use crate::capi;
use crate::patience::ended;
use crate::step::{Outcome, Report, not_run, output, root};
use crate::stock::{NO_HEADERS, Stock, pingpong};
use crate::trixie;

/// The first of the ports of a conversation, which needs twenty: below those that the kernel gives to others.
const PORT: &str = "27821";
/// The maximum time of a conversation.
const CONVERSATION_TIMEOUT: Duration = Duration::from_secs(40);

/// Runs all conversations with the system's libfabric (1.17, whose RDM provider is called `net`) and with that of
/// Debian trixie (2.x).
pub fn test(report: &mut Report) {
    if !capi::has_compiler() {
        return report.add("tcp beside C's", || not_run("tcp beside C's", capi::NO_COMPILER));
    }
    let mut folder = None;
    report.add("linking libfabric.so.1", || {
        folder = Some(capi::link(false)?);
        Ok(Outcome::Passed)
    });
    let Some(folder) = folder else { return };
    with_stock(report, &folder, &Stock::of_system());
    match trixie::stock() {
        Ok(stock) => with_stock(report, &folder, &stock),
        Err(why) => report.add("tcp beside a newer one of C's", || {
            Ok(Outcome::NotRun(trixie::without(["tcp beside C's"], &why)))
        }),
    }
}

/// A conversation of `tests/capi/tcp/peer.c`, and the name of C's provider.
struct Conversation {
    what: &'static str,
    kind: &'static str,
    theirs: &'static str,
}

fn with_stock(report: &mut Report, folder: &Path, stock: &Stock) {
    let name = stock.name();
    if !stock.compiles("#include <rdma/fabric.h>\n") || !stock.has_programs() {
        return report.add(&format!("tcp beside {name}"), || not_run("tcp beside C's", NO_HEADERS));
    }
    let mut program = PathBuf::new();
    let (sources, mut is_old) = (root().join("tests/capi/tcp"), false);
    report.add(&format!("tcp's conversations, for {name}"), || {
        program = stock.output(folder, Path::new("tcp-peer"));
        is_old = output(stock.info().arg("-l"))?.lines().any(|line| line.trim() == "net:");
        stock.program(&[&sources.join("peer.c")], &program, &[])
    });
    let rdm = if is_old { "net" } else { "tcp" };
    let conversation = |what, kind, theirs| Conversation { what, kind, theirs };
    let mut all = vec![
        conversation("messages and accesses between RDM endpoints", "rdm", rdm),
        conversation("a client that is killed, and its successor", "survive", rdm),
        conversation("messages and accesses of a connection", "msg", "tcp"),
    ];
    if is_old {
        all.push(conversation("messages and accesses of a connection, by its newer provider", "msg", "net"));
    } else {
        // Before 1.19 the connection ended.
        all.push(conversation("a message that is longer than its receive", "truncate", rdm));
    }
    for one in &all {
        let (ours, theirs) = (stock.command_on(folder, &program), stock.command(&program));
        report.add_retried(&format!("{}, of {name}", one.what), || converse(one, &ours, &theirs));
    }
    report.add_retried(&format!("fi_pingpong over tcp, of {name}"), || pingpongs(folder, stock, rdm));
}

/// One end, with a library that `like` loads.
fn end(like: &Command, arguments: [&str; 3]) -> Command {
    let mut end = Command::new(like.get_program());
    end.args(like.get_args()).args(arguments).arg(PORT).stdin(Stdio::null()).env_remove("LD_LIBRARY_PATH");
    for (name, value) in like.get_envs() {
        value.map(|value| end.env(name, value));
    }
    end
}

/// C's end calls ours, then ours calls C's.
fn converse(one: &Conversation, ours: &Command, theirs: &Command) -> StepResult {
    for (which, (server, serves), (client, calls)) in
        [("C calls", (ours, "tcp"), (theirs, one.theirs)), ("C serves", (theirs, one.theirs), (ours, "tcp"))]
    {
        let serving = end(server, ["serve", one.kind, serves]);
        let calling = || end(client, ["call", one.kind, calls]);
        talk(serving, one.kind == "survive", calling).map_err(|why| format!("{which}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// Starts a server and its client; before it one that is killed, if there is a `victim`.
fn talk(mut server: Command, victim: bool, client: impl Fn() -> Command) -> Result<(), String> {
    let started = |mut command: Command| command.spawn().map_err(|error| format!("peer: {error}"));
    let mut serving = Killed(started({
        server.stdout(Stdio::piped());
        server
    })?);
    // Until it says that it can be called.
    let mut line = String::new();
    if let Some(text) = serving.0.stdout.take() {
        BufReader::new(text).read_line(&mut line).map_err(|error| format!("the server: {error}"))?;
    }
    if line.trim() != "ready" {
        return Err(format!("the server says {line:?} instead of ready"));
    }
    if victim {
        let mut command = client();
        command.env("VICTIM", "1");
        // It is killed, which is no success.
        match ended(&mut started(command)?, "the victim", CONVERSATION_TIMEOUT) {
            Err(why) if why.contains("signal: 9") => {}
            Err(why) => return Err(why),
            Ok(()) => return Err("the victim was not killed".into()),
        }
    }
    let mut calling = Killed(started(client())?);
    let called = ended(&mut calling.0, "the client", CONVERSATION_TIMEOUT);
    let served = ended(&mut serving.0, "the server", CONVERSATION_TIMEOUT);
    called.and(served)
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// C's `fi_pingpong` on both libraries, with the providers' names of each.
fn pingpongs(folder: &Path, stock: &Stock, rdm: &str) -> StepResult {
    for (kind, theirs) in [("rdm", rdm), ("msg", "tcp")] {
        let side = |mut side: Command, provider: &str| {
            side.args(["-p", provider]);
            side
        };
        let our_side = || side(stock.pingpong_on(folder), "tcp");
        let their_side = || side(stock.pingpong(), theirs);
        // `-c` checks every byte.
        let args = ["-e", kind, "-I", "50", "-c"];
        pingpong(&args, &their_side, &our_side).map_err(|why| format!("C serves, {kind}: {why}"))?;
        pingpong(&args, &our_side, &their_side).map_err(|why| format!("we serve, {kind}: {why}"))?;
    }
    Ok(Outcome::Passed)
}
