//! Counters instead of queues, and a reply that is sent without involving the program. Two endpoints of one process use
//! the raw layer.
//!
//! `cargo run --example counters_and_triggers`

#[allow(dead_code, reason = "only the hints are used")]
mod support;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ofi::raw::{
    AvAttr, BindFlags, Caps, CntrAttr, Context, Counter, DeferredOp, Domain, Endpoint, FiAddr, GetinfoFlags,
    Lent, ReceiveOp, SendOp, Threshold, Version, WaitObj,
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

struct Side {
    endpoint: Arc<dyn Endpoint>,
    received: Arc<dyn Counter>,
    domain: Arc<dyn Domain>,
    _sent: Arc<dyn Counter>,
}

fn open() -> Result<Side, Box<dyn Error>> {
    let hints = support::hints("shm").caps(Caps::MSG | Caps::TRIGGER);
    let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints))?;
    let domain = ofi::open_fabric(&infos[0])?.open_domain(&infos[0])?;
    let endpoint = domain.open_endpoint(&infos[0])?;
    // No queue at all: operations are only counted.
    let attr = CntrAttr { wait_obj: WaitObj::Unspec, ..CntrAttr::default() };
    let (sent, received) = (domain.open_counter(&attr)?, domain.open_counter(&attr)?);
    endpoint.bind_counter(&sent, BindFlags::SEND)?;
    endpoint.bind_counter(&received, BindFlags::RECV)?;
    Ok(Side { endpoint, received, domain, _sent: sent })
}

fn main() -> Result<(), Box<dyn Error>> {
    let (asks, answers) = (open()?, open()?);
    let mut vectors = Vec::new();
    for side in [&asks, &answers] {
        let vector = side.domain.open_av(&AvAttr::default())?;
        side.endpoint.bind_av(&vector)?;
        side.endpoint.enable()?;
        vectors.push(vector);
    }
    let to_answers: FiAddr = vectors[0].insert(&[answers.endpoint.name()?]).remove(0)?;
    let to_asks: FiAddr = vectors[1].insert(&[asks.endpoint.name()?]).remove(0)?;

    // The reply is posted before the request arrives: it is sent when one message has been received.
    let answer = SendOp::new(Lent::EMPTY, to_asks, Context::NULL);
    let when = Threshold { counter: &answers.received, value: 1 };
    answers.endpoint.trigger(&when, &DeferredOp::Send(answer))?;
    answers.endpoint.receive(&ReceiveOp::new(Lent::EMPTY, Context::NULL))?;

    asks.endpoint.receive(&ReceiveOp::new(Lent::EMPTY, Context::NULL))?;
    asks.endpoint.send(&SendOp::new(Lent::EMPTY, to_answers, Context::NULL))?;

    // Waiting for the counter receives the request, and triggers the reply.
    answers.received.wait(1, LIMIT)?;
    asks.received.wait(1, LIMIT)?;
    println!("asked once, answered {} time(s)", asks.received.read());
    Ok(())
}
