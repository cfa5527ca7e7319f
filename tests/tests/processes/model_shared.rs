//! A shared receive context against a model of two vectors that are searched from the front: which receive
//! gets which message, and which endpoint reports it.

use std::sync::Arc;

use ofi_testkit::prelude::{Result, *};
use ofi_tests::{Naming, hints};
use proptest::collection::vec;
use proptest::prelude::*;

const MEMBERS: usize = 3;
const SENDERS: usize = 2;
/// Lengths of messages: around the limit of a payload inside a command, and well above.
const LENGTHS: [usize; 4] = [0, 64, 9_000, 70_000];
const ROOM: usize = 70_000;

/// The messages that a receive matches: a tag with ignored bits, or untagged messages; of one sender, or of
/// all.
#[derive(Clone, Copy, Debug)]
struct Want {
    tag: Option<(u64, u64)>,
    sender: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    number: usize,
    sender: usize,
    member: usize,
    tag: Option<u64>,
    len: usize,
}

impl Message {
    fn suits(&self, want: &Want) -> bool {
        let tag = match (want.tag, self.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some(own)) => tag | ignore == own | ignore,
            _ => false,
        };
        tag && want.sender.is_none_or(|sender| sender == self.sender)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        sender: usize,
        member: usize,
        tag: Option<u64>,
        len: usize,
    },
    Receive {
        want: Want,
    },
    Cancel {
        which: usize,
    },
    /// `FI_PEEK`, alone or with `FI_DISCARD`.
    Peek {
        want: Want,
        discard: bool,
    },
    /// `FI_PEEK | FI_CLAIM`.
    Claim {
        want: Want,
    },
    /// `FI_CLAIM`, alone or with `FI_DISCARD`.
    Take {
        which: usize,
        discard: bool,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let tag = || proptest::option::of(0..3_u64);
    let mask = prop_oneof![3 => Just(0_u64), 1 => Just(1), 1 => Just(u64::MAX)];
    let want = (tag(), mask, proptest::option::of(0..SENDERS))
        .prop_map(|(tag, mask, sender)| Want { tag: tag.map(|tag| (tag, mask)), sender });
    let tagged = || want.clone().prop_map(|want| Want { tag: want.tag.or(Some((0, u64::MAX))), ..want });
    let send = (0..SENDERS, 0..MEMBERS, tag(), proptest::sample::select(&LENGTHS[..]))
        .prop_map(|(sender, member, tag, len)| Step::Send { sender, member, tag, len });
    prop_oneof![
        8 => send,
        8 => want.clone().prop_map(|want| Step::Receive { want }),
        2 => (tagged(), any::<bool>()).prop_map(|(want, discard)| Step::Peek { want, discard }),
        2 => tagged().prop_map(|want| Step::Claim { want }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, discard)| Step::Take { which, discard }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
    ]
}

struct World {
    srx: TestEndpoint,
    members: Vec<TestEndpoint>,
    senders: Vec<TestEndpoint>,
    /// The members' addresses in each sender's vector.
    to: Vec<Vec<FiAddr>>,
    /// The senders' addresses in the members' shared vector.
    from: Vec<FiAddr>,
}

impl World {
    fn new() -> Self {
        let opening = Opening::new(hints(Naming::Names));
        let host = opening.clone().open_disabled().unwrap();
        let srx = host.context(host.domain.open_shared_receive(&host.info.rx_attr).unwrap());
        let member = || opening.clone().shared_receive(&srx.ep).beside(&host).vector(&host.av).open();
        let members: Vec<TestEndpoint> = (0..MEMBERS).map(|_| member()).collect();
        let senders: Vec<TestEndpoint> = (0..SENDERS).map(|_| opening.clone().open()).collect();
        let to = senders.iter().map(|sender| members.iter().map(|member| sender.insert(member)).collect());
        let to = to.collect();
        let from = senders.iter().map(|sender| host.insert(sender)).collect();
        Self { srx, members, senders, to, from }
    }

    #[track_caller]
    fn drive<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        let sides: Vec<&TestEndpoint> = self.members.iter().chain(&self.senders).collect();
        wait::drive(&sides, what, ready)
    }

    fn send(&self, message: &Message) -> Result<()> {
        let memory = Memory::patterned(message.len, message.number as u8);
        let to = self.to[message.sender][message.member];
        let out = self.senders[message.sender].out(to, &memory).data(message.number as u64);
        if let Some(tag) = message.tag { out.tag(tag).send() } else { out.send() }
    }

    /// Posts a receive for `want`: plain, or with the flags of a search.
    fn post(&self, want: &Want, got: &Memory, context: usize, flags: Option<OpFlags>) {
        let from = want.sender.map_or(FiAddr::UNSPEC, |sender| self.from[sender]);
        let post = self.srx.receive(got).from(from).context(context);
        let post = if let Some((tag, ignore)) = want.tag { post.tag_ignoring(tag, ignore) } else { post };
        if let Some(flags) = flags { post.msg(flags) } else { post }.post().unwrap();
    }

    /// The first member reports that there is no message.
    fn check_missing(&self, context: usize) {
        let error = self.drive("a result", || self.members[0].next_of(context)).failed();
        assert_eq!(error.err, Errno::ENOMSG);
    }

    /// Checks that the member to which the message was sent reports it.
    fn check(&self, receive: usize, message: &Message, got: &Memory) {
        self.told(receive, message);
        got.slice(0..message.len).check(message.number as u8);
    }

    /// The same for a search, which moves no bytes.
    fn told(&self, receive: usize, message: &Message) {
        let event = self.drive("a received message", || self.members[message.member].next_of(receive));
        let Event::Done(entry, source) = event else { panic!("{event:?}") };
        assert_eq!((entry.data, entry.len), (message.number as u64, message.len));
        assert_eq!(source, self.from[message.sender]);
    }
}

fn play(steps: &[Step]) {
    let world = World::new();
    let mut posted: Vec<(usize, Want, Arc<Memory>)> = Vec::new();
    let mut waiting: Vec<Message> = Vec::new();
    let mut claimed: Vec<(usize, Message)> = Vec::new();
    let nothing = Memory::new(0);
    for (number, step) in steps.iter().enumerate() {
        // Contexts of receives count from 1; sends have none.
        let receive = number + 1;
        match *step {
            Step::Send { sender, member, tag, len } => {
                let message = Message { number, sender, member, tag, len };
                world.drive("room to send", || world.send(&message).ok());
                match posted.iter().position(|(_, want, _)| message.suits(want)) {
                    Some(at) => {
                        let (receive, _, got) = posted.remove(at);
                        world.check(receive, &message, &got);
                    }
                    None => {
                        waiting.push(message);
                        let count = (waiting.len() + claimed.len()) as u64;
                        let there = || world.srx.statistic("rx_unexpected_now") == count;
                        world.drive("a message that waits", || there().then_some(()));
                    }
                }
            }
            Step::Receive { want } => {
                let got = Arc::new(Memory::new(ROOM));
                world.post(&want, &got, receive, None);
                match waiting.iter().position(|message| message.suits(&want)) {
                    Some(at) => world.check(receive, &waiting.remove(at), &got),
                    None => posted.push((receive, want, got)),
                }
            }
            Step::Cancel { which } => {
                if posted.is_empty() {
                    assert_eq!(world.srx.cancel(usize::MAX).unwrap_err().errno(), Errno::ENOENT);
                    continue;
                }
                let (receive, ..) = posted.remove(which % posted.len());
                world.srx.cancel(receive).unwrap();
                let error = world.drive("a cancelled receive", || world.members[0].next_of(receive)).failed();
                assert_eq!(error.err, Errno::ECANCELED);
            }
            Step::Peek { want, discard } => {
                let flags = if discard { OpFlags::DISCARD } else { OpFlags::empty() };
                world.post(&want, &nothing, receive, Some(OpFlags::PEEK | flags));
                match waiting.iter().position(|message| message.suits(&want)) {
                    Some(at) => {
                        world.told(receive, &waiting[at]);
                        if discard {
                            waiting.remove(at);
                        }
                    }
                    None => world.check_missing(receive),
                }
            }
            Step::Claim { want } => {
                world.post(&want, &nothing, receive, Some(OpFlags::PEEK | OpFlags::CLAIM));
                match waiting.iter().position(|message| message.suits(&want)) {
                    Some(at) => {
                        world.told(receive, &waiting[at]);
                        claimed.push((receive, waiting.remove(at)));
                    }
                    None => world.check_missing(receive),
                }
            }
            Step::Take { which, discard } => {
                if claimed.is_empty() {
                    continue;
                }
                let (context, message) = claimed.remove(which % claimed.len());
                let want = Want { tag: Some((0, 0)), sender: None };
                if discard {
                    world.post(&want, &nothing, context, Some(OpFlags::CLAIM | OpFlags::DISCARD));
                    world.told(context, &message);
                } else {
                    let got = Memory::new(ROOM);
                    world.post(&want, &got, context, Some(OpFlags::CLAIM));
                    world.check(context, &message, &got);
                }
            }
        }
        assert_eq!(world.srx.statistic("rx_posted"), posted.len() as u64);
        assert_eq!(world.srx.statistic("rx_unexpected_now"), (waiting.len() + claimed.len()) as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_shared_context_does_what_the_model_says(steps in vec(steps(), 1..60)) {
        play(&steps);
    }
}
