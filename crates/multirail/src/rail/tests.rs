use super::*;
use crate::engine::Config;

/// Regression test: then the queue counted as one that cannot be read, and the rail rested.
#[test]
fn a_rail_that_refuses_receives_is_still_read() {
    let now = Time::from_secs(1);
    let mut rail = Rail::open(&Hints::new().provider("shm"), true).unwrap();
    let mut core = Core::new("alice", vec![rail.spec.clone()], Config::default(), Box::new(|| 7));
    let addr = rail.insert(rail.spec.info.format, &rail.spec.info.address).unwrap();
    rail.send(OpId::from_bits(1 << 40), addr, b"no message".to_vec()).map_err(|(error, _)| error).unwrap();
    rail.fail(Error::new(Errno::EIO), now);
    let endpoint = rail.endpoint.take();
    let began = std::time::Instant::now();
    while rail.counts.received == 0 {
        rail.poll(&mut core, now).unwrap();
        assert!(began.elapsed() < Time::from_secs(10), "the message arrives");
    }
    assert!(rail.is_short() && rail.is_short_logged && rail.failure().is_none());
    rail.endpoint = endpoint;
    rail.poll(&mut core, now).unwrap();
    assert!(!rail.is_short() && !rail.is_short_logged, "its buffer is posted again");
}
