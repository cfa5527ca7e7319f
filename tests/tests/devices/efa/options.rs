//! Endpoint options of C's provider `efa` (`ofi-efa/options.rs`), and the sizes that its settings grant.

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};

use super::EfaPair;
use super::native::{DEVICE, alone, cost, on_own_device};

fn disabled() -> TestEndpoint {
    let kit: &dyn Kit = &EfaPair;
    kit.opening().hints(on_own_device).open_disabled().expect("an endpoint")
}

fn errno(result: Result<(), Error>) -> Errno {
    result.unwrap_err().errno()
}

#[test]
fn options_of_c_s_provider_are_read_and_set_before_the_endpoint_is_enabled() {
    let _alone = alone();
    let side = disabled();
    let all = EpOption::ALL.into_iter().filter(|option| (*option as i32) < 0);
    let values: Vec<_> = all.map(|option| side.ep.option(option)).collect();
    assert_eq!(values, [3, 0, 0, 1, 1, 0, 0, 0, 1].map(Ok), "fi_ext.h's order");
    assert_eq!(EpOption::EfaRnrRetry as i32, -(0xefa << 16));
    for (option, value, wanted) in [
        (EpOption::EfaRnrRetry, 8, Errno::EINVAL),
        (EpOption::EfaEmulatedRead, 1, Errno::ENOPROTOOPT),
        (EpOption::EfaSendrecvInOrder, 1, Errno::EOPNOTSUPP),
        (EpOption::EfaWriteInOrder, 1, Errno::EOPNOTSUPP),
        (EpOption::EfaHomogeneousPeers, 2, Errno::EINVAL),
    ] {
        assert_eq!(errno(side.ep.set_option(option, value)), wanted, "{option:?}");
    }
    for (option, value) in [
        (EpOption::EfaRnrRetry, 5),
        (EpOption::EfaWriteInOrder, 0),
        (EpOption::EfaHomogeneousPeers, 1),
        (EpOption::EfaUseUnsolicitedWriteRecv, 1),
        (EpOption::EfaUseUnsolicitedWriteRecv, 0),
    ] {
        side.ep.set_option(option, value).unwrap();
        assert_eq!(side.ep.option(option), Ok(value));
    }
    side.ep.enable().unwrap();
    assert_eq!(DEVICE.rnr_retry(), Some(5));
    assert_eq!(errno(side.ep.set_option(EpOption::EfaRnrRetry, 1)), Errno::EINVAL);
    assert_eq!(side.ep.option(EpOption::EfaRnrRetry), Ok(5));
    disabled().ep.enable().unwrap();
    assert_eq!(DEVICE.rnr_retry(), None);
}

#[test]
fn an_endpoint_that_uses_no_device_for_accesses_asks_their_owner() {
    let _alone = alone();
    for on in [true, false] {
        let (a, b) = (disabled(), disabled());
        a.ep.set_option(EpOption::EfaUseDeviceRdma, on.into()).unwrap();
        let emulated = [EpOption::EfaEmulatedRead, EpOption::EfaEmulatedWrite].map(|it| a.ep.option(it));
        assert_eq!(emulated.map(Result::unwrap), [usize::from(!on); 2]);
        [&a, &b].iter().for_each(|side| side.ep.enable().unwrap());
        let pair = Pair::of(a, b);
        pair.warm_up();
        let memory = Memory::new(64);
        let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
        let from = Memory::patterned(64, 3);
        let [writes, ..] = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
            pair.done(&pair.a);
        });
        memory.check(64, 3);
        assert_eq!(writes, u64::from(on));
    }
}

/// Endpoints of both kinds write to each other, with data: the device does it alone if they are of one kind.
#[test]
fn writes_with_data_arrive_whether_or_not_they_consume_receives() {
    let _alone = alone();
    for own in [[true, true], [false, false], [true, false], [false, true]] {
        let [a, b] = own.map(|on| {
            let side = disabled();
            side.ep.set_option(EpOption::EfaUseUnsolicitedWriteRecv, on.into()).unwrap();
            assert_eq!(side.ep.option(EpOption::EfaUseUnsolicitedWriteRecv), Ok(on.into()));
            side.ep.enable().unwrap();
            side
        });
        let pair = Pair::of(a, b);
        pair.warm_up();
        let memory = Memory::new(64);
        let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
        let before = DEVICE.solicited();
        for seed in 0..20 {
            let from = Memory::patterned(64, seed);
            let write = || pair.a.out(pair.to_b, &from).context(2).data(77).write(&[remote(&region)]);
            let [writes, ..] = cost(&pair.a, || {
                pair.post(write);
                pair.done(&pair.a);
            });
            let entry = pair.drive("the data", || pair.b.next()).done();
            assert_eq!((entry.data, entry.flags.contains(CompletionFlags::REMOTE_WRITE)), (77, true));
            memory.check(64, seed);
            assert_eq!(writes, u64::from(own[0] == own[1]), "{own:?}");
        }
        assert_eq!(DEVICE.solicited() - before, if own == [false, false] { 20 } else { 0 }, "{own:?}");
    }
}

/// Says whether writes with data consume no receives.
pub fn unsolicited(line: &mut Line, _: &[String]) {
    let side = disabled();
    let refused = side.ep.set_option(EpOption::EfaUseUnsolicitedWriteRecv, 1).map_err(|error| error.errno());
    line.say(format!("{:?} {refused:?}", side.ep.option(EpOption::EfaUseUnsolicitedWriteRecv)));
}

#[test]
fn the_setting_makes_writes_with_data_consume_receives() {
    for (environment, wanted) in [
        (&[][..], "Ok(1) Ok(())"),
        (&[("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0")], "Ok(0) Err(FI_EOPNOTSUPP(95))"),
    ] {
        let mut child = Child::start_with("unsolicited", &[], environment);
        child.line.expect(wanted);
        child.finish();
    }
}

#[test]
fn a_full_receive_queue_that_nobody_reads_does_not_hold_up_sends() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.two_queues().hints(|hints| hints.rx_size(1)));
    let mut entries = [CqTaggedEntry::EMPTY; 2];
    // A message whose completion stays in a's receive queue.
    pair.a.receive(()).context(1).post().unwrap();
    wait::drive(&[], "room", || pair.b.out(pair.to_a, ()).context(2).send().ok());
    wait::drive(&[], "the first message", || {
        assert!(pair.a.tx.read(&mut CqBuffer::new(&mut entries)).is_err(), "a has sent nothing");
        pair.b.tx.read(&mut CqBuffer::new(&mut entries)).ok()
    });
    // A long message waits for the receiver's credits.
    let (from, into) = (Memory::patterned(300_000, 5), Memory::new(300_000));
    pair.b.receive(&into).context(3).post().unwrap();
    wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).context(4).send().ok());
    let (mut sent, mut received) = (false, false);
    wait::drive(&[], "the long message", || {
        sent |= pair.a.tx.read(&mut CqBuffer::new(&mut entries)).is_ok();
        received |= pair.b.rx.read(&mut CqBuffer::new(&mut entries)).is_ok();
        (sent && received).then_some(())
    });
    into.check(300_000, 5);
}

/// Prints the sizes that are granted to hints without sizes, and whether hints may request 33 sends.
pub fn sized(line: &mut Line, _: &[String]) {
    let kit: &dyn Kit = &EfaPair;
    let granted = |size| {
        let info = kit.getinfo(&kit.usual().tx_size(size))?.remove(0);
        assert_eq!(info.fabric_attr.name, "efa");
        Ok::<_, Error>([info.tx_attr.size, info.rx_attr.size])
    };
    let of_33 = granted(33).map_err(|error| error.refusals().iter().any(|it| it.field == "tx_attr.size"));
    line.say(format!("{:?} {of_33:?}", granted(0).unwrap()));
}

#[test]
fn sizes_that_are_set_are_granted_as_c_s_provider_grants_them() {
    for (environment, wanted) in [
        (&[][..], "[1024, 1024] Ok([33, 1024])"),
        (&[("FI_EFA_TX_SIZE", "32"), ("FI_EFA_RX_SIZE", "7")], "[32, 7] Err(true)"),
    ] {
        let mut child = Child::start_with("efa_sized", &[], environment);
        child.line.expect(wanted);
        child.finish();
    }
}
