//! How the two sides meet, and how a server spends its life.

use super::cores;
use super::jobs::{self, unexpected};
use super::link::Link;
use super::message::{Hello, Job, Message, Setup};
use super::node::{self, Node};
use crate::failure::{Failure, Result};
use crate::output;
use std::time::Duration;

/// Opens the server's endpoint and meets the client.
///
/// # Errors
/// When it cannot be opened, or the two do not fit together.
pub fn open_server(link: &mut Link, setup: &Setup, verbose: bool) -> Result<Node> {
    let mut node = open(setup, verbose)?;
    link.send(&Message::Hello(node.hello()?))?;
    let theirs = hello(link)?;
    node.meet(&theirs)?;
    Ok(node)
}

/// Hears what the server has, opens the client's endpoint and meets the server.
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

/// Answers the client's jobs until it has no more; `on_done` is told of each and how long it took.
///
/// # Errors
/// Whatever goes wrong on either side.
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

/// Passes a failure on to the other side, which would otherwise only see that this one is gone.
pub fn telling<T>(link: &mut Link, result: Result<T>) -> Result<T> {
    if let Err(failure) = &result
        && !matches!(failure, Failure::Told { .. })
    {
        // Where that fails too, the closed connection says enough.
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
