//! A completion queue with sources that are not endpoints.

use std::os::fd::RawFd;

use super::*;

/// Has nothing to say.
struct Silent;

impl Source for Silent {
    fn poll(&self, _slot: usize, _buffer: &mut CqBuffer<'_>, filled: usize) -> crate::source::Polled {
        crate::source::Polled::new(filled, false, YieldHint::Idle)
    }
    fn take_error(&self, _slot: usize) -> Option<CqErrorEntry> {
        None
    }
    fn is_empty(&self, _slot: usize) -> bool {
        true
    }
    fn drive(&self) {}
    fn stand_in(&self) -> Arm {
        Arm::Armed
    }
    fn attend(&self) {}
    fn give_back(&self) {}
    fn arm(&self, _slot: usize) -> Arm {
        Arm::Armed
    }
    fn prepare_to_block(&self, _wake: Option<&WakeFd>) -> Arm {
        Arm::Armed
    }
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }
}

fn silent() -> Arc<dyn Source> {
    Arc::new(Silent)
}

fn open() -> Arc<Cq> {
    Cq::open(&CqAttr { wait_obj: WaitObj::None, ..CqAttr::default() }, DomainId::next(), |_| String::new())
        .unwrap()
}

fn read(queue: &Cq) {
    assert!(queue.read(&mut CqBuffer::new(&mut [CqTaggedEntry::EMPTY])).unwrap_err().is_again());
}

/// Endpoints come and go, and their queue is for transmits that are never read.
#[test]
fn a_queue_that_nobody_reads_keeps_no_source() {
    let queue = open();
    for _ in 0..1000 {
        let source = silent();
        queue.add(Arc::clone(&source), 0).unwrap();
        queue.add(Arc::clone(&source), 1).unwrap();
        queue.remove(&source);
        assert_eq!(Arc::strong_count(&source), 1);
    }
    let other = silent();
    queue.add(Arc::clone(&other), 0).unwrap();
    read(&queue);
    assert_eq!((Arc::strong_count(&other), queue.reader.lock().sources.len()), (2, 1));
}

#[test]
fn a_source_that_was_read_is_let_go_at_the_next_read() {
    let queue = open();
    let (source, other) = (silent(), silent());
    queue.add(Arc::clone(&source), 0).unwrap();
    read(&queue);
    queue.add(Arc::clone(&source), 1).unwrap();
    queue.add(Arc::clone(&other), 0).unwrap();
    queue.remove(&source);
    // Removed and added again before the read, it is there once.
    queue.add(Arc::clone(&source), 0).unwrap();
    read(&queue);
    assert_eq!((Arc::strong_count(&source), Arc::strong_count(&other)), (2, 2));
    queue.remove(&source);
    read(&queue);
    assert_eq!((Arc::strong_count(&source), queue.reader.lock().sources.len()), (1, 1));
}
