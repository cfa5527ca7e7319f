//! A service of two workers under one address: each has its own receive context, transmit context and queue, and a
//! client chooses the worker for its request. Both run in one process.
//!
//! `cargo run --example scalable_endpoint`
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ofi::{Caps, Errno, Node, WaitObj};

mod support;

use support::{LIMIT, Outcome, report};

/// The number of workers, and the number of address bits that select one.
const WORKERS: usize = 2;
const BITS: u32 = 1;
/// Requests to each worker.
const QUESTIONS: u64 = 4;

fn main() -> ExitCode {
    report(run)
}

fn run() -> Outcome {
    let hints = support::hints("shm").caps(Caps::MSG | Caps::NAMED_RX_CTX | Caps::SOURCE);
    let service = Node::builder().hints(hints.clone()).wait_obj(WaitObj::Unspec);
    let workers = service.open_contexts(WORKERS)?;
    let client = Node::builder().hints(hints).wait_obj(WaitObj::Unspec).rx_ctx_bits(BITS).open()?;
    let to_service = client.insert(&workers[0].name()?)?;
    workers[0].insert(&client.name()?)?; // all workers have one address vector

    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter()
            .map(|worker| scope.spawn(|| work(worker).map_err(|error| error.to_string())))
            .collect();
        for question in 0..QUESTIONS * WORKERS as u64 {
            // Even numbers go to worker 0, odd ones to worker 1.
            let index = question as usize % WORKERS;
            client.recv(vec![0; 8])?;
            let worker = client.rx_addr(to_service, index)?;
            // Over a device, the first message waits until the service has announced which library it is.
            while let Err(error) = client.inject(&question.to_le_bytes(), worker) {
                if error != Errno::EAGAIN {
                    return Err(error.into());
                }
                client.poll()?.map(ofi::Completion::into_result).transpose()?; // makes progress
            }
            let answer = client.wait(LIMIT)?.ok_or("no answer")?.into_result()?;
            let answer = answer.value::<u64>().ok_or("a short answer")?;
            println!("worker {index} says that {question} squared is {answer}");
            if answer != question * question {
                return Err("that is wrong".into());
            }
        }
        threads.into_iter().try_for_each(|thread| Ok(thread.join().map_err(|_| "a worker panicked")??))
    })
}

/// Replies to each number with its square.
fn work(worker: &Node) -> Outcome {
    for _ in 0..QUESTIONS {
        worker.recv(vec![0; 8])?;
        let question = worker.wait(LIMIT)?.ok_or("no question")?.into_result()?;
        let number = question.value::<u64>().ok_or("a short question")?;
        let client = question.source.ok_or("a question of a stranger")?;
        worker.inject(&(number * number).to_le_bytes(), client)?;
    }
    Ok(())
}
