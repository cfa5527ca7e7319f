//! A service of two workers under one address: each has a receive context, a transmit context and a queue of its own, and a
//! client says which worker is to have its question. Two endpoints of one process, on the raw layer.
//!
//! `cargo run --example scalable_endpoint`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ofi::raw::{
    AvAttr, BindFlags, Caps, CompletionFlags, CompletionQueue, Context, CqAttr, CqBuffer, CqTaggedEntry,
    Domain, Endpoint, FiAddr, GetinfoFlags, Hints, Info, Lent, OpFlags, ReceiveOp, SendOp, Serialization,
    Version, WaitObj,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How many workers, and the bits of an address that name one.
const WORKERS: usize = 2;
const BITS: u32 = 2;
/// Questions that each worker answers.
const QUESTIONS: u64 = 4;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn open(caps: Caps, contexts: usize) -> Outcome<(Arc<dyn Domain>, Info)> {
    let hints = Hints::new().provider("shm").caps(caps).tx_ctx_cnt(contexts).rx_ctx_cnt(contexts);
    let info = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints))?.remove(0);
    let domain = ofi::open_fabric(&info)?.open_domain(&info, Serialization::LIBRARY)?;
    Ok((domain, info))
}

fn queue(domain: &Arc<dyn Domain>) -> Outcome<Arc<dyn CompletionQueue>> {
    Ok(domain.open_cq(&CqAttr { wait_obj: WaitObj::Unspec, ..CqAttr::default() })?)
}

/// The next number that comes in on `queue`, asleep until then, and from whom.
fn next(queue: &Arc<dyn CompletionQueue>) -> Outcome<(u64, FiAddr)> {
    let (mut entry, mut from) = ([CqTaggedEntry::EMPTY], [FiAddr::NOTAVAIL]);
    loop {
        queue.read_wait(&mut CqBuffer::with_sources(&mut entry, &mut from), LIMIT)?;
        if entry[0].flags.contains(CompletionFlags::RECV) {
            return Ok((entry[0].data, from[0]));
        }
    }
}

/// A message without bytes: the number travels as remote completion data.
fn number(to: FiAddr, number: u64) -> SendOp<'static> {
    SendOp { data: number, flags: OpFlags::REMOTE_CQ_DATA, ..SendOp::new(Lent::EMPTY, to, Context::NULL) }
}

/// Answers each number with its square.
fn work(tx: &Arc<dyn Endpoint>, rx: &Arc<dyn Endpoint>, queue: &Arc<dyn CompletionQueue>) -> Outcome<()> {
    for _ in 0..QUESTIONS {
        rx.receive(&ReceiveOp::new(Lent::EMPTY, Context::NULL))?;
        let (question, client) = next(queue)?;
        tx.send(&number(client, question * question))?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let (domain, info) = open(Caps::MSG | Caps::NAMED_RX_CTX | Caps::SOURCE, WORKERS)?;
    let service = domain.open_scalable(&info)?;
    let vector = domain.open_av(&AvAttr::default())?;
    service.bind_av(&vector)?;
    let mut workers = Vec::new();
    for index in 0..WORKERS {
        let ((tx, _), (rx, _)) =
            (service.transmit_context(index, None)?, service.receive_context(index, None)?);
        let queue = queue(&domain)?;
        tx.bind_cq(&queue, BindFlags::TRANSMIT)?;
        rx.bind_cq(&queue, BindFlags::RECV)?;
        tx.enable()?;
        rx.enable()?;
        workers.push((tx, rx, queue));
    }
    service.enable()?;

    let (domain, info) = open(Caps::MSG | Caps::SOURCE, 1)?;
    let client = domain.open_endpoint(&info)?;
    let answers = queue(&domain)?;
    let peers = domain.open_av(&AvAttr { rx_ctx_bits: BITS, ..AvAttr::default() })?;
    client.bind_cq(&answers, BindFlags::TRANSMIT | BindFlags::RECV)?;
    client.bind_av(&peers)?;
    client.enable()?;
    let to_service = peers.insert(&[service.name()?]).remove(0)?;
    vector.insert(&[client.name()?]).remove(0)?;

    std::thread::scope(|scope| {
        let threads: Vec<_> =
            workers.iter().map(|(tx, rx, queue)| scope.spawn(move || work(tx, rx, queue))).collect();
        for question in 0..QUESTIONS * WORKERS as u64 {
            // An even number is for worker 0, an odd one for worker 1.
            let worker = to_service.with_rx_index(question as u32 % WORKERS as u32, BITS);
            client.receive(&ReceiveOp::new(Lent::EMPTY, Context::NULL))?;
            client.send(&number(worker, question))?;
            let (answer, _) = next(&answers)?;
            println!("worker {} says that {question} squared is {answer}", question % WORKERS as u64);
            assert_eq!(answer, question * question);
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker"))
    })
}
