//! How the two sides connect, and the server's loop.

use super::cores;
use super::jobs::{self, unexpected};
use super::link::Link;
use super::message::{Hello, Job, Message, Setup};
use super::node::{self, Node};
use crate::failure::{Failure, Result};
use crate::output;
use std::time::Duration;

/// Opens the server's endpoint and inserts the client's address.
///
/// # Errors
/// The endpoint cannot be opened, or the two sides are incompatible.
pub fn open_server(link: &mut Link, setup: &Setup, verbose: bool) -> Result<Node> {
    let mut node = open(setup, verbose)?;
    link.send(&Message::Hello(node.hello()?))?;
    let theirs = hello(link)?;
    node.meet(&theirs)?;
    Ok(node)
}

/// Receives the server's description, opens the client's endpoint and inserts the server's address.
///
/// # Errors
/// As [`open_server`].
pub fn open_client(link: &mut Link, setup: &Setup, verbose: bool) -> Result<Node> {
    let theirs = hello(link)?;
    let mut setup = setup.clone();
    if setup.names[0].is_empty() {
        setup.names[0].clone_from(&theirs.provider);
    }
    let mut node = open(&setup, verbose)?;
    node.meet(&theirs)?;
    link.send(&Message::Hello(node.hello()?))?;
    Ok(node)
}

/// Serves the client's jobs until there are no more; `on_done` gets each job and its time.
///
/// # Errors
/// Any error of either side.
pub fn serve(
    link: &mut Link,
    node: &Node,
    mut on_done: impl FnMut(&Job, Duration) -> Result<()>,
) -> Result<()> {
    loop {
        match link.receive("waiting for the client's next measurement", || node.progress())? {
            Message::Start(job) => {
                let took = jobs::follow(node, link, &job)?;
                on_done(&job, took)?;
            }
            Message::Bye => return Ok(()),
            other => return Err(unexpected(&other)),
        }
    }
}

/// Reports a failure to the other side, which would otherwise only see the connection close.
pub fn telling<T>(link: &mut Link, result: Result<T>) -> Result<T> {
    if let Err(failure) = &result
        && !matches!(failure, Failure::Told { .. })
    {
        // If that fails too, the closed connection has to suffice.
        let _ = link.send(&Message::Failed { why: failure.to_string(), code: failure.code() });
    }
    result
}

fn open(setup: &Setup, verbose: bool) -> Result<Node> {
    if let Some(core) = setup.core {
        cores::pin(core)?;
    }
    let offers = node::offers(setup)?;
    let info = offers.first().ok_or_else(|| Failure::Usage("getinfo returned an empty list".into()))?;
    if verbose {
        output::tell(&format!("this side's interface:\n{info}"));
    }
    Node::open(info, setup)
}

fn hello(link: &mut Link) -> Result<Hello> {
    match link.receive("waiting for the peer's address", || Ok(()))? {
        Message::Hello(hello) => Ok(hello),
        other => Err(unexpected(&other)),
    }
}
