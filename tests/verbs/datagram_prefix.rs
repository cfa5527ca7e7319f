//! Datagrams with room in front of messages (`FI_MSG_PREFIX`): the prefix is not sent, a received payload lies behind
//! it, and lengths include it.

use ofi_testkit::prelude::*;

use super::{CAPS, Quick};

/// The prefix size of C's provider.
const PREFIX: usize = 40;

fn hints() -> Hints {
    let kit: &dyn Kit = &Quick;
    kit.usual().caps(CAPS)
}

fn info(hints: &Hints) -> Info {
    let kit: &dyn Kit = &Quick;
    kit.info(hints)
}

/// An endpoint, and its prefix.
fn open(prefixed: bool) -> (TestEndpoint, usize) {
    let kit: &dyn Kit = &Quick;
    let hints = if prefixed { hints().mode(Mode::MSG_PREFIX) } else { hints() };
    (kit.opening_for(hints).open(), if prefixed { PREFIX } else { 0 })
}

#[test]
fn a_prefix_is_offered_to_who_has_room_for_it() {
    let asked = info(&hints().mode(Mode::MSG_PREFIX | Mode::CONTEXT));
    let modes = [asked.mode, asked.tx_attr.mode, asked.rx_attr.mode];
    assert_eq!((modes, asked.ep_attr.msg_prefix_size), ([Mode::MSG_PREFIX; 3], PREFIX));
    let plain = info(&hints());
    assert_eq!(asked.ep_attr.max_msg_size, plain.ep_attr.max_msg_size, "a prefix is in no limit");
    assert_eq!(asked.tx_attr.inject_size, plain.tx_attr.inject_size, "a prefix is in no limit");
    let mut roomy = hints().mode(Mode::MSG_PREFIX);
    roomy.info.ep_attr.msg_prefix_size = PREFIX + 8;
    assert_eq!(info(&roomy).ep_attr.msg_prefix_size, PREFIX);

    let mut tight = roomy.clone();
    tight.info.ep_attr.msg_prefix_size = PREFIX - 8;
    let (mut received, mut sent) = (hints().mode(Mode::MSG_PREFIX), hints().mode(Mode::MSG_PREFIX));
    received.info.tx_attr.mode = Mode::CONTEXT;
    sent.info.rx_attr.mode = Mode::CONTEXT;
    for without in [hints(), hints().mode(Mode::CONTEXT), tight, received, sent] {
        let info = info(&without);
        let modes = [info.mode, info.tx_attr.mode, info.rx_attr.mode];
        assert_eq!((modes, info.ep_attr.msg_prefix_size), ([Mode::empty(); 3], 0), "{without:?}");
    }
}

#[test]
fn messages_lie_behind_their_prefixes_at_either_end() {
    for [from, to] in [[true, true], [true, false], [false, true]] {
        let ((a, sent), (b, received)) = (open(from), open(to));
        let pair = Pair::of(a, b);
        let longest = pair.a.info.ep_attr.max_msg_size;
        for (seed, len) in (1..).zip([0, 1, 64, longest]) {
            let from = Memory::patterned(sent + len, seed + 100);
            from.slice(sent..).fill(seed);
            for injected in [false, true] {
                let into = Memory::new(received + len);
                pair.b.receive(&into).context(1).post().unwrap();
                pair.post(|| {
                    let out = pair.a.out(pair.to_b, &from).context(2).data(7);
                    if injected { out.inject() } else { out }.send()
                });
                let (got, source) = pair.done_from(&pair.b);
                assert_eq!((got.op_context, got.len, got.data), (Context(1), received + len, 7));
                assert_eq!(source, pair.to_a);
                into.slice(received..).check(seed);
                if !injected {
                    pair.done(&pair.a);
                }
            }
        }
        let long = Memory::new(sent + longest + 1);
        let refused = pair.a.out(pair.to_b, &long).send().unwrap_err();
        assert_eq!(refused.errno(), Errno::EMSGSIZE);
        let refused = pair.a.out(pair.to_b, &long).inject().send().unwrap_err();
        assert_eq!(refused.errno(), Errno::EMSGSIZE);
    }
}

#[test]
fn pieces_may_end_anywhere_behind_the_prefix() {
    let ((a, _), (b, _)) = (open(true), open(true));
    let pair = Pair::of(a, b);
    let (from, into) = (Memory::patterned(PREFIX + 100, 9), Memory::new(PREFIX + 100));
    from.slice(PREFIX..).fill(3);
    pair.b
        .receive(vec![into.slice(..PREFIX), into.slice(PREFIX..50), into.slice(50..)])
        .context(1)
        .post()
        .unwrap();
    pair.post(|| pair.a.out(pair.to_b, vec![from.slice(..47), from.slice(47..)]).context(2).send());
    assert_eq!(pair.done(&pair.b).len, PREFIX + 100);
    into.slice(PREFIX..).check(3);
    pair.done(&pair.a);
}

#[test]
fn what_is_shorter_than_a_prefix_is_refused_and_what_does_not_fit_is_an_error() {
    let ((a, _), (b, _)) = (open(true), open(true));
    let pair = Pair::of(a, b);
    for len in [0, PREFIX - 1] {
        let refused = pair.a.out(pair.to_b, &Memory::new(len)).send().unwrap_err();
        assert_eq!(refused.errno(), Errno::EINVAL);
        let text = refused.to_string();
        assert!(text.contains("msg_prefix_size") && text.contains("at least 40"), "{text}");
    }
    let (from, into) = (Memory::patterned(PREFIX + 25, 1), Memory::new(PREFIX + 10));
    from.slice(PREFIX..).fill(2);
    pair.b.receive(&into).context(1).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).inject().send());
    let error = pair.drive("the receive", || pair.b.next_of(1)).failed();
    assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, PREFIX + 10, 15));
    into.slice(PREFIX..).check(2);
    // Not even the prefix fits.
    pair.b.receive(&Memory::new(8)).context(3).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).inject().send());
    let error = pair.drive("the receive", || pair.b.next_of(3)).failed();
    assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, 8, PREFIX + 17));
}
