//! `fi_pingpong`: measures messages and remote accesses between two processes.
//!
//! `here` runs both sides itself; `remote` is a client and a server as in C. In both cases a client leads and a server
//! follows (`jobs`). A control connection joins them (`link`), and they measure on the raw layer (`node`).

use std::process::ExitCode;

use clap::Parser;

use crate::exit;
use crate::failure::Result;

mod check;
mod cores;
mod here;
mod jobs;
#[allow(unsafe_code)]
mod lent;
mod link;
mod measure;
mod message;
mod node;
mod options;
mod pump;
mod remote;
mod sides;
pub(crate) mod sizes;
#[allow(unsafe_code)]
pub(crate) mod sys;
mod table;

use message::Setup;
pub(crate) use options::Options;
use options::Role;

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return exit::usage(&error),
    };
    let result = options.part().and_then(|part| match part {
        Role::Both => here::run(&options),
        Role::Peer => here::peer(),
        Role::Server => pin(&options).and_then(|()| remote::server(&options)),
        Role::Client(address) => pin(&options).and_then(|()| remote::client(&options, address)),
    });
    match (result, options.peer) {
        // The parent process received the failure over the control connection, and reports it to the user.
        (Err(failure), true) => ExitCode::from(failure.code()),
        (result, _) => exit::end("fi_pingpong", result),
    }
}

/// Pins a server or client to the requested core.
fn pin(options: &Options) -> Result<()> {
    options.cores.first().map_or(Ok(()), |&core| cores::pin(core))
}

/// The endpoint that the options describe.
fn setup(options: &Options) -> Setup {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    Setup {
        names: [name(&options.provider), name(&options.fabric), name(&options.domain)],
        source: options.source.clone(),
        ep_type: options.ep_type().as_c(),
        kind: options.kind.unwrap_or_default(),
        rma: options.rma,
        threading: Some(options.threading),
        core: None,
        crowded: sys::allowed_cores().is_ok_and(|cores| cores.len() == 1),
    }
}
